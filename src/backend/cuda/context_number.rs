//! Numbers for contexts that are never used again, unlike the driver's handles.

use cudarc::driver::sys;

use crate::sync::host::{Mutex, MutexGuard};

/// The number of a context for which no backend lives.
pub(super) const NO_BACKEND: u64 = 0;

/// The contexts that have a number now.
///
/// A primary context that was released and retained again has the handle that it had before, though
/// everything in it is gone, so a handle alone names a context only while something keeps it alive.
/// Each entry is held by backends, and each of those holds the context.
static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { last: NO_BACKEND, live: Vec::new() });

struct Numbers {
    last: u64,
    live: Vec<Entry>,
}

struct Entry {
    handle: usize,
    number: u64,
    backends: usize,
}

/// One backend's share in its context's number. It is dropped before the context is let go.
#[derive(Debug)]
pub(super) struct ContextNumber(u64);

impl ContextNumber {
    /// The number of a live context: that of the other backends which stand for it, or a new one.
    pub(super) fn of(context: sys::CUcontext) -> ContextNumber {
        let handle = context.addr();
        let mut numbers = lock();
        if let Some(entry) = numbers.live.iter_mut().find(|entry| entry.handle == handle) {
            entry.backends += 1;
            return ContextNumber(entry.number);
        }
        numbers.last += 1;
        let number = numbers.last;
        numbers.live.push(Entry { handle, number, backends: 1 });
        ContextNumber(number)
    }

    /// The number itself.
    pub(super) fn get(&self) -> u64 {
        self.0
    }
}

impl Drop for ContextNumber {
    fn drop(&mut self) {
        let mut numbers = lock();
        if let Some(index) = numbers.live.iter().position(|entry| entry.number == self.0) {
            numbers.live[index].backends -= 1;
            if numbers.live[index].backends == 0 {
                numbers.live.swap_remove(index);
            }
        }
    }
}

/// The number of a live context, or [`NO_BACKEND`].
pub(super) fn number_of(context: sys::CUcontext) -> u64 {
    let handle = context.addr();
    lock().live.iter().find(|entry| entry.handle == handle).map_or(NO_BACKEND, |entry| entry.number)
}

fn lock() -> MutexGuard<'static, Numbers> {
    // No code under this lock panics half-way, so a poisoned lock still guards a whole table.
    NUMBERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn one_context_has_one_number_and_its_handle_gets_another_next_time() {
        let handle: sys::CUcontext = ptr::without_provenance_mut(0x5eed0);
        let other: sys::CUcontext = ptr::without_provenance_mut(0x5eed8);
        let first = ContextNumber::of(handle);
        let second = ContextNumber::of(handle);
        assert_eq!(first.get(), second.get());
        assert_ne!(first.get(), ContextNumber::of(other).get());
        let gone = first.get();
        drop(first);
        assert_eq!(number_of(handle), gone);
        drop(second);
        assert_eq!(number_of(handle), NO_BACKEND);
        assert_ne!(ContextNumber::of(handle).get(), gone);
    }
}

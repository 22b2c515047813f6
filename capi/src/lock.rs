//! A lock for sections of a few dozen instructions, such as a look into a table: one exchange to lock, one
//! store to unlock, which on the way of every allocation and free is half of what a mutex takes.
//!
//! A thread that waits soon gives its time slice away, for the case that the holder was preempted.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Looks before a waiting thread gives its time slice away.
const PATIENCE: u32 = 512;

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Lock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: sound because the lock lends its value to one thread at a time: `lock` returns only to the
// thread whose exchange found `locked` false. So sharing the lock sends the value between threads at most.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Holds a [`Lock`] locked.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        // Acquire, with the release of the last unlock: its section happened before this one.
        self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if !self.try_lock() {
            self.wait();
        }
        Guard { lock: self }
    }

    #[cold]
    fn wait(&self) {
        let mut looks = 0;
        loop {
            // A plain load while it is locked leaves the line shared until the unlock.
            if !self.locked.load(Ordering::Relaxed) && self.try_lock() {
                return;
            }
            looks += 1;
            match looks < PATIENCE {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: sound because only the thread that locked has a guard, which lends the value no longer
        // than it is borrowed itself.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the guard itself is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release, with the acquire of the next lock.
        self.lock.locked.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn one_thread_at_a_time() {
        let lock = Lock::new(0_u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut value = lock.lock();
                        let seen = *value;
                        *value = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 80_000);
    }
}

//! The stream list's small lock: one byte, and an unlock that is one store.
//!
//! It guards sections of a few dozen instructions that call nothing. Its point, besides speed, is what
//! its unlock does *not* do: after the store that unlocks, nothing of the lock is touched any more. A
//! buffer's drop may therefore end with that store although, once it is visible, another thread may
//! find the stream unused and free it, lock and all.

use std::ops::{Deref, DerefMut};

use super::Held;

#[cfg(loom)]
use loom::cell::{MutPtr, UnsafeCell};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use std::cell::{Cell, UnsafeCell};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

/// A waiting thread looks again after some pauses, then after twice as many, up to so many: of many that wait,
/// each comes back on its own, and the line is left to the holder meanwhile, for a run of sections.
#[cfg(not(loom))]
const PAUSES_MAX: u32 = 256;
/// Pauses in all before a waiting thread gives its time slice away: many times what a section takes, so
/// that by then the holder has most likely been preempted.
#[cfg(not(loom))]
const PATIENCE: u32 = 2048;

#[cfg(not(loom))]
thread_local! {
    /// How many pauses this thread's next wait, for whichever lock, begins with. Who starts from one each time
    /// is back at once when he has just lost the lock, and it changes hands with every section.
    static FIRST_PAUSES: Cell<u32> = const { Cell::new(1) };
}

/// A spin lock that yields. The lock lies before its value, on the line of the value's first fields.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SpinLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands its value to one thread at a time, because `lock` returns only to the thread
// whose exchange found `locked` false; so sharing the lock sends the value between threads at most.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: the value moves with the lock, and it is `Send`.
unsafe impl<T: Send> Send for SpinLock<T> {}

/// Holds a [`SpinLock`] locked.
#[derive(Debug)]
pub(crate) struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
    /// Loom's token for the access; gone when the unlock begins.
    #[cfg(loom)]
    value: Option<MutPtr<T>>,
    _held: Held,
}

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> SpinLock<T> {
        SpinLock { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Locks if nobody holds the lock.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        // Acquire, with the release store of the last unlock: its section happened before this one.
        let locked =
            self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        locked.is_ok().then(|| SpinGuard {
            lock: self,
            #[cfg(loom)]
            value: Some(self.value.get_mut()),
            _held: Held::new(),
        })
    }

    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.lock_contended(),
        }
    }

    #[cold]
    fn lock_contended(&self) -> SpinGuard<'_, T> {
        #[cfg(not(loom))]
        let (mut pauses, mut waited) = (FIRST_PAUSES.get(), 0);
        loop {
            // A plain load while it is locked: the line stays shared until the unlock. It decides
            // nothing, and a model is spared it.
            #[cfg(not(loom))]
            while self.locked.load(Ordering::Relaxed) {
                if waited >= PATIENCE {
                    std::thread::yield_now();
                    continue;
                }
                (0..pauses).for_each(|_| std::hint::spin_loop());
                waited += pauses;
                pauses = (2 * pauses).min(PAUSES_MAX);
            }
            #[cfg(loom)]
            loom::thread::yield_now();
            if let Some(guard) = self.try_lock() {
                // Half of what this wait began with, if one look was enough; as much after two, more after more.
                #[cfg(not(loom))]
                FIRST_PAUSES.set((pauses / 4).max(1));
                return guard;
            }
        }
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, because only the thread that locked has one, and it lends
        // the value no longer than it is borrowed itself.
        #[cfg(not(loom))]
        unsafe {
            &*self.lock.value.get()
        }
        // SAFETY: as above; loom checks it.
        #[cfg(loom)]
        unsafe {
            self.value.as_ref().expect("locked").deref()
        }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the guard itself is borrowed mutably.
        #[cfg(not(loom))]
        unsafe {
            &mut *self.lock.value.get()
        }
        // SAFETY: as above; loom checks it.
        #[cfg(loom)]
        unsafe {
            self.value.as_ref().expect("locked").deref()
        }
    }
}

#[cfg(not(loom))]
impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release, with the acquire of the next lock. Nothing of the lock is touched after it.
        self.lock.locked.store(false, Ordering::Release);
    }
}

#[cfg(loom)]
impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        // The access to the value ends before the unlock.
        self.value = None;
        let weak = crate::fault::seeded!(WeakUnlock);
        self.lock.locked.store(false, if weak { Ordering::Relaxed } else { Ordering::Release });
    }
}

#[cfg(loom)]
impl<T> Drop for SpinLock<T> {
    /// Whoever frees a lock has seen every unlock of it: loom checks that.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: `self` is borrowed mutably; loom checks that no access is concurrent.
            let locked = unsafe { self.locked.unsync_load() };
            assert!(!locked, "a lock is freed while it is locked");
            self.value.with_mut(|_| ());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_thread_at_a_time() {
        let lock = Arc::new(SpinLock::new(0_u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = Arc::clone(&lock);
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        let mut value = lock.lock();
                        let seen = *value;
                        *value = seen + 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!(*lock.lock(), 80_000);
    }
}

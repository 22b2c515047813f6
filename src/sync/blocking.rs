//! What stands for the spin lock in the models of the pool.
//!
//! A thread that spins gives loom a choice at every turn, and a model that ran in milliseconds does
//! not end. This lock blocks instead. It keeps what the pool relies on and loom can check: one thread
//! at a time sees the value, and who frees the lock has seen every unlock.

use std::ops::{Deref, DerefMut};

use loom::cell::{MutPtr, UnsafeCell};
use loom::sync::{Mutex, MutexGuard};

/// The spin lock's stand-in.
#[derive(Debug)]
pub(crate) struct SpinLock<T> {
    locked: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: the mutex hands the value to one thread at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// Holds a [`SpinLock`] locked. The access to the value ends before the unlock, as the fields' order
/// says.
#[derive(Debug)]
pub(crate) struct SpinGuard<'a, T> {
    value: MutPtr<T>,
    _locked: MutexGuard<'a, ()>,
}

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> SpinLock<T> {
        SpinLock { locked: Mutex::new(()), value: UnsafeCell::new(value) }
    }

    pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        let locked = self.locked.try_lock().ok()?;
        Some(SpinGuard { value: self.value.get_mut(), _locked: locked })
    }

    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        let locked = self.locked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        SpinGuard { value: self.value.get_mut(), _locked: locked }
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mutex is locked, and this guard is the only one.
        unsafe { self.value.deref() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the guard is borrowed mutably.
        unsafe { self.value.deref() }
    }
}

impl<T> Drop for SpinLock<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.value.with_mut(|_| ());
        }
    }
}

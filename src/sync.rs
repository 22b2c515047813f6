//! The only file that names `loom`, `std::sync` or `parking_lot`.
//!
//! Under `--cfg loom` the atomics and locks of the pool are loom's, so that a model explores their
//! interleavings. Three things stay the standard library's in every build: reference counts (not
//! what the models are about), process-wide statics (loom's objects live in one execution only) and
//! the simulated device's own lock, which would make models explode; a [`CallPoint`] stands for it.
//!
//! No lock of the pool may be held across a call of a backend. With debug assertions both locks count
//! themselves, and [`assert_no_lock_held`] checks it at every such call.

pub(crate) use std::sync::{Arc, Weak};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
use loom::sync::{Mutex as Inner, MutexGuard as InnerGuard};
#[cfg(not(loom))]
use parking_lot::{Mutex as Inner, MutexGuard as InnerGuard};

use std::ops::{Deref, DerefMut};

mod spin;

pub(crate) use spin::SpinLock;

/// What stays the standard library's in every build.
pub(crate) mod host {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
}

/// A lock for short sections: parking_lot's, or loom's in a model.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    inner: Inner<T>,
}

/// Holds a [`Mutex`] locked.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    inner: InnerGuard<'a, T>,
    _held: Held,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex { inner: Inner::new(value) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(not(loom))]
        let inner = self.inner.lock();
        #[cfg(loom)]
        let inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        MutexGuard { inner, _held: Held::new() }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// One lock held by this thread. Without debug assertions it is nothing.
#[derive(Debug)]
struct Held {
    /// A lock is given back by the thread that took it.
    _not_send: std::marker::PhantomData<*const ()>,
}

#[cfg(all(debug_assertions, not(loom)))]
thread_local! {
    static LOCKS_HELD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Held {
    #[inline]
    fn new() -> Held {
        #[cfg(all(debug_assertions, not(loom)))]
        LOCKS_HELD.set(LOCKS_HELD.get() + 1);
        Held { _not_send: std::marker::PhantomData }
    }
}

#[cfg(all(debug_assertions, not(loom)))]
impl Drop for Held {
    fn drop(&mut self) {
        LOCKS_HELD.set(LOCKS_HELD.get() - 1);
    }
}

/// Checks, with debug assertions, that this thread holds no lock of the pool: a backend is about to be
/// called.
#[inline]
pub(crate) fn assert_no_lock_held() {
    #[cfg(all(debug_assertions, not(loom)))]
    assert_eq!(LOCKS_HELD.get(), 0, "a backend is called with a lock of the pool held");
}

/// Thread-locals that a model's threads do not share: loom's in a model. Each is constant at first.
macro_rules! pool_thread_local {
    ($($(#[$doc:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        #[cfg(not(loom))]
        thread_local! { $($(#[$doc])* static $name: $type = const { $value };)* }
        #[cfg(loom)]
        loom::thread_local! { $($(#[$doc])* static $name: $type = $value;)* }
    };
}
pub(crate) use pool_thread_local;

/// Lets other threads run: a step of a bounded wait.
pub(crate) fn pause_thread(micros: u64) {
    #[cfg(not(loom))]
    std::thread::sleep(std::time::Duration::from_micros(micros));
    #[cfg(loom)]
    {
        let _ = micros;
        loom::thread::yield_now();
    }
}

/// A point at which the order of driver calls on different threads matters. Under loom each
/// [`reach`](Self::reach) is one read-modify-write, where the model may switch threads.
#[derive(Debug, Default)]
pub(crate) struct CallPoint {
    #[cfg(loom)]
    calls: loom::sync::atomic::AtomicUsize,
}

impl CallPoint {
    /// Passes the point.
    #[inline]
    pub(crate) fn reach(&self) {
        #[cfg(loom)]
        self.calls.fetch_add(1, loom::sync::atomic::Ordering::AcqRel);
    }
}

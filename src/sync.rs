//! The only file that names `loom`, `std::sync` or `parking_lot`.
//!
//! Under `--cfg loom` the atomics and locks of the pool are loom's, so that a model explores their
//! interleavings. Three things stay the standard library's in every build: reference counts (not
//! what the models are about), process-wide statics (loom's objects live in one execution only) and
//! the simulated device's own lock, which would make models explode; a [`CallPoint`] stands for it.

pub(crate) use std::sync::{Arc, Weak};

#[cfg(not(loom))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// What stays the standard library's in every build.
pub(crate) mod host {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
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

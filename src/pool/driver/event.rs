//! An event of a driver's, while somebody uses it.

use super::Driver;
use crate::backend::Backend;
use crate::sync::{Arc, host};

/// An event in use. The last pin gives it back to its driver, with no driver call.
#[derive(Debug)]
pub(crate) struct PooledEvent<B: Backend> {
    pub(super) event: Option<B::Event>,
    pub(super) discarded: host::AtomicBool,
    pub(super) driver: Arc<Driver<B>>,
}

impl<B: Backend> PooledEvent<B> {
    pub(super) fn raw(&self) -> &B::Event {
        self.event.as_ref().expect("an event is there until its last pin goes")
    }

    /// The driver whose event this is.
    pub(crate) fn driver(&self) -> &Driver<B> {
        &self.driver
    }

    /// It must not be recorded again: a capture may own it, or the driver refused it.
    pub(crate) fn discard(&self) {
        self.discarded.store(true, host::Ordering::Relaxed);
    }
}

impl<B: Backend> Drop for PooledEvent<B> {
    fn drop(&mut self) {
        let event = self.event.take().expect("dropped once");
        // Relaxed: the last pin's drop synchronizes with every earlier one.
        let discarded = self.discarded.load(host::Ordering::Relaxed);
        let list = if discarded { &self.driver.doomed } else { &self.driver.idle };
        list.lock().push(event);
    }
}

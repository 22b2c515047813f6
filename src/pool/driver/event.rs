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
    /// Stands for what a stream of a lost device will never be seen to finish. There is no event behind it, and
    /// the driver, which knows that its device is lost, asks none.
    pub(crate) fn of_lost(driver: &Arc<Driver<B>>) -> Arc<PooledEvent<B>> {
        debug_assert!(driver.lost().is_some());
        let (discarded, driver) = (host::AtomicBool::new(true), Arc::clone(driver));
        Arc::new(PooledEvent { event: None, discarded, driver })
    }

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
        let Some(event) = self.event.take() else { return };
        // Relaxed: the last pin's drop synchronizes with every earlier one.
        let discarded = self.discarded.load(host::Ordering::Relaxed);
        let list = if discarded { &self.driver.doomed } else { &self.driver.idle };
        list.lock().push(event);
    }
}

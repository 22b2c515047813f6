//! How a pool ends: closed by hand, or left behind and finished by whoever calls any pool next.

use super::{PoolCore, PoolHandle};
use crate::backend::Backend;
use crate::error::{Error, Reason};
use crate::pool_stream::core::Detours;
use crate::sync::{Arc, Ordering, host};

use super::miss::Asked;

/// A pool that has no handle any more and still holds memory.
trait Ended: Send + Sync {
    /// Gives back what has completed, waiting for nothing; says whether all is given back.
    fn try_finish(&self) -> bool;
}

/// The ended pools of the process. A pool that is still here when the process exits is leaked, with the
/// driver's leave: the driver must not be called then.
static ENDED: host::Mutex<Vec<Arc<dyn Ended>>> = host::Mutex::new(Vec::new());
static ENDED_COUNT: host::AtomicUsize = host::AtomicUsize::new(0);

/// How many ended pools one call looks after.
const POLL_AT_ONCE: usize = 4;

fn ended() -> host::MutexGuard<'static, Vec<Arc<dyn Ended>>> {
    // A panic elsewhere leaves the list whole: it is only pushed to and taken from.
    ENDED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn leave(pools: Vec<Arc<dyn Ended>>) {
    if pools.is_empty() {
        return;
    }
    let mut ended = ended();
    ended.extend(pools);
    ENDED_COUNT.store(ended.len(), host::Ordering::Relaxed);
}

/// Lets a few ended pools give back what has completed since. Called by the calls that may block.
pub(super) fn poll() {
    // Relaxed: a pool that is missed now is met by the next call.
    if ENDED_COUNT.load(host::Ordering::Relaxed) == 0 {
        return;
    }
    let pools: Vec<_> = {
        let mut ended = ended();
        let few = ended.len().min(POLL_AT_ONCE);
        let pools = ended.drain(..few).collect();
        ENDED_COUNT.store(ended.len(), host::Ordering::Relaxed);
        pools
    };
    leave(pools.into_iter().filter(|pool| !pool.try_finish()).collect());
}

impl<B: Backend> Drop for PoolHandle<B> {
    /// The last handle: gives back what it can without waiting, and leaves the rest for a later call.
    fn drop(&mut self) {
        if !self.core.try_finish() {
            leave(vec![Arc::clone(&self.core) as Arc<dyn Ended>]);
        }
    }
}

impl<B: Backend> Ended for PoolCore<B> {
    fn try_finish(&self) -> bool {
        // Relaxed: a note that is missed now is met by the next call.
        if self.rests.load(host::Ordering::Relaxed)
            && self.unused_count.load(Ordering::Relaxed) == 0
        {
            return false;
        }
        if self.finish_some() {
            return true;
        }
        // With nothing under way the pool has work again when a stream's last buffer is dropped. Noted
        // under the lock: of two threads that get here, the one that looks last has the last word.
        let central = self.central.lock();
        let waits = central.heap.bytes().pending > 0 || !central.stuck.is_empty();
        let rests = self.driver.lost().is_some() || !(waits || central.has_retired());
        self.rests.store(rests, host::Ordering::Relaxed);
        false
    }
}

impl<B: Backend> PoolCore<B> {
    /// Gives back what has completed; says whether all is given back.
    fn finish_some(&self) -> bool {
        if self.driver.lost().is_some() {
            // Nothing can be given back to a lost device; its streams go as they are.
            return self.abandon_streams();
        }
        self.tend();
        let streams = self.streams();
        {
            let mut central = self.central.lock();
            for core in streams.iter() {
                central.drain(core, 0);
            }
        }
        drop(streams);
        let mut asked = Asked::default();
        self.ask_everything(&mut asked);
        self.retry_stuck();
        let given = self.give_back(0);
        for error in asked.error.into_iter().chain(given.err()) {
            self.driver.keep_error(error);
        }
        let empty = self.registry.lock().is_empty();
        empty && self.release_rest()
    }
}

impl<B: Backend> PoolCore<B> {
    /// With no memory left, gives the addresses back and destroys the events.
    fn release_rest(&self) -> bool {
        let ranges = {
            let mut central = self.central.lock();
            if central.reserved() > 0 {
                return false;
            }
            central.heap.take_empty_ranges()
        };
        let mut all = true;
        for (address, bytes) in ranges {
            // SAFETY: the heap says that nothing is mapped in the range, and has forgotten it.
            let release = |own: &B| unsafe { own.release_range(address, bytes) };
            if let Err(error) = self.driver.memory("release a range of addresses", release) {
                self.driver.keep_error(error);
                self.central.lock().heap.add_range(address, bytes);
                all = false;
            }
        }
        if all {
            self.driver.destroy_events(true);
        }
        all
    }

    /// Ends the pool by hand.
    pub(super) fn close(&self) -> Result<(), Error> {
        if let Some(error) = self.driver.lost() {
            return Err(error.clone());
        }
        // The mark first: from here on no stream serves a hit, and no other call begins.
        let was_closed = self.closed.swap(true, host::Ordering::Relaxed);
        self.shut_hits();
        let buffers: u64 = self.streams().iter().map(|core| core.state.lock().live()).sum();
        if buffers > 0 {
            if !was_closed {
                self.reopen();
            }
            return Err(Error::new(Reason::BuffersAlive { buffers }));
        }
        self.retire_all_unused()?;
        let pins = self.pin_all();
        for pin in &pins {
            self.synchronize_stream(&pin.core)?;
        }
        let retired = self.central.lock().retired.clone();
        for timeline in &retired {
            if let Some(closed) = timeline.latest() {
                self.synchronize(timeline, &closed)?;
            }
        }
        // No event says what strangers, or streams whose last event was refused, still run.
        if retired.iter().any(|timeline| !timeline.is_over()) {
            self.quiesce_strangers()?;
        }
        {
            let mut central = self.central.lock();
            for pin in &pins {
                central.drain(&pin.core, 0);
            }
        }
        drop(pins);
        self.retry_stuck();
        self.give_back(0)?;
        self.release_rest();
        Ok(())
    }

    /// The device is lost: lets the streams go that nothing uses, and says whether none is left.
    fn abandon_streams(&self) -> bool {
        let (gone, empty) = {
            let mut registry = self.registry.lock();
            let streams = registry.streams();
            let unused = streams.iter().filter(|core| core.state.lock().is_unused());
            let gone: Vec<_> = unused.filter_map(|core| registry.remove(core.id)).collect();
            let mut central = self.central.lock();
            gone.iter().for_each(|core| central.keep_counts(core));
            ((streams, gone), registry.is_empty())
        };
        // Outside the lock: the last reference lets the backend's stream go.
        drop(gone);
        empty
    }

    fn reopen(&self) {
        self.closed.store(false, host::Ordering::Relaxed);
        for core in self.streams().iter() {
            core.state.lock().detours.set(Detours::CLOSED, false);
        }
    }
}

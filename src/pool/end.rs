//! How a pool ends: closed by hand, or left behind and finished by whoever calls any pool next.

use super::ask::Asked;
use super::{PoolCore, PoolHandle, PoolId, PooledEvent};
use crate::backend::Backend;
use crate::error::{Error, Reason};
use crate::heap::Part;
use crate::order::{Closed, Evidence, Moment};
use crate::pool_stream::core::{Detours, StreamCore};
use crate::sync::{Arc, Ordering, host};
use crate::tell::{self, Kind, Told};

/// A pool that nobody will call any more, or that could not be closed at once, and still holds memory.
trait Ended: Send + Sync {
    fn id(&self) -> PoolId;

    /// Gives back what has completed; says whether all is given back. What may block, it does only where
    /// the caller may.
    fn try_finish(&self, may_block: bool) -> bool;
}

/// The ended pools of the process, each once. A pool that is still here when the process exits is leaked,
/// with the driver's leave: the driver must not be called then.
struct EndedPools {
    waiting: Vec<Arc<dyn Ended>>,
    /// Those that a thread is just looking after, and whether they were listed again meanwhile.
    in_hand: Vec<(PoolId, bool)>,
}

static ENDED: host::Mutex<EndedPools> =
    host::Mutex::new(EndedPools { waiting: Vec::new(), in_hand: Vec::new() });
static ENDED_COUNT: host::AtomicUsize = host::AtomicUsize::new(0);

/// How many ended pools one call looks after.
const POLL_AT_ONCE: usize = 4;

fn ended() -> host::MutexGuard<'static, EndedPools> {
    // A panic elsewhere leaves the list whole: it is only pushed to and taken from.
    ENDED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl EndedPools {
    fn has(&self, id: PoolId) -> bool {
        self.waiting.iter().any(|own| own.id() == id) || self.in_hand.iter().any(|own| own.0 == id)
    }

    /// Lists a pool, if it is not.
    fn list(&mut self, pool: Arc<dyn Ended>) {
        let id = pool.id();
        if let Some(own) = self.in_hand.iter_mut().find(|own| own.0 == id) {
            own.1 = true;
        } else if !self.has(id) {
            self.waiting.push(pool);
            ENDED_COUNT.store(self.waiting.len(), host::Ordering::Relaxed);
        }
    }

    /// Takes a pool off the list that is finished.
    fn unlist(&mut self, id: PoolId) -> Option<Arc<dyn Ended>> {
        let at = self.waiting.iter().position(|own| own.id() == id)?;
        let own = self.waiting.swap_remove(at);
        ENDED_COUNT.store(self.waiting.len(), host::Ordering::Relaxed);
        Some(own)
    }
}

/// Lets a few ended pools give back what has completed since. Called by the calls that may block.
pub(super) fn poll(may_block: bool) {
    // Relaxed: a pool that is missed now is met by the next call.
    if ENDED_COUNT.load(host::Ordering::Relaxed) == 0 {
        return;
    }
    let pools: Vec<_> = {
        let mut ended = ended();
        let few = ended.waiting.len().min(POLL_AT_ONCE);
        let pools: Vec<_> = ended.waiting.drain(..few).collect();
        ended.in_hand.extend(pools.iter().map(|pool| (pool.id(), false)));
        ENDED_COUNT.store(ended.waiting.len(), host::Ordering::Relaxed);
        pools
    };
    for pool in pools {
        let finished = pool.try_finish(may_block);
        let mut ended = ended();
        let at = ended.in_hand.iter().position(|own| own.0 == pool.id());
        let (_, again) = ended.in_hand.swap_remove(at.expect("a pool in hand is noted"));
        if !finished || again {
            ended.list(pool);
        }
    }
}

impl<B: Backend> Drop for PoolHandle<B> {
    /// The last handle: gives back what it can without waiting, and leaves the rest for a later call. With
    /// a buffer alive, or where a buffer's stream has brought a handle of an ended pool back for a while,
    /// it leaves all of it.
    fn drop(&mut self) {
        let core = &self.core;
        let (live, listed) = (core.live_buffers(), ended().has(core.id));
        if live > 0 && !listed {
            tell::later(Kind::Warning, || {
                let stats = core.stats();
                let (in_use, reserved) = (stats.in_use, stats.reserved);
                Told::Leak { pool: core.id.0, live, in_use, reserved }
            });
        }
        let is_left = live > 0 || listed && !core.is_closed_for_good();
        if is_left || !core.try_finish(false) {
            ended().list(Arc::clone(core) as Arc<dyn Ended>);
        } else if listed {
            // Dropped outside the lock: its events go with it.
            let unlisted = ended().unlist(core.id);
            drop(unlisted);
        }
        tell::at_drop();
    }
}

impl<B: Backend> Ended for PoolCore<B> {
    fn id(&self) -> PoolId {
        self.id
    }

    fn try_finish(&self, may_block: bool) -> bool {
        // Whoever closes it by hand does all of this.
        let Ok(_ending) = self.ending.try_lock() else { return false };
        // Relaxed: a note that is missed now is met by the next call.
        if self.rests.load(host::Ordering::Relaxed)
            && self.unused_count.load(Ordering::Relaxed) == 0
        {
            return false;
        }
        let refused = match self.finish_some(may_block) {
            Ok(true) => return true,
            Ok(false) => false,
            Err(error) => {
                self.driver.keep_error(error);
                true
            }
        };
        // With nothing under way the pool has work again when a stream's last buffer is dropped. Noted
        // under the lock: of two threads that get here, the one that looks last has the last word. What a lost
        // device has used is leaked: nobody can ever say that it has finished.
        let lost = self.lost_elsewhere();
        let central = self.central.lock();
        let bytes = central.heap.bytes();
        let kept = bytes.clean > 0 && !self.gives_back(may_block);
        let pending = central.heap.waits_without(|point| {
            lost.contains(&point.timeline)
                && central.timelines.completed(point.timeline) < point.epoch
        });
        let waits = pending || central.pieces.parked_bytes() > 0 || kept || refused;
        let rests = self.driver.lost().is_some() || (!waits && central.retired.is_empty());
        self.rests.store(rests, host::Ordering::Relaxed);
        false
    }
}

impl<B: Backend> PoolCore<B> {
    /// Gives back what has completed; says whether all is given back. An error: the addresses could not go.
    fn finish_some(&self, may_block: bool) -> Result<bool, Error> {
        if self.driver.lost().is_some() {
            // Nothing can be given back to a lost device; its streams go as they are.
            return Ok(self.abandon_streams());
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
        let given = if self.gives_back(may_block) { self.give_back(0) } else { Ok(0) };
        for error in asked.error.into_iter().chain(given.err()) {
            self.driver.keep_error(error);
        }
        let (empty, has_handle) =
            (self.registry.lock().is_empty(), self.handle.lock().strong_count() > 0);
        // While there is a handle, streams may stay: its drop ends the pool once more.
        let released = (empty || has_handle) && self.release_rest()?;
        // A closed pool may keep its handle for good, and no call of its own comes here any more: it is
        // looked after until its streams are gone, and their last events.
        let stays = has_handle && self.is_closed_for_good();
        Ok(released && (!stays || empty && self.central.lock().retired.is_empty()))
    }

    fn is_closed_for_good(&self) -> bool {
        // Relaxed: a handle's drop that misses it is seen by the close, under the stream's lock.
        self.closed_for_good.load(host::Ordering::Relaxed)
    }

    /// The last handle of a stream has gone. With its pool closed, somebody must let it leave. Not in models,
    /// whose executions have this list in common.
    pub(crate) fn look_after_stream(self: &Arc<Self>) {
        if self.is_closed_for_good() && !cfg!(loom) {
            ended().list(Arc::clone(self) as Arc<dyn Ended>);
        }
    }

    /// With no memory left, gives the addresses back and destroys the events; says whether that was so.
    fn release_rest(&self) -> Result<bool, Error> {
        let ranges = {
            let mut central = self.central.lock();
            if central.reserved() > 0 {
                return Ok(false);
            }
            central.heap.take_empty_ranges()
        };
        let mut result = Ok(true);
        for (address, bytes) in ranges {
            // SAFETY: the heap says that nothing is mapped in the range, and has forgotten it.
            let release = |own: &B| unsafe { own.release_range(address, bytes) };
            if let Err(error) = self.driver.memory("release a range of addresses", release) {
                let unit = self.granularity().expect("only virtual memory has ranges");
                self.central.lock().heap.add_range(address, bytes, Part::Large, unit);
                result = Err(error);
            }
        }
        if result.is_ok() {
            self.driver.destroy_events(true);
        }
        result
    }

    fn live_buffers(&self) -> u64 {
        self.streams().iter().map(|core| core.state.lock().live()).sum()
    }

    /// Ends the pool by hand.
    pub(super) fn close(self: &Arc<Self>) -> Result<(), Error> {
        if let Some(error) = self.driver.lost() {
            return Err(error.clone());
        }
        // Nobody else ends it meanwhile.
        let _ending = self.ending.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // The mark first: from here on no stream serves a hit, and no other call begins. One that has begun
        // may still hand a buffer out.
        let (was_closed, calls) = self.gate.close();
        self.shut_hits();
        let buffers = self.live_buffers();
        if buffers > 0 || calls > 0 {
            if !was_closed {
                self.reopen();
            }
            return Err(Error::new(match buffers {
                0 => Reason::CallsUnderWay { calls },
                _ => Reason::BuffersAlive { buffers },
            }));
        }
        self.closed_for_good.store(true, host::Ordering::Relaxed);
        let closed = self.give_all_back();
        // What is left after an error, and streams that only other pools' buffers name, are looked after like
        // those of a pool that was left behind.
        let is_named = |core: &Arc<StreamCore<B>>| core.state.lock().handles == 0;
        if closed.is_err() || self.streams().iter().any(is_named) {
            ended().list(Arc::clone(self) as Arc<dyn Ended>);
        }
        closed
    }

    /// Waits for everything that the pool's blocks wait for, and gives everything back.
    fn give_all_back(&self) -> Result<(), Error> {
        self.retire_all_unused()?;
        let pins = self.pin_all();
        for pin in &pins {
            self.synchronize_stream(&pin.core)?;
        }
        let (retired, strangers) = {
            let mut central = self.central.lock();
            central.settle();
            (central.retired.clone(), central.waits_for_strangers())
        };
        for timeline in &retired {
            if let Some(closed) = timeline.latest() {
                self.synchronize(timeline, &closed)?;
            }
        }
        // No event says what strangers, or streams whose last event was refused, still run.
        if strangers || retired.iter().any(|timeline| !timeline.is_over()) {
            self.quiesce_strangers()?;
        }
        {
            let mut central = self.central.lock();
            for pin in &pins {
                central.drain(&pin.core, 0);
            }
        }
        drop(pins);
        let passed_over = self.synchronize_foreign()?;
        self.give_back(0)?;
        if self.release_rest()? {
            return Ok(());
        }
        let bytes = self.central.lock().reserved();
        Err(passed_over.unwrap_or_else(|| Error::new(Reason::NotGivenBack { bytes })))
    }

    /// The device is lost: lets the streams go that nothing uses, and says whether none is left. What they were
    /// used for is never seen to finish, and other pools whose blocks wait for it are told so.
    fn abandon_streams(&self) -> bool {
        let (gone, empty) = {
            let mut registry = self.registry.lock();
            let streams = registry.streams();
            let mut central = self.central.lock();
            let mut gone = Vec::new();
            for core in streams.iter() {
                let last = {
                    let mut state = core.state.lock();
                    if !state.is_unused() || std::mem::replace(&mut state.is_in_leave, true) {
                        continue;
                    }
                    state.detours.set(Detours::RETIRED, true);
                    state.advance()
                };
                let (event, frontier) = (PooledEvent::of_lost(&self.driver), Arc::default());
                let moment = Moment::Probe;
                core.timeline.retire(Closed { epoch: last, event, frontier, moment });
                central.keep_counts(core);
                gone.extend(registry.remove(core.id));
            }
            ((streams, gone), registry.is_empty())
        };
        // Outside the lock: the last reference lets the backend's stream go.
        drop(gone);
        empty
    }

    fn reopen(&self) {
        for core in self.streams().iter() {
            core.state.lock().detours.set(Detours::CLOSED, false);
        }
        self.gate.reopen();
    }
}

//! How a stream leaves its pool.

use super::foreign::{InLeave, LEAVE_PAUSE_MICROS, LeaveEnd};
use super::ordering::Pin;
use super::{PoolCore, PooledEvent};
use crate::backend::Backend;
use crate::error::{Error, Reason};
use crate::fault::seeded;
use crate::order::{Moment, Timeline};
use crate::pool_stream::PoolStream;
use crate::pool_stream::core::StreamCore;
use crate::sync::{Arc, Ordering, pause_thread};

/// How many streams one call retires at most, and how many old timelines it asks.
const RETIRE_AT_ONCE: usize = 64;
const ASK_AT_ONCE: usize = 4;

/// What has become of a stream that was to leave because nothing uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retired {
    /// It has left; or something uses it.
    Done,
    /// Another thread lets it leave just now.
    ByAnother,
}

/// The driver call of a leave is under way. Should the backend panic in it, another call may let the stream
/// leave: who ends the pool, or waits for the stream, waits for that.
struct PutOffByPanic<'a, B: Backend> {
    pool: &'a PoolCore<B>,
    core: &'a StreamCore<B>,
    leave: Option<InLeave>,
}

impl<B: Backend> PutOffByPanic<'_, B> {
    fn did_not(mut self) -> InLeave {
        self.leave.take().expect("it is taken once")
    }
}

impl<B: Backend> Drop for PutOffByPanic<'_, B> {
    fn drop(&mut self) {
        if let Some(leave) = self.leave.take() {
            self.pool.central.lock().end_leaving(self.core, leave, LeaveEnd::PutOff);
            self.pool.note_unused(self.core.id, &mut self.core.state.lock());
        }
    }
}

impl<B: Backend> PoolCore<B> {
    /// Takes a stream out of the pool through its only handle, or gives the handle back.
    pub(crate) fn retire_by_hand(
        &self,
        stream: PoolStream<B>,
    ) -> Result<(), (PoolStream<B>, Error)> {
        let core = Arc::clone(&stream.core);
        let leave = {
            let mut registry = self.registry.lock();
            // Under the registry's lock nobody makes another clone from the registered handle.
            let handles = Arc::strong_count(stream.handle()) as u64 - 1;
            let mut central = self.central.lock();
            let mut state = core.state.lock();
            let (buffers, others) =
                (state.live() + state.named + state.pins, handles + state.handles - 1);
            let in_use = (buffers > 0 && !seeded!(RetiredUnderBuffers)) || others > 0;
            let leave = if in_use { None } else { central.begin_leaving(&mut state) };
            let Some(leave) = leave else {
                drop(state);
                drop(central);
                drop(registry);
                let handles = others;
                return Err((stream, Error::new(Reason::StreamInUse { buffers, handles })));
            };
            registry.unname(&core);
            leave
        };
        match self.leave(&core, Moment::Early, leave) {
            Ok(()) => Ok(()),
            Err((leave, error)) => {
                let mut registry = self.registry.lock();
                let mut central = self.central.lock();
                central.end_leaving(&core, leave, LeaveEnd::Stays);
                drop(central);
                registry.rename(&core);
                drop(registry);
                Err((stream, error))
            }
        }
    }

    /// Retires the streams that drops have left a note of: a bounded number, and each at most once.
    pub(super) fn retire_unused(&self) {
        let noted = self.unused.lock().len().min(RETIRE_AT_ONCE);
        for _ in 0..noted {
            match self.retire_next_unused() {
                Ok(true) => {}
                Ok(false) => return,
                // It captures; the next one may be able to leave.
                Err(error) if error.is_capture() => {}
                Err(error) => return self.driver.keep_error(error),
            }
        }
    }

    /// Retires all of them, and waits for those that other pools let leave: a stream that is marked and has
    /// not left could be neither waited for nor drained by whoever ends the pool.
    pub(super) fn retire_all_unused(&self) -> Result<(), Error> {
        loop {
            let noted = self.unused.lock().len();
            (0..noted).try_for_each(|_| self.retire_next_unused().map(drop))?;
            if self.unused.lock().is_empty() && self.central.lock().leaving == 0 {
                return Ok(());
            }
            pause_thread(LEAVE_PAUSE_MICROS);
        }
    }

    /// Retires the one that was noted first, and says whether there was one.
    fn retire_next_unused(&self) -> Result<bool, Error> {
        let noted = self.unused.lock().pop_front();
        let Some(id) = noted else { return Ok(false) };
        self.unused_count.fetch_sub(1, Ordering::Relaxed);
        let core = self.registry.lock().get(id).cloned();
        let Some(core) = core else { return Ok(true) };
        // Before it is looked at: a count that goes from here on leaves a note of its own.
        core.state.lock().is_noted = false;
        let retired = self.retire_if_unused(&core);
        if !matches!(retired, Ok(Retired::Done)) {
            // Another call may succeed: the note goes back, for which the stream is still marked, and
            // behind the others, which may be able to leave.
            self.note_unused(id, &mut core.state.lock());
        }
        retired.map(|_| true)
    }

    /// Lets a registered stream leave that nothing uses.
    pub(super) fn retire_if_unused(&self, core: &Arc<StreamCore<B>>) -> Result<Retired, Error> {
        let leave = {
            let mut registry = self.registry.lock();
            let mut central = self.central.lock();
            let mut state = core.state.lock();
            // One that is retired by hand has a handle until it has left.
            if !state.is_unused() && !state.is_in_leave {
                // It is in use again, and its last count will leave another note.
                return Ok(Retired::Done);
            }
            let Some(leave) = central.begin_leaving(&mut state) else {
                return Ok(Retired::ByAnother);
            };
            registry.unname(core);
            leave
        };
        // The moment is somebody's miss, not one that the program chose.
        self.leave(core, Moment::Probe, leave).map(|()| Retired::Done).map_err(|(leave, error)| {
            self.central.lock().end_leaving(core, leave, LeaveEnd::PutOff);
            error
        })
    }

    /// A marked stream, which is counted as leaving, leaves: its last epoch is closed, its blocks move to
    /// the heap, and the backend's stream goes with the core.
    fn leave(
        &self,
        core: &Arc<StreamCore<B>>,
        moment: Moment,
        leave: InLeave,
    ) -> Result<(), (InLeave, Error)> {
        let panics = PutOffByPanic { pool: self, core, leave: Some(leave) };
        let closed = self.close_epoch(core, moment);
        let leave = panics.did_not();
        let closed = match closed {
            Ok(closed) => closed,
            Err(error) => return Err((leave, error)),
        };
        if seeded!(RetiredUnderBuffers) {
            // Its buffers still point to it: the fault is to be seen, not to be undefined.
            std::mem::forget(Arc::clone(core));
        }
        {
            let mut central = self.central.lock();
            central.drain(core, 0);
            core.timeline.retire(closed);
            central.end_leaving(core, leave, LeaveEnd::Left);
            central.retired.push(Arc::clone(&core.timeline));
            central.keep_counts(core);
            drop(central);
            self.keep_events(core);
            let mut registry = self.registry.lock();
            let gone = registry.remove(core.id);
            drop(registry);
            drop(gone);
        }
        Ok(())
    }

    /// Waits until a stream of this pool has left that was leaving, or stays, and then until all of it has
    /// finished. One that has to stay because it captures is left out.
    pub(super) fn synchronize_leaving(&self, core: &Arc<StreamCore<B>>) -> Result<(), Error> {
        match self.synchronize_left(core) {
            Err(error) if error.is_capture() => Ok(()),
            synchronized => synchronized,
        }
    }

    fn synchronize_left(&self, core: &Arc<StreamCore<B>>) -> Result<(), Error> {
        while core.timeline.last().is_none() {
            if core.pin() {
                let pin = Pin { core: Arc::clone(core) };
                return self.synchronize_stream(&pin.core);
            }
            if self.retire_if_unused(core)? == Retired::ByAnother {
                pause_thread(LEAVE_PAUSE_MICROS);
            }
        }
        match core.timeline.latest() {
            Some(closed) => self.synchronize(&core.timeline, &closed),
            None => Ok(()),
        }
    }

    /// Asks a few timelines whose streams have left, and forgets those that are over.
    pub(super) fn poll_retired(&self) {
        let asked: Vec<Arc<Timeline<PooledEvent<B>>>> = {
            let central = self.central.lock();
            if central.retired.is_empty() {
                return;
            }
            central.retired.iter().take(ASK_AT_ONCE).cloned().collect()
        };
        for timeline in &asked {
            if let Some(closed) = timeline.latest()
                && let Err(error) = self.ask(timeline, &closed)
            {
                self.driver.keep_error(error);
            }
        }
        let mut central = self.central.lock();
        if asked.iter().any(|timeline| timeline.is_over()) {
            central.settle();
            central.retired.retain(|timeline| !timeline.is_over());
            let over = central.forget_finished();
            drop(central);
            drop(over);
        } else {
            // The next call asks others first.
            let count = asked.len().min(central.retired.len());
            central.retired.rotate_left(count);
        }
    }

    /// Pins every stream that can be: for walks that make driver calls on each.
    pub(super) fn pin_all(&self) -> Vec<Pin<B>> {
        let streams = self.streams();
        let pins = streams.iter().filter(|core| core.pin());
        pins.map(|core| Pin { core: Arc::clone(core) }).collect()
    }
}

#[cfg(all(test, loom))]
mod models;

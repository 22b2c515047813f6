//! Streams of other pools that this pool's buffers were used on.

use std::collections::{BTreeMap, BTreeSet};

use super::central::Central;
use super::ordering::Pin;
use super::{PoolCore, PooledEvent};
use crate::backend::Backend;
use crate::error::Error;
use crate::fault::seeded;
use crate::order::{Closed, Epoch, Moment, Timeline, TimelineId};
use crate::pool_stream::core::{Detours, StreamCore, StreamState};
use crate::sync::{Arc, Ordering, Weak, pause_thread, process_counter};

/// How long a thread sleeps that waits for another one's leave, between two looks.
pub(super) const LEAVE_PAUSE_MICROS: u64 = 50;

/// What there is to ask, or to wait for, about an epoch.
pub(super) enum Cover<B: Backend> {
    /// An event, and the call on its stream, where it has just been recorded.
    Event(Closed<PooledEvent<B>>, Option<Pin<B>>),
    /// Another thread lets the stream leave, and records its last event; or has just let it stay.
    Leaving,
    /// Nothing is left of the stream.
    Over,
}

process_counter! {
    /// How many streams that other pools know have begun to leave theirs; less by those that had to stay and
    /// are as they were.
    static LEAVES_BEGUN;
}

process_counter! {
    /// How many of them have left, or can be recorded on again.
    static LEAVES_ENDED;
}

/// What has become of the leaves of the process, as a search for memory sees it that other pools' streams
/// have used: while one of them is leaving, nobody can wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leaves {
    ended: u64,
}

impl Leaves {
    /// Those that are over when a search begins.
    pub(super) fn by_now() -> Leaves {
        // Acquire: a leave that counts as ended has published its event.
        Leaves { ended: LEAVES_ENDED.load(Ordering::Acquire) }
    }

    /// Whether one has ended since.
    pub(super) fn have_ended(self) -> bool {
        self != Leaves::by_now()
    }

    /// Whether one was under way at some moment since, and may be still.
    pub(super) fn were_under_way(self) -> bool {
        // Relaxed: who has found a stream's mark under its lock finds it counted.
        LEAVES_BEGUN.load(Ordering::Relaxed) != self.ended
    }
}

/// That this thread, and no other, lets a stream leave. It ends with
/// [`end_leaving`](Central::end_leaving).
#[must_use = "a stream that is leaving is waited for"]
#[derive(Debug)]
pub(super) struct InLeave(());

/// How a leave ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaveEnd {
    /// The stream has left.
    Left,
    /// It stays, and can be recorded on again.
    Stays,
    /// It is to leave and could not: nobody can do more with it than before.
    PutOff,
}

impl<B: Backend> Central<B> {
    /// Marks a stream, which leaves now: unless another thread lets it leave, or has.
    pub(super) fn begin_leaving(&mut self, state: &mut StreamState<B>) -> Option<InLeave> {
        if state.is_in_leave {
            return None;
        }
        state.is_in_leave = true;
        if state.is_known_elsewhere {
            LEAVES_BEGUN.fetch_add(1, Ordering::Relaxed);
        }
        state.detours.set(Detours::RETIRED, true);
        self.leaving += 1;
        Some(InLeave(()))
    }

    /// A stream that was leaving has left, or stays.
    pub(super) fn end_leaving(&mut self, core: &StreamCore<B>, leave: InLeave, end: LeaveEnd) {
        let InLeave(()) = leave;
        self.leaving -= 1;
        self.returns += 1;
        let mut state = core.state.lock();
        state.is_in_leave = end == LeaveEnd::Left;
        if end == LeaveEnd::Stays {
            state.detours.set(Detours::RETIRED, false);
        }
        if state.is_known_elsewhere {
            match end {
                LeaveEnd::Left | LeaveEnd::Stays => LEAVES_ENDED.fetch_add(1, Ordering::Release),
                LeaveEnd::PutOff => LEAVES_BEGUN.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }
}

impl<B: Backend> PoolCore<B> {
    /// Stamps of this pool's blocks may name a stream of another pool from now on. The caller keeps that
    /// registered.
    pub(super) fn know_foreign(&self, other: &StreamCore<B>) {
        other.state.lock().is_known_elsewhere = !seeded!(ForeignLeavesUnseen);
        let core = other.pool.registry.lock().get(other.id).map(Arc::downgrade);
        let over = self.central.lock().know_foreign(Arc::clone(&other.timeline), core);
        // Outside the lock: the last event of a pool that is gone takes its driver along.
        drop(over);
    }

    /// The streams of other pools that blocks of this one can wait for; none for one that has left.
    pub(super) fn foreign_streams(&self) -> Vec<(TimelineId, Option<Arc<StreamCore<B>>>)> {
        let central = self.central.lock();
        central.foreign.iter().map(|(id, core)| (*id, core.upgrade())).collect()
    }

    /// Those of them whose device is lost: what waits for one of these waits for ever.
    pub(super) fn lost_elsewhere(&self) -> BTreeSet<TimelineId> {
        // Of a stream that has left, its last event tells.
        let last = |id| self.central.lock().timelines.get(id)?.latest();
        let is_lost = |id, core: Option<Arc<StreamCore<B>>>| match core {
            Some(core) => core.pool.driver.lost().is_some(),
            None => last(id).is_some_and(|closed| closed.event.driver().lost().is_some()),
        };
        let foreign = self.foreign_streams().into_iter();
        foreign.filter_map(|(id, core)| is_lost(id, core).then_some(id)).collect()
    }

    /// As [`quiesce_streams`](Self::quiesce_streams), and waits for the streams of other pools that free
    /// blocks of this one wait for: a synchronize of this pool's own context says nothing of them.
    /// What fails on one device says nothing of the others, which are waited for all the same.
    pub(crate) fn quiesce_all(&self) -> Result<(), Error> {
        let own = self.quiesce_streams(None);
        own.and(self.synchronize_foreign().map(drop))
    }

    /// Waits for the streams of other pools that free blocks wait for by now, all of them, and gives the first
    /// error. Those that capture are passed over: gives the error of one.
    pub(super) fn synchronize_foreign(&self) -> Result<Option<Error>, Error> {
        let (mut passed_over, mut failed) = (None, None);
        let mut open = self.foreign_by_now();
        // A block with several such free points waits for the first of them first.
        while let Some((timeline, epoch)) = self.pending_foreign(&open) {
            match self.synchronize_epoch(&timeline, epoch) {
                Ok(()) => {}
                Err(error) if error.is_capture() => passed_over = Some(error),
                Err(error) => failed = failed.or(Some(error)),
            }
            if timeline.completed() < epoch {
                open.remove(&timeline.id());
            }
        }
        failed.map_or(Ok(passed_over), Err)
    }

    /// The open epochs of the streams of other pools: what is freed from now on may be stamped with later ones,
    /// and is nobody's to wait for who has called before.
    fn foreign_by_now(&self) -> BTreeMap<TimelineId, Epoch> {
        // One that has left has no later ones.
        let open = |core: Option<Arc<StreamCore<B>>>| match core {
            Some(core) => core.state.lock().open,
            None => Epoch::MAX,
        };
        self.foreign_streams().into_iter().map(|(id, core)| (id, open(core))).collect()
    }

    /// A stream of another pool that a free block waits for, or one that is out of reach, and the last epoch
    /// that one waits for: of these streams, and up to these epochs.
    fn pending_foreign(
        &self,
        open: &BTreeMap<TimelineId, Epoch>,
    ) -> Option<(Arc<Timeline<PooledEvent<B>>>, Epoch)> {
        if open.is_empty() {
            return None;
        }
        let mut central = self.central.lock();
        central.settle();
        let pending = central.heap.pending(None).into_iter();
        let pending = pending.map(|(first, last)| (first.timeline, first.epoch, last));
        let quarantined = central.heap.quarantined().into_iter();
        let quarantined = quarantined.map(|last| (last.timeline, Epoch::FIRST, last.epoch));
        let mut foreign = pending.chain(quarantined).filter_map(|(timeline, first, last)| {
            let open = *open.get(&timeline)?;
            let (timeline, epoch) = (central.timelines.get(timeline)?, last.min(open));
            let waits = first <= open && timeline.completed() < epoch;
            waits.then(|| (Arc::clone(timeline), epoch))
        });
        foreign.next()
    }

    /// Blocks until an epoch has completed, closing it if no event covers it. A stream that is leaving on another
    /// thread is waited for first: that takes a few driver calls, none of which blocks.
    fn synchronize_epoch(
        &self,
        timeline: &Timeline<PooledEvent<B>>,
        epoch: Epoch,
    ) -> Result<(), Error> {
        loop {
            match self.cover_or_close(timeline, epoch)? {
                Cover::Event(closed, _pin) => return self.synchronize(timeline, &closed),
                Cover::Leaving => pause_thread(LEAVE_PAUSE_MICROS),
                Cover::Over => return Ok(()),
            }
        }
    }

    /// An event that covers an epoch, to ask it or to wait for it, if there can be one: one that is published,
    /// or one that is recorded now. An error: the stream captures, or a driver call failed.
    pub(super) fn cover_or_close(
        &self,
        timeline: &Timeline<PooledEvent<B>>,
        epoch: Epoch,
    ) -> Result<Cover<B>, Error> {
        if let Some(closed) = timeline.cover(epoch) {
            return Ok(Cover::Event(closed, None));
        }
        if let Some(pin) = self.pin(timeline.id()) {
            let closed = self.close_epoch(&pin.core, Moment::Probe)?;
            return Ok(Cover::Event(closed, Some(pin)));
        }
        // Looked at before its events, the last of which is published before it is known to have left.
        let is_there = self.help_leave(timeline.id())? && timeline.last().is_none();
        Ok(match timeline.cover(epoch) {
            Some(closed) => Cover::Event(closed, None),
            None if is_there => Cover::Leaving,
            None => Cover::Over,
        })
    }

    /// Lets a stream of another pool leave that is to: one that captured when it was its turn is tried
    /// again by the next call of its own pool, which may never come. This is no call on that pool: it may be
    /// closed meanwhile, and waits for those that are leaving. Says whether there is such a stream.
    fn help_leave(&self, id: TimelineId) -> Result<bool, Error> {
        let foreign = self.central.lock().foreign.get(&id).and_then(Weak::upgrade);
        let Some(core) = foreign else { return Ok(false) };
        let retired = core.pool.retire_if_unused(&core);
        if core.pool.driver.lost().is_some() {
            core.pool.shut_hits();
        }
        retired.map(|_| true)
    }
}

//! Streams of other pools that this pool's buffers were used on.

use super::central::Central;
use super::ordering::Pin;
use super::{PoolCore, PooledEvent};
use crate::backend::Backend;
use crate::error::Error;
use crate::fault::seeded;
use crate::order::{Closed, Epoch, FreePoint, Moment, Timeline, TimelineId};
use crate::pool_stream::core::{Detours, StreamCore, StreamState};
use crate::sync::{Arc, Ordering, Weak, process_counter};

/// A closed epoch, and the call on its stream that has closed it.
type Covered<B> = (Closed<PooledEvent<B>>, Option<Pin<B>>);

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

    /// The streams of other pools that blocks of this one can wait for.
    pub(super) fn foreign_streams(&self) -> Vec<Arc<StreamCore<B>>> {
        self.central.lock().foreign.values().filter_map(Weak::upgrade).collect()
    }

    /// As [`quiesce_streams`](Self::quiesce_streams), and waits for the streams of other pools that free
    /// blocks of this one wait for: a synchronize of this pool's own context says nothing of them.
    /// What fails on one device says nothing of the others, which are waited for all the same.
    pub(crate) fn quiesce_all(&self) -> Result<(), Error> {
        let own = self.quiesce_streams(None);
        own.and(self.synchronize_foreign().map(drop))
    }

    /// Waits for the streams of other pools that free blocks wait for, all of them, and gives the first error.
    /// Those that capture are passed over: gives the error of one.
    pub(super) fn synchronize_foreign(&self) -> Result<Option<Error>, Error> {
        let (mut passed_over, mut failed) = (None, None);
        let mut skip: Vec<TimelineId> = Vec::new();
        // A block with several such free points waits for the first of them first.
        while let Some((timeline, epoch)) = self.pending_foreign(&skip) {
            match self.synchronize_epoch(&timeline, epoch) {
                Ok(()) => {}
                Err(error) if error.is_capture() => passed_over = Some(error),
                Err(error) => failed = failed.or(Some(error)),
            }
            if timeline.completed() < epoch {
                skip.push(timeline.id());
            }
        }
        failed.map_or(Ok(passed_over), Err)
    }

    /// A stream of another pool that a free block waits for, or one that is out of reach, and the last epoch
    /// that one waits for.
    fn pending_foreign(
        &self,
        skip: &[TimelineId],
    ) -> Option<(Arc<Timeline<PooledEvent<B>>>, Epoch)> {
        let mut central = self.central.lock();
        if central.foreign.is_empty() {
            return None;
        }
        central.settle();
        let pending = central.heap.pending(None).into_iter();
        let last = pending.map(|(first, last)| FreePoint { epoch: last, ..first });
        let mut foreign = last.chain(central.heap.quarantined()).filter_map(|point| {
            let is_asked =
                !skip.contains(&point.timeline) && central.foreign.contains_key(&point.timeline);
            let timeline = is_asked.then(|| central.timelines.get(point.timeline)).flatten()?;
            (timeline.completed() < point.epoch).then(|| (Arc::clone(timeline), point.epoch))
        });
        foreign.next()
    }

    /// Blocks until an epoch has completed, closing it if no event covers it. A stream that has left
    /// and has no event is passed over.
    fn synchronize_epoch(
        &self,
        timeline: &Timeline<PooledEvent<B>>,
        epoch: Epoch,
    ) -> Result<(), Error> {
        match self.cover_or_close(timeline, epoch)? {
            Some((closed, _pin)) => self.synchronize(timeline, &closed),
            None => Ok(()),
        }
    }

    /// An event that covers an epoch, to ask it or to wait for it: one that is published, or one that is
    /// recorded now, and then the call on the stream counts on. None where the stream is leaving, or has
    /// left and no event is left of it.
    pub(super) fn cover_or_close(
        &self,
        timeline: &Timeline<PooledEvent<B>>,
        epoch: Epoch,
    ) -> Result<Option<Covered<B>>, Error> {
        if let Some(closed) = timeline.cover(epoch) {
            return Ok(Some((closed, None)));
        }
        if let Some(pin) = self.pin(timeline.id()) {
            let closed = self.close_epoch(&pin.core, Moment::Probe)?;
            return Ok(Some((closed, Some(pin))));
        }
        self.help_leave(timeline.id());
        Ok(timeline.cover(epoch).map(|closed| (closed, None)))
    }

    /// Lets the streams of another pool leave that are to: one that captured when it was its turn is tried
    /// again by the next call of its own pool, which may never come.
    fn help_leave(&self, id: TimelineId) {
        let foreign = self.central.lock().foreign.get(&id).and_then(Weak::upgrade);
        if let Some(core) = foreign {
            let _call = core.pool.begin_end();
            core.pool.retire_unused();
        }
    }
}

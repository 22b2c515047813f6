//! Streams of other pools that this pool's buffers were used on.

use super::ordering::Pin;
use super::{PoolCore, PooledEvent};
use crate::backend::Backend;
use crate::error::Error;
use crate::order::{Closed, Epoch, FreePoint, Moment, Timeline, TimelineId};
use crate::pool_stream::core::StreamCore;
use crate::sync::{Arc, Weak};

/// A closed epoch, and the call on its stream that has closed it.
type Covered<B> = (Closed<PooledEvent<B>>, Option<Pin<B>>);

impl<B: Backend> PoolCore<B> {
    /// Stamps of this pool's blocks may name a stream of another pool from now on.
    pub(super) fn know_foreign(&self, other: &StreamCore<B>) {
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
    pub(crate) fn quiesce_all(&self) -> Result<(), Error> {
        self.quiesce_streams(None)?;
        self.synchronize_foreign().map(drop)
    }

    /// Waits for the streams of other pools that free blocks wait for. Those that capture are passed over:
    /// gives the error of one.
    pub(super) fn synchronize_foreign(&self) -> Result<Option<Error>, Error> {
        let mut passed_over = None;
        let mut skip: Vec<TimelineId> = Vec::new();
        // A block with several such free points waits for the first of them first.
        while let Some((timeline, epoch)) = self.pending_foreign(&skip) {
            match self.synchronize_epoch(&timeline, epoch) {
                Ok(()) => {}
                Err(error) if error.is_capture() => passed_over = Some(error),
                Err(error) => return Err(error),
            }
            if timeline.completed() < epoch {
                skip.push(timeline.id());
            }
        }
        Ok(passed_over)
    }

    /// A stream of another pool that a free block waits for, and the last epoch that one waits for.
    fn pending_foreign(
        &self,
        skip: &[TimelineId],
    ) -> Option<(Arc<Timeline<PooledEvent<B>>>, Epoch)> {
        let mut central = self.central.lock();
        if central.foreign.is_empty() {
            return None;
        }
        central.settle();
        let pending = central.heap.pending(None);
        let mut foreign = pending.iter().filter(|(first, _)| {
            central.foreign.contains_key(&first.timeline) && !skip.contains(&first.timeline)
        });
        let &(FreePoint { timeline, .. }, last) = foreign.next()?;
        Some((central.timelines.get(timeline).cloned()?, last))
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

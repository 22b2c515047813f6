//! Streams of other pools that this pool's buffers were used on.

use super::{PoolCore, PooledEvent};
use crate::backend::Backend;
use crate::error::Error;
use crate::order::{Closed, Epoch, FreePoint, Moment, Timeline, TimelineId};
use crate::sync::Arc;

impl<B: Backend> PoolCore<B> {
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
        let closed: Closed<PooledEvent<B>> = match timeline.cover(epoch) {
            Some(closed) => closed,
            None => match self.pin(timeline.id()) {
                Some(pin) => self.close_epoch(&pin.core, Moment::Probe)?,
                None => return Ok(()),
            },
        };
        self.synchronize(timeline, &closed)
    }
}

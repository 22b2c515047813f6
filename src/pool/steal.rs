//! Taking a free block that another stream freed, with a wait.

use super::PoolCore;
use super::miss::Miss;
use crate::backend::Backend;
use crate::error::Error;
use crate::fault::seeded;
use crate::heap::BlockId;
use crate::order::{
    Closed, Epoch, Evidence, FreePoint, Moment, Stamps, Taker, Timeline, TimelineId, Timelines,
};

/// Whether a stream that is ordered as `taker` must wait for a free point.
fn needs_wait<E>(point: FreePoint, taker: &Taker, timelines: &Timelines<E>) -> bool {
    taker.ordered_after(point.timeline) < point.epoch
        && timelines.completed(point.timeline) < point.epoch
}

/// The closed epoch that a steal waits for, by the moment that is allowed.
fn cover<E>(timeline: &Timeline<E>, epoch: Epoch, moment: Moment) -> Option<Closed<E>> {
    match moment {
        Moment::Early if !seeded!(LateWaitForProbe) => timeline.cover_early(epoch),
        _ => timeline.cover(epoch),
    }
}

impl<B: Backend> PoolCore<B> {
    /// Steals one block: takes it into transit, makes the stream wait for each free point that is not
    /// covered, and gives the block back if a wait fails. With [`Moment::Early`] only events of moments
    /// that the program chose are waited for; with [`Moment::Probe`] any, and an epoch is closed where
    /// none is.
    pub(super) fn steal(&self, miss: &mut Miss<'_, B>, moment: Moment) -> Option<BlockId> {
        self.steal_by(miss, moment, false)
    }

    fn steal_by(&self, miss: &mut Miss<'_, B>, moment: Moment, union: bool) -> Option<BlockId> {
        let mut avoid: Vec<TimelineId> = Vec::new();
        loop {
            let (block, stamps) = self.take_victim(miss, moment, &avoid, union)?;
            match self.wait_for_stamps(miss, &stamps, moment) {
                Ok(()) => return Some(block),
                Err((timeline, error)) => {
                    if !seeded!(BlockLostOnError) {
                        self.free_to_heap(block, stamps);
                        miss.returned += 1;
                    }
                    error.into_iter().for_each(|error| miss.asked.meet(error));
                    if self.driver.lost().is_some() {
                        return None;
                    }
                    avoid.push(timeline);
                }
            }
        }
    }

    /// As [`steal`](Self::steal), for a union of neighbours.
    pub(super) fn steal_union(&self, miss: &mut Miss<'_, B>, moment: Moment) -> Option<BlockId> {
        self.steal_by(miss, moment, true)
    }

    pub(super) fn take_victim(
        &self,
        miss: &Miss<'_, B>,
        moment: Moment,
        avoid: &[TimelineId],
        union: bool,
    ) -> Option<(BlockId, Stamps)> {
        let mut central = self.central.lock();
        let central = &mut *central;
        central.settle();
        let taker = miss.core.taker();
        let (heap, timelines) = (&mut central.heap, &central.timelines);
        let can_wait = |point: &FreePoint| {
            !needs_wait(*point, &taker, timelines)
                || !avoid.contains(&point.timeline)
                    && timelines.get(point.timeline).is_some_and(|timeline| {
                        cover(timeline, point.epoch, moment).is_some()
                            || moment == Moment::Probe && timeline.last().is_none()
                    })
        };
        let can_have = |stamps: &Stamps| stamps.points().iter().all(can_wait);
        let block = miss.requests().find_map(|request| match union {
            true => heap.take_run(&request, &can_have, timelines),
            false => {
                let victim = heap.find_steal(&request, can_have)?;
                Some(heap.carve(victim, request.bytes, request.align))
            }
        })?;
        Some((block, heap.stamps(block).clone()))
    }

    /// Makes the stream wait for every free point that it must. Otherwise says for whose it could not,
    /// with the driver's error if there was one.
    pub(super) fn wait_for_stamps(
        &self,
        miss: &Miss<'_, B>,
        stamps: &Stamps,
        moment: Moment,
    ) -> Result<(), (TimelineId, Option<Error>)> {
        miss.waited.set(None);
        for point in stamps.points() {
            // Asked anew for each: a wait covers by transitivity what the other stream had waited for.
            let timeline = {
                let central = self.central.lock();
                if !needs_wait(*point, &miss.core.taker(), &central.timelines) {
                    continue;
                }
                central.timelines.get(point.timeline).cloned()
            };
            let Some(timeline) = timeline else { continue };
            let failed = |error| (point.timeline, Some(error));
            let closed = match cover(&timeline, point.epoch, moment) {
                Some(closed) => closed,
                // Completed between the two looks.
                None if timeline.completed() >= point.epoch => continue,
                // The event that was there has been refused by the driver since.
                None if moment == Moment::Early => return Err((point.timeline, None)),
                None => match self.pin(point.timeline) {
                    Some(pin) => self.close_epoch(&pin.core, moment).map_err(failed)?,
                    None => return Err((point.timeline, None)),
                },
            };
            self.wait(miss.core, &timeline, &closed).map_err(failed)?;
            miss.waited.set(Some(moment));
        }
        Ok(())
    }
}

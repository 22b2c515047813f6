//! Blocks that are out of reach: the driver has refused the only event that can say when their last use has
//! finished.

use std::collections::BTreeMap;

use super::free_list::Entry;
use super::shelves::Shelf;
use super::{BlockId, Heap, State};
use crate::fault::seeded;
use crate::order::{Epoch, Evidence, FreePoint, Stamps, TimelineId};

impl Heap {
    /// Sets the free blocks aside that wait for this timeline first: nothing can close its epochs any
    /// more, so that only a synchronize can say that they have completed.
    pub(crate) fn quarantine_timeline(&mut self, timeline: TimelineId) {
        let shelves = self.pending.up_to(timeline, Epoch::MAX);
        let ids: Vec<BlockId> = shelves.flat_map(Shelf::iter).map(Entry::id).collect();
        for id in ids {
            self.set_state(id, State::Quarantined);
        }
    }

    /// Whether a free block waits for something, and for none of what will never finish. Its free points may
    /// name what has completed since it was put where it is: those say nothing.
    pub(crate) fn waits_without(&self, never: impl Fn(&FreePoint) -> bool) -> bool {
        let pending = self.pending.iter().flat_map(|(_, shelf)| shelf.iter()).map(Entry::id);
        let mut waiting = pending.chain(self.quarantined.iter().copied());
        waiting.any(|id| !self.stamps(id).points().iter().any(&never))
    }

    /// Frees the quarantined blocks whose free points have all completed.
    pub(crate) fn release_quarantine(&mut self, evidence: &dyn Evidence) {
        let completed = |point: &FreePoint| point.epoch <= evidence.completed(point.timeline);
        let settled = |id: &BlockId| self.stamps(*id).points().iter().all(completed);
        let released: Vec<BlockId> = self.quarantined.iter().copied().filter(settled).collect();
        for id in released {
            self.free(id, Stamps::Clean, evidence);
        }
    }

    /// What the quarantined blocks wait for: of each timeline the last epoch that one waits for, whatever of
    /// it has completed.
    pub(crate) fn quarantined(&self) -> Vec<FreePoint> {
        let mut last: BTreeMap<TimelineId, Epoch> = BTreeMap::new();
        let waiting = self.quarantined.iter().filter(|_| !seeded!(QuarantinedForGood));
        for point in waiting.flat_map(|id| self.stamps(*id).points()) {
            let epoch = last.entry(point.timeline).or_insert(point.epoch);
            *epoch = point.epoch.max(*epoch);
        }
        last.into_iter().map(|(timeline, epoch)| FreePoint { timeline, epoch }).collect()
    }
}

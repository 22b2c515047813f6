//! Finding a free block that a stream may have.

use super::free_list::Entry;
use super::request::{Part, Request};
use super::shelves::Shelf;
use super::size_class::{GRAIN, bin_of};
use super::{BlockId, Heap, State};
use crate::order::{Epoch, Evidence, Stamps, Taker};

impl Heap {
    /// The best free block for a request that `taker` needs no wait for: clean, freed on its own
    /// timeline, or covered by its frontier.
    pub(crate) fn find_covered(
        &self,
        request: &Request,
        taker: &Taker,
        evidence: &dyn Evidence,
    ) -> Option<BlockId> {
        let mut best = self.clean.best(request);
        let mut consider = |shelf: &Shelf| {
            let single = shelf.single.best(request);
            best = best.into_iter().chain(single).min();
            if !shelf.mixed.is_empty() {
                let is_covered = |own: &Entry| is_covered(self.stamps(own.id()), taker, evidence);
                best = best.into_iter().chain(shelf.mixed.fitting(request).find(is_covered)).min();
            }
        };
        self.pending.up_to(taker.home, Epoch::MAX).for_each(&mut consider);
        for (timeline, epoch) in taker.frontier.iter() {
            self.pending.up_to(timeline, epoch).for_each(&mut consider);
        }
        best.map(Entry::id)
    }

    /// Makes a free block that fits out of neighbours that `taker` needs no wait for, and takes it into
    /// transit. Of all runs of neighbours the smallest is used, and no more of it than is needed.
    pub(crate) fn take_union(
        &mut self,
        request: &Request,
        taker: &Taker,
        evidence: &dyn Evidence,
    ) -> Option<BlockId> {
        let mut reachable = self.bytes.clean;
        reachable += self.pending.up_to(taker.home, Epoch::MAX).map(|own| own.bytes).sum::<u64>();
        for (timeline, epoch) in taker.frontier.iter() {
            reachable += self.pending.up_to(timeline, epoch).map(|own| own.bytes).sum::<u64>();
        }
        if reachable < request.bytes {
            return None;
        }
        self.take_run(request, &|stamps| is_covered(stamps, taker, evidence), evidence)
    }

    /// As [`take_union`](Self::take_union), over every free block that `usable` accepts.
    pub(crate) fn take_run(
        &mut self,
        request: &Request,
        usable: &dyn Fn(&Stamps) -> bool,
        evidence: &dyn Evidence,
    ) -> Option<BlockId> {
        let Request { bytes, align, part } = *request;
        // Alignment can cost this much at the front.
        let needed = bytes + align.saturating_sub(GRAIN);
        if self.bytes.free() < needed {
            return None;
        }
        let mut best: Option<(u64, BlockId, BlockId)> = None;
        for first in self.segments.first_blocks() {
            self.smallest_run(first, part, needed, usable, &mut best);
        }
        let (total, first, last) = best?;
        // Cut what is not needed off the end, so that it keeps its own free points.
        let excess = total - needed;
        let last_bytes = self.blocks.get(last).bytes;
        if excess > 0 && first != last {
            self.unshelve(last);
            let rest = self.blocks.split(last, last_bytes - excess);
            self.shelve(last);
            self.shelve(rest);
        }
        while self.blocks.get(first).bytes < needed {
            self.join_free(first);
        }
        let taken = self.carve(first, bytes, align);
        // What alignment left over has the union's free points now, and perhaps its neighbour's.
        let (below, above) = (self.blocks.get(taken).below, self.blocks.get(taken).above);
        for rest in [below, above] {
            if !rest.is_none() && self.blocks.get(rest).state == State::Free {
                self.unshelve(rest);
                self.shelve_joined(rest, evidence);
            }
        }
        Some(taken)
    }

    /// The smallest run of usable free neighbours of at least `needed` bytes, by a window that slides
    /// over a segment: total, first and last block.
    fn smallest_run(
        &self,
        first: BlockId,
        part: Part,
        needed: u64,
        usable: &dyn Fn(&Stamps) -> bool,
        best: &mut Option<(u64, BlockId, BlockId)>,
    ) {
        let (mut start, mut total) = (first, 0);
        let mut at = first;
        while !at.is_none() {
            let block = self.blocks.get(at);
            let is_usable =
                block.state == State::Free && block.part == part && usable(&block.stamps);
            if !is_usable {
                (start, total) = (block.above, 0);
            } else {
                total += block.bytes;
                while total - self.blocks.get(start).bytes >= needed {
                    total -= self.blocks.get(start).bytes;
                    start = self.blocks.get(start).above;
                }
                if total >= needed && best.is_none_or(|(least, ..)| total < least) {
                    *best = Some((total, start, at));
                }
            }
            at = block.above;
        }
    }

    /// The free block to steal for a request, among those whose uncovered free points can all be
    /// waited for: of the smallest bin that has one, the least recently freed. Splitting a large block
    /// for a small request would cost more later than a wait on a younger block costs now.
    pub(crate) fn find_steal(
        &self,
        request: &Request,
        mut can_have: impl FnMut(&Stamps) -> bool,
    ) -> Option<BlockId> {
        let mut best: Option<(usize, u64, BlockId)> = None;
        for (_, shelf) in self.pending.iter() {
            let single = shelf.single.fitting(request).take(1);
            for entry in single.chain(shelf.mixed.fitting(request)) {
                let rank = (bin_of(entry.bytes()), shelf.since, entry.id());
                if best.is_none_or(|best| rank < best) && can_have(self.stamps(entry.id())) {
                    best = Some(rank);
                }
            }
        }
        best.map(|(_, _, id)| id)
    }
}

/// Whether `taker` needs no wait to use a block with these free points.
pub(crate) fn is_covered(stamps: &Stamps, taker: &Taker, evidence: &dyn Evidence) -> bool {
    stamps.points().iter().all(|point| {
        taker.ordered_after(point.timeline) >= point.epoch
            || evidence.completed(point.timeline) >= point.epoch
    })
}

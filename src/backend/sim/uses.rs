//! Who used which bytes last, and whether a new use is ordered after that.
//!
//! Per range of physical memory: the last write, and the reads since. A new use must be ordered
//! after those it conflicts with; it then stands for them, because whatever is ordered after it is
//! ordered after them too. Ranges are cut and joined as uses come, so what is known follows bytes,
//! not pointers.
#![forbid(unsafe_code)]

use std::ops::Range;

use super::clock::{Clock, Done, OpNumber, TimelineId};
use super::range_map::RangeMap;

/// One operation's use of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) op: OpNumber,
    pub(super) timeline: TimelineId,
    /// Who held the bytes: the number of a hand-out, 0 for nobody.
    pub(super) owner: u32,
    /// Through which mapping it reached them.
    pub(super) mapping: u32,
}

#[derive(Clone, Debug, Default)]
struct Cell {
    write: Option<Use>,
    reads: Vec<Use>,
    /// Uses that later ones stand for, but came through other mappings than those: an unmapping must
    /// wait for them all the same. Each with whether it wrote; without what the host had seen finish.
    replaced: Vec<(Use, bool)>,
}

/// What the next operation of a stream is ordered after.
#[derive(Clone, Copy)]
pub(super) struct Order<'a> {
    pub(super) timeline: TimelineId,
    pub(super) clock: &'a Clock,
    pub(super) done: &'a Done,
}

impl Order<'_> {
    #[inline]
    pub(super) fn covers(&self, timeline: TimelineId, op: OpNumber) -> bool {
        timeline == self.timeline
            || self.done.covers(timeline, op)
            || self.clock.get(timeline) >= op
    }
}

/// An earlier use that the new one is not ordered after.
#[derive(Clone, Debug)]
pub(super) struct Conflict {
    pub(super) range: Range<u64>,
    pub(super) earlier: Use,
    pub(super) wrote: bool,
}

/// All uses of all memory, by physical address.
#[derive(Debug, Default)]
pub(super) struct Uses {
    cells: RangeMap<Cell>,
}

impl Cell {
    /// Reports what a new use would not be ordered after. A new write conflicts with all uses, a new
    /// read with the write only.
    #[inline]
    fn check(&self, write: bool, order: &Order<'_>, mut report: impl FnMut(Use, bool)) {
        if let Some(earlier) = self.write
            && !order.covers(earlier.timeline, earlier.op)
        {
            report(earlier, true);
        }
        if write {
            for &read in &self.reads {
                if !order.covers(read.timeline, read.op) {
                    report(read, false);
                }
            }
        }
    }

    #[inline]
    fn apply(&mut self, new: Use, write: bool, order: &Order<'_>) {
        let Cell { write: written, reads, replaced } = self;
        replaced.retain(|(own, _)| !order.done.covers(own.timeline, own.op));
        let mut replace = |own: Use, wrote| {
            if own.mapping != new.mapping && !order.done.covers(own.timeline, own.op) {
                replaced.push((own, wrote));
            }
        };
        if write {
            written.replace(new).into_iter().for_each(|own| replace(own, true));
            reads.drain(..).for_each(|own| replace(own, false));
        } else {
            reads.retain(|&read| {
                let covered = order.covers(read.timeline, read.op);
                if covered {
                    replace(read, false);
                }
                !covered
            });
            reads.push(new);
        }
    }

    /// What came through a mapping, each with whether it wrote.
    fn through(&self, mapping: u32) -> impl Iterator<Item = (Use, bool)> + '_ {
        let reads = self.reads.iter().map(|&read| (read, false));
        let all = self.write.map(|write| (write, true)).into_iter().chain(reads);
        all.chain(self.replaced.iter().copied()).filter(move |(own, _)| own.mapping == mapping)
    }
}

impl Uses {
    /// Notes a use, and adds every conflict to `conflicts`.
    #[inline]
    pub(super) fn note(
        &mut self,
        range: Range<u64>,
        new: Use,
        write: bool,
        order: &Order<'_>,
        conflicts: &mut Vec<Conflict>,
    ) {
        if let Some(cell) = self.cells.exact_mut(&range) {
            cell.check(write, order, |earlier, wrote| {
                conflicts.push(Conflict { range: range.clone(), earlier, wrote });
            });
            cell.apply(new, write, order);
            return;
        }
        self.check(&range, write, order, conflicts);
        if write {
            // Who came through another mapping is known by whole mappings: the union says no less.
            let mut union = Cell::default();
            for (_, cell) in self.cells.overlapping(&range) {
                let mut cell = cell.clone();
                cell.apply(new, true, order);
                // Once each: parts of a range that was whole before have the same.
                cell.replaced.retain(|own| !union.replaced.contains(own));
                union.replaced.append(&mut cell.replaced);
            }
            union.write = Some(new);
            self.cells.set(range, union);
        } else {
            self.cells.update(&range, |cell| cell.apply(new, false, order));
        }
    }

    /// Adds to `conflicts` every use in the range that a new use would not be ordered after.
    pub(super) fn check(
        &self,
        range: &Range<u64>,
        write: bool,
        order: &Order<'_>,
        conflicts: &mut Vec<Conflict>,
    ) {
        if let Some(cell) = self.cells.exact(range) {
            cell.check(write, order, |earlier, wrote| {
                conflicts.push(Conflict { range: range.clone(), earlier, wrote });
            });
            return;
        }
        for (cell_range, cell) in self.cells.overlapping(range) {
            cell.check(write, order, |earlier, wrote| {
                let start = cell_range.start.max(range.start);
                let end = cell_range.end.min(range.end);
                conflicts.push(Conflict { range: start..end, earlier, wrote });
            });
        }
    }

    /// The uses in the range, through one mapping, that the host has not seen finish.
    pub(super) fn unfinished(
        &self,
        range: &Range<u64>,
        mapping: u32,
        done: &Done,
    ) -> Vec<Conflict> {
        let mut found = Vec::new();
        for (cell_range, cell) in self.cells.overlapping(range) {
            for (earlier, wrote) in cell.through(mapping) {
                if !done.covers(earlier.timeline, earlier.op) {
                    let start = cell_range.start.max(range.start);
                    let end = cell_range.end.min(range.end);
                    found.push(Conflict { range: start..end, earlier, wrote });
                }
            }
        }
        found
    }

    /// Forgets all uses of memory that no longer exists.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        self.cells.remove(range);
    }
}

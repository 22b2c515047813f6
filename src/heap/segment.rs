//! Segments: what was taken from the device, where a pool can grow, and what it can give back.
//!
//! A plain segment is one piece. A range is addresses only: its memory is mapped in granules, each
//! mapped and unmapped only whole; what is not mapped is a hole.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{BlockId, Heap, State};
use crate::fault::seeded;
use crate::order::{Evidence, Stamps, Taker};

/// The segments of a heap, by address.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    by_address: BTreeMap<u64, Segment>,
    /// The mapped granules: address to size in bytes.
    granules: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Segment {
    bytes: u64,
    /// The block at the segment's address. A split or a join keeps the lower block's name, so this
    /// stays true.
    first: BlockId,
    plain: bool,
}

impl Segments {
    pub(super) fn first_blocks(&self) -> Vec<BlockId> {
        self.by_address.values().map(|segment| segment.first).collect()
    }

    /// The granules that lie wholly in a range.
    fn granules_in(&self, range: Range<u64>) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        let end = range.end;
        self.granules
            .range(range)
            .map(|(&address, &bytes)| (address, bytes))
            .filter(move |(address, bytes)| address + bytes <= end)
    }
}

/// Where a request can be served by mapping memory: a hole, and perhaps a free block below it that
/// becomes part of the new block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    hole: BlockId,
    below: Option<BlockId>,
    /// Where the new block begins: in `below`, or in the hole.
    start: u64,
    /// How many bytes of the hole must be mapped, at its beginning.
    pub(crate) map_bytes: u64,
}

/// A claimed [`Room`]: its blocks are in transit until the growth is finished or undone.
#[derive(Debug)]
pub(crate) struct ClaimedRoom {
    mapped: BlockId,
    below: Option<(BlockId, Stamps)>,
    start: u64,
    /// The addresses to map.
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The size of its granules; the last may be smaller.
    granule: u64,
    /// There is memory behind the addresses.
    backed: bool,
}

impl ClaimedRoom {
    /// Has the memory come in granules of this size, a multiple of the unit of virtual memory, rather
    /// than in one.
    pub(crate) fn cut(mut self, granule: u64) -> ClaimedRoom {
        self.granule = granule;
        self
    }

    /// The granules, by address and size.
    pub(crate) fn granules(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (end, granule) = (self.address + self.bytes, self.granule);
        (self.address..end)
            .step_by(granule as usize)
            .map(move |address| (address, granule.min(end - address)))
    }
}

/// Free memory that can go back to the device, in transit: one plain segment, or granules side by
/// side.
#[derive(Debug)]
pub(crate) struct Unused {
    block: BlockId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The granules, by address and size; none for a plain segment.
    pub(crate) granules: Vec<(u64, u64)>,
}

impl Heap {
    /// Adds a plain segment that was just taken from the device; all of it is in transit.
    pub(crate) fn add_segment(&mut self, address: u64, bytes: u64) -> BlockId {
        let first = self.blocks.insert(address, bytes, State::Hole);
        self.segments.by_address.insert(address, Segment { bytes, first, plain: true });
        self.set_state(first, State::Transit);
        first
    }

    /// Adds a reserved range of addresses: a hole that memory can be mapped into.
    pub(crate) fn add_range(&mut self, address: u64, bytes: u64) {
        let first = self.blocks.insert(address, bytes, State::Hole);
        self.segments.by_address.insert(address, Segment { bytes, first, plain: false });
        self.holes.insert(first);
    }

    /// The reserved ranges that have no memory mapped in them, which are forgotten.
    pub(crate) fn take_empty_ranges(&mut self) -> Vec<(u64, u64)> {
        let empty: Vec<(u64, u64)> = (self.segments.by_address.iter())
            .filter(|(_, segment)| {
                let first = self.blocks.get(segment.first);
                !segment.plain && first.state == State::Hole && first.bytes == segment.bytes
            })
            .map(|(&address, segment)| (address, segment.bytes))
            .collect();
        for (address, _) in &empty {
            let segment = self.segments.by_address.remove(address).expect("just listed");
            self.holes.remove(&segment.first);
            self.blocks.remove(segment.first);
        }
        empty
    }

    /// Where the fewest bytes must be mapped so that `taker` gets a block, if any hole is large
    /// enough. `unit` is what mapped sizes are multiples of.
    pub(crate) fn find_room(
        &self,
        bytes: u64,
        align: u64,
        unit: u64,
        taker: &Taker,
        evidence: &dyn Evidence,
    ) -> Option<Room> {
        let mut best: Option<Room> = None;
        for &hole in &self.holes {
            let room = self.blocks.get(hole);
            let below = Some(room.below).filter(|below| {
                !below.is_none()
                    && self.blocks.get(*below).state == State::Free
                    && super::search::is_covered(self.stamps(*below), taker, evidence)
            });
            let base = below.map_or(room.address, |below| self.blocks.get(below).address);
            let start = base.next_multiple_of(align);
            let missing = (start + bytes).saturating_sub(room.address).max(1);
            let map_bytes = missing.next_multiple_of(unit);
            let below = below.filter(|_| start < room.address);
            let start = if below.is_some() { start } else { start.max(room.address) };
            if map_bytes <= room.bytes && best.is_none_or(|best| map_bytes < best.map_bytes) {
                best = Some(Room { hole, below, start, map_bytes });
            }
        }
        best
    }

    /// Claims a room that [`find_room`](Self::find_room) has just found, with `map_bytes` or more to
    /// be mapped.
    pub(crate) fn claim(&mut self, room: Room, map_bytes: u64) -> ClaimedRoom {
        let hole = self.blocks.get(room.hole);
        let (address, all) = (hole.address, hole.bytes);
        let bytes = map_bytes.max(room.map_bytes).min(all);
        if bytes < all {
            let rest = self.blocks.split(room.hole, bytes);
            self.holes.insert(rest);
        }
        self.set_state(room.hole, State::Transit);
        self.bytes.claimed += bytes;
        let below = room.below.map(|below| {
            self.set_state(below, State::Transit);
            (below, std::mem::take(&mut self.blocks.get_mut(below).stamps))
        });
        ClaimedRoom {
            mapped: room.hole,
            below,
            start: room.start,
            address,
            bytes,
            granule: bytes,
            backed: false,
        }
    }

    /// The claimed addresses have memory now: makes the block of `bytes` bytes, in
    /// transit, and frees the rest.
    pub(crate) fn finish_growth(
        &mut self,
        growth: ClaimedRoom,
        bytes: u64,
        evidence: &dyn Evidence,
    ) -> BlockId {
        self.segments.granules.extend(growth.granules());
        self.bytes.claimed -= growth.bytes;
        let mut block = growth.mapped;
        let mut old = Stamps::Clean;
        if let Some((below, stamps)) = growth.below {
            let front = growth.start - self.blocks.get(below).address;
            let taken = if front > 0 { self.blocks.split(below, front) } else { below };
            // Still in transit, so that the join below is not the heap's own.
            self.blocks.join_above(taken);
            if front > 0 {
                self.free(below, stamps.clone(), evidence);
            }
            (block, old) = (taken, stamps);
        } else if growth.start > growth.address {
            let upper = self.blocks.split(block, growth.start - growth.address);
            self.free(block, Stamps::Clean, evidence);
            block = upper;
        }
        if self.blocks.get(block).bytes > bytes {
            let rest = self.blocks.split(block, bytes);
            let (address, all) = self.extent(rest);
            // What the block below had of the rest keeps its free points; only new memory is clean.
            let of_below = growth.address.saturating_sub(address).min(all);
            if of_below > 0 && of_below < all {
                let fresh = self.blocks.split(rest, of_below);
                self.free(fresh, Stamps::Clean, evidence);
            }
            self.free(rest, if of_below > 0 { old } else { Stamps::Clean }, evidence);
        }
        block
    }

    /// Only the first `bytes` of the claimed addresses, not none, have got memory, which could not be taken
    /// from there again; the others are as before the claim.
    pub(crate) fn shrink_growth(&mut self, growth: &mut ClaimedRoom, bytes: u64) {
        self.bytes.claimed -= if growth.backed { 0 } else { growth.bytes };
        growth.backed = true;
        if bytes < growth.bytes {
            let rest = self.blocks.split(growth.mapped, bytes);
            self.make_hole(rest);
            growth.bytes = bytes;
        }
    }

    /// The claimed addresses got no memory: everything is as before the claim.
    pub(crate) fn undo_growth(&mut self, growth: ClaimedRoom, evidence: &dyn Evidence) {
        self.bytes.claimed -= if growth.backed { 0 } else { growth.bytes };
        self.make_hole(growth.mapped);
        if let Some((below, stamps)) = growth.below {
            self.free(below, stamps, evidence);
        }
    }

    /// Takes clean memory that can go back to the device into transit, from the highest address down,
    /// until `wanted` bytes are found or no more is.
    pub(crate) fn take_unused(&mut self, wanted: u64) -> Vec<Unused> {
        let mut clean: Vec<_> = self.clean.iter().collect();
        if seeded!(TrimWithoutCompletion) {
            clean.extend(self.pending.values().flat_map(|shelf| shelf.single.iter()));
        }
        clean.sort_by_key(|entry| std::cmp::Reverse(entry.address));
        let (mut found, mut total) = (Vec::new(), 0);
        for entry in clean {
            if total >= wanted {
                break;
            }
            let end = entry.address + entry.bytes;
            let plain = self.segments.by_address.get(&entry.address).filter(|own| own.plain);
            let (mut granules, from, to);
            if plain.is_some_and(|own| own.bytes == entry.bytes) {
                (granules, from, to) = (Vec::new(), entry.address, end);
            } else {
                granules = Vec::new();
                let mut bytes = 0;
                for granule in self.segments.granules_in(entry.address..end).rev() {
                    if total + bytes >= wanted {
                        break;
                    }
                    bytes += granule.1;
                    granules.push(granule);
                }
                let (Some(last), Some(first)) = (granules.first(), granules.last()) else {
                    continue;
                };
                (from, to) = (first.0, last.0 + last.1);
                granules.reverse();
            }
            let block = self.carve_at(entry.id, from, to - from);
            total += to - from;
            found.push(Unused { block, address: from, bytes: to - from, granules });
        }
        found
    }

    /// The unused memory has gone back to the device.
    pub(crate) fn forget_unused(&mut self, unused: Unused) {
        if unused.granules.is_empty() {
            self.set_state(unused.block, State::Hole);
            self.holes.remove(&unused.block);
            self.blocks.remove(unused.block);
            // The device may have given the address to another segment since it has this one back.
            let own = self.segments.by_address.get(&unused.address);
            if own.is_some_and(|segment| segment.first == unused.block) {
                self.segments.by_address.remove(&unused.address);
            }
            return;
        }
        for (address, _) in &unused.granules {
            self.segments.granules.remove(address);
        }
        self.make_hole(unused.block);
    }

    /// The unused memory could not go back: it is free again.
    pub(crate) fn keep_unused(&mut self, unused: Unused, evidence: &dyn Evidence) {
        self.free(unused.block, Stamps::Clean, evidence);
    }

    /// Carves exactly the given range out of a free block, into transit.
    fn carve_at(&mut self, id: BlockId, address: u64, bytes: u64) -> BlockId {
        let front = address - self.blocks.get(id).address;
        let mut id = id;
        if front > 0 {
            self.unshelve(id);
            let upper = self.blocks.split(id, front);
            self.shelve(id);
            self.shelve(upper);
            id = upper;
        }
        self.carve(id, bytes, super::size_class::GRAIN)
    }

    /// Addresses in transit lose their memory, and join the holes beside them.
    fn make_hole(&mut self, id: BlockId) {
        self.set_state(id, State::Hole);
        let is_hole =
            |heap: &Heap, id: BlockId| !id.is_none() && heap.blocks.get(id).state == State::Hole;
        let (below, above) = (self.blocks.get(id).below, self.blocks.get(id).above);
        if is_hole(self, above) {
            self.holes.remove(&above);
            self.blocks.join_above(id);
        }
        if is_hole(self, below) {
            self.holes.remove(&id);
            self.blocks.join_above(below);
        }
    }
}

//! Rooms: where a request fits once there is memory behind all of it.
//!
//! A room is a row of addresses, each in a free block or in a hole. To claim it takes its blocks into
//! transit; when its holes have memory the claim is one block.

use std::ops::{ControlFlow, Range};

use super::block::Block;
use super::request::{Part, Request};
use super::size_class::padding;
use super::{BlockId, Heap, Placed, State};
use crate::order::{Evidence, Stamps, Taker};

/// Addresses in a row that a request fits into, of free blocks and holes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// The block or hole that the room begins in.
    first: BlockId,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// A room whose blocks are in transit until the claim is finished or undone.
#[derive(Debug)]
pub(crate) struct Claim {
    start: u64,
    end: u64,
    /// What it is made of, in address order; what was a hole may reach beyond the room.
    blocks: Vec<BlockId>,
    /// Which of them were holes.
    holes: Vec<BlockId>,
}

impl Room {
    /// Whether a range of addresses meets the room.
    pub(crate) fn meets(&self, range: &Range<u64>) -> bool {
        range.start < self.end && self.start < range.end
    }
}

impl Heap {
    /// Calls `each` for the rooms of a request that need memory, in address order of their holes, until
    /// it breaks. Only free blocks that `taker` needs no wait for are part of a room.
    pub(crate) fn each_room(
        &self,
        request: &Request,
        taker: &Taker,
        evidence: &dyn Evidence,
        mut each: impl FnMut(Room) -> ControlFlow<()>,
    ) {
        let Request { bytes, align, part } = *request;
        let usable = |id: BlockId| {
            let block = self.blocks.get(id);
            block.state == State::Free && super::search::is_covered(&block.stamps, taker, evidence)
        };
        let mut starts = Vec::new();
        // How far up the blocks and holes in a row are known to be usable, and what is next.
        let (mut reach, mut next) = (0, BlockId::NONE);
        let holes = self.holes.iter().map(|own| own.id);
        for hole in holes.filter(|hole| self.blocks.get(*hole).part == part) {
            // A room that takes more than all of the blocks below would not reach the hole.
            starts.clear();
            starts.push(hole);
            let (hole_start, mut below) =
                (self.blocks.get(hole).address, self.blocks.get(hole).below);
            while !below.is_none()
                && usable(below)
                && hole_start - self.blocks.get(below).address < bytes + align
            {
                starts.push(below);
                below = self.blocks.get(below).below;
            }
            let wanted = hole_start + bytes + align;
            if reach <= hole_start {
                (reach, next) = (hole_start, hole);
            }
            while !next.is_none()
                && reach < wanted
                && (self.blocks.get(next).state == State::Hole || usable(next))
            {
                reach = self.blocks.get(next).end();
                next = self.blocks.get(next).above;
            }
            for &first in starts.iter().rev() {
                let block = self.blocks.get(first);
                let start = block.address + padding(block.address, align);
                let end = start + bytes;
                let is_room = start < block.end() && end > hole_start && end <= reach;
                if is_room && each(Room { first, start, end }).is_break() {
                    return;
                }
            }
        }
    }

    /// The holes of a part of this size at least, from the lowest address up.
    pub(crate) fn holes(&self, part: Part, bytes: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let holes = self.holes.iter().map(|own| self.blocks.get(own.id));
        holes.filter(move |hole| hole.part == part && hole.bytes >= bytes).map(Block::range)
    }

    /// The room at an address of the hole that begins at `hole`.
    pub(crate) fn room_in(&self, hole: u64, start: u64, bytes: u64) -> Room {
        let first = self.holes.get(hole).expect("a hole begins there").id;
        Room { first, start, end: start + bytes }
    }

    /// The holes that the room has a part of, whole, in address order.
    pub(crate) fn holes_of(&self, room: &Room) -> Vec<Range<u64>> {
        let (mut holes, mut at) = (Vec::new(), room.first);
        while !at.is_none() && self.blocks.get(at).address < room.end {
            if self.blocks.get(at).state == State::Hole {
                holes.push(self.blocks.get(at).range());
            }
            at = self.blocks.get(at).above;
        }
        holes
    }

    /// Claims a room that was just found. `backed` says how much of each of its holes gets memory: the
    /// room's part of it at least.
    pub(crate) fn claim(&mut self, room: Room, backed: &[Range<u64>]) -> Claim {
        let Room { first, start, end } = room;
        let mut claim = Claim { start, end, blocks: Vec::new(), holes: Vec::new() };
        let mut backed = backed.iter();
        let mut at = first;
        while !at.is_none() && self.blocks.get(at).address < end {
            let block = self.blocks.get(at);
            if block.state == State::Hole {
                let part = backed.next().expect("every hole of a room gets memory");
                at = self.cut_hole(at, part);
                self.set_state(at, State::Transit);
                claim.holes.push(at);
            } else {
                let from = start.max(block.address);
                let to = end.min(block.end());
                at = self.carve_at(at, from, to - from);
            }
            claim.blocks.push(at);
            at = self.blocks.get(at).above;
        }
        debug_assert!(backed.next().is_none());
        claim
    }

    /// Cuts a part of a hole out of it.
    fn cut_hole(&mut self, mut id: BlockId, part: &Range<u64>) -> BlockId {
        let hole = self.blocks.get(id).range();
        debug_assert!(hole.start <= part.start && part.end <= hole.end, "{part:?} of {hole:?}");
        if part.end < hole.end {
            let rest = self.blocks.split(id, part.end - hole.start);
            self.holes.insert(Placed { address: part.end, id: rest });
        }
        if hole.start < part.start {
            id = self.blocks.split(id, part.start - hole.start);
            self.holes.insert(Placed { address: part.start, id });
        }
        id
    }

    /// All of the claim has memory now: makes it one block, in transit, and frees what lies beyond the
    /// room.
    pub(crate) fn finish_claim(&mut self, claim: Claim, evidence: &dyn Evidence) -> BlockId {
        let Claim { start, end, blocks, holes } = claim;
        let (mut first, last) = (blocks[0], blocks[blocks.len() - 1]);
        if holes.last() == Some(&last) && self.blocks.get(last).end() > end {
            let rest = self.blocks.split(last, end - self.blocks.get(last).address);
            self.free(rest, Stamps::Clean, evidence);
        }
        let front = start - self.blocks.get(first).address;
        if front > 0 {
            let upper = self.blocks.split(first, front);
            self.free(first, Stamps::Clean, evidence);
            first = upper;
        }
        // All of them are in transit, so that these joins are not the heap's own.
        for _ in 1..blocks.len() {
            self.blocks.join_above(first);
        }
        debug_assert_eq!(self.blocks.get(first).range(), start..end);
        first
    }

    /// The holes of the claim got no memory: everything is as before it.
    pub(crate) fn undo_claim(&mut self, claim: Claim, evidence: &dyn Evidence) {
        let mut holes = claim.holes.into_iter().peekable();
        for id in claim.blocks {
            if holes.next_if_eq(&id).is_some() {
                self.make_hole(id);
            } else {
                let stamps = std::mem::take(&mut self.blocks.get_mut(id).stamps);
                self.free(id, stamps, evidence);
            }
        }
    }

    /// Whether a clean block has all of a range.
    pub(crate) fn is_clean(&self, range: &Range<u64>) -> bool {
        let below = self.clean_at.at_or_below(range.start);
        below.is_some_and(|own| range.end <= self.blocks.get(own.id).end())
    }

    /// The clean blocks of a granule's size at least, from the highest address down.
    pub(crate) fn clean_downwards(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.clean_at.iter().rev().map(|own| self.blocks.get(own.id).range())
    }

    /// Makes a part of a clean block a hole: its memory is wanted elsewhere.
    pub(crate) fn take_memory(&mut self, range: &Range<u64>) {
        let id = self.clean_at.at_or_below(range.start).expect("a clean block").id;
        let block = self.carve_at(id, range.start, range.end - range.start);
        self.make_hole(block);
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
            self.holes.remove(self.blocks.get(above).address);
            self.blocks.join_above(id);
        }
        if is_hole(self, below) {
            self.holes.remove(self.blocks.get(id).address);
            self.blocks.join_above(below);
        }
    }
}

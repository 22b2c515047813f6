//! *What* is free: segments cut into blocks, in address order, with split and coalesce.
//!
//! The heap holds every free block that is not on a stream list. It makes no driver call and knows no
//! event: it carries the [`Stamps`] of its blocks, and asks an [`Evidence`] what they mean now.
//!
//! - A free block is on exactly one shelf: the clean one, or that of one of its free points that has
//!   not completed. A stream therefore looks at clean blocks, at those of its own timeline, and at
//!   those up to its frontier, and passes over all others without a look.
//! - Neighbours join eagerly only when they become clean at the same moment. Otherwise a union is made
//!   when a request needs it, so that a stalled stream does not hold up its neighbours' memory.
//! - Neighbours are found by the heap's own map, never through a record that a buffer owns.

#![forbid(unsafe_code)]

mod block;
mod copy;
mod free_list;
mod on_shelf;
mod quarantine;
mod request;
mod room;
mod search;
mod segment;
mod shelves;
pub(crate) mod size_class;

use std::collections::BTreeSet;

pub(crate) use block::{BlockId, State};
pub(crate) use copy::{BlockCopy, MapCopy};
pub(crate) use request::{Part, Request};
pub(crate) use room::{Claim, Room};
pub(crate) use segment::Unused;

use crate::fault::seeded;
use crate::order::{Epoch, Evidence, FreePoint, Stamps, TimelineId};
use crate::rows::{Keyed, Rows};
use block::BlockMap;
use free_list::{Entry, FreeList};
use segment::Segments;
use shelves::{Shelf, Shelves};
use size_class::padding;

/// The free blocks of a pool that no stream list holds, and the map of all its segments.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    blocks: BlockMap,
    segments: Segments,
    clean: FreeList,
    /// The clean blocks of at least `unit` bytes, by address: those whose memory may be of use elsewhere.
    clean_at: Rows<Placed>,
    /// What memory is mapped in multiples of; zero in a heap of plain segments.
    unit: u64,
    pending: Shelves,
    /// By address.
    holes: Rows<Placed>,
    quarantined: BTreeSet<BlockId>,
    bytes: Bytes,
}

/// A block that is looked for by its address.
#[derive(Clone, Copy, Debug)]
struct Placed {
    address: u64,
    id: BlockId,
}

impl Keyed for Placed {
    type Key = u64;

    fn key(&self) -> u64 {
        self.address
    }
}

/// How many bytes are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes {
    /// Free and waiting for nothing.
    pub(crate) clean: u64,
    /// Free and waiting for a free point.
    pub(crate) pending: u64,
    /// In a buffer or on a stream list.
    pub(crate) out: u64,
    /// With a thread that has a driver call to make.
    pub(crate) transit: u64,
    /// Out of reach until a synchronize succeeds.
    pub(crate) quarantined: u64,
}

impl Bytes {
    /// All that was taken from the device and not given back.
    pub(crate) fn reserved(&self) -> u64 {
        self.clean + self.pending + self.out + self.transit + self.quarantined
    }

    pub(crate) fn free(&self) -> u64 {
        self.clean + self.pending
    }
}

impl Heap {
    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// The size of the largest free block, in bytes.
    pub(crate) fn largest_free(&self) -> u64 {
        let pending = self.pending.iter().map(|(_, shelf)| shelf.largest());
        pending.max().unwrap_or(0).max(self.clean.largest())
    }

    /// Address and size of a block.
    pub(crate) fn extent(&self, id: BlockId) -> (u64, u64) {
        let block = self.blocks.get(id);
        (block.address, block.bytes)
    }

    /// The free points of a block.
    pub(crate) fn stamps(&self, id: BlockId) -> &Stamps {
        &self.blocks.get(id).stamps
    }

    /// Puts a block that was out or in transit back, with its free points, and joins it with those
    /// neighbours that become clean at the same moment.
    pub(crate) fn free(&mut self, id: BlockId, mut stamps: Stamps, evidence: &dyn Evidence) {
        stamps.settle(|point| point.epoch <= evidence.completed(point.timeline));
        self.blocks.get_mut(id).stamps = stamps;
        self.leave_state(id);
        self.blocks.get_mut(id).state = State::Free;
        self.shelve_joined(id, evidence);
    }

    /// Joins a free block that is on no shelf with the neighbours that become clean at the same moment, and
    /// puts the union on its shelf.
    fn shelve_joined(&mut self, mut id: BlockId, evidence: &dyn Evidence) {
        let mut was = None;
        if self.joins_above(id, evidence) {
            was = Some(self.on_shelf(self.blocks.get(id).above));
            self.join_blocks(id);
        }
        let below = self.blocks.get(id).below;
        if !below.is_none() && self.joins_above(below, evidence) {
            if let Some(above) = was.replace(self.on_shelf(below)) {
                self.take_off(above);
            }
            self.join_blocks(below);
            id = below;
        }
        match was {
            Some(was) => self.exchange(was, self.on_shelf(id)),
            None => self.shelve(id),
        }
    }

    /// Hands an out-of-heap thread a block in transit: its owner is a buffer of `home` now, which replaces
    /// its free points.
    pub(crate) fn hand_out(&mut self, id: BlockId, home: TimelineId) {
        self.blocks.get_mut(id).stamps = Stamps::Clean;
        self.set_home(id, home);
        self.set_state(id, State::Out);
    }

    /// Notes whose buffer has a block. Nothing is decided by it.
    pub(crate) fn set_home(&mut self, id: BlockId, home: TimelineId) {
        self.blocks.get_mut(id).home = home;
    }

    /// Takes exactly `bytes` bytes, aligned to `align`, of a free block, into transit. What lies before
    /// and behind stays free, with the same free points.
    pub(crate) fn carve(&mut self, id: BlockId, bytes: u64, align: u64) -> BlockId {
        let block = self.blocks.get(id);
        let front = padding(block.address, align);
        assert!(front + bytes <= block.bytes, "{bytes} bytes do not fit into {block:?}");
        let (was, mut id) = (self.on_shelf(id), id);
        let (mut below, mut above) = (None, None);
        if front > 0 {
            let upper = self.blocks.split(id, front);
            below = Some(self.on_shelf(id));
            id = upper;
        }
        if self.blocks.get(id).bytes > bytes {
            let rest = self.blocks.split(id, bytes);
            above = Some(self.on_shelf(rest));
        }
        match below.or(above) {
            Some(left) => self.exchange(was, left),
            None => self.take_off(was),
        }
        if let (Some(_), Some(above)) = (below, above) {
            self.put_on(above);
        }
        self.bytes.transit += bytes;
        self.blocks.get_mut(id).state = State::Transit;
        id
    }

    /// Moves what has completed since to the clean shelf, joining it with clean neighbours.
    pub(crate) fn settle(&mut self, evidence: &dyn Evidence) {
        let mut from = TimelineId::LOWEST;
        let mut settled: Vec<Entry> = Vec::new();
        while let Some(FreePoint { timeline, epoch: first }) = self.pending.first_from(from) {
            from = timeline.next();
            let completed = evidence.completed(timeline);
            if completed < first {
                continue;
            }
            settled.extend(self.pending.up_to(timeline, completed).flat_map(Shelf::iter));
            // Off the shelves and not yet back: none of them may be joined before its turn.
            for entry in &settled {
                self.set_state(entry.id(), State::Transit);
            }
            for entry in settled.drain(..) {
                let stamps = std::mem::take(&mut self.blocks.get_mut(entry.id()).stamps);
                self.free(entry.id(), stamps, evidence);
            }
        }
    }

    /// The timelines that free blocks wait for, each with the first and the last free epoch that such a
    /// block waits for: those that serve a request, or all.
    pub(crate) fn pending(&self, request: Option<&Request>) -> Vec<(FreePoint, Epoch)> {
        let mut points: Vec<(FreePoint, Epoch)> = Vec::new();
        for (FreePoint { timeline, epoch }, shelf) in self.pending.iter() {
            let fits = |list: &FreeList| match request {
                Some(request) => list.best(request).is_some(),
                None => !list.is_empty(),
            };
            if !fits(&shelf.single) && !fits(&shelf.mixed) {
                continue;
            }
            match points.last_mut() {
                Some((first, last)) if first.timeline == timeline => *last = epoch,
                _ => points.push((FreePoint { timeline, epoch }, epoch)),
            }
        }
        points
    }

    /// Whether a free block waits for this timeline, maybe beside others.
    pub(crate) fn waits_for(&self, timeline: TimelineId) -> bool {
        let of = |entry: Entry| {
            self.stamps(entry.id()).points().iter().any(|point| point.timeline == timeline)
        };
        let waits = |(first, shelf): (FreePoint, &Shelf)| {
            first.timeline == timeline || shelf.mixed.iter().any(of)
        };
        self.pending.iter().any(waits)
    }

    fn joins_above(&self, id: BlockId, evidence: &dyn Evidence) -> bool {
        let lower = self.blocks.get(id);
        if lower.above.is_none() || lower.state != State::Free {
            return false;
        }
        let upper = self.blocks.get(lower.above);
        upper.state == State::Free && clean_together(&lower.stamps, &upper.stamps, evidence)
    }

    /// Joins a free block with the free block above it; the union has the free points of both.
    fn join_free(&mut self, id: BlockId) {
        self.unshelve(id);
        self.unshelve(self.blocks.get(id).above);
        self.join_blocks(id);
        self.shelve(id);
    }

    /// Joins a block with the one above it, neither of them on a shelf; the union has the free points of
    /// both.
    fn join_blocks(&mut self, id: BlockId) {
        let above = self.blocks.get(id).above;
        let stamps = std::mem::take(&mut self.blocks.get_mut(above).stamps);
        self.blocks.join_above(id);
        self.blocks.get_mut(id).stamps.join(&stamps);
    }

    /// Changes who has a block, and everything that follows from it: accounts, shelves, sets.
    fn set_state(&mut self, id: BlockId, state: State) {
        self.leave_state(id);
        self.enter_state(id, state);
    }

    /// The first half: nobody has the block, and no account counts it.
    fn leave_state(&mut self, id: BlockId) {
        let block = self.blocks.get(id);
        let bytes = block.bytes;
        match block.state {
            State::Free => self.unshelve(id),
            State::Out => self.bytes.out -= bytes,
            State::Transit => self.bytes.transit -= bytes,
            State::Quarantined => {
                self.bytes.quarantined -= bytes;
                self.quarantined.remove(&id);
            }
            State::Hole => {
                self.holes.remove(block.address);
            }
        }
    }

    fn enter_state(&mut self, id: BlockId, state: State) {
        self.blocks.get_mut(id).state = state;
        let bytes = self.blocks.get(id).bytes;
        match state {
            State::Free => self.shelve(id),
            State::Out => self.bytes.out += bytes,
            State::Transit => self.bytes.transit += bytes,
            State::Quarantined => {
                self.bytes.quarantined += bytes;
                self.quarantined.insert(id);
            }
            State::Hole => {
                self.holes.insert(Placed { address: self.blocks.get(id).address, id });
            }
        }
    }
}

/// Whether two blocks become clean at the same moment, so that joining them delays neither.
fn clean_together(left: &Stamps, right: &Stamps, evidence: &dyn Evidence) -> bool {
    match (left, right) {
        (Stamps::One(left), Stamps::One(right)) if left.timeline == right.timeline => {
            seeded!(EagerJoin)
                || left.epoch == right.epoch
                || evidence.one_event_covers(left.timeline, left.epoch, right.epoch)
        }
        _ => left == right,
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

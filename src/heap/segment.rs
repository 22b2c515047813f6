//! Segments: what the heap's blocks are cut from.
//!
//! A plain segment has memory, all of it or none. A range is addresses only: pieces of memory are put
//! behind them and taken away; where there is none is a hole.

use std::collections::BTreeMap;

use super::request::{Part, Request};
use super::size_class::GRAIN;
use super::{BlockId, Heap, Placed, State};
use crate::fault::seeded;
use crate::order::{Evidence, Stamps};

/// The segments of a heap, by address.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    by_address: BTreeMap<u64, Segment>,
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
    /// Address, size and whether it is plain, of each, by address.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (u64, u64, bool)> + '_ {
        self.by_address.iter().map(|(address, own)| (*address, own.bytes, own.plain))
    }

    pub(super) fn first_blocks(&self) -> Vec<BlockId> {
        self.by_address.values().map(|segment| segment.first).collect()
    }
}

/// A plain segment that can go back to the device, in transit.
#[derive(Debug)]
pub(crate) struct Unused {
    block: BlockId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl Heap {
    /// Adds a plain segment that was just taken from the device; all of it is in transit.
    pub(crate) fn add_segment(&mut self, address: u64, bytes: u64, part: Part) -> BlockId {
        debug_assert!(
            bytes.is_multiple_of(GRAIN),
            "a segment of {bytes} bytes is not of whole grains"
        );
        let first = self.blocks.insert(address, bytes, part, State::Transit);
        self.segments.by_address.insert(address, Segment { bytes, first, plain: true });
        self.bytes.transit += bytes;
        first
    }

    /// Adds a reserved range of addresses: a hole that memory can be mapped into, in multiples of `unit`.
    pub(crate) fn add_range(&mut self, address: u64, bytes: u64, part: Part, unit: u64) {
        self.unit = unit;
        let first = self.blocks.insert(address, bytes, part, State::Hole);
        self.segments.by_address.insert(address, Segment { bytes, first, plain: false });
        self.holes.insert(Placed { address, id: first });
    }

    /// Where the segments begin, in address order.
    pub(crate) fn segment_starts(&self) -> Vec<u64> {
        self.segments.by_address.keys().copied().collect()
    }

    /// The reserved ranges that have no memory behind them, which are forgotten.
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
            self.holes.remove(*address);
            self.blocks.remove(segment.first);
        }
        empty
    }

    /// Makes the smallest plain segment of the other part that is clean as a whole, and large enough, one of
    /// the request's.
    pub(crate) fn adopt_segment(&mut self, request: &Request) -> Option<BlockId> {
        let needed = request.bytes + request.align - GRAIN;
        let others = self.segments.by_address.values().filter(|own| {
            let first = self.blocks.get(own.first);
            own.plain
                && first.part != request.part
                && first.state == State::Free
                && first.stamps.is_clean()
                && first.bytes == own.bytes
                && own.bytes >= needed
        });
        let first = others.min_by_key(|own| own.bytes)?.first;
        self.unshelve(first);
        self.blocks.get_mut(first).part = request.part;
        self.shelve(first);
        Some(first)
    }

    /// Takes clean plain segments into transit, from the highest address down, until `wanted` bytes are
    /// found or no more is.
    pub(crate) fn take_unused(&mut self, wanted: u64) -> Vec<Unused> {
        let (mut found, mut total) = (Vec::new(), 0);
        let segments: Vec<(u64, u64, BlockId)> = (self.segments.by_address.iter().rev())
            .filter(|(_, own)| own.plain)
            .map(|(&address, own)| (address, own.bytes, own.first))
            .collect();
        for (address, bytes, first) in segments {
            if total >= wanted {
                break;
            }
            let block = self.blocks.get(first);
            let clean = block.stamps.is_clean() || seeded!(TrimWithoutCompletion);
            if block.state == State::Free && block.bytes == bytes && clean {
                let block = self.carve(first, bytes, GRAIN);
                total += bytes;
                found.push(Unused { block, address, bytes });
            }
        }
        found
    }

    /// The unused segment has gone back to the device.
    pub(crate) fn forget_unused(&mut self, unused: Unused) {
        self.set_state(unused.block, State::Hole);
        self.holes.remove(unused.address);
        self.blocks.remove(unused.block);
        // The device may have given the address to another segment since it has this one back.
        let own = self.segments.by_address.get(&unused.address);
        if own.is_some_and(|segment| segment.first == unused.block) {
            self.segments.by_address.remove(&unused.address);
        }
    }

    /// The unused segment could not go back: it is free again.
    pub(crate) fn keep_unused(&mut self, unused: Unused, evidence: &dyn Evidence) {
        self.free(unused.block, Stamps::Clean, evidence);
    }
}

//! Free blocks by size, then by address: the smallest that fits, and of those the lowest.

use std::collections::BTreeSet;

use super::block::BlockId;
use super::request::{Part, Request};

/// A set of free blocks.
#[derive(Debug, Default)]
pub(crate) struct FreeList {
    blocks: BTreeSet<Entry>,
}

/// Where a free block lies. In each part the order is the order of choice: size first, then address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) part: Part,
    pub(crate) bytes: u64,
    pub(crate) address: u64,
    pub(crate) id: BlockId,
}

impl Entry {
    /// Whether `bytes` bytes aligned to `align` fit into this block.
    fn fits(&self, bytes: u64, align: u64) -> bool {
        self.address.next_multiple_of(align) - self.address + bytes <= self.bytes
    }
}

impl FreeList {
    pub(crate) fn insert(&mut self, entry: Entry) {
        let fresh = self.blocks.insert(entry);
        debug_assert!(fresh, "block {entry:?} is on the list already");
    }

    pub(crate) fn remove(&mut self, entry: &Entry) {
        let was = self.blocks.remove(entry);
        debug_assert!(was, "block {entry:?} is not on its list");
    }

    /// The blocks that fit, the best first.
    pub(crate) fn fitting(&self, request: &Request) -> impl Iterator<Item = Entry> + '_ {
        let Request { bytes, align, part } = *request;
        let lowest = Entry { part, bytes, address: 0, id: BlockId::LOWEST };
        let above = self.blocks.range(lowest..).copied();
        above
            .take_while(move |entry| entry.part == part)
            .filter(move |entry| entry.fits(bytes, align))
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Entry> + '_ {
        self.blocks.iter().copied()
    }

    /// The size of the largest block, in bytes.
    pub(crate) fn largest(&self) -> u64 {
        let large = Entry { part: Part::Large, bytes: 0, address: 0, id: BlockId::LOWEST };
        let small = self.blocks.range(..large).next_back();
        let last = self.blocks.last();
        last.into_iter().chain(small).map(|entry| entry.bytes).max().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

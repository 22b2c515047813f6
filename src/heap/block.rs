//! Blocks, in address order: the heap's own map, which no buffer owns a part of.

use std::ops::Range;

use super::request::Part;
use crate::fault::seeded;
use crate::order::{Stamps, TimelineId};

/// Names a block of one heap. A name is used again when its block has been joined to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockId(u32);

impl BlockId {
    /// Sorts before every other.
    pub(crate) const LOWEST: BlockId = BlockId(0);
    /// No block.
    pub(crate) const NONE: BlockId = BlockId(u32::MAX);

    pub(super) fn number(self) -> u32 {
        self.0
    }

    pub(super) fn from_number(number: u32) -> BlockId {
        BlockId(number)
    }

    pub(crate) fn is_none(self) -> bool {
        self == BlockId::NONE
    }
}

/// Who has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The heap: it can be searched.
    Free,
    /// A buffer or a stream list.
    Out,
    /// A thread of the pool that has a driver call to make for it.
    Transit,
    /// Nobody, until a synchronize has succeeded: a dependency could not be settled.
    Quarantined,
    /// Addresses with no memory behind them.
    Hole,
}

/// A sub-range of a segment.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The neighbour that ends where this block begins, in the same segment.
    pub(crate) below: BlockId,
    /// The neighbour that begins where this block ends, in the same segment.
    pub(crate) above: BlockId,
    pub(crate) state: State,
    /// That of its segment.
    pub(crate) part: Part,
    /// Whose buffer or stream list has it; [`TimelineId::LOWEST`] while nobody's has.
    pub(crate) home: TimelineId,
    /// What must come before the next use; meaningless while a buffer or a stream list has it.
    pub(crate) stamps: Stamps,
}

impl Block {
    pub(crate) fn end(&self) -> u64 {
        self.address + self.bytes
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.address..self.end()
    }
}

/// All blocks of a heap, by name.
#[derive(Debug, Default)]
pub(crate) struct BlockMap {
    blocks: Vec<Block>,
    unused: Vec<BlockId>,
}

impl BlockMap {
    pub(crate) fn get(&self, id: BlockId) -> &Block {
        &self.blocks[id.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id.0 as usize]
    }

    /// A block with no neighbours: a whole segment.
    pub(crate) fn insert(&mut self, address: u64, bytes: u64, part: Part, state: State) -> BlockId {
        let (below, above) = (BlockId::NONE, BlockId::NONE);
        let (home, stamps) = (TimelineId::LOWEST, Stamps::Clean);
        self.place(Block { address, bytes, below, above, state, part, home, stamps })
    }

    /// Cuts a block in two; the upper part is new and has the same state and stamps.
    pub(crate) fn split(&mut self, id: BlockId, lower_bytes: u64) -> BlockId {
        let block = self.get_mut(id);
        assert!(
            0 < lower_bytes && lower_bytes < block.bytes,
            "a cut at {lower_bytes} of {} bytes leaves an empty part",
            block.bytes
        );
        let upper = Block {
            address: block.address + lower_bytes,
            bytes: block.bytes - lower_bytes,
            below: id,
            above: block.above,
            state: block.state,
            part: block.part,
            home: block.home,
            stamps: match seeded!(SplitDropsStamps) {
                true => Stamps::Clean,
                false => block.stamps.clone(),
            },
        };
        block.bytes = lower_bytes;
        let next = upper.above;
        let upper = self.place(upper);
        self.get_mut(id).above = upper;
        if !next.is_none() {
            self.get_mut(next).below = upper;
        }
        upper
    }

    /// Joins a block with the one above it, which is gone then. The stamps are the caller's to join.
    pub(crate) fn join_above(&mut self, id: BlockId) {
        let gone = self.get(id).above;
        let (bytes, above) = (self.get(gone).bytes, self.get(gone).above);
        let block = self.get_mut(id);
        block.bytes += bytes;
        block.above = above;
        if !above.is_none() {
            self.get_mut(above).below = id;
        }
        self.remove(gone);
    }

    /// Forgets a block that no neighbour names any more.
    pub(crate) fn remove(&mut self, id: BlockId) {
        let block = self.get_mut(id);
        block.stamps = Stamps::Clean;
        // Who walks over all blocks passes over this one.
        block.bytes = 0;
        self.unused.push(id);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.blocks.len() - self.unused.len()
    }

    /// All of them, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(|block| block.bytes > 0)
    }

    fn place(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.unused.pop() {
            *self.get_mut(id) = block;
            return id;
        }
        let id = u32::try_from(self.blocks.len()).expect("fewer than 2^32 blocks");
        assert!(id != BlockId::NONE.0, "a heap holds at most {} blocks", BlockId::NONE.0);
        if self.blocks.len() == self.blocks.capacity() {
            // By an eighth, not to twice as many: most of a pool's account is here.
            self.blocks.reserve_exact((self.blocks.len() / 8).max(64));
        }
        self.blocks.push(block);
        BlockId(id)
    }
}

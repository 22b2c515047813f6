//! A copy of the heap's map, for who wants to read it at leisure.

use super::{Heap, State};
use crate::order::{FreePoint, TimelineId};

/// A block as it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockCopy {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) state: State,
    /// Whose buffer or list had it, where it was out.
    pub(crate) home: TimelineId,
    /// Its free points, in [`MapCopy::points`]: where they begin, and how many they are.
    first_point: u32,
    points: u32,
}

/// The blocks and segments of a heap at one moment.
#[derive(Debug, Default)]
pub(crate) struct MapCopy {
    /// In no order.
    pub(crate) blocks: Vec<BlockCopy>,
    points: Vec<FreePoint>,
    /// Address, size and whether it is a plain one, by address.
    pub(crate) segments: Vec<(u64, u64, bool)>,
}

impl MapCopy {
    /// The free points of one of its blocks.
    pub(crate) fn points(&self, block: &BlockCopy) -> &[FreePoint] {
        &self.points[block.first_point as usize..][..block.points as usize]
    }

    /// Makes room for a heap of so many blocks and segments, and some more.
    pub(crate) fn reserve(&mut self, (blocks, segments): (usize, usize)) {
        let blocks = blocks + blocks / 8 + 8;
        self.blocks.reserve(blocks);
        self.points.reserve(blocks);
        self.segments.reserve(segments + 8);
    }
}

impl Heap {
    /// How many blocks and segments there are.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.blocks.count(), self.segments.iter().len())
    }

    /// Copies the map, in one pass over memory that lies in a row.
    pub(crate) fn copy_to(&self, copy: &mut MapCopy) {
        copy.segments.extend(self.segments.iter());
        for block in self.blocks.iter() {
            let points = match block.state {
                State::Free | State::Quarantined => block.stamps.points(),
                State::Out | State::Transit | State::Hole => &[],
            };
            copy.blocks.push(BlockCopy {
                address: block.address,
                bytes: block.bytes,
                state: block.state,
                home: block.home,
                first_point: copy.points.len() as u32,
                points: points.len() as u32,
            });
            copy.points.extend_from_slice(points);
        }
    }
}

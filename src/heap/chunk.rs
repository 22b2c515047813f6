//! Chunks: what small blocks are cut from.

use super::request::{Request, Source};
use super::{BlockId, Heap, State};
use crate::order::Evidence;

/// The chunks of a heap.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    /// The first block of each: a split or a join keeps the lower block's name.
    pub(super) first: Vec<BlockId>,
    /// All of them together, in bytes.
    pub(super) bytes: u64,
}

impl Heap {
    /// Takes the block of a request out of a free block that [`wanted`](Request::wanted) fits into, into
    /// transit. What is left keeps its free points.
    pub(crate) fn take(&mut self, id: BlockId, request: &Request) -> BlockId {
        let (bytes, align) = request.wanted();
        let taken = self.carve(id, bytes, align);
        self.cut(taken, request)
    }

    /// The block of a request, out of a block in transit of the [`wanted`](Request::wanted) size: if that is
    /// to be a chunk, the rest of it is free now.
    pub(crate) fn cut(&mut self, id: BlockId, request: &Request) -> BlockId {
        if !matches!(request.source, Source::NewChunk { .. }) {
            return id;
        }
        let block = self.blocks.get_mut(id);
        block.chunk = block.address;
        self.chunks.bytes += block.bytes;
        self.chunks.first.push(id);
        self.set_state(id, State::Free);
        let (bytes, align) = request.extent();
        self.carve(id, bytes, align)
    }

    /// The chunks that are free as a whole are chunks no more: larger blocks can be cut from them, and their
    /// memory can be elsewhere.
    pub(crate) fn dissolve_chunks(&mut self, evidence: &dyn Evidence) {
        let mut free = Vec::new();
        let mut at = 0;
        while let Some(&first) = self.chunks.first.get(at) {
            free.clear();
            if !self.is_free_chunk(first, &mut free) {
                at += 1;
                continue;
            }
            self.chunks.first.swap_remove(at);
            for &id in &free {
                self.set_state(id, State::Transit);
                let block = self.blocks.get_mut(id);
                block.chunk = 0;
                self.chunks.bytes -= block.bytes;
            }
            for &id in &free {
                let stamps = std::mem::take(&mut self.blocks.get_mut(id).stamps);
                self.free(id, stamps, evidence);
            }
        }
    }

    /// Whether every block of a chunk is free; lists those up to the first that is not.
    fn is_free_chunk(&self, first: BlockId, blocks: &mut Vec<BlockId>) -> bool {
        let chunk = self.blocks.get(first).chunk;
        let mut at = first;
        while !at.is_none() && self.blocks.get(at).chunk == chunk {
            if self.blocks.get(at).state != State::Free {
                return false;
            }
            blocks.push(at);
            at = self.blocks.get(at).above;
        }
        true
    }
}

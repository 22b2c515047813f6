//! What a search of the heap is for, and where it looks.
//!
//! Small blocks are cut from chunks, pieces of a few MiB that nothing else is cut from: otherwise a small
//! block that stays would keep large neighbours from joining, and a granule where it is.

use super::Heap;
use super::size_class::{GRAIN, ROUNDED_MAX};

/// The smallest chunk, in bytes.
pub(crate) const CHUNK_MIN: u64 = 2 << 20;
/// The largest. A chunk is a fraction of all chunks together, so that blocks whose size does not divide it
/// leave little of it unused.
const CHUNK_MAX: u64 = 32 << 20;
const CHUNK_FRACTION: u64 = 8;

/// A block that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    bytes: u64,
    align: u64,
    pub(crate) source: Source,
}

/// Where a block is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// In the chunks.
    Chunks,
    /// Outside, for a new chunk of this size and alignment in bytes, which the block is cut from.
    NewChunk { bytes: u64, align: u64 },
    /// Outside.
    Rest,
}

/// The part of a heap that a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Chunks,
    Rest,
}

impl Request {
    pub(crate) fn new(bytes: u64, align: u64, source: Source) -> Request {
        Request { bytes, align, source }
    }

    /// Size and alignment of the free block that is looked for, in bytes.
    pub(crate) fn wanted(&self) -> (u64, u64) {
        match self.source {
            Source::NewChunk { bytes, align } => (bytes, align),
            Source::Chunks | Source::Rest => (self.bytes, self.align),
        }
    }

    /// Size and alignment of the block that is handed out, in bytes.
    pub(super) fn extent(&self) -> (u64, u64) {
        (self.bytes, self.align)
    }

    /// Whether it is served by a chunk that is there.
    pub(crate) fn is_in_chunks(&self) -> bool {
        self.source == Source::Chunks
    }

    pub(super) fn part(&self) -> Part {
        match self.source {
            Source::Chunks => Part::Chunks,
            Source::NewChunk { .. } | Source::Rest => Part::Rest,
        }
    }
}

/// Whether blocks of this size and alignment are cut from chunks.
pub(crate) fn is_small(bytes: u64, align: u64) -> bool {
    bytes <= ROUNDED_MAX && align <= ROUNDED_MAX
}

impl Heap {
    /// The searches for a block, in order. The last one is what the heap grows by. For a `desperate`
    /// request a chunk is as small as can be, and a small block may lie outside.
    pub(crate) fn requests(
        &self,
        bytes: u64,
        align: u64,
        desperate: bool,
    ) -> impl Iterator<Item = Request> + use<> {
        let is_small = is_small(bytes, align);
        let chunk = match desperate {
            true => CHUNK_MIN,
            false => self.next_chunk(),
        };
        // Memory comes in granules: a chunk shall not lie on one more than it must.
        let chunk_align = if self.unit > 0 { CHUNK_MIN } else { GRAIN };
        let sources = [
            is_small.then_some(Source::Chunks),
            is_small.then_some(Source::NewChunk { bytes: chunk, align: chunk_align }),
            (!is_small || desperate).then_some(Source::Rest),
        ];
        sources.into_iter().flatten().map(move |source| Request::new(bytes, align, source))
    }

    fn next_chunk(&self) -> u64 {
        let part = self.chunks.bytes / CHUNK_FRACTION / CHUNK_MIN * CHUNK_MIN;
        part.clamp(CHUNK_MIN, CHUNK_MAX)
    }
}

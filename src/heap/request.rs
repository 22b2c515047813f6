//! What a search of the heap is for, and where it looks.
//!
//! Small blocks and large ones lie in segments of their own. Otherwise a small block that stays would keep
//! large neighbours from joining, and a granule where it is; and which small block a stream's list happens
//! to give back would change where large ones go, from one round of a program to the next.

use super::size_class::ROUNDED_MAX;

/// The part of a heap that a segment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// For blocks whose size is rounded to a class.
    Small,
    /// For larger ones, and for those with a large alignment.
    Large,
}

/// A free block that is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) bytes: u64,
    /// In bytes, a power of two.
    pub(crate) align: u64,
    /// Where it is looked for.
    pub(crate) part: Part,
}

impl Request {
    /// A block of this size and alignment, where such blocks belong.
    pub(crate) fn new(bytes: u64, align: u64) -> Request {
        let part = match bytes <= ROUNDED_MAX && align <= ROUNDED_MAX {
            true => Part::Small,
            false => Part::Large,
        };
        Request { bytes, align, part }
    }

    /// The same, looked for where such blocks do not belong.
    pub(crate) fn elsewhere(self) -> Request {
        let part = match self.part {
            Part::Small => Part::Large,
            Part::Large => Part::Small,
        };
        Request { part, ..self }
    }
}

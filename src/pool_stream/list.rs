//! The stream list: whole blocks that wait for nothing but their own stream, by bin.

use super::record::Record;
use crate::backend::Backend;
use crate::heap::size_class::{BINS, ROUNDED_MAX, Rounded};

/// How many blocks of a bin are looked at for one of the exact size. Above 1 MiB a bin holds blocks of
/// several sizes, and a block serves only its own size: the heap splits, a list does not.
const LOOKS: usize = 8;

const WORDS: usize = BINS.div_ceil(64);

/// The free blocks of one stream. Each bin is a stack: the most recently freed block goes first, since
/// it is the likeliest to be in the device's cache.
#[repr(C)]
pub(crate) struct StreamList<B: Backend> {
    /// Which bins are not empty.
    filled: [u64; WORDS],
    bins: [Option<Box<Record<B>>>; BINS],
}

impl<B: Backend> StreamList<B> {
    pub(super) fn new() -> StreamList<B> {
        StreamList { filled: [0; WORDS], bins: [const { None }; BINS] }
    }

    #[inline]
    pub(super) fn push(&mut self, mut record: Box<Record<B>>) {
        let bin = usize::from(record.bin);
        self.filled[bin / 64] |= 1 << (bin % 64);
        record.next = self.bins[bin].take();
        self.bins[bin] = Some(record);
    }

    /// Takes a block of exactly the rounded size.
    #[inline]
    pub(super) fn pop(&mut self, size: Rounded, align: u64) -> Option<Box<Record<B>>> {
        let bin = usize::from(size.bin);
        let mut at = &mut self.bins[bin];
        for _ in 0..LOOKS {
            let found = at.as_ref()?;
            if found.bytes == size.bytes && found.address & (align - 1) == 0 {
                let mut record = at.take()?;
                *at = record.next.take();
                if self.bins[bin].is_none() {
                    self.filled[bin / 64] &= !(1 << (bin % 64));
                }
                return Some(record);
            }
            at = &mut at.as_mut()?.next;
        }
        None
    }

    /// Takes every block of at least `bytes` bytes, the least recently freed first, as one chain.
    pub(crate) fn drain(&mut self, bytes: u64, mut each: impl FnMut(Box<Record<B>>)) {
        let from = if bytes == 0 { 0 } else { crate::heap::size_class::bin_of(bytes) };
        for bin in from..BINS {
            if self.filled[bin / 64] & (1 << (bin % 64)) == 0 {
                continue;
            }
            // A bin's smallest blocks may be too small; in a rounding bin all are of one size.
            let mixed = bin == from && bytes > ROUNDED_MAX;
            let (mut taken, mut kept) = (None, None);
            let mut rest = self.bins[bin].take();
            while let Some(mut record) = rest {
                rest = record.next.take();
                let side = if mixed && record.bytes < bytes { &mut kept } else { &mut taken };
                record.next = side.take();
                *side = Some(record);
            }
            // Both sides are the oldest first now; what stays goes back in its order.
            while let Some(mut record) = kept {
                kept = record.next.take();
                record.next = self.bins[bin].take();
                self.bins[bin] = Some(record);
            }
            if self.bins[bin].is_none() {
                self.filled[bin / 64] &= !(1 << (bin % 64));
            }
            while let Some(mut record) = taken {
                taken = record.next.take();
                each(record);
            }
        }
    }

    /// Whether a block of at least `bytes` bytes may be on the list.
    pub(crate) fn may_hold(&self, bytes: u64) -> bool {
        let from = crate::heap::size_class::bin_of(bytes);
        let first = self.filled[from / 64] & (u64::MAX << (from % 64));
        first != 0 || self.filled[from / 64 + 1..].iter().any(|word| *word != 0)
    }
}

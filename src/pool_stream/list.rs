//! The stream list: whole blocks that wait for nothing but their own stream, by bin.
//!
//! Each bin is a stack in one piece of memory: the most recently freed block goes first, since it is
//! the likeliest to be in the device's cache, and clearing thousands of buffers writes forward. A bin
//! has room for every block that it may get back: room is made when a block comes to the stream by the
//! long way, so that neither a hit nor a free ever asks the host's allocator.

use crate::heap::BlockId;
use crate::heap::size_class::{BINS, Grains, ROUNDED_MAX, Rounded, bin_of};
use crate::order::Epoch;

/// How many blocks of a bin are looked at for one of the exact size. Above 1 MiB a bin holds blocks of
/// several sizes, and a block serves only its own size: the heap splits, a list does not.
const LOOKS: usize = 8;
/// Bins are allocated this many at a time, when the first is needed.
const GROUP: usize = 8;

const WORDS: usize = BINS.div_ceil(64);

/// A free block on a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeBlock {
    pub(crate) address: u64,
    /// The epoch of the stream that was open when it was freed.
    pub(crate) epoch: Epoch,
    pub(crate) block: BlockId,
    pub(crate) size: Grains,
}

#[derive(Debug, Default)]
struct Bin {
    blocks: Vec<FreeBlock>,
    /// Blocks of this bin that are here, or in buffers of the stream and will come back here.
    owned: usize,
}

/// The free blocks of one stream.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct StreamList {
    /// Which bins are not empty.
    filled: [u64; WORDS],
    groups: [Option<Box<[Bin; GROUP]>>; BINS.div_ceil(GROUP)],
}

impl StreamList {
    pub(super) fn new() -> StreamList {
        StreamList { filled: [0; WORDS], groups: [const { None }; BINS.div_ceil(GROUP)] }
    }

    /// Takes a block of exactly the rounded size.
    #[inline]
    pub(super) fn pop(&mut self, size: Rounded, align: u64) -> Option<FreeBlock> {
        let bin = usize::from(size.bin);
        let blocks = &mut self.groups[bin / GROUP].as_mut()?[bin % GROUP].blocks;
        let wanted = Grains::of(size.bytes);
        let fits = |free: &FreeBlock| free.size == wanted && free.address & (align - 1) == 0;
        let free = match blocks.last() {
            Some(free) if fits(free) => blocks.pop()?,
            Some(_) => {
                let from = blocks.len().saturating_sub(LOOKS);
                let at = from + blocks[from..].iter().rposition(fits)?;
                blocks.remove(at)
            }
            None => return None,
        };
        prefetch(blocks.as_ptr().wrapping_add(blocks.len()).wrapping_sub(AHEAD));
        if blocks.is_empty() {
            self.filled[bin / 64] &= !(1 << (bin % 64));
        }
        Some(free)
    }

    /// Puts a block back that came from this stream. There is room, because it was made when the block
    /// came.
    #[inline]
    pub(super) fn push(&mut self, bin: u8, free: FreeBlock) {
        let bin = usize::from(bin);
        let blocks = &mut self.bin(bin).blocks;
        let first = blocks.is_empty();
        let room = blocks.spare_capacity_mut().first_mut();
        room.expect("room was made for a block when it came to its stream").write(free);
        // SAFETY: the element behind the last was just written, and is within the capacity.
        unsafe { blocks.set_len(blocks.len() + 1) };
        prefetch(blocks.as_ptr().wrapping_add(blocks.len()).wrapping_add(AHEAD));
        if first {
            self.filled[bin / 64] |= 1 << (bin % 64);
        }
    }

    /// A block of this bin comes to the stream by the long way; or says how large the vector must be
    /// that [`exchange`](Self::exchange) brings first, made outside the lock.
    pub(super) fn expect(&mut self, bin: u8) -> Result<(), usize> {
        let bin = usize::from(bin);
        let own = &mut self.groups[bin / GROUP].get_or_insert_default()[bin % GROUP];
        let needed = own.owned + 1;
        if own.blocks.capacity() < needed {
            return Err(needed.next_power_of_two().max(4));
        }
        own.owned = needed;
        Ok(())
    }

    /// Moves a bin's blocks into a larger vector, and gives the old one back.
    pub(super) fn exchange(&mut self, bin: u8, mut larger: Vec<FreeBlock>) -> Vec<FreeBlock> {
        let own = self.bin(usize::from(bin));
        if larger.capacity() > own.blocks.capacity() {
            larger.append(&mut own.blocks);
            std::mem::swap(&mut larger, &mut own.blocks);
        }
        larger
    }

    /// A block of this bin will not come back to this stream.
    pub(super) fn forgo(&mut self, bin: u8) {
        self.bin(usize::from(bin)).owned -= 1;
    }

    /// Takes every block of at least `bytes` bytes, those of each bin in the order of their frees.
    pub(super) fn drain(&mut self, bytes: u64, mut each: impl FnMut(FreeBlock)) {
        let from = if bytes == 0 { 0 } else { bin_of(bytes) };
        for bin in from..BINS {
            if self.filled[bin / 64] & (1 << (bin % 64)) == 0 {
                continue;
            }
            let own = self.bin(bin);
            let (before, blocks) = (own.blocks.len(), &mut own.blocks);
            // A bin's smallest blocks may be too small; in a rounding bin all are of one size.
            if bin == from && bytes > ROUNDED_MAX {
                blocks.retain(|free| {
                    let stays = free.size.bytes() < bytes;
                    if !stays {
                        each(*free);
                    }
                    stays
                });
            } else {
                blocks.drain(..).for_each(&mut each);
            }
            own.owned -= before - own.blocks.len();
            if own.blocks.is_empty() {
                self.filled[bin / 64] &= !(1 << (bin % 64));
            }
        }
    }

    /// Whether a block of at least `bytes` bytes may be on the list.
    pub(super) fn may_hold(&self, bytes: u64) -> bool {
        let from = bin_of(bytes);
        let first = self.filled[from / 64] & (u64::MAX << (from % 64));
        first != 0 || self.filled[from / 64 + 1..].iter().any(|word| *word != 0)
    }

    #[inline]
    fn bin(&mut self, bin: usize) -> &mut Bin {
        let group = self.groups[bin / GROUP].as_mut();
        &mut group.expect("a bin that blocks come back to is there")[bin % GROUP]
    }
}

/// How many blocks ahead of a stack's top memory is fetched: a clear goes round many streams, so that
/// the top of each has left the cache when its turn comes.
const AHEAD: usize = 2;

/// Fetches a slot that is likely to be used soon.
#[inline]
fn prefetch(slot: *const FreeBlock) {
    // SAFETY: a prefetch is a hint: it reads nothing that the program can see, and faults on no address.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(slot.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = slot;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::heap::size_class::round;

    fn free(address: u64, bytes: u64) -> FreeBlock {
        FreeBlock { address, size: Grains::of(bytes), epoch: Epoch::FIRST, block: BlockId::LOWEST }
    }

    /// A block of this size comes to the list by the long way, and is freed.
    fn put(list: &mut StreamList, address: u64, bytes: u64) {
        let bin = round(bytes).expect("not too large").bin;
        if let Err(capacity) = list.expect(bin) {
            list.exchange(bin, Vec::with_capacity(capacity));
            list.expect(bin).expect("there is room now");
        }
        list.push(bin, free(address, bytes));
    }

    #[test]
    fn the_most_recently_freed_block_of_the_exact_size_goes_first() {
        let mut list = StreamList::new();
        let (exact, other) = (3 << 20, (3 << 20) + 256);
        put(&mut list, 1 << 30, exact);
        put(&mut list, 2 << 30, exact);
        put(&mut list, 3 << 30, other);
        let mut pop = |bytes| {
            list.pop(round(bytes).expect("not too large"), 256).map(|free| free.address >> 30)
        };
        assert_eq!(
            [pop(exact), pop(exact), pop(exact), pop(other)],
            [Some(2), Some(1), None, Some(3)]
        );
    }

    #[test]
    fn an_aligned_block_is_found_behind_others() {
        let mut list = StreamList::new();
        put(&mut list, 1 << 20, 512);
        put(&mut list, (1 << 20) + 512, 512);
        let size = round(512).expect("not too large");
        assert_eq!(list.pop(size, 4096).map(|free| free.address), Some(1 << 20));
        assert!(list.pop(size, 4096).is_none());
    }

    #[test]
    fn a_drain_takes_what_is_large_enough_in_the_order_of_frees() {
        let mut list = StreamList::new();
        let sizes = [2048, 5 << 20, (5 << 20) + 512, 5 << 20, 1 << 30];
        for (at, bytes) in (1_u64..).zip(sizes) {
            put(&mut list, at << 40, bytes);
        }
        let mut taken = Vec::new();
        list.drain((5 << 20) + 256, |free| taken.push(free.address >> 40));
        assert_eq!(taken, [3, 5]);
        assert!(list.may_hold(5 << 20) && !list.may_hold((1 << 30) - 1));
        list.drain(0, |free| taken.push(free.address >> 40));
        assert_eq!(taken, [3, 5, 1, 2, 4]);
        assert!(!list.may_hold(1));
    }

    #[test]
    fn a_block_that_comes_back_always_finds_room() {
        let mut list = StreamList::new();
        let size = round(512).expect("not too large");
        let bin = size.bin;
        for _ in 0..100 {
            if let Err(capacity) = list.expect(bin) {
                list.exchange(bin, Vec::with_capacity(capacity));
                list.expect(bin).expect("there is room now");
            }
        }
        let room = list.bin(usize::from(bin)).blocks.capacity();
        for at in 0..100 {
            list.push(bin, free(at << 20, 512));
        }
        for _ in 0..100 {
            list.pop(size, 256).expect("100 blocks are there");
        }
        (0..99).for_each(|at| list.push(bin, free(at << 20, 512)));
        list.forgo(bin);
        assert_eq!(list.bin(usize::from(bin)).blocks.capacity(), room);
    }
}

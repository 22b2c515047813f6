//! The stream list: whole blocks that wait for nothing but their own stream, by bin.
//!
//! Each bin is a stack in one piece of memory: the most recently freed block goes first, since it is
//! the likeliest to be in the device's cache, and clearing thousands of buffers writes forward. A bin
//! has room for every block that it may get back: room is made when a block comes to the stream by the
//! long way, so that neither a hit nor a free ever asks the host's allocator.

use crate::heap::BlockId;
use crate::heap::size_class::{BINS, Grains, ROUNDED_BINS, ROUNDED_MAX, Rounded, bin_of};
use crate::order::ShortEpoch;
use crate::prefetch::prefetch;

/// How many blocks of a bin are looked at for one that fits. Above 1 MiB a bin holds blocks of several
/// sizes, and a block serves only its own size: the heap splits, a list does not.
const LOOKS: usize = 8;

const WORDS: usize = BINS.div_ceil(64);

/// A free block on a list. A clear writes thousands of these: they are kept small.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeBlock {
    pub(crate) address: u64,
    pub(crate) block: BlockId,
    /// The epoch of the stream that was open when it was freed.
    pub(crate) epoch: ShortEpoch,
}

impl FreeBlock {
    #[inline]
    fn is_aligned(&self, align: u64) -> bool {
        self.address & (align - 1) == 0
    }
}

#[derive(Debug)]
struct Bin {
    blocks: Vec<FreeBlock>,
    /// Blocks of this bin that are here, or in buffers of the stream and will come back here.
    owned: usize,
}

/// The free blocks of one stream. The bins lie in it, not behind a pointer: after the lock, a push and a
/// pop wait for as few loads that depend on each other as can be. The map comes first, on the lock's
/// line or the next.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct StreamList {
    /// Which bins are not empty.
    filled: [u64; WORDS],
    bins: [Bin; BINS],
    /// The sizes of the blocks in each bin that holds several sizes.
    sizes: [Vec<Grains>; BINS - ROUNDED_BINS],
}

/// Memory for a bin's blocks.
#[derive(Debug)]
pub(crate) struct Room {
    blocks: Vec<FreeBlock>,
    sizes: Vec<Grains>,
}

impl Room {
    /// Room for so many blocks of a bin.
    pub(super) fn new(bin: u8, blocks: usize) -> Room {
        let sizes = if usize::from(bin) < ROUNDED_BINS { 0 } else { blocks };
        Room { blocks: Vec::with_capacity(blocks), sizes: Vec::with_capacity(sizes) }
    }
}

impl StreamList {
    pub(super) fn new() -> StreamList {
        StreamList {
            filled: [0; WORDS],
            bins: [const { Bin { blocks: Vec::new(), owned: 0 } }; BINS],
            sizes: [const { Vec::new() }; BINS - ROUNDED_BINS],
        }
    }

    /// Takes a block of exactly the rounded size, in the usual case the one that was freed last: its address and
    /// its name. Each is read as it was written: what a load puts together of two stores waits for both.
    #[inline]
    pub(super) fn pop(&mut self, size: Rounded, align: u64) -> Option<(u64, BlockId)> {
        let bin = usize::from(size.bin);
        let blocks = &mut self.bins[bin].blocks;
        let last = blocks.last()?;
        let free = (last.address, last.block);
        let aligned = last.is_aligned(align);
        let sizes = bin.checked_sub(ROUNDED_BINS).map(|at| &mut self.sizes[at]);
        let size_of_last = sizes.as_ref().map(|sizes| sizes.last().copied());
        let fits = size_of_last.is_none_or(|last| last == Some(Grains::of(size.bytes)));
        if !fits || !aligned {
            let (address, block) = self.pop_behind(size, align);
            return (!block.is_none()).then_some((address, block));
        }
        blocks.truncate(blocks.len() - 1);
        if let Some(sizes) = sizes {
            sizes.truncate(sizes.len() - 1);
        }
        prefetch(blocks.as_ptr().wrapping_add(blocks.len()).wrapping_sub(1));
        self.see_popped(bin);
        Some(free)
    }

    /// The same where the last one does not fit: among those just before it. None is a block without a name, so
    /// that the answer comes in registers.
    #[cold]
    #[inline(never)]
    fn pop_behind(&mut self, size: Rounded, align: u64) -> (u64, BlockId) {
        let bin = usize::from(size.bin);
        let blocks = &mut self.bins[bin].blocks;
        let wanted = Grains::of(size.bytes);
        let sizes = bin.checked_sub(ROUNDED_BINS).map(|at| &mut self.sizes[at]);
        let fits = |at: &usize| {
            blocks[*at].is_aligned(align) && sizes.as_ref().is_none_or(|own| own[*at] == wanted)
        };
        let at = (blocks.len().saturating_sub(LOOKS)..blocks.len()).rev().find(fits);
        let Some(at) = at else { return (0, BlockId::NONE) };
        if let Some(sizes) = sizes {
            sizes.remove(at);
        }
        let free = blocks.remove(at);
        self.see_popped(bin);
        (free.address, free.block)
    }

    /// A block was taken from a bin.
    #[inline]
    fn see_popped(&mut self, bin: usize) {
        if self.bins[bin].blocks.is_empty() {
            self.filled[bin / 64] &= !(1 << (bin % 64));
        }
    }

    /// Puts a block back that came from this stream. There is room, because it was made when the block
    /// came.
    #[inline]
    pub(super) fn push(&mut self, bin: u8, free: FreeBlock, size: Grains) {
        let bin = usize::from(bin);
        let blocks = &mut self.bins[bin].blocks;
        let first = blocks.is_empty();
        push_within(blocks, free);
        // The next one goes to the same line, or to one that has left the cache when this stream's turn
        // comes again.
        prefetch(blocks.as_ptr().wrapping_add(blocks.len()));
        if bin >= ROUNDED_BINS {
            push_within(&mut self.sizes[bin - ROUNDED_BINS], size);
        }
        if first {
            self.filled[bin / 64] |= 1 << (bin % 64);
        }
    }

    /// A block of this bin comes to the stream by the long way; or says for how many the room must be
    /// that [`exchange`](Self::exchange) brings first, made outside the lock.
    pub(super) fn expect(&mut self, bin: u8) -> Result<(), usize> {
        let own = &mut self.bins[usize::from(bin)];
        let needed = own.owned + 1;
        let sizes = usize::from(bin).checked_sub(ROUNDED_BINS).map(|at| self.sizes[at].capacity());
        if own.blocks.capacity().min(sizes.unwrap_or(usize::MAX)) < needed {
            return Err((needed + needed / 4).max(4));
        }
        own.owned = needed;
        Ok(())
    }

    /// Moves a bin's blocks into a larger room, and gives the old one back.
    pub(super) fn exchange(&mut self, bin: u8, mut larger: Room) -> Room {
        let own = &mut self.bins[usize::from(bin)].blocks;
        if larger.blocks.capacity() > own.capacity() {
            larger.blocks.append(own);
            std::mem::swap(&mut larger.blocks, own);
        }
        if let Some(at) = usize::from(bin).checked_sub(ROUNDED_BINS)
            && larger.sizes.capacity() > self.sizes[at].capacity()
        {
            larger.sizes.append(&mut self.sizes[at]);
            std::mem::swap(&mut larger.sizes, &mut self.sizes[at]);
        }
        larger
    }

    /// A block of this bin will not come back to this stream.
    pub(super) fn forgo(&mut self, bin: u8) {
        self.bins[usize::from(bin)].owned -= 1;
    }

    /// Takes every block of at least `bytes` bytes, those of each bin in the order of their frees.
    pub(super) fn drain(&mut self, bytes: u64, mut each: impl FnMut(FreeBlock)) {
        let from = if bytes == 0 { 0 } else { bin_of(bytes) };
        for bin in self.filled_from(from) {
            let own = &mut self.bins[bin];
            let before = own.blocks.len();
            let sizes = bin.checked_sub(ROUNDED_BINS).map(|at| &mut self.sizes[at]);
            match sizes {
                // A bin's smallest blocks may be too small.
                Some(sizes) if bin == from && bytes > ROUNDED_MAX => {
                    let mut at = 0;
                    own.blocks.retain(|free| {
                        let stays = sizes[at].bytes() < bytes;
                        at += 1;
                        if !stays {
                            each(*free);
                        }
                        stays
                    });
                    sizes.retain(|size| size.bytes() < bytes);
                }
                sizes => {
                    own.blocks.drain(..).for_each(&mut each);
                    if let Some(sizes) = sizes {
                        sizes.clear();
                    }
                }
            }
            own.owned -= before - own.blocks.len();
            if own.blocks.is_empty() {
                self.filled[bin / 64] &= !(1 << (bin % 64));
            }
        }
    }

    /// How many blocks are on it that may have `bytes` bytes or more.
    pub(super) fn count(&self, bytes: u64) -> usize {
        let from = if bytes == 0 { 0 } else { bin_of(bytes) };
        self.filled_from(from).map(|bin| self.bins[bin].blocks.len()).sum()
    }

    /// All blocks, bin by bin.
    pub(super) fn iter(&self) -> impl Iterator<Item = &FreeBlock> {
        self.filled_from(0).flat_map(|bin| &self.bins[bin].blocks)
    }

    /// The bins that are not empty, from one on.
    fn filled_from(&self, from: usize) -> impl Iterator<Item = usize> + use<> {
        let filled = self.filled;
        let mut bin = from;
        std::iter::from_fn(move || {
            while bin < WORDS * 64 {
                let word = filled[bin / 64] >> (bin % 64);
                if word != 0 {
                    bin += word.trailing_zeros() as usize + 1;
                    return Some(bin - 1);
                }
                bin = (bin / 64 + 1) * 64;
            }
            None
        })
    }

    /// Whether a block of at least `bytes` bytes may be on the list.
    pub(super) fn may_hold(&self, bytes: u64) -> bool {
        self.filled_from(bin_of(bytes)).next().is_some()
    }
}

/// Pushes an element for which there is room.
#[inline]
fn push_within<T>(elements: &mut Vec<T>, element: T) {
    let room = elements.spare_capacity_mut().first_mut();
    room.expect("room was made for a block when it came to its stream").write(element);
    // SAFETY: the element behind the last was just written, and is within the capacity.
    unsafe { elements.set_len(elements.len() + 1) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::heap::size_class::round;
    use crate::order::Epoch;

    fn free(address: u64) -> FreeBlock {
        FreeBlock { address, block: BlockId::LOWEST, epoch: Epoch::FIRST.short() }
    }

    /// A block of this size comes to the list by the long way, and is freed.
    fn put(list: &mut StreamList, address: u64, bytes: u64) {
        let bin = round(bytes).expect("not too large").bin;
        if let Err(capacity) = list.expect(bin) {
            list.exchange(bin, Room::new(bin, capacity));
            list.expect(bin).expect("there is room now");
        }
        list.push(bin, free(address), Grains::of(bytes));
    }

    #[test]
    fn the_most_recently_freed_block_of_the_exact_size_goes_first() {
        let mut list = StreamList::new();
        let (exact, other) = (3 << 20, (3 << 20) + 256);
        put(&mut list, 1 << 30, exact);
        put(&mut list, 2 << 30, exact);
        put(&mut list, 3 << 30, other);
        let mut pop = |bytes| {
            list.pop(round(bytes).expect("not too large"), 256).map(|(address, _)| address >> 30)
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
        assert_eq!(list.pop(size, 4096).map(|(address, _)| address), Some(1 << 20));
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
                list.exchange(bin, Room::new(bin, capacity));
                list.expect(bin).expect("there is room now");
            }
        }
        let room = list.bins[usize::from(bin)].blocks.capacity();
        for at in 0..100 {
            list.push(bin, free(at << 20), Grains::of(512));
        }
        for _ in 0..100 {
            list.pop(size, 256).expect("100 blocks are there");
        }
        (0..99).for_each(|at| list.push(bin, free(at << 20), Grains::of(512)));
        list.forgo(bin);
        assert_eq!(list.bins[usize::from(bin)].blocks.capacity(), room);
    }
}

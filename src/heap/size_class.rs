//! Sizes: what a request is rounded to, and the bin that a stream list keeps it in.

use crate::fault::seeded;

/// Every block is a multiple of this many bytes, and aligned to it.
pub(crate) const GRAIN: u64 = 256;
/// Up to here a request is rounded up to a class, by 12.5 % at most; above it, to the grain only.
pub(crate) const ROUNDED_MAX: u64 = 1 << 20;
/// The largest request, in bytes: 1 TiB, more than any device has.
pub(crate) const LARGEST: u64 = 1 << LARGEST_LOG;

const LARGEST_LOG: u32 = 40;
const GRAIN_LOG: u32 = GRAIN.trailing_zeros();
const ROUNDED_LOG: u32 = ROUNDED_MAX.trailing_zeros();
/// Classes to a doubling, where a class rounds.
const FINE: u64 = 8;
/// Bins to a doubling, above.
const COARSE: u64 = 4;
/// Up to here each multiple of the grain is a class: a finer step would not be one.
const LINEAR_LOG: u32 = GRAIN_LOG + FINE.trailing_zeros();
const ROUNDED_CLASSES: u64 = FINE + (ROUNDED_LOG - LINEAR_LOG) as u64 * FINE;

/// How many bins there are.
pub(crate) const BINS: usize =
    (ROUNDED_CLASSES + (LARGEST_LOG - ROUNDED_LOG) as u64 * COARSE) as usize;

/// The first so many bins hold blocks of one size each; the others hold several.
pub(crate) const ROUNDED_BINS: usize = ROUNDED_CLASSES as usize;

const _: () = assert!(BINS <= 192, "a stream list's bitmap has three words");

/// A block's size: whole grains, one at least, in half the space that bytes would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grains {
    /// One less than there are.
    above_one: u32,
}

const _: () = assert!(LARGEST / GRAIN - 1 <= u32::MAX as u64, "every size is a number of grains");

impl Grains {
    /// The size of a block of `bytes` bytes: a multiple of the grain, from one grain to the largest
    /// request.
    #[inline]
    pub(crate) fn of(bytes: u64) -> Grains {
        debug_assert!(bytes.is_multiple_of(GRAIN) && (GRAIN..=LARGEST).contains(&bytes));
        Grains { above_one: (bytes / GRAIN - 1) as u32 }
    }

    #[inline]
    pub(crate) fn bytes(self) -> u64 {
        (u64::from(self.above_one) + 1) * GRAIN
    }
}

/// A request, rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounded {
    /// The size of the block that serves it, in bytes.
    pub(crate) bytes: u64,
    /// The bin that such blocks are kept in.
    pub(crate) bin: u8,
}

/// How far an address lies below the next one that is aligned to `align`, a power of two. Each free block that
/// is looked at is asked this: no division.
#[inline]
pub(crate) fn padding(address: u64, align: u64) -> u64 {
    address.wrapping_neg() & (align - 1)
}

/// Rounds a request of `len` bytes, or says by `None` that it is too large. Zero has no block, and
/// must not be asked.
#[inline]
pub(crate) fn round(len: u64) -> Option<Rounded> {
    debug_assert!(len > 0, "a request of no bytes has no block");
    if len > LARGEST && !seeded!(RoundingWraps) {
        return None;
    }
    if len <= 1 << LINEAR_LOG {
        let grains = len.div_ceil(GRAIN);
        return Some(Rounded { bytes: grains * GRAIN, bin: (grains - 1) as u8 });
    }
    // Sizes in (2^log, 2^(log + 1)] form one doubling.
    let log = u64::BITS - 1 - (len - 1).leading_zeros();
    let within = len - (1 << log);
    if len <= ROUNDED_MAX {
        let step_log = log - FINE.trailing_zeros();
        let steps = (within + (1 << step_log) - 1) >> step_log;
        let bin = FINE + u64::from(log - LINEAR_LOG) * FINE + steps - 1;
        Some(Rounded { bytes: (1 << log) + (steps << step_log), bin: bin as u8 })
    } else {
        let step_log = log - COARSE.trailing_zeros();
        let steps = (within + (1 << step_log) - 1) >> step_log;
        let bin = ROUNDED_CLASSES + u64::from(log - ROUNDED_LOG) * COARSE + steps - 1;
        Some(Rounded { bytes: len.next_multiple_of(GRAIN), bin: bin as u8 })
    }
}

/// The bin of a block of `bytes` bytes, which need not be a class's size: the lowest bin whose every
/// size is at least this, or that this size belongs to.
#[inline]
pub(crate) fn bin_of(bytes: u64) -> usize {
    round(bytes).map_or(BINS - 1, |rounded| usize::from(rounded.bin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(len: u64) -> u64 {
        round(len).expect("not too large").bytes
    }

    #[test]
    fn h63_small_sizes_and_the_edges_of_the_first_classes() {
        let sizes: Vec<u64> = [1, 255, 256, 257, 2048, 2049, 2304, 2305].map(rounded).to_vec();
        assert_eq!(sizes, [256, 256, 256, 512, 2048, 2304, 2304, 2560]);
    }

    #[test]
    fn h63_every_class_and_its_neighbours_round_by_an_eighth_at_most() {
        let mut bin = 0;
        let mut len = 1;
        while len <= ROUNDED_MAX {
            let class = round(len).expect("not too large");
            assert_eq!(usize::from(class.bin), bin, "bins follow each other without a gap");
            assert_eq!(class.bytes % GRAIN, 0);
            assert_eq!(round(class.bytes), Some(class), "a class's size is of that class");
            assert_eq!(rounded(class.bytes - 1), class.bytes);
            if len > 2048 {
                assert!(class.bytes * 8 <= len * 9, "{len} became {}", class.bytes);
            }
            bin += 1;
            len = class.bytes + 1;
        }
        assert_eq!((bin, len), (80, ROUNDED_MAX + 1), "1 MiB is the last class that rounds");
    }

    #[test]
    fn h63_large_sizes_are_exact_to_the_grain() {
        for len in [ROUNDED_MAX + 1, 2_762_244, (1 << 30) + 1, LARGEST - 1, LARGEST] {
            let exact = rounded(len);
            assert!(exact >= len && exact - len < GRAIN, "{len} became {exact}");
        }
        assert_eq!(bin_of(LARGEST), BINS - 1);
        let mut last = 0;
        for step in 0..4 * 20 {
            let bin = bin_of(((1_u64 << 20) << (step / 4)) * (5 + step % 4) / 4);
            assert!(bin > last, "bins rise with the size");
            last = bin;
        }
    }

    #[test]
    fn h63_too_large_is_said_and_never_wraps() {
        for below in 0..=512_u64 {
            assert_eq!(round(u64::MAX - below), None);
        }
        assert_eq!(round(1 << 63), None);
        assert_eq!(round(LARGEST + 1), None);
    }
}

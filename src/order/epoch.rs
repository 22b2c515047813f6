//! The two numbers that order is told in.

use crate::sync::host::{AtomicU64, Ordering};

/// One stream's identity in its pool: numbered process-wide, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TimelineId(u64);

impl TimelineId {
    /// The number that no timeline has: it sorts before all of them.
    pub(crate) const LOWEST: TimelineId = TimelineId(0);

    /// A number that no timeline of this process had before.
    pub(crate) fn fresh() -> TimelineId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only that no two callers get the same number matters.
        TimelineId(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The lowest number above this one.
    pub(crate) fn next(self) -> TimelineId {
        TimelineId(self.0 + 1)
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

/// The lower half of an epoch's number, for where many are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortEpoch(u32);

/// The number of an interval on one timeline. The first is 1; 0 is before every use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Epoch(u64);

impl Epoch {
    /// Before every use: always completed.
    pub(crate) const NONE: Epoch = Epoch(0);
    /// The open epoch of a new timeline.
    pub(crate) const FIRST: Epoch = Epoch(1);
    /// After every epoch.
    pub(crate) const MAX: Epoch = Epoch(u64::MAX);

    /// The epoch that opens when this one closes.
    pub(crate) fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }

    /// Its lower half, to be [`widened`](Self::widened) while the same epoch, or a later one, is open.
    #[inline]
    pub(crate) fn short(self) -> ShortEpoch {
        ShortEpoch(self.0 as u32)
    }

    /// The latest epoch up to `self` that `short` may be the lower half of. Should it be so old that there
    /// are several, it is taken for a later one than it was: to wait for that is to wait for both.
    pub(crate) fn widened(self, short: ShortEpoch) -> Epoch {
        Epoch(self.0 - u64::from((self.0 as u32).wrapping_sub(short.0)))
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }

    pub(crate) fn from_u64(number: u64) -> Epoch {
        Epoch(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_epoch_is_widened_to_itself_or_a_later_one() {
        for (then, now, widened) in [
            (1, 1, 1),
            (1, 1 << 32, 1),
            ((1 << 32) - 1, (1 << 32) + 5, (1 << 32) - 1),
            (7 << 32, (8 << 32) - 1, 7 << 32),
            (5, (3 << 32) + 6, (3 << 32) + 5),
            (6, (3 << 32) + 5, (2 << 32) + 6),
        ] {
            assert_eq!(Epoch(now).widened(Epoch(then).short()), Epoch(widened));
            assert!(then <= widened && widened <= now);
        }
    }
}

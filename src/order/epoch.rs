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

    pub(crate) fn get(self) -> u64 {
        self.0
    }

    pub(crate) fn from_u64(number: u64) -> Epoch {
        Epoch(number)
    }
}

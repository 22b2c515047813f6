//! What a pool holds and has done.

mod display;

use crate::backend::Backend;
use crate::pool::{DriverCalls, Step};
use crate::pool_stream::core::StreamState;
use crate::sync::host::{AtomicU64, Ordering};

/// A pool's account at one moment. All sizes are in bytes.
///
/// At rest, `reserved` = `in_use` + `free_clean` + `free_pending` + `quarantined`; while other threads
/// are in calls also + `in_transit`.
///
/// `Display` makes a table of it, sizes in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Taken from the device and not given back, with what is just being taken.
    pub reserved: u64,
    /// The most that the device has given since the start or the last reset. Exact.
    pub peak_reserved: u64,
    /// In buffers, as the pool rounds them.
    pub in_use: u64,
    /// The most that `in_use` has been, as seen when the pool grew and when it was asked: a hit shares
    /// no counter between streams.
    pub peak_in_use: u64,
    /// Free, and waiting for nothing: any stream may take it, and its memory may get behind other
    /// addresses.
    pub free_clean: u64,
    /// Free, and waiting for work on some stream; on stream lists, for their own stream.
    pub free_pending: u64,
    /// The part of `free_pending` that is on stream lists.
    pub on_lists: u64,
    /// The largest free block that is not on a stream list.
    pub largest_free: u64,
    /// On the way between the pool and the device, or between two streams.
    pub in_transit: u64,
    /// Out of reach until a synchronize succeeds.
    pub quarantined: u64,
    /// Live buffers.
    pub live: u64,
    /// Registered streams.
    pub streams: u64,
    /// Granules taken from the device.
    pub granules: u64,
    /// Allocations that the stream's own list served.
    pub hits: u64,
    /// Allocations that it did not serve.
    pub misses: u64,
    /// Buffers freed.
    pub frees: u64,
    /// Misses served by a free block that needed no wait.
    pub covered: u64,
    /// Misses served after asking whether work had finished.
    pub asked: u64,
    /// Misses served after gathering every list.
    pub gathered: u64,
    /// Misses served by a wait on an event of a moment that the program chose.
    pub early_steals: u64,
    /// Misses served by a wait on what another stream had queued.
    pub late_steals: u64,
    /// Misses served after a wait of the host for all that had been submitted.
    pub synchronized: u64,
    /// Misses served by taking memory from the device, or by free memory from behind other addresses.
    pub growths: u64,
    /// Granules of free memory that were mapped at a further address, where they were wanted.
    pub remapped: u64,
    /// Granules of free memory that were of use again at an address where they still were mapped: that
    /// takes no driver call.
    pub revived: u64,
    /// Misses that had to climb the out-of-memory ladder.
    pub ladders: u64,
    /// Errors that no `Result` could tell.
    pub stray_errors: u64,
    /// Driver calls made.
    pub calls: DriverCalls,
}

/// One stream's account at one moment, exact. All sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StreamStats {
    /// In buffers whose home the stream is, as the pool rounds them.
    pub in_use: u64,
    /// The most that `in_use` has been since the start or the last
    /// [`reset_peak`](crate::StreamPool::reset_peak).
    pub peak_in_use: u64,
    /// Live buffers whose home the stream is.
    pub live: u64,
    /// Allocations that the stream's own list served.
    pub hits: u64,
    /// Allocations that it did not serve.
    pub misses: u64,
}

impl StreamStats {
    pub(crate) fn of<B: Backend>(state: &StreamState<B>) -> StreamStats {
        let counters = &state.counters;
        StreamStats {
            in_use: state.in_use(),
            peak_in_use: counters.peak_in_use,
            live: state.live(),
            hits: state.hits(),
            misses: counters.misses,
        }
    }
}

/// What streams that have left have counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Past {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

/// How misses were served.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    covered: AtomicU64,
    asked: AtomicU64,
    gathered: AtomicU64,
    early_steals: AtomicU64,
    late_steals: AtomicU64,
    synchronized: AtomicU64,
    growths: AtomicU64,
    ladders: AtomicU64,
}

impl Steps {
    pub(crate) fn count(&self, step: Step) {
        let counter = match step {
            Step::Covered => &self.covered,
            Step::Ask => &self.asked,
            Step::Gather => &self.gathered,
            Step::StealEarly => &self.early_steals,
            Step::StealLate => &self.late_steals,
            Step::Synchronize => &self.synchronized,
            Step::Grow(_) => &self.growths,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_ladder(&self) {
        self.ladders.fetch_add(1, Ordering::Relaxed);
    }
}

impl Stats {
    pub(crate) fn add_stream<B: Backend>(&mut self, state: &StreamState<B>) {
        let in_use = state.in_use();
        self.in_use += in_use;
        self.on_lists = self.on_lists.saturating_sub(in_use);
        self.live += state.live();
        self.hits += state.hits();
        self.misses += state.counters.misses;
    }

    pub(crate) fn finish(&mut self, streams: u64, calls: DriverCalls, steps: &Steps, stray: u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.free_pending += self.on_lists;
        self.frees = (self.hits + self.misses).saturating_sub(self.live);
        self.peak_in_use = self.peak_in_use.max(self.in_use);
        self.streams = streams;
        self.covered = read(&steps.covered);
        self.asked = read(&steps.asked);
        self.gathered = read(&steps.gathered);
        self.early_steals = read(&steps.early_steals);
        self.late_steals = read(&steps.late_steals);
        self.synchronized = read(&steps.synchronized);
        self.growths = read(&steps.growths);
        self.ladders = read(&steps.ladders);
        self.stray_errors = stray;
        self.calls = calls;
    }
}

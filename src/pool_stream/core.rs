//! A registered stream as the pool sees it: its lock, its counts, its epochs, its list.

use std::collections::BTreeMap;

use super::list::StreamList;
use super::record::{Home, Record};
use crate::backend::{Backend, StreamIdentity};
use crate::heap::size_class::Rounded;
use crate::order::{Closed, Epoch, Frontier, Stamps, Taker, Timeline, TimelineId};
use crate::pool::{PoolCore, PooledEvent};
use crate::sync::{Arc, Lifetime, SpinLock};

/// One stream of one pool.
pub(crate) struct StreamCore<B: Backend> {
    /// The small lock. It guards sections of a few dozen instructions, and no driver call.
    pub(crate) state: SpinLock<StreamState<B>>,
    pub(crate) timeline: Arc<Timeline<PooledEvent<B>>>,
    pub(crate) pool: Arc<PoolCore<B>>,
    pub(crate) identity: StreamIdentity,
    /// Whether each free closes an epoch of its own.
    pub(crate) record_on_free: bool,
    /// There until the core is dropped.
    stream: Option<B::Stream>,
    lifetime: Lifetime,
}

/// What the small lock guards.
pub(crate) struct StreamState<B: Backend> {
    /// The reasons why an allocation or a free cannot take the short way; none is the usual case.
    pub(crate) detours: Detours,
    /// The epoch that frees are stamped with.
    pub(crate) open: Epoch,
    pub(crate) list: StreamList<B>,
    /// Buffers whose home this is, and entries of `use_on` sets that name it.
    pub(crate) live: u64,
    /// `PoolStream` handles, clones not counted.
    pub(crate) handles: u64,
    /// Driver calls in flight on this stream.
    pub(crate) pins: u64,
    /// Out-of-memory ladders that keep the list shut.
    pub(crate) shut: u64,
    pub(crate) frontier: Arc<Frontier>,
    /// The other streams of this stream's buffers, by address.
    pub(crate) sets: BTreeMap<u64, Vec<Home<B>>>,
    pub(crate) counters: StreamCounters,
}

/// What one stream counts, under its lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamCounters {
    /// Allocations from the list.
    pub(crate) hits: u64,
    /// Frees, by whichever way.
    pub(crate) frees: u64,
    /// Bytes in buffers whose home this is.
    pub(crate) in_use: u64,
    /// The most that `in_use` has been.
    pub(crate) peak_in_use: u64,
}

impl StreamCounters {
    #[inline]
    pub(crate) fn take(&mut self, bytes: u64) {
        self.in_use += bytes;
        self.peak_in_use = self.peak_in_use.max(self.in_use);
    }
}

/// A set of reasons for the long way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Detours(u8);

impl Detours {
    /// No handle is left: the last count that goes makes the stream ready to retire.
    pub(crate) const ORPHAN: Detours = Detours(1);
    /// A ladder keeps the list shut: frees go to the heap.
    pub(crate) const SHUT: Detours = Detours(2);
    /// Each free closes an epoch.
    pub(crate) const RECORD_ON_FREE: Detours = Detours(4);
    /// The pool is closed or its device lost: nothing is handed out.
    pub(crate) const CLOSED: Detours = Detours(8);
    /// The stream leaves the pool.
    pub(crate) const RETIRED: Detours = Detours(16);

    #[inline]
    pub(crate) fn none(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn has(self, detour: Detours) -> bool {
        self.0 & detour.0 != 0
    }

    pub(crate) fn set(&mut self, detour: Detours, on: bool) {
        if on {
            self.0 |= detour.0;
        } else {
            self.0 &= !detour.0;
        }
    }
}

impl<B: Backend> StreamState<B> {
    fn new(record_on_free: bool) -> StreamState<B> {
        let mut detours = Detours::default();
        detours.set(Detours::RECORD_ON_FREE, record_on_free);
        StreamState {
            detours,
            open: Epoch::FIRST,
            list: StreamList::new(),
            live: 0,
            handles: 0,
            pins: 0,
            shut: 0,
            frontier: Arc::default(),
            sets: BTreeMap::new(),
            counters: StreamCounters::default(),
        }
    }

    /// Closes the open epoch, in number: the event that is recorded after this covers it.
    pub(crate) fn advance(&mut self) -> Epoch {
        let epoch = self.open;
        self.open = epoch.next();
        epoch
    }

    /// Puts a free block on the list, stamped with the open epoch.
    #[inline]
    pub(crate) fn put(&mut self, mut record: Box<Record<B>>) {
        record.epoch = self.open;
        self.list.push(record);
    }

    /// Whether nothing keeps the stream in the pool.
    pub(crate) fn is_unused(&self) -> bool {
        self.handles == 0 && self.live == 0 && self.pins == 0
    }
}

impl<B: Backend> StreamCore<B> {
    pub(crate) fn new(
        pool: Arc<PoolCore<B>>,
        stream: B::Stream,
        identity: StreamIdentity,
        record_on_free: bool,
    ) -> StreamCore<B> {
        StreamCore {
            state: SpinLock::new(StreamState::new(record_on_free)),
            timeline: Arc::new(Timeline::new()),
            pool,
            identity,
            record_on_free,
            stream: Some(stream),
            lifetime: Lifetime::default(),
        }
    }

    pub(crate) fn id(&self) -> TimelineId {
        self.lifetime.touch();
        self.timeline.id()
    }

    /// The backend's stream.
    pub(crate) fn stream(&self) -> &B::Stream {
        self.lifetime.touch();
        self.stream.as_ref().expect("a stream is there until its core is dropped")
    }

    /// Takes a block of the list: the hit. No driver call, no host allocation, nothing to look up.
    #[inline]
    pub(crate) fn hit(&self, size: Rounded, align: u64, len: u64) -> Option<Box<Record<B>>> {
        let mut state = self.state.lock();
        if state.detours.has(Detours::CLOSED) {
            return None;
        }
        let mut record = state.list.pop(size, align)?;
        record.len = len;
        state.live += 1;
        state.counters.hits += 1;
        state.counters.take(record.bytes);
        Some(record)
    }

    /// What its next operation is ordered after.
    pub(crate) fn taker(&self) -> Taker {
        Taker { home: self.id(), frontier: Arc::clone(&self.state.lock().frontier) }
    }

    /// This stream now waits for a closed epoch of `timeline`. To be called after the wait returned.
    pub(crate) fn ordered_after(
        &self,
        timeline: TimelineId,
        closed: &Closed<PooledEvent<B>>,
    ) {
        let home = self.id();
        let mut state = self.state.lock();
        let frontier = Arc::make_mut(&mut state.frontier);
        frontier.join(&closed.frontier, home);
        if timeline != home {
            frontier.raise(timeline, closed.epoch);
        }
    }

    /// Counts one more driver call in flight, unless the stream leaves the pool.
    pub(crate) fn pin(&self) -> bool {
        let mut state = self.state.lock();
        if state.detours.has(Detours::RETIRED) {
            return false;
        }
        state.pins += 1;
        true
    }

    /// Counts one driver call less. The caller holds the core by other means.
    pub(crate) fn unpin(&self) {
        let mut state = self.state.lock();
        state.pins -= 1;
        self.note_if_unused(&state);
    }

    /// Leaves a note for the next call that may block when the last count has gone. Under the lock, so
    /// that the core cannot have been freed.
    #[inline]
    pub(crate) fn note_if_unused(&self, state: &StreamState<B>) {
        self.lifetime.touch();
        if state.detours.has(Detours::ORPHAN) && state.is_unused() {
            self.pool.note_unused(self.id());
        }
    }

    /// Moves the blocks of at least `bytes` bytes from the list through `each`, with their free points.
    pub(crate) fn drain(&self, bytes: u64, mut each: impl FnMut(Box<Record<B>>, Stamps)) {
        let id = self.id();
        let mut chain = None;
        {
            let mut state = self.state.lock();
            if state.list.bytes() == 0 || !state.list.may_hold(bytes.max(1)) {
                return;
            }
            // Chained through their own links, in reverse; `each` may be slow and runs unlocked.
            state.list.drain(bytes, |mut record| {
                record.next = chain.take();
                chain = Some(record);
            });
        }
        let mut oldest_first = None;
        while let Some(mut record) = chain {
            chain = record.next.take();
            record.next = oldest_first.take();
            oldest_first = Some(record);
        }
        while let Some(mut record) = oldest_first {
            oldest_first = record.next.take();
            let stamps = Stamps::of(id, record.epoch);
            each(record, stamps);
        }
    }
}

impl<B: Backend> Drop for StreamCore<B> {
    /// Lets the backend's stream go. The last reference is dropped outside every lock, by a call that
    /// may block.
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.pool.driver.release_stream(stream);
        }
    }
}

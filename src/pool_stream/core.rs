//! A registered stream as the pool sees it: its lock, its counts, its epochs, its list.

use std::collections::BTreeMap;

use crossbeam_utils::CachePadded;

use super::home::Home;
use super::list::{FreeBlock, Room, StreamList};
use super::tally::{Accounts, Tally};
use crate::backend::{Backend, StreamIdentity};
use crate::buffer::Buffer;
use crate::fault::seeded;
use crate::heap::BlockId;
use crate::heap::size_class::{Grains, Rounded};
use crate::history::{Action, Ring};
use crate::order::{Closed, Epoch, Frontier, Taker, Timeline, TimelineId};
use crate::pool::{PoolCore, PooledEvent};
use crate::prefetch::prefetch;
use crate::quiescent::ScopeId;
use crate::sync::{Arc, Lifetime, SpinLock};
use crate::tag::Tag;

/// One stream of one pool. In this order: what walks over all streams read lies next to the lines that they
/// read of the state, not behind its bins, some pages on.
#[repr(C)]
pub(crate) struct StreamCore<B: Backend> {
    pub(crate) id: TimelineId,
    pub(crate) timeline: Arc<Timeline<PooledEvent<B>>>,
    /// There until the core is dropped.
    stream: Option<B::Stream>,
    pub(crate) pool: Arc<PoolCore<B>>,
    pub(crate) identity: StreamIdentity,
    pub(super) lifetime: Lifetime,
    /// The small lock. It guards sections of a few dozen instructions, and no driver call. Streams are
    /// used by different threads: none shares a cache line with another's lock.
    pub(crate) state: CachePadded<SpinLock<StreamState<B>>>,
}

/// What the small lock guards. What a hit and a free touch comes first, and with the lock fills one cache
/// line; what a scope touches and the list's map fill the next, and the bins begin on the third.
#[repr(C)]
pub(crate) struct StreamState<B: Backend> {
    /// The reasons why an allocation or a free cannot take the short way; none is the usual case.
    pub(crate) detours: Detours,
    /// The epoch that frees are stamped with.
    pub(crate) open: Epoch,
    /// Buffers that left, freed or moved to another stream.
    freed: Tally,
    /// The scope whose frees `freed` is counting now; none when it is nobody's.
    scope: ScopeId,
    /// Buffers that came: from the list, by the long way, or moved from another stream.
    taken: Tally,
    accounts: Accounts,
    pub(crate) list: StreamList,
    pub(crate) counters: StreamCounters,
    /// Entries of `use_on` sets that name this stream.
    pub(crate) named: u64,
    /// `PoolStream` handles, clones not counted.
    pub(crate) handles: u64,
    /// Driver calls in flight on this stream.
    pub(crate) pins: u64,
    /// Out-of-memory ladders that keep the list shut.
    pub(crate) shut: u64,
    /// Blocks of other pools may have been used on this stream.
    pub(crate) is_known_elsewhere: bool,
    /// The pool has a note that nothing uses the stream.
    pub(crate) is_noted: bool,
    /// A thread lets the stream leave, or has: nobody else may.
    pub(crate) is_in_leave: bool,
    pub(crate) frontier: Arc<Frontier>,
    /// The other streams of this stream's buffers, by address.
    pub(crate) sets: BTreeMap<u64, Vec<Home<B>>>,
    /// The latest events, where the pool keeps them.
    pub(crate) ring: Option<Box<Ring>>,
}

/// What one stream counts, under its lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamCounters {
    /// Allocations by the long way.
    pub(crate) misses: u64,
    /// Buffers that came from another stream.
    pub(crate) moved: u64,
    /// The most bytes that have been in buffers whose home this is.
    pub(crate) peak_in_use: u64,
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
    /// Each allocation and each free is noted.
    pub(crate) const NOTED: Detours = Detours(32);
    /// What keeps a hit from the short way.
    pub(crate) const OF_HITS: Detours = Detours(Detours::CLOSED.0 | Detours::NOTED.0);

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
    fn new(record_on_free: bool, ring: Option<Box<Ring>>) -> StreamState<B> {
        let mut detours = Detours::default();
        detours.set(Detours::RECORD_ON_FREE, record_on_free);
        detours.set(Detours::NOTED, ring.is_some());
        StreamState {
            detours,
            open: Epoch::FIRST,
            freed: Tally::default(),
            scope: ScopeId::NONE,
            taken: Tally::default(),
            accounts: Accounts::default(),
            list: StreamList::new(),
            counters: StreamCounters::default(),
            named: 0,
            handles: 0,
            pins: 0,
            shut: 0,
            is_known_elsewhere: false,
            is_noted: false,
            is_in_leave: false,
            frontier: Arc::default(),
            sets: BTreeMap::new(),
            ring,
        }
    }

    /// Closes the open epoch, in number: the event that is recorded after this covers it.
    pub(crate) fn advance(&mut self) -> Epoch {
        let epoch = self.open;
        self.open = epoch.next();
        epoch
    }

    /// Counts one more buffer of `bytes` bytes.
    #[inline]
    pub(crate) fn take(&mut self, bytes: u64) {
        self.taken.add_one(bytes);
        self.counters.peak_in_use = self.counters.peak_in_use.max(self.in_use());
    }

    /// Counts a buffer of `bytes` bytes that is freed: for the scope whose turn it is.
    #[inline]
    pub(crate) fn give(&mut self, bytes: u64) {
        self.freed.add_one(bytes);
    }

    /// Counts a buffer of `bytes` bytes that leaves the stream, or holds no memory: no scope hears of it.
    pub(crate) fn give_unnoticed(&mut self, bytes: u64) {
        self.freed.add_one(bytes);
        self.accounts.overlook(bytes);
    }

    /// Notes an event, where they are kept.
    pub(crate) fn note(&mut self, action: Action) {
        if let Some(ring) = &mut self.ring {
            ring.note(action);
        }
    }

    /// Buffers whose home this is.
    pub(crate) fn live(&self) -> u64 {
        self.taken.since(self.freed).buffers
    }

    /// Bytes in buffers whose home this is.
    #[inline]
    pub(crate) fn in_use(&self) -> u64 {
        self.taken.since(self.freed).bytes
    }

    /// Allocations from the list.
    pub(crate) fn hits(&self) -> u64 {
        self.taken.buffers.wrapping_sub(self.counters.misses + self.counters.moved)
    }

    /// Whether a free in `scope` can take the short way.
    #[inline]
    pub(crate) fn takes_frees_of(&self, scope: ScopeId) -> bool {
        self.detours.none() && self.scope == scope
    }

    /// From here on frees count for `scope`.
    pub(crate) fn count_for(&mut self, scope: ScopeId) {
        if self.scope != scope {
            self.accounts.turn(self.scope, self.freed);
            self.scope = scope;
        }
    }

    /// What was freed in a scope, which has ended.
    pub(crate) fn close_account(&mut self, scope: ScopeId) -> Tally {
        let turn = match self.scope == scope {
            true => {
                self.scope = ScopeId::NONE;
                self.accounts.end_turn(self.freed)
            }
            false => Tally::default(),
        };
        self.accounts.close(scope, turn)
    }

    /// What was freed in each scope that has not ended: the stream leaves.
    pub(crate) fn close_accounts(&mut self) -> Vec<(ScopeId, Tally)> {
        self.count_for(ScopeId::NONE);
        self.accounts.close_all()
    }

    /// Puts a free block on the list, stamped with the open epoch.
    #[inline]
    pub(crate) fn put(&mut self, bin: u8, block: BlockId, address: u64, size: Grains) {
        self.list.push(bin, FreeBlock { address, block, epoch: self.open.short() }, size);
    }

    /// A block in a buffer of this stream will not come back to its list.
    pub(crate) fn forgo(&mut self, bin: u8) {
        self.list.forgo(bin);
    }

    /// Whether nothing keeps the stream in the pool.
    pub(crate) fn is_unused(&self) -> bool {
        self.handles == 0 && self.live() == 0 && self.named == 0 && self.pins == 0
    }
}

impl<B: Backend> StreamCore<B> {
    pub(crate) fn new(
        pool: Arc<PoolCore<B>>,
        stream: B::Stream,
        identity: StreamIdentity,
        record_on_free: bool,
    ) -> StreamCore<B> {
        let timeline = Arc::new(Timeline::new());
        let ring = pool.ring_of(timeline.id());
        StreamCore {
            id: timeline.id(),
            timeline,
            stream: Some(stream),
            pool,
            identity,
            lifetime: Lifetime::default(),
            state: CachePadded::new(SpinLock::new(StreamState::new(record_on_free, ring))),
        }
    }

    /// The backend's stream.
    pub(crate) fn stream(&self) -> &B::Stream {
        self.lifetime.touch();
        self.stream.as_ref().expect("a stream is there until its core is dropped")
    }

    /// Takes a block of the list: the hit. No driver call, no host allocation, nothing to look up. Part of its
    /// caller, as `alloc_rounded` is.
    #[inline(always)]
    pub(crate) fn hit(&self, size: Rounded, align: u64, len: u64) -> Option<Buffer<B>> {
        let mut state = self.state.lock();
        if state.detours.has(Detours::OF_HITS) && !seeded!(HitsWhileClosing) {
            return None;
        }
        let (address, block) = state.list.pop(size, align)?;
        state.take(size.bytes);
        Some(Buffer::new(Home::new(self), block, address, size, len))
    }

    /// The hit of a stream whose events are kept: [`hit`](Self::hit) finds none for it.
    #[cold]
    #[inline(never)]
    pub(crate) fn noted_hit(&self, size: Rounded, align: u64, len: u64) -> Option<Buffer<B>> {
        if !self.pool.keeps_history() {
            return None;
        }
        let tag = Tag::current();
        let mut state = self.state.lock();
        if state.detours.has(Detours::CLOSED) && !seeded!(HitsWhileClosing) {
            return None;
        }
        let (address, block) = state.list.pop(size, align)?;
        let bytes = size.bytes;
        state.take(bytes);
        state.note(Action::Allocate { address, bytes, requested: len, hit: true, tag });
        drop(state);
        Some(Buffer::new(Home::new(self), block, address, size, len).tagged(tag))
    }

    /// Counts a buffer whose block comes to this stream by the long way, and makes room for the block
    /// on the list, outside the lock.
    pub(crate) fn welcome(&self, size: Rounded, missed: bool) {
        loop {
            let capacity = {
                let mut state = self.state.lock();
                match state.list.expect(size.bin) {
                    Ok(()) => {
                        state.take(size.bytes);
                        let counter = match missed {
                            true => &mut state.counters.misses,
                            false => &mut state.counters.moved,
                        };
                        *counter += 1;
                        return;
                    }
                    Err(capacity) => capacity,
                }
            };
            let larger = Room::new(size.bin, capacity);
            let smaller = self.state.lock().list.exchange(size.bin, larger);
            drop(smaller);
        }
    }

    /// Fetches what a walk over all streams reads: one after another, each would be waited for. Of the
    /// state it is the first two lines.
    #[inline]
    pub(crate) fn prefetch(&self) {
        let state = &raw const self.state;
        prefetch(state);
        prefetch(state.cast::<u8>().wrapping_add(64));
        prefetch(&raw const self.id);
    }

    /// What its next operation is ordered after.
    pub(crate) fn taker(&self) -> Taker {
        Taker { home: self.id, frontier: Arc::clone(&self.state.lock().frontier) }
    }

    /// This stream now waits for a closed epoch of `timeline`. To be called after the wait returned.
    /// Says how many entries its frontier has.
    pub(crate) fn ordered_after(
        &self,
        timeline: TimelineId,
        closed: &Closed<PooledEvent<B>>,
    ) -> usize {
        let home = self.id;
        let mut state = self.state.lock();
        let frontier = Arc::make_mut(&mut state.frontier);
        frontier.join(&closed.frontier, home);
        if timeline != home {
            frontier.raise(timeline, closed.epoch);
        }
        frontier.len()
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

    /// Whether the stream leaves the pool, or has left.
    pub(crate) fn is_leaving(&self) -> bool {
        self.state.lock().detours.has(Detours::RETIRED)
    }

    /// Counts one driver call less. The caller holds the core by other means.
    pub(crate) fn unpin(&self) {
        let mut state = self.state.lock();
        state.pins -= 1;
        self.note_if_unused(&mut state);
    }

    /// Leaves a note for the next call that may block when the last count has gone. Under the lock, so
    /// that the core cannot have been freed.
    #[inline]
    pub(crate) fn note_if_unused(&self, state: &mut StreamState<B>) {
        self.lifetime.touch();
        if state.detours.has(Detours::ORPHAN) && state.is_unused() {
            self.pool.note_unused(self.id, state);
        }
    }

    /// Copies the addresses of the blocks on the list. While the lock is held nothing is allocated.
    pub(crate) fn copy_list(&self, addresses: &mut Vec<u64>) {
        loop {
            let state = self.state.lock();
            let count = state.list.count(0);
            if addresses.capacity() - addresses.len() >= count {
                return addresses.extend(state.list.iter().map(|free| free.address));
            }
            drop(state);
            // With room for what may come meanwhile.
            addresses.reserve(count + count / 4);
        }
    }

    /// Takes the blocks of at least `bytes` bytes from the list, with the epochs in which they were freed.
    /// While the lock is held nothing is allocated.
    pub(crate) fn drain(&self, bytes: u64, drained: &mut Vec<(BlockId, Epoch)>) {
        loop {
            let mut state = self.state.lock();
            if !state.list.may_hold(bytes.max(1)) {
                return;
            }
            let count = state.list.count(bytes);
            if drained.capacity() - drained.len() >= count {
                let open = state.open;
                let widened = |free: FreeBlock| (free.block, open.widened(free.epoch));
                return state.list.drain(bytes, |free| drained.push(widened(free)));
            }
            drop(state);
            drained.reserve(count + count / 4);
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

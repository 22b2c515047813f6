//! What the heap's lock guards.

use std::collections::BTreeMap;

use super::PooledEvent;
use super::miss::Miss;
use super::pieces::Pieces;
use crate::backend::Backend;
use crate::error::Error;
use crate::heap::{BlockId, Heap, Part, Request};
use crate::order::{Epoch, FreePoint, Stamps, Taker, Timeline, TimelineId, Timelines, completions};
use crate::pool_stream::core::StreamCore;
use crate::pool_stream::tally::Tally;
use crate::quiescent::ScopeId;
use crate::stats::{Past, Stats};
use crate::sync::{Arc, Weak};

/// How many streams of other pools are kept in mind before the first look at which are over.
const FOREIGN_MIN: usize = 32;

/// From this many streams on that have left while one scope is open, those that have finished are added
/// up.
const ACCOUNTS: usize = 32;

/// The heap, and what is needed to read its stamps.
pub(super) struct Central<B: Backend> {
    pub(super) heap: Heap,
    /// Every timeline that a stamp of the heap or of a buffer can name.
    pub(super) timelines: Timelines<PooledEvent<B>>,
    /// Streams of other pools that this pool's buffers were used on.
    pub(super) foreign: BTreeMap<TimelineId, Weak<StreamCore<B>>>,
    /// With more of them than this, those that are over are forgotten.
    foreign_bound: usize,
    /// Own timelines whose streams have left, oldest first, until they are over.
    pub(super) retired: Vec<Arc<Timeline<PooledEvent<B>>>>,
    /// Stands for the uses by strangers, once there are any.
    strangers: Option<Strangers<B>>,
    /// The memory behind the heap's ranges.
    pub(super) pieces: Pieces<B::Granule>,
    /// All memory that the device has, in bytes, once it was asked.
    pub(super) device_total: Option<u64>,
    /// Plain segments that a thread is taking from the device, in bytes.
    pub(super) taking: u64,
    /// What `reserve` has seen to, and no trim has given back: up to here nothing new is taken while there is
    /// clean memory.
    pub(super) reserved_by_hand: u64,
    /// The part of what the heap has in transit that the device has not given yet, in bytes.
    pub(super) claimed: u64,
    /// Pieces that a thread is giving back, in bytes.
    pub(super) returning: u64,
    /// Pieces that were mapped at a further address, and those that were of use again at an old one.
    pub(super) remapped: u64,
    pub(super) revived: u64,
    /// What was mapped at a further address since the most that is in use last rose, in bytes.
    pub(super) churned: u64,
    /// Streams that are marked and whose last event another thread is about to publish: until then
    /// nobody can wait for what they hold.
    pub(super) leaving: u64,
    /// Counts what a search that came too early has missed: whatever came back from transit, was freed by
    /// the long way, or became something to wait for because its stream has left. Only rises.
    pub(super) returns: u64,
    /// What retired streams have counted.
    pub(super) past: Past,
    /// What was freed on them in scopes that have not ended.
    accounts: BTreeMap<ScopeId, Vec<(TimelineId, Tally)>>,
    /// The most that the device had given since the last reset, in bytes.
    peak_reserved: u64,
    /// The most that has been seen in use, in bytes.
    pub(super) peak_in_use: u64,
    /// The count of completions when the heap was last settled.
    settled: u64,
    /// Empty, with the room that drained lists need.
    drained: Vec<(BlockId, Epoch)>,
}

impl<B: Backend> Central<B> {
    pub(super) fn new() -> Central<B> {
        Central {
            heap: Heap::default(),
            timelines: Timelines::new(),
            foreign: BTreeMap::new(),
            foreign_bound: FOREIGN_MIN,
            retired: Vec::new(),
            strangers: None,
            pieces: Pieces::new(),
            device_total: None,
            taking: 0,
            reserved_by_hand: 0,
            claimed: 0,
            returning: 0,
            remapped: 0,
            revived: 0,
            churned: 0,
            leaving: 0,
            returns: 0,
            past: Past::default(),
            accounts: BTreeMap::new(),
            peak_reserved: 0,
            peak_in_use: 0,
            settled: 0,
            drained: Vec::new(),
        }
    }

    /// Makes clean what has completed since this was last done.
    pub(super) fn settle(&mut self) {
        let now = completions();
        if self.settled != now {
            self.settled = now;
            self.heap.settle(&self.timelines);
            self.heap.release_quarantine(&self.timelines);
        }
    }

    /// The free point of a block that a stranger has used: no query and no wait settles it, a synchronize
    /// of the context does.
    pub(super) fn stranger_point(&mut self) -> FreePoint {
        let timelines = &mut self.timelines;
        let strangers = self.strangers.get_or_insert_with(|| {
            let timeline = Arc::new(Timeline::without_events(Epoch::MAX));
            timelines.insert(Arc::clone(&timeline));
            Strangers { timeline, open: Epoch::FIRST }
        });
        FreePoint { timeline: strangers.timeline.id(), epoch: strangers.open }
    }

    /// A synchronize of the context is about to begin: what it settles of the strangers' uses. What they
    /// use from now on is not among it.
    pub(super) fn strangers_by_now(&mut self) -> Option<(Arc<Timeline<PooledEvent<B>>>, Epoch)> {
        let strangers = self.strangers.as_mut()?;
        let epoch = strangers.open;
        strangers.open = epoch.next();
        Some((Arc::clone(&strangers.timeline), epoch))
    }

    /// Whether a free block waits for a stranger.
    pub(super) fn waits_for_strangers(&self) -> bool {
        let Some(strangers) = &self.strangers else { return false };
        let id = strangers.timeline.id();
        self.heap.waits_for(id)
    }

    /// All that the device has given and not got back, in bytes.
    pub(super) fn reserved(&self) -> u64 {
        self.heap.bytes().reserved() + self.pieces.parked_bytes() + self.taking + self.returning
    }

    /// Whether the pool has no more than what `reserve` has seen to.
    pub(super) fn has_what_was_reserved(&self) -> bool {
        self.reserved_by_hand > 0 && self.reserved() <= self.reserved_by_hand
    }

    /// Notes how much the device has given, without what is only claimed. To be called wherever it becomes
    /// more.
    pub(super) fn see_reserved(&mut self) {
        self.peak_reserved = self.peak_reserved.max(self.taken());
    }

    /// Starts the peak of reserved bytes anew from what is reserved now.
    pub(super) fn reset_peak_reserved(&mut self) {
        self.peak_reserved = self.taken();
    }

    /// So many bytes are in use. A program that uses more than ever does not go round in a circle.
    pub(super) fn see_in_use(&mut self, bytes: u64) {
        if bytes > self.peak_in_use {
            self.peak_in_use = bytes;
            self.churned = 0;
        }
    }

    /// How much is in use, in bytes: in buffers of these streams.
    pub(super) fn in_use(&self, streams: &[Arc<StreamCore<B>>]) -> u64 {
        streams.iter().map(|core| core.state.lock().in_use()).sum()
    }

    fn taken(&self) -> u64 {
        self.reserved() - self.taking - self.claimed
    }

    /// What threads have that are making a driver call for it, in bytes.
    pub(super) fn in_transit(&self) -> u64 {
        self.heap.bytes().transit + self.taking + self.returning
    }

    /// What waits for nothing, in bytes: it can be handed out, go back, or get behind other addresses.
    pub(super) fn clean(&self) -> u64 {
        self.heap.bytes().clean + self.pieces.parked_bytes()
    }

    /// All that is free, in bytes.
    pub(super) fn free(&self) -> u64 {
        self.clean() + self.heap.bytes().pending
    }

    /// Whether other threads have something in their hands that may serve a request when it is back.
    pub(super) fn is_in_motion(&self) -> bool {
        self.in_transit() > 0 || self.leaving > 0
    }

    /// A claim of `claimed` bytes of [`taking`](Self::taking) ends: with a segment at an address and of a
    /// size, which is a block in transit then, or with an error.
    pub(super) fn finish_segment(
        &mut self,
        claimed: u64,
        part: Part,
        taken: Result<(u64, u64), Error>,
    ) -> Result<BlockId, Error> {
        self.taking -= claimed;
        self.returns += 1;
        let (address, bytes) = taken?;
        let segment = self.heap.add_segment(address, bytes, part);
        self.see_reserved();
        Ok(segment)
    }

    /// Moves the blocks of at least `bytes` bytes of a stream's list into the heap. The heap's lock is
    /// held throughout, so that nobody who searches both misses them.
    pub(super) fn drain(&mut self, core: &StreamCore<B>, bytes: u64) {
        core.drain(bytes, &mut self.drained);
        for (block, epoch) in self.drained.drain(..) {
            self.heap.free(block, Stamps::of(core.id, epoch), &self.timelines);
        }
    }

    /// The best block that needs no wait, and what it was looked for as.
    pub(super) fn find_covered(
        &self,
        miss: &Miss<'_, B>,
        taker: &Taker,
    ) -> Option<(BlockId, Request)> {
        miss.requests().find_map(|request| {
            let id = self.heap.find_covered(&request, taker, &self.timelines)?;
            Some((id, request))
        })
    }

    /// Stamps can name a stream of another pool from now on. Now and then, so that the cost is spread
    /// over as many calls, forgets those that are over, and gives them back.
    pub(super) fn know_foreign(
        &mut self,
        timeline: Arc<Timeline<PooledEvent<B>>>,
        core: Option<Weak<StreamCore<B>>>,
    ) -> Vec<Arc<Timeline<PooledEvent<B>>>> {
        if let Some(core) = core {
            self.foreign.insert(timeline.id(), core);
        }
        self.timelines.insert(timeline);
        if self.foreign.len() > self.foreign_bound {
            self.settle();
            let over = self.forget_finished();
            self.foreign_bound = FOREIGN_MIN.max(2 * self.foreign.len());
            return over;
        }
        Vec::new()
    }

    /// Forgets the timelines that are over: a stamp that names one is settled at the next look. The caller
    /// drops them outside the lock.
    #[must_use = "to be dropped outside the lock"]
    pub(super) fn forget_finished(&mut self) -> Vec<Arc<Timeline<PooledEvent<B>>>> {
        let over = self.timelines.forget_finished();
        self.foreign.retain(|id, _| self.timelines.get(*id).is_some());
        over
    }

    /// Keeps what a stream that leaves has counted.
    pub(super) fn keep_counts(&mut self, core: &StreamCore<B>) {
        let mut state = core.state.lock();
        self.past.hits += state.hits();
        self.past.misses += state.counters.misses;
        for (scope, tally) in state.close_accounts() {
            let own = self.accounts.entry(scope).or_default();
            own.push((core.id, tally));
            // At each doubling, so that the cost is spread over as many streams.
            if own.len() >= ACCOUNTS && own.len().is_power_of_two() {
                fold_finished(own, &self.timelines);
            }
        }
    }

    /// What was freed in a scope, which has ended, on streams that have left.
    pub(super) fn close_account(&mut self, scope: ScopeId) -> Vec<(TimelineId, Tally)> {
        self.accounts.remove(&scope).unwrap_or_default()
    }

    pub(super) fn stats(&self) -> Stats {
        let bytes = self.heap.bytes();
        Stats {
            reserved: self.reserved(),
            peak_reserved: self.peak_reserved,
            peak_in_use: self.peak_in_use,
            free_clean: self.clean(),
            free_pending: bytes.pending,
            // Out of the heap: on lists or in buffers, which `add_stream` tells apart.
            on_lists: bytes.out,
            largest_free: self.heap.largest_free(),
            in_transit: self.in_transit(),
            quarantined: bytes.quarantined,
            granules: self.pieces.count() as u64,
            remapped: self.remapped,
            revived: self.revived,
            hits: self.past.hits,
            misses: self.past.misses,
            ..Stats::default()
        }
    }
}

/// Streams that are not registered, all of them as one: nothing but a synchronize of the context can say
/// that they have finished. One timeline for good, which never leaves and has no events; each synchronize
/// closes an epoch of it.
struct Strangers<B: Backend> {
    timeline: Arc<Timeline<PooledEvent<B>>>,
    open: Epoch,
}

/// Adds up what was freed on streams that have left and finished: a scope that never ends must not keep
/// an entry for each stream that comes and goes.
fn fold_finished<E>(accounts: &mut Vec<(TimelineId, Tally)>, timelines: &Timelines<E>) {
    let mut finished: Option<(TimelineId, Tally)> = None;
    accounts.retain(|(id, tally)| {
        if timelines.get(*id).is_some_and(|timeline| !timeline.is_over()) {
            return true;
        }
        finished.get_or_insert((*id, Tally::default())).1.add(*tally);
        false
    });
    accounts.extend(finished);
}

//! A miss: the steps of an allocation that the stream's own list did not serve.

use std::cell::Cell;

use super::PoolCore;
use crate::backend::Backend;
use crate::buffer::Buffer;
use crate::config::Reuse;
use crate::error::Error;
use crate::fault::seeded;
use crate::heap::BlockId;
use crate::heap::size_class::{ROUNDED_MAX, Rounded};
use crate::history::Action;
use crate::order::{FreePoint, Moment};
use crate::pool_stream::core::StreamCore;
use crate::pool_stream::home::Home;

/// A block of this size, which large requests need whole, is cut for a much smaller one only when blocks of
/// the stream's list that are not far smaller than the request have had a chance to join: in a recorded
/// training step that takes 1.017 times the memory in use in place of 1.034. To drain all of the list would
/// take 1.015, and half of the hits.
const LARGE: u64 = 64 << 20;
const FAR_SMALLER: u64 = 64;

/// Whether to cut this block for a request of this size would spoil a large block.
fn cuts_large(block: u64, bytes: u64) -> bool {
    block >= LARGE && block > 2 * bytes && bytes > ROUNDED_MAX
}

/// What is wanted, for whom, and what has been met on the way to it.
pub(super) struct Miss<'a, B: Backend> {
    pub(super) core: &'a StreamCore<B>,
    pub(super) size: Rounded,
    pub(super) align: u64,
    /// What has been tried, once a ladder begins, for the error that may come.
    pub(super) tried: Vec<&'static str>,
    /// The limit, not the device, kept the pool from growing.
    pub(super) over_limit: bool,
    /// What others had returned when the last search of a ladder began.
    pub(super) seen: u64,
    /// What this miss itself has returned: no news to it.
    pub(super) returned: u64,
    /// The stream was made to wait for the block that is handed out.
    pub(super) waited: Cell<bool>,
    pub(super) asked: Asked,
}

/// What one call has asked of the driver, so that it does not ask twice.
#[derive(Default)]
pub(super) struct Asked {
    /// Free points that had not completed: of their timelines, nothing later has either.
    unfinished: Vec<FreePoint>,
    /// How many answers were that it has finished.
    completed: u64,
    /// The last driver error that was met on the way, and that another way may make up for.
    pub(super) error: Option<Error>,
}

/// One way to serve a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// From the heap, what needs no wait; the stream's own list is drained into it.
    Covered,
    /// Ask whether fitting blocks of other streams have become clean.
    Ask,
    /// Drain every list and ask for everything, so that neighbours join.
    Gather,
    /// Take another stream's block, waiting for an event of a moment that the program chose.
    StealEarly,
    /// The same, waiting for what the other streams have queued by now: of one block, or of a union.
    StealLate,
    /// Wait on the host until everything has finished, and search again.
    Synchronize,
    /// Take memory from the device up to a mark.
    Grow(Mark),
}

/// How far a growth may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Floor,
    SoftTarget,
    Limit,
}

impl Reuse {
    pub(super) fn steps(self) -> &'static [Step] {
        use Step::{Ask, Covered, Gather, Grow, StealEarly, StealLate, Synchronize};
        match self {
            Reuse::Balanced => &[
                Covered,
                Grow(Mark::Floor),
                Ask,
                Gather,
                StealEarly,
                Grow(Mark::SoftTarget),
                StealLate,
                Synchronize,
                Grow(Mark::Limit),
            ],
            Reuse::Memory => &[
                Covered,
                Ask,
                Gather,
                StealEarly,
                StealLate,
                Grow(Mark::SoftTarget),
                Synchronize,
                Grow(Mark::Limit),
            ],
            Reuse::Speed => &[
                Covered,
                Grow(Mark::Floor),
                Ask,
                Gather,
                // Not for the target, but because there unused memory is moved, which waits for nothing.
                Grow(Mark::SoftTarget),
                Grow(Mark::Limit),
                StealEarly,
                StealLate,
            ],
        }
    }
}

impl Step {
    pub(super) fn name(self) -> &'static str {
        match self {
            Step::Covered => "free blocks in order",
            Step::Ask => "asking for finished blocks",
            Step::Gather => "gathering every list",
            Step::StealEarly => "waiting for a marked free",
            Step::StealLate => "waiting for other streams",
            Step::Synchronize => "synchronizing",
            Step::Grow(_) => "taking memory from the device",
        }
    }
}

impl<B: Backend> PoolCore<B> {
    /// Serves an allocation that found nothing on its stream's list.
    pub(crate) fn alloc_miss(
        &self,
        core: &StreamCore<B>,
        size: Rounded,
        align: u64,
        len: u64,
    ) -> Result<Buffer<B>, Error> {
        let _call = self.begin_call()?;
        if self.driver.is_capturing(core.stream()) {
            return Err(self.driver.seen_capturing("the stream"));
        }
        let mut miss = Miss::new(core, size, align);
        let found = match self.take_steps(&mut miss) {
            Ok(Some(block)) => Ok(block),
            Ok(None) => self.climb(&mut miss),
            Err(error) => Err(error),
        };
        found.map(|block| self.hand_out(&miss, block, len))
    }

    /// The steps of the policy, in order.
    pub(super) fn steps_allowed(&self) -> impl Iterator<Item = &'static Step> + use<B> {
        let late_waits = self.config.late_waits;
        let is_late = |step: &Step| matches!(step, Step::StealLate | Step::Synchronize);
        self.config.reuse.steps().iter().filter(move |step| late_waits || !is_late(step))
    }

    /// Takes the steps of the policy, in order, until one gives a block in transit.
    pub(super) fn take_steps(&self, miss: &mut Miss<'_, B>) -> Result<Option<BlockId>, Error> {
        for step in self.steps_allowed() {
            let block = match step {
                Step::Covered => self.take_covered(miss),
                Step::Ask => self.take_asked(miss),
                Step::Gather => self.take_gathered(miss),
                Step::StealEarly => self.steal(miss, Moment::Early),
                Step::StealLate => self
                    .steal(miss, Moment::Probe)
                    .or_else(|| self.steal_union(miss, Moment::Probe)),
                Step::Synchronize => self.take_synchronized(miss),
                Step::Grow(mark) => self.grow(miss, *mark),
            };
            if let Some(block) = block {
                self.steps.count(*step);
                if let Step::Grow(_) = step {
                    self.note_growth(miss.core);
                }
                return Ok(Some(block));
            }
            if let Some(error) = self.driver.lost() {
                return Err(error.clone());
            }
        }
        Ok(None)
    }

    /// Makes the block in transit a buffer of the stream.
    pub(super) fn hand_out(&self, miss: &Miss<'_, B>, block: BlockId, len: u64) -> Buffer<B> {
        miss.core.welcome(miss.size, true);
        let (address, from) = {
            let mut central = self.central.lock();
            let points = central.heap.stamps(block).points();
            let from = points.iter().map(|point| point.timeline).find(|id| *id != miss.core.id);
            central.heap.hand_out(block, miss.core.id);
            (central.heap.extent(block).0, from)
        };
        let bytes = miss.size.bytes;
        if let Some(from) = from {
            let (from, waited) = (from.get(), miss.waited.get());
            self.note(miss.core, Action::Steal { address, bytes, from, waited });
        }
        self.note(miss.core, Action::Allocate { address, bytes, requested: len, hit: false });
        Buffer::new(Home::new(miss.core), block, address, miss.size, len)
    }

    /// A block that needs no wait: the smallest that fits, from the heap or the stream's own list. When
    /// there is none, the list is drained: neighbours there can join.
    pub(super) fn take_covered(&self, miss: &Miss<'_, B>) -> Option<BlockId> {
        let mut central = self.central.lock();
        let (bytes, align) = (miss.size.bytes, miss.align);
        central.settle();
        let taker = miss.core.taker();
        for drained in [false, true] {
            if drained {
                central.drain(miss.core, 0);
            }
            let mut found = central.heap.find_covered(bytes, align, &taker, &central.timelines);
            if !drained && central.take_smaller(miss.core, bytes, align, found) {
                found = central.heap.find_covered(bytes, align, &taker, &central.timelines);
            }
            if !drained && found.is_some_and(|id| cuts_large(central.heap.extent(id).1, bytes)) {
                central.drain(miss.core, bytes / FAR_SMALLER);
                found = central.heap.find_covered(bytes, align, &taker, &central.timelines);
            }
            if let Some(id) = found {
                if seeded!(LockDropped) {
                    drop(central);
                    central = self.central.lock();
                }
                return Some(central.heap.carve(id, bytes, align));
            }
        }
        let central = &mut *central;
        central.heap.take_union(bytes, align, &taker, &central.timelines)
    }

    /// Drains what fits from the other lists, and asks the streams that hold candidates.
    fn take_asked(&self, miss: &mut Miss<'_, B>) -> Option<BlockId> {
        let streams = self.streams();
        let (bytes, align) = (miss.size.bytes, miss.align);
        {
            let mut central = self.central.lock();
            for other in streams.iter() {
                central.drain(other, bytes);
            }
        }
        // Twice: a block with several free points waits for the first of them first.
        for _ in 0..2 {
            if let Some(block) = self.take_covered(miss) {
                return Some(block);
            }
            let candidates = self.central.lock().heap.pending(bytes, align);
            let mut news = false;
            for (first, _) in candidates {
                if self.ask_point(&mut miss.asked, first) {
                    news = true;
                    if let Some(block) = self.take_covered(miss) {
                        return Some(block);
                    }
                }
            }
            if !news {
                break;
            }
        }
        None
    }

    /// Drains every list and asks for all that is pending, if that could make up the request.
    fn take_gathered(&self, miss: &mut Miss<'_, B>) -> Option<BlockId> {
        let streams = self.streams();
        {
            let mut central = self.central.lock();
            for other in streams.iter().filter(|_| !seeded!(StaleRetry)) {
                central.drain(other, 0);
            }
            // What does not make up the request may still do with new memory beside it.
            if central.free() < miss.size.bytes.min(self.granularity().unwrap_or(u64::MAX)) {
                return None;
            }
        }
        self.ask_everything(&mut miss.asked);
        self.take_covered(miss)
    }

    /// Waits until everything has finished, if what is pending could make up the request, and searches what
    /// is clean then. The policy for the least memory does so before any growth beyond the soft target, the
    /// balanced one when the pool is far beyond it: it must not creep on and on because free memory lies in pieces
    /// whose use has just not finished.
    fn take_synchronized(&self, miss: &mut Miss<'_, B>) -> Option<BlockId> {
        let enough = {
            let central = self.central.lock();
            central.heap.bytes().pending > 0 && central.free() >= miss.size.bytes
        };
        let is_time =
            || self.config.reuse == Reuse::Memory || self.is_far_beyond_target(miss.size.bytes);
        if !enough || !is_time() {
            return None;
        }
        if let Err(error) = self.quiesce_all() {
            miss.asked.meet(error);
            return None;
        }
        miss.asked.ask_again();
        self.take_gathered(miss).or_else(|| self.grow(miss, Mark::SoftTarget))
    }

    /// Asks for all that is pending.
    pub(super) fn ask_everything(&self, asked: &mut Asked) {
        // Again while something completes: a timeline's last epoch, not finished, must not hide those
        // before it, nor a block's first free point its others.
        loop {
            let pending = {
                let mut central = self.central.lock();
                central.settle();
                central.heap.pending(0, 1)
            };
            let before = asked.completed;
            for (first, last) in pending {
                if self.ask_point(asked, first) && last > first.epoch {
                    self.ask_point(asked, FreePoint { epoch: last, ..first });
                }
            }
            if asked.completed == before {
                break;
            }
        }
    }

    /// Asks whether a free point has completed, closing a probe on its stream if nothing published
    /// covers it.
    fn ask_point(&self, asked: &mut Asked, point: FreePoint) -> bool {
        let is_earlier =
            |own: &FreePoint| own.timeline == point.timeline && own.epoch <= point.epoch;
        if asked.unfinished.iter().any(is_earlier) {
            return false;
        }
        let timeline = self.central.lock().timelines.get(point.timeline).cloned();
        let Some(timeline) = timeline else { return true };
        if timeline.completed() >= point.epoch {
            return true;
        }
        let answer = match self.cover_or_close(&timeline, point.epoch) {
            Ok(Some((closed, _pin))) => self.ask(&timeline, &closed),
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        let finished = match answer {
            Ok(finished) => finished,
            Err(error) => {
                asked.meet(error);
                false
            }
        };
        if finished {
            asked.completed += 1;
        } else {
            asked.unfinished.push(point);
        }
        finished
    }
}

impl<'a, B: Backend> Miss<'a, B> {
    pub(super) fn new(core: &'a StreamCore<B>, size: Rounded, align: u64) -> Miss<'a, B> {
        let (tried, asked) = Default::default();
        let waited = Cell::new(false);
        Miss { core, size, align, tried, over_limit: false, seen: 0, returned: 0, waited, asked }
    }

    /// Notes what has been tried, for the error.
    pub(super) fn note_tried(&mut self, name: &'static str) {
        if !self.tried.contains(&name) {
            self.tried.push(name);
        }
    }
}

impl Asked {
    /// Keeps a driver error for the out-of-memory error that may follow. A capture is no error: the
    /// stream that captures is passed over.
    pub(super) fn meet(&mut self, error: Error) {
        if !error.is_capture() {
            self.error = Some(error);
        }
    }

    /// What was asked before may have finished by now: it may be asked again.
    pub(super) fn ask_again(&mut self) {
        self.unfinished.clear();
    }
}

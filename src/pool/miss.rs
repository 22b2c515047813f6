//! A miss: the steps of an allocation that the stream's own list did not serve.

use std::cell::Cell;
use std::iter;

use super::PoolCore;
use super::ask::Asked;
use super::foreign::Leaves;
use crate::backend::Backend;
use crate::buffer::Buffer;
use crate::config::Reuse;
use crate::error::Error;
use crate::fault::seeded;
use crate::heap::size_class::{ROUNDED_MAX, Rounded};
use crate::heap::{BlockId, Request};
use crate::history::Action;
use crate::order::Moment;
use crate::pool_stream::core::StreamCore;
use crate::pool_stream::home::Home;
use crate::tag::Tag;
use crate::tell::{self, Kind, Told};

/// What is wanted, for whom, and what has been met on the way to it.
pub(super) struct Miss<'a, B: Backend> {
    pub(super) core: &'a StreamCore<B>,
    pub(super) size: Rounded,
    pub(super) align: u64,
    /// What has been tried, once a ladder begins, for the error that may come.
    pub(super) tried: Vec<&'static str>,
    /// The pool cannot grow: a block may lie where it does not belong.
    pub(super) desperate: bool,
    /// The limit, not the device, kept the pool from growing.
    pub(super) over_limit: bool,
    /// What others had returned when the last search of a ladder began.
    pub(super) seen: u64,
    /// What this miss itself has returned: no news to it.
    pub(super) returned: u64,
    /// Which streams of other pools had left theirs when the last search of a ladder began.
    pub(super) left: Leaves,
    /// The stream was made to wait for the block that is handed out, and on what at the latest.
    pub(super) waited: Cell<Option<Moment>>,
    pub(super) asked: Asked,
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
        let call = self.begin_call()?;
        self.driver.refuse_capturing(core.stream(), "the stream")?;
        let mut miss = Miss::new(core, size, align);
        let found = match self.take_steps(&mut miss) {
            Ok(Some(block)) => Ok(block),
            Ok(None) => self.climb(&mut miss),
            Err(error) => Err(error),
        };
        let served = found.map(|block| self.hand_out(&miss, block, len));
        drop(call);
        tell::now();
        served
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
            let (from, moment) = (from.get(), miss.waited.get());
            let waited = moment.is_some();
            self.note(miss.core, Action::Steal { address, bytes, from, waited });
            if let Some(moment) = moment {
                let (pool, stream) = (self.id.0, miss.core.id.get());
                let late = moment == Moment::Probe;
                tell::later(Kind::Usual, || Told::Steal { pool, stream, from, bytes, late });
            }
        }
        let tag = if self.keeps_history() { Tag::current() } else { None };
        self.note(miss.core, Action::Allocate { address, bytes, requested: len, hit: false, tag });
        Buffer::new(Home::new(miss.core), block, address, miss.size, len).tagged(tag)
    }

    /// A block that needs no wait: the smallest that fits. The stream's own large blocks are in the heap
    /// then, so that they can join; its small ones get there when there is none.
    pub(super) fn take_covered(&self, miss: &Miss<'_, B>) -> Option<BlockId> {
        let mut central = self.central.lock();
        central.settle();
        let taker = miss.core.taker();
        let is_small = miss.size.bytes <= ROUNDED_MAX;
        if !is_small {
            central.drain(miss.core, ROUNDED_MAX + 1);
        }
        let mut found = central.find_covered(miss, &taker);
        if found.is_none() {
            central.drain(miss.core, 0);
            found = central.find_covered(miss, &taker);
        }
        let found = found.or_else(|| {
            let request = miss.request();
            Some((central.heap.adopt_segment(&request)?, request))
        });
        if let Some((id, request)) = found {
            if seeded!(LockDropped) {
                drop(central);
                central = self.central.lock();
            }
            return Some(central.heap.carve(id, request.bytes, request.align));
        }
        let central = &mut *central;
        let (heap, timelines) = (&mut central.heap, &central.timelines);
        miss.requests().find_map(|request| heap.take_union(&request, &taker, timelines))
    }

    /// Drains what fits from the other lists, and asks the streams that hold candidates.
    fn take_asked(&self, miss: &mut Miss<'_, B>) -> Option<BlockId> {
        let streams = self.streams();
        {
            let mut central = self.central.lock();
            for other in streams.iter() {
                central.drain(other, miss.size.bytes);
            }
        }
        // Again while something completes: a block with several free points waits for the first of them first.
        loop {
            if let Some(block) = self.take_covered(miss) {
                return Some(block);
            }
            let candidates: Vec<_> = {
                let central = self.central.lock();
                miss.requests().flat_map(|own| central.heap.pending(Some(&own))).collect()
            };
            let before = miss.asked.completed;
            for (first, _) in candidates {
                if self.ask_point(&mut miss.asked, first)
                    && let Some(block) = self.take_covered(miss)
                {
                    return Some(block);
                }
            }
            if miss.asked.completed == before {
                return None;
            }
        }
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
}

impl<'a, B: Backend> Miss<'a, B> {
    pub(super) fn new(core: &'a StreamCore<B>, size: Rounded, align: u64) -> Miss<'a, B> {
        let (tried, asked) = Default::default();
        let waited = Cell::new(None);
        Miss {
            core,
            size,
            align,
            tried,
            desperate: false,
            over_limit: false,
            seen: 0,
            returned: 0,
            left: Leaves::default(),
            waited,
            asked,
        }
    }

    /// What it asks for, where such blocks belong.
    pub(super) fn request(&self) -> Request {
        Request::new(self.size.bytes, self.align)
    }

    /// The searches for its block, in order.
    pub(super) fn requests(&self) -> impl Iterator<Item = Request> + use<B> {
        let own = self.request();
        iter::once(own).chain(self.desperate.then(|| own.elsewhere()))
    }

    /// Notes what has been tried, for the error.
    pub(super) fn note_tried(&mut self, name: &'static str) {
        if !self.tried.contains(&name) {
            self.tried.push(name);
        }
    }
}

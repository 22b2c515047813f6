//! The end of a scope: what was freed in it becomes clean, or keeps its ordinary dependencies.

use std::collections::BTreeSet;

use super::PoolCore;
use crate::backend::Backend;
use crate::error::Error;
use crate::fault::seeded;
use crate::order::{Epoch, Moment, Timeline, TimelineId};
use crate::pool_stream::core::StreamCore;
use crate::pool_stream::tally::Tally;
use crate::quiescent::{QuiescentReport, ScopeId, Shared};
use crate::sync::Arc;

/// One event for the whole context needs a look at every stream first, whether it captures; it is worth
/// it when at least one stream in so many has to be asked.
const ONE_IN: usize = 8;

/// A stream that a scope has to settle.
struct Noted<'a, B: Backend> {
    core: &'a Arc<StreamCore<B>>,
    tally: Tally,
    /// What was open when the scope ended: the epoch of its last free, or a later one.
    epoch: Epoch,
}

impl<B: Backend> PoolCore<B> {
    /// A scope has ended: finds out on which of its streams everything has finished by now, and makes
    /// their blocks clean.
    pub(crate) fn settle_scope(&self, scope: ScopeId, shared: &[Shared]) -> QuiescentReport {
        let _call = self.begin_end();
        let streams = self.streams();
        let mut others: BTreeSet<TimelineId> =
            shared.iter().flat_map(|own| own.others.iter().copied()).collect();
        let mut noted = Vec::with_capacity(streams.len());
        for core in streams.iter() {
            let mut state = core.state.lock();
            let tally = state.close_account(scope);
            if !tally.is_empty() || others.contains(&core.id) {
                noted.push(Noted { core, tally, epoch: state.advance() });
            }
        }
        // Streams that have left since, whose accounts were kept, and those of other pools.
        let mut elsewhere = self.central.lock().close_account(scope);
        for id in noted.iter().map(|own| own.core.id).chain(elsewhere.iter().map(|own| own.0)) {
            others.remove(&id);
        }
        elsewhere.extend(others.into_iter().map(|id| (id, Tally::default())));
        let unfinished = self.settle(&streams, &noted, &elsewhere);
        let mut report = QuiescentReport::default();
        let own = noted.iter().map(|own| (own.core.id, own.tally));
        for (id, tally) in own.chain(elsewhere.iter().copied()) {
            report.freed += tally.buffers;
            report.bytes += tally.bytes;
            report.deferred += if unfinished.contains(&id) { tally.buffers } else { 0 };
        }
        // Those whose home has not finished are counted.
        let waits = |own: &&Shared| {
            let finished = |id| !unfinished.contains(id);
            finished(&own.home) && !own.others.iter().all(finished)
        };
        report.deferred += shared.iter().filter(waits).count() as u64;
        report.clean = report.freed - report.deferred;
        report
    }

    /// Settles all of these, and says which have not finished.
    fn settle(
        &self,
        streams: &[Arc<StreamCore<B>>],
        noted: &[Noted<'_, B>],
        elsewhere: &[(TimelineId, Tally)],
    ) -> BTreeSet<TimelineId> {
        let mut unfinished = BTreeSet::new();
        let worth_it = noted.len() > 1 && noted.len() * ONE_IN >= streams.len();
        let settled = worth_it && self.can_ask() && self.settle_by_context(streams, noted);
        if !self.can_ask() {
            let own = noted.iter().filter(|_| !settled).map(|own| own.core.id);
            return own.chain(elsewhere.iter().map(|own| own.0)).collect();
        }
        if !settled {
            let asked = noted.iter().filter(|own| !self.answer(self.settle_stream(own.core)));
            unfinished.extend(asked.map(|own| own.core.id));
            // A stream that just leaves on another thread has no event to ask yet.
            let leaves =
                |own: &Noted<'_, B>| unfinished.contains(&own.core.id) && own.core.is_leaving();
            if noted.iter().any(leaves) && self.settle_by_context(streams, noted) {
                unfinished.clear();
            }
        }
        for (id, _) in elsewhere {
            if !self.answer(self.settle_elsewhere(*id)) {
                unfinished.insert(*id);
            }
        }
        unfinished
    }

    /// Whether there is a driver to ask: not on a lost device, and not for a pool that was closed inside the
    /// scope, where all has finished and nothing is left to settle.
    fn can_ask(&self) -> bool {
        self.driver.lost().is_none() && !self.gate.is_closed()
    }

    /// What an error tells about a stream: nothing.
    fn answer(&self, finished: Result<bool, Error>) -> bool {
        finished.unwrap_or_else(|error| {
            if !error.is_capture() {
                self.driver.keep_error(error);
            }
            false
        })
    }

    /// Asks one event for the whole context. If it has finished, so has all that is on these streams.
    /// Like a synchronize of the context it would break a capture, and is let be where that would.
    fn settle_by_context(&self, streams: &[Arc<StreamCore<B>>], noted: &[Noted<'_, B>]) -> bool {
        if !self.driver.may_record_context() || self.may_capture(streams) {
            return false;
        }
        let asked = self.driver.event().and_then(|event| {
            let recorded = self.driver.record_context(&event);
            let asked = recorded.and_then(|can| Ok(can && self.driver.query(&event)?));
            if asked.is_err() {
                event.discard();
            }
            asked
        });
        // Also that a capture has begun since the look, and is broken now: the program must hear of it.
        let finished = asked.unwrap_or_else(|error| {
            self.driver.keep_error(error);
            false
        }) || seeded!(UnfinishedTaken);
        if finished {
            let past = seeded!(CompletedPastSnapshot);
            let epoch = |own: &Noted<'_, B>| if past { own.epoch.next() } else { own.epoch };
            let all = noted.iter().map(|own| (&*own.core.timeline, epoch(own)));
            Timeline::complete_all(all);
        }
        finished
    }

    /// Closes a stream's epoch and asks its event once.
    fn settle_stream(&self, core: &StreamCore<B>) -> Result<bool, Error> {
        if !core.pin() {
            return self.ask_retired(core.id);
        }
        let closed = self.close_epoch(core, Moment::Early);
        let finished = closed.and_then(|closed| self.ask(&core.timeline, &closed));
        core.unpin();
        finished
    }

    /// As [`settle_stream`](Self::settle_stream), for a stream of another pool or one that has left.
    fn settle_elsewhere(&self, id: TimelineId) -> Result<bool, Error> {
        match self.stream_of(id) {
            Some(core) => self.settle_stream(&core),
            None => self.ask_retired(id),
        }
    }

    /// Whether all of a timeline has finished whose stream has left: its last epoch is closed.
    fn ask_retired(&self, id: TimelineId) -> Result<bool, Error> {
        let timeline = self.central.lock().timelines.get(id).cloned();
        let Some(timeline) = timeline else { return Ok(true) };
        match timeline.latest() {
            Some(closed) => Ok(self.ask(&timeline, &closed)? && timeline.is_over()),
            None => Ok(timeline.is_over()),
        }
    }
}

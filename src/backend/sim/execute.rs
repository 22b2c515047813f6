//! Executing operations: at every call as the schedule says, and as far as a synchronize needs.
#![forbid(unsafe_code)]

use std::time::Instant;

use super::clock::{OpNumber, TimelineId};
use super::config::Schedule;
use super::error::SimErrorCode as Code;
use super::state::{Guard, Machine, State};
use super::thread;
use super::work::Work;

/// A host function that has to run with no lock held.
struct Job {
    timeline: TimelineId,
    function: Box<dyn FnOnce() + Send>,
}

/// How far a schedule has come towards what a synchronize waits for.
enum Progress {
    Reached,
    Host(Job),
    /// Nothing can execute that would help.
    Stuck,
}

impl Machine {
    /// Executes what the schedule executes at every host call.
    #[inline]
    pub(super) fn settle<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        let limit = match state.engine.schedule {
            Schedule::Timed => state.engine.now,
            Schedule::Lazy => return state,
            Schedule::Frozen(_) => u64::MAX,
            Schedule::Random => {
                while !state.engine.random().is_multiple_of(3)
                    && let Some(next) = state.engine.due(u64::MAX)
                {
                    state = self.execute(state, next);
                }
                return state;
            }
        };
        while let Some(next) = state.engine.due(limit) {
            state = self.execute(state, next);
        }
        state
    }

    /// Lets time pass until the device has nothing left that ends on its own. The host learns
    /// nothing by that: to the oracle, a call that happens to wait is no synchronize.
    pub(super) fn let_finish<'a>(&'a self, mut state: Guard<'a>, context: usize) -> Guard<'a> {
        while state.engine.schedule == Schedule::Timed
            && state.engine.is_running(context)
            && let Some(next) = state.engine.due(u64::MAX)
        {
            state = self.execute(state, next);
        }
        state
    }

    /// Executes the head of a stream, its host function too.
    #[inline]
    pub(super) fn execute<'a>(&'a self, mut state: Guard<'a>, timeline: TimelineId) -> Guard<'a> {
        match state.execute(timeline) {
            None => state,
            Some(job) => self.run_job(state, job),
        }
    }

    /// Runs a host function with no lock held, as the driver's own thread would.
    #[cold]
    fn run_job<'a>(&'a self, state: Guard<'a>, job: Job) -> Guard<'a> {
        /// Finishes the operation also when the function panics: else the stream would hang.
        struct Finish<'a>(&'a Machine, TimelineId);
        impl Drop for Finish<'_> {
            fn drop(&mut self) {
                let mut state = self.0.lock();
                state.engine.end_running(self.1);
                drop(state);
                self.0.wake.notify_all();
            }
        }
        drop(state);
        let finish = Finish(self, job.timeline);
        thread::as_host_function(job.function);
        drop(finish);
        self.lock()
    }

    /// Executes, as the schedule says, until an operation has executed. `false` when nobody helped
    /// within the machine's patience.
    pub(super) fn wait_for<'a>(
        &'a self,
        mut state: Guard<'a>,
        timeline: TimelineId,
        op: OpNumber,
    ) -> (Guard<'a>, bool) {
        let mut deadline = None;
        loop {
            match state.advance_to(timeline, op) {
                Progress::Reached => return (state, true),
                Progress::Host(job) => state = self.run_job(state, job),
                Progress::Stuck => {
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.patience);
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return (state, false);
                    }
                    state = match self.wake.wait_timeout(state, left) {
                        Ok((state, _)) => state,
                        Err(poisoned) => poisoned.into_inner().0,
                    };
                }
            }
        }
    }
}

impl State {
    /// Executes the head of a stream, which is ready, or takes the host function out of it that has
    /// to run first.
    #[inline]
    fn execute(&mut self, id: TimelineId) -> Option<Job> {
        if let Work::Kernel(launched) = &mut self.engine.head_mut(id).work
            && let Some(function) = launched.function.take()
        {
            self.engine.set_running(id);
            // The bytes are as the kernel leaves them when its function runs.
            self.execute_accesses(id);
            return Some(Job { timeline: id, function });
        }
        self.execute_accesses(id);
        self.engine.finish_head(id);
        None
    }

    fn execute_accesses(&mut self, id: TimelineId) {
        if !self.check {
            return;
        }
        let context = self.engine.timeline(id).context;
        let op = self.engine.head_mut(id);
        let Work::Kernel(launched) = &op.work else { return };
        let good = self.oracle.execute(
            &self.memory,
            op.number,
            (id, context),
            &launched.accesses,
            (launched.stamp, launched.changes),
        );
        if !good {
            self.contexts[context].note_sticky(Code::IllegalAddress);
        }
    }

    /// One step towards an operation's execution, or all of them.
    fn advance_to(&mut self, timeline: TimelineId, op: OpNumber) -> Progress {
        while !self.engine.has_executed(timeline, op) {
            let next = match self.engine.schedule {
                Schedule::Timed | Schedule::Random => self.engine.due(u64::MAX),
                Schedule::Lazy | Schedule::Frozen(_) => self.engine.needed(timeline, op),
            };
            let Some(next) = next else { return Progress::Stuck };
            if let Some(job) = self.execute(next) {
                return Progress::Host(job);
            }
        }
        let end = self.engine.find(timeline).map_or(0, |timeline| timeline.end);
        if self.engine.schedule != Schedule::Timed {
            self.engine.now = self.engine.now.max(end);
        }
        Progress::Reached
    }
}

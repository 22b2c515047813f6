//! One simulated machine: its lock, its devices, and the way into and out of every call.
#![forbid(unsafe_code)]

use std::fmt;
use std::time::{Duration, Instant};

use super::capture::Captures;
use super::clock::{OpNumber, TimelineId};
use super::config::{Costs, Schedule, SimConfig};
use super::counts::{Call, CallCounts};
use super::engine::{Engine, Work};
use super::error::{SimError, SimErrorCode as Code};
use super::events::Events;
use super::faults::{Faults, Strike, injected};
use super::kernel::GateId;
use super::memory::Memory;
use super::oracle::Oracle;
use super::pause::{PausePoint, Pauses};
use super::thread;
use crate::backend::StreamKind;
use crate::sync::CallPoint;
use crate::sync::host::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering};

/// Numbers machines and contexts: never used again.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(super) fn new_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// What all devices of one machine share.
pub(super) struct Machine {
    pub(super) id: u64,
    /// Woken when something happened that a blocked host thread may have waited for.
    pub(super) wake: Condvar,
    pub(super) patience: Duration,
    state: Mutex<State>,
    point: CallPoint,
}

pub(super) struct State {
    pub(super) check: bool,
    pub(super) costs: Costs,
    pub(super) engine: Engine,
    pub(super) memory: Memory,
    pub(super) oracle: Oracle,
    pub(super) events: Events,
    pub(super) captures: Captures,
    pub(super) contexts: Vec<Context>,
}

/// One device.
pub(super) struct Context {
    pub(super) id: u64,
    pub(super) counts: CallCounts,
    pub(super) faults: Faults,
    pub(super) pauses: Pauses,
    /// The sticky error, once there is one.
    pub(super) lost: Option<Code>,
    pub(super) legacy: TimelineId,
    /// Streams that the legacy stream orders, as long as they have unfinished work.
    pub(super) blocking: Vec<TimelineId>,
    pub(super) per_thread: Vec<(u64, TimelineId)>,
    /// Streams that may have work which the host has not seen finish.
    pub(super) listed: Vec<TimelineId>,
    /// Raw handles of destroyed streams, to be used again, last in first out.
    pub(super) handles: Vec<u64>,
    pub(super) streams_made: u64,
    pub(super) streams: u64,
    pub(super) events: u64,
}

/// A host function that has to run with no lock held.
pub(super) struct Job {
    timeline: TimelineId,
    function: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Machine {
    /// A machine's state is no reading matter.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Who makes a call. The program's own calls are not counted, and no plan of a test makes them fail
/// or holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Pool,
    Program,
}

/// How far a schedule has come towards what a synchronize waits for.
pub(super) enum Progress {
    Reached,
    Host(Job),
    /// Nothing can execute that would help.
    Stuck,
}

pub(super) type Guard<'a> = MutexGuard<'a, State>;

impl Machine {
    pub(super) fn new(config: SimConfig, devices: usize) -> Machine {
        assert!((1..=64).contains(&devices), "a machine has 1 to 64 devices, not {devices}");
        if let Some(granularity) = config.granularity {
            let good = granularity.is_power_of_two() && granularity >= 256;
            assert!(good, "a granularity is a power of two of at least 256, not {granularity}");
        }
        let totals = std::iter::repeat_n(config.memory_bytes, devices);
        let mut state = State {
            check: config.check,
            costs: config.costs,
            engine: Engine::new(config.schedule, config.seed),
            memory: Memory::new(config.granularity, totals),
            oracle: Oracle::default(),
            events: Events::default(),
            captures: Captures::default(),
            contexts: Vec::with_capacity(devices),
        };
        for context in 0..devices {
            let legacy = state.add_timeline(context, StreamKind::Legacy);
            state.contexts.push(Context {
                id: new_id(),
                counts: CallCounts::default(),
                faults: Faults::default(),
                pauses: Pauses::default(),
                lost: None,
                legacy,
                blocking: Vec::new(),
                per_thread: Vec::new(),
                listed: Vec::new(),
                handles: Vec::new(),
                streams_made: 0,
                streams: 0,
                events: 0,
            });
        }
        Machine {
            id: new_id(),
            wake: Condvar::new(),
            patience: config.patience,
            state: Mutex::new(state),
            point: CallPoint::default(),
        }
    }

    /// The state, also after a test has panicked in a host function.
    pub(super) fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes a call: counts it, lets its time pass, executes what is due, and unless it fails before
    /// that, gives it its effect.
    #[inline]
    pub(super) fn call<R>(
        &self,
        context: usize,
        (call, by): (Call, By),
        effect: impl FnOnce(&mut State) -> Result<R, Code>,
    ) -> Result<R, SimError> {
        let (mut state, after) = self.enter(context, (call, by))?;
        let result = effect(&mut state).map_err(|code| SimError::new(code, call));
        self.leave(state, context, (call, by), after)?;
        result
    }

    /// The part of a call before its effect. `Some` is the error that it returns after it.
    pub(super) fn enter(
        &self,
        context: usize,
        (call, by): (Call, By),
    ) -> Result<(Guard<'_>, Option<SimError>), SimError> {
        if call.is_ordering() {
            self.point.reach();
        }
        let mut state = self.lock();
        if by == By::Pool {
            state.contexts[context].counts.add(call);
        }
        if thread::in_host_function() {
            state.oracle.misuse(format!("{call} in a host function"));
            return Err(SimError::new(Code::NotPermitted, call));
        }
        if by == By::Pool && !state.contexts[context].pauses.is_empty() {
            state = self.pass(state, context, call, PausePoint::Before);
        }
        state.engine.now += state.costs.base(call);
        state = self.settle(state);
        if call == Call::FreeSegment && state.costs.free_segment_waits {
            state = self.let_finish(state, context);
        }
        let mut after = None;
        if by == By::Pool && !state.contexts[context].faults.is_empty() {
            let (code, late) = match state.contexts[context].faults.strike(call) {
                None => (None, false),
                Some(Strike::Instead(code)) => (Some(code), false),
                Some(Strike::After(code)) => (Some(code), true),
            };
            if let Some(code) = code {
                let error = injected(code, call);
                if late {
                    after = Some(error);
                } else {
                    state.contexts[context].note_sticky(code);
                    return Err(error);
                }
            }
        }
        match state.contexts[context].lost {
            Some(code) => Err(SimError::new(code, call)),
            None => Ok((state, after)),
        }
    }

    /// The part of a call after its effect.
    #[inline]
    pub(super) fn leave<'a>(
        &'a self,
        mut state: Guard<'a>,
        context: usize,
        (call, by): (Call, By),
        after: Option<SimError>,
    ) -> Result<(), SimError> {
        if by == By::Pool && !state.contexts[context].pauses.is_empty() {
            state = self.pass(state, context, call, PausePoint::After);
        }
        match after {
            None => Ok(()),
            Some(error) => {
                state.contexts[context].note_sticky(error.code());
                Err(error)
            }
        }
    }

    #[cold]
    fn pass<'a>(
        &'a self,
        mut state: Guard<'a>,
        context: usize,
        call: Call,
        point: PausePoint,
    ) -> Guard<'a> {
        let Some(held) = state.contexts[context].pauses.reach(call, point) else { return state };
        drop(state);
        held.take();
        self.lock()
    }

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
    fn let_finish<'a>(&'a self, mut state: Guard<'a>, context: usize) -> Guard<'a> {
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
    pub(super) fn run_job<'a>(&'a self, state: Guard<'a>, job: Job) -> Guard<'a> {
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

impl Context {
    /// An error that later calls will return too, if it is of that kind.
    pub(super) fn note_sticky(&mut self, code: Code) {
        if code.kind() == crate::backend::ErrorKind::DeviceLost {
            self.lost.get_or_insert(code);
        }
    }
}

impl State {
    pub(super) fn add_timeline(&mut self, context: usize, kind: StreamKind) -> TimelineId {
        self.oracle.done.push();
        self.engine.add_timeline(context, kind)
    }

    /// Executes the head of a stream, which is ready, or takes the host function out of it that has
    /// to run first.
    #[inline]
    pub(super) fn execute(&mut self, id: TimelineId) -> Option<Job> {
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

    pub(super) fn open_gate(&mut self, gate: GateId) {
        self.engine.open_gate(gate);
    }
}

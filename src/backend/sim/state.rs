//! One simulated machine: its lock, its devices, and the way into and out of every call.
#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

use super::capture::Captures;
use super::clock::TimelineId;
use super::config::{Costs, Schedule, SimConfig};
use super::counts::{self, Call, CallCounts};
use super::engine::Engine;
use super::error::{SimError, SimErrorCode as Code};
use super::events::Events;
use super::faults::{Faults, Strike};
use super::kernel::GateId;
use super::memory::Memory;
use super::oracle::Oracle;
use super::pause::{PausePoint, Pauses};
use super::thread;
use crate::backend::{ErrorKind, StreamKind};
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
    /// Woken when a gate has opened or a host function has returned: a host thread that is stuck can
    /// wait for nothing else.
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
        let fail = |code| SimError::new(code, call);
        let mut state = self.lock();
        if call.is_uneventful() && state.is_uneventful(context) && !thread::in_host_function() {
            if by == By::Pool {
                state.count(context, call);
            }
            state.engine.now += state.costs.base(call);
            return effect(&mut state).map_err(fail);
        }
        drop(state);
        let (mut state, after) = self.enter(context, (call, by))?;
        let result = effect(&mut state).map_err(fail);
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
            state.count(context, call);
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
        let faults = &mut state.contexts[context].faults;
        let strike = if by == By::Pool { faults.strike(call) } else { None };
        let after = match strike {
            None => None,
            Some(Strike::After(code)) => Some(SimError::injected(code, call)),
            Some(Strike::Instead(code)) => {
                state.contexts[context].note_sticky(code);
                return Err(SimError::injected(code, call));
            }
        };
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
}

impl Context {
    /// An error that later calls will return too, if it is of that kind.
    pub(super) fn note_sticky(&mut self, code: Code) {
        if code.kind() == ErrorKind::DeviceLost {
            self.lost.get_or_insert(code);
        }
    }
}

impl State {
    /// Counts a call that a pool makes, for its context and for the thread.
    #[inline]
    fn count(&mut self, context: usize, call: Call) {
        self.contexts[context].counts.add(call);
        counts::note_call(call);
    }

    /// Whether a call can only have its effect: no plan of a test is waiting for one, the device is well,
    /// and nothing that executes at host calls is due.
    #[inline]
    fn is_uneventful(&self, context: usize) -> bool {
        let own = &self.contexts[context];
        own.pauses.is_empty()
            && own.faults.is_empty()
            && own.lost.is_none()
            && self.engine.schedule == Schedule::Timed
            && self.engine.is_at_rest()
    }

    /// A call that concerns two devices fails for either of them that is lost.
    pub(super) fn is_well(&self, context: usize) -> Result<(), Code> {
        self.contexts[context].lost.map_or(Ok(()), Err)
    }

    pub(super) fn add_timeline(&mut self, context: usize, kind: StreamKind) -> TimelineId {
        self.oracle.done.push();
        self.engine.add_timeline(context, kind)
    }

    pub(super) fn open_gate(&mut self, gate: GateId) {
        self.engine.open_gate(gate);
    }
}

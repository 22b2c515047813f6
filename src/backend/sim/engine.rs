//! Streams as queues of operations, and which operation executes next.
//!
//! One agenda serves every schedule. It holds the heads of the queues that can execute, by a key:
//! the end time on the virtual clock, a random number, or nothing but the operation's own number. A
//! head is on the agenda once it is ready; an entry is void when that head has executed since.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::capture::CaptureId;
use super::clock::{Clock, OpNumber, TimelineId};
use super::config::Schedule;
use super::kernel::GateId;
use super::work::{Op, Work};
use crate::backend::StreamKind;

/// One stream that was ever created: its queue, and what it is ordered after. It lives until its
/// stream is destroyed and the host has seen its last operation finish.
#[derive(Debug)]
pub(super) struct Timeline {
    pub(super) context: usize,
    pub(super) kind: StreamKind,
    /// The last operation submitted, and the last executed.
    pub(super) last: OpNumber,
    pub(super) executed: OpNumber,
    /// What the next operation is ordered after, on other timelines.
    pub(super) clock: Clock,
    pub(super) capture: Option<CaptureId>,
    /// Whether the stream has been destroyed.
    pub(super) destroyed: bool,
    /// Whether it is on its context's list of what a synchronize must look at.
    pub(super) listed: bool,
    /// When the last executed operation ended.
    pub(super) end: u64,
    queue: VecDeque<Op>,
    head: Head,
    /// Streams whose head waits for an operation of this one.
    waiters: Vec<(OpNumber, TimelineId)>,
    /// The first operation that somebody waits for.
    next_wake: OpNumber,
}

/// The state of the operation at the head of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    Blocked,
    Ready,
    /// Ready, but kept from executing by [`Schedule::Frozen`].
    Frozen,
    /// Its host function runs on some thread.
    Running,
}

#[derive(Debug, Default)]
pub(super) struct GateState {
    pub(super) open: bool,
    waiters: Vec<TimelineId>,
}

#[derive(Debug)]
pub(super) struct Engine {
    pub(super) schedule: Schedule,
    /// The virtual clock, in nanoseconds.
    pub(super) now: u64,
    /// The last operation number given.
    pub(super) submitted: OpNumber,
    pub(super) gates: Vec<GateState>,
    timelines: Vec<Option<Box<Timeline>>>,
    agenda: BinaryHeap<Reverse<(u64, OpNumber, TimelineId)>>,
    /// The time at which heads that become ready now start: the end of the operation that released
    /// them, or the present.
    moment: u64,
    random: u64,
}

impl Engine {
    pub(super) fn new(schedule: Schedule, seed: u64) -> Self {
        Engine {
            schedule,
            now: 0,
            submitted: 0,
            gates: Vec::new(),
            timelines: Vec::new(),
            agenda: BinaryHeap::new(),
            moment: 0,
            random: seed,
        }
    }

    pub(super) fn add_timeline(&mut self, context: usize, kind: StreamKind) -> TimelineId {
        let id = TimelineId(u32::try_from(self.timelines.len()).expect("at most 2^32 streams"));
        self.timelines.push(Some(Box::new(Timeline {
            context,
            kind,
            last: 0,
            executed: 0,
            clock: Clock::default(),
            capture: None,
            destroyed: false,
            listed: false,
            end: 0,
            queue: VecDeque::new(),
            head: Head::Blocked,
            waiters: Vec::new(),
            next_wake: OpNumber::MAX,
        })));
        id
    }

    pub(super) fn find(&self, id: TimelineId) -> Option<&Timeline> {
        self.timelines[id.index()].as_deref()
    }

    /// A timeline that lives, because its stream does or because it has operations to execute.
    #[inline]
    pub(super) fn timeline(&self, id: TimelineId) -> &Timeline {
        self.timelines[id.index()].as_deref().expect("the timeline of a stream in use lives")
    }

    #[inline]
    pub(super) fn timeline_mut(&mut self, id: TimelineId) -> &mut Timeline {
        self.timelines[id.index()].as_deref_mut().expect("the timeline of a stream in use lives")
    }

    /// Forgets a timeline, all of whose operations the host has seen finish.
    pub(super) fn remove(&mut self, id: TimelineId) {
        self.timelines[id.index()] = None;
    }

    #[inline]
    pub(super) fn has_executed(&self, id: TimelineId, op: OpNumber) -> bool {
        self.find(id).is_none_or(|timeline| timeline.executed >= op)
    }

    /// The next operation number, which is now the last of its timeline.
    #[inline]
    pub(super) fn number(&mut self, id: TimelineId) -> OpNumber {
        self.submitted += 1;
        let number = self.submitted;
        self.timeline_mut(id).last = number;
        number
    }

    /// A number from splitmix64.
    pub(super) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Puts an operation at the end of its stream's queue.
    pub(super) fn push(&mut self, id: TimelineId, number: OpNumber, work: Work) {
        let now = self.now;
        if self.is_instant(id, number, &work) {
            let timeline = self.timeline_mut(id);
            timeline.executed = number;
            timeline.end = now;
            return;
        }
        let timeline = self.timeline_mut(id);
        timeline.queue.push_back(Op { number, submitted: now, work });
        if timeline.queue.len() == 1 {
            self.moment = now;
            self.start_head(id);
        }
    }

    /// Whether an operation has executed by the time it is submitted, so that it need not be queued:
    /// it takes no time, and nothing is before it.
    fn is_instant(&self, id: TimelineId, number: OpNumber, work: &Work) -> bool {
        let eager = match self.schedule {
            Schedule::Timed => true,
            Schedule::Frozen(frozen) => frozen != number,
            Schedule::Random | Schedule::Lazy => false,
        };
        eager
            && self.timeline(id).queue.is_empty()
            && match *work {
                Work::Marker => true,
                Work::Wait(other, op) => self.has_executed(other, op),
                Work::Kernel(_) => false,
            }
    }

    /// Finds out whether the operation at the head of a queue can execute, and puts it on the agenda
    /// or on the list of what it waits for.
    fn start_head(&mut self, id: TimelineId) {
        let timeline = self.timeline_mut(id);
        let Some(op) = timeline.queue.front() else { return };
        let number = op.number;
        let duration = match &op.work {
            Work::Marker | Work::Wait(..) => 0,
            Work::Kernel(launched) => launched.duration,
        };
        timeline.head = Head::Blocked;
        if self.is_held_back(id) {
            return;
        }
        let key = match self.schedule {
            Schedule::Timed => self.moment + duration,
            Schedule::Random => self.random(),
            Schedule::Frozen(frozen) if frozen == number => {
                self.timeline_mut(id).head = Head::Frozen;
                return;
            }
            Schedule::Frozen(_) | Schedule::Lazy => 0,
        };
        self.timeline_mut(id).head = Head::Ready;
        self.agenda.push(Reverse((key, number, id)));
        if self.agenda.len() > 4 * self.timelines.len() + 64 {
            let timelines = &self.timelines;
            self.agenda.retain(|&Reverse((_, number, id))| is_ready(timelines, id, number));
        }
    }

    /// Whether the head waits for something, which then knows of it.
    fn is_held_back(&mut self, id: TimelineId) -> bool {
        match &self.head(id).work {
            Work::Marker => false,
            &Work::Wait(other, op) => {
                if self.has_executed(other, op) {
                    return false;
                }
                let awaited = self.timeline_mut(other);
                awaited.waiters.push((op, id));
                awaited.next_wake = awaited.next_wake.min(op);
                true
            }
            Work::Kernel(launched) => {
                let closed = launched.gates.iter().find(|&&gate| !self.gates[gate].open);
                let Some(&gate) = closed else { return false };
                self.gates[gate].waiters.push(id);
                true
            }
        }
    }

    /// Whether nothing will execute on its own, at whatever time.
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        self.agenda.is_empty()
    }

    /// The next stream on the agenda whose head may execute, up to this key.
    #[inline]
    pub(super) fn due(&mut self, limit: u64) -> Option<TimelineId> {
        while let Some(&Reverse((key, number, id))) = self.agenda.peek() {
            if key > limit {
                return None;
            }
            self.agenda.pop();
            if is_ready(&self.timelines, id, number) {
                if self.schedule == Schedule::Timed {
                    self.moment = key;
                    self.now = self.now.max(key);
                }
                return Some(id);
            }
        }
        None
    }

    /// The stream whose head must execute next so that `op` of stream `id` can; `None` when that
    /// head cannot execute now, because a gate is closed or its host function runs.
    pub(super) fn needed(&self, id: TimelineId, op: OpNumber) -> Option<TimelineId> {
        let (mut id, mut op) = (id, op);
        loop {
            let timeline = self.timeline(id);
            debug_assert!(timeline.executed < op, "nothing is needed for what has executed");
            match timeline.head {
                Head::Ready | Head::Frozen => return Some(id),
                Head::Running => return None,
                Head::Blocked => match timeline.queue.front()?.work {
                    // Waits point to smaller numbers only, so that this ends.
                    Work::Wait(other, awaited) => (id, op) = (other, awaited),
                    Work::Marker | Work::Kernel(_) => return None,
                },
            }
        }
    }

    fn head(&self, id: TimelineId) -> &Op {
        self.timeline(id).queue.front().expect("a stream that is not idle has a head")
    }

    /// The operation at the head of a stream, to execute now.
    pub(super) fn head_mut(&mut self, id: TimelineId) -> &mut Op {
        self.timeline_mut(id).queue.front_mut().expect("a ready stream has a head")
    }

    /// Marks the head as running a host function.
    pub(super) fn set_running(&mut self, id: TimelineId) {
        self.timeline_mut(id).head = Head::Running;
    }

    /// The host function at the head of a stream has returned.
    pub(super) fn end_running(&mut self, id: TimelineId) {
        self.moment = self.now;
        self.finish_head(id);
    }

    /// Takes the head off its queue: it has executed. What waited for it may become ready.
    pub(super) fn finish_head(&mut self, id: TimelineId) {
        let ended = match self.schedule {
            Schedule::Timed => self.moment,
            _ => self.end_of_head(id),
        };
        let timeline = self.timeline_mut(id);
        let op = timeline.queue.pop_front().expect("a head that executed is there");
        timeline.executed = op.number;
        timeline.end = ended;
        let woken = timeline.next_wake <= op.number;
        self.start_head(id);
        if woken {
            self.wake_waiters(id);
        }
    }

    /// When the head ends, in the schedules that the virtual clock does not drive.
    fn end_of_head(&self, id: TimelineId) -> u64 {
        let timeline = self.timeline(id);
        let head = self.head(id);
        let start = timeline.end.max(head.submitted);
        match &head.work {
            Work::Marker => start,
            &Work::Wait(other, _) => start.max(self.find(other).map_or(0, |other| other.end)),
            Work::Kernel(launched) => start + launched.duration,
        }
    }

    fn wake_waiters(&mut self, id: TimelineId) {
        let timeline = self.timeline_mut(id);
        let executed = timeline.executed;
        let (woken, still): (Vec<_>, Vec<_>) =
            std::mem::take(&mut timeline.waiters).into_iter().partition(|&(op, _)| op <= executed);
        timeline.next_wake = still.iter().map(|&(op, _)| op).min().unwrap_or(OpNumber::MAX);
        timeline.waiters = still;
        for (_, waiter) in woken {
            self.start_if_blocked(waiter);
        }
    }

    /// A schedule may have executed a waiter's head on the way, so that it waits no more.
    fn start_if_blocked(&mut self, id: TimelineId) {
        if self.find(id).is_some_and(|timeline| timeline.head == Head::Blocked) {
            self.start_head(id);
        }
    }

    pub(super) fn open_gate(&mut self, gate: GateId) {
        self.moment = self.now;
        self.gates[gate].open = true;
        for waiter in std::mem::take(&mut self.gates[gate].waiters) {
            self.start_if_blocked(waiter);
        }
    }

    /// Whether a device executes something that will end on its own.
    pub(super) fn is_running(&self, context: usize) -> bool {
        self.agenda.iter().any(|&Reverse((_, number, id))| {
            is_ready(&self.timelines, id, number) && self.timeline(id).context == context
        })
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn live_timelines(&self) -> usize {
        self.timelines.iter().flatten().count()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn agenda_len(&self) -> usize {
        self.agenda.len()
    }

    /// Whether a stream has operations that have not executed.
    pub(super) fn is_busy(&self, id: TimelineId) -> bool {
        self.find(id).is_some_and(|timeline| !timeline.queue.is_empty())
    }
}

fn is_ready(timelines: &[Option<Box<Timeline>>], id: TimelineId, number: OpNumber) -> bool {
    timelines[id.index()].as_deref().is_some_and(|timeline| {
        timeline.head == Head::Ready
            && timeline.queue.front().is_some_and(|head| head.number == number)
    })
}

//! What the host puts on streams, and what it learns from them.
#![forbid(unsafe_code)]

use super::capture::SimGraph;
use super::clock::{Clock, OpNumber, TimelineId};
use super::counts::Call;
use super::error::{SimError, SimErrorCode as Code};
use super::events::{Snapshot, Target, Targets};
use super::kernel::{Kernel, UNRESOLVED};
use super::oracle::Submission;
use super::state::{By, Machine, State};
use super::work::{Launched, Work};
use crate::backend::StreamKind;
use crate::sync::Arc;

impl Machine {
    /// Whether an event has finished. Its capture, if it has one, does not survive the question.
    pub(super) fn query(
        &self,
        context: usize,
        by: By,
        event: usize,
        check: impl FnOnce(&mut State) -> Result<(), Code>,
    ) -> Result<bool, SimError> {
        self.call(context, (Call::Query, by), |state| {
            check(state)?;
            let targets = state.targets_of(event)?;
            let targets = targets.as_slice();
            if !targets.iter().all(|(timeline, op, _)| state.engine.has_executed(*timeline, *op)) {
                return Ok(false);
            }
            let costs = &state.costs;
            state.engine.now += costs.query_finished.saturating_sub(costs.query_pending);
            for (timeline, op, clock) in targets {
                state.learn(*timeline, *op, clock);
            }
            Ok(true)
        })
    }

    pub(super) fn synchronize_event(
        &self,
        context: usize,
        by: By,
        event: usize,
        check: impl FnOnce(&mut State) -> Result<(), Code>,
    ) -> Result<(), SimError> {
        self.synchronize(context, (Call::SynchronizeEvent, by), |state| {
            check(state)?;
            Ok(state.targets_of(event)?.as_slice().to_vec())
        })
    }

    pub(super) fn synchronize_context(&self, context: usize) -> Result<(), SimError> {
        self.synchronize(context, (Call::SynchronizeContext, By::Pool), |state| {
            state.break_captures_of(context)?;
            Ok(state.targets_of_context(context))
        })
    }

    pub(super) fn synchronize(
        &self,
        context: usize,
        (call, by): (Call, By),
        targets: impl FnOnce(&mut State) -> Result<Vec<Target>, Code>,
    ) -> Result<(), SimError> {
        let fail = |code| SimError::new(code, call);
        let (mut state, after) = self.enter(context, (call, by))?;
        let targets = targets(&mut state).map_err(fail)?;
        for (timeline, op, _) in &targets {
            let reached;
            (state, reached) = self.wait_for(state, *timeline, *op);
            if !reached {
                return Err(fail(Code::Stuck));
            }
        }
        if let Some(code) = state.contexts[context].lost {
            return Err(fail(code));
        }
        // An error says nothing about what has finished.
        if after.is_none() {
            for (timeline, op, clock) in &targets {
                state.learn(*timeline, *op, clock);
            }
        }
        self.leave(state, context, (call, by), after)
    }
}

impl State {
    /// What it takes for an event to have finished; nothing for one that was never recorded.
    fn targets_of(&mut self, event: usize) -> Result<Targets, Code> {
        match self.events.snapshot(event)? {
            Snapshot::Never => Ok(Targets::none()),
            Snapshot::Recorded { timeline, op, clock } => {
                Ok(Targets::One([(*timeline, *op, clock.clone())]))
            }
            Snapshot::Context(targets) => Ok(Targets::All(Arc::clone(targets))),
            Snapshot::Captured(snapshot) if self.captures.is_active(snapshot.capture) => {
                let capture = snapshot.capture;
                self.captures.break_it(capture);
                Err(Code::CapturedEvent)
            }
            Snapshot::Captured(_) => Err(Code::InvalidValue),
        }
    }

    pub(super) fn target_of_stream(&self, stream: TimelineId) -> Target {
        let timeline = self.engine.timeline(stream);
        (stream, timeline.last, timeline.clock.clone())
    }

    /// All that a context synchronize waits for. Streams of which the host has seen everything
    /// finish drop off the list.
    fn targets_of_context(&mut self, context: usize) -> Vec<Target> {
        let State { engine, oracle, contexts, .. } = self;
        let alone = contexts.len() == 1;
        let mut targets = Vec::new();
        contexts[context].listed.retain(|&id| {
            let Some(timeline) = engine.find(id) else { return false };
            if oracle.done.covers(id, timeline.last) {
                engine.timeline_mut(id).listed = false;
                return false;
            }
            // On a single device every timeline is a target itself.
            let clock = if alone { Clock::default() } else { timeline.clock.clone() };
            targets.push((id, timeline.last, clock));
            true
        });
        targets
    }

    /// The host has seen an operation finish, and so all that it was ordered after.
    pub(super) fn learn(&mut self, timeline: TimelineId, op: OpNumber, clock: &Clock) {
        // What is covered came with its own clock when it was learned.
        if self.oracle.done.covers(timeline, op) {
            return;
        }
        self.learn_one(timeline, op);
        for &(timeline, op) in clock.entries() {
            self.learn_one(timeline, op);
        }
    }

    #[inline]
    fn learn_one(&mut self, id: TimelineId, op: OpNumber) {
        self.oracle.done.raise(id, op);
        if self.engine.find(id).is_some_and(|timeline| timeline.destroyed && timeline.last <= op) {
            self.forget_timeline(id);
        }
    }

    /// The stream is gone: so is its timeline, at once or when the host has seen its work finish.
    pub(super) fn destroy_stream(&mut self, id: TimelineId) {
        self.leave_capture(id);
        let timeline = self.engine.timeline_mut(id);
        timeline.destroyed = true;
        let last = timeline.last;
        if self.oracle.done.covers(id, last) && !self.engine.is_busy(id) {
            self.forget_timeline(id);
        }
    }

    fn forget_timeline(&mut self, id: TimelineId) {
        let timeline = self.engine.timeline(id);
        let (context, kind) = (timeline.context, timeline.kind);
        if kind != StreamKind::NonBlocking {
            self.contexts[context].blocking.retain(|&blocking| blocking != id);
        }
        self.engine.remove(id);
    }

    pub(super) fn record(&mut self, event: usize, stream: TimelineId) -> Result<(), Code> {
        let timeline = self.engine.timeline(stream);
        let (context, capture) = (timeline.context, timeline.capture);
        self.events.place(event, context)?;
        let snapshot = if let Some(capture) = capture {
            Snapshot::Captured(self.capture_record(capture, stream)?)
        } else {
            self.barrier(stream)?;
            let op = self.number(stream);
            self.engine.push(stream, op, Work::Marker);
            let clock = self.engine.timeline(stream).clock.clone();
            Snapshot::Recorded { timeline: stream, op, clock }
        };
        *self.events.place(event, context)? = snapshot;
        Ok(())
    }

    pub(super) fn record_context(&mut self, event: usize, context: usize) -> Result<(), Code> {
        self.break_captures_of(context)?;
        let targets = self.targets_of_context(context).into();
        *self.events.place(event, context)? = Snapshot::Context(targets);
        Ok(())
    }

    pub(super) fn wait(&mut self, stream: TimelineId, event: usize) -> Result<(), Code> {
        let snapshot = self.events.snapshot(event)?;
        let captures = self.engine.timeline(stream).capture.is_some();
        if captures || matches!(snapshot, Snapshot::Captured(_)) {
            let snapshot = snapshot.clone();
            return self.capture_wait(stream, &snapshot);
        }
        let targets = self.targets_of(event)?;
        self.barrier(stream)?;
        let targets = targets.as_slice().iter();
        let mut others = targets.filter(|target| target.0 != stream).peekable();
        if others.peek().is_none() {
            let op = self.number(stream);
            self.engine.push(stream, op, Work::Marker);
        }
        for (timeline, op, clock) in others {
            self.order_after(stream, *timeline, *op, clock);
        }
        Ok(())
    }

    /// Puts a wait for another timeline's operation on a stream.
    fn order_after(
        &mut self,
        stream: TimelineId,
        other: TimelineId,
        other_op: OpNumber,
        clock: &Clock,
    ) {
        let op = self.number(stream);
        self.engine.push(stream, op, Work::Wait(other, other_op));
        if !self.check {
            return;
        }
        let State { engine, oracle, .. } = self;
        let own = &mut engine.timeline_mut(stream).clock;
        // Whoever covers an operation covers all that it was ordered after.
        if own.get(other) < other_op && !oracle.done.covers(other, other_op) {
            own.join(clock, stream, &oracle.done);
            own.raise(other, other_op, &oracle.done);
        }
    }

    /// The legacy stream's implicit barriers: what is put on it waits for all blocking streams of the
    /// context, and what is put on one of those waits for it.
    #[inline]
    fn barrier(&mut self, stream: TimelineId) -> Result<(), Code> {
        let timeline = self.engine.timeline(stream);
        match timeline.kind {
            StreamKind::NonBlocking => {}
            StreamKind::Blocking | StreamKind::PerThread => {
                let legacy = self.contexts[timeline.context].legacy;
                self.order_after_all_of(stream, legacy);
            }
            StreamKind::Legacy => {
                let context = timeline.context;
                self.check_implicit(context)?;
                for other in self.contexts[context].blocking.clone() {
                    self.order_after_all_of(stream, other);
                }
            }
        }
        Ok(())
    }

    fn order_after_all_of(&mut self, stream: TimelineId, other: TimelineId) {
        let (_, op, clock) = self.target_of_stream(other);
        let covered = self.engine.timeline(stream).clock.get(other) >= op;
        let over = self.engine.has_executed(other, op) && self.oracle.done.covers(other, op);
        if !covered && !over {
            self.order_after(stream, other, op, &clock);
        }
    }

    /// The number of a stream's next operation.
    #[inline]
    fn number(&mut self, stream: TimelineId) -> OpNumber {
        let op = self.engine.number(stream);
        let timeline = self.engine.timeline_mut(stream);
        if !timeline.listed {
            timeline.listed = true;
            let listed = &mut self.contexts[timeline.context].listed;
            // A program that never synchronizes its context must not gather dead streams for ever.
            if listed.len() == listed.capacity() {
                listed.retain(|&id| self.engine.find(id).is_some());
            }
            listed.push(stream);
        }
        op
    }

    /// Takes the kernel only if it is launched: a host function that is dropped may drop a handle,
    /// and so needs the lock.
    pub(super) fn launch(&mut self, stream: TimelineId, kernel: &mut Kernel) -> Result<(), Code> {
        if let Some(capture) = self.engine.timeline(stream).capture {
            return self.capture_kernel(capture, stream, kernel);
        }
        self.barrier(stream)?;
        let op = self.number(stream);
        let Kernel { mut accesses, duration, stamp, gates, function } = std::mem::take(kernel);
        if self.check {
            let timeline = self.engine.timeline(stream);
            let (context, clock) = (timeline.context, &timeline.clock);
            for access in &mut accesses {
                access.physical = UNRESOLVED;
            }
            let submission = Submission { op, timeline: stream, context, clock };
            self.oracle.submit(&self.memory, &submission, &mut accesses);
        }
        let launched = Launched {
            accesses,
            duration: duration.unwrap_or(Kernel::DEFAULT_NS),
            stamp: stamp.unwrap_or(op),
            gates,
            function,
            changes: self.memory.changes,
        };
        self.engine.push(stream, op, Work::Kernel(Box::new(launched)));
        Ok(())
    }

    pub(super) fn launch_graph(
        &mut self,
        graph: &SimGraph,
        stream: TimelineId,
    ) -> Result<(), Code> {
        if let Some(capture) = self.engine.timeline(stream).capture {
            return self.capture_graph(capture, stream, graph);
        }
        for node in graph.nodes.iter() {
            self.launch(stream, &mut node.kernel())?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::backend::Backend;
    use crate::sim::{Kernel, Schedule, SimConfig, SimDevice};

    /// A program that never synchronizes its context must not gather what is over.
    #[test]
    fn nothing_is_left_of_streams_whose_work_was_seen_to_finish() {
        let device = SimDevice::new(1);
        let event = device.create_event().unwrap();
        for _ in 0..2000 {
            let stream = device.create_blocking_stream();
            device.launch(&stream, Kernel::new()).unwrap();
            device.record(&event, &stream).unwrap();
            drop(stream);
            device.synchronize_event(&event).unwrap();
        }
        let state = device.machine.lock();
        assert_eq!(state.engine.live_timelines(), 1, "the legacy stream's");
        assert!(state.contexts[0].listed.len() < 10);
        assert!(state.contexts[0].blocking.is_empty());
    }

    #[test]
    fn a_clock_does_not_remember_streams_whose_work_was_seen_to_finish() {
        let device = SimDevice::new(1);
        let main = device.create_stream();
        let event = device.create_event().unwrap();
        for _ in 0..2000 {
            let stream = device.create_stream();
            device.record(&event, &main).unwrap();
            device.wait(&stream, &event).unwrap();
            device.record(&event, &stream).unwrap();
            device.wait(&main, &event).unwrap();
            drop(stream);
            device.synchronize_event(&event).unwrap();
        }
        let mut state = device.machine.lock();
        let main = main.timeline(&mut state);
        assert!(state.engine.timeline(main).clock.entries().len() < 10);
    }

    #[test]
    fn what_a_synchronize_has_executed_leaves_the_agenda() {
        let device = SimDevice::new(SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() });
        let stream = device.create_stream();
        for _ in 0..2000 {
            device.launch(&stream, Kernel::new()).unwrap();
            device.synchronize_context().unwrap();
        }
        assert!(device.machine.lock().engine.agenda_len() < 100);
    }
}

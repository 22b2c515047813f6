//! Stream capture: what goes into a graph instead of onto the device, and what breaks it.
//!
//! The rules are those measured on an H200 with driver 580, in all three modes; where the
//! measurement is silent they are the driver documentation's, and where that is silent too, the
//! choice is the one that hurts a careless caller more.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::clock::TimelineId;
use super::error::SimErrorCode as Code;
use super::events::Snapshot;
use super::kernel::{Access, GateId, Kernel};
use super::state::State;
use super::thread;
use crate::backend::StreamKind;
use crate::sync::Arc;

/// Which calls a capture forbids to whom (CUDA's `CUstreamCaptureMode`), and which of them a thread
/// has promised not to make ([`SimDevice::exchange_capture_mode`](super::SimDevice::exchange_capture_mode)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Potentially unsafe calls are forbidden to every thread.
    Global,
    /// They are forbidden to the thread that began the capture.
    ThreadLocal,
    /// They are forbidden to nobody.
    Relaxed,
}

/// Numbers of captures are never used again.
pub(super) type CaptureId = u64;

/// A graph made by a capture: kernels to be launched together, any number of times.
///
/// Launched, they execute on the stream one after another, in the order in which they were
/// captured, branches of the graph too.
#[derive(Clone, Debug)]
pub struct SimGraph {
    pub(super) nodes: Arc<Vec<Arc<Node>>>,
}

impl SimGraph {
    /// How many kernels it has.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

/// A captured kernel.
#[derive(Debug)]
pub(super) struct Node {
    accesses: Vec<Access>,
    duration: Option<u64>,
    stamp: Option<u64>,
    gates: Vec<GateId>,
}

impl Node {
    pub(super) fn kernel(&self) -> Kernel {
        Kernel {
            accesses: self.accesses.clone(),
            duration: self.duration,
            stamp: self.stamp,
            gates: self.gates.clone(),
            function: None,
        }
    }
}

/// What a point in a capture comes after: for each of its streams, how many steps.
type Steps = BTreeMap<TimelineId, u64>;

#[derive(Debug)]
struct Capture {
    mode: CaptureMode,
    thread: u64,
    origin: TimelineId,
    broken: bool,
    streams: BTreeMap<TimelineId, Steps>,
    nodes: Vec<Arc<Node>>,
}

impl Capture {
    /// One more step on a stream: what comes later there comes after it.
    fn step(&mut self, stream: TimelineId) -> &mut Steps {
        let steps = self.streams.get_mut(&stream).expect("a capturing stream is in its capture");
        *steps.entry(stream).or_default() += 1;
        steps
    }

    /// Whether the origin comes after all that was captured.
    fn is_joined(&self) -> bool {
        let reached = &self.streams[&self.origin];
        self.streams.iter().all(|(stream, steps)| steps.get(stream) <= reached.get(stream))
    }

    fn forbids(&self, mode: CaptureMode, thread: u64) -> bool {
        match (mode, self.mode) {
            (CaptureMode::Relaxed, _) | (_, CaptureMode::Relaxed) => false,
            (CaptureMode::Global, CaptureMode::Global) => true,
            _ => self.thread == thread,
        }
    }
}

/// An event's record in a capture.
#[derive(Clone, Debug)]
pub(super) struct CapturedSnapshot {
    pub(super) capture: CaptureId,
    steps: Steps,
}

/// All captures in progress, of all devices.
#[derive(Debug, Default)]
pub(super) struct Captures {
    active: BTreeMap<CaptureId, Capture>,
    last: CaptureId,
}

impl Captures {
    #[inline]
    pub(super) fn any(&self) -> bool {
        !self.active.is_empty()
    }

    pub(super) fn is_active(&self, id: CaptureId) -> bool {
        self.active.contains_key(&id)
    }

    pub(super) fn break_it(&mut self, id: CaptureId) {
        if let Some(capture) = self.active.get_mut(&id) {
            capture.broken = true;
        }
    }

    fn of(&mut self, id: CaptureId) -> Result<&mut Capture, Code> {
        let capture = self.active.get_mut(&id).expect("a capturing stream's capture is active");
        if capture.broken { Err(Code::CaptureInvalidated) } else { Ok(capture) }
    }

    /// A call that is potentially unsafe during captures, by the calling thread: breaks those that
    /// forbid it.
    pub(super) fn check_unsafe_call(&mut self) -> Result<(), Code> {
        if self.active.is_empty() {
            return Ok(());
        }
        let (mode, thread) = (thread::capture_mode(), thread::number());
        let mut forbidden = false;
        for capture in self.active.values_mut().filter(|capture| capture.forbids(mode, thread)) {
            capture.broken = true;
            forbidden = true;
        }
        if forbidden { Err(Code::CaptureUnsupported) } else { Ok(()) }
    }
}

impl State {
    pub(super) fn begin_capture(
        &mut self,
        stream: TimelineId,
        mode: CaptureMode,
    ) -> Result<(), Code> {
        let timeline = self.engine.timeline_mut(stream);
        if timeline.kind == StreamKind::Legacy {
            return Err(Code::CaptureUnsupported);
        }
        if timeline.capture.is_some() {
            return Err(Code::InvalidValue);
        }
        self.captures.last += 1;
        timeline.capture = Some(self.captures.last);
        let streams = BTreeMap::from([(stream, Steps::new())]);
        let (thread, origin, nodes) = (thread::number(), stream, Vec::new());
        let capture = Capture { mode, thread, origin, broken: false, streams, nodes };
        self.captures.active.insert(self.captures.last, capture);
        Ok(())
    }

    pub(super) fn end_capture(&mut self, stream: TimelineId) -> Result<SimGraph, Code> {
        let id = self.engine.timeline(stream).capture.ok_or(Code::InvalidValue)?;
        let capture = &self.captures.active[&id];
        if capture.origin != stream {
            return Err(Code::CaptureUnmatched);
        }
        if capture.mode != CaptureMode::Relaxed && capture.thread != thread::number() {
            return Err(Code::CaptureWrongThread);
        }
        let capture = self.drop_capture(id);
        if capture.broken {
            return Err(Code::CaptureInvalidated);
        }
        if !capture.is_joined() {
            return Err(Code::CaptureUnjoined);
        }
        Ok(SimGraph { nodes: Arc::new(capture.nodes) })
    }

    fn drop_capture(&mut self, id: CaptureId) -> Capture {
        let capture = self.captures.active.remove(&id).expect("the capture is active");
        for &stream in capture.streams.keys() {
            self.engine.timeline_mut(stream).capture = None;
        }
        capture
    }

    /// A capturing stream is destroyed: with the origin goes the capture.
    pub(super) fn leave_capture(&mut self, stream: TimelineId) {
        let Some(id) = self.engine.timeline(stream).capture else { return };
        if self.captures.active[&id].origin == stream {
            self.drop_capture(id);
        } else {
            let capture = self.captures.active.get_mut(&id).expect("the capture is active");
            capture.streams.remove(&stream);
            capture.broken = true;
            self.engine.timeline_mut(stream).capture = None;
        }
    }

    pub(super) fn is_capturing(&self, stream: TimelineId) -> bool {
        let timeline = self.engine.timeline(stream);
        match timeline.kind {
            StreamKind::Legacy => self.blocking_captures(timeline.context).next().is_some(),
            _ => timeline.capture.is_some(),
        }
    }

    fn blocking_captures(&self, context: usize) -> impl Iterator<Item = CaptureId> {
        let blocking = &self.contexts[context].blocking;
        blocking.iter().filter_map(|&stream| self.engine.find(stream)?.capture)
    }

    /// The legacy stream is used: it would have to wait for every blocking stream, and cannot for
    /// one that captures.
    pub(super) fn check_implicit(&mut self, context: usize) -> Result<(), Code> {
        let broken: Vec<CaptureId> = self.blocking_captures(context).collect();
        for &id in &broken {
            self.captures.break_it(id);
        }
        if broken.is_empty() { Ok(()) } else { Err(Code::CaptureImplicit) }
    }

    /// A call that no capture of the context survives.
    pub(super) fn break_captures_of(&mut self, context: usize) -> Result<(), Code> {
        let mut forbidden = false;
        for capture in self.captures.active.values_mut() {
            let of = |&stream: &TimelineId| self.engine.timeline(stream).context == context;
            if capture.streams.keys().any(of) {
                capture.broken = true;
                forbidden = true;
            }
        }
        if forbidden { Err(Code::CaptureUnsupported) } else { Ok(()) }
    }

    /// A call about a stream that its capture, if it captures, does not survive.
    pub(super) fn break_capture_on(&mut self, stream: TimelineId) -> Result<(), Code> {
        let timeline = self.engine.timeline(stream);
        if timeline.kind == StreamKind::Legacy {
            return self.check_implicit(timeline.context);
        }
        let Some(id) = timeline.capture else { return Ok(()) };
        self.captures.break_it(id);
        Err(Code::CaptureUnsupported)
    }

    pub(super) fn capture_kernel(
        &mut self,
        id: CaptureId,
        stream: TimelineId,
        kernel: &mut Kernel,
    ) -> Result<(), Code> {
        let capture = self.captures.of(id)?;
        if kernel.function.is_some() {
            return Err(Code::NotSupported);
        }
        capture.step(stream);
        let Kernel { accesses, duration, stamp, gates, .. } = std::mem::take(kernel);
        capture.nodes.push(Arc::new(Node { accesses, duration, stamp, gates }));
        Ok(())
    }

    pub(super) fn capture_graph(
        &mut self,
        id: CaptureId,
        stream: TimelineId,
        graph: &SimGraph,
    ) -> Result<(), Code> {
        let capture = self.captures.of(id)?;
        capture.step(stream);
        capture.nodes.extend(graph.nodes.iter().cloned());
        Ok(())
    }

    pub(super) fn capture_record(
        &mut self,
        id: CaptureId,
        stream: TimelineId,
    ) -> Result<CapturedSnapshot, Code> {
        let steps = self.captures.of(id)?.step(stream).clone();
        Ok(CapturedSnapshot { capture: id, steps })
    }

    /// A stream waits for an event, and one of the two belongs to a capture.
    pub(super) fn capture_wait(
        &mut self,
        stream: TimelineId,
        snapshot: &Snapshot,
    ) -> Result<(), Code> {
        let own = self.engine.timeline(stream).capture;
        let Snapshot::Captured(snapshot) = snapshot else {
            // Work outside the capture, or none at all: measured for the one, supposed of the other.
            let id = own.expect("one of the two captures");
            self.captures.of(id)?;
            self.captures.break_it(id);
            return Err(Code::CaptureIsolation);
        };
        if !self.captures.is_active(snapshot.capture) {
            return Err(Code::InvalidValue);
        }
        if own.is_some_and(|own| own != snapshot.capture) {
            self.captures.break_it(snapshot.capture);
            self.captures.break_it(own.expect("just seen"));
            return Err(Code::CaptureMerge);
        }
        let kind = self.engine.timeline(stream).kind;
        let capture = self.captures.of(snapshot.capture)?;
        if kind == StreamKind::Legacy {
            capture.broken = true;
            return Err(Code::CaptureImplicit);
        }
        // A stream outside is drawn in: what it does from here on goes into the graph, and the
        // capture cannot end before the origin has waited for it again.
        capture.streams.entry(stream).or_default();
        self.engine.timeline_mut(stream).capture = Some(snapshot.capture);
        let capture = self.captures.of(snapshot.capture)?;
        let steps = capture.step(stream);
        for (&other, &step) in &snapshot.steps {
            let reached = steps.entry(other).or_default();
            *reached = step.max(*reached);
        }
        Ok(())
    }
}

//! Stream capture: what belongs to it, and which calls break it.
//!
//! The rules are those measured on an H200 with driver 580:
//!
//! - A *potentially unsafe* call (event query or synchronize, stream query or synchronize, memory
//!   from `cuMemAlloc`, `cuMemFree` and the driver's pools) fails and breaks every capture in global
//!   mode, on any device, and the calling thread's own in thread-local mode; unless the calling
//!   thread is in relaxed mode.
//! - Asking a capturing stream, or synchronizing its context, breaks the capture always.
//! - A capturing stream that waits for an event from outside breaks its capture; another stream that
//!   waits for an event from inside is drawn into it.
//! - Virtual memory, creating and destroying streams and events, records and waits elsewhere: fine.

use std::collections::BTreeMap;

use crate::code::{Code, Outcome};
use crate::state::Driver;
use crate::stream::{Op, StreamId};
use crate::thread;

/// A capture's own number, never used again.
pub(crate) type CaptureId = u64;

#[derive(Debug)]
struct Capture {
    mode: u32,
    thread: u64,
    origin: StreamId,
    broken: bool,
    /// The streams in it, and whether their last work has been waited for within the capture.
    members: BTreeMap<StreamId, bool>,
    ops: Vec<Op>,
}

#[derive(Debug)]
pub(crate) struct Captures {
    all: BTreeMap<CaptureId, Capture>,
    last: CaptureId,
}

impl Captures {
    pub(crate) const fn new() -> Captures {
        Captures { all: BTreeMap::new(), last: 0 }
    }
}

impl Driver {
    pub(crate) fn begin_capture(&mut self, stream: StreamId, mode: u32) -> Outcome {
        if self.is_legacy(stream) || mode > thread::RELAXED {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let found = self.streams.all.get_mut(&stream).ok_or(Code::INVALID_HANDLE)?;
        if found.capture.is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        self.captures.last += 1;
        found.capture = Some(self.captures.last);
        let capture = Capture {
            mode,
            thread: thread::number(),
            origin: stream,
            broken: false,
            members: BTreeMap::from([(stream, true)]),
            ops: Vec::new(),
        };
        self.captures.all.insert(self.captures.last, capture);
        Ok(())
    }

    /// Ends a capture; what it recorded becomes a graph.
    pub(crate) fn end_capture(&mut self, stream: StreamId) -> Outcome<Vec<Op>> {
        let id = self.streams.all[&stream].capture.ok_or(Code::ILLEGAL_STATE)?;
        let capture = self.captures.all.get(&id).ok_or(Code::ILLEGAL_STATE)?;
        if capture.origin != stream {
            self.invalidate(id);
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != thread::RELAXED && capture.thread != thread::number() {
            self.invalidate(id);
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let capture = self.captures.all.remove(&id).ok_or(Code::ILLEGAL_STATE)?;
        for member in capture.members.keys() {
            if let Some(stream) = self.streams.all.get_mut(member) {
                stream.capture = None;
            }
        }
        if capture.broken {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let unjoined = |(member, joined): (&StreamId, &bool)| *member != stream && !*joined;
        if capture.members.iter().any(unjoined) {
            return Err(Code::STREAM_CAPTURE_UNJOINED);
        }
        Ok(capture.ops)
    }

    /// `CUstreamCaptureStatus`: 0 none, 1 active, 2 invalidated.
    pub(crate) fn capture_status(&self, stream: StreamId) -> Outcome<u32> {
        if self.is_legacy(stream) && !self.blocking_captures(stream).is_empty() {
            return Err(Code::STREAM_CAPTURE_IMPLICIT);
        }
        let capture = self.streams.all[&stream].capture.and_then(|id| self.captures.all.get(&id));
        Ok(capture.map_or(0, |capture| if capture.broken { 2 } else { 1 }))
    }

    /// The capture that work for this stream goes into.
    pub(crate) fn capturing(&self, stream: StreamId) -> Outcome<Option<CaptureId>> {
        match self.streams.all[&stream].capture {
            None => Ok(None),
            Some(id) if self.is_active(id) => Ok(Some(id)),
            Some(_) => Err(Code::STREAM_CAPTURE_INVALIDATED),
        }
    }

    pub(crate) fn is_active(&self, id: CaptureId) -> bool {
        self.captures.all.get(&id).is_some_and(|capture| !capture.broken)
    }

    pub(crate) fn invalidate(&mut self, id: CaptureId) {
        if let Some(capture) = self.captures.all.get_mut(&id) {
            capture.broken = true;
        }
    }

    /// A call that may be unsafe during a capture.
    pub(crate) fn potentially_unsafe(&mut self) -> Outcome {
        let (me, mode) = (thread::number(), thread::mode());
        let forbids = |capture: &Capture| match (mode, capture.thread == me) {
            (thread::RELAXED, _) => false,
            (_, true) => capture.mode != thread::RELAXED,
            (thread::THREAD_LOCAL, false) => false,
            (_, false) => capture.mode == thread::GLOBAL,
        };
        self.break_where(|_, capture| forbids(capture))
    }

    /// A query, a synchronize or the like, of one stream.
    pub(crate) fn ask_stream(&mut self, stream: StreamId) -> Outcome {
        let own = self.streams.all[&stream].capture;
        self.break_where(|id, _| Some(id) == own)?;
        self.legacy_is_free(stream)
    }

    /// A synchronize of a whole context.
    pub(crate) fn ask_context(&mut self, context: usize) -> Outcome {
        let inside: Vec<CaptureId> = self
            .streams
            .all
            .values()
            .filter(|stream| stream.context == context)
            .filter_map(|stream| stream.capture)
            .collect();
        self.break_where(|id, _| inside.contains(&id))
    }

    fn break_where(&mut self, hit: impl Fn(CaptureId, &Capture) -> bool) -> Outcome {
        let mut any = false;
        for (id, capture) in &mut self.captures.all {
            if !capture.broken && hit(*id, capture) {
                capture.broken = true;
                any = true;
            }
        }
        if any { Err(Code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Work for the legacy stream would wait for blocking streams that capture: an error, and they
    /// are broken.
    pub(crate) fn legacy_is_free(&mut self, stream: StreamId) -> Outcome {
        if !self.is_legacy(stream) {
            return Ok(());
        }
        let captures = self.blocking_captures(stream);
        match self.break_where(|id, _| captures.contains(&id)) {
            Ok(()) => Ok(()),
            Err(_) => Err(Code::STREAM_CAPTURE_IMPLICIT),
        }
    }

    fn is_legacy(&self, stream: StreamId) -> bool {
        let context = self.streams.all[&stream].context;
        self.contexts.get(&context).is_some_and(|context| context.legacy == stream)
    }

    /// The captures that blocking streams in the legacy stream's context are in.
    fn blocking_captures(&self, legacy: StreamId) -> Vec<CaptureId> {
        let context = self.streams.all[&legacy].context;
        let streams = self.streams.all.values();
        let blocking = streams.filter(|stream| stream.context == context && stream.blocking);
        blocking.filter_map(|stream| stream.capture).filter(|id| self.is_active(*id)).collect()
    }

    /// Puts an operation into a capture, on one of its streams.
    pub(crate) fn note_captured(&mut self, id: CaptureId, stream: StreamId, op: Option<Op>) {
        if let Some(capture) = self.captures.all.get_mut(&id) {
            if op.is_some() {
                capture.members.insert(stream, false);
            }
            capture.ops.extend(op);
        }
    }

    /// A stream waits for an event that was recorded inside a capture, on `source`.
    pub(crate) fn join_capture(
        &mut self,
        stream: StreamId,
        from: CaptureId,
        source: StreamId,
    ) -> Outcome {
        match self.streams.all[&stream].capture {
            Some(own) if own != from => {
                self.invalidate(own);
                self.invalidate(from);
                return Err(Code::STREAM_CAPTURE_MERGE);
            }
            Some(_) => {}
            None if self.is_legacy(stream) => {
                self.invalidate(from);
                return Err(Code::STREAM_CAPTURE_IMPLICIT);
            }
            None => {
                if let Some(drawn_in) = self.streams.all.get_mut(&stream) {
                    drawn_in.capture = Some(from);
                }
            }
        }
        if let Some(capture) = self.captures.all.get_mut(&from) {
            capture.members.entry(stream).or_insert(false);
            if stream != source {
                capture.members.insert(source, true);
            }
        }
        Ok(())
    }

    /// A stream is about to be destroyed. Its capture cannot be ended any more.
    pub(crate) fn leave_capture(&mut self, stream: StreamId) {
        let Some(id) = self.streams.all[&stream].capture else { return };
        self.invalidate(id);
        if self.captures.all.get(&id).is_some_and(|capture| capture.origin == stream) {
            for other in self.streams.all.values_mut().filter(|other| other.capture == Some(id)) {
                other.capture = None;
            }
            self.captures.all.remove(&id);
        }
    }

    /// Work for a stream: into its capture if it captures, else into its queue.
    pub(crate) fn submit(&mut self, stream: StreamId, op: Op) -> Outcome {
        self.legacy_is_free(stream)?;
        match self.capturing(stream)? {
            Some(capture) => self.note_captured(capture, stream, Some(op)),
            None => self.enqueue(stream, op),
        }
        Ok(())
    }
}

//! Events: each names the place of its most recent record, or the capture that owns it.

use std::collections::BTreeMap;

use crate::capture::CaptureId;
use crate::code::{Code, Outcome};
use crate::handle::Handles;
use crate::state::Driver;
use crate::stream::{Mark, Op, StreamId};

/// What an event stands for.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    /// Never recorded: that counts as complete.
    Never,
    /// These places: one on a stream, or one on each stream of a context.
    Ordinary(Vec<Mark>),
    /// Recorded inside a capture, on that stream: no work stands behind it.
    Captured(CaptureId, StreamId),
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: usize,
    pub(crate) record: Record,
}

#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) all: BTreeMap<usize, Event>,
    handles: Handles,
}

impl Events {
    pub(crate) const fn new() -> Events {
        Events { all: BTreeMap::new(), handles: Handles::from(0xe7e2_0000) }
    }

    pub(crate) fn create(&mut self, context: usize) -> usize {
        let handle = self.handles.take();
        self.all.insert(handle, Event { context, record: Record::Never });
        handle
    }

    pub(crate) fn destroy(&mut self, handle: usize) -> Outcome {
        self.all.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
        self.handles.give_back(handle);
        Ok(())
    }
}

impl Driver {
    pub(crate) fn event(&self, handle: usize) -> Outcome<&Event> {
        let event = self.events.all.get(&handle).ok_or(Code::INVALID_HANDLE)?;
        self.healthy(event.context)?;
        Ok(event)
    }

    pub(crate) fn record_event(&mut self, handle: usize, stream: StreamId) -> Outcome {
        let context = self.streams.all[&stream].context;
        if self.event(handle)?.context != context {
            return Err(Code::INVALID_HANDLE);
        }
        self.legacy_is_free(stream)?;
        let record = match self.capturing(stream)? {
            Some(capture) => {
                self.note_captured(capture, stream, None);
                Record::Captured(capture, stream)
            }
            None => {
                // Behind an operation of its own, so that the legacy stream's barriers count too.
                self.enqueue(stream, Op::Kernel);
                Record::Ordinary(vec![self.streams.tail(stream)])
            }
        };
        if let Some(event) = self.events.all.get_mut(&handle) {
            event.record = record;
        }
        Ok(())
    }

    /// No capture of the context survives it.
    pub(crate) fn record_context(&mut self, handle: usize, context: usize) -> Outcome {
        if self.event(handle)?.context != context {
            return Err(Code::INVALID_HANDLE);
        }
        self.ask_context(context)?;
        let tails = self.streams.tails(context);
        if let Some(event) = self.events.all.get_mut(&handle) {
            event.record = Record::Ordinary(tails);
        }
        Ok(())
    }

    /// The places that a query or a synchronize of the event asks about.
    pub(crate) fn ask_event(&mut self, handle: usize) -> Outcome<Vec<Mark>> {
        match self.event(handle)?.record.clone() {
            Record::Captured(capture, _) if self.is_active(capture) => {
                self.invalidate(capture);
                Err(Code::CAPTURED_EVENT)
            }
            Record::Captured(..) => Err(Code::INVALID_VALUE),
            Record::Ordinary(marks) => self.potentially_unsafe().map(|()| marks),
            Record::Never => self.potentially_unsafe().map(|()| Vec::new()),
        }
    }

    pub(crate) fn wait_for_event(&mut self, stream: StreamId, handle: usize) -> Outcome {
        self.legacy_is_free(stream)?;
        let capturing = self.capturing(stream)?;
        match (self.event(handle)?.record.clone(), capturing) {
            (Record::Captured(from, source), _) if self.is_active(from) => {
                self.join_capture(stream, from, source)
            }
            (Record::Captured(..), _) => Err(Code::INVALID_VALUE),
            (Record::Ordinary(_), Some(capture)) => {
                self.invalidate(capture);
                Err(Code::STREAM_CAPTURE_ISOLATION)
            }
            (Record::Ordinary(marks), None) => {
                for mark in marks {
                    self.enqueue(stream, Op::Wait(mark));
                }
                Ok(())
            }
            (Record::Never, _) => Ok(()),
        }
    }
}

//! Events: snapshots of what is on a stream.
#![forbid(unsafe_code)]

use super::capture::CapturedSnapshot;
use super::clock::{Clock, OpNumber, TimelineId};
use super::error::SimErrorCode as Code;
use crate::sync::Arc;

/// A timeline up to an operation, and what that was ordered after.
pub(super) type Target = (TimelineId, OpNumber, Clock);

/// What it takes for an event to have finished.
#[derive(Clone)]
pub(super) enum Targets {
    One([Target; 1]),
    All(Arc<[Target]>),
}

impl Targets {
    pub(super) fn none() -> Targets {
        Targets::All(Arc::default())
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[Target] {
        match self {
            Targets::One(target) => target,
            Targets::All(targets) => targets,
        }
    }
}

/// What an event stands for.
#[derive(Clone, Debug)]
pub(super) enum Snapshot {
    /// Nothing: such an event counts as finished, and a wait for it makes no edge.
    Never,
    /// All on a timeline up to an operation (the record), and what that was ordered after.
    Recorded { timeline: TimelineId, op: OpNumber, clock: Clock },
    /// All on every timeline of a context. Shared, because an answer is given with the state changing.
    Context(Arc<[Target]>),
    /// A point in a capture, which may have ended since.
    Captured(CapturedSnapshot),
}

#[derive(Debug)]
struct Event {
    context: usize,
    snapshot: Snapshot,
}

/// All events. A destroyed event's place is taken by the next one created.
#[derive(Debug, Default)]
pub(super) struct Events {
    events: Vec<Option<Event>>,
    vacant: Vec<usize>,
}

impl Events {
    pub(super) fn create(&mut self, context: usize) -> usize {
        let event = Some(Event { context, snapshot: Snapshot::Never });
        match self.vacant.pop() {
            Some(index) => {
                self.events[index] = event;
                index
            }
            None => {
                self.events.push(event);
                self.events.len() - 1
            }
        }
    }

    /// Says of which context the event was.
    pub(super) fn destroy(&mut self, index: usize) -> Option<usize> {
        let event = self.events.get_mut(index)?.take()?;
        self.vacant.push(index);
        Some(event.context)
    }

    #[inline]
    pub(super) fn snapshot(&self, index: usize) -> Result<&Snapshot, Code> {
        match self.events.get(index) {
            Some(Some(event)) => Ok(&event.snapshot),
            _ => Err(Code::InvalidHandle),
        }
    }

    /// The event's place for a new snapshot, by a stream of this context.
    #[inline]
    pub(super) fn place(&mut self, index: usize, context: usize) -> Result<&mut Snapshot, Code> {
        match self.events.get_mut(index) {
            Some(Some(event)) if event.context == context => Ok(&mut event.snapshot),
            _ => Err(Code::InvalidHandle),
        }
    }
}

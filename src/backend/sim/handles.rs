//! The handles that programs hold: of streams, events and granules.
#![forbid(unsafe_code)]

use std::fmt;

use super::clock::TimelineId;
use super::state::{Machine, State};
use super::thread;
use crate::backend::StreamKind;
use crate::sync::Arc;

/// A stream of a simulated device. Clones name the same stream; when the last is dropped the stream
/// is destroyed: its pending work goes on, and the next stream created gets its raw handle.
#[derive(Clone)]
pub struct SimStream {
    /// The machine's number and the timeline, here as well: a call that only looks needs no more.
    machine: u64,
    timeline: Option<TimelineId>,
    inner: Arc<Owned>,
}

/// The stream itself.
struct Owned {
    machine: Arc<Machine>,
    context: usize,
    context_id: u64,
    handle: u64,
    kind: StreamKind,
    /// None for the per-thread default stream, which is another one on each thread.
    timeline: Option<TimelineId>,
}

impl SimStream {
    pub(super) fn create(machine: &Arc<Machine>, context: usize, kind: StreamKind) -> SimStream {
        /// Far from the special handles, and spaced as pointers are.
        const FIRST_HANDLE: u64 = 0x5500_0000_1000;
        let mut state = machine.lock();
        let timeline = state.add_timeline(context, kind);
        let state_context = &mut state.contexts[context];
        if kind == StreamKind::Blocking {
            state_context.blocking.push(timeline);
        }
        state_context.streams += 1;
        let handle = state_context.handles.pop().unwrap_or_else(|| {
            state_context.streams_made += 1;
            FIRST_HANDLE + ((context as u64) << 32) + 0x40 * state_context.streams_made
        });
        let context_id = state_context.id;
        drop(state);
        let (machine, timeline) = (Arc::clone(machine), Some(timeline));
        SimStream::of(Owned { machine, context, context_id, handle, kind, timeline })
    }

    /// The legacy default stream (handle 1) or the per-thread default stream (handle 2).
    pub(super) fn default_stream(
        machine: &Arc<Machine>,
        context: usize,
        kind: StreamKind,
    ) -> SimStream {
        let state = machine.lock();
        let state_context = &state.contexts[context];
        let (handle, timeline) = match kind {
            StreamKind::Legacy => (1, Some(state_context.legacy)),
            _ => (2, None),
        };
        let context_id = state_context.id;
        drop(state);
        let machine = Arc::clone(machine);
        SimStream::of(Owned { machine, context, context_id, handle, kind, timeline })
    }

    fn of(inner: Owned) -> SimStream {
        SimStream { machine: inner.machine.id, timeline: inner.timeline, inner: Arc::new(inner) }
    }

    /// The raw handle. It is given to another stream once this one is destroyed.
    pub fn handle(&self) -> u64 {
        self.inner.handle
    }

    /// What sort of stream it is.
    pub fn kind(&self) -> StreamKind {
        self.inner.kind
    }

    /// The stream's number in reports: one per stream ever created on the machine, never used again.
    /// `None` for the per-thread default stream, which is a different stream on each thread.
    pub fn number(&self) -> Option<u32> {
        self.timeline.map(|timeline| timeline.0)
    }

    pub(super) fn context(&self) -> usize {
        self.inner.context
    }

    pub(super) fn context_id(&self) -> u64 {
        self.inner.context_id
    }

    pub(super) fn is_of(&self, machine: &Machine) -> bool {
        self.machine == machine.id
    }

    /// The timeline: of the calling thread's own stream, for the per-thread default stream.
    #[inline]
    pub(super) fn timeline(&self, state: &mut State) -> TimelineId {
        match self.timeline {
            Some(timeline) => timeline,
            None => per_thread_timeline(state, self.inner.context),
        }
    }
}

#[cold]
fn per_thread_timeline(state: &mut State, context: usize) -> TimelineId {
    let thread = thread::number();
    let known = state.contexts[context].per_thread.iter().find(|(number, _)| *number == thread);
    if let Some(&(_, timeline)) = known {
        return timeline;
    }
    let timeline = state.add_timeline(context, StreamKind::PerThread);
    state.contexts[context].per_thread.push((thread, timeline));
    state.contexts[context].blocking.push(timeline);
    timeline
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !matches!(self.kind, StreamKind::NonBlocking | StreamKind::Blocking) {
            return;
        }
        let mut state = self.machine.lock();
        if thread::in_host_function() {
            state.oracle.misuse("a stream is destroyed in a host function".to_owned());
        }
        let context = &mut state.contexts[self.context];
        context.streams -= 1;
        context.handles.push(self.handle);
        if let Some(timeline) = self.timeline {
            state.destroy_stream(timeline);
        }
    }
}

impl PartialEq for SimStream {
    /// Whether both name the same stream.
    fn eq(&self, other: &Self) -> bool {
        self.inner.machine.id == other.inner.machine.id
            && (self.inner.context, self.inner.timeline)
                == (other.inner.context, other.inner.timeline)
    }
}

impl Eq for SimStream {}

impl fmt::Debug for SimStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimStream")
            .field("number", &self.number())
            .field("handle", &format_args!("{:#x}", self.handle()))
            .field("kind", &self.kind())
            .finish()
    }
}

/// An event of a simulated device. It lives until it is destroyed; dropping it leaks it.
#[derive(Debug)]
pub struct SimEvent {
    pub(super) machine: u64,
    pub(super) index: usize,
}

/// A piece of physical memory of a simulated device. It lives until it is destroyed; dropping it
/// leaks it.
#[derive(Debug)]
pub struct SimGranule {
    pub(super) machine: u64,
    pub(super) index: usize,
    pub(super) bytes: u64,
}

impl SimGranule {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

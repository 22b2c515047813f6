//! Where events are noted, and how they are gathered.

use std::time::Instant;

use super::tags::LiveTags;
use super::{PoolCore, StreamPool};
use crate::backend::Backend;
use crate::history::{Action, Event, History, Ring};
use crate::order::TimelineId;
use crate::pool_stream::core::StreamCore;
use crate::snapshot::Stream;
use crate::sync::Mutex;

/// What a pool needs that keeps a history.
#[derive(Debug)]
pub(super) struct Recorder {
    started: Instant,
    events_per_stream: usize,
    rings: Mutex<PoolRings>,
    tags: LiveTags,
}

#[derive(Debug)]
struct PoolRings {
    /// The pool's own events.
    own: Ring,
    /// Those of streams that have left.
    left: Ring,
}

impl Recorder {
    /// None where no events are to be kept.
    pub(super) fn new(events_per_stream: usize) -> Option<Recorder> {
        let started = Instant::now();
        let ring = || Ring::new(started, None, events_per_stream);
        let rings = Mutex::new(PoolRings { own: ring(), left: ring() });
        let tags = LiveTags::new();
        (events_per_stream > 0).then_some(Recorder { started, events_per_stream, rings, tags })
    }
}

impl<B: Backend> StreamPool<B> {
    /// What the pool has done of late: empty unless it was built with
    /// [`history`](crate::PoolBuilder::history). Makes no driver call.
    ///
    /// Each stream's events are those up to a moment shortly before or after the others'. Hits and frees
    /// of a stream wait while its own events are copied.
    pub fn history(&self) -> History {
        self.core().history()
    }
}

impl<B: Backend> PoolCore<B> {
    pub(crate) fn keeps_history(&self) -> bool {
        self.recorder.is_some()
    }

    /// Since the pool was made, where events are kept.
    pub(super) fn nanoseconds(&self) -> Option<u64> {
        self.recorder.as_ref().map(|recorder| recorder.started.elapsed().as_nanos() as u64)
    }

    pub(super) fn live_tags(&self) -> Option<&LiveTags> {
        self.recorder.as_ref().map(|recorder| &recorder.tags)
    }

    /// The ring of a new stream.
    pub(crate) fn ring_of(&self, id: TimelineId) -> Option<Box<Ring>> {
        let recorder = self.recorder.as_ref()?;
        let ring = Ring::new(recorder.started, Some(id.get()), recorder.events_per_stream);
        Some(Box::new(ring))
    }

    /// Notes an event of a stream, under its lock.
    pub(crate) fn note(&self, core: &StreamCore<B>, action: Action) {
        if self.recorder.is_some() {
            core.state.lock().note(action);
        }
    }

    /// Notes that a growth has served a miss of a stream.
    pub(super) fn note_growth(&self, core: &StreamCore<B>) {
        if self.recorder.is_none() {
            return;
        }
        let (reserved, remapped, revived) = {
            let central = self.central.lock();
            (central.reserved(), central.remapped, central.revived)
        };
        self.note(core, Action::Grow { reserved, remapped, revived });
    }

    /// Notes an event of the pool itself.
    pub(crate) fn note_own(&self, action: Action) {
        if let Some(recorder) = &self.recorder {
            recorder.rings.lock().own.note(action);
        }
    }

    /// A stream leaves: its events are kept with those of others that have.
    pub(super) fn keep_events(&self, core: &StreamCore<B>) {
        let Some(recorder) = &self.recorder else { return };
        let ring = core.state.lock().ring.take();
        if let Some(ring) = ring {
            recorder.rings.lock().left.keep(&ring);
        }
    }

    fn history(&self) -> History {
        let Some(recorder) = &self.recorder else { return History::default() };
        let (mut events, mut streams) = (Vec::new(), Vec::new());
        let mut lost = 0;
        for core in self.streams().iter() {
            // One that just leaves has put its events with those of the streams that have left.
            let Some(of_stream) = copy_ring(core, &mut events) else { continue };
            lost += of_stream;
            let own = core.identity;
            streams.push(Stream::new(core.id.get(), own.handle, own.kind));
        }
        {
            // A stream that has left since has told its events already.
            let told = |event: &&Event| {
                event.stream.is_none_or(|own| streams.iter().all(|stream| stream.number != own))
            };
            let rings = recorder.rings.lock();
            for ring in [&rings.own, &rings.left] {
                events.extend(ring.iter().filter(told));
                lost += ring.lost();
            }
        }
        History::new(events, streams, lost)
    }
}

/// Copies a stream's events, and says how many are lost; none if it has no ring any more. While the lock is
/// held nothing is allocated.
fn copy_ring<B: Backend>(core: &StreamCore<B>, events: &mut Vec<Event>) -> Option<u64> {
    loop {
        let count = {
            let state = core.state.lock();
            let ring = state.ring.as_ref()?;
            if events.capacity() - events.len() >= ring.len() {
                events.extend(ring.iter());
                return Some(ring.lost());
            }
            ring.len()
        };
        events.reserve(count + count / 4);
    }
}

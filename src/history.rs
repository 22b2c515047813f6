//! What a pool has done, event by event, where it was asked to remember.
//!
//! Each stream has a ring of its own, under its own small lock, with room made when it is registered: the
//! latest events replace the oldest, nothing is allocated, and no two streams share a line. With no history
//! asked for there is no ring, and neither a hit nor a free asks for one: a stream that has one takes both
//! by the long way.

mod in_use;
mod perfetto;
pub(crate) mod trace;

use std::time::Instant;

use crate::snapshot::Stream;
use crate::tag::Tag;

/// The latest events of a pool, as far as its rings reach back. Made by
/// [`StreamPool::history`](crate::StreamPool::history).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct History {
    /// By time; of each stream, in order.
    pub events: Vec<Event>,
    /// The streams that are registered now, by number.
    pub streams: Vec<Stream>,
    /// Events that later ones have replaced.
    pub lost: u64,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Event {
    /// When, in nanoseconds since the pool was made.
    pub time_ns: u64,
    /// The number of the stream that it happened on; of the pool's own events none.
    pub stream: Option<u64>,
    /// What.
    pub action: Action,
}

const _: () = assert!(size_of::<Event>() == 72, "the builder's option says what an event takes");

/// What happened. Sizes are in bytes; streams are told by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Action {
    /// A buffer was allocated.
    Allocate {
        /// Its address on the device.
        address: u64,
        /// The size of its block.
        bytes: u64,
        /// What was asked for.
        requested: u64,
        /// The stream's own list served it.
        hit: bool,
        /// What it is for: the thread's [`Tag`].
        tag: Option<Tag>,
    },
    /// A buffer was freed, whose home the stream was.
    Free {
        /// Its address on the device.
        address: u64,
        /// The size of its block.
        bytes: u64,
        /// What had been asked for.
        requested: u64,
        /// What it was for.
        tag: Option<Tag>,
    },
    /// A buffer was given a tag by [`Buffer::set_tag`](crate::Buffer::set_tag).
    SetTag {
        /// Its address on the device.
        address: u64,
        /// What it is for.
        tag: Tag,
    },
    /// The next allocation's block was freed on another stream, and not known to be clean.
    Steal {
        /// The block's address on the device.
        address: u64,
        /// Its size.
        bytes: u64,
        /// The stream that had freed it, or one of them.
        from: u64,
        /// The stream had to be made to wait for it; otherwise it was ordered after that use already.
        waited: bool,
    },
    /// The stream was made to wait for an event of another, whatever for.
    Wait {
        /// The other stream.
        on: u64,
    },
    /// The next allocation took memory from the device, or free memory from behind other addresses. The
    /// numbers are the pool's own after it.
    Grow {
        /// What the pool has reserved.
        reserved: u64,
        /// How many granules it has mapped at a further address since it was made.
        remapped: u64,
        /// How many were of use again at an old address.
        revived: u64,
    },
    /// Memory went back to the device.
    Trim {
        /// How much.
        bytes: u64,
    },
    /// A quiescent scope began.
    ScopeBegin {
        /// Its number.
        scope: u64,
    },
    /// A quiescent scope ended. See [`QuiescentReport`](crate::QuiescentReport).
    ScopeEnd {
        /// Its number.
        scope: u64,
        /// Buffers freed in it.
        freed: u64,
        /// The bytes of their blocks.
        bytes: u64,
        /// Those that were clean at its end.
        clean: u64,
        /// Those that were not.
        deferred: u64,
    },
}

/// The latest events of one stream, or of the pool itself.
#[derive(Debug)]
pub(crate) struct Ring {
    started: Instant,
    stream: Option<u64>,
    events: Vec<Event>,
    /// Where the oldest is, once the ring is full.
    oldest: usize,
    lost: u64,
}

impl Ring {
    /// Room for so many events, which count their time from `started` on.
    pub(crate) fn new(started: Instant, stream: Option<u64>, events: usize) -> Ring {
        Ring { started, stream, events: Vec::with_capacity(events), oldest: 0, lost: 0 }
    }

    /// Notes what happens now.
    pub(crate) fn note(&mut self, action: Action) {
        let time_ns = self.started.elapsed().as_nanos() as u64;
        self.put(Event { time_ns, stream: self.stream, action });
    }

    fn put(&mut self, event: Event) {
        if self.events.len() < self.events.capacity() {
            self.events.push(event);
        } else if let Some(oldest) = self.events.get_mut(self.oldest) {
            *oldest = event;
            self.oldest = (self.oldest + 1) % self.events.len();
            self.lost += 1;
        }
    }

    /// Keeps what another ring has, whose stream leaves.
    pub(crate) fn keep(&mut self, other: &Ring) {
        self.lost += other.lost;
        other.iter().for_each(|event| self.put(*event));
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// The oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Event> {
        let (late, early) = self.events.split_at(self.oldest);
        early.iter().chain(late)
    }
}

impl History {
    /// Puts the events of several rings in order. Where the clock cannot tell two of them apart, a free
    /// comes first: another stream may have the block at once.
    pub(crate) fn new(mut events: Vec<Event>, streams: Vec<Stream>, lost: u64) -> History {
        let rank = |event: &Event| !matches!(event.action, Action::Free { .. });
        events.sort_by_key(|event| (event.time_ns, rank(event)));
        History { events, streams, lost }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn trims(ring: &Ring) -> Vec<u64> {
        let bytes = ring.iter().map(|event| match event.action {
            Action::Trim { bytes } => bytes,
            action => panic!("{action:?}"),
        });
        bytes.collect()
    }

    #[test]
    fn the_latest_events_replace_the_oldest() {
        let mut ring = Ring::new(Instant::now(), Some(7), 4);
        let room = ring.events.capacity() as u64;
        for bytes in 0..room + 3 {
            ring.note(Action::Trim { bytes });
        }
        assert_eq!(trims(&ring), (3..room + 3).collect::<Vec<u64>>());
        assert_eq!((ring.lost(), ring.len() as u64), (3, room));
        assert!(ring.iter().all(|event| event.stream == Some(7)));
        assert!(ring.iter().is_sorted_by_key(|event| event.time_ns));
        let mut left = Ring::new(Instant::now(), None, 2);
        let kept = left.events.capacity() as u64;
        left.keep(&ring);
        assert_eq!(trims(&left), (room + 3 - kept..room + 3).collect::<Vec<u64>>());
        assert_eq!(left.lost(), 3 + room - kept);
    }

    #[test]
    fn of_two_events_at_one_time_the_free_comes_first() {
        let (address, bytes, requested) = (512, 256, 200);
        let event = |action| Event { time_ns: 5, stream: None, action };
        let free = event(Action::Free { address, bytes, requested, tag: None });
        let allocate = event(Action::Allocate { address, bytes, requested, hit: false, tag: None });
        let history = History::new(vec![allocate, free], Vec::new(), 0);
        assert_eq!(history.events, [free, allocate]);
    }
}

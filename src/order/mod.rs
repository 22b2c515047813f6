//! *When* a free block may be used again: epochs, free points, frontiers, timelines.
//!
//! Nothing here knows what a block is or calls a driver. The words are those of ARCHITECTURE.md:
//!
//! - a [`Timeline`] is one stream's history in its pool, cut into [`Epoch`]s; an epoch is closed by
//!   recording an event, and the event of epoch *f* covers every epoch up to *f*;
//! - a [`FreePoint`] says that a use on that timeline came before that epoch's close; a block's
//!   [`Stamps`] are the free points of all its earlier uses;
//! - a [`Frontier`] says up to which epoch of every other timeline a stream is already ordered after;
//! - an epoch has *completed* when the host has seen its event, or the whole context, finish.

#![forbid(unsafe_code)]

mod epoch;
mod free_point;
mod frontier;
mod timeline;

pub(crate) use epoch::{Epoch, ShortEpoch, TimelineId};
pub(crate) use free_point::{FreePoint, Stamps};
pub(crate) use frontier::Frontier;
pub(crate) use timeline::{Closed, Moment, Timeline, Timelines, completions};

/// The stream that wants a block, and all that its next operation is already ordered after.
#[derive(Clone, Debug)]
pub(crate) struct Taker {
    /// Its own timeline: stream order covers every use on it.
    pub(crate) home: TimelineId,
    /// What it has waited for.
    pub(crate) frontier: crate::sync::Arc<Frontier>,
}

impl Taker {
    /// The latest epoch of `timeline` that this stream needs no wait for, completion aside.
    pub(crate) fn ordered_after(&self, timeline: TimelineId) -> Epoch {
        if timeline == self.home { Epoch::MAX } else { self.frontier.get(timeline) }
    }
}

/// What the host knows of the timelines that free points name.
pub(crate) trait Evidence {
    /// The latest epoch of `timeline` that has completed; [`Epoch::MAX`] once it is over.
    fn completed(&self, timeline: TimelineId) -> Epoch;

    /// Whether one published event is the first to cover both epochs of `timeline`: they then complete
    /// at the same moment.
    fn one_event_covers(&self, timeline: TimelineId, left: Epoch, right: Epoch) -> bool;
}

#[cfg(all(test, loom))]
mod models;

//! One stream's history in its pool: which epochs are closed, by which event, and which completed.

use std::collections::{BTreeMap, VecDeque};

use super::{Epoch, Evidence, Frontier, TimelineId};
use crate::fault::seeded;
use crate::prefetch::prefetch;
use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, process_counter};

/// At whose wish an epoch was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The program chose it (a mark, a scope's end, …): what was queued by then is what the program
    /// meant, and a wait on it is safe at any time.
    Early,
    /// A miss chose it, to ask whether freed blocks have become clean. Work queued by then may itself
    /// wait for something that the host does only later, so that a wait on it is a last resort.
    Probe,
}

/// A closed epoch whose event has been recorded. A clone pins the event: it is not recycled before
/// the last clone is gone.
#[derive(Debug)]
pub(crate) struct Closed<E> {
    pub(crate) epoch: Epoch,
    pub(crate) event: Arc<E>,
    /// What the stream was ordered after when the epoch closed; who waits for the event is, too.
    pub(crate) frontier: Arc<Frontier>,
    pub(crate) moment: Moment,
}

impl<E> Clone for Closed<E> {
    fn clone(&self) -> Self {
        Closed {
            epoch: self.epoch,
            event: Arc::clone(&self.event),
            frontier: Arc::clone(&self.frontier),
            moment: self.moment,
        }
    }
}

/// One stream's history. It outlives the stream until the last epoch has completed.
#[derive(Debug)]
pub(crate) struct Timeline<E> {
    id: TimelineId,
    /// The latest epoch that the host has seen finish. Only rises.
    completed: AtomicU64,
    /// The last epoch, once the stream has left the pool; 0 before.
    last: AtomicU64,
    /// How many epochs are published: a hint for who need not take the lock.
    published: AtomicUsize,
    /// The published epochs above `completed`, ascending.
    closed: Mutex<VecDeque<Closed<E>>>,
}

process_counter! {
    /// Rises whenever any timeline of the process completes an epoch: who has looked since need not
    /// look again.
    static COMPLETIONS;
}

/// How many times a timeline of this process has completed an epoch.
pub(crate) fn completions() -> u64 {
    COMPLETIONS.load(Ordering::Acquire)
}

impl<E> Timeline<E> {
    pub(crate) fn new() -> Timeline<E> {
        Timeline {
            id: TimelineId::fresh(),
            completed: AtomicU64::new(0),
            last: AtomicU64::new(0),
            published: AtomicUsize::new(0),
            closed: Mutex::new(VecDeque::new()),
        }
    }

    pub(crate) fn id(&self) -> TimelineId {
        self.id
    }

    /// Fetches what [`complete_all`](Self::complete_all) changes.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&raw const self.completed);
    }

    pub(crate) fn completed(&self) -> Epoch {
        // Acquire, with `complete`'s release: who sees an epoch completed also sees what the thread
        // that saw it finish had seen.
        Epoch::from_u64(self.completed.load(Ordering::Acquire))
    }

    /// The host has seen `epoch`, and so all before it, finish.
    pub(crate) fn complete(&self, epoch: Epoch) {
        Timeline::complete_all([(self, epoch)]);
    }

    /// The host has seen all of these finish.
    pub(crate) fn complete_all<'a>(all: impl IntoIterator<Item = (&'a Timeline<E>, Epoch)>)
    where
        E: 'a,
    {
        let early = seeded!(CountBeforeCompletion);
        if early {
            COMPLETIONS.fetch_add(1, Ordering::Release);
        }
        let mut news = false;
        for (timeline, epoch) in all {
            let order = if seeded!(WeakCompletion) { Ordering::Relaxed } else { Ordering::AcqRel };
            let before = timeline.completed.fetch_max(epoch.get(), order);
            if before >= epoch.get() {
                continue;
            }
            news = true;
            // Relaxed: an event that is missed here is let go by the next completion. Each is let go
            // outside the lock: the last pin returns it to its device.
            while timeline.published.load(Ordering::Relaxed) != 0
                && let Some(finished) = timeline.pop_up_to(epoch)
            {
                drop(finished);
            }
        }
        if news && !early {
            COMPLETIONS.fetch_add(1, Ordering::Release);
        }
    }

    /// Takes the oldest published event, if it covers no epoch after this one.
    fn pop_up_to(&self, epoch: Epoch) -> Option<Closed<E>> {
        let mut closed = self.closed.lock();
        let over = closed.front().is_some_and(|own| own.epoch <= epoch);
        let own = over.then(|| closed.pop_front()).flatten();
        self.count(&closed);
        own
    }

    /// The published epochs have changed.
    fn count(&self, closed: &VecDeque<Closed<E>>) {
        self.published.store(closed.len(), Ordering::Relaxed);
    }

    /// Makes a closed epoch known, with its event: to be called only after the record has returned. Says
    /// how many are published.
    pub(crate) fn publish(&self, own: Closed<E>) -> usize {
        let mut closed = self.closed.lock();
        // A later epoch of another thread may have completed meanwhile. One that completes just now may
        // leave this event here until the next does: it covers nothing that is asked for.
        if own.epoch <= self.completed() {
            return closed.len();
        }
        let at = closed.partition_point(|other| other.epoch < own.epoch);
        closed.insert(at, own);
        self.count(&closed);
        closed.len()
    }

    /// Takes back an event whose wait or query failed: its epoch counts as not closed. Says `false`,
    /// and keeps the event, when the stream has left: nothing can record another one, so that this is
    /// the only evidence that there will be.
    pub(crate) fn unpublish(&self, event: &Arc<E>) -> bool {
        // Under the lock, so that it comes either before the stream leaves or after.
        let mut closed = self.closed.lock();
        if self.last().is_some() {
            return false;
        }
        closed.retain(|own| !Arc::ptr_eq(&own.event, event));
        self.count(&closed);
        true
    }

    /// The first published event that covers `epoch`.
    pub(crate) fn cover(&self, epoch: Epoch) -> Option<Closed<E>> {
        let closed = self.closed.lock();
        closed.get(closed.partition_point(|own| own.epoch < epoch)).cloned()
    }

    /// The first published event that covers `epoch` and was recorded at a moment that the program
    /// chose.
    pub(crate) fn cover_early(&self, epoch: Epoch) -> Option<Closed<E>> {
        let closed = self.closed.lock();
        let from = closed.partition_point(|own| own.epoch < epoch);
        closed.range(from..).find(|own| own.moment == Moment::Early).cloned()
    }

    /// The epoch of the first published event that covers `epoch`.
    pub(crate) fn covering_epoch(&self, epoch: Epoch) -> Option<Epoch> {
        let closed = self.closed.lock();
        closed.get(closed.partition_point(|own| own.epoch < epoch)).map(|own| own.epoch)
    }

    /// The oldest published event, and how many there are.
    pub(crate) fn oldest(&self) -> Option<(Closed<E>, usize)> {
        let closed = self.closed.lock();
        closed.front().map(|own| (own.clone(), closed.len()))
    }

    /// The latest published event.
    pub(crate) fn latest(&self) -> Option<Closed<E>> {
        self.closed.lock().back().cloned()
    }

    /// The stream has left; `last` was its last epoch, which is closed and published. Should its event
    /// have been taken back since, it is published again, as the only evidence that there will be.
    pub(crate) fn retire(&self, last: Closed<E>) {
        let mut closed = self.closed.lock();
        self.last.store(last.epoch.get(), Ordering::Release);
        let covered = closed.back().is_some_and(|own| own.epoch >= last.epoch);
        if !covered && self.completed() < last.epoch {
            closed.push_back(last);
            self.count(&closed);
        }
    }

    /// A timeline of uses that no event can stand for: only a synchronize of the context can say that
    /// they have finished.
    pub(crate) fn without_events(last: Epoch) -> Timeline<E> {
        let timeline = Timeline::new();
        timeline.last.store(last.get(), Ordering::Release);
        timeline
    }

    /// The last epoch of a stream that has left.
    pub(crate) fn last(&self) -> Option<Epoch> {
        match self.last.load(Ordering::Acquire) {
            0 => None,
            last => Some(Epoch::from_u64(last)),
        }
    }

    /// The stream has left and all its epochs have completed: nothing can depend on it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.last().is_some_and(|last| last <= self.completed())
    }
}

/// The timelines that a pool's blocks can name: those of its own streams, and of streams of other
/// pools that its buffers were used on. One that is not here is over.
#[derive(Debug)]
pub(crate) struct Timelines<E> {
    by_id: BTreeMap<TimelineId, Arc<Timeline<E>>>,
}

impl<E> Timelines<E> {
    pub(crate) fn new() -> Timelines<E> {
        Timelines { by_id: BTreeMap::new() }
    }

    pub(crate) fn insert(&mut self, timeline: Arc<Timeline<E>>) {
        self.by_id.insert(timeline.id(), timeline);
    }

    pub(crate) fn get(&self, id: TimelineId) -> Option<&Arc<Timeline<E>>> {
        self.by_id.get(&id)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.by_id.len()
    }

    /// What of each has completed, in the order of their numbers.
    pub(crate) fn all_completed(&self) -> impl Iterator<Item = (TimelineId, Epoch)> + '_ {
        self.by_id.iter().map(|(id, timeline)| (*id, timeline.completed()))
    }

    /// Forgets the timelines that are over, and gives them back.
    pub(crate) fn forget_finished(&mut self) -> Vec<Arc<Timeline<E>>> {
        let mut over = Vec::new();
        self.by_id.retain(|_, timeline| {
            let stays = !timeline.is_over();
            if !stays {
                over.push(Arc::clone(timeline));
            }
            stays
        });
        over
    }
}

impl<E> Evidence for Timelines<E> {
    fn completed(&self, id: TimelineId) -> Epoch {
        self.by_id.get(&id).map_or(Epoch::MAX, |timeline| timeline.completed())
    }

    fn one_event_covers(&self, id: TimelineId, left: Epoch, right: Epoch) -> bool {
        let Some(timeline) = self.by_id.get(&id) else { return true };
        let first = timeline.covering_epoch(left);
        first.is_some() && first == timeline.covering_epoch(right)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn closed(epoch: u64, moment: Moment) -> Closed<u64> {
        let epoch_number = epoch;
        Closed {
            epoch: Epoch::from_u64(epoch),
            event: Arc::new(epoch_number),
            frontier: Arc::default(),
            moment,
        }
    }

    #[test]
    fn an_event_covers_every_epoch_up_to_its_own() {
        let timeline = Timeline::new();
        // Published out of order, as two threads may.
        timeline.publish(closed(5, Moment::Early));
        timeline.publish(closed(3, Moment::Probe));
        let cover = |epoch| timeline.cover(Epoch::from_u64(epoch)).map(|own| *own.event);
        let early = |epoch| timeline.cover_early(Epoch::from_u64(epoch)).map(|own| *own.event);
        assert_eq!([cover(1), cover(3), cover(4), cover(6)], [Some(3), Some(3), Some(5), None]);
        assert_eq!([early(1), early(5), early(6)], [Some(5), Some(5), None]);
    }

    #[test]
    fn completing_only_rises_and_lets_events_go() {
        let timeline = Timeline::new();
        let event = closed(2, Moment::Probe);
        let weak = Arc::downgrade(&event.event);
        timeline.publish(event);
        timeline.publish(closed(4, Moment::Probe));
        timeline.complete(Epoch::from_u64(3));
        timeline.complete(Epoch::from_u64(1));
        assert_eq!(timeline.completed().get(), 3);
        assert!(weak.upgrade().is_none(), "the event of a completed epoch is still pinned");
        assert_eq!(timeline.oldest().map(|(own, count)| (*own.event, count)), Some((4, 1)));
    }

    #[test]
    fn a_failed_event_counts_as_not_closed() {
        let timeline = Timeline::new();
        let (good, bad) = (closed(2, Moment::Early), closed(3, Moment::Early));
        timeline.publish(good);
        timeline.publish(bad.clone());
        timeline.unpublish(&bad.event);
        assert!(timeline.cover(Epoch::from_u64(3)).is_none());
        assert!(timeline.cover(Epoch::from_u64(2)).is_some());
    }

    #[test]
    fn the_last_event_of_a_stream_that_has_left_is_kept() {
        let timeline = Timeline::new();
        let last = closed(3, Moment::Early);
        timeline.publish(last.clone());
        assert!(timeline.unpublish(&last.event), "the stream can record another");
        timeline.retire(last.clone());
        assert!(!timeline.unpublish(&last.event));
        assert_eq!(timeline.latest().map(|own| *own.event), Some(3), "the only evidence is gone");
        timeline.complete(Epoch::from_u64(3));
        assert!(timeline.is_over() && timeline.latest().is_none());
    }

    #[test]
    fn blocks_join_early_only_under_one_event() {
        let mut timelines = Timelines::new();
        let timeline = Arc::new(Timeline::new());
        timelines.insert(Arc::clone(&timeline));
        let covers = |timelines: &Timelines<u64>, left, right| {
            timelines.one_event_covers(timeline.id(), Epoch::from_u64(left), Epoch::from_u64(right))
        };
        assert!(!covers(&timelines, 1, 2), "nothing is published");
        timeline.publish(closed(3, Moment::Probe));
        timeline.publish(closed(5, Moment::Probe));
        assert!(covers(&timelines, 1, 3));
        assert!(!covers(&timelines, 3, 4), "different events");
    }
}

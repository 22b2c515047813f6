//! Vector clocks: which operations a point in a program is ordered after.
//!
//! Operations are numbered across the whole machine in the order in which the host submitted them,
//! so the number of the last covered operation stands for a whole prefix of a timeline, and one
//! number means the same thing in a clock, in a report and in a schedule.
#![forbid(unsafe_code)]

use crate::sync::Arc;

/// The number of an operation, from 1, in order of submission. 0 is before all operations.
pub(super) type OpNumber = u64;

/// One stream's identity for ever: a timeline is never used again, though the raw handle of its
/// stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimelineId(pub(super) u32);

impl TimelineId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// What the host has seen finish, per timeline.
#[derive(Debug, Default)]
pub(super) struct Done {
    upto: Vec<OpNumber>,
}

impl Done {
    /// Makes room for one more timeline.
    pub(super) fn push(&mut self) {
        self.upto.push(0);
    }

    #[inline]
    pub(super) fn covers(&self, timeline: TimelineId, op: OpNumber) -> bool {
        self.upto[timeline.index()] >= op
    }

    #[inline]
    pub(super) fn raise(&mut self, timeline: TimelineId, op: OpNumber) {
        let upto = &mut self.upto[timeline.index()];
        *upto = (*upto).max(op);
    }
}

type Entry = (TimelineId, OpNumber);

/// For each timeline, the last operation that is covered. Copies share their entries until one of
/// them changes: a record is a copy, and most copies are read once or never.
///
/// An entry that [`Done`] covers says nothing, so entries are dropped when they stand in the way:
/// a clock's length follows the streams that have unfinished work, not all that ever lived.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// Sorted by timeline.
    entries: Option<Arc<Vec<Entry>>>,
}

impl Clock {
    #[inline]
    pub(super) fn entries(&self) -> &[Entry] {
        self.entries.as_deref().map_or(&[], Vec::as_slice)
    }

    /// The last operation of `timeline` that is covered.
    #[inline]
    pub(super) fn get(&self, timeline: TimelineId) -> OpNumber {
        let entries = self.entries();
        match entries.binary_search_by_key(&timeline, |entry| entry.0) {
            Ok(at) => entries[at].1,
            Err(_) => 0,
        }
    }

    fn make_mut(&mut self) -> &mut Vec<Entry> {
        Arc::make_mut(self.entries.get_or_insert_default())
    }

    /// Covers `timeline` up to `op`.
    pub(super) fn raise(&mut self, timeline: TimelineId, op: OpNumber, done: &Done) {
        let entries = self.make_mut();
        match entries.binary_search_by_key(&timeline, |entry| entry.0) {
            Ok(at) => entries[at].1 = entries[at].1.max(op),
            Err(mut at) => {
                // Pruning only where the vector would grow costs O(1) per insertion.
                if entries.len() == entries.capacity() {
                    entries.retain(|&(timeline, op)| !done.covers(timeline, op));
                    at = entries.partition_point(|entry| entry.0 < timeline);
                }
                entries.insert(at, (timeline, op));
            }
        }
    }

    /// Covers all that `other` covers, except on `own`: a timeline is ordered after itself anyway.
    pub(super) fn join(&mut self, other: &Clock, own: TimelineId, done: &Done) {
        let theirs = other.entries();
        let shared = match (&self.entries, &other.entries) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        if shared || theirs.is_empty() || self.raise_all_present(theirs, own, done) {
            return;
        }
        let ours = self.entries();
        let mut merged = Vec::with_capacity(ours.len() + theirs.len());
        let (mut i, mut j) = (0, 0);
        while i < ours.len() || j < theirs.len() {
            let from_ours = j == theirs.len() || (i < ours.len() && ours[i].0 <= theirs[j].0);
            let mut entry = if from_ours { ours[i] } else { theirs[j] };
            if from_ours {
                i += 1;
            }
            if j < theirs.len() && theirs[j].0 == entry.0 {
                entry.1 = entry.1.max(theirs[j].1);
                j += 1;
            }
            if entry.0 != own && !done.covers(entry.0, entry.1) {
                merged.push(entry);
            }
        }
        self.entries = Some(Arc::new(merged));
    }

    /// The common case of a join: no timeline is new to this clock, so that the entries can be
    /// raised where they are. `false`, with nothing lost, when one is.
    fn raise_all_present(&mut self, theirs: &[Entry], own: TimelineId, done: &Done) -> bool {
        let Some(ours) = &mut self.entries else { return false };
        let ours = Arc::make_mut(ours);
        let mut at = 0;
        for &(timeline, op) in theirs {
            while at < ours.len() && ours[at].0 < timeline {
                at += 1;
            }
            if at < ours.len() && ours[at].0 == timeline {
                ours[at].1 = ours[at].1.max(op);
            } else if timeline != own && !done.covers(timeline, op) {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn t(n: u32) -> TimelineId {
        TimelineId(n)
    }

    fn done(timelines: u32) -> Done {
        let mut done = Done::default();
        (0..timelines).for_each(|_| done.push());
        done
    }

    fn clock(entries: &[(u32, OpNumber)], done: &Done) -> Clock {
        let mut clock = Clock::default();
        for &(timeline, op) in entries {
            clock.raise(t(timeline), op, done);
        }
        clock
    }

    #[test]
    fn a_join_is_the_later_of_both_for_each_timeline() {
        let done = done(5);
        for (ours, theirs, joined) in [
            // With entries that are new to this clock, and with none.
            (
                &[(1, 10), (3, 30)][..],
                &[(0, 5), (1, 12), (3, 7)][..],
                &[(0, 5), (1, 12), (3, 30)][..],
            ),
            (&[(1, 10), (3, 30)], &[(1, 9), (3, 31)], &[(1, 10), (3, 31)]),
            (&[], &[(2, 4)], &[(2, 4)]),
            (&[(2, 4)], &[], &[(2, 4)]),
        ] {
            let mut clock_of = clock(ours, &done);
            let copy = clock_of.clone();
            clock_of.join(&clock(theirs, &done), t(4), &done);
            for timeline in 0..5 {
                let expected = joined.iter().find(|entry| entry.0 == timeline);
                assert_eq!(clock_of.get(t(timeline)), expected.map_or(0, |entry| entry.1));
            }
            assert_eq!(copy.entries(), clock(ours, &done).entries(), "a copy does not change");
        }
    }

    #[test]
    fn a_clock_never_goes_back() {
        let done = done(2);
        let mut clock = clock(&[(0, 5), (1, 7)], &done);
        clock.raise(t(1), 3, &done);
        assert_eq!(clock.entries(), [(t(0), 5), (t(1), 7)]);
    }

    #[test]
    fn a_join_leaves_out_the_own_timeline_and_what_is_done() {
        let mut done = done(4);
        done.raise(t(2), 20);
        let mut joined = clock(&[(0, 1)], &done);
        joined.join(&clock(&[(1, 10), (2, 20), (3, 30)], &done), t(1), &done);
        assert_eq!(joined.entries(), [(t(0), 1), (t(3), 30)]);
    }

    #[test]
    fn a_clock_is_as_long_as_there_are_streams_with_unfinished_work() {
        let mut done = Done::default();
        let mut clock = Clock::default();
        for timeline in 0..10_000 {
            done.push();
            let op = OpNumber::from(timeline) + 1;
            clock.raise(t(timeline), op, &done);
            done.raise(t(timeline), op - 1);
            done.raise(t(timeline), op);
            assert!(clock.entries().len() <= 8, "{}", clock.entries().len());
        }
        done.raise(t(0), 0);
        assert!(done.covers(t(0), 1), "what was seen finished stays so");
    }
}

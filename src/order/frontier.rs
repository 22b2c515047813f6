//! What one stream is already ordered after.

use super::{Epoch, TimelineId};

/// For one stream, the latest epoch of every other timeline that it is already ordered after.
///
/// A sorted vector: a stream waits for few others, and entries go as soon as they have completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frontier {
    entries: Vec<(TimelineId, Epoch)>,
}

impl Frontier {
    /// The latest epoch of `timeline` in this frontier, [`Epoch::NONE`] when there is none.
    pub(crate) fn get(&self, timeline: TimelineId) -> Epoch {
        match self.entries.binary_search_by_key(&timeline, |entry| entry.0) {
            Ok(at) => self.entries[at].1,
            Err(_) => Epoch::NONE,
        }
    }

    /// Every entry: a timeline and its latest epoch that the stream is ordered after.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TimelineId, Epoch)> + '_ {
        self.entries.iter().copied()
    }

    /// The stream is now ordered after `epoch` of `timeline`. Never lowers what was known.
    pub(crate) fn raise(&mut self, timeline: TimelineId, epoch: Epoch) {
        match self.entries.binary_search_by_key(&timeline, |entry| entry.0) {
            Ok(at) => self.entries[at].1 = self.entries[at].1.max(epoch),
            Err(at) => self.entries.insert(at, (timeline, epoch)),
        }
    }

    /// The stream is now ordered after all that `other` is (waits are transitive). An entry for
    /// `home`, the stream's own timeline, says nothing new and is left out.
    pub(crate) fn join(&mut self, other: &Frontier, home: TimelineId) {
        for &(timeline, epoch) in &other.entries {
            if timeline != home {
                self.raise(timeline, epoch);
            }
        }
    }

    /// Drops the entries for which `completed` holds: they order nothing any more.
    pub(crate) fn prune(&mut self, mut completed: impl FnMut(TimelineId, Epoch) -> bool) {
        self.entries.retain(|&(timeline, epoch)| !completed(timeline, epoch));
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_rise_join_and_go() {
        let [a, b, c] = [TimelineId::fresh(), TimelineId::fresh(), TimelineId::fresh()];
        let epoch = Epoch::from_u64;
        let mut frontier = Frontier::default();
        assert_eq!(frontier.get(a), Epoch::NONE);
        frontier.raise(b, epoch(4));
        frontier.raise(b, epoch(2));
        frontier.raise(a, epoch(1));
        assert_eq!((frontier.get(a), frontier.get(b)), (epoch(1), epoch(4)));

        let mut other = Frontier::default();
        other.raise(b, epoch(9));
        other.raise(c, epoch(3));
        frontier.join(&other, c);
        assert_eq!((frontier.get(b), frontier.get(c)), (epoch(9), Epoch::NONE));

        frontier.prune(|timeline, _| timeline == b);
        assert_eq!((frontier.len(), frontier.get(b)), (1, Epoch::NONE));
    }
}

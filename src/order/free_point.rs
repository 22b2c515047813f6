//! Free points, and the set of them that a free block carries.

use super::{Epoch, TimelineId};
use crate::fault::seeded;

/// A use of a block on `timeline` came before the close of `epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FreePoint {
    pub(crate) timeline: TimelineId,
    pub(crate) epoch: Epoch,
}

/// The free points of one block, at most one for each timeline. None: the block is clean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stamps {
    #[default]
    Clean,
    One(FreePoint),
    /// Two or more, of different timelines, in no order.
    Many(Vec<FreePoint>),
}

impl Stamps {
    pub(crate) fn of(timeline: TimelineId, epoch: Epoch) -> Stamps {
        Stamps::One(FreePoint { timeline, epoch })
    }

    /// Adds a free point; of two on one timeline the later epoch counts.
    pub(crate) fn add(&mut self, point: FreePoint) {
        match self {
            Stamps::Clean => *self = Stamps::One(point),
            Stamps::One(own) if own.timeline == point.timeline => {
                own.epoch = later(own.epoch, point.epoch);
            }
            Stamps::One(_) if seeded!(SecondStampLost) => {}
            Stamps::One(own) => *self = Stamps::Many(vec![*own, point]),
            Stamps::Many(points) => {
                match points.iter_mut().find(|own| own.timeline == point.timeline) {
                    Some(own) => own.epoch = later(own.epoch, point.epoch),
                    None => points.push(point),
                }
            }
        }
    }

    /// What the union of two blocks carries: every free point of both.
    pub(crate) fn join(&mut self, other: &Stamps) {
        if seeded!(JoinDropsStamps) {
            return;
        }
        for point in other.points() {
            self.add(*point);
        }
    }

    /// Drops the free points for which `completed` holds.
    pub(crate) fn settle(&mut self, mut completed: impl FnMut(FreePoint) -> bool) {
        match self {
            Stamps::Clean => {}
            Stamps::One(point) => {
                if completed(*point) {
                    *self = Stamps::Clean;
                }
            }
            Stamps::Many(points) => {
                points.retain(|point| !completed(*point));
                match points.as_slice() {
                    [] => *self = Stamps::Clean,
                    [point] => *self = Stamps::One(*point),
                    _ => {}
                }
            }
        }
    }

    pub(crate) fn points(&self) -> &[FreePoint] {
        match self {
            Stamps::Clean => &[],
            Stamps::One(point) => std::slice::from_ref(point),
            Stamps::Many(points) => points,
        }
    }

    pub(crate) fn is_clean(&self) -> bool {
        matches!(self, Stamps::Clean)
    }
}

fn later(left: Epoch, right: Epoch) -> Epoch {
    if seeded!(EarlierEpochKept) { left.min(right) } else { left.max(right) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(timeline: u64, epoch: u64) -> FreePoint {
        let timeline = (0..timeline).fold(TimelineId::LOWEST, |id, _| id.next());
        FreePoint { timeline, epoch: Epoch::from_u64(epoch) }
    }

    #[test]
    fn one_point_a_timeline_and_the_later_epoch_counts() {
        let mut stamps = Stamps::Clean;
        stamps.add(point(1, 5));
        stamps.add(point(1, 3));
        assert_eq!(stamps, Stamps::One(point(1, 5)));
        stamps.add(point(2, 1));
        stamps.add(point(1, 9));
        stamps.add(point(2, 4));
        assert_eq!(stamps.points(), &[point(1, 9), point(2, 4)]);
    }

    #[test]
    fn a_join_keeps_the_points_of_both() {
        let mut left = Stamps::One(point(1, 2));
        let mut right = Stamps::One(point(2, 7));
        right.add(point(3, 1));
        left.join(&right);
        assert_eq!(left.points(), &[point(1, 2), point(2, 7), point(3, 1)]);
    }

    #[test]
    fn settling_drops_what_has_completed_and_nothing_else() {
        let mut stamps = Stamps::Clean;
        for timeline in 1..=3 {
            stamps.add(point(timeline, timeline));
        }
        stamps.settle(|free| free.epoch.get() != 2);
        assert_eq!(stamps, Stamps::One(point(2, 2)));
        stamps.settle(|_| true);
        assert!(stamps.is_clean());
    }
}

//! A history as the trace beside a snapshot that PyTorch's memory viewer plays back.
//!
//! The viewer goes back from the snapshot, event by event, and breaks off where a block lies in no
//! segment. Rings reach back to different moments, and addresses come to have no memory behind them. So the
//! same way is gone here first, and only what fits is told.

use std::collections::BTreeMap;

use super::{Action, Event, History};
use crate::snapshot::{BlockState, Snapshot};

/// What is told of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Allocate {
        address: u64,
        requested: u64,
    },
    Free {
        address: u64,
        requested: u64,
    },
    /// From here on these addresses have no memory behind them.
    Unmap {
        address: u64,
        bytes: u64,
    },
}

/// What the viewer has in mind at one moment: start and end of what is mapped, and of buffers.
struct View {
    mapped: BTreeMap<u64, u64>,
    live: BTreeMap<u64, u64>,
}

/// The part of the history that leads to the snapshot, by time: with each event what is told of it.
pub(crate) fn leading_to<'a>(history: &'a History, snapshot: &Snapshot) -> Vec<(&'a Event, Told)> {
    let segments = snapshot.segments.iter();
    let in_use = snapshot.blocks().filter(|block| block.state == BlockState::InUse);
    let mut view = View {
        mapped: segments.map(|own| (own.address, own.address + own.bytes)).collect(),
        live: in_use.map(|own| (own.address, own.address + own.bytes)).collect(),
    };
    let mut told = Vec::with_capacity(history.events.len());
    for event in history.events.iter().rev() {
        match event.action {
            Action::Allocate { address, bytes, requested, .. }
                if view.live.get(&address) == Some(&(address + bytes)) =>
            {
                view.live.remove(&address);
                told.push((event, Told::Allocate { address, requested }));
            }
            Action::Free { address, bytes, requested } => {
                let end = address + bytes;
                if overlaps(&view.live, address, end) {
                    continue;
                }
                for (from, to) in missing(&view.mapped, address, end) {
                    view.mapped.insert(from, to);
                    told.push((event, Told::Unmap { address: from, bytes: to - from }));
                }
                view.live.insert(address, end);
                told.push((event, Told::Free { address, requested }));
            }
            _ => {}
        }
    }
    told.reverse();
    told
}

fn overlaps(ranges: &BTreeMap<u64, u64>, from: u64, to: u64) -> bool {
    ranges.range(..to).next_back().is_some_and(|(_, end)| *end > from)
}

/// The parts of a range that no other range has.
fn missing(ranges: &BTreeMap<u64, u64>, from: u64, to: u64) -> Vec<(u64, u64)> {
    let before = ranges.range(..=from).next_back().map(|(_, end)| *end);
    let mut at = before.map_or(from, |end| end.max(from));
    let mut missing = Vec::new();
    for (&start, &end) in ranges.range(from + 1..to.max(from + 1)) {
        if start > at {
            missing.push((at, start));
        }
        at = at.max(end);
    }
    if at < to {
        missing.push((at, to));
    }
    missing
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::snapshot::{Block, Segment};

    fn block(address: u64, bytes: u64, state: BlockState) -> Block {
        let (requested, home, waits_for) = (None, None, Vec::new());
        Block { address, bytes, requested, state, home, waits_for }
    }

    fn history(actions: &[(bool, u64, u64)]) -> History {
        let event = |(time_ns, &(allocates, address, bytes)): (u64, &(bool, u64, u64))| {
            let requested = bytes - 1;
            let action = match allocates {
                true => Action::Allocate { address, bytes, requested, hit: false },
                false => Action::Free { address, bytes, requested },
            };
            Event { time_ns, stream: Some(1), action }
        };
        let events = (0..).zip(actions).map(event).collect();
        History { events, ..History::default() }
    }

    #[test]
    fn only_what_leads_to_the_snapshot_is_told() {
        let mut segment = Segment { address: 1000, bytes: 600, ..Segment::default() };
        segment.blocks =
            vec![block(1000, 200, BlockState::InUse), block(1200, 400, BlockState::Clean)];
        let snapshot = Snapshot { segments: vec![segment], ..Snapshot::default() };
        let history = history(&[
            // Of a buffer that is not in use any more and whose free is lost.
            (true, 1200, 100),
            // Of one that is older than the history, beyond the segment's end by now.
            (false, 1500, 300),
            (true, 1000, 100),
            (false, 1000, 100),
            (true, 1000, 200),
            // Of one that overlaps what is in use: the snapshot is older.
            (false, 1100, 200),
        ]);
        let told: Vec<Told> =
            leading_to(&history, &snapshot).into_iter().map(|(_, told)| told).collect();
        assert_eq!(
            told,
            [
                Told::Free { address: 1500, requested: 299 },
                Told::Unmap { address: 1600, bytes: 200 },
                Told::Allocate { address: 1000, requested: 99 },
                Told::Free { address: 1000, requested: 99 },
                Told::Allocate { address: 1000, requested: 199 },
            ]
        );
    }

    #[test]
    fn the_missing_parts_of_a_range() {
        let ranges = BTreeMap::from([(100, 200), (300, 400), (400, 500)]);
        assert_eq!(missing(&ranges, 120, 180), []);
        assert_eq!(missing(&ranges, 50, 600), [(50, 100), (200, 300), (500, 600)]);
        assert_eq!(missing(&ranges, 100, 350), [(200, 300)]);
        assert_eq!(missing(&ranges, 0, 50), [(0, 50)]);
        assert_eq!(missing(&ranges, 150, 300), [(200, 300)]);
        assert!(overlaps(&ranges, 199, 250) && !overlaps(&ranges, 200, 300));
    }
}

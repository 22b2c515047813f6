//! A history as the trace beside a snapshot that PyTorch's memory viewer plays back.
//!
//! The viewer goes back from the snapshot, event by event, and breaks off where a block lies in no
//! segment. Rings reach back to different moments, and addresses come to have no memory behind them. So the
//! same way is gone here first, and only what fits is told.

use std::collections::BTreeMap;

use super::{Action, Event, History};
use crate::snapshot::{BlockState, Snapshot};
use crate::tag::Tag;

/// What is told of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Allocate {
        address: u64,
        requested: u64,
        tag: Option<Tag>,
    },
    Free {
        address: u64,
        requested: u64,
        tag: Option<Tag>,
    },
    /// From here on these addresses have no memory behind them.
    Unmap {
        address: u64,
        bytes: u64,
    },
}

/// What the viewer has in mind at one moment: start and end of what is mapped, and of buffers; and beside it
/// what these turn out to be for in the end.
struct View {
    mapped: BTreeMap<u64, u64>,
    live: BTreeMap<u64, u64>,
    tags: BTreeMap<u64, Tag>,
}

/// The part of the history that leads to the snapshot, by time: with each event what is told of it.
pub(crate) fn leading_to<'a>(history: &'a History, snapshot: &Snapshot) -> Vec<(&'a Event, Told)> {
    let segments = snapshot.segments.iter();
    let in_use = || snapshot.blocks().filter(|block| block.state == BlockState::InUse);
    let mut view = View {
        mapped: segments.map(|own| (own.address, own.address + own.bytes)).collect(),
        live: in_use().map(|own| (own.address, own.address + own.bytes)).collect(),
        tags: in_use().filter_map(|own| Some((own.address, own.tag?))).collect(),
    };
    let mut told = Vec::with_capacity(history.events.len());
    for event in history.events.iter().rev().filter(|event| snapshot.comes_after(event)) {
        match event.action {
            Action::Allocate { address, bytes, requested, tag, .. }
                if view.live.get(&address) == Some(&(address + bytes)) =>
            {
                view.live.remove(&address);
                let tag = view.tags.remove(&address).or(tag);
                told.push((event, Told::Allocate { address, requested, tag }));
            }
            Action::Free { address, bytes, requested, tag } => {
                let end = address + bytes;
                if overlaps(&view.live, address, end) {
                    continue;
                }
                for (from, to) in missing(&view.mapped, address, end) {
                    view.mapped.insert(from, to);
                    told.push((event, Told::Unmap { address: from, bytes: to - from }));
                }
                view.live.insert(address, end);
                view.tags.extend(tag.map(|tag| (address, tag)));
                told.push((event, Told::Free { address, requested, tag }));
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
        let (requested, tag, home, waits_for) = (None, None, None, Vec::new());
        Block { address, bytes, requested, tag, state, home, waits_for }
    }

    fn history(actions: &[(bool, u64, u64)]) -> History {
        let event = |(time_ns, &(allocates, address, bytes)): (u64, &(bool, u64, u64))| {
            let requested = bytes - 1;
            let action = match allocates {
                true => Action::Allocate { address, bytes, requested, hit: false, tag: None },
                false => Action::Free { address, bytes, requested, tag: None },
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
                Told::Free { address: 1500, requested: 299, tag: None },
                Told::Unmap { address: 1600, bytes: 200 },
                Told::Allocate { address: 1000, requested: 99, tag: None },
                Told::Free { address: 1000, requested: 99, tag: None },
                Told::Allocate { address: 1000, requested: 199, tag: None },
            ]
        );
    }

    /// A buffer's tag is that of its end, from its beginning on; its successor's is not its own.
    #[test]
    fn a_buffer_has_the_tag_that_it_has_in_the_end() {
        let [first, last, live] = ["first", "last", "live"].map(Tag::new);
        let (address, bytes, requested) = (1000, 100, 90);
        let allocate = |tag| Action::Allocate { address, bytes, requested, hit: true, tag };
        let free = |tag| Action::Free { address, bytes, requested, tag };
        let actions = [
            allocate(Some(first)),
            Action::SetTag { address, tag: last },
            free(Some(last)),
            allocate(None),
            free(None),
            allocate(None),
            Action::SetTag { address, tag: live },
        ];
        let event = |(time_ns, action)| Event { time_ns, stream: Some(1), action };
        let events = (0..).zip(actions).map(event).collect();
        let history = History { events, ..History::default() };
        let mut segment = Segment { address, bytes, ..Segment::default() };
        segment.blocks =
            vec![Block { tag: Some(live), ..block(address, bytes, BlockState::InUse) }];
        let snapshot = Snapshot { segments: vec![segment], ..Snapshot::default() };
        let told = leading_to(&history, &snapshot).into_iter().map(|(_, told)| match told {
            Told::Allocate { tag, .. } | Told::Free { tag, .. } => tag,
            Told::Unmap { .. } => panic!("{told:?}"),
        });
        let told: Vec<Option<Tag>> = told.collect();
        assert_eq!(told, [Some(last), Some(last), None, None, Some(live)]);
    }

    /// The next buffer in its place comes and goes before the history is read.
    #[test]
    fn what_comes_after_the_snapshot_is_not_told() {
        let [own, next] = ["own", "next"].map(Tag::new);
        let (address, bytes, requested) = (1000, 100, 90);
        let actions = [Some(own), Some(next)].into_iter().flat_map(|tag| {
            let allocate = Action::Allocate { address, bytes, requested, hit: true, tag };
            [allocate, Action::Free { address, bytes, requested, tag }]
        });
        let event = |(time_ns, action)| Event { time_ns, stream: Some(1), action };
        let events: Vec<Event> = (0..).zip(actions).map(event).collect();
        for read in 2..=events.len() {
            let history = History { events: events[..read].to_vec(), ..History::default() };
            let mut segment = Segment { address, bytes, ..Segment::default() };
            segment.blocks =
                vec![Block { tag: Some(own), ..block(address, bytes, BlockState::InUse) }];
            let (segments, time_ns) = (vec![segment], Some(0));
            let snapshot = Snapshot { segments, time_ns, ..Snapshot::default() };
            let told = leading_to(&history, &snapshot).into_iter().map(|(event, _)| event.time_ns);
            assert_eq!(told.collect::<Vec<_>>(), [0], "of {read} events");
        }
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

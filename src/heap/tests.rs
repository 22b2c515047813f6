//! The heap against what it must always be, on random programs.
//!
//! Properties, checked after each operation:
//! - the blocks of a segment tile it, without gap or overlap;
//! - the account of each state is the sum of its blocks;
//! - each free block is on the one shelf that its stamps say, and no other block is on any;
//! - neighbours that become clean at the same moment are one block;
//! - a block that is handed out lies in none that is out already, is aligned, and has the size asked for;
//! - it lies in a segment of its part, unless others were asked for.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use proptest::prelude::*;

use super::size_class::GRAIN;
use super::*;
use crate::order::{Frontier, Taker};
use crate::sync::Arc;

const UNIT: u64 = 64 * GRAIN;
const TIMELINES: u64 = 3;
/// Up to here a block is a small one in these tests.
const SMALL: u64 = 12 * GRAIN;

/// Everything up to an epoch has completed, by timeline; no event is published.
#[derive(Debug, Default)]
struct Seen(BTreeMap<TimelineId, Epoch>);

impl Evidence for Seen {
    fn completed(&self, timeline: TimelineId) -> Epoch {
        self.0.get(&timeline).copied().unwrap_or(Epoch::NONE)
    }

    fn one_event_covers(&self, _: TimelineId, left: Epoch, right: Epoch) -> bool {
        // Events close every fourth epoch.
        left.get().div_ceil(4) == right.get().div_ceil(4)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Alloc { grains: u64, align_log: u32, timeline: u64, anywhere: bool },
    Free { index: usize, timeline: u64, epoch: u64, second: bool },
    Complete { timeline: u64, epoch: u64 },
    Segment { grains: u64, small: bool },
    GiveBack { grains: u64, fails: bool },
    Quarantine { timeline: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let timeline = 1..=TIMELINES;
    prop_oneof![
        6 => (prop_oneof![1..12_u64, 1..120_u64], 8..14_u32, timeline.clone(), 0..6_u32).prop_map(
            |(grains, align_log, timeline, anywhere)| {
                let align_log = align_log.saturating_sub(3).max(8);
                Op::Alloc { grains, align_log, timeline, anywhere: anywhere == 0 }
            }
        ),
        6 => (any::<usize>(), timeline.clone(), 1..20_u64, any::<bool>()).prop_map(
            |(index, timeline, epoch, second)| Op::Free { index, timeline, epoch, second }
        ),
        2 => (timeline.clone(), 1..20_u64).prop_map(|(timeline, epoch)| Op::Complete { timeline, epoch }),
        1 => (1..200_u64, any::<bool>()).prop_map(|(grains, small)| Op::Segment { grains, small }),
        1 => (1..400_u64, any::<bool>()).prop_map(|(grains, fails)| Op::GiveBack { grains, fails }),
        1 => timeline.prop_map(|timeline| Op::Quarantine { timeline }),
    ]
}

fn id(number: u64) -> TimelineId {
    (0..number).fold(TimelineId::LOWEST, |id, _| id.next())
}

#[derive(Default)]
struct Run {
    heap: Heap,
    seen: Seen,
    out: Vec<BlockId>,
    next_segment: u64,
    unions: u32,
    rooms: u32,
}

impl Run {
    fn new() -> Run {
        let mut run = Run { next_segment: 1 << 40, ..Run::default() };
        run.heap.add_range(1 << 30, 40 * UNIT, Part::Large, UNIT);
        run.heap.add_range(1 << 31, 10 * UNIT, Part::Small, UNIT);
        run
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Alloc { grains, align_log, timeline, anywhere } => {
                let bytes = grains * GRAIN;
                let part = if bytes <= SMALL { Part::Small } else { Part::Large };
                let request = Request { bytes, align: 1 << align_log, part };
                let elsewhere = anywhere.then(|| request.elsewhere());
                self.alloc(id(timeline), &[Some(request), elsewhere]);
            }
            Op::Free { index, timeline, epoch, second } => {
                if self.out.is_empty() {
                    return;
                }
                let block = self.out.swap_remove(index % self.out.len());
                let mut stamps = Stamps::of(id(timeline), Epoch::from_u64(epoch));
                if second {
                    let timeline = id(timeline % TIMELINES + 1);
                    stamps.add(FreePoint { timeline, epoch: Epoch::from_u64(epoch) });
                }
                self.heap.free(block, stamps, &self.seen);
            }
            Op::Complete { timeline, epoch } => {
                let own = self.seen.0.entry(id(timeline)).or_insert(Epoch::NONE);
                *own = (*own).max(Epoch::from_u64(epoch));
                self.heap.settle(&self.seen);
                self.heap.release_quarantine(&self.seen);
            }
            Op::Segment { grains, small } => {
                let bytes = grains * GRAIN;
                let block = self.heap.add_segment(
                    self.next_segment,
                    bytes,
                    if small { Part::Small } else { Part::Large },
                );
                self.next_segment += bytes;
                self.heap.free(block, Stamps::Clean, &self.seen);
            }
            Op::GiveBack { grains, fails } => {
                for unused in self.heap.take_unused(grains * GRAIN) {
                    if fails {
                        self.heap.keep_unused(unused, &self.seen);
                    } else {
                        self.heap.forget_unused(unused);
                    }
                }
                // Every second unit that is clean goes.
                let whole = |clean: Range<u64>| {
                    let from = clean.start.next_multiple_of(UNIT);
                    let units = (from..clean.end).step_by(UNIT as usize).step_by(2);
                    units.map(|at| at..at + UNIT).filter(move |unit| unit.end <= clean.end)
                };
                let in_range = |clean: &Range<u64>| clean.start < 1 << 40;
                let units: Vec<_> =
                    self.heap.clean_downwards().filter(in_range).flat_map(whole).collect();
                for unit in units.iter().take(grains as usize % 5) {
                    assert!(self.heap.is_clean(unit));
                    self.heap.take_memory(unit);
                }
            }
            Op::Quarantine { timeline } => self.heap.quarantine_timeline(id(timeline)),
        }
    }

    fn alloc(&mut self, home: TimelineId, requests: &[Option<Request>]) {
        let requests: Vec<Request> = requests.iter().copied().flatten().collect();
        let Request { bytes, align, part } = requests[0];
        let taker = Taker { home, frontier: Arc::new(Frontier::default()) };
        let seen = &self.seen;
        let covered = requests.iter().find_map(|own| self.heap.find_covered(own, &taker, seen));
        let covered = covered.or_else(|| self.heap.adopt_segment(&requests[0]));
        let mut unions = requests.iter();
        let block = if let Some(found) = covered {
            self.heap.carve(found, bytes, align)
        } else if let Some(union) = unions.find_map(|own| self.heap.take_union(own, &taker, seen)) {
            self.unions += 1;
            union
        } else if let Some(claim) = self.claim(&requests[0], &taker) {
            if bytes.is_multiple_of(7) {
                self.heap.undo_claim(claim, &self.seen);
                return;
            }
            self.heap.finish_claim(claim, &self.seen)
        } else {
            return;
        };
        let lies = self.heap.blocks.get(block).part;
        assert!(lies == part || requests.len() > 1, "a block where it does not belong");
        let seen = &self.seen;
        let covered = |point: &FreePoint| {
            point.timeline == home || seen.completed(point.timeline) >= point.epoch
        };
        assert!(self.heap.stamps(block).points().iter().all(covered), "an uncovered block");
        self.heap.hand_out(block, TimelineId::LOWEST);
        let (address, got) = self.heap.extent(block);
        assert_eq!((got, address % align), (bytes, 0));
        self.out.push(block);
    }

    fn alloc_large(&mut self, bytes: u64, home: TimelineId) {
        self.alloc(home, &[Some(Request { bytes, align: GRAIN, part: Part::Large })]);
    }

    /// Claims one of the rooms for a request, by its size.
    fn claim(&mut self, request: &Request, taker: &Taker) -> Option<Claim> {
        let Request { bytes, align, .. } = *request;
        let mut rooms = Vec::new();
        self.heap.each_room(request, taker, &self.seen, |room| {
            rooms.push(room);
            ControlFlow::Continue(())
        });
        for room in &rooms {
            assert_eq!((room.start % align, room.end - room.start), (0, bytes));
            assert!(!self.heap.holes_of(room).is_empty(), "a room without a hole is no room");
        }
        let room = rooms.get((bytes / GRAIN) as usize % rooms.len().max(1))?;
        let backed: Vec<_> = (self.heap.holes_of(room).iter())
            .map(|hole| {
                let from = hole.start.max(room.start / UNIT * UNIT);
                from..hole.end.min(room.end.next_multiple_of(UNIT))
            })
            .collect();
        self.rooms += 1;
        Some(self.heap.claim(*room, &backed))
    }

    fn check(&self) {
        let (mut seen, heap) = (Bytes::default(), &self.heap);
        let mut holes = 0;
        for first in heap.segments.first_blocks() {
            let (mut at, mut last_end) = (first, heap.blocks.get(first).address);
            let mut below = BlockId::NONE;
            while !at.is_none() {
                let block = heap.blocks.get(at);
                assert_eq!(
                    (block.address, block.below),
                    (last_end, below),
                    "blocks tile a segment"
                );
                assert!(block.bytes > 0 && block.bytes % GRAIN == 0);
                match (block.state, block.stamps.is_clean()) {
                    (State::Free, true) => seen.clean += block.bytes,
                    (State::Free, false) => seen.pending += block.bytes,
                    (State::Out, _) => seen.out += block.bytes,
                    (State::Transit, _) => panic!("{block:?} is in transit at rest"),
                    (State::Quarantined, _) => seen.quarantined += block.bytes,
                    (State::Hole, _) => holes += 1,
                }
                assert!(!heap.joins_above(at, &self.seen), "{block:?} and the next are one block");
                (below, last_end, at) = (at, block.address + block.bytes, block.above);
            }
        }
        assert_eq!(holes, heap.holes.iter().count());
        for Placed { address, id } in heap.holes.iter() {
            let hole = heap.blocks.get(*id);
            assert_eq!((*address, State::Hole), (hole.address, hole.state));
        }
        let large = |entry: &Entry| entry.bytes() >= UNIT;
        let mut clean: Vec<_> = heap.clean.iter().filter(large).map(|own| own.address()).collect();
        clean.sort_unstable();
        let found = heap.clean_at.iter().map(|own| own.address);
        assert!(found.eq(clean), "large clean blocks are found by address");
        assert_eq!(heap.bytes, seen);
        let shelved: u64 = heap.clean.iter().map(|entry| entry.bytes()).sum();
        assert_eq!(shelved, seen.clean);
        let mut pending = 0;
        for (point, shelf) in heap.pending.iter() {
            assert_eq!(shelf.bytes, shelf.iter().map(|entry| entry.bytes()).sum::<u64>());
            for entry in shelf.iter() {
                let first = heap.stamps(entry.id()).points()[0];
                assert_eq!(point, first, "a block is on its first point's shelf");
            }
            pending += shelf.bytes;
        }
        assert_eq!(pending, seen.pending);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn the_heap_is_what_it_must_be(ops in prop::collection::vec(op(), 1..120)) {
        let mut run = Run::new();
        for op in ops {
            run.step(op);
            run.check();
        }
        // All free and completed: nothing is left but what cannot go back.
        for timeline in 1..=TIMELINES {
            run.step(Op::Complete { timeline, epoch: 100 });
        }
        for block in std::mem::take(&mut run.out) {
            run.heap.free(block, Stamps::Clean, &run.seen);
        }
        run.check();
        for unused in run.heap.take_unused(u64::MAX) {
            run.heap.forget_unused(unused);
        }
        let clean: Vec<_> = run.heap.clean_downwards().collect();
        for block in clean {
            prop_assert_eq!((block.start % UNIT, block.end % UNIT), (0, 0));
            run.heap.take_memory(&block);
        }
        run.check();
        prop_assert_eq!(run.heap.bytes().reserved(), 0);
        let ranges = vec![(1 << 30, 40 * UNIT), (1 << 31, 10 * UNIT)];
        prop_assert_eq!(run.heap.take_empty_ranges(), ranges);
    }
}

#[test]
fn a_union_is_made_only_when_a_request_needs_it_and_takes_no_more_than_it_needs() {
    let mut run = Run::new();
    let block = run.heap.add_segment(1 << 40, 12 * GRAIN, Part::Large);
    run.heap.free(block, Stamps::Clean, &run.seen);
    for _ in 0..3 {
        run.alloc_large(4 * GRAIN, id(1));
    }
    // Freed in epochs that different events close: they stay apart.
    for (epoch, block) in [1, 5, 9].into_iter().zip(std::mem::take(&mut run.out)) {
        run.heap.free(block, Stamps::of(id(1), Epoch::from_u64(epoch)), &run.seen);
    }
    run.check();
    assert_eq!(run.heap.largest_free(), 4 * GRAIN);
    run.alloc_large(6 * GRAIN, id(1));
    run.check();
    assert_eq!((run.unions, run.out.len()), (1, 1));
    // The half of the second block that was not needed keeps its own free point.
    let rest: Vec<_> = run
        .heap
        .pending(Some(&Request { bytes: 2 * GRAIN, align: 1, part: Part::Large }))
        .iter()
        .map(|(first, last)| (first.epoch.get(), last.get()))
        .collect();
    assert_eq!(rest, [(5, 9)]);
}

#[test]
fn a_growth_keeps_the_free_points_of_what_lay_below_it() {
    let mut run = Run::new();
    let home = id(1);
    run.alloc_large(8 * UNIT, home);
    let block = run.out.pop().expect("there is room");
    run.heap.free(block, Stamps::of(home, Epoch::from_u64(3)), &run.seen);
    // Two thirds of the request fit into the block below the hole, which its own stream needs no wait for;
    // the lowest room has all of that block, and the next, in the hole, none of it.
    let taker = Taker { home, frontier: Arc::new(Frontier::default()) };
    let mut rooms = Vec::new();
    let request = Request { bytes: 12 * UNIT + GRAIN, align: GRAIN, part: Part::Large };
    run.heap.each_room(&request, &taker, &run.seen, |room| {
        rooms.push(room);
        ControlFlow::Continue(())
    });
    let starts: Vec<_> = rooms.iter().map(|room| room.start - (1 << 30)).collect();
    assert_eq!(starts, [0, 8 * UNIT]);
    let mut backed = run.heap.holes_of(&rooms[0]);
    backed[0].end = backed[0].start + 6 * UNIT;
    let claim = run.heap.claim(rooms[0], &backed);
    run.heap.undo_claim(claim, &run.seen);
    run.check();
    assert_eq!(run.heap.bytes().pending, 8 * UNIT, "an undone claim leaves all as it was");
    let claim = run.heap.claim(rooms[0], &backed);
    let taken = run.heap.finish_claim(claim, &run.seen);
    assert_eq!(run.heap.extent(taken), (1 << 30, 12 * UNIT + GRAIN));
    run.heap.hand_out(taken, TimelineId::LOWEST);
    run.check();
    let bytes = run.heap.bytes();
    assert_eq!((bytes.pending, bytes.clean), (0, 2 * UNIT - GRAIN), "new memory is clean");
}

/// The device has a segment back before the heap hears of it, and may give its address to another thread's
/// growth in between.
#[test]
fn a_segment_at_the_address_of_one_that_is_going_back_is_not_forgotten_with_it() {
    let mut heap = Heap::default();
    let nothing = Seen::default();
    let address = 1 << 40;
    let old = heap.add_segment(address, 12 * GRAIN, Part::Large);
    heap.free(old, Stamps::Clean, &nothing);
    let going_back = heap.take_unused(u64::MAX).pop().unwrap();
    let new = heap.add_segment(address, 8 * GRAIN, Part::Large);
    heap.forget_unused(going_back);
    heap.free(new, Stamps::Clean, &nothing);
    let unused: Vec<u64> = heap.take_unused(u64::MAX).iter().map(|unused| unused.bytes).collect();
    assert_eq!(unused, [8 * GRAIN]);
}

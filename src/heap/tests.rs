//! The heap against what it must always be, on random programs.
//!
//! Properties, checked after each operation:
//! - the blocks of a segment tile it, without gap or overlap;
//! - the account of each state is the sum of its blocks;
//! - each free block is on the one shelf that its stamps say, and no other block is on any;
//! - neighbours that become clean at the same moment are one block;
//! - a block that is handed out lies in none that is out already, is aligned, and has the size asked for;
//! - a chunk's blocks lie in a row, and nothing but small blocks is cut from it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};

use proptest::prelude::*;

use super::request::Source;
use super::size_class::GRAIN;
use super::*;
use crate::order::{Frontier, Taker};
use crate::sync::Arc;

const UNIT: u64 = 64 * GRAIN;
const TIMELINES: u64 = 3;
/// Up to here a block is a small one in these tests, and cut from chunks of the second size.
const SMALL: u64 = 12 * GRAIN;
const CHUNK: u64 = 40 * GRAIN;

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
    Segment { grains: u64 },
    GiveBack { grains: u64, fails: bool },
    Quarantine { timeline: u64 },
    Dissolve,
}

fn op() -> impl Strategy<Value = Op> {
    let timeline = 1..=TIMELINES;
    prop_oneof![
        6 => (prop_oneof![1..12_u64, 1..120_u64], 8..14_u32, timeline.clone(), 0..8_u32).prop_map(
            |(grains, align_log, timeline, anywhere)| {
                let align_log = align_log.saturating_sub(3).max(8);
                Op::Alloc { grains, align_log, timeline, anywhere: anywhere == 0 }
            }
        ),
        6 => (any::<usize>(), timeline.clone(), 1..20_u64, any::<bool>()).prop_map(
            |(index, timeline, epoch, second)| Op::Free { index, timeline, epoch, second }
        ),
        2 => (timeline.clone(), 1..20_u64).prop_map(|(timeline, epoch)| Op::Complete { timeline, epoch }),
        1 => (1..200_u64).prop_map(|grains| Op::Segment { grains }),
        1 => (1..400_u64, any::<bool>()).prop_map(|(grains, fails)| Op::GiveBack { grains, fails }),
        1 => timeline.prop_map(|timeline| Op::Quarantine { timeline }),
        1 => Just(Op::Dissolve),
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
    /// The blocks of `out` that lie in a chunk.
    in_chunks: BTreeSet<BlockId>,
    unions: u32,
    rooms: u32,
}

impl Run {
    fn new() -> Run {
        let mut run = Run { next_segment: 1 << 40, ..Run::default() };
        run.heap.add_range(1 << 30, 40 * UNIT, UNIT);
        run
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Alloc { grains, align_log, timeline, anywhere } => {
                let (bytes, align) = (grains * GRAIN, 1 << align_log);
                let chunk = Source::NewChunk { bytes: CHUNK, align: GRAIN };
                let sources = match (bytes <= SMALL, anywhere) {
                    (true, false) => &[Source::Chunks, chunk][..],
                    (true, true) => &[Source::Chunks, chunk, Source::Rest],
                    (false, _) => &[Source::Rest],
                };
                self.alloc(bytes, align, id(timeline), sources);
            }
            Op::Dissolve => self.heap.dissolve_chunks(&self.seen),
            Op::Free { index, timeline, epoch, second } => {
                if self.out.is_empty() {
                    return;
                }
                let block = self.out.swap_remove(index % self.out.len());
                self.in_chunks.remove(&block);
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
            Op::Segment { grains } => {
                let bytes = grains * GRAIN;
                let block = self.heap.add_segment(self.next_segment, bytes);
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

    fn alloc(&mut self, bytes: u64, align: u64, home: TimelineId, sources: &[Source]) {
        let requests = sources.iter().map(|source| Request::new(bytes, align, *source));
        let requests: Vec<Request> = requests.collect();
        let taker = Taker { home, frontier: Arc::new(Frontier::default()) };
        let seen = &self.seen;
        let mut covered = requests.iter();
        let covered = covered.find_map(|own| Some((self.heap.find_covered(own, &taker, seen)?, own)));
        let mut unions = requests.iter();
        let block = if let Some((found, request)) = covered {
            self.heap.take(found, request)
        } else if let Some(union) =
            unions.find_map(|request| self.heap.take_union(request, &taker, seen))
        {
            self.unions += 1;
            union
        } else {
            let grown = requests.last().expect("there is one");
            let (wanted, wanted_align) = grown.wanted();
            let Some(claim) = self.claim(wanted, wanted_align, &taker) else { return };
            if bytes.is_multiple_of(7) {
                self.heap.undo_claim(claim, &self.seen);
                return;
            }
            let block = self.heap.finish_claim(claim, &self.seen);
            self.heap.cut(block, grown)
        };
        let in_chunk = self.heap.blocks.get(block).part() == Part::Chunks;
        assert!(!in_chunk || sources.len() > 1, "nothing but small blocks is cut from a chunk");
        assert!(in_chunk || sources.contains(&Source::Rest), "a small block is cut from a chunk");
        if in_chunk {
            self.in_chunks.insert(block);
        }
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

    /// Claims one of the rooms for a request, by its size.
    fn claim(&mut self, bytes: u64, align: u64, taker: &Taker) -> Option<Claim> {
        let mut rooms = Vec::new();
        self.heap.each_room(bytes, align, taker, &self.seen, |room| {
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
        let (mut holes, mut chunks) = (0, BTreeMap::new());
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
                if block.part() == Part::Chunks {
                    let end = chunks.entry(block.chunk).or_insert(block.chunk);
                    assert_eq!(*end, block.address, "a chunk's blocks lie in a row");
                    *end = block.end();
                }
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
        assert_eq!(chunks.iter().map(|(start, end)| end - start).sum::<u64>(), heap.chunks.bytes);
        let first = heap.chunks.first.iter().map(|id| heap.blocks.get(*id).address);
        assert_eq!(first.collect::<BTreeSet<_>>(), chunks.keys().copied().collect());
        for id in &self.in_chunks {
            assert_eq!(heap.blocks.get(*id).part(), Part::Chunks, "a chunk in use stays one");
        }
        assert_eq!(holes, heap.holes.len());
        for (address, hole) in &heap.holes {
            assert_eq!((*address, State::Hole), {
                let hole = heap.blocks.get(*hole);
                (hole.address, hole.state)
            });
        }
        let large = |entry: &Entry| entry.bytes >= UNIT && entry.part == Part::Rest;
        let mut clean: Vec<_> = heap.clean.iter().filter(large).map(|own| own.address).collect();
        clean.sort_unstable();
        assert!(clean.iter().eq(heap.clean_at.keys()), "large clean blocks are found by address");
        assert_eq!(heap.bytes, seen);
        let shelved: u64 = heap.clean.iter().map(|entry| entry.bytes).sum();
        assert_eq!(shelved, seen.clean);
        let mut pending = 0;
        for (key, shelf) in &heap.pending {
            let entries = || shelf.single.iter().chain(shelf.mixed.iter());
            assert_eq!(shelf.bytes, entries().map(|entry| entry.bytes).sum::<u64>());
            for entry in entries() {
                let first = heap.stamps(entry.id).points()[0];
                assert_eq!(
                    *key,
                    (first.timeline, first.epoch),
                    "a block is on its first point's shelf"
                );
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
        run.in_chunks.clear();
        run.check();
        run.heap.dissolve_chunks(&run.seen);
        prop_assert_eq!(run.heap.chunks.bytes, 0);
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
        prop_assert_eq!(run.heap.take_empty_ranges(), vec![(1 << 30, 40 * UNIT)]);
    }
}

#[test]
fn a_union_is_made_only_when_a_request_needs_it_and_takes_no_more_than_it_needs() {
    let mut run = Run::new();
    let block = run.heap.add_segment(1 << 40, 12 * GRAIN);
    run.heap.free(block, Stamps::Clean, &run.seen);
    for _ in 0..3 {
        run.alloc(4 * GRAIN, GRAIN, id(1), &[Source::Rest]);
    }
    // Freed in epochs that different events close: they stay apart.
    for (epoch, block) in [1, 5, 9].into_iter().zip(std::mem::take(&mut run.out)) {
        run.heap.free(block, Stamps::of(id(1), Epoch::from_u64(epoch)), &run.seen);
    }
    run.check();
    assert_eq!(run.heap.largest_free(), 4 * GRAIN);
    run.alloc(6 * GRAIN, GRAIN, id(1), &[Source::Rest]);
    run.check();
    assert_eq!((run.unions, run.out.len()), (1, 1));
    // The half of the second block that was not needed keeps its own free point.
    let rest: Vec<_> = run
        .heap
        .pending(Some(&Request::new(2 * GRAIN, 1, Source::Rest)))
        .iter()
        .map(|(first, last)| (first.epoch.get(), last.get()))
        .collect();
    assert_eq!(rest, [(5, 9)]);
}

#[test]
fn a_growth_keeps_the_free_points_of_what_lay_below_it() {
    let mut run = Run::new();
    let home = id(1);
    run.alloc(8 * UNIT, GRAIN, home, &[Source::Rest]);
    let block = run.out.pop().expect("there is room");
    run.heap.free(block, Stamps::of(home, Epoch::from_u64(3)), &run.seen);
    // Two thirds of the request fit into the block below the hole, which its own stream needs no wait for;
    // the lowest room has all of that block, and the next, in the hole, none of it.
    let taker = Taker { home, frontier: Arc::new(Frontier::default()) };
    let mut rooms = Vec::new();
    run.heap.each_room(12 * UNIT + GRAIN, GRAIN, &taker, &run.seen, |room| {
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
    let old = heap.add_segment(address, 12 * GRAIN);
    heap.free(old, Stamps::Clean, &nothing);
    let going_back = heap.take_unused(u64::MAX).pop().unwrap();
    let new = heap.add_segment(address, 8 * GRAIN);
    heap.forget_unused(going_back);
    heap.free(new, Stamps::Clean, &nothing);
    let unused: Vec<u64> = heap.take_unused(u64::MAX).iter().map(|unused| unused.bytes).collect();
    assert_eq!(unused, [8 * GRAIN]);
}

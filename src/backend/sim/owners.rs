//! Who holds which memory, as the test harness tells: the notes that turn "two unordered uses" into
//! "the pool's fault" or "the program's".
#![forbid(unsafe_code)]

use std::ops::Range;

use super::clock::{OpNumber, TimelineId};
use super::hazard::{Hazard, HazardKind, Missing, Side};
use super::history::{Entry, What};
use super::memory::{Memory, Piece};
use super::oracle::Oracle;
use super::state::State;
use super::uses::Order;

/// One hand-out that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    /// From 1, in order of the hand-outs.
    pub(super) number: u32,
    home: TimelineId,
    /// The last operation on any stream at the hand-out, and the last on its home.
    handed_out: OpNumber,
    home_op: OpNumber,
    /// Streams beside its home that the owner has named.
    declared: Vec<TimelineId>,
}

/// By which address bytes were last handed out, less where they are: the same for all bytes of one
/// mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shift(u64);

impl Shift {
    fn of(piece: &Piece) -> Shift {
        Shift(piece.address.wrapping_sub(piece.physical))
    }

    fn address(self, physical: u64) -> u64 {
        self.0.wrapping_add(physical)
    }
}

impl Owner {
    /// The hand-out, for a report.
    pub(super) fn hand_out(&self, address: u64, bytes: u64) -> Entry {
        Entry {
            op: self.handed_out,
            address,
            bytes,
            timeline: self.home,
            owner: self.number,
            what: What::HandedOut,
        }
    }

    /// Whether the owner may expect the memory to be ready for a stream: it is its home, or the
    /// owner has named it, or it is ordered after the hand-out in another way.
    pub(super) fn is_ready_for(&self, order: &Order<'_>) -> bool {
        let stream = order.timeline;
        stream == self.home
            || self.declared.contains(&stream)
            || order.covers(self.home, self.home_op)
    }
}

impl Oracle {
    /// A hand-out of what others hold already.
    #[cold]
    fn handed_out_twice(&mut self, later: Entry, range: &Range<u64>) {
        let held: Vec<Entry> = (self.owners.overlapping(range))
            .map(|(held, owner)| {
                let (start, end) = (held.start.max(range.start), held.end.min(range.end));
                owner.hand_out(start, end - start)
            })
            .collect();
        held.into_iter().for_each(|held| self.overlap(held, later));
    }

    fn overlap(&mut self, held: Entry, later: Entry) {
        let (address, bytes) = (held.address, held.bytes);
        let (earlier, later) = (Some(self.side(held)), Some(self.side(later)));
        let words = format!("the end of the hand-out to owner {}", held.owner);
        let (kind, missing) = (HazardKind::Overlap, Missing::Other(words));
        self.report(Hazard { kind, address, bytes, earlier, later, missing });
    }

    /// Notes by which address the bytes of a piece are handed out, and reports who still holds them by
    /// another.
    fn hold(&mut self, later: Entry, piece: &Piece, memory: &Memory, context: usize) {
        let range = piece.physical..piece.physical + piece.bytes;
        let shift = Shift::of(piece);
        if let Some(own) = self.shifts.exact(&range)
            && *own == shift
        {
            return;
        }
        let mut others = Vec::new();
        for (held, own) in self.shifts.overlapping(&range).filter(|(_, own)| **own != shift) {
            let (start, end) = (held.start.max(range.start), held.end.min(range.end));
            let address = own.address(start);
            // Whoever it was may have given it back, and other memory may be there now.
            let same = memory.piece_at(context, address, 1).is_some_and(|at| at.physical == start);
            if same && let Some((_, owner)) = self.owners.at(address) {
                others.push(owner.hand_out(address, end - start));
            }
        }
        others.into_iter().for_each(|held| self.overlap(held, later));
        self.shifts.set(range, shift);
    }
}

impl State {
    pub(super) fn note_handed_out(&mut self, home: TimelineId, address: u64, bytes: u64) {
        if bytes == 0 || !self.check {
            return;
        }
        self.oracle.last_owner += 1;
        let timeline = self.engine.timeline(home);
        let owner = Owner {
            number: self.oracle.last_owner,
            home,
            handed_out: self.engine.submitted,
            home_op: timeline.last,
            declared: Vec::new(),
        };
        let entry = owner.hand_out(address, bytes);
        let range = address..address.saturating_add(bytes);
        if !self.oracle.owners.is_clear(&range) {
            self.oracle.handed_out_twice(entry, &range);
        }
        let mut annotated = true;
        self.for_each_piece(home, address, bytes, |state, piece| {
            annotated &= piece.annotated;
            let clock = &state.engine.timeline(home).clock;
            state.oracle.check_hand_out(entry, &piece, clock);
            let context = state.engine.timeline(home).context;
            state.oracle.hold(entry, &piece, &state.memory, context);
        });
        if !annotated {
            self.memory.annotate(address, bytes);
        }
        self.oracle.owners.set(range, owner);
        self.oracle.history.push(entry);
    }

    /// The owner of the range names another stream: it must be ordered, from here on, after all that
    /// is on home, and after every earlier owner's use.
    pub(super) fn note_use_on(&mut self, stream: TimelineId, address: u64, moved: bool) {
        let Some((range, owner)) = self.oracle.owners.at(address) else {
            self.not_held(stream, address, 1);
            return;
        };
        let (home, number) = (owner.home, owner.number);
        let bytes = range.end - range.start;
        let handed = owner.hand_out(range.start, bytes);
        let last = self.engine.find(home).map_or(0, |home| home.last);
        let op = self.engine.submitted;
        let (address, timeline, what) = (range.start, stream, What::Declared);
        let entry = Entry { op, address, bytes, timeline, owner: number, what };
        let timeline_state = self.engine.timeline(stream);
        let (clock, own_last) = (timeline_state.clock.clone(), timeline_state.last);
        let order = Order { timeline: stream, clock: &clock, done: &self.oracle.done };
        if !order.covers(home, last) {
            let missing =
                Missing::Edge { from: home, op: last, to: stream, reached: clock.get(home) };
            let earlier = Some(self.oracle.side(handed));
            let later = Some(Side { entry, history: Vec::new() });
            let kind = HazardKind::Reuse;
            self.oracle.report(Hazard { kind, address, bytes, earlier, later, missing });
        }
        self.oracle.history.push(entry);
        let owner = self.oracle.owners.at_mut(address).expect("just seen");
        if moved {
            owner.declared.push(owner.home);
            owner.home = stream;
            owner.home_op = own_last;
        } else {
            owner.declared.push(stream);
        }
    }

    pub(super) fn note_given_back(&mut self, address: u64, bytes: u64) {
        if bytes == 0 || !self.check {
            return;
        }
        let range = address..address.saturating_add(bytes);
        if let Some(owner) = self.oracle.owners.exact_mut(&range) {
            let entry = owner.hand_out(address, bytes);
            self.given_back(entry);
            self.oracle.owners.remove(&range);
            return;
        }
        let mut at = address;
        let held: Vec<(u64, u64, Owner)> = (self.oracle.owners.overlapping(&range))
            .map(|(held, owner)| (held.start, held.end, owner.clone()))
            .collect();
        for (start, end, owner) in held {
            if at < start {
                self.not_held(owner.home, at, start - at);
            }
            at = end;
            let entry = owner.hand_out(start.max(address), end.min(range.end) - start.max(address));
            self.given_back(entry);
        }
        if at < range.end {
            self.not_held(TimelineId(0), at, range.end - at);
        }
        self.oracle.owners.remove(&range);
    }

    fn given_back(&mut self, hand_out: Entry) {
        let op = self.engine.submitted;
        self.oracle.history.push(Entry { op, what: What::GivenBack, ..hand_out });
    }

    fn not_held(&mut self, timeline: TimelineId, address: u64, bytes: u64) {
        let (op, owner, what) = (self.engine.submitted, 0, What::GivenBack);
        let entry = Entry { op, address, bytes, timeline, owner, what };
        let later = Some(Side { entry, history: Vec::new() });
        let missing = Missing::Other("a hand-out of these bytes that has not ended".to_owned());
        let (kind, earlier) = (HazardKind::Lifetime, None);
        self.oracle.report(Hazard { kind, address, bytes, earlier, later, missing });
    }

    /// Calls `each` for the parts of a range that lie in one mapping each; holes are left out.
    pub(super) fn for_each_piece(
        &mut self,
        stream: TimelineId,
        address: u64,
        bytes: u64,
        mut each: impl FnMut(&mut Self, Piece),
    ) {
        let context = self.engine.timeline(stream).context;
        let end = address.saturating_add(bytes);
        let mut at = address;
        while at < end {
            if let Some(piece) = self.memory.piece_at(context, at, end - at) {
                at += piece.bytes;
                each(self, piece);
            } else {
                at = self.memory.next_mapped(at).unwrap_or(end).min(end);
            }
        }
    }
}

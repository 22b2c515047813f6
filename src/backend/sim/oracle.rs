//! The oracle: every use of memory, every hand-out, and what was wrong with them.
#![forbid(unsafe_code)]

use std::ops::Range;

use super::clock::{Clock, Done, OpNumber, TimelineId};
use super::hazard::{Hazard, HazardKind, Missing, Side};
use super::history::{Entry, History, What};
use super::kernel::{Access, Mode, UNRESOLVED};
use super::memory::{Memory, Piece};
use super::owners::{Owner, Shift};
use super::range_map::RangeMap;
use super::uses::{Conflict, Order, Use, Uses};

/// Hazards beyond this many are counted, and not described: a broken pool breaks often.
const DESCRIBED: usize = 10_000;

/// What the last write left in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) stamp: u64,
    pub(super) op: OpNumber,
    pub(super) timeline: TimelineId,
}

#[derive(Default)]
pub(super) struct Oracle {
    pub(super) done: Done,
    /// By physical address, as of submission.
    pub(super) uses: Uses,
    /// By physical address, as of execution.
    pub(super) contents: RangeMap<Written>,
    /// Who holds what, by address.
    pub(super) owners: RangeMap<Owner>,
    /// By physical address: by which address memory, which may have several, was handed out last.
    pub(super) shifts: RangeMap<Shift>,
    pub(super) last_owner: u32,
    pub(super) history: History,
    pub(super) hazards: Vec<Hazard>,
    /// Hazards found, described or not.
    pub(super) found: u64,
    /// Kept empty between calls.
    conflicts: Vec<Conflict>,
}

/// One operation as the oracle sees it at submission.
pub(super) struct Submission<'a> {
    pub(super) op: OpNumber,
    pub(super) timeline: TimelineId,
    pub(super) context: usize,
    pub(super) clock: &'a Clock,
}

impl Oracle {
    pub(super) fn report(&mut self, hazard: Hazard) {
        self.found += 1;
        if let Some(last) = self.hazards.last_mut()
            && last.absorb(&hazard)
        {
            return;
        }
        if self.hazards.len() < DESCRIBED {
            self.hazards.push(hazard);
        }
    }

    pub(super) fn misuse(&mut self, words: String) {
        let missing = Missing::Other(words);
        let (earlier, later) = (None, None);
        let kind = HazardKind::Misuse;
        self.report(Hazard { kind, address: 0, bytes: 0, earlier, later, missing });
    }

    /// One side of a hazard, with what is remembered of it: all that its owner did with the bytes,
    /// or, where no owner is known, all that its stream did.
    pub(super) fn side(&self, entry: Entry) -> Side {
        let history = self.history.of(entry.address, entry.bytes, |past| {
            let same = match entry.owner {
                0 => past.timeline == entry.timeline,
                owner => past.owner == owner,
            };
            same && (past.op, past.what) != (entry.op, entry.what)
        });
        Side { entry, history }
    }

    /// Checks and notes all that an operation touches, and finds out where that is.
    pub(super) fn submit(
        &mut self,
        memory: &Memory,
        submission: &Submission<'_>,
        accesses: &mut [Access],
    ) {
        for access in accesses {
            let end = access.address.saturating_add(access.bytes);
            let mut at = access.address;
            let device = access.device.unwrap_or(submission.context);
            while at < end {
                let Some(piece) = memory.piece_at(device, at, end - at) else {
                    let next = memory.next_mapped(at).unwrap_or(end).min(end);
                    self.untouchable(HazardKind::Unmapped, submission, access, at, next - at);
                    at = next;
                    continue;
                };
                if !piece.accessible {
                    self.untouchable(HazardKind::NoAccess, submission, access, at, piece.bytes);
                }
                if piece.accessible && piece.bytes == access.bytes {
                    access.physical = piece.physical;
                }
                self.submit_piece(submission, access, &piece);
                at += piece.bytes;
            }
        }
    }

    fn submit_piece(&mut self, submission: &Submission<'_>, access: &Access, piece: &Piece) {
        if !piece.annotated {
            self.note_use(submission, access, piece, None);
            return;
        }
        let end = piece.address + piece.bytes;
        let mut at = piece.address;
        while at < end {
            let (stop, owner) = match self.owners.at(at) {
                Some((range, owner)) => (range.end.min(end), Some(owner.clone())),
                None => {
                    let next = self.owners.overlapping(&(at..end)).next();
                    (next.map_or(end, |(range, _)| range.start), None)
                }
            };
            let physical = piece.physical + (at - piece.address);
            let part = Piece { address: at, bytes: stop - at, physical, ..*piece };
            if owner.is_none() && access.device.is_none() {
                self.untouchable(HazardKind::Lifetime, submission, access, at, stop - at);
            }
            self.note_use(submission, access, &part, owner.as_ref());
            at = stop;
        }
    }

    fn note_use(
        &mut self,
        submission: &Submission<'_>,
        access: &Access,
        piece: &Piece,
        owner: Option<&Owner>,
    ) {
        let &Submission { op, timeline, clock, .. } = submission;
        let write = access.mode.writes();
        let number = owner.map_or(0, |owner| owner.number);
        let new = Use { op, timeline, owner: number, mapping: piece.mapping };
        let order = Order { timeline, clock, done: &self.done };
        let range = piece.physical..piece.physical + piece.bytes;
        self.uses.note(range, new, write, &order, &mut self.conflicts);
        let what = if write { What::Write } else { What::Read };
        let (address, bytes) = (piece.address, piece.bytes);
        let entry = Entry { op, address, bytes, timeline, owner: number, what };
        if !self.conflicts.is_empty() {
            let ready = owner.is_some_and(|owner| owner.is_ready_for(&order));
            self.report_conflicts(entry, piece, clock, ready);
        }
        self.history.push(entry);
    }

    /// Turns the conflicts of one use (or hand-out) into hazards. They are the pool's fault where
    /// the earlier use was an earlier owner's, and the later owner could expect the memory to be
    /// `ready`: it was used on its home, for instance. Any other pair is the program's.
    #[cold]
    pub(super) fn report_conflicts(
        &mut self,
        later: Entry,
        piece: &Piece,
        clock: &Clock,
        ready: bool,
    ) {
        for Conflict { range, earlier, wrote } in std::mem::take(&mut self.conflicts) {
            let address = piece.address + (range.start - piece.physical);
            let bytes = range.end - range.start;
            let what = if wrote { What::Write } else { What::Read };
            let Use { op, timeline, owner, .. } = earlier;
            let pools = ready && owner != 0 && owner != later.owner;
            let kind = if pools { HazardKind::Reuse } else { HazardKind::Race };
            let to = later.timeline;
            let missing = Missing::Edge { from: timeline, op, to, reached: clock.get(timeline) };
            let earlier = self.side(Entry { op, address, bytes, timeline, owner, what });
            let later = self.side(Entry { address, bytes, ..later });
            let (earlier, later) = (Some(earlier), Some(later));
            self.report(Hazard { kind, address, bytes, earlier, later, missing });
        }
    }

    /// Checks a hand-out: its stream is ordered after every use of the bytes.
    pub(super) fn check_hand_out(&mut self, later: Entry, piece: &Piece, clock: &Clock) {
        let order = Order { timeline: later.timeline, clock, done: &self.done };
        let range = piece.physical..piece.physical + piece.bytes;
        self.uses.check(&range, true, &order, &mut self.conflicts);
        if !self.conflicts.is_empty() {
            self.report_conflicts(later, piece, clock, true);
        }
    }

    #[cold]
    fn untouchable(
        &mut self,
        kind: HazardKind,
        submission: &Submission<'_>,
        access: &Access,
        address: u64,
        bytes: u64,
    ) {
        let what = if access.mode.writes() { What::Write } else { What::Read };
        let &Submission { op, timeline, context, .. } = submission;
        let later = self.side(Entry { op, address, bytes, timeline, owner: 0, what });
        let missing = match kind {
            HazardKind::NoAccess => format!("access for device {context}"),
            HazardKind::Lifetime => "a hand-out of these bytes that has not ended".to_owned(),
            _ => "a mapping of these bytes".to_owned(),
        };
        let taken = self
            .history
            .of(address, bytes, |entry| matches!(entry.what, What::Unmapped | What::GivenBack));
        let earlier = taken.last().map(|&entry| self.side(entry));
        let (later, missing) = (Some(later), Missing::Other(missing));
        self.report(Hazard { kind, address, bytes, earlier, later, missing });
    }

    /// Checks that nobody holds memory that is taken away, and that the host has seen every use of
    /// it through its mapping finish; what else is mapped to the same bytes stays. `piece` lies in one
    /// mapping.
    pub(super) fn check_taken_away(&mut self, piece: &Piece, now: OpNumber) {
        let Piece { address, bytes, physical, mapping, .. } = *piece;
        let what = What::Unmapped;
        let host = TimelineId(0);
        let gone = Entry { op: now, address, bytes, timeline: host, owner: 0, what };
        let held: Vec<(Range<u64>, Owner)> = self
            .owners
            .overlapping(&(address..address + bytes))
            .map(|(range, owner)| (range, owner.clone()))
            .collect();
        for (range, owner) in held {
            let words = format!("the end of the hand-out to owner {}", owner.number);
            let bytes = range.end - range.start;
            let entry = owner.hand_out(range.start, bytes);
            self.taken_away(gone, entry, Missing::Other(words));
        }
        for Conflict { range, earlier, wrote } in
            self.uses.unfinished(&(physical..physical + bytes), mapping, &self.done)
        {
            let Use { op, timeline, owner, .. } = earlier;
            let address = address + (range.start - physical);
            let bytes = range.end - range.start;
            let what = if wrote { What::Write } else { What::Read };
            let entry = Entry { op, address, bytes, timeline, owner, what };
            self.taken_away(gone, entry, Missing::Completion { from: timeline, op });
        }
        self.history.push(gone);
    }

    fn taken_away(&mut self, gone: Entry, entry: Entry, missing: Missing) {
        let kind = HazardKind::UnmappedInUse;
        let (address, bytes) = (entry.address, entry.bytes);
        let earlier = Some(self.side(entry));
        let later = Some(Side { entry: gone, history: Vec::new() });
        self.report(Hazard { kind, address, bytes, earlier, later, missing });
    }

    /// Executes what an operation does to memory. `false` if it met an address that it cannot touch.
    pub(super) fn execute(
        &mut self,
        memory: &Memory,
        op: OpNumber,
        (timeline, context): (TimelineId, usize),
        accesses: &[Access],
        (stamp, changes): (u64, u64),
    ) -> bool {
        let written = Written { stamp, op, timeline };
        let mut source = context;
        for access in accesses {
            let context = access.device.unwrap_or(context);
            if let Mode::Copy(from) = access.mode {
                // The source was reached just before, by the access that reads it.
                if !self.execute_copy(memory, written, (access, context), (from, source)) {
                    return false;
                }
                continue;
            }
            source = context;
            if access.physical != UNRESOLVED && changes == memory.changes {
                self.execute_piece(written, access, access.address, access.physical, access.bytes);
                continue;
            }
            let end = access.address.saturating_add(access.bytes);
            let mut at = access.address;
            while at < end {
                match memory.piece_at(context, at, end - at) {
                    Some(piece) if piece.accessible => {
                        self.execute_piece(written, access, at, piece.physical, piece.bytes);
                        at += piece.bytes;
                    }
                    _ => return false,
                }
            }
        }
        true
    }

    #[inline]
    fn execute_piece(
        &mut self,
        written: Written,
        access: &Access,
        address: u64,
        physical: u64,
        bytes: u64,
    ) {
        let range = physical..physical + bytes;
        match access.mode {
            Mode::Read => {}
            Mode::Write => match self.contents.exact_mut(&range) {
                Some(content) => *content = written,
                None => self.contents.set(range, written),
            },
            Mode::Expect(stamp) => self.expect(written, stamp, address, range),
            Mode::Copy(_) => unreachable!("a copy is executed as a whole"),
        }
    }

    /// Copies what is at `from`, as the device `source` reaches it. What was never written is not there.
    fn execute_copy(
        &mut self,
        memory: &Memory,
        written: Written,
        (access, context): (&Access, usize),
        (from, source): (u64, usize),
    ) -> bool {
        let mut done = 0;
        while done < access.bytes {
            let left = access.bytes - done;
            let reached = |context, address| {
                memory.piece_at(context, address, left).filter(|piece| piece.accessible)
            };
            let (Some(to), Some(from)) =
                (reached(context, access.address + done), reached(source, from + done))
            else {
                return false;
            };
            let bytes = to.bytes.min(from.bytes);
            let range = from.physical..from.physical + bytes;
            let found: Vec<(Range<u64>, u64)> = (self.contents.overlapping(&range))
                .map(|(part, own)| {
                    (part.start.max(range.start)..part.end.min(range.end), own.stamp)
                })
                .collect();
            self.contents.remove(&(to.physical..to.physical + bytes));
            for (part, stamp) in found {
                let at = |physical: u64| to.physical + (physical - from.physical);
                self.contents.set(at(part.start)..at(part.end), Written { stamp, ..written });
            }
            done += bytes;
        }
        true
    }

    fn expect(&mut self, reader: Written, stamp: u64, address: u64, range: Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            let (stop, found) = match self.contents.at(at) {
                Some((content, &written)) => (content.end.min(range.end), Some(written)),
                None => {
                    let next = self.contents.overlapping(&(at..range.end)).next();
                    (next.map_or(range.end, |(content, _)| content.start), None)
                }
            };
            if found.is_none_or(|written| written.stamp != stamp) {
                self.corrupted(reader, stamp, found, address + (at - range.start), stop - at);
            }
            at = stop;
        }
    }

    #[cold]
    fn corrupted(
        &mut self,
        reader: Written,
        stamp: u64,
        found: Option<Written>,
        address: u64,
        bytes: u64,
    ) {
        let entry = |by: Written, what| {
            let Written { op, timeline, .. } = by;
            Entry { op, address, bytes, timeline, owner: 0, what }
        };
        let later = Some(self.side(entry(reader, What::Read)));
        let earlier = found.map(|found| self.side(entry(found, What::Write)));
        let missing = match found {
            Some(found) => format!("stamp {stamp}, where stamp {} is", found.stamp),
            None => format!("stamp {stamp}, where nothing has been written"),
        };
        let (kind, missing) = (HazardKind::Corruption, Missing::Other(missing));
        self.report(Hazard { kind, address, bytes, earlier, later, missing });
    }
}

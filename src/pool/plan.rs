//! Which room a growth takes, and what memory gets behind it: what can be decided with no driver call.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};

use super::central::Central;
use super::pieces::{PieceId, Status};
use crate::backend::Backend;
use crate::fault::seeded;
use crate::heap::{Request, Room};
use crate::order::Taker;

/// How many bytes of memory may come from where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    /// The unit of virtual memory.
    pub(super) granularity: u64,
    /// The size of new granules.
    pub(super) granule: u64,
    /// What is taken from the device is a multiple of this, where the hole goes on.
    pub(super) unit: u64,
    /// The most that may be reserved.
    pub(super) cap: u64,
    pub(super) spare: Spare,
    pub(super) aim: Aim,
}

/// What makes one room better than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// Few driver calls.
    FewMappings,
    /// Little memory that could be elsewhere: where all of it may be too little.
    LittleMemory,
}

/// Which free memory may get behind a room at which it is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spare {
    Nothing,
    /// What is behind no block.
    Parked,
    /// That, and what is clean behind other blocks.
    Clean,
}

/// What is to be behind a room.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) room: Room,
    /// How much of each of its holes gets memory.
    pub(super) backed: Vec<Range<u64>>,
    pub(super) parts: Vec<(Range<u64>, Source)>,
    /// Where clean pieces are active that are wanted here.
    pub(super) moved: Vec<Range<u64>>,
    /// Dormant places of pieces that are in use elsewhere: to be unmapped first.
    pub(super) stale: Vec<u64>,
    /// What has to come from the device, in bytes.
    pub(super) fresh: u64,
}

/// Where a part's memory comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// A piece that is mapped here.
    Here(PieceId),
    /// A piece that is mapped elsewhere, at most.
    Elsewhere(PieceId),
    Device,
}

impl<B: Backend> Central<B> {
    /// The best room for a request, and what it costs, which is less than `bound`; of those that cost nothing
    /// the lowest, so that a program that goes round in a circle meets itself again.
    pub(super) fn find_room(
        &self,
        request: &Request,
        taker: &Taker,
        means: &Means,
        bound: u64,
    ) -> Option<(Room, u64)> {
        let mut best: Option<(Room, u64)> = None;
        self.heap.each_room(request, taker, &self.timelines, |room| {
            let bound = best.map_or(bound, |(_, cost)| cost);
            if let Some(cost) = self.cost(&room, means, bound) {
                best = Some((room, cost));
            }
            match best {
                Some((_, 0)) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        // Where the rest of every hole that is large enough lies behind addresses that are just being
        // unmapped.
        best.or_else(|| {
            let room = self.find_vacant(request, means.granularity)?;
            Some((room, self.cost(&room, means, bound)?))
        })
    }

    /// What a room costs, by the aim, if it is possible and that is less than `bound`.
    fn cost(&self, room: &Room, means: &Means, bound: u64) -> Option<u64> {
        let cost = match means.aim {
            Aim::FewMappings => self.mappings(room, means, bound)?,
            Aim::LittleMemory => self.memory(room, means)?,
        };
        (cost < bound).then_some(cost)
    }

    /// The mappings and unmappings that a room needs, if it is possible and they are fewer than `bound`.
    fn mappings(&self, room: &Room, means: &Means, bound: u64) -> Option<u64> {
        let mut used: Vec<PieceId> = Vec::new();
        let mut cost = 0;
        for hole in self.heap.holes_of(room) {
            let part = Self::units_of(&hole, room, means);
            let mut at = part.start;
            for place in self.pieces.places_in(part.clone()) {
                // The first may begin before the part: a place is mapped as a whole.
                cost += place.address.saturating_sub(at).div_ceil(means.granule);
                at = place.end;
                if self.pieces.status(place.piece) == Status::Leaving {
                    return None;
                }
                let may_be_here_too = self.pieces.has_further_places(place.piece);
                if may_be_here_too && used.contains(&place.piece)
                    || self.move_to(room, place.piece).is_none()
                {
                    cost += 2;
                }
                if may_be_here_too {
                    used.push(place.piece);
                }
                if cost >= bound {
                    return None;
                }
            }
            cost += part.end.saturating_sub(at).div_ceil(means.granule);
            if cost >= bound {
                return None;
            }
        }
        Some(cost)
    }

    /// The memory that gets into a room's holes, with what is in the room and could get elsewhere, if it is
    /// possible: the less, the less has to come from the device.
    fn memory(&self, room: &Room, means: &Means) -> Option<u64> {
        let mut bytes = 0;
        for hole in self.heap.holes_of(room) {
            let part = self.part_of(&hole, room, means);
            bytes += part.end - part.start;
            let mut places = self.pieces.places_in(part);
            if places.any(|place| self.pieces.status(place.piece) == Status::Leaving) {
                return None;
            }
        }
        for place in self.pieces.places_in(room.start..room.end) {
            let is_active = self.pieces.status(place.piece) == Status::Active(place.address);
            if is_active && self.heap.is_clean(&place.range()) {
                bytes += place.end - place.address;
            }
        }
        Some(bytes)
    }

    /// The part of a hole that a room needs memory in: whole units, and whole places.
    fn part_of(&self, hole: &Range<u64>, room: &Room, means: &Means) -> Range<u64> {
        self.pieces.whole(Self::units_of(hole, room, means))
    }

    /// The whole units of a hole that a room has a part of.
    fn units_of(hole: &Range<u64>, room: &Room, means: &Means) -> Range<u64> {
        let unit = means.granularity;
        hole.start.max(room.start / unit * unit)..hole.end.min(room.end.next_multiple_of(unit))
    }

    /// Whether a piece can be active in a room, and where it is active now, if it is.
    fn move_to(&self, room: &Room, piece: PieceId) -> Option<Option<Range<u64>>> {
        match self.pieces.status(piece) {
            Status::Parked => Some(None),
            Status::InTransit | Status::Leaving => None,
            Status::Active(address) => {
                let range = address..address + self.pieces.bytes(piece);
                let is_free = !room.meets(&range) && self.heap.is_clean(&range);
                is_free.then_some(Some(range))
            }
        }
    }

    /// Plans what is to be behind a room.
    pub(super) fn plan(&self, room: Room, means: &Means) -> Plan {
        let (backed, parts, moved, stale) = Default::default();
        let mut plan = Plan { room, backed, parts, moved, stale, fresh: 0 };
        let mut used = BTreeSet::new();
        let mut gaps: Vec<Range<u64>> = Vec::new();
        let holes = self.heap.holes_of(&room);
        for hole in &holes {
            let part = self.part_of(hole, &room, means);
            let mut at = part.start;
            for place in self.pieces.places_in(part.clone()) {
                let is_first = |_: &_| used.insert(place.piece) || seeded!(PieceTwice);
                match self.move_to(&room, place.piece).filter(is_first) {
                    Some(from) => {
                        plan.moved.extend(from);
                        plan.parts.push((place.range(), Source::Here(place.piece)));
                        gaps.push(at..place.address);
                        at = place.end;
                    }
                    None => plan.stale.push(place.address),
                }
            }
            gaps.push(at..part.end);
            plan.backed.push(part);
        }
        let largest = gaps.iter().map(|gap| gap.end - gap.start).max().unwrap_or(0);
        let mut spares = Spares {
            passed: BTreeMap::new(),
            source: self.spares(&room, means, &used).filter(|own| own.bytes <= largest),
        };
        let last = gaps.last().cloned().unwrap_or_default();
        for gap in gaps {
            fill(&mut plan, gap, &mut spares, means);
        }
        if let Some(hole) = holes.last()
            && plan.fresh > 0
            && !(self.has_what_was_reserved() && self.reach_beyond(&mut plan, hole, last, means))
        {
            self.grow_ahead(&mut plan, hole, means);
        }
        plan
    }

    /// Where the device would have to give all of the last gap, gets a free piece there that is larger than
    /// the gap and reaches beyond the room, if there is one: memory that was reserved comes in large pieces.
    /// Elsewhere it is better not to: a small block that stays would keep all of a large piece.
    fn reach_beyond(
        &self,
        plan: &mut Plan,
        hole: &Range<u64>,
        gap: Range<u64>,
        means: &Means,
    ) -> bool {
        let is_fresh = |(range, source): &(Range<u64>, Source)| {
            range.start >= gap.start && matches!(source, Source::Device)
        };
        let missing = gap.end - gap.start;
        let fresh = plan.parts.iter().filter(|part| is_fresh(part));
        let fresh: u64 = fresh.map(|(range, _)| range.end - range.start).sum();
        if missing == 0 || fresh < missing || self.clean() < missing {
            return false;
        }
        let used = plan.parts.iter().filter_map(|(_, source)| match source {
            Source::Here(piece) | Source::Elsewhere(piece) => Some(*piece),
            Source::Device => None,
        });
        let used = used.collect();
        let next = self.pieces.places_in(gap.end..hole.end).next();
        let vacant = next.map_or(hole.end, |own| own.address) - gap.start;
        let fits = |own: &SparePiece| (missing..=vacant).contains(&own.bytes);
        let spares = self.spares(&plan.room, means, &used).filter(fits);
        let Some(own) = spares.min_by_key(|own| own.bytes) else { return false };
        plan.parts.retain(|part| !is_fresh(part));
        plan.fresh -= fresh;
        let end = gap.start + own.bytes;
        plan.parts.push((gap.start..end, Source::Elsewhere(own.piece)));
        plan.moved.extend(own.from);
        plan.backed.last_mut().expect("the gap is in a part that is backed").end = end;
        true
    }

    /// The pieces that are free and not behind the room: those that are parked, the largest first, and then
    /// those that are clean elsewhere.
    fn spares(
        &self,
        room: &Room,
        means: &Means,
        used: &BTreeSet<PieceId>,
    ) -> impl Iterator<Item = SparePiece> {
        let pieces = &self.pieces;
        let parked = (means.spare != Spare::Nothing).then(|| pieces.parked());
        let parked = parked.into_iter().flatten().map(|piece| {
            let (bytes, from) = (pieces.bytes(piece), None);
            SparePiece { piece, bytes, from }
        });
        let clean = (means.spare == Spare::Clean).then(|| self.clean_pieces());
        let elsewhere = clean.into_iter().flatten().filter(|(range, _)| !room.meets(range));
        let elsewhere = elsewhere.map(|(range, piece)| {
            let bytes = range.end - range.start;
            SparePiece { piece, bytes, from: Some(range) }
        });
        parked.chain(elsewhere).filter(|own| !used.contains(&own.piece))
    }

    /// The pieces of which a clean block has all, from the highest address down: where each is active.
    pub(super) fn clean_pieces(&self) -> impl Iterator<Item = (Range<u64>, PieceId)> + '_ {
        self.heap.clean_downwards().flat_map(|clean| {
            let places = self.pieces.places_in(clean.clone()).rev();
            let places = places.map(|place| (place.range(), place.piece));
            places.filter(move |(range, _)| clean.start <= range.start && range.end <= clean.end)
        })
    }

    /// Where the device must give memory anyway, and the hole goes on beyond the room, takes a whole unit,
    /// so that one access call does for several requests.
    fn grow_ahead(&self, plan: &mut Plan, hole: &Range<u64>, means: &Means) {
        let Some(last) = plan.backed.last_mut() else { return };
        let allowed = means.cap.saturating_sub(self.reserved() + plan.fresh);
        let next = self.pieces.places_in(last.end..hole.end).next();
        let room = next.map_or(hole.end, |own| own.address) - last.end;
        let missing = plan.fresh.next_multiple_of(means.unit) - plan.fresh;
        let mut more = missing.min(allowed).min(room) / means.granularity * means.granularity;
        while more > 0 {
            let bytes = means.granule.min(more);
            plan.parts.push((last.end..last.end + bytes, Source::Device));
            (last.end, plan.fresh, more) = (last.end + bytes, plan.fresh + bytes, more - bytes);
        }
    }

    /// A room with nothing mapped in it, nor in the rest of its units.
    pub(super) fn find_vacant(&self, request: &Request, granularity: u64) -> Option<Room> {
        let Request { bytes, align, part } = *request;
        let needed = bytes.next_multiple_of(granularity);
        let align = align.max(granularity);
        self.heap.holes(part, bytes).find_map(|hole| {
            let mut at = hole.start.next_multiple_of(align);
            for place in self.pieces.places_in(hole.clone()) {
                if at + needed <= place.address {
                    break;
                }
                at = at.max(place.end.next_multiple_of(align));
            }
            (at + needed <= hole.end).then(|| self.heap.room_in(hole.start, at, bytes))
        })
    }
}

/// A free piece that can get behind a room.
#[derive(Debug)]
struct SparePiece {
    piece: PieceId,
    bytes: u64,
    /// Where it is active, if it is.
    from: Option<Range<u64>>,
}

/// Free pieces, looked for only while they are needed.
struct Spares<I> {
    /// Those that were too large for what was left of a gap, by size.
    passed: BTreeMap<u64, Vec<SparePiece>>,
    source: I,
}

impl<I: Iterator<Item = SparePiece>> Spares<I> {
    /// Takes one of at most `most` bytes.
    fn take(&mut self, most: u64) -> Option<SparePiece> {
        if let Some(own) = self.passed.range_mut(..=most).rev().find_map(|(_, own)| own.pop()) {
            return Some(own);
        }
        for own in self.source.by_ref() {
            if own.bytes <= most {
                return Some(own);
            }
            self.passed.entry(own.bytes).or_default().push(own);
        }
        None
    }
}

/// Plans what gets behind a gap: spare pieces that fit, and for the rest new memory.
fn fill(
    plan: &mut Plan,
    gap: Range<u64>,
    spares: &mut Spares<impl Iterator<Item = SparePiece>>,
    means: &Means,
) {
    let mut at = gap.start;
    while at < gap.end {
        let left = gap.end - at;
        let (bytes, source) = match spares.take(left) {
            Some(SparePiece { piece, bytes, from }) => {
                plan.moved.extend(from);
                (bytes, Source::Elsewhere(piece))
            }
            None => {
                let bytes = means.granule.min(left);
                plan.fresh += bytes;
                (bytes, Source::Device)
            }
        };
        plan.parts.push((at..at + bytes, source));
        at += bytes;
    }
}

//! The physical memory behind a pool's ranges of addresses.
//!
//! A piece is one granule of the device. It may be mapped at several addresses, its places, and is
//! *active* at one of them at most: the others are dormant, holes in the heap's eyes. Memory that lies
//! free at one place and is wanted at another is mapped there as well; nothing is unmapped for it. When
//! the first place is wanted again, and the piece is free by then, it is active there again with no
//! driver call: a program that goes round in a circle soon maps nothing any more.
//!
//! A piece changes its place only when it is clean: whoever used it last, by whichever address, has
//! finished. So two addresses of one piece are never in use at once.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::fault::seeded;
use crate::rows::{Keyed, Rows};

/// Names a piece of one pool. A name is used again when its piece has gone back to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PieceId(usize);

/// One granule.
#[derive(Debug)]
struct Piece<G> {
    /// Not here while a thread makes a driver call with it.
    granule: Option<G>,
    bytes: u64,
    /// The addresses at which it is mapped.
    places: Vec<u64>,
    status: Status,
    /// How many of its places are just being unmapped: until then it cannot go back to the device.
    unmapping: u32,
}

/// What a piece is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// It is behind the blocks at this address.
    Active(u64),
    /// It is free, behind no block.
    Parked,
    /// A thread makes driver calls for it.
    InTransit,
    /// On its way back to the device: its places are just being unmapped, so that nothing else can be
    /// mapped there until that is over.
    Leaving,
}

/// Where a piece is mapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) end: u64,
    pub(super) piece: PieceId,
    /// The devices have access by this address.
    pub(super) access: bool,
}

impl Place {
    pub(super) fn range(&self) -> Range<u64> {
        self.address..self.end
    }
}

impl Keyed for Place {
    type Key = u64;

    fn key(&self) -> u64 {
        self.address
    }
}

/// All memory of a pool that was taken in granules.
#[derive(Debug)]
pub(super) struct Pieces<G> {
    all: Vec<Option<Piece<G>>>,
    vacant: Vec<PieceId>,
    /// Every address at which a piece is mapped.
    places: Rows<Place>,
    /// The parked ones, by size.
    parked: BTreeSet<(u64, PieceId)>,
    /// What is parked, in bytes.
    parked_bytes: u64,
}

/// A piece on its way back to the device.
#[derive(Debug)]
pub(super) struct Leaving<G> {
    pub(super) piece: PieceId,
    pub(super) granule: G,
    pub(super) bytes: u64,
    /// Where it is still mapped.
    pub(super) places: Vec<u64>,
}

impl<G> Pieces<G> {
    pub(super) fn new() -> Pieces<G> {
        Pieces {
            all: Vec::new(),
            vacant: Vec::new(),
            places: Rows::default(),
            parked: BTreeSet::new(),
            parked_bytes: 0,
        }
    }

    /// What is behind no block, in bytes.
    pub(super) fn parked_bytes(&self) -> u64 {
        self.parked_bytes
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.all.len() - self.vacant.len()
    }

    pub(super) fn status(&self, piece: PieceId) -> Status {
        self.get(piece).status
    }

    pub(super) fn bytes(&self, piece: PieceId) -> u64 {
        self.get(piece).bytes
    }

    /// Whether a piece is mapped at two addresses at least beside the one where it is active, if it is.
    pub(super) fn has_further_places(&self, piece: PieceId) -> bool {
        let own = self.get(piece);
        own.places.len() > 1 + usize::from(matches!(own.status, Status::Active(_)))
    }

    /// The places that a range of addresses meets, by address.
    pub(super) fn places_in(&self, range: Range<u64>) -> impl DoubleEndedIterator<Item = &Place> {
        let before = self.places.at_or_below(range.start).filter(|own| own.end > range.start);
        let first = before.map_or(range.start, |own| own.address);
        self.places.range(first..range.end)
    }

    /// The place at an address.
    pub(super) fn place(&self, address: u64) -> &Place {
        self.places.get(address).expect("a piece is mapped there")
    }

    /// The range with the whole of the places at its ends: a place is unmapped only whole.
    pub(super) fn whole(&self, range: Range<u64>) -> Range<u64> {
        let mut places = self.places_in(range.clone());
        let Some(first) = places.next() else { return range };
        let last = places.next_back().unwrap_or(first);
        range.start.min(first.address)..range.end.max(last.end)
    }

    /// The parked pieces, the largest first.
    pub(super) fn parked(&self) -> impl Iterator<Item = PieceId> + '_ {
        self.parked.iter().rev().map(|(_, piece)| *piece)
    }

    /// Memory that was taken from the device.
    pub(super) fn add(&mut self, granule: G, bytes: u64) -> PieceId {
        let (granule, status) = (Some(granule), Status::InTransit);
        let piece = Some(Piece { granule, bytes, places: Vec::new(), status, unmapping: 0 });
        match self.vacant.pop() {
            Some(id) => {
                self.all[id.0] = piece;
                id
            }
            None => {
                self.all.push(piece);
                PieceId(self.all.len() - 1)
            }
        }
    }

    /// A piece has gone back to the device, and is mapped nowhere any more.
    pub(super) fn remove(&mut self, piece: PieceId) {
        let own = self.all[piece.0].take().expect("a piece that is named is there");
        for address in own.places {
            self.places.remove(address);
        }
        self.vacant.push(piece);
    }

    /// A piece that was leaving stays, mapped at these of its places: it is parked again.
    pub(super) fn stay(&mut self, piece: PieceId, granule: G, places: Vec<u64>) {
        let own = self.all[piece.0].as_mut().expect("a piece that is named is there");
        debug_assert_eq!(own.status, Status::Leaving);
        for address in own.places.iter().filter(|own| !places.contains(own)) {
            self.places.remove(*address);
        }
        (own.granule, own.places, own.status) = (Some(granule), places, Status::InTransit);
        self.park(piece);
    }

    /// Takes a parked piece, to be active or mapped elsewhere.
    pub(super) fn unpark(&mut self, piece: PieceId) {
        let own = self.get_mut(piece);
        debug_assert_eq!(own.status, Status::Parked);
        own.status = Status::InTransit;
        let bytes = own.bytes;
        self.parked.remove(&(bytes, piece));
        self.parked_bytes -= bytes;
    }

    /// A piece that was in transit is free, behind no block.
    pub(super) fn park(&mut self, piece: PieceId) {
        let own = self.get_mut(piece);
        debug_assert_eq!(own.status, Status::InTransit);
        own.status = Status::Parked;
        let bytes = own.bytes;
        self.parked.insert((bytes, piece));
        self.parked_bytes += bytes;
    }

    /// A piece that was in transit is behind the blocks at one of its places.
    pub(super) fn activate(&mut self, piece: PieceId, address: u64) {
        debug_assert!(self.place(address).access && self.place(address).piece == piece);
        let own = self.get_mut(piece);
        debug_assert_eq!(own.status, Status::InTransit);
        own.status = Status::Active(address);
    }

    /// The piece that was active at an address is free, behind no block.
    pub(super) fn deactivate(&mut self, address: u64) {
        let piece = self.place(address).piece;
        let own = self.get_mut(piece);
        debug_assert_eq!(own.status, Status::Active(address));
        own.status = Status::InTransit;
        self.park(piece);
    }

    /// Takes the granule of a piece in transit, for driver calls.
    pub(super) fn take_granule(&mut self, piece: PieceId) -> G {
        self.get_mut(piece).granule.take().expect("nobody else makes calls with it")
    }

    /// The driver calls with a granule are over.
    pub(super) fn put_granule(&mut self, piece: PieceId, granule: G) {
        self.get_mut(piece).granule = Some(granule);
    }

    /// A piece is mapped at an address.
    pub(super) fn add_place(&mut self, piece: PieceId, address: u64, access: bool) {
        let own = self.get_mut(piece);
        own.places.push(address);
        let end = address + own.bytes;
        self.places.insert(Place { address, end, piece, access });
    }

    /// Whether the devices have access to a piece by the address of one of its places.
    pub(super) fn set_access(&mut self, address: u64, access: bool) {
        self.places.get_mut(address).expect("a place is known").access = access;
    }

    /// A dormant place is about to be unmapped.
    pub(super) fn begin_unmapping(&mut self, address: u64) -> Place {
        let place = self.places.remove(address);
        let own = self.get_mut(place.piece);
        debug_assert_ne!(own.status, Status::Active(address));
        own.places.retain(|at| *at != address);
        own.unmapping += 1;
        place
    }

    /// It has been unmapped, or could not be.
    pub(super) fn end_unmapping(&mut self, address: u64, place: Place, unmapped: bool) {
        self.get_mut(place.piece).unmapping -= 1;
        if !unmapped {
            self.add_place(place.piece, address, place.access);
        }
    }

    /// Takes parked pieces out until `wanted` bytes are found or no more is: the largest that are not more
    /// than what is missing, and where there is none such the smallest.
    pub(super) fn take_parked(&mut self, wanted: u64) -> Vec<Leaving<G>> {
        let (mut taken, mut total) = (Vec::new(), 0);
        while total < wanted {
            let may_leave = |(_, piece): &&(u64, PieceId)| {
                self.get(*piece).unmapping == 0 || seeded!(GoneWhileUnmapped)
            };
            let most = (wanted - total, PieceId(usize::MAX));
            let found = (self.parked.range(..=most).rev().find(may_leave))
                .or_else(|| self.parked.range(most..).find(may_leave));
            let Some(&(bytes, piece)) = found else { break };
            total += bytes;
            self.unpark(piece);
            let own = self.get_mut(piece);
            if !seeded!(LeavingReused) {
                own.status = Status::Leaving;
            }
            let (granule, places) = (own.granule.take(), own.places.clone());
            let granule = granule.expect("nobody else makes calls with it");
            taken.push(Leaving { piece, granule, bytes, places });
        }
        taken
    }

    fn get(&self, piece: PieceId) -> &Piece<G> {
        self.all[piece.0].as_ref().expect("a piece that is named is there")
    }

    fn get_mut(&mut self, piece: PieceId) -> &mut Piece<G> {
        self.all[piece.0].as_mut().expect("a piece that is named is there")
    }
}

//! A growth under way: a claimed room, and the memory that gets behind it. What is done under the heap's
//! lock before the driver calls, and after them.

use std::ops::Range;

use super::central::Central;
use super::pieces::{PieceId, Place};
use super::plan::{Plan, Source};
use crate::backend::Backend;
use crate::fault::seeded;
use crate::heap::Claim;

/// A claimed room, and what memory gets behind it.
#[derive(Debug)]
pub(super) struct Backing<G> {
    pub(super) claim: Claim,
    pub(super) parts: Vec<Part<G>>,
    pub(super) stale: Vec<Stale>,
    /// What has to come from the device, in bytes.
    pub(super) fresh: u64,
}

/// A part of a claimed room's holes: one piece.
#[derive(Debug)]
pub(super) struct Part<G> {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// None until the device has given the memory.
    pub(super) piece: Option<PieceId>,
    /// To be mapped, if it is not mapped here.
    pub(super) granule: Option<G>,
    pub(super) mapped: bool,
    pub(super) access: bool,
}

/// A place to be unmapped.
#[derive(Debug)]
pub(super) struct Stale {
    pub(super) address: u64,
    pub(super) place: Place,
    pub(super) unmapped: bool,
}

impl<G> Backing<G> {
    /// Whether a driver call has to be made before it can be used.
    pub(super) fn needs_calls(&self) -> bool {
        self.parts.iter().any(|part| !part.mapped || !part.access)
    }
}

impl<B: Backend> Central<B> {
    /// Does of a plan what needs no driver call: claims the room, and takes the pieces.
    pub(super) fn begin_growth(&mut self, plan: Plan) -> Backing<B::Granule> {
        let Plan { room, backed, parts, moved, stale, fresh } = plan;
        let claim = self.heap.claim(room, &backed);
        for range in moved {
            match seeded!(MovedStaysFree) {
                true => self.pieces.deactivate(range.start),
                false => self.vacate(range),
            }
        }
        let pieces = &mut self.pieces;
        let mut part = |(range, source): (Range<u64>, Source)| {
            let (address, bytes) = (range.start, range.end - range.start);
            let (mut piece, mut granule, mut mapped, mut access) = (None, None, false, false);
            match source {
                Source::Here(own) => {
                    pieces.unpark(own);
                    let has_access = pieces.place(address).access || seeded!(RevivedWithoutAccess);
                    (piece, mapped, access) = (Some(own), true, has_access);
                }
                Source::Elsewhere(own) => {
                    pieces.unpark(own);
                    (piece, granule) = (Some(own), Some(pieces.take_granule(own)));
                }
                Source::Device => {}
            }
            Part { address, bytes, piece, granule, mapped, access }
        };
        let mut parts: Vec<_> = parts.into_iter().map(&mut part).collect();
        parts.sort_unstable_by_key(|part| part.address);
        let stale = stale
            .into_iter()
            .map(|address| {
                let place = self.pieces.begin_unmapping(address);
                Stale { address, place, unmapped: false }
            })
            .collect();
        self.claimed += fresh;
        Backing { claim, parts, stale, fresh }
    }

    /// Parks a clean piece: a hole is where it was active.
    pub(super) fn vacate(&mut self, range: Range<u64>) {
        self.heap.take_memory(&range);
        self.pieces.deactivate(range.start);
    }

    /// The driver calls for a claimed room are over: keeps what they did. Gives the claim back, which is
    /// to be finished if all of it has memory now, and undone otherwise.
    pub(super) fn end_growth(&mut self, backing: Backing<B::Granule>, complete: bool) -> Claim {
        let Backing { claim, parts, stale, fresh } = backing;
        self.claimed -= fresh;
        for Stale { address, place, unmapped } in stale {
            self.pieces.end_unmapping(address, place, unmapped);
        }
        for part in parts {
            let here = part.piece.is_some() && part.granule.is_none();
            let piece = match (part.piece, part.granule) {
                (Some(piece), Some(granule)) => {
                    self.pieces.put_granule(piece, granule);
                    piece
                }
                (Some(piece), None) => piece,
                (None, Some(granule)) => self.pieces.add(granule, part.bytes),
                (None, None) => continue,
            };
            match (here, part.mapped) {
                (true, _) => self.pieces.set_access(part.address, part.access),
                (false, true) => self.pieces.add_place(piece, part.address, part.access),
                (false, false) => {}
            }
            if complete {
                self.pieces.activate(piece, part.address);
                self.revived += u64::from(here);
                if part.piece.is_some() && !here {
                    self.remapped += 1;
                    self.churned += part.bytes;
                }
            } else {
                self.pieces.park(piece);
            }
        }
        claim
    }
}

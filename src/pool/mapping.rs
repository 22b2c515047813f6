//! The driver calls of virtual memory: granules created, mapped and made accessible for a growth, and
//! unmapped and destroyed when they go back.

use super::PoolCore;
use super::backing::{Backing, Part};
use super::pieces::Leaving;
use crate::backend::Backend;
use crate::error::Error;
use crate::heap::BlockId;

impl<B: Backend> PoolCore<B> {
    /// Puts memory behind a claimed room: one block of its size then, in transit. On an error the claim is
    /// undone; whatever was mapped until then is kept for another time.
    pub(super) fn back(&self, mut backing: Backing<B::Granule>) -> Result<BlockId, Error> {
        let backed = if backing.needs_calls() { self.make_calls(&mut backing) } else { Ok(()) };
        let mut central = self.central.lock();
        let central = &mut *central;
        central.returns += 1;
        let claim = central.end_growth(backing, backed.is_ok());
        let block = match backed {
            Ok(()) => Ok(central.heap.finish_claim(claim, &central.timelines)),
            Err(error) => {
                central.heap.undo_claim(claim, &central.timelines);
                Err(error)
            }
        };
        central.see_reserved();
        block
    }

    /// Notes in the parts what has succeeded.
    fn make_calls(&self, backing: &mut Backing<B::Granule>) -> Result<(), Error> {
        self.create_granules(&mut backing.parts)?;
        for run in backing.stale.chunk_by_mut(|left, right| left.place.end == right.address) {
            let (address, bytes) = (run[0].address, run[run.len() - 1].place.end - run[0].address);
            // SAFETY: the places are whole mapped granules side by side. They are dormant: their last use
            // has completed, because only clean memory leaves a place, and nobody has got them since.
            let unmap = |own: &B| unsafe { own.unmap(address, bytes) };
            self.driver.memory("unmap granules", unmap)?;
            run.iter_mut().for_each(|stale| stale.unmapped = true);
        }
        for part in backing.parts.iter_mut().filter(|part| !part.mapped) {
            let granule = part.granule.as_ref().expect("what is mapped elsewhere is at hand");
            // SAFETY: the addresses are part of a hole of a reserved range, in whole granularity units,
            // and in transit, so that nobody else maps there; what was mapped there was just unmapped.
            // The granule is of this size.
            let map = |own: &B| unsafe { own.map(part.address, part.bytes, granule) };
            self.driver.memory("map a granule", map)?;
            part.mapped = true;
        }
        for run in backing.parts.chunk_by_mut(|left, right| {
            left.access == right.access && left.address + left.bytes == right.address
        }) {
            self.make_accessible(run)?;
        }
        Ok(())
    }

    /// Takes the memory from the device that the parts lack: all of it, or none. A pool must not hold all
    /// that a device has left because of a request that it cannot serve.
    fn create_granules(&self, parts: &mut [Part<B::Granule>]) -> Result<(), Error> {
        let lacks = |part: &&mut Part<B::Granule>| part.piece.is_none();
        for part in parts.iter_mut().filter(lacks) {
            let create = |own: &B| own.create_granule(part.bytes);
            match self.driver.memory("create a granule", create) {
                Ok(granule) => part.granule = Some(granule),
                Err(error) => {
                    for part in parts.iter_mut().filter(lacks) {
                        let Some(granule) = part.granule.take() else { break };
                        // SAFETY: the granule is of this backend, and was mapped nowhere yet.
                        let went = unsafe { self.driver.destroy_granule(granule) };
                        // What the driver does not take back is kept, as any other memory.
                        part.granule = went.err().map(|(granule, _)| granule);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Sets the access of mapped parts side by side, in one call.
    fn make_accessible(&self, run: &mut [Part<B::Granule>]) -> Result<(), Error> {
        if run[0].access {
            return Ok(());
        }
        let (address, bytes) = (run[0].address, run.iter().map(|part| part.bytes).sum());
        // SAFETY: the range is whole mapped granules.
        unsafe { self.driver.set_access(address, bytes, &self.peers) }?;
        run.iter_mut().for_each(|part| part.access = true);
        Ok(())
    }

    /// Gives parked pieces back to the device, and says how many bytes went. What could not go stays
    /// parked.
    pub(super) fn destroy(&self, leaving: Vec<Leaving<B::Granule>>) -> (u64, Result<(), Error>) {
        let mut places: Vec<(u64, u64)> = leaving
            .iter()
            .flat_map(|own| own.places.iter().map(|address| (*address, own.bytes)))
            .collect();
        places.sort_unstable();
        let ranges = self.central.lock().heap.segment_starts();
        let (mut kept, mut result) = (Vec::new(), Ok(()));
        // Two reserved ranges may touch, but are two to the driver.
        let side_by_side = |left: &(u64, u64), right: &(u64, u64)| {
            left.0 + left.1 == right.0 && ranges.binary_search(&right.0).is_err()
        };
        for run in places.chunk_by(side_by_side) {
            let (address, bytes) = (run[0].0, run.iter().map(|place| place.1).sum());
            // SAFETY: the places are whole mapped granules side by side. They are dormant: their last use
            // has completed, because only clean memory leaves a place, and nobody has got them since.
            // Nobody else unmaps them, or maps there meanwhile, because their pieces are leaving.
            let unmap = |own: &B| unsafe { own.unmap(address, bytes) };
            if let Err(error) = self.driver.memory("unmap granules", unmap) {
                kept.extend(run.iter().map(|place| place.0));
                result = Err(error);
            }
        }
        let mut given = 0;
        for Leaving { piece, granule, bytes, places } in leaving {
            let places: Vec<u64> =
                places.into_iter().filter(|own| kept.binary_search(own).is_ok()).collect();
            let went = if places.is_empty() {
                // SAFETY: the granule is of this backend, and mapped nowhere any more.
                unsafe { self.driver.destroy_granule(granule) }
                    .map_err(|(granule, error)| (granule, Some(error)))
            } else {
                Err((granule, None))
            };
            let mut central = self.central.lock();
            central.returns += 1;
            central.returning -= bytes;
            match went {
                Ok(()) => {
                    given += bytes;
                    central.pieces.remove(piece);
                }
                Err((granule, error)) => {
                    central.pieces.stay(piece, granule, places);
                    result = error.map_or(result, Err);
                }
            }
        }
        (given, result)
    }
}

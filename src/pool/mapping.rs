//! Granules: mapped for a growth, and given back to the device.

use super::PoolCore;
use super::central::{Granules, Stuck};
use crate::backend::Backend;
use crate::error::Error;
use crate::heap::{BlockId, ClaimedRoom};

impl<B: Backend> PoolCore<B> {
    /// Backs the claimed addresses with granules. On an error the claim is undone.
    pub(super) fn map(&self, growth: ClaimedRoom) -> Result<(ClaimedRoom, Granules<B>), Error> {
        let (address, bytes) = (growth.address, growth.bytes);
        let mut granules = Vec::new();
        let mapped = self.map_granules(&growth, &mut granules).and_then(|()| {
            // SAFETY: the range is the granules that were just mapped.
            unsafe { self.driver.set_access(address, bytes, &self.peers) }
        });
        match mapped {
            Ok(()) => Ok((growth, granules)),
            Err(error) => {
                // That it is stuck is seen in the account; the cause is the first error.
                let _ = self.unmap_growth(growth, granules);
                Err(error)
            }
        }
    }

    /// Creates and maps the granules of a growth, in order, until an error.
    fn map_granules(&self, growth: &ClaimedRoom, granules: &mut Granules<B>) -> Result<(), Error> {
        for (address, bytes) in growth.granules() {
            let create = |own: &B| own.create_granule(bytes);
            let granule = self.driver.memory("create a granule", create)?;
            // SAFETY: the addresses are part of a hole of a reserved range, in whole granularity units,
            // because the heap keeps holes so, and in transit, so that nobody else maps there.
            let map = |own: &B| unsafe { own.map(address, bytes, &granule) };
            if let Err(error) = self.driver.memory("map a granule", map) {
                self.destroy(granule, bytes);
                return Err(error);
            }
            granules.push((granule, bytes));
        }
        Ok(())
    }

    /// Takes back what a growth has mapped, from its first address on, and undoes the claim; all of it
    /// later, if the driver does not unmap it now. Counts as one return.
    fn unmap_growth(&self, mut growth: ClaimedRoom, granules: Granules<B>) -> Result<(), Error> {
        let address = growth.address;
        let bytes = granules.iter().map(|(_, bytes)| bytes).sum();
        if bytes > 0 {
            // SAFETY: the range is mapped whole granules, and nothing has used them, since nobody has
            // ever had these addresses.
            let unmap = |own: &B| unsafe { own.unmap(address, bytes) };
            if let Err(error) = self.driver.memory("unmap granules", unmap) {
                let mut central = self.central.lock();
                central.returns += 1;
                central.heap.shrink_growth(&mut growth, bytes);
                central.stuck.push(Stuck { granules, mapped: Some(growth) });
                central.see_reserved();
                return Err(error);
            }
        }
        let stuck = granules.into_iter().filter_map(|own| self.try_destroy(own.0, own.1));
        let stuck: Vec<_> = stuck.collect();
        let mut central = self.central.lock();
        let central = &mut *central;
        central.returns += 1;
        central.heap.undo_growth(growth, &central.timelines);
        central.stuck.extend(stuck);
        central.see_reserved();
        Ok(())
    }

    /// Makes the mapped growth a block of `bytes` bytes, in transit, and frees the rest.
    pub(super) fn finish_growth(
        &self,
        growth: ClaimedRoom,
        granules: Granules<B>,
        bytes: u64,
    ) -> BlockId {
        let mut central = self.central.lock();
        let central = &mut *central;
        central.returns += 1;
        let addresses = growth.granules().map(|(address, _)| address);
        central.granules.extend(addresses.zip(granules.into_iter().map(|(granule, _)| granule)));
        let block = central.heap.finish_growth(growth, bytes, &central.timelines);
        central.see_reserved();
        block
    }

    /// Gives a granule back that is mapped nowhere, now or later.
    pub(super) fn destroy(&self, granule: B::Granule, bytes: u64) {
        if let Some(stuck) = self.try_destroy(granule, bytes) {
            self.central.lock().stuck.push(stuck);
        }
    }

    /// Gives a granule back that is mapped nowhere, or keeps the error and says what is stuck.
    pub(super) fn try_destroy(&self, granule: B::Granule, bytes: u64) -> Option<Stuck<B>> {
        // SAFETY: the granule is of this backend, and mapped nowhere, because it was never mapped or
        // its unmapping has succeeded.
        let (granule, error) = unsafe { self.driver.destroy_granule(granule) }.err()?;
        self.driver.keep_error(error);
        Some(Stuck { granules: vec![(granule, bytes)], mapped: None })
    }

    /// Tries again to give back what the driver would not take. It stays in the account until the device
    /// has it. Says how many returns that were.
    pub(super) fn retry_stuck(&self) -> u64 {
        let mut returned = 0;
        let stuck = {
            let mut central = self.central.lock();
            central.returning = central.stuck_bytes();
            std::mem::take(&mut central.stuck)
        };
        for Stuck { granules, mapped } in stuck {
            let Some(growth) = mapped else {
                for (granule, bytes) in granules {
                    let stuck = self.try_destroy(granule, bytes);
                    let mut central = self.central.lock();
                    central.returning -= bytes;
                    central.returns += 1;
                    returned += 1;
                    central.stuck.extend(stuck);
                }
                continue;
            };
            returned += 1;
            if let Err(error) = self.unmap_growth(growth, granules) {
                self.driver.keep_error(error);
            }
        }
        returned
    }
}

//! Growth: memory from the device, or free memory behind other addresses.

use std::cell::LazyCell;

use super::PoolCore;
use super::backing::Backing;
use super::miss::{Mark, Miss};
use super::plan::{Aim, Means, Spare};
use super::target::{UNIT_MIN, churn_unit, granule, unit};
use crate::backend::{Backend, ErrorKind};
use crate::config::Growth;
use crate::error::Error;
use crate::heap::size_class::GRAIN;
use crate::heap::{BlockId, Part, Request};
use crate::order::{Stamps, TimelineId};
use crate::sync::host;
use crate::tell::{self, Kind, Told};

/// A range of addresses is this many times the device's memory: memory may have several addresses.
const RANGE_FACTOR: u64 = 4;
/// The largest granule that `reserve` takes at once: only whole granules can go back.
const RESERVE_STEP: u64 = 256 << 20;

/// Where a growth goes.
enum Claimed<G> {
    /// Memory was free whose addresses are mapped: the block, in transit.
    Block(BlockId),
    /// A room that driver calls put memory behind.
    Room(Backing<G>),
    /// No hole is large enough.
    NoRoom,
    /// It would take the pool over the mark.
    OverCap,
}

/// What a reserve has claimed for its next step.
enum ReserveClaim<G> {
    /// As much is reserved as is to be.
    Enough,
    /// It would take the pool over its limit.
    OverLimit { step: u64 },
    /// No hole is large enough.
    NoRoom { step: u64, granularity: u64 },
    /// A plain segment.
    Segment(u64),
    /// Addresses to map.
    Room(Backing<G>),
}

impl<B: Backend> PoolCore<B> {
    /// The unit of virtual memory, if the pool grows by it.
    pub(super) fn granularity(&self) -> Option<u64> {
        match self.config.growth {
            Growth::Virtual => self.driver.granularity(),
            Growth::Segments => None,
        }
    }

    /// Takes memory from the device for a request, if that keeps the pool within the mark.
    pub(super) fn grow(&self, miss: &mut Miss<'_, B>, mark: Mark) -> Option<BlockId> {
        // Relaxed: an answer that is missed is only asked for again.
        if mark == Mark::Floor
            && (self.exhausted.load(host::Ordering::Relaxed) || self.is_above_floor())
        {
            return None;
        }
        let block = match self.granularity() {
            Some(granularity) => self.grow_range(miss, mark, granularity),
            None => self.grow_segment(miss, mark),
        };
        if block.is_some() {
            self.exhausted.store(false, host::Ordering::Relaxed);
            let streams = self.streams();
            let mut central = self.central.lock();
            let peak = central.in_use(&streams) + miss.size.bytes;
            central.see_in_use(peak);
            drop(central);
            self.tell_of_growth(Some(miss.core.id), miss.size.bytes);
        }
        block
    }

    /// The numbers are the pool's own after the growth.
    fn tell_of_growth(&self, stream: Option<TimelineId>, requested: u64) {
        tell::later(Kind::Usual, || {
            let central = self.central.lock();
            Told::Grow {
                pool: self.id.0,
                stream: stream.map(TimelineId::get),
                requested,
                reserved: central.reserved(),
                remapped: central.remapped,
                revived: central.revived,
            }
        });
    }

    /// The most that a growth for a request of this size takes, when it takes no more than it must.
    pub(super) fn growth_bytes(&self, bytes: u64, align: u64) -> u64 {
        let granularity = self.granularity().unwrap_or(1);
        (bytes + align - GRAIN).next_multiple_of(granularity)
    }

    /// Grows by virtual memory; not at all for more than the device has.
    fn grow_range(&self, miss: &mut Miss<'_, B>, mark: Mark, granularity: u64) -> Option<BlockId> {
        let bytes = miss.size.bytes;
        match self.device_total() {
            Ok(total) if bytes <= total => {}
            Ok(_) => {
                let over_limit = self.limit.is_some_and(|limit| bytes > limit);
                miss.over_limit |= over_limit && mark == Mark::Limit;
                return None;
            }
            Err(error) => {
                miss.asked.meet(error);
                return None;
            }
        }
        let mut frugal = false;
        loop {
            match self.claim_room(miss, mark, frugal, granularity) {
                Claimed::Block(block) => return Some(block),
                Claimed::Room(backing) => match self.back(backing) {
                    Ok(block) => return Some(block),
                    Err(error) => {
                        miss.returned += 1;
                        if error.driver_kind() != Some(ErrorKind::OutOfMemory) || frugal {
                            self.meet_shortage(miss, error);
                            return None;
                        }
                        // The device may have less than a whole unit, or another room needs less.
                        frugal = true;
                    }
                },
                Claimed::NoRoom => {
                    let bytes = miss.size.bytes + miss.align;
                    if let Err(error) =
                        self.reserve_addresses(bytes, miss.request().part, granularity)
                    {
                        miss.asked.meet(error);
                        return None;
                    }
                }
                // Another room may have more of what it needs.
                Claimed::OverCap if mark == Mark::Limit && !frugal => frugal = true,
                Claimed::OverCap => {
                    miss.over_limit |= mark == Mark::Limit;
                    return None;
                }
            }
        }
    }

    /// Keeps the error of a growth, and in mind that the device has no more memory, if that was it.
    fn meet_shortage(&self, miss: &mut Miss<'_, B>, error: Error) {
        if error.driver_kind() == Some(ErrorKind::OutOfMemory) {
            self.exhausted.store(true, host::Ordering::Relaxed);
        }
        miss.asked.meet(error);
    }

    /// Claims a room for the request, with the memory that gets behind it.
    fn claim_room(
        &self,
        miss: &Miss<'_, B>,
        mark: Mark,
        frugal: bool,
        granularity: u64,
    ) -> Claimed<B::Granule> {
        let request = miss.request();
        let bytes = request.bytes;
        let (taker, streams) = (miss.core.taker(), self.streams());
        let mut central = self.central.lock();
        let central = &mut *central;
        let reserved = central.reserved();
        // It asks every stream what is in use: once, where it is wanted.
        let cap = LazyCell::new(|| self.cap(central, &streams, (bytes, mark)));
        let (unit, granule) = match mark == Mark::Floor && central.churns() {
            _ if frugal => (granularity, granule(reserved, bytes, granularity)),
            true => churn_unit(reserved, granularity),
            false => (unit(reserved, granularity), granule(reserved, bytes, granularity)),
        };
        let mut means = Means {
            granularity,
            granule,
            unit,
            cap: reserved,
            spare: Spare::Parked,
            aim: if frugal { Aim::LittleMemory } else { Aim::FewMappings },
        };
        // With nothing more to have, and nothing parked, only a room that costs nothing will do.
        let full = mark == Mark::Floor
            && central.pieces.parked_bytes() == 0
            && !central.has_what_was_reserved()
            && reserved + granularity > *cap;
        let bound = if full { 1 } else { u64::MAX };
        let Some((room, cost)) = central.find_room(&request, &taker, &means, bound) else {
            // All of a room would be reserved: what is above the mark anyway needs no addresses.
            let over_cap = full || bytes > *cap;
            return if over_cap { Claimed::OverCap } else { Claimed::NoRoom };
        };
        if cost > 0 {
            means.cap = *cap;
            if mark != Mark::Floor || central.has_what_was_reserved() {
                means.spare = Spare::Clean;
            }
        }
        let plan = central.plan(room, &means);
        if plan.fresh > 0 && reserved.saturating_add(plan.fresh) > means.cap {
            return Claimed::OverCap;
        }
        let backing = central.begin_growth(plan);
        if backing.needs_calls() {
            return Claimed::Room(backing);
        }
        let claim = central.end_growth(backing, true);
        Claimed::Block(central.heap.finish_claim(claim, &central.timelines))
    }

    /// Reserves another range of addresses, for a request of this size at least.
    fn reserve_addresses(&self, bytes: u64, part: Part, granularity: u64) -> Result<(), Error> {
        let wanted = self.device_total()?.saturating_mul(RANGE_FACTOR).max(bytes.saturating_mul(2));
        let wanted = wanted.next_multiple_of(granularity);
        let reserve = |own: &B| own.reserve_range(wanted);
        let address = self.driver.memory("reserve a range of addresses", reserve)?;
        self.central.lock().heap.add_range(address, wanted, part, granularity);
        Ok(())
    }

    /// All memory that the device has, in bytes; asked once.
    fn device_total(&self) -> Result<u64, Error> {
        let known = self.central.lock().device_total;
        if let Some(total) = known {
            return Ok(total);
        }
        let total = self.driver.memory_info()?.total;
        self.central.lock().device_total = Some(total);
        Ok(total)
    }

    fn grow_segment(&self, miss: &mut Miss<'_, B>, mark: Mark) -> Option<BlockId> {
        let Request { bytes, align, part } = miss.request();
        // Segments are aligned to the grain at least; more may cost this much at the front.
        let least = bytes + align - GRAIN;
        let streams = self.streams();
        let taking = {
            let mut central = self.central.lock();
            let cap = self.cap(&central, &streams, (bytes, mark));
            let reserved = central.reserved();
            if reserved.saturating_add(least) > cap {
                miss.over_limit |= mark == Mark::Limit;
                return None;
            }
            // A soft target need not be a multiple of the grain, as all blocks are.
            let most = (cap - reserved) / GRAIN * GRAIN;
            let wanted = least.next_multiple_of(unit(reserved, UNIT_MIN)).min(most);
            central.taking += wanted;
            wanted
        };
        let (taken, got) = match self.take_segment(taking) {
            Err(error) if error.driver_kind() == Some(ErrorKind::OutOfMemory) && taking > least => {
                (self.take_segment(least), least)
            }
            taken => (taken, taking),
        };
        let mut central = self.central.lock();
        match central.finish_segment(taking, part, taken.map(|address| (address, got))) {
            Ok(segment) => {
                let central = &mut *central;
                central.heap.free(segment, Stamps::Clean, &central.timelines);
                Some(central.heap.carve(segment, bytes, align))
            }
            Err(error) => {
                drop(central);
                miss.returned += 1;
                self.meet_shortage(miss, error);
                None
            }
        }
    }

    fn take_segment(&self, bytes: u64) -> Result<u64, Error> {
        self.driver.memory("take a segment", |own| own.alloc_segment(bytes))
    }

    /// Grows until `bytes` bytes are reserved.
    pub(super) fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let before = self.central.lock().reserved();
        let result = self.reserve_step_by_step(bytes);
        if self.central.lock().reserved() > before {
            self.tell_of_growth(None, bytes);
        }
        result
    }

    fn reserve_step_by_step(&self, bytes: u64) -> Result<(), Error> {
        loop {
            match self.claim_reserve(bytes) {
                ReserveClaim::Enough => return Ok(()),
                ReserveClaim::OverLimit { step } => {
                    let tried = vec!["taking memory from the device"];
                    return Err(self.shortage(step, true, tried, None));
                }
                ReserveClaim::NoRoom { step, granularity } => {
                    self.reserve_addresses(step, Part::Large, granularity)?;
                }
                ReserveClaim::Segment(step) => {
                    let taken = self.take_segment(step);
                    let mut central = self.central.lock();
                    let segment =
                        central.finish_segment(step, Part::Large, taken.map(|at| (at, step)))?;
                    drop(central);
                    self.free_to_heap(segment, Stamps::Clean);
                }
                ReserveClaim::Room(backing) => {
                    let block = self.back(backing)?;
                    self.free_to_heap(block, Stamps::Clean);
                }
            }
        }
    }

    /// Looks at what is missing and claims it, in one section: nobody's growth comes in between.
    fn claim_reserve(&self, bytes: u64) -> ReserveClaim<B::Granule> {
        let granularity = self.granularity();
        let mut central = self.central.lock();
        let reserved = central.reserved();
        let Some(missing) = bytes.checked_sub(reserved).filter(|missing| *missing > 0) else {
            let whole = bytes.next_multiple_of(granularity.unwrap_or(UNIT_MIN));
            central.reserved_by_hand = central.reserved_by_hand.max(whole);
            return ReserveClaim::Enough;
        };
        let step = missing.min(RESERVE_STEP).next_multiple_of(granularity.unwrap_or(UNIT_MIN));
        if self.limit.is_some_and(|limit| reserved.saturating_add(step) > limit) {
            return ReserveClaim::OverLimit { step };
        }
        let Some(granularity) = granularity else {
            central.taking += step;
            return ReserveClaim::Segment(step);
        };
        let whole = Request { bytes: step, align: granularity, part: Part::Large };
        let Some(room) = central.find_vacant(&whole, granularity) else {
            return ReserveClaim::NoRoom { step, granularity };
        };
        let (unit, spare) = (granularity, Spare::Nothing);
        let (cap, aim) = (u64::MAX, Aim::FewMappings);
        let means = Means { granularity, granule: step, unit, cap, spare, aim };
        let plan = central.plan(room, &means);
        ReserveClaim::Room(central.begin_growth(plan))
    }
}

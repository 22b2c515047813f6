//! Taking memory from the device and giving it back.

use super::PoolCore;
use super::miss::{Asked, Mark, Miss};
use crate::backend::{Backend, ErrorKind};
use crate::config::Growth;
use crate::error::Error;
use crate::heap::{BlockId, ClaimedRoom, Unused};
use crate::order::{Stamps, Taker};
use crate::sync::host;

/// The smallest and the largest unit that the pool grows by, where a request does not need more.
const UNIT_MIN: u64 = 2 << 20;
const UNIT_MAX: u64 = 32 << 20;
/// The pool grows by a fraction of what it has, so that a large pool maps in large granules and a small
/// one wastes little.
const UNIT_FRACTION: u64 = 64;
/// The smallest and the largest granule that a growth is cut into.
const GRANULE_MIN: u64 = 2 << 20;
const GRANULE_MAX: u64 = 32 << 20;
/// A granule is a smaller fraction of the pool than a growth is: only whole unused granules can be
/// exchanged for memory elsewhere, and a used byte anywhere in it keeps one where it is.
const GRANULE_FRACTION: u64 = 512;
/// The default soft target is this fraction above the most that has been in use. Up to there growth
/// costs nothing but memory; above, clean memory that lies in pieces is exchanged first, which costs
/// mapping calls. Two passes of a recorded training step with a peak of 7.4 GiB (and of a program on 8
/// streams with a peak of 661 MiB) take, on an idle simulated device: with an eighth, and granules of
/// 1/512, 1.125 (1.125) times the peak and 5317 (1629) mapping calls; with a 64th, and granules of
/// 1/2048, 1.016 (1.019) times and 15172 (2477) calls; without the exchange 1.41 (1.30) times.
const SOFT_SLACK: u64 = 8;
/// A range of addresses is this many times the device's memory: holes that trims leave cost nothing.
const RANGE_FACTOR: u64 = 4;
/// The largest granule that `reserve` takes at once: only whole granules can go back.
const RESERVE_STEP: u64 = 256 << 20;

/// Where a growth goes.
enum Claim {
    Room(ClaimedRoom),
    /// No hole is large enough.
    NoRoom,
    /// It would take the pool over the mark by this many bytes.
    OverCap {
        excess: u64,
    },
}

/// What a reserve has claimed for its next step, of this many bytes.
enum ReserveClaim {
    /// As much is reserved as is to be.
    Enough,
    /// It would take the pool over its limit.
    OverLimit { step: u64 },
    /// No hole is large enough.
    NoRoom { step: u64, granularity: u64 },
    /// A plain segment.
    Segment(u64),
    /// Addresses to map.
    Room(ClaimedRoom, u64),
}

impl<B: Backend> PoolCore<B> {
    /// The unit of virtual memory, if the pool grows by it.
    fn granularity(&self) -> Option<u64> {
        match self.config.growth {
            Growth::Virtual => self.driver.granularity(),
            Growth::Segments => None,
        }
    }

    /// Takes memory from the device for a request, if that keeps the pool within the mark.
    pub(super) fn grow(&self, miss: &mut Miss<'_, B>, mark: Mark) -> Option<BlockId> {
        // Relaxed: an answer that is missed is only asked for again.
        if mark == Mark::Floor && self.exhausted.load(host::Ordering::Relaxed) {
            return None;
        }
        let cap = self.cap(miss, mark);
        let block = match self.granularity() {
            Some(granularity) => self.grow_range(miss, cap, mark, granularity),
            None => self.grow_segment(miss, cap, mark),
        };
        if block.is_some() {
            self.exhausted.store(false, host::Ordering::Relaxed);
        }
        if block.is_some() {
            self.see_in_use(miss.size.bytes);
        }
        block
    }

    /// The most that a growth for a request of this size takes, when it takes no more than it must.
    pub(super) fn growth_bytes(&self, bytes: u64, align: u64) -> u64 {
        let granularity = self.granularity().unwrap_or(1);
        (bytes + align - crate::heap::size_class::GRAIN).next_multiple_of(granularity)
    }

    /// The most that may be reserved, by a mark.
    fn cap(&self, miss: &Miss<'_, B>, mark: Mark) -> u64 {
        let limit = self.limit.unwrap_or(u64::MAX);
        match mark {
            Mark::Floor => self.config.floor.min(limit),
            Mark::Limit => limit,
            Mark::SoftTarget => {
                let target = self.config.soft_target.unwrap_or_else(|| {
                    let (in_use, peak) = self.see_in_use(0);
                    let wanted = peak.max(in_use + miss.size.bytes);
                    wanted + wanted / SOFT_SLACK
                });
                target.max(self.config.floor).min(limit)
            }
        }
    }

    /// Notes how much is in use, with `more` that is about to be, and says it and the most that has been
    /// seen.
    fn see_in_use(&self, more: u64) -> (u64, u64) {
        let in_use: u64 = self.streams().iter().map(|core| core.state.lock().in_use()).sum();
        let in_use = in_use + more;
        let mut central = self.central.lock();
        central.peak_in_use = central.peak_in_use.max(in_use);
        (in_use, central.peak_in_use)
    }

    fn grow_range(
        &self,
        miss: &mut Miss<'_, B>,
        cap: u64,
        mark: Mark,
        granularity: u64,
    ) -> Option<BlockId> {
        let (bytes, align) = (miss.size.bytes, miss.align);
        let mut frugal = false;
        loop {
            let growth = match self.claim_room(miss, cap, frugal, granularity) {
                Claim::Room(growth) => growth,
                Claim::NoRoom => {
                    if let Err(error) = self.reserve_addresses(bytes + align, granularity) {
                        miss.asked.meet(error);
                        return None;
                    }
                    continue;
                }
                Claim::OverCap { excess } => {
                    if mark == Mark::SoftTarget && self.exchange(miss, excess) {
                        continue;
                    }
                    miss.over_limit |= mark == Mark::Limit;
                    return None;
                }
            };
            let least = growth.bytes == granularity || frugal;
            match self.map(growth).inspect_err(|_| miss.returned += 1) {
                Ok((growth, granules)) => return Some(self.finish_growth(growth, granules, bytes)),
                Err(error) if error.driver_kind() == Some(ErrorKind::OutOfMemory) && !least => {
                    // The unit was more than the request needs; the device may have that much.
                    frugal = true;
                }
                Err(error) => {
                    self.meet_shortage(miss, error);
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

    /// Claims the addresses that a growth for the request maps.
    fn claim_room(&self, miss: &Miss<'_, B>, cap: u64, frugal: bool, granularity: u64) -> Claim {
        let taker = miss.core.taker();
        let mut central = self.central.lock();
        let central = &mut *central;
        let (heap, timelines) = (&mut central.heap, &central.timelines);
        let room = heap.find_room(miss.size.bytes, miss.align, granularity, &taker, timelines);
        let Some(room) = room else { return Claim::NoRoom };
        let reserved = central.reserved();
        let excess = reserved.saturating_add(room.map_bytes).saturating_sub(cap);
        if excess > 0 {
            return Claim::OverCap { excess };
        }
        let left = (cap - reserved) / granularity * granularity;
        let unit = if frugal { 0 } else { unit(reserved, granularity) };
        let map_bytes = room.map_bytes.next_multiple_of(unit.max(granularity));
        let growth = central.heap.claim(room, map_bytes.min(left));
        Claim::Room(growth.cut(granule(reserved, granularity)))
    }

    /// Gives clean memory back that no request so far could use, because it lies in pieces, so that as
    /// much can be mapped where it is of use. Says whether there was as much.
    fn exchange(&self, miss: &mut Miss<'_, B>, excess: u64) -> bool {
        let keep = {
            let mut central = self.central.lock();
            central.settle();
            if central.heap.bytes().clean < excess {
                return false;
            }
            central.reserved() - excess
        };
        match self.give_back_counted(keep, &mut miss.returned) {
            Ok(given) => given > 0,
            Err(error) => {
                miss.asked.meet(error);
                false
            }
        }
    }

    /// Reserves another range of addresses, for a request of this size at least.
    fn reserve_addresses(&self, bytes: u64, granularity: u64) -> Result<(), Error> {
        let total = self.driver.memory_info()?.total;
        let wanted = total.saturating_mul(RANGE_FACTOR).max(bytes.saturating_mul(2));
        let wanted = wanted.next_multiple_of(granularity);
        let reserve = |own: &B| own.reserve_range(wanted);
        let address = self.driver.memory("reserve a range of addresses", reserve)?;
        self.central.lock().heap.add_range(address, wanted);
        Ok(())
    }

    fn grow_segment(&self, miss: &mut Miss<'_, B>, cap: u64, mark: Mark) -> Option<BlockId> {
        let (bytes, align) = (miss.size.bytes, miss.align);
        // Segments are aligned to the grain at least; more may cost this much at the front.
        let least = bytes + align - crate::heap::size_class::GRAIN;
        let taking = {
            let mut central = self.central.lock();
            let reserved = central.reserved();
            if reserved.saturating_add(least) > cap {
                miss.over_limit |= mark == Mark::Limit;
                return None;
            }
            let wanted = least.next_multiple_of(unit(reserved, UNIT_MIN)).min(cap - reserved);
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
        match central.finish_segment(taking, taken.map(|address| (address, got))) {
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
        loop {
            match self.claim_reserve(bytes) {
                ReserveClaim::Enough => return Ok(()),
                ReserveClaim::OverLimit { step } => {
                    let tried = vec!["taking memory from the device"];
                    return Err(self.shortage(step, true, tried, None));
                }
                ReserveClaim::NoRoom { step, granularity } => {
                    self.reserve_addresses(step, granularity)?;
                }
                ReserveClaim::Segment(step) => {
                    let taken = self.take_segment(step);
                    let mut central = self.central.lock();
                    let segment = central.finish_segment(step, taken.map(|at| (at, step)))?;
                    drop(central);
                    self.free_to_heap(segment, Stamps::Clean);
                }
                ReserveClaim::Room(growth, step) => {
                    let (growth, granules) = self.map(growth)?;
                    let block = self.finish_growth(growth, granules, step);
                    self.free_to_heap(block, Stamps::Clean);
                }
            }
        }
    }

    /// Looks at what is missing and claims it, in one section: nobody's growth comes in between.
    fn claim_reserve(&self, bytes: u64) -> ReserveClaim {
        let granularity = self.granularity();
        let mut central = self.central.lock();
        let reserved = central.reserved();
        let Some(missing) = bytes.checked_sub(reserved).filter(|missing| *missing > 0) else {
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
        let central = &mut *central;
        let (heap, timelines) = (&mut central.heap, &central.timelines);
        match heap.find_room(step, 1, granularity, &Taker::nobody(), timelines) {
            Some(room) => ReserveClaim::Room(heap.claim(room, step), step),
            None => ReserveClaim::NoRoom { step, granularity },
        }
    }

    /// Gives unused memory back until `keep` bytes are reserved, and says how much went.
    pub(super) fn trim(&self, keep: u64) -> Result<u64, Error> {
        let streams = self.streams();
        {
            let mut central = self.central.lock();
            for core in streams.iter() {
                central.drain(core, 0);
            }
        }
        let mut asked = Asked::default();
        self.ask_everything(&mut asked);
        self.retry_stuck();
        self.give_back(keep)
    }

    /// Whether memory can be given back: a plain segment only where the caller may block, since the driver
    /// waits for whatever runs before it takes one.
    pub(super) fn gives_back(&self, may_block: bool) -> bool {
        may_block || self.granularity().is_some()
    }

    /// Gives clean memory back until `keep` bytes are reserved.
    pub(super) fn give_back(&self, keep: u64) -> Result<u64, Error> {
        self.give_back_counted(keep, &mut 0)
    }

    /// The same, for a miss that counts its own returns.
    pub(super) fn give_back_counted(&self, keep: u64, returned: &mut u64) -> Result<u64, Error> {
        let unused = {
            let mut central = self.central.lock();
            central.settle();
            let excess = central.reserved().saturating_sub(keep);
            central.heap.take_unused(excess)
        };
        let (mut given, mut result) = (0, Ok(()));
        for unused in unused {
            let bytes = unused.bytes;
            *returned += 1;
            match self.give_back_one(unused) {
                Ok(()) => {
                    given += bytes;
                    self.exhausted.store(false, host::Ordering::Relaxed);
                }
                Err(error) => result = Err(error),
            }
        }
        result.map(|()| given)
    }

    fn give_back_one(&self, unused: Unused) -> Result<(), Error> {
        let (address, bytes) = (unused.address, unused.bytes);
        let went = if unused.granules.is_empty() {
            // SAFETY: the heap gives a whole plain segment, clean: its last use has completed.
            let free = |own: &B| unsafe { own.free_segment(address, bytes) };
            self.driver.memory("give a segment back", free)
        } else {
            // SAFETY: the heap gives whole granules side by side, clean: their last use has completed,
            // and they are in transit, so that nobody uses them meanwhile.
            let unmap = |own: &B| unsafe { own.unmap(address, bytes) };
            self.driver.memory("unmap granules", unmap)
        };
        if let Err(error) = went {
            let mut central = self.central.lock();
            let central = &mut *central;
            central.returns += 1;
            central.heap.keep_unused(unused, &central.timelines);
            return Err(error);
        }
        // The addresses stay in transit, and counted, until the device has the memory back.
        let mut stuck = Vec::new();
        for (address, bytes) in &unused.granules {
            let granule = self.central.lock().granules.remove(address);
            let granule = granule.expect("a mapped granule has its memory here");
            stuck.extend(self.try_destroy(granule, *bytes));
        }
        let mut central = self.central.lock();
        central.stuck.extend(stuck);
        central.returns += 1;
        central.heap.forget_unused(unused);
        Ok(())
    }
}

/// What a pool that has reserved this much grows by at least: a fraction of it, as a power of two.
fn unit(reserved: u64, granularity: u64) -> u64 {
    power_below(reserved / UNIT_FRACTION).clamp(UNIT_MIN, UNIT_MAX).max(granularity)
}

/// The size of the granules of a pool that has reserved this much.
fn granule(reserved: u64, granularity: u64) -> u64 {
    power_below(reserved / GRANULE_FRACTION).clamp(GRANULE_MIN, GRANULE_MAX).max(granularity)
}

/// The largest power of two that is not above `number`, or 1.
fn power_below(number: u64) -> u64 {
    1 << (u64::BITS - 1 - number.max(1).leading_zeros())
}

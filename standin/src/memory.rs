//! Memory: real bytes behind every device address, and a map of who may touch what.
//!
//! A physical granule is a `memfd`, so that it keeps its bytes when it is mapped elsewhere, and can
//! be mapped twice. Nothing is touched before it was looked up here: a bad address is the error of a
//! device, not a crash of the program.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::ptr;

use crate::code::{Code, Outcome};
use crate::os;

/// The unit of virtual memory, as on real devices.
pub(crate) const GRANULARITY: usize = 2 << 20;

const PAGE: usize = 4096;

/// A range from an allocating call, by its first address.
#[derive(Debug)]
struct Range {
    bytes: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A plain allocation in a context of a device.
    Plain { device: usize, context: usize },
    /// Page-locked host memory.
    Host,
    /// Addresses alone.
    Reserved,
}

/// A granule in its place, by its first address.
#[derive(Debug)]
struct Mapping {
    bytes: usize,
    granule: u64,
    devices: BTreeSet<usize>,
}

#[derive(Debug)]
struct Granule {
    memory: c_int,
    bytes: usize,
    device: usize,
    mappings: usize,
    released: bool,
}

#[derive(Debug)]
pub(crate) struct Memory {
    ranges: BTreeMap<usize, Range>,
    mappings: BTreeMap<usize, Mapping>,
    granules: BTreeMap<u64, Granule>,
    last_granule: u64,
    /// Bytes that each device has given out.
    used: BTreeMap<usize, usize>,
    /// Bytes that each device has.
    total: usize,
}

impl Memory {
    pub(crate) const fn new(total: usize) -> Memory {
        Memory {
            ranges: BTreeMap::new(),
            mappings: BTreeMap::new(),
            granules: BTreeMap::new(),
            last_granule: 0,
            used: BTreeMap::new(),
            total,
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn free_bytes(&self, device: usize) -> usize {
        self.total - self.used.get(&device).copied().unwrap_or(0)
    }

    fn charge(&mut self, device: usize, bytes: usize) -> Outcome {
        if bytes > self.free_bytes(device) {
            return Err(Code::OUT_OF_MEMORY);
        }
        *self.used.entry(device).or_default() += bytes;
        Ok(())
    }

    fn refund(&mut self, device: usize, bytes: usize) {
        if let Some(used) = self.used.get_mut(&device) {
            *used -= bytes;
        }
    }

    /// A plain allocation. Like the real driver's it is a multiple of pages on the inside.
    pub(crate) fn allocate(
        &mut self,
        device: usize,
        context: usize,
        bytes: usize,
    ) -> Outcome<usize> {
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(Code::OUT_OF_MEMORY)?;
        self.charge(device, bytes)?;
        let at = self.open_range(bytes, Kind::Plain { device, context });
        if at.is_err() {
            self.refund(device, bytes);
        }
        at
    }

    pub(crate) fn allocate_host(&mut self, bytes: usize) -> Outcome<usize> {
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(Code::OUT_OF_MEMORY)?;
        self.open_range(bytes, Kind::Host)
    }

    fn open_range(&mut self, bytes: usize, kind: Kind) -> Outcome<usize> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let at = os::reserve(bytes, PAGE).ok_or(Code::OUT_OF_MEMORY)?;
        // SAFETY: sound because the range was just reserved and nobody knows it yet.
        unsafe { os::open(at, bytes, true) };
        self.ranges.insert(at, Range { bytes, kind });
        Ok(at)
    }

    /// Gives a plain allocation back.
    pub(crate) fn free(&mut self, address: usize) -> Outcome {
        match self.ranges.get(&address) {
            Some(&Range { bytes, kind: Kind::Plain { device, .. } }) => {
                self.refund(device, bytes);
                self.drop_range(address, bytes);
                Ok(())
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    pub(crate) fn free_host(&mut self, address: usize) -> Outcome {
        match self.ranges.get(&address) {
            Some(&Range { bytes, kind: Kind::Host }) => {
                self.drop_range(address, bytes);
                Ok(())
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn drop_range(&mut self, address: usize, bytes: usize) {
        self.ranges.remove(&address);
        // SAFETY: sound because the range came from `reserve` and is forgotten here, so that no later
        // operation finds it; a program that goes on using it broke the driver's contract.
        unsafe { os::release(address, bytes) };
    }

    /// Frees the plain allocations of a context that ends.
    pub(crate) fn destroy_context(&mut self, context: usize) {
        let of_context =
            |range: &Range| matches!(range.kind, Kind::Plain { context: c, .. } if c == context);
        let gone: Vec<usize> =
            self.ranges.iter().filter(|(_, range)| of_context(range)).map(|(at, _)| *at).collect();
        for address in gone {
            let _ = self.free(address);
        }
    }

    pub(crate) fn is_plain(&self, address: usize) -> bool {
        self.ranges.get(&address).is_some_and(|range| matches!(range.kind, Kind::Plain { .. }))
    }

    /// The device and the context that the plain memory at an address belongs to.
    pub(crate) fn context_of(&self, address: usize) -> Option<(usize, usize)> {
        match self.ranges.range(..=address).next_back()?.1.kind {
            Kind::Plain { device, context } => Some((device, context)),
            Kind::Host | Kind::Reserved => None,
        }
    }

    pub(crate) fn is_page_locked(&self, address: usize, bytes: usize) -> bool {
        let found = self.ranges.range(..=address).next_back();
        found.is_some_and(|(at, range)| {
            range.kind == Kind::Host && address + bytes <= at + range.bytes
        })
    }

    pub(crate) fn reserve(&mut self, bytes: usize, align: usize) -> Outcome<usize> {
        let align = align.max(GRANULARITY);
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || !align.is_power_of_two() {
            return Err(Code::INVALID_VALUE);
        }
        let at = os::reserve(bytes, align).ok_or(Code::OUT_OF_MEMORY)?;
        self.ranges.insert(at, Range { bytes, kind: Kind::Reserved });
        Ok(at)
    }

    pub(crate) fn unreserve(&mut self, address: usize, bytes: usize) -> Outcome {
        let range = self.ranges.get(&address).ok_or(Code::INVALID_VALUE)?;
        let mapped = self.mappings.range(address..address.saturating_add(bytes)).next().is_some();
        if range.kind != Kind::Reserved || range.bytes != bytes || mapped {
            return Err(Code::INVALID_VALUE);
        }
        self.drop_range(address, bytes);
        Ok(())
    }

    pub(crate) fn create_granule(&mut self, device: usize, bytes: usize) -> Outcome<u64> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(Code::INVALID_VALUE);
        }
        self.charge(device, bytes)?;
        let Some(memory) = os::create(bytes) else {
            self.refund(device, bytes);
            return Err(Code::OUT_OF_MEMORY);
        };
        self.last_granule += 1;
        let granule = Granule { memory, bytes, device, mappings: 0, released: false };
        self.granules.insert(self.last_granule, granule);
        Ok(self.last_granule)
    }

    /// Gives a granule up; its memory goes once nothing maps it.
    pub(crate) fn release_granule(&mut self, handle: u64) -> Outcome {
        let granule = self.granules.get_mut(&handle).filter(|granule| !granule.released);
        granule.ok_or(Code::INVALID_VALUE)?.released = true;
        self.drop_granule_if_unused(handle);
        Ok(())
    }

    fn drop_granule_if_unused(&mut self, handle: u64) {
        let Some(granule) = self.granules.get(&handle) else { return };
        if granule.released && granule.mappings == 0 {
            let (device, bytes) = (granule.device, granule.bytes);
            os::destroy(granule.memory);
            self.refund(device, bytes);
            self.granules.remove(&handle);
        }
    }

    /// Maps a whole granule into a free part of a reserved range.
    pub(crate) fn map(&mut self, address: usize, bytes: usize, handle: u64) -> Outcome {
        let end = address.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
        let (start, range) =
            self.ranges.range(..=address).next_back().ok_or(Code::INVALID_VALUE)?;
        let inside = range.kind == Kind::Reserved && end <= start + range.bytes;
        let below = self.mappings.range(..end).next_back();
        let vacant = below.is_none_or(|(at, mapping)| at + mapping.bytes <= address);
        let granule = self.granules.get_mut(&handle).filter(|granule| !granule.released);
        let granule = granule.ok_or(Code::INVALID_VALUE)?;
        if !inside || !vacant || !address.is_multiple_of(GRANULARITY) || granule.bytes != bytes {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: sound because the part lies in a range that came from `reserve`, and nothing is
        // mapped there, so nothing can be using it.
        if !unsafe { os::map(address, bytes, Some(granule.memory)) } {
            return Err(Code::OUT_OF_MEMORY);
        }
        granule.mappings += 1;
        self.mappings.insert(address, Mapping { bytes, granule: handle, devices: BTreeSet::new() });
        Ok(())
    }

    /// The mappings that fill a range exactly.
    fn whole_mappings(&self, address: usize, bytes: usize) -> Outcome<Vec<usize>> {
        let end = address.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
        let mut next = address;
        let mut found = Vec::new();
        while next < end {
            let mapping = self.mappings.get(&next).ok_or(Code::INVALID_VALUE)?;
            found.push(next);
            next += mapping.bytes;
        }
        if next == end && bytes != 0 { Ok(found) } else { Err(Code::INVALID_VALUE) }
    }

    pub(crate) fn set_access(
        &mut self,
        address: usize,
        bytes: usize,
        devices: &[usize],
    ) -> Outcome {
        for at in self.whole_mappings(address, bytes)? {
            let Some(mapping) = self.mappings.get_mut(&at) else { continue };
            mapping.devices.extend(devices);
            // SAFETY: sound because the mapping lies in a reserved range, and opening takes nothing
            // away from anybody.
            unsafe { os::open(at, mapping.bytes, true) };
        }
        Ok(())
    }

    pub(crate) fn unmap(&mut self, address: usize, bytes: usize) -> Outcome {
        for at in self.whole_mappings(address, bytes)? {
            let Some(mapping) = self.mappings.remove(&at) else { continue };
            // SAFETY: sound because the mapping lies in a reserved range and is forgotten here, so
            // that no later operation finds it.
            unsafe { os::map(at, mapping.bytes, None) };
            if let Some(granule) = self.granules.get_mut(&mapping.granule) {
                granule.mappings -= 1;
            }
            self.drop_granule_if_unused(mapping.granule);
        }
        Ok(())
    }

    /// Whether a device may touch all of a range: an allocation or page-locked memory of any kind, or
    /// mappings, side by side, whose access was set for the device.
    fn check(&self, device: usize, address: usize, bytes: usize) -> Outcome {
        let end = address.checked_add(bytes).ok_or(Code::ILLEGAL_ADDRESS)?;
        let found = self.ranges.range(..=address).next_back();
        let (start, range) = found.ok_or(Code::ILLEGAL_ADDRESS)?;
        if end > start + range.bytes {
            return Err(Code::ILLEGAL_ADDRESS);
        }
        let mut next = if range.kind == Kind::Reserved { address } else { end };
        while next < end {
            let found = self.mappings.range(..=next).next_back();
            let (start, mapping) = found.ok_or(Code::ILLEGAL_ADDRESS)?;
            if next >= start + mapping.bytes || !mapping.devices.contains(&device) {
                return Err(Code::ILLEGAL_ADDRESS);
            }
            next = start + mapping.bytes;
        }
        Ok(())
    }

    pub(crate) fn fill(&self, device: usize, at: usize, value: u8, bytes: usize) -> Outcome {
        self.check(device, at, bytes)?;
        // SAFETY: sound because the range is live and open for writing, as just checked.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(at).write_bytes(value, bytes) };
        Ok(())
    }

    pub(crate) fn write(&self, device: usize, at: usize, data: &[u8]) -> Outcome {
        self.check(device, at, data.len())?;
        let to = ptr::with_exposed_provenance_mut::<u8>(at);
        // SAFETY: sound because the target is live and open for writing, as just checked, and the
        // source is a copy of the stand-in's own.
        unsafe { to.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }

    /// Copies between two addresses, each as a device reaches it.
    pub(crate) fn copy(
        &self,
        (device, to): (usize, usize),
        (source, from): (usize, usize),
        bytes: usize,
    ) -> Outcome {
        self.check(device, to, bytes)?;
        self.check(source, from, bytes)?;
        let from = ptr::with_exposed_provenance::<u8>(from);
        // SAFETY: sound because both ranges are live and open, as just checked; they may overlap.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(to).copy_from(from, bytes) };
        Ok(())
    }

    /// Copies to memory of the program's own.
    pub(crate) fn read(&self, device: usize, to: usize, from: usize, bytes: usize) -> Outcome {
        self.check(device, from, bytes)?;
        let from = ptr::with_exposed_provenance::<u8>(from);
        // SAFETY: sound because the source is live and open, as just checked, and the program vouches
        // for the target until the copy has finished.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(to).copy_from(from, bytes) };
        Ok(())
    }
}

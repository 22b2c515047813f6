//! Addresses and what is behind them: segments, reserved ranges, granules, access.
//!
//! Physical memory has addresses of its own, never used twice. Uses and contents are kept by those,
//! so that they follow a granule from one mapping to the next, and two mappings of one granule meet.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;

use super::error::SimErrorCode as Code;

/// Every address given out is a multiple of this, and most of no more: an aligned address that the
/// caller did not ask for would hide faults.
const ALIGNMENT: u64 = 256;

const FIRST_ADDRESS: u64 = 0x7000_0000_0000;
const LAST_ADDRESS: u64 = 0x7FFF_0000_0000;

/// Addresses that nobody has, first fit: a freed address comes back at once.
#[derive(Debug)]
struct AddressSpace {
    /// Start → end.
    holes: BTreeMap<u64, u64>,
}

impl AddressSpace {
    fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let (hole, end, start) = self.holes.iter().find_map(|(&hole, &end)| {
            let start = hole.checked_next_multiple_of(align)?;
            (start.checked_add(bytes)? <= end).then_some((hole, end, start))
        })?;
        self.holes.remove(&hole);
        if hole < start {
            self.holes.insert(hole, start);
        }
        if start + bytes < end {
            self.holes.insert(start + bytes, end);
        }
        Some(start)
    }

    fn give_back(&mut self, address: u64, bytes: u64) {
        let (mut start, mut end) = (address, address + bytes);
        if let Some((&hole, &hole_end)) = self.holes.range(..start).next_back()
            && hole_end == start
        {
            start = hole;
        }
        if let Some(hole_end) = self.holes.remove(&end) {
            end = hole_end;
        }
        self.holes.insert(start, end);
    }
}

/// What is mapped at a range of addresses.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) end: u64,
    pub(super) physical: u64,
    /// The granule; none for a segment.
    pub(super) granule: Option<usize>,
    /// The device whose memory it is.
    pub(super) context: usize,
    /// The devices that may touch it, a bit each; for a segment its owner's peers count instead.
    access: u64,
    /// Whether it has ever been handed out with an annotation.
    pub(super) annotated: bool,
    /// Tells it from every other mapping, also of the same granule.
    serial: u32,
}

#[derive(Debug)]
struct Granule {
    context: usize,
    bytes: u64,
    physical: u64,
    mapped: usize,
}

/// One device's account, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    pub(super) total: u64,
    pub(super) in_use: u64,
    pub(super) peak: u64,
    pub(super) mapped: u64,
    pub(super) granules: u64,
    /// The devices that may touch its segments, a bit each.
    peers: u64,
}

impl Account {
    fn take(&mut self, bytes: u64) -> Result<(), Code> {
        if bytes > self.total - self.in_use {
            return Err(Code::OutOfMemory);
        }
        self.in_use += bytes;
        self.peak = self.peak.max(self.in_use);
        Ok(())
    }
}

/// A part of an access that lies in one mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) physical: u64,
    pub(super) accessible: bool,
    pub(super) annotated: bool,
    /// The serial number of the mapping.
    pub(super) mapping: u32,
}

#[derive(Debug)]
pub(super) struct Memory {
    space: AddressSpace,
    reserved: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    granules: Vec<Option<Granule>>,
    /// Places in `granules` that are free.
    vacant: Vec<usize>,
    next_physical: u64,
    last_serial: u32,
    pub(super) accounts: Vec<Account>,
    pub(super) granularity: Option<u64>,
    /// How often a mapping or its access has changed: while this has not, an address that was found
    /// accessible still is, and names the same bytes.
    pub(super) changes: u64,
}

impl Memory {
    pub(super) fn new(granularity: Option<u64>, totals: impl Iterator<Item = u64>) -> Self {
        Memory {
            space: AddressSpace { holes: BTreeMap::from([(FIRST_ADDRESS, LAST_ADDRESS)]) },
            reserved: BTreeMap::new(),
            mappings: BTreeMap::new(),
            granules: Vec::new(),
            vacant: Vec::new(),
            next_physical: 0,
            last_serial: 0,
            accounts: totals.map(|total| Account { total, ..Account::default() }).collect(),
            granularity,
            changes: 0,
        }
    }

    fn new_physical(&mut self, bytes: u64) -> u64 {
        let physical = self.next_physical;
        // A gap keeps neighbours in physical memory from looking like one range.
        self.next_physical += bytes.next_multiple_of(ALIGNMENT) + ALIGNMENT;
        physical
    }

    pub(super) fn alloc_segment(&mut self, context: usize, bytes: u64) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(Code::InvalidValue);
        }
        let rounded = bytes.checked_next_multiple_of(ALIGNMENT).ok_or(Code::OutOfMemory)?;
        self.accounts[context].take(bytes)?;
        let Some(address) = self.space.take(rounded, ALIGNMENT) else {
            self.accounts[context].in_use -= bytes;
            return Err(Code::OutOfMemory);
        };
        let physical = self.new_physical(bytes);
        let end = address + bytes;
        self.add_mapping(address, end, physical, None, context);
        Ok(address)
    }

    /// Whether exactly this segment exists.
    pub(super) fn is_segment(&self, context: usize, address: u64, bytes: u64) -> bool {
        self.mappings.get(&address).is_some_and(|mapping| {
            mapping.granule.is_none()
                && mapping.context == context
                && mapping.end - address == bytes
        })
    }

    /// Gives a segment back, and says where its bytes were.
    pub(super) fn free_segment(&mut self, address: u64) -> Range<u64> {
        let mapping = self.mappings.remove(&address).expect("the segment was found");
        let bytes = mapping.end - address;
        self.space.give_back(address, bytes.next_multiple_of(ALIGNMENT));
        self.accounts[mapping.context].in_use -= bytes;
        self.changes += 1;
        mapping.physical..mapping.physical + bytes
    }

    fn check_granular(&self, values: &[u64]) -> Result<u64, Code> {
        let granularity = self.granularity.ok_or(Code::NotSupported)?;
        let fits = values.iter().all(|value| value.is_multiple_of(granularity));
        fits.then_some(granularity).ok_or(Code::InvalidValue)
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> Result<u64, Code> {
        let granularity = self.check_granular(&[bytes])?;
        if bytes == 0 {
            return Err(Code::InvalidValue);
        }
        let address = self.space.take(bytes, granularity).ok_or(Code::OutOfMemory)?;
        self.reserved.insert(address, bytes);
        Ok(address)
    }

    pub(super) fn release(&mut self, address: u64, bytes: u64) -> Result<(), Code> {
        let empty = self.mappings.range(address..address.saturating_add(bytes)).next().is_none();
        if self.reserved.get(&address) != Some(&bytes) || !empty {
            return Err(Code::InvalidValue);
        }
        self.reserved.remove(&address);
        self.space.give_back(address, bytes);
        Ok(())
    }

    pub(super) fn create_granule(&mut self, context: usize, bytes: u64) -> Result<usize, Code> {
        self.check_granular(&[bytes])?;
        if bytes == 0 {
            return Err(Code::InvalidValue);
        }
        self.accounts[context].take(bytes)?;
        self.accounts[context].granules += 1;
        let physical = self.new_physical(bytes);
        let granule = Some(Granule { context, bytes, physical, mapped: 0 });
        match self.vacant.pop() {
            Some(vacant) => {
                self.granules[vacant] = granule;
                Ok(vacant)
            }
            None => {
                self.granules.push(granule);
                Ok(self.granules.len() - 1)
            }
        }
    }

    /// Gives a granule back, and says where its bytes were.
    pub(super) fn destroy_granule(&mut self, index: usize) -> Result<Range<u64>, Code> {
        match self.granules.get(index) {
            Some(Some(granule)) if granule.mapped == 0 => {}
            Some(Some(_)) => return Err(Code::InvalidValue),
            _ => return Err(Code::InvalidHandle),
        }
        let granule = self.granules[index].take().expect("just seen");
        self.vacant.push(index);
        let account = &mut self.accounts[granule.context];
        account.in_use -= granule.bytes;
        account.granules -= 1;
        Ok(granule.physical..granule.physical + granule.bytes)
    }

    pub(super) fn map(&mut self, address: u64, bytes: u64, index: usize) -> Result<(), Code> {
        self.check_granular(&[address, bytes])?;
        let end = address.checked_add(bytes).ok_or(Code::InvalidValue)?;
        let inside = self
            .reserved
            .range(..=address)
            .next_back()
            .is_some_and(|(&start, &len)| end <= start + len);
        let free = self.pieces_within(address, end).next().is_none();
        let granule = self.granules.get_mut(index).and_then(Option::as_mut);
        let granule = granule.ok_or(Code::InvalidHandle)?;
        if !inside || !free || granule.bytes != bytes {
            return Err(Code::InvalidValue);
        }
        granule.mapped += 1;
        let (physical, context) = (granule.physical, granule.context);
        self.accounts[context].mapped += bytes;
        self.add_mapping(address, end, physical, Some(index), context);
        Ok(())
    }

    fn add_mapping(
        &mut self,
        address: u64,
        end: u64,
        physical: u64,
        granule: Option<usize>,
        context: usize,
    ) {
        self.last_serial += 1;
        let (access, annotated, serial) = (0, false, self.last_serial);
        let mapping = Mapping { end, physical, granule, context, access, annotated, serial };
        self.mappings.insert(address, mapping);
    }

    /// The mappings that meet the range.
    fn pieces_within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Mapping)> {
        let first = self.mappings.range(..=start).next_back();
        let first = first.filter(|(_, mapping)| mapping.end > start).map_or(start, |(&at, _)| at);
        self.mappings.range(first..end.max(first)).map(|(&at, mapping)| (at, mapping))
    }

    /// Checks that the range is made of whole mapped granules.
    pub(super) fn check_whole_granules(&self, address: u64, bytes: u64) -> Result<(), Code> {
        let end = address.checked_add(bytes).ok_or(Code::InvalidValue)?;
        let mut covered = address;
        for (at, mapping) in self.pieces_within(address, end) {
            if at != covered || mapping.end > end || mapping.granule.is_none() {
                return Err(Code::InvalidValue);
            }
            covered = mapping.end;
        }
        if covered == end && bytes > 0 { Ok(()) } else { Err(Code::InvalidValue) }
    }

    pub(super) fn set_access(&mut self, address: u64, bytes: u64, devices: u64) {
        for (_, mapping) in self.mappings.range_mut(address..address + bytes) {
            mapping.access = devices;
        }
        self.changes += 1;
    }

    /// Unmaps whole granules.
    pub(super) fn unmap(&mut self, address: u64, bytes: u64) {
        while let Some((&at, _)) = self.mappings.range(address..address + bytes).next() {
            let mapping = self.mappings.remove(&at).expect("just seen");
            self.accounts[mapping.context].mapped -= mapping.end - at;
            let index = mapping.granule.expect("only granules are unmapped");
            self.granules[index].as_mut().expect("a mapped granule exists").mapped -= 1;
        }
        self.changes += 1;
    }

    pub(super) fn allow_peer(&mut self, context: usize, peer: usize) {
        self.accounts[context].peers |= 1 << peer;
    }

    /// Marks all memory in the range as handed out by somebody who says so.
    pub(super) fn annotate(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let first = self.pieces_within(address, end).next().map_or(end, |(at, _)| at);
        for (_, mapping) in self.mappings.range_mut(first..end.max(first)) {
            mapping.annotated = true;
        }
    }

    fn is_accessible(&self, mapping: &Mapping, context: usize) -> bool {
        let devices = match mapping.granule {
            None => self.accounts[mapping.context].peers | 1 << mapping.context,
            Some(_) => mapping.access,
        };
        devices & (1 << context) != 0
    }

    /// The piece of physical memory at the address, cut off after `bytes` bytes, as a device sees it.
    #[inline]
    pub(super) fn piece_at(&self, context: usize, address: u64, bytes: u64) -> Option<Piece> {
        let (&at, mapping) = self.mappings.range(..=address).next_back()?;
        (address < mapping.end).then(|| Piece {
            address,
            bytes: bytes.min(mapping.end - address),
            physical: mapping.physical + (address - at),
            accessible: self.is_accessible(mapping, context),
            annotated: mapping.annotated,
            mapping: mapping.serial,
        })
    }

    /// Where the next mapping above the address begins.
    pub(super) fn next_mapped(&self, address: u64) -> Option<u64> {
        self.mappings.range(address..).next().map(|(&at, _)| at)
    }
}

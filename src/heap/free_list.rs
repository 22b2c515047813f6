//! Free blocks by size, then by address: the smallest that fits, and of those the lowest.

use std::fmt;

use super::block::BlockId;
use super::request::{Part, Request};
use super::size_class::{GRAIN, padding};
use crate::rows::{Keyed, Rows};

/// A set of free blocks, sorted.
#[derive(Debug, Default)]
pub(crate) struct FreeList {
    entries: Rows<Entry>,
}

/// Where a free block lies. The order is the order of choice: in each part size first, then address. It is
/// one number, since a search compares a dozen of them: part, size, address, and the block's name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry(u128);

const NAME_BITS: u32 = 32;
/// Sizes and addresses are in grains.
const ADDRESS_BITS: u32 = u64::BITS - GRAIN.trailing_zeros();
const SIZE_BITS: u32 = u128::BITS - 1 - ADDRESS_BITS - NAME_BITS;

impl Entry {
    pub(crate) fn new(part: Part, bytes: u64, address: u64, id: BlockId) -> Entry {
        debug_assert!(bytes / GRAIN < 1 << SIZE_BITS);
        let part = u128::from(part == Part::Large) << SIZE_BITS;
        let sized = (part | u128::from(bytes / GRAIN)) << ADDRESS_BITS;
        Entry((sized | u128::from(address / GRAIN)) << NAME_BITS | u128::from(id.number()))
    }

    /// Sorts before every entry of a part whose block has this size or a larger one, and behind all others
    /// of the part.
    fn lowest(part: Part, bytes: u64) -> Entry {
        Entry::new(part, bytes.next_multiple_of(GRAIN), 0, BlockId::LOWEST)
    }

    pub(crate) fn id(self) -> BlockId {
        BlockId::from_number(self.0 as u32)
    }

    pub(crate) fn address(self) -> u64 {
        // The lowest bits of the size are above it, and are shifted out.
        ((self.0 >> NAME_BITS) as u64) << GRAIN.trailing_zeros()
    }

    pub(crate) fn bytes(self) -> u64 {
        ((self.0 >> (NAME_BITS + ADDRESS_BITS)) as u64 & ((1 << SIZE_BITS) - 1)) * GRAIN
    }

    pub(crate) fn part(self) -> Part {
        if self.0 >> (u128::BITS - 1) == 0 { Part::Small } else { Part::Large }
    }

    /// Whether `bytes` bytes aligned to `align` fit into this block.
    fn fits(self, bytes: u64, align: u64) -> bool {
        padding(self.address(), align) + bytes <= self.bytes()
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, bytes) = (self.address(), self.bytes());
        write!(f, "{:?} at {address:#x}, {bytes} bytes, {:?}", self.id(), self.part())
    }
}

impl Keyed for Entry {
    type Key = Entry;

    fn key(&self) -> Entry {
        *self
    }
}

impl FreeList {
    pub(crate) fn insert(&mut self, entry: Entry) {
        self.entries.insert(entry);
    }

    pub(crate) fn remove(&mut self, entry: Entry) {
        self.entries.remove(entry);
    }

    /// Takes one entry out, and puts another in.
    pub(crate) fn replace(&mut self, entry: Entry, by: Entry) {
        self.entries.replace(entry, by);
    }

    /// The blocks that fit, the best first.
    pub(crate) fn fitting(&self, request: &Request) -> impl Iterator<Item = Entry> + '_ {
        let Request { bytes, align, part } = *request;
        self.entries
            .from(Entry::lowest(part, bytes))
            .take_while(move |entry| entry.part() == part)
            .filter(move |entry| entry.fits(bytes, align))
            .copied()
    }

    /// The best block that fits: the first of [`fitting`](Self::fitting).
    pub(crate) fn best(&self, request: &Request) -> Option<Entry> {
        let Request { bytes, align, part } = *request;
        let (is_other, fits) =
            (|own: &Entry| own.part() != part, |own: &Entry| own.fits(bytes, align));
        self.entries.find_from(Entry::lowest(part, bytes), is_other, fits).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.iter().copied()
    }

    /// The size of the largest block, in bytes.
    pub(crate) fn largest(&self) -> u64 {
        let small = self.entries.below(Entry::lowest(Part::Large, 0));
        let both = self.entries.last().into_iter().chain(small);
        both.map(|own| own.bytes()).max().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn entry() -> impl Strategy<Value = Entry> {
        (any::<bool>(), 1..40_u64, 0..12_u64).prop_map(|(large, grains, place)| {
            let part = if large { Part::Large } else { Part::Small };
            let address = (1 << 47) + place * 64 * GRAIN;
            Entry::new(part, grains * GRAIN, address, BlockId::from_number(place as u32))
        })
    }

    #[test]
    fn an_entry_keeps_what_it_is_made_of() {
        let name = BlockId::from_number(u32::MAX - 1);
        for part in [Part::Small, Part::Large] {
            let (bytes, address) = ((1 << 46) + GRAIN, u64::MAX / GRAIN * GRAIN);
            let own = Entry::new(part, bytes, address, name);
            assert_eq!((own.part(), own.bytes()), (part, bytes));
            assert_eq!((own.address(), own.id()), (address, name));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

        /// Against a sorted set of the standard library. Each entry that comes goes if it is there.
        #[test]
        fn a_list_is_a_sorted_set(
            entries in prop::collection::vec(entry(), 1..1500),
            wanted in prop::collection::vec((entry(), 8..15_u32), 8),
        ) {
            let (mut list, mut set) = (FreeList::default(), BTreeSet::new());
            for (step, own) in entries.into_iter().enumerate() {
                // More come than go in the first half, and more go in the second.
                match set.contains(&own) {
                    true => {
                        list.remove(own);
                        set.remove(&own);
                    }
                    false if step < 750 || step % 8 == 0 => {
                        list.insert(own);
                        set.insert(own);
                    }
                    false => {}
                }
                prop_assert_eq!(list.is_empty(), set.is_empty());
                let largest = set.iter().map(|own| own.bytes()).max();
                prop_assert_eq!(list.largest(), largest.unwrap_or(0));
            }
            prop_assert!(list.iter().eq(set.iter().copied()));
            for (own, align_log) in wanted {
                let (part, bytes, align) = (own.part(), own.bytes(), 1 << align_log);
                let request = Request { bytes, align, part };
                let fits = |own: &&Entry| own.part() == part && own.fits(bytes, align);
                let mut fitting = set.iter().filter(fits).copied();
                prop_assert_eq!(list.best(&request), fitting.clone().next());
                prop_assert!(list.fitting(&request).eq(&mut fitting));
            }
            set.iter().for_each(|own| list.remove(*own));
            prop_assert!(list.is_empty());
        }
    }
}

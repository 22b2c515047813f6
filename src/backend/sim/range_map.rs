//! A map from ranges of addresses to values.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;

/// Values by disjoint ranges. Setting a range cuts what lies across its ends in two, both parts
/// keeping the value; so what is known follows the bytes through any split and join of blocks.
#[derive(Debug)]
pub(super) struct RangeMap<V> {
    /// Start → (end, value).
    map: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for RangeMap<V> {
    fn default() -> Self {
        RangeMap { map: BTreeMap::new() }
    }
}

impl<V: Clone> RangeMap<V> {
    /// The entry that holds the address.
    #[inline]
    pub(super) fn at(&self, address: u64) -> Option<(Range<u64>, &V)> {
        let (&start, (end, value)) = self.map.range(..=address).next_back()?;
        (address < *end).then_some((start..*end, value))
    }

    /// The value of the entry that holds the address.
    pub(super) fn at_mut(&mut self, address: u64) -> Option<&mut V> {
        let (_, (end, value)) = self.map.range_mut(..=address).next_back()?;
        (address < *end).then_some(value)
    }

    /// The value of exactly this range, if it is one entry.
    #[inline]
    pub(super) fn exact(&self, range: &Range<u64>) -> Option<&V> {
        let (end, value) = self.map.get(&range.start)?;
        (*end == range.end).then_some(value)
    }

    /// The same, to change it.
    #[inline]
    pub(super) fn exact_mut(&mut self, range: &Range<u64>) -> Option<&mut V> {
        let (end, value) = self.map.get_mut(&range.start)?;
        (*end == range.end).then_some(value)
    }

    /// All entries that meet the range, whole, in order.
    pub(super) fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, &V)> {
        let first = self.at(range.start).map_or(range.start, |(entry, _)| entry.start);
        let end = range.end.max(first);
        self.map.range(first..end).map(|(&start, (end, value))| (start..*end, value))
    }

    /// Cuts the entry that has the address inside it in two.
    pub(super) fn split_at(&mut self, address: u64) {
        let Some((&start, (end, value))) = self.map.range_mut(..address).next_back() else {
            return;
        };
        if address >= *end || start == address {
            return;
        }
        let upper = (*end, value.clone());
        *end = address;
        self.map.insert(address, upper);
    }

    /// Whether nothing lies in the range.
    pub(super) fn is_clear(&self, range: &Range<u64>) -> bool {
        self.map.range(..range.end).next_back().is_none_or(|(_, (end, _))| *end <= range.start)
    }

    /// Makes the range one entry.
    pub(super) fn set(&mut self, range: Range<u64>, value: V) {
        if !self.is_clear(&range) {
            self.remove(&range);
        }
        self.map.insert(range.start, (range.end, value));
    }

    /// Removes all that lies in the range.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        if self.exact_mut(range).is_some() {
            self.map.remove(&range.start);
            return;
        }
        self.split_at(range.start);
        self.split_at(range.end);
        while let Some((&start, _)) = self.map.range(range.clone()).next() {
            self.map.remove(&start);
        }
    }

    /// Changes every entry in the range, cut at its ends; gaps are filled with the default first.
    pub(super) fn update(&mut self, range: &Range<u64>, mut change: impl FnMut(&mut V))
    where
        V: Default,
    {
        self.split_at(range.start);
        self.split_at(range.end);
        let mut gaps = Vec::new();
        let mut covered = range.start;
        for (&start, (end, value)) in self.map.range_mut(range.clone()) {
            if covered < start {
                gaps.push(covered..start);
            }
            covered = *end;
            change(value);
        }
        if covered < range.end {
            gaps.push(covered..range.end);
        }
        for gap in gaps {
            let mut value = V::default();
            change(&mut value);
            self.map.insert(gap.start, (gap.end, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(map: &RangeMap<u32>) -> Vec<(u64, u64, u32)> {
        map.overlapping(&(0..u64::MAX)).map(|(range, &v)| (range.start, range.end, v)).collect()
    }

    #[test]
    fn a_set_cuts_what_lies_across_its_ends() {
        let mut map = RangeMap::default();
        map.set(0..100, 1);
        map.set(40..60, 2);
        assert_eq!(entries(&map), [(0, 40, 1), (40, 60, 2), (60, 100, 1)]);
        map.set(30..70, 3);
        assert_eq!(entries(&map), [(0, 30, 1), (30, 70, 3), (70, 100, 1)]);
    }

    #[test]
    fn a_range_is_clear_when_nothing_meets_it() {
        let mut map = RangeMap::default();
        map.set(10..20, 1);
        for (range, clear) in [(0..10, true), (20..30, true), (0..11, false), (19..30, false)] {
            assert_eq!(map.is_clear(&range), clear, "{range:?}");
        }
        assert!(!map.is_clear(&(12..15)) && !map.is_clear(&(10..20)) && !map.is_clear(&(0..99)));
    }

    #[test]
    fn an_update_reaches_parts_and_gaps() {
        let mut map = RangeMap::default();
        map.set(10..20, 1);
        map.set(30..40, 2);
        map.update(&(15..50), |value| *value += 10);
        assert_eq!(
            entries(&map),
            [(10, 15, 1), (15, 20, 11), (20, 30, 10), (30, 40, 12), (40, 50, 10)]
        );
    }

    #[test]
    fn overlapping_gives_only_what_meets_the_range() {
        let mut map = RangeMap::default();
        map.set(10..20, 1);
        map.set(20..30, 2);
        map.set(40..50, 3);
        let met: Vec<u32> = map.overlapping(&(19..21)).map(|(_, &v)| v).collect();
        assert_eq!(met, [1, 2]);
        assert_eq!(map.overlapping(&(30..40)).count(), 0);
        assert_eq!(map.overlapping(&(25..25)).count(), 1);
    }

    #[test]
    fn a_removal_leaves_the_parts_outside() {
        let mut map = RangeMap::default();
        map.set(0..30, 7);
        map.remove(&(10..20));
        assert_eq!(entries(&map), [(0, 10, 7), (20, 30, 7)]);
        assert!(map.at(15).is_none());
        assert_eq!(map.at(29).map(|(range, &v)| (range, v)), Some((20..30, 7)));
    }
}

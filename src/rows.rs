//! Sorted sets of small elements: what the heap and its memory are searched by, many times a miss.
//!
//! Elements lie in rows, each of a few cache lines. A search is two binary ones, over the rows and in one; a
//! change moves few bytes, and asks the host's allocator for memory once in many.

#![forbid(unsafe_code)]

use std::fmt;
use std::ops::Range;

/// How many elements a row has at most.
const ROW: usize = 64;

/// An element of a sorted set.
pub(crate) trait Keyed: Copy + fmt::Debug {
    /// What it is sorted by. No two in a set have the same.
    type Key: Copy + Ord + fmt::Debug;

    fn key(&self) -> Self::Key;
}

/// A set of elements, sorted by their keys.
#[derive(Debug)]
pub(crate) struct Rows<T> {
    /// None is empty, but the only one may be.
    rows: Vec<Vec<T>>,
}

/// Where an element is, or belongs: in which row, and where there.
#[derive(Clone, Copy, Debug)]
struct Spot {
    row: usize,
    within: usize,
}

impl<T> Default for Rows<T> {
    fn default() -> Rows<T> {
        Rows { rows: Vec::new() }
    }
}

impl<T: Keyed> Rows<T> {
    /// Where the first element is whose key is not below this one; behind all others if none is.
    #[inline]
    fn spot(&self, key: T::Key) -> Spot {
        let is_below = |row: &Vec<T>| row.last().is_some_and(|last| last.key() < key);
        let row = self.rows.partition_point(is_below);
        let own = self.rows.get(row);
        let within = own.map_or(0, |row| row.partition_point(|own| own.key() < key));
        Spot { row, within }
    }

    /// The element at a spot, unless that is behind all others.
    #[inline]
    fn at(&self, spot: Spot) -> Option<&T> {
        self.rows.get(spot.row)?.get(spot.within)
    }

    pub(crate) fn get(&self, key: T::Key) -> Option<&T> {
        self.at(self.spot(key)).filter(|own| own.key() == key)
    }

    /// An element to be changed, but for its key.
    pub(crate) fn get_mut(&mut self, key: T::Key) -> Option<&mut T> {
        let Spot { row, within } = self.spot(key);
        let own = self.rows.get_mut(row)?.get_mut(within)?;
        (own.key() == key).then_some(own)
    }

    /// The last element whose key is this one or below it.
    #[inline]
    pub(crate) fn at_or_below(&self, key: T::Key) -> Option<&T> {
        let spot = self.spot(key);
        match self.at(spot).filter(|own| own.key() == key) {
            Some(own) => Some(own),
            None => self.before(spot),
        }
    }

    /// The last element whose key is below this one.
    pub(crate) fn below(&self, key: T::Key) -> Option<&T> {
        self.before(self.spot(key))
    }

    /// The element before a spot.
    #[inline]
    fn before(&self, spot: Spot) -> Option<&T> {
        match spot.within.checked_sub(1) {
            Some(within) => self.rows[spot.row].get(within),
            None => self.rows.get(spot.row.checked_sub(1)?)?.last(),
        }
    }

    pub(crate) fn insert(&mut self, element: T) {
        let Spot { mut row, mut within } = self.spot(element.key());
        if row == self.rows.len() {
            // Behind all that there is. What comes in order fills each row.
            if self.rows.last().is_none_or(|last| last.len() == ROW) {
                self.rows.push(Vec::with_capacity(ROW / 8));
            }
            row = self.rows.len() - 1;
            within = self.rows[row].len();
        } else if self.rows[row].len() == ROW {
            let upper = self.rows[row].split_off(ROW / 2);
            self.rows.insert(row + 1, upper);
            if within > ROW / 2 {
                (row, within) = (row + 1, within - ROW / 2);
            }
        }
        let own = &mut self.rows[row];
        debug_assert!(
            own.get(within).is_none_or(|own| own.key() != element.key()),
            "{element:?} is in the set already"
        );
        own.insert(within, element);
    }

    /// Takes the element with this key out, which is in the set.
    pub(crate) fn remove(&mut self, key: T::Key) -> T {
        let Spot { row, within } = self.spot(key);
        let was = self.rows[row].remove(within);
        assert!(was.key() == key, "{key:?} is not in the set");
        let left = self.rows[row].len();
        let next = self.rows.get(row + 1).map(Vec::len);
        if next.is_some_and(|next| left + next <= ROW / 2) {
            let next = self.rows.remove(row + 1);
            self.rows[row].extend(next);
        } else if left == 0 && self.rows.len() > 1 {
            self.rows.remove(row);
        }
        was
    }

    /// Takes the element with one key out, which is in the set, and puts another in: most often in the same
    /// row, where only what lies between them moves.
    pub(crate) fn replace(&mut self, key: T::Key, element: T) {
        let Spot { row, within } = self.spot(key);
        let (new, own) = (element.key(), &mut self.rows[row]);
        assert!(own[within].key() == key, "{key:?} is not in the set");
        let (first, last) = (own[0].key(), own[own.len() - 1].key());
        if !(first < new && new < last) {
            self.remove(key);
            return self.insert(element);
        }
        let to = own.partition_point(|own| own.key() < new);
        if to <= within {
            own.copy_within(to..within, to + 1);
            own[to] = element;
        } else {
            own.copy_within(within + 1..to, within);
            own[to - 1] = element;
        }
    }

    /// The elements from one with this key on.
    pub(crate) fn from(&self, key: T::Key) -> impl DoubleEndedIterator<Item = &T> {
        self.between(self.spot(key), Spot { row: self.rows.len(), within: 0 })
    }

    /// The elements from one with this key on, below the other.
    pub(crate) fn range(&self, keys: Range<T::Key>) -> impl DoubleEndedIterator<Item = &T> {
        let (from, to) = (self.spot(keys.start), self.spot(keys.end.max(keys.start)));
        self.between(from, to)
    }

    fn between(&self, from: Spot, to: Spot) -> impl DoubleEndedIterator<Item = &T> {
        let of = |row: usize| self.rows.get(row).map_or(&[][..], Vec::as_slice);
        let (first, last, rows) = match from.row == to.row {
            true => (&of(from.row)[from.within..to.within], &[][..], &[][..]),
            false => {
                let rows = &self.rows[from.row + 1..to.row];
                (&of(from.row)[from.within..], &of(to.row)[..to.within], rows)
            }
        };
        first.iter().chain(rows.iter().flatten()).chain(last)
    }

    /// The first element from a key on that satisfies `is_wanted`, unless `is_end` holds for one before it. A
    /// loop that takes half of the instructions of [`from`](Self::from): each miss runs it.
    #[inline]
    pub(crate) fn find_from(
        &self,
        key: T::Key,
        is_end: impl Fn(&T) -> bool,
        is_wanted: impl Fn(&T) -> bool,
    ) -> Option<&T> {
        let Spot { mut row, mut within } = self.spot(key);
        loop {
            for own in &self.rows.get(row)?[within..] {
                if is_end(own) {
                    return None;
                }
                if is_wanted(own) {
                    return Some(own);
                }
            }
            (row, within) = (row + 1, 0);
        }
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.rows.iter().flatten()
    }

    pub(crate) fn last(&self) -> Option<&T> {
        self.rows.last()?.last()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.iter().all(Vec::is_empty)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Pair(u16, u64);

    impl Keyed for Pair {
        type Key = u16;

        fn key(&self) -> u16 {
            self.0
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

        /// Against a sorted map of the standard library. Each element that comes goes if it is there.
        #[test]
        fn rows_are_a_sorted_map(
            keys in prop::collection::vec(0..400_u16, 1..2000),
            asked in prop::collection::vec((0..410_u16, 0..410_u16), 16),
        ) {
            let (mut rows, mut map) = (Rows::default(), BTreeMap::new());
            for (step, key) in keys.into_iter().enumerate() {
                match map.remove(&key) {
                    // Some are put back under another key, near or far.
                    Some(value) if step % 4 == 0 => {
                        let other = (key ^ step as u16) % 400;
                        if map.contains_key(&other) {
                            map.insert(key, value);
                        } else {
                            rows.replace(key, Pair(other, value));
                            map.insert(other, value);
                        }
                    }
                    Some(value) => prop_assert_eq!(rows.remove(key), Pair(key, value)),
                    // More come than go in the first half, and more go in the second.
                    None if step < 1000 || step % 8 == 0 => {
                        rows.insert(Pair(key, step as u64));
                        map.insert(key, step as u64);
                    }
                    None => {}
                }
                prop_assert_eq!(rows.is_empty(), map.is_empty());
                prop_assert_eq!(rows.last().map(Keyed::key), map.keys().next_back().copied());
            }
            let is_tidy = |row: &Vec<Pair>| (1..=ROW).contains(&row.len());
            prop_assert!(rows.rows.len() <= 1 || rows.rows.iter().all(is_tidy));
            let pair = |(key, value): (&u16, &u64)| Pair(*key, *value);
            for (low, high) in asked {
                let ours = |own: Option<&Pair>| own.copied();
                prop_assert_eq!(ours(rows.get(low)), map.get_key_value(&low).map(pair));
                prop_assert_eq!(ours(rows.at_or_below(low)), map.range(..=low).next_back().map(pair));
                prop_assert!(rows.from(low).copied().eq(map.range(low..).map(pair)));
                prop_assert!(rows.from(low).rev().copied().eq(map.range(low..).rev().map(pair)));
                let found = rows.find_from(low, |own| own.0 >= high, |own| own.0 % 7 == 0);
                let end = high.max(low);
                let wanted = map.range(low..end).map(pair).find(|own| own.0 % 7 == 0);
                prop_assert_eq!(ours(found), wanted);
                prop_assert!(rows.range(low..high).copied().eq(map.range(low..end).map(pair)));
                prop_assert!(
                    rows.range(low..high).rev().copied().eq(map.range(low..end).rev().map(pair))
                );
                if let Some(own) = rows.get_mut(low) {
                    own.1 += 1;
                    map.entry(low).and_modify(|own| *own += 1);
                }
            }
            prop_assert!(rows.iter().copied().eq(map.iter().map(pair)));
            for key in map.keys() {
                rows.remove(*key);
            }
            prop_assert!(rows.is_empty());
        }
    }
}

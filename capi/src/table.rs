//! A hash table whose values carry their keys.
//!
//! Open addressing with linear probing; a removal closes the gap that it makes, so that there are no
//! tombstones, and a value that comes and goes neither allocates nor lets the table age. A slot is one
//! `Option<T>`, as large as `T` where `T` has a niche.

/// A value with a key of its own, which does not change while the value is in a table.
pub(crate) trait Keyed {
    /// The key.
    fn key(&self) -> u64;
}

/// Spreads keys, which are multiples of large powers of two, over all bits.
#[inline]
pub(crate) fn spread(key: u64) -> u64 {
    // 2^64 by the golden ratio. The high half of the product depends on every bit of the key; it is
    // folded down, because the slots are counted by the low bits.
    let product = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}

/// The smallest table that holds anything.
const SMALLEST: usize = 8;

/// A table. An empty one that never held a value takes no memory.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// None, or a power of two.
    slots: Box<[Option<T>]>,
    len: usize,
}

impl<T: Keyed> Table<T> {
    pub(crate) fn new() -> Table<T> {
        Table { slots: Box::new([]), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where the search for a key begins. Not to be called without slots.
    #[inline]
    fn start(&self, key: u64) -> usize {
        spread(key) as usize & (self.slots.len() - 1)
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.start(key);
        // There is always an empty slot.
        while let Some(value) = &self.slots[at] {
            if value.key() == key {
                return Some(at);
            }
            at = self.next(at);
        }
        None
    }

    /// The value of a key.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        self.find(key).and_then(|at| self.slots[at].as_ref())
    }

    /// Puts a value in; gives back the one that had its key.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Option<T> {
        // At most three quarters full.
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            self.resize((self.slots.len() * 2).max(SMALLEST));
        }
        let mut at = self.start(value.key());
        while let Some(other) = &self.slots[at] {
            if other.key() == value.key() {
                return self.slots[at].replace(value);
            }
            at = self.next(at);
        }
        self.slots[at] = Some(value);
        self.len += 1;
        None
    }

    /// Takes a key's value out.
    #[inline]
    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        let mut gap = self.find(key)?;
        let removed = self.slots[gap].take();
        self.len -= 1;
        let mut at = self.next(gap);
        while let Some(value) = &self.slots[at] {
            // A value moves back into the gap unless its search begins behind the gap.
            let from_start = at.wrapping_sub(self.start(value.key())) & (self.slots.len() - 1);
            let from_gap = at.wrapping_sub(gap) & (self.slots.len() - 1);
            if from_start >= from_gap {
                self.slots[gap] = self.slots[at].take();
                gap = at;
            }
            at = self.next(at);
        }
        removed
    }

    /// Takes all values out.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        self.len = 0;
        let slots = std::mem::take(&mut self.slots);
        slots.into_iter().flatten().collect()
    }

    #[cold]
    fn resize(&mut self, capacity: usize) {
        let slots = (0..capacity).map(|_| None).collect();
        let old = std::mem::replace(&mut self.slots, slots);
        self.len = 0;
        for value in old.into_iter().flatten() {
            self.insert(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Debug, PartialEq, Eq)]
    struct Named(u64, u32);

    impl Keyed for Named {
        fn key(&self) -> u64 {
            self.0
        }
    }

    /// What the table must do, done by the standard library's map.
    #[test]
    fn it_is_a_map() {
        let (mut table, mut map) = (Table::new(), BTreeMap::new());
        let mut seed = 0x1234_5678_9abc_def1_u64;
        for step in 0..200_000_u32 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            // Few keys, like addresses, so that they meet; now and then the table runs empty.
            let key = 0x7f00_0000_0000 + (seed >> 20) % 300 * 256;
            let inserts = seed % 8 < if step / 5_000 % 2 == 0 { 5 } else { 2 };
            if inserts {
                let old = table.insert(Named(key, step));
                assert_eq!(old.map(|named| named.1), map.insert(key, step));
            } else {
                assert_eq!(table.remove(key).map(|named| named.1), map.remove(&key));
            }
            assert_eq!(table.len(), map.len());
            assert_eq!(table.get(key).map(|named| named.1), map.get(&key).copied());
        }
        assert!(map.len() > 20, "{} keys left to look at", map.len());
        for (&key, &step) in &map {
            assert_eq!(table.get(key), Some(&Named(key, step)));
        }
        let mut left = table.drain();
        left.sort_by_key(|named| named.0);
        assert!(left.iter().map(|named| (named.0, named.1)).eq(map));
        assert_eq!((table.len(), table.get(0x7f00_0000_0000)), (0, None));
    }

    #[test]
    fn what_comes_and_goes_takes_no_more_room() {
        let mut table = Table::new();
        for round in 0..10_000 {
            let key = round * 256;
            table.insert(Named(key, 0));
            assert!(table.remove(key).is_some());
        }
        assert_eq!((table.slots.len(), size_of::<Option<Named>>()), (SMALLEST, 24));
    }
}

//! Free blocks that wait, on shelves by what they wait for first.

use super::free_list::{Entry, FreeList};
use crate::order::{Epoch, FreePoint, TimelineId};
use crate::rows::{Keyed, Rows};

/// All shelves that have a block.
#[derive(Debug, Default)]
pub(crate) struct Shelves {
    by_point: Rows<Slot>,
    all: Vec<Shelf>,
    /// Those that are empty: kept, with the room that their lists have.
    unused: Vec<u32>,
    /// Counts the shelves in use so far.
    begun: u64,
    /// The shelf that was looked for last: most often the next one, too.
    recent: Option<Slot>,
}

/// The free blocks that wait for one free point.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    /// When it got its first block, counted in shelves: a lower number was freed earlier.
    pub(crate) since: u64,
    /// All that is on it.
    pub(crate) bytes: u64,
    /// Those that wait for nothing else.
    pub(crate) single: FreeList,
    /// Those that wait for others as well.
    pub(crate) mixed: FreeList,
}

/// Where the shelf of a free point is.
#[derive(Clone, Copy, Debug)]
struct Slot {
    point: FreePoint,
    shelf: u32,
}

impl Keyed for Slot {
    type Key = u128;

    fn key(&self) -> u128 {
        rank(self.point)
    }
}

/// A free point as one number: by timeline, then by epoch.
fn rank(FreePoint { timeline, epoch }: FreePoint) -> u128 {
    u128::from(timeline.get()) << u64::BITS | u128::from(epoch.get())
}

impl Shelf {
    /// The blocks that wait for the shelf's free point alone, or those that wait for others as well.
    fn list(&mut self, is_single: bool) -> &mut FreeList {
        if is_single { &mut self.single } else { &mut self.mixed }
    }

    /// Everything on it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.single.iter().chain(self.mixed.iter())
    }

    /// The size of the largest block, in bytes.
    pub(crate) fn largest(&self) -> u64 {
        self.single.largest().max(self.mixed.largest())
    }
}

impl Shelves {
    /// Puts a block on the shelf of the first of its free points.
    pub(crate) fn insert(&mut self, point: FreePoint, is_single: bool, entry: Entry) {
        let slot = match self.find(point) {
            Some(slot) => slot,
            None => self.begin(point),
        };
        let shelf = &mut self.all[slot.shelf as usize];
        shelf.bytes += entry.bytes();
        shelf.list(is_single).insert(entry);
    }

    /// Takes a block off the shelf of the first of its free points.
    pub(crate) fn remove(&mut self, point: FreePoint, is_single: bool, entry: Entry) {
        let slot = self.find(point).expect("a pending block is on its shelf");
        let shelf = &mut self.all[slot.shelf as usize];
        shelf.bytes -= entry.bytes();
        shelf.list(is_single).remove(entry);
        if shelf.single.is_empty() && shelf.mixed.is_empty() {
            self.by_point.remove(rank(point));
            self.unused.push(slot.shelf);
            self.recent = None;
        }
    }

    /// Takes one block off a shelf, and puts another on it.
    pub(crate) fn replace(&mut self, point: FreePoint, is_single: bool, entry: Entry, by: Entry) {
        let slot = self.find(point).expect("a pending block is on its shelf");
        let shelf = &mut self.all[slot.shelf as usize];
        shelf.bytes = shelf.bytes - entry.bytes() + by.bytes();
        shelf.list(is_single).replace(entry, by);
    }

    fn find(&mut self, point: FreePoint) -> Option<Slot> {
        if self.recent.is_none_or(|own| own.point != point) {
            self.recent = Some(*self.by_point.get(rank(point))?);
        }
        self.recent
    }

    #[cold]
    fn begin(&mut self, point: FreePoint) -> Slot {
        let shelf = self.unused.pop().unwrap_or_else(|| {
            self.all.push(Shelf::default());
            u32::try_from(self.all.len() - 1).expect("fewer shelves than blocks")
        });
        self.begun += 1;
        self.all[shelf as usize].since = self.begun;
        let slot = Slot { point, shelf };
        self.by_point.insert(slot);
        slot
    }

    /// Every shelf with what it waits for, the epochs of a timeline in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FreePoint, &Shelf)> {
        self.by_point.iter().map(|slot| (slot.point, self.shelf(slot)))
    }

    /// The shelves that wait for a timeline up to an epoch, in order.
    pub(crate) fn up_to(&self, timeline: TimelineId, epoch: Epoch) -> impl Iterator<Item = &Shelf> {
        let first = FreePoint { timeline, epoch: Epoch::NONE };
        let is_of =
            move |slot: &&Slot| slot.point.timeline == timeline && slot.point.epoch <= epoch;
        self.by_point.from(rank(first)).take_while(is_of).map(|slot| self.shelf(slot))
    }

    /// The first shelf from a timeline on.
    pub(crate) fn first_from(&self, timeline: TimelineId) -> Option<FreePoint> {
        let first = FreePoint { timeline, epoch: Epoch::NONE };
        self.by_point.from(rank(first)).next().map(|slot| slot.point)
    }

    fn shelf(&self, slot: &Slot) -> &Shelf {
        &self.all[slot.shelf as usize]
    }
}

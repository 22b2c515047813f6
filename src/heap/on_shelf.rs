//! Free blocks get on their shelf and off it, and every account that follows from that.

use super::free_list::Entry;
use super::{BlockId, Heap, Placed};
use crate::fault::seeded;
use crate::order::FreePoint;

/// A free block where it lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnShelf {
    /// What it waits for first, and whether for nothing else; none of a clean one.
    point: Option<FreePoint>,
    is_single: bool,
    entry: Entry,
}

impl Heap {
    pub(super) fn shelve(&mut self, id: BlockId) {
        self.put_on(self.on_shelf(id));
    }

    pub(super) fn unshelve(&mut self, id: BlockId) {
        self.take_off(self.on_shelf(id));
    }

    /// Where a free block lies, or is to lie.
    pub(super) fn on_shelf(&self, id: BlockId) -> OnShelf {
        let block = self.blocks.get(id);
        let entry = Entry::new(block.part, block.bytes, block.address, id);
        match block.stamps.points() {
            [] => OnShelf { point: None, is_single: true, entry },
            [first, others @ ..] => {
                OnShelf { point: Some(*first), is_single: others.is_empty(), entry }
            }
        }
    }

    pub(super) fn put_on(&mut self, own: OnShelf) {
        self.note_put_on(&own);
        match own.point {
            None => self.clean.insert(own.entry),
            Some(point) => self.pending.insert(point, own.is_single, own.entry),
        }
    }

    pub(super) fn take_off(&mut self, own: OnShelf) {
        self.note_taken_off(&own);
        match own.point {
            None => self.clean.remove(own.entry),
            Some(point) => self.pending.remove(point, own.is_single, own.entry),
        }
    }

    /// Takes one block off its shelf and puts another on its own, which is the same most often.
    pub(super) fn exchange(&mut self, was: OnShelf, own: OnShelf) {
        if (was.point, was.is_single) != (own.point, own.is_single) {
            self.take_off(was);
            return self.put_on(own);
        }
        self.note_taken_off(&was);
        self.note_put_on(&own);
        match own.point {
            None => self.clean.replace(was.entry, own.entry),
            Some(point) => self.pending.replace(point, own.is_single, was.entry, own.entry),
        }
    }

    fn note_put_on(&mut self, own: &OnShelf) {
        let (address, bytes, id) = (own.entry.address(), own.entry.bytes(), own.entry.id());
        match own.point {
            None => self.bytes.clean += bytes,
            Some(_) => self.bytes.pending += bytes,
        }
        if self.may_move(own) {
            self.clean_at.insert(Placed { address, id });
        }
    }

    fn note_taken_off(&mut self, own: &OnShelf) {
        let (address, bytes) = (own.entry.address(), own.entry.bytes());
        match own.point {
            None => self.bytes.clean -= bytes,
            Some(_) => self.bytes.pending -= bytes,
        }
        if self.may_move(own) {
            self.clean_at.remove(address);
        }
    }

    /// Whether a free block is clean, and can have a whole piece of memory behind it.
    fn may_move(&self, own: &OnShelf) -> bool {
        let is_clean = own.point.is_none() || seeded!(TrimWithoutCompletion);
        is_clean && self.unit > 0 && own.entry.bytes() >= self.unit
    }
}

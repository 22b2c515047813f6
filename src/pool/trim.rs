//! Memory that goes back to the device.

use super::PoolCore;
use super::ask::Asked;
use super::central::Central;
use super::pieces::Leaving;
use crate::backend::Backend;
use crate::error::Error;
use crate::heap::Unused;
use crate::history::Action;
use crate::sync::host;
use crate::tell::{self, Kind, Told};

impl<B: Backend> PoolCore<B> {
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
        let (segments, pieces) = self.central.lock().take_excess(keep);
        *returned += (segments.len() + pieces.len()) as u64;
        let (mut given, mut result) = self.destroy(pieces);
        for segment in segments {
            let bytes = segment.bytes;
            match self.free_segment(segment) {
                Ok(()) => given += bytes,
                Err(error) => result = Err(error),
            }
        }
        if given > 0 {
            self.exhausted.store(false, host::Ordering::Relaxed);
            self.note_own(Action::Trim { bytes: given });
            tell::later(Kind::Usual, || {
                let reserved = self.central.lock().reserved();
                Told::Trim { pool: self.id.0, bytes: given, reserved }
            });
        }
        result.map(|()| given)
    }

    fn free_segment(&self, unused: Unused) -> Result<(), Error> {
        let (address, bytes) = (unused.address, unused.bytes);
        // SAFETY: the heap gives a whole plain segment, clean: its last use has completed, and it is in
        // transit, so that nobody uses it meanwhile.
        let free = |own: &B| unsafe { own.free_segment(address, bytes) };
        let went = self.driver.memory("give a segment back", free);
        let mut central = self.central.lock();
        let central = &mut *central;
        central.returns += 1;
        match went {
            Ok(()) => central.heap.forget_unused(unused),
            Err(_) => central.heap.keep_unused(unused, &central.timelines),
        }
        went
    }
}

impl<B: Backend> Central<B> {
    /// Takes out what is reserved beyond `keep` bytes, as far as it is clean: plain segments, and pieces,
    /// of which those that are behind no block go first.
    fn take_excess(&mut self, keep: u64) -> (Vec<Unused>, Vec<Leaving<B::Granule>>) {
        self.settle();
        let excess = self.reserved().saturating_sub(keep);
        let segments = self.heap.take_unused(excess);
        let excess = excess - segments.iter().map(|own| own.bytes).sum::<u64>().min(excess);
        let mut unused = Vec::new();
        let mut total = self.pieces.parked_bytes();
        for (range, _) in self.clean_pieces() {
            if total >= excess {
                break;
            }
            total += range.end - range.start;
            unused.push(range);
        }
        unused.into_iter().for_each(|range| self.vacate(range));
        let pieces = self.pieces.take_parked(excess);
        self.returning += pieces.iter().map(|own| own.bytes).sum::<u64>();
        (segments, pieces)
    }
}

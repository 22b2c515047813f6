//! The memory verbs: what they change, what they cost, and what the oracle says to them.
#![forbid(unsafe_code)]

use super::clock::TimelineId;
use super::counts::Call;
use super::error::SimErrorCode as Code;
use super::memory::Piece;
use super::state::State;

impl State {
    /// Reports a call that the driver's rules forbid.
    pub(super) fn checked(&mut self, result: Result<(), Code>, words: &str) -> Result<(), Code> {
        if result.is_err() {
            self.oracle.misuse(words.to_owned());
        }
        result
    }

    pub(super) fn alloc_segment(&mut self, context: usize, bytes: u64) -> Result<u64, Code> {
        let address = self.memory.alloc_segment(context, bytes)?;
        self.engine.now += self.costs.sized(Call::AllocSegment, bytes);
        Ok(address)
    }

    pub(super) fn free_segment(
        &mut self,
        context: usize,
        address: u64,
        bytes: u64,
    ) -> Result<(), Code> {
        if !self.memory.is_segment(context, address, bytes) {
            let words = format!("free of {address:#x}+{bytes}, which is no segment");
            return self.checked(Err(Code::InvalidValue), &words);
        }
        self.engine.now += self.costs.sized(Call::FreeSegment, bytes);
        self.check_taken_away(context, address, bytes);
        let gone = self.memory.free_segment(address);
        self.oracle.owners.remove(&(address..address + bytes));
        self.oracle.uses.forget(&gone);
        self.oracle.contents.remove(&gone);
        self.oracle.shifts.remove(&gone);
        Ok(())
    }

    pub(super) fn set_access(
        &mut self,
        address: u64,
        bytes: u64,
        devices: u64,
    ) -> Result<(), Code> {
        let whole = self.memory.check_whole_granules(address, bytes);
        self.checked(whole, "set access of what is not whole mapped granules")?;
        self.engine.now += self.costs.sized(Call::SetAccess, bytes);
        self.memory.set_access(address, bytes, devices);
        Ok(())
    }

    pub(super) fn unmap(&mut self, context: usize, address: u64, bytes: u64) -> Result<(), Code> {
        let whole = self.memory.check_whole_granules(address, bytes);
        self.checked(whole, "unmap of what is not whole mapped granules")?;
        self.engine.now += self.costs.sized(Call::Unmap, bytes);
        self.check_taken_away(context, address, bytes);
        self.memory.unmap(address, bytes);
        self.oracle.owners.remove(&(address..address + bytes));
        Ok(())
    }

    fn check_taken_away(&mut self, context: usize, address: u64, bytes: u64) {
        if !self.check {
            return;
        }
        let submitted = self.engine.submitted;
        let legacy: TimelineId = self.contexts[context].legacy;
        self.for_each_piece(legacy, address, bytes, |state, piece: Piece| {
            state.oracle.check_taken_away(&piece, submitted);
        });
    }

    pub(super) fn destroy_granule(&mut self, index: usize, bytes: u64) -> Result<(), Code> {
        let gone = match self.memory.destroy_granule(index) {
            Ok(gone) => gone,
            Err(code) => {
                return self.checked(Err(code), "destroy of a granule that is mapped, or is gone");
            }
        };
        self.engine.now += self.costs.sized(Call::DestroyGranule, bytes);
        self.oracle.uses.forget(&gone);
        self.oracle.contents.remove(&gone);
        self.oracle.shifts.remove(&gone);
        Ok(())
    }

    pub(super) fn destroy_event(&mut self, index: usize) {
        if let Some(context) = self.events.destroy(index) {
            self.contexts[context].events -= 1;
        }
    }
}

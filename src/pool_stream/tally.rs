//! What scopes learn from a stream: how much was freed on it in each of them.
//!
//! A free counts itself once, as always; it does nothing more for a scope than compare one number. A
//! stream remembers whose frees its counter is counting now, and from where on. When somebody else's
//! turn comes, the difference goes to the account of the scope that it belongs to.

use crate::quiescent::ScopeId;

/// A number of buffers, and the bytes of their blocks. Sums of all that ever came or went, so that they
/// wrap; differences are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) buffers: u64,
    pub(crate) bytes: u64,
}

impl Tally {
    /// Counts one more buffer.
    #[inline]
    pub(crate) fn add_one(&mut self, bytes: u64) {
        self.buffers = self.buffers.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(bytes);
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.buffers = self.buffers.wrapping_add(other.buffers);
        self.bytes = self.bytes.wrapping_add(other.bytes);
    }

    /// What has come since it was `earlier`.
    #[inline]
    pub(crate) fn since(self, earlier: Tally) -> Tally {
        Tally {
            buffers: self.buffers.wrapping_sub(earlier.buffers),
            bytes: self.bytes.wrapping_sub(earlier.bytes),
        }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.buffers == 0
    }
}

/// The accounts of the scopes that buffers of one stream were freed in.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Where the stream's counter of frees stood when the present scope's turn began.
    since: Tally,
    /// What earlier turns have counted, for scopes that have not ended; none is empty.
    past: Vec<(ScopeId, Tally)>,
}

impl Accounts {
    /// The turn of `scope`, or nobody's, ends and another begins, with the stream's counter at `freed`.
    pub(super) fn turn(&mut self, scope: ScopeId, freed: Tally) {
        let tally = self.end_turn(freed);
        if scope.is_some() && !tally.is_empty() {
            match self.past.iter_mut().find(|own| own.0 == scope) {
                Some(own) => own.1.add(tally),
                None => self.past.push((scope, tally)),
            }
        }
    }

    /// What was counted in the turn that ends.
    #[inline]
    pub(super) fn end_turn(&mut self, freed: Tally) -> Tally {
        let tally = freed.since(self.since);
        self.since = freed;
        tally
    }

    /// A buffer has left the stream without being freed.
    pub(super) fn overlook(&mut self, bytes: u64) {
        self.since.add_one(bytes);
    }

    /// Closes the account of a scope, whose last turn gave `turn`.
    #[inline]
    pub(super) fn close(&mut self, scope: ScopeId, mut turn: Tally) -> Tally {
        if let Some(at) = self.past.iter().position(|own| own.0 == scope) {
            turn.add(self.past.swap_remove(at).1);
        }
        turn
    }

    /// Closes them all.
    pub(super) fn close_all(&mut self) -> Vec<(ScopeId, Tally)> {
        std::mem::take(&mut self.past)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn tally(buffers: u64, bytes: u64) -> Tally {
        Tally { buffers, bytes }
    }

    #[test]
    fn each_scope_gets_what_was_counted_in_its_turns() {
        let (first, second) = (ScopeId::fresh(), ScopeId::fresh());
        let mut accounts = Accounts::default();
        let mut freed = tally(u64::MAX, u64::MAX - 100);
        accounts.turn(ScopeId::NONE, freed);
        freed.add_one(256);
        freed.add_one(512);
        accounts.turn(first, freed);
        freed.add_one(1024);
        // Moved to another stream.
        freed.add_one(2048);
        accounts.overlook(2048);
        accounts.turn(second, freed);
        freed.add_one(4096);
        accounts.turn(first, freed);
        freed.add_one(1 << 20);
        accounts.turn(ScopeId::NONE, freed);
        freed.add_one(8);
        let turn = accounts.end_turn(freed);
        assert_eq!(accounts.close(first, turn), tally(4, 256 + 512 + 4096 + 8));
        assert_eq!(accounts.close(first, tally(0, 0)), tally(0, 0));
        assert_eq!(accounts.close_all(), [(second, tally(1, 1024))]);
    }
}

//! Which devices may use this one's memory, as the backend is told.

use super::Driver;
use crate::backend::Backend;
use crate::error::Error;
use crate::sync::{Arc, assert_no_lock_held, host};

const SET_ACCESS: &str = "make granules accessible";

impl<B: Backend> Driver<B> {
    /// Gives the device of another driver access to this one's memory, to plain segments if they are wanted.
    pub(crate) fn allow_peer(&self, peer: &Driver<B>, segments: bool) -> Result<(), Error> {
        self.call_with(peer, "give a peer access", &self.calls.memory_calls, |own| {
            own.allow_peer(&peer.backend, segments)
        })
    }

    /// Makes mapped granules accessible to this device and its peers. Those that are lost are left out, also
    /// where this call is the first to meet that: they use nothing any more.
    ///
    /// # Safety
    ///
    /// As for [`Backend::set_access`].
    pub(crate) unsafe fn set_access(
        &self,
        address: u64,
        bytes: u64,
        peers: &[Arc<Driver<B>>],
    ) -> Result<(), Error> {
        loop {
            let well: Vec<&Driver<B>> =
                peers.iter().map(|peer| &**peer).filter(|peer| peer.lost().is_none()).collect();
            let backends: Vec<&B> = well.iter().map(|peer| &peer.backend).collect();
            assert_no_lock_held();
            self.calls.memory_calls.fetch_add(1, host::Ordering::Relaxed);
            // SAFETY: the caller's promise is the backend's condition.
            let set = unsafe { self.backend.set_access(address, bytes, &backends) };
            let error = match (set, &well[..]) {
                (Ok(()), _) => return Ok(()),
                (Err(error), []) => self.sort(SET_ACCESS, error),
                (Err(error), peers) => self.sort_among(peers.iter().copied(), SET_ACCESS, error),
            };
            if self.lost().is_some() || well.iter().all(|peer| peer.lost().is_none()) {
                return Err(error);
            }
        }
    }
}

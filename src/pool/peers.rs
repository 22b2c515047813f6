//! Which other devices may use a pool's memory.

use super::{Driver, PoolCore, StreamPool};
use crate::backend::{Backend, ErrorKind};
use crate::error::{Error, Reason};
use crate::fault::seeded;
use crate::pool_stream::core::StreamCore;
use crate::sync::Arc;

/// The devices that a pool gives access to its memory when it is built.
pub(crate) struct Peers<B: Backend> {
    /// By their pools.
    pub(crate) pools: Vec<StreamPool<B>>,
    /// By themselves.
    pub(crate) devices: Vec<Arc<Driver<B>>>,
    /// Those that are passed over if they cannot have it.
    pub(crate) where_possible: Vec<Arc<Driver<B>>>,
    /// Pools of some of these devices, to be known and no more.
    pub(crate) known: Vec<StreamPool<B>>,
}

impl<B: Backend> Default for Peers<B> {
    fn default() -> Self {
        let (pools, known) = (Vec::new(), Vec::new());
        Peers { pools, devices: Vec::new(), where_possible: Vec::new(), known }
    }
}

impl<B: Backend> PoolCore<B> {
    /// Gives the devices access, each once. The pool has no memory yet.
    pub(super) fn give_access(&mut self, peers: &Peers<B>) -> Result<(), Error> {
        let pools = peers.pools.iter().map(|pool| &pool.core().driver);
        let needed = pools.chain(&peers.devices).map(|driver| (driver, true));
        for (driver, needed) in needed.chain(peers.where_possible.iter().map(|own| (own, false))) {
            if self.has_access(driver.context_id()) {
                continue;
            }
            let segments = self.granularity().is_none() && !seeded!(SegmentsClosed);
            match self.driver.allow_peer(driver, segments) {
                Ok(()) => self.peers.push(Arc::clone(driver)),
                Err(error) if !needed && self.goes_without(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether it is the other device that cannot have access, now or for good.
    fn goes_without(&self, error: &Error) -> bool {
        match error.driver_kind() {
            Some(ErrorKind::Other) => true,
            Some(ErrorKind::DeviceLost) => self.driver.lost().is_none(),
            _ => false,
        }
    }

    /// Whether the streams of a context may use this pool's memory.
    fn has_access(&self, context: u64) -> bool {
        let is = |driver: &Arc<Driver<B>>| driver.context_id() == context;
        is(&self.driver) || self.peers.iter().any(is)
    }

    /// Whether a stream's device has access to this pool's memory.
    pub(super) fn check_access(&self, other: &StreamCore<B>) -> Result<(), Error> {
        if self.has_access(other.identity.context) || seeded!(NoAccessCheck) {
            Ok(())
        } else {
            Err(Error::new(Reason::NoPeerAccess))
        }
    }

    /// From now on streams are looked for among these pools' registrations, and among this one's where its
    /// device may use theirs.
    #[cfg(feature = "cuda")]
    pub(super) fn know_pools(self: &Arc<Self>, peers: &Peers<B>) {
        for pool in peers.pools.iter().chain(&peers.known) {
            self.peer_pools.lock().push(Arc::downgrade(pool.core()));
            if pool.core().has_access(self.driver.context_id()) {
                let mut known = pool.core().peer_pools.lock();
                // Pools of a device come and go: those that are gone are not kept in mind.
                known.retain(|own| own.strong_count() > 0);
                known.push(Arc::downgrade(self));
            }
        }
    }
}

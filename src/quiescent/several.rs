//! One scope on each of several pools, opened and ended together.

use std::fmt;

use super::{QuiescentReport, QuiescentScope, ScopeId};
use crate::backend::Backend;
use crate::error::Error;
use crate::fault::seeded;
use crate::pool::StreamPool;
use crate::sync::Arc;

/// The scopes of several pools, as [`StreamPool::quiesce_all`] has opened them: one for each pool.
///
/// What holds for a [`QuiescentScope`] holds for each of them, and for each of its own pool alone: a scope
/// of one device excuses nothing on another. It belongs to its thread, as they do.
#[must_use = "the scopes end when this is dropped"]
pub struct QuiescentScopes<B: Backend> {
    scopes: Vec<QuiescentScope<B>>,
}

impl<B: Backend> StreamPool<B> {
    /// Waits once for everything that was submitted to the devices of all of these pools, one after the
    /// other, and opens a scope on each, as [`quiesce`](Self::quiesce) does on one. What was freed before
    /// is clean then, also where streams of several of these devices have used it.
    ///
    /// A pool that is named twice gets two scopes, of which the later one counts its frees.
    ///
    /// # Errors
    ///
    /// As for [`quiesce`](Self::quiesce), for the first pool that cannot be waited for. No scope is open
    /// then on any of them, and nothing counts as finished that was not seen to finish.
    ///
    /// ```
    /// # use streampool::{StreamPool, sim::SimDevice};
    /// let [zero, one] = SimDevice::several(1, 2).try_into().unwrap();
    /// let (first, second) = (StreamPool::new(zero.clone()), StreamPool::new(one.clone()));
    /// let (a, b) = (first.stream(zero.create_stream())?, second.stream(one.create_stream())?);
    /// let (x, y) = (a.alloc(4096)?, b.alloc(4096)?);
    /// let scopes = StreamPool::quiesce_all(&[&first, &second])?;
    /// drop((x, y));
    /// let reports = scopes.finish();
    /// assert!(reports.iter().all(|report| (report.freed, report.clean) == (1, 1)));
    /// # Ok::<(), streampool::Error>(())
    /// ```
    pub fn quiesce_all(pools: &[&StreamPool<B>]) -> Result<QuiescentScopes<B>, Error> {
        if seeded!(ScopesLeftOpen) {
            let mut scopes = Vec::new();
            for pool in pools {
                match pool.quiesce() {
                    Ok(scope) => scopes.push(scope),
                    Err(error) => {
                        scopes.into_iter().for_each(std::mem::forget);
                        return Err(error);
                    }
                }
            }
            return Ok(QuiescentScopes { scopes });
        }
        // Until all of them have been waited for there is no scope that an error would have to end.
        let mut ready = Vec::with_capacity(pools.len());
        for pool in pools {
            pool.core().prefetch_streams();
            let call = pool.core().begin_blocking_call()?;
            let scope = ScopeId::fresh();
            pool.core().quiesce_streams(Some(scope))?;
            ready.push((call, pool.core(), scope));
        }
        let open = |(_call, core, scope)| QuiescentScope::open(Arc::clone(core), scope);
        Ok(QuiescentScopes { scopes: ready.into_iter().map(open).collect() })
    }
}

impl<B: Backend> QuiescentScopes<B> {
    /// Ends the scopes, and says of each what became of the buffers freed in it, in the order in which the
    /// pools were named. Errors as for [`QuiescentScope::finish`].
    pub fn finish(self) -> Vec<QuiescentReport> {
        self.scopes.into_iter().map(QuiescentScope::finish).collect()
    }
}

impl<B: Backend> fmt::Debug for QuiescentScopes<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.scopes).finish()
    }
}

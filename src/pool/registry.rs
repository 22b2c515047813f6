//! The registered streams of a pool.

use std::collections::BTreeMap;

#[cfg(feature = "cuda")]
use super::ordering::Pin;
use super::{PoolCore, StreamPool};
#[cfg(feature = "cuda")]
use crate::backend::StreamKind;
use crate::backend::{Backend, StreamIdentity};
use crate::fault::seeded;
use crate::order::TimelineId;
use crate::pool_stream::core::{Detours, StreamCore};
use crate::pool_stream::{PoolStream, StreamHandle};
use crate::sync::{Arc, Weak};

/// The streams that have not left the pool.
pub(super) struct Registry<B: Backend> {
    by_timeline: BTreeMap<TimelineId, Registered<B>>,
    /// The live registration of each stream. A handle names its stream because the registration holds
    /// the stream; one that is leaving is not here.
    by_identity: BTreeMap<StreamIdentity, TimelineId>,
    /// All streams, for those who walk them; made anew when somebody walks after a change.
    walk: Option<Arc<[Arc<StreamCore<B>>]>>,
    /// Ladders that keep every list shut.
    ladders: u64,
}

struct Registered<B: Backend> {
    core: Arc<StreamCore<B>>,
    handle: Weak<StreamHandle<B>>,
}

impl<B: Backend> Registry<B> {
    pub(super) fn new() -> Registry<B> {
        Registry {
            by_timeline: BTreeMap::new(),
            by_identity: BTreeMap::new(),
            walk: None,
            ladders: 0,
        }
    }

    pub(super) fn get(&self, id: TimelineId) -> Option<&Arc<StreamCore<B>>> {
        self.by_timeline.get(&id).map(|own| &own.core)
    }

    /// The live registration of the stream that a handle names in a context, of whichever kind it is.
    #[cfg(feature = "cuda")]
    fn named(&self, context: u64, handle: u64) -> Option<&Arc<StreamCore<B>>> {
        let bound = |kind| StreamIdentity { context, handle, kind };
        let kinds = bound(StreamKind::NonBlocking)..=bound(StreamKind::PerThread);
        let (_, id) = self.by_identity.range(kinds).next()?;
        self.get(*id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_timeline.is_empty()
    }

    /// From now on a registration of this stream makes a new timeline.
    pub(super) fn unname(&mut self, core: &StreamCore<B>) {
        if self.by_identity.get(&core.identity) == Some(&core.id) && !seeded!(DeadHandleKey) {
            self.by_identity.remove(&core.identity);
        }
    }

    /// Takes [`unname`](Self::unname) back, unless the stream was registered anew meanwhile.
    pub(super) fn rename(&mut self, core: &StreamCore<B>) {
        self.by_identity.entry(core.identity).or_insert(core.id);
    }

    /// Forgets a stream that has left. The caller drops it outside the lock.
    pub(super) fn remove(&mut self, id: TimelineId) -> Option<Arc<StreamCore<B>>> {
        self.walk = None;
        self.by_timeline.remove(&id).map(|own| own.core)
    }

    /// All streams.
    pub(super) fn streams(&mut self) -> Arc<[Arc<StreamCore<B>>]> {
        let all = || self.by_timeline.values().map(|own| Arc::clone(&own.core)).collect();
        Arc::clone(self.walk.get_or_insert_with(all))
    }
}

/// Registers a stream, or finds it registered; then the given handle of it is not needed.
pub(super) fn register<B: Backend>(
    pool: &StreamPool<B>,
    stream: B::Stream,
    identity: StreamIdentity,
    record_on_free: bool,
) -> (PoolStream<B>, Option<B::Stream>) {
    let mut registry = pool.core().registry.lock();
    if let Some(id) = registry.by_identity.get(&identity) {
        let id = *id;
        let own = registry.by_timeline.get_mut(&id).expect("a named stream is registered");
        return (own.handle(pool), Some(stream));
    }
    let core = Arc::new(StreamCore::new(Arc::clone(pool.core()), stream, identity, record_on_free));
    {
        let mut state = core.state.lock();
        state.shut = registry.ladders;
        state.detours.set(Detours::SHUT, registry.ladders > 0);
    }
    // Before anybody can find the stream: a stamp that names an unknown timeline counts as completed.
    pool.core().central.lock().timelines.insert(Arc::clone(&core.timeline));
    let handle = PoolStream::new(Arc::clone(&core), pool.clone());
    registry.walk = None;
    registry.by_identity.insert(identity, core.id);
    let weak = Arc::downgrade(handle.handle());
    registry.by_timeline.insert(core.id, Registered { core, handle: weak });
    (handle, None)
}

impl<B: Backend> Registered<B> {
    /// The stream's handle: the one that there is, or a new one.
    fn handle(&mut self, pool: &StreamPool<B>) -> PoolStream<B> {
        if let Some(handle) = self.handle.upgrade() {
            return PoolStream::from_handle(handle);
        }
        let handle = PoolStream::new(Arc::clone(&self.core), pool.clone());
        self.handle = Arc::downgrade(handle.handle());
        handle
    }
}

impl<B: Backend> PoolCore<B> {
    /// Calls `look` with all registered streams while none can come or go.
    pub(super) fn with_streams<T>(&self, look: impl FnOnce(&[Arc<StreamCore<B>>]) -> T) -> T {
        let mut registry = self.registry.lock();
        let streams = registry.streams();
        look(&streams)
    }

    /// All registered streams.
    pub(super) fn streams(&self) -> Arc<[Arc<StreamCore<B>>]> {
        self.registry.lock().streams()
    }

    /// Fetches what a walk over all streams is about to read.
    pub(crate) fn prefetch_streams(&self) {
        self.streams().iter().for_each(|core| core.prefetch());
    }

    /// The stream of a timeline, own or foreign, if it has not left its pool.
    pub(super) fn stream_of(&self, id: TimelineId) -> Option<Arc<StreamCore<B>>> {
        let own = self.registry.lock().get(id).cloned();
        own.or_else(|| self.central.lock().foreign.get(&id).and_then(Weak::upgrade))
    }

    /// Finds a stream among the live registrations of this pool, or of its peers for another context,
    /// and counts a call on it. Makes no driver call.
    #[cfg(feature = "cuda")]
    pub(crate) fn find_stream(&self, context: u64, handle: u64) -> Option<Pin<B>> {
        let find = |pool: &PoolCore<B>| {
            let core = pool.registry.lock().named(context, handle).cloned()?;
            core.pin().then(|| Pin { core })
        };
        if context == self.driver.context_id() {
            return find(self);
        }
        let pools = self.peer_pools.lock().clone();
        pools.iter().filter_map(Weak::upgrade).find_map(|pool| find(&pool))
    }

    /// The handle of a stream that a live buffer counts.
    pub(crate) fn handle_of(self: &Arc<Self>, core: &StreamCore<B>) -> PoolStream<B> {
        let pool = self.handle();
        let mut registry = self.registry.lock();
        let own = registry.by_timeline.get_mut(&core.id);
        own.expect("a stream with a live buffer is registered").handle(&pool)
    }

    /// Begins a ladder: from now on every list is shut.
    pub(super) fn shut_lists(&self) -> Arc<[Arc<StreamCore<B>>]> {
        let mut registry = self.registry.lock();
        registry.ladders += 1;
        let streams = registry.streams();
        for core in streams.iter() {
            let mut state = core.state.lock();
            state.shut += 1;
            state.detours.set(Detours::SHUT, !seeded!(ListsOpenInLadder));
        }
        streams
    }

    /// Ends a ladder: lists that no other ladder keeps shut are open again.
    pub(super) fn open_lists(&self) {
        let mut registry = self.registry.lock();
        registry.ladders -= 1;
        for core in registry.streams().iter() {
            let mut state = core.state.lock();
            state.shut -= 1;
            let shut = state.shut > 0;
            state.detours.set(Detours::SHUT, shut);
        }
    }
}

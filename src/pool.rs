//! The pool: who holds what, and the calls that users make.
//!
//! All control flow is here and in the files below: they take decisions from the heap and from `order`
//! under the locks, and call the backend outside them.

mod ask;
mod backing;
mod central;
mod copy;
mod driver;
mod end;
mod foreign;
mod gate;
mod grow;
mod history;
mod ladder;
mod mapping;
mod miss;
mod ordering;
mod peers;
mod pieces;
mod plan;
mod registry;
mod retire;
mod settle;
mod snapshot;
mod steal;
mod tags;
mod target;
mod trim;
#[cfg(feature = "cuda")]
mod uses;

use std::collections::VecDeque;
use std::fmt;

use crate::backend::{Backend, StreamIdentity, StreamKind};
use crate::buffer::Buffer;
use crate::config::{Config, Limit, PoolBuilder};
use crate::error::{Error, Reason};
use crate::fault::seeded;
use crate::heap::BlockId;
use crate::order::{FreePoint, Stamps, TimelineId};
use crate::pool_stream::PoolStream;
use crate::pool_stream::core::{Detours, StreamCore, StreamState};
use crate::pool_stream::home::Home;
use crate::stats::{Stats, Steps};
use crate::sync::{Arc, AtomicUsize, Mutex, Ordering, Weak, host};
use crate::tell;

use central::Central;
pub use driver::DriverCalls;
pub(crate) use driver::{Driver, PooledEvent};
use gate::Gate;
pub(crate) use miss::Step;
pub(crate) use peers::Peers;
use registry::Registry;
#[cfg(feature = "cuda")]
pub(crate) use uses::{Access, User};

/// Tells pools apart; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolId(u64);

impl PoolId {
    fn fresh() -> PoolId {
        static NEXT: host::AtomicU64 = host::AtomicU64::new(1);
        // Relaxed: only that no two pools get the same number matters.
        PoolId(NEXT.fetch_add(1, host::Ordering::Relaxed))
    }
}

/// A stream-ordered memory pool of one device.
///
/// A clone is the same pool. Buffers may outlive it: their memory goes back when the last one is gone.
///
/// ```
/// # use streampool::{StreamPool, sim::SimDevice};
/// let device = SimDevice::new(1);
/// let pool = StreamPool::new(device.clone());
/// let stream = pool.stream(device.create_stream())?;
/// let buffer = stream.alloc(4096)?;
/// assert_eq!(buffer.len(), 4096);
/// assert_eq!(pool.stats().in_use, 4096);
/// # Ok::<(), streampool::Error>(())
/// ```
pub struct StreamPool<B: Backend> {
    handle: Arc<PoolHandle<B>>,
}

/// What the clones of a pool and its streams' handles share: the last one ends the pool.
struct PoolHandle<B: Backend> {
    core: Arc<PoolCore<B>>,
}

/// What the handles, the streams and the buffers of one pool have in common.
pub(crate) struct PoolCore<B: Backend> {
    pub(crate) id: PoolId,
    pub(crate) driver: Arc<Driver<B>>,
    config: Config,
    /// The most that may be reserved, in bytes.
    limit: Option<u64>,
    /// Other devices that have access to this pool's memory, each once.
    peers: Vec<Arc<Driver<B>>>,
    /// Their pools, as far as they are known, to find streams among their registrations.
    #[cfg(feature = "cuda")]
    peer_pools: Mutex<Vec<Weak<PoolCore<B>>>>,
    handle: Mutex<Weak<PoolHandle<B>>>,
    registry: Mutex<Registry<B>>,
    /// The heap's lock.
    central: Mutex<Central<B>>,
    /// Streams that nothing uses any more, to be retired by the next call that may block.
    unused: Mutex<VecDeque<TimelineId>>,
    unused_count: AtomicUsize,
    gate: Gate,
    /// The gate stays closed.
    closed_for_good: host::AtomicBool,
    /// The device had no more memory when it was last asked for some.
    exhausted: host::AtomicBool,
    /// Held by whoever ends the pool, driver calls and all: nothing that allocates or frees takes it.
    ending: host::Mutex<()>,
    /// Whether this ended pool has nothing to do before another of its streams becomes unused.
    rests: host::AtomicBool,
    steps: Steps,
    /// There where events are kept.
    recorder: Option<history::Recorder>,
}

impl<B: Backend> StreamPool<B> {
    /// A pool with the default options. Takes no memory yet, and makes no driver call.
    pub fn new(backend: B) -> StreamPool<B> {
        Arc::new(PoolCore::new(Arc::new(Driver::new(backend)), Config::default())).handle()
    }

    /// A pool with options.
    pub fn builder(backend: B) -> PoolBuilder<B> {
        PoolBuilder::new(backend)
    }

    pub(crate) fn core(&self) -> &Arc<PoolCore<B>> {
        &self.handle.core
    }

    /// Registers a stream. The pool keeps it alive until it is retired. A stream that is registered
    /// already gives the same [`PoolStream`].
    ///
    /// # Errors
    ///
    /// [`is_wrong_stream`](Error::is_wrong_stream) for a stream of another context, and for the
    /// per-thread default stream, which is another stream on each thread; a driver error;
    /// [`is_closed`](Error::is_closed).
    pub fn stream(&self, stream: B::Stream) -> Result<PoolStream<B>, Error> {
        self.register(stream, false)
    }

    /// As [`stream`](Self::stream), for a program that wants the tightest dependencies: each free of a
    /// buffer of this stream records an event, so that who takes its memory waits for no more than was
    /// queued by then. Its buffers must not be dropped in host functions of the driver. A stream that is
    /// registered already keeps the way it was registered.
    ///
    /// # Errors
    ///
    /// As for [`stream`](Self::stream).
    pub fn stream_record_on_free(&self, stream: B::Stream) -> Result<PoolStream<B>, Error> {
        self.register(stream, true)
    }

    fn register(&self, stream: B::Stream, record_on_free: bool) -> Result<PoolStream<B>, Error> {
        let core = self.core();
        let _call = match core.begin_call() {
            Ok(call) => call,
            Err(error) => {
                core.driver.release_stream(stream);
                return Err(error);
            }
        };
        match core.identify(&stream) {
            Ok(identity) => {
                let (registered, unneeded) =
                    registry::register(self, stream, identity, record_on_free);
                if let Some(stream) = unneeded {
                    core.driver.release_stream(stream);
                }
                Ok(registered)
            }
            Err(error) => {
                core.driver.release_stream(stream);
                Err(error)
            }
        }
    }

    /// Makes sure that the pool can serve `bytes` bytes in all from what it has, taking memory from the
    /// device as needed.
    ///
    /// # Errors
    ///
    /// [`is_out_of_memory`](Error::is_out_of_memory) when the limit or the device does not allow it; a
    /// driver error. What was taken until then stays.
    pub fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let call = self.core().begin_call()?;
        let reserved = self.core().reserve(bytes);
        drop(call);
        tell::now();
        reserved
    }

    /// Gives unused memory back to the device, until at most `keep` bytes are reserved or no more is
    /// unused, and says how many bytes went back. Only whole granules or segments can go back, and only
    /// memory whose last use is seen to have finished: the pool waits for nothing (where it grows by plain
    /// segments the driver may, for whatever runs).
    ///
    /// # Errors
    ///
    /// A driver error. What could not be given back is kept.
    pub fn trim(&self, keep: u64) -> Result<u64, Error> {
        let call = self.core().begin_blocking_call()?;
        let trimmed = self.core().trim(keep);
        drop(call);
        tell::now();
        trimmed
    }

    /// Blocks the calling thread until everything that is queued on the pool's streams has finished;
    /// all that was freed before is clean then. Streams that are capturing are left out.
    ///
    /// # Errors
    ///
    /// As for [`quiesce`](Self::quiesce).
    pub fn synchronize(&self) -> Result<(), Error> {
        let _call = self.core().begin_blocking_call()?;
        self.core().quiesce_all()
    }

    /// Blocks the calling thread until everything that was submitted to the whole context has finished,
    /// also on streams that are not registered, as [`synchronize`](Self::synchronize) does by itself where
    /// it can be no harm. With [`foreign_captures`](crate::PoolBuilder::foreign_captures) this call alone
    /// makes memory clean that such streams have used: to be made at a moment when the program knows that
    /// none of them captures, because it would break the capture.
    ///
    /// # Errors
    ///
    /// [`is_capture`](Error::is_capture) while a registered stream captures; the driver's error.
    pub fn synchronize_context(&self) -> Result<(), Error> {
        let _call = self.core().begin_blocking_call()?;
        self.core().synchronize_context()
    }

    /// What the pool holds and has done. Takes each lock once, for a moment.
    pub fn stats(&self) -> Stats {
        self.core().stats()
    }

    /// Starts the peaks of [`stats`](Self::stats) anew from what is reserved and in use now.
    pub fn reset_peak(&self) {
        self.core().reset_peak();
    }

    /// Takes the last error that no `Result` could tell: of a drop, of a scope's end, of tidying up.
    pub fn take_error(&self) -> Option<Error> {
        self.core().driver.take_error()
    }

    /// Ends the pool: waits for its own events, gives all memory back, destroys its events. Its handles
    /// stay and answer that the pool is closed.
    ///
    /// # Errors
    ///
    /// [`is_in_use`](Error::is_in_use) while buffers live or other calls on the pool are under way, and then
    /// nothing has changed; a driver error, or [`is_capture`](Error::is_capture) where a stream captures that
    /// must be waited for, and then the pool is closed, what is left is given back by later calls of any
    /// pool, and calling this again tries again. Memory whose use by another device, lost since, was not seen to
    /// finish is never given back.
    pub fn close(&self) -> Result<(), Error> {
        let closed = self.core().close();
        tell::now();
        closed
    }
}

impl<B: Backend> Clone for StreamPool<B> {
    fn clone(&self) -> Self {
        StreamPool { handle: Arc::clone(&self.handle) }
    }
}

impl<B: Backend> fmt::Debug for StreamPool<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamPool")
            .field("id", &self.core().id.0)
            .field("config", &self.core().config)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> PoolCore<B> {
    fn new(driver: Arc<Driver<B>>, config: Config) -> Self {
        PoolCore {
            id: PoolId::fresh(),
            driver,
            recorder: history::Recorder::new(config.history),
            config,
            limit: None,
            peers: Vec::new(),
            #[cfg(feature = "cuda")]
            peer_pools: Mutex::default(),
            handle: Mutex::new(Weak::new()),
            registry: Mutex::new(Registry::new()),
            central: Mutex::new(Central::new()),
            unused: Mutex::default(),
            unused_count: AtomicUsize::new(0),
            gate: Gate::default(),
            closed_for_good: host::AtomicBool::new(false),
            exhausted: host::AtomicBool::new(false),
            ending: host::Mutex::new(()),
            rests: host::AtomicBool::new(false),
            steps: Steps::default(),
        }
    }

    pub(crate) fn build(
        driver: Arc<Driver<B>>,
        config: Config,
        peers: &Peers<B>,
    ) -> Result<StreamPool<B>, Error> {
        let mut core = PoolCore::new(driver, config);
        core.give_access(peers)?;
        core.limit = match core.config.limit {
            Limit::None => None,
            Limit::Bytes(bytes) => Some(bytes),
            Limit::Fraction(fraction) => {
                // Within a fraction of the grain, which is what a limit is compared by.
                Some((core.driver.memory_info()?.total as f64 * fraction) as u64)
            }
        };
        let core = Arc::new(core);
        #[cfg(feature = "cuda")]
        core.know_pools(peers);
        Ok(core.handle())
    }

    /// The pool's handle: the one that there is, or a new one.
    fn handle(self: &Arc<Self>) -> StreamPool<B> {
        let mut weak = self.handle.lock();
        let handle = weak.upgrade().unwrap_or_else(|| {
            let handle = Arc::new(PoolHandle { core: Arc::clone(self) });
            *weak = Arc::downgrade(&handle);
            handle
        });
        StreamPool { handle }
    }

    /// Keeps every stream from serving hits: the device is lost or the pool closed.
    fn shut_hits(&self) {
        for core in self.streams().iter() {
            core.state.lock().detours.set(Detours::CLOSED, true);
        }
    }

    /// What drops have left: streams that nothing uses, events that must not be used again, old epochs
    /// that may have completed.
    fn tend(&self) {
        // Relaxed: a note that is missed now is seen by the next call.
        if self.unused_count.load(Ordering::Relaxed) != 0 {
            self.retire_unused();
        }
        self.driver.destroy_events(false);
        self.poll_retired();
    }

    /// Leaves a note that nothing uses a stream any more, if there is none. Called under the stream's lock.
    pub(crate) fn note_unused(&self, id: TimelineId, state: &mut StreamState<B>) {
        if state.is_noted {
            return;
        }
        state.is_noted = true;
        self.unused.lock().push_back(id);
        // Release, with the acquire of the lock: the count is a hint, the list is the truth.
        self.unused_count.fetch_add(1, Ordering::Release);
    }

    fn identify(&self, stream: &B::Stream) -> Result<StreamIdentity, Error> {
        let identity = self.driver.identify(stream)?;
        if identity.context != self.driver.context_id() && !seeded!(ForeignContext) {
            return Err(Error::new(Reason::ForeignContext));
        }
        if identity.kind == StreamKind::PerThread && !seeded!(PerThreadStream) {
            return Err(Error::new(Reason::PerThreadStream));
        }
        Ok(identity)
    }

    /// A buffer of no bytes.
    pub(crate) fn alloc_nothing(&self, core: &StreamCore<B>) -> Result<Buffer<B>, Error> {
        if let Some(error) = self.driver.lost() {
            return Err(error.clone());
        }
        {
            let mut state = core.state.lock();
            // Looked at under the lock: whoever closes the pool counts the buffers after the mark.
            if state.detours.has(Detours::CLOSED) {
                return Err(Error::new(Reason::Closed));
            }
            state.take(0);
            state.counters.misses += 1;
        }
        Ok(Buffer::empty(Home::new(core)))
    }

    /// The free point of a block that a stream which is not registered may have used.
    pub(crate) fn stranger_point(&self) -> FreePoint {
        self.central.lock().stranger_point()
    }

    /// A free block goes to the heap.
    pub(crate) fn free_to_heap(&self, block: BlockId, stamps: Stamps) {
        let mut central = self.central.lock();
        let central = &mut *central;
        central.returns += 1;
        central.heap.free(block, stamps, &central.timelines);
    }

    fn stats(&self) -> Stats {
        let streams = self.streams();
        let mut central = self.central.lock();
        let mut stats = central.stats();
        for core in streams.iter() {
            let state = core.state.lock();
            stats.add_stream(&state);
        }
        central.see_in_use(stats.in_use);
        drop(central);
        stats.finish(
            streams.len() as u64,
            self.driver.calls(),
            &self.steps,
            self.driver.stray_errors(),
        );
        stats
    }

    fn reset_peak(&self) {
        let streams = self.streams();
        let mut central = self.central.lock();
        central.reset_peak_reserved();
        let mut in_use = 0;
        for core in streams.iter() {
            let mut state = core.state.lock();
            state.counters.peak_in_use = state.in_use();
            in_use += state.in_use();
        }
        central.peak_in_use = in_use;
    }
}

#[cfg(all(test, loom))]
pub(crate) mod models;

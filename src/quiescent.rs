//! The quiescent scope, and the thread-local flag behind it.
//!
//! Semantics, which the functions below keep:
//!
//! - Entering synchronizes the device; every block that was freed before is clean then.
//! - While a scope of a pool is open on a thread, frees of that thread into that pool close no epoch,
//!   and the streams that they touch are noted by timeline number. The blocks go where they always go,
//!   with their ordinary stamps.
//! - At its end each noted stream's epoch is closed and its event asked, once. If it has finished, the
//!   blocks are clean; if not, they keep their stamps.
//!
//! So the flag decides what is *recorded*, never what is *safe*: a scope that is leaked, or ends on
//! another order, or holds a launch, costs precision and nothing else.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use crate::backend::Backend;
use crate::error::Error;
use crate::fault::seeded;
use crate::order::TimelineId;
use crate::pool::{PoolCore, PoolId, StreamPool};
use crate::sync::{Arc, host, pool_thread_local};

/// Slots for the streams that a thread frees on in a scope without asking a map. Timeline numbers follow
/// each other, so that their low bits spread them.
const SLOTS: usize = 64;

pool_thread_local! {
    /// The innermost scope. It needs no destructor, so that a free in a thread-local destructor can
    /// always ask it.
    static INNERMOST: Innermost = Innermost::none();
    /// The scopes that are open on this thread, the innermost last.
    static SCOPES: RefCell<Vec<Notes>> = RefCell::new(Vec::new());
}

/// The innermost scope of a thread, and what it has noted since it became that.
struct Innermost {
    /// How many scopes are open on this thread.
    open: Cell<usize>,
    pool: Cell<Option<PoolId>>,
    bytes: Cell<u64>,
    streams: [Cell<(TimelineId, u64)>; SLOTS],
}

impl Innermost {
    const fn none() -> Innermost {
        Innermost {
            open: Cell::new(0),
            pool: Cell::new(None),
            bytes: Cell::new(0),
            streams: [const { Cell::new((TimelineId::LOWEST, 0)) }; SLOTS],
        }
    }

    /// Notes a free of one stream only; says whether it could.
    #[inline]
    fn note(&self, pool: PoolId, bytes: u64, home: TimelineId) -> bool {
        if self.pool.get() != Some(pool) {
            return false;
        }
        let slot = &self.streams[home.get() as usize % SLOTS];
        let (timeline, count) = slot.get();
        if timeline != home && count != 0 {
            return false;
        }
        slot.set((home, count + 1));
        self.bytes.set(self.bytes.get() + bytes);
        true
    }

    /// Moves what was noted to the scope's own notes.
    fn flush(&self, notes: &mut Notes) {
        notes.bytes += self.bytes.take();
        for slot in &self.streams {
            let (timeline, count) = slot.replace((TimelineId::LOWEST, 0));
            if count > 0 {
                notes.freed += count;
                *notes.streams.entry(timeline).or_default() += count;
            }
        }
    }

    /// The scopes have changed: `scopes` are open now.
    fn follow(&self, scopes: &[Notes]) {
        #[cfg(feature = "faults")]
        crate::fault::scopes_change(self.open.get(), scopes.len());
        self.open.set(scopes.len());
        self.pool.set(scopes.last().map(|notes| notes.pool));
    }
}

/// What happened in a scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[must_use = "it says whether the scope did what it is for"]
pub struct QuiescentReport {
    /// Buffers that were freed in the scope, by its thread, into its pool.
    pub freed: u64,
    /// The bytes of their blocks.
    pub bytes: u64,
    /// Those of them that any stream may take with no wait now.
    pub clean: u64,
    /// Those that keep their ordinary dependencies, because work on their streams was still under way
    /// when the scope ended.
    pub deferred: u64,
}

/// What one open scope has noted.
struct Notes {
    scope: u64,
    pool: PoolId,
    freed: u64,
    bytes: u64,
    /// How many buffers of one stream only were freed, by timeline; none for a stream that was touched
    /// by others only.
    streams: BTreeMap<TimelineId, u64>,
    /// The streams of each buffer that had more than one.
    shared: Vec<Box<[TimelineId]>>,
}

/// Whether a scope of any pool is open on this thread.
#[inline]
pub(crate) fn any_open() -> bool {
    INNERMOST.with(|innermost| innermost.open.get() != 0)
}

/// Whether a scope of this pool is open on this thread.
pub(crate) fn is_open(pool: PoolId) -> bool {
    #[cfg(feature = "faults")]
    if seeded!(GlobalFlag) {
        return crate::fault::any_scope();
    }
    any_open()
        && SCOPES
            .try_with(|scopes| {
                scopes.borrow().iter().any(|notes| notes.pool == pool || seeded!(FlagOfEveryPool))
            })
            .unwrap_or(false)
}

/// Notes a free into `pool` of a block that was used on these streams, in the innermost scope of the
/// pool that is open on this thread.
#[inline]
pub(crate) fn note(pool: PoolId, bytes: u64, home: TimelineId, others: &[TimelineId]) {
    let noted = INNERMOST.with(|innermost| others.is_empty() && innermost.note(pool, bytes, home));
    if !noted {
        note_in_map(pool, bytes, home, others);
    }
}

#[cold]
fn note_in_map(pool: PoolId, bytes: u64, home: TimelineId, others: &[TimelineId]) {
    // Once the thread's scopes are gone, at its end, there is nothing to note it in.
    let _ = SCOPES.try_with(|scopes| {
        let mut scopes = scopes.borrow_mut();
        let Some(notes) = scopes.iter_mut().rev().find(|notes| notes.pool == pool) else { return };
        notes.freed += 1;
        notes.bytes += bytes;
        *notes.streams.entry(home).or_default() += u64::from(others.is_empty());
        if !others.is_empty() {
            for other in others {
                notes.streams.entry(*other).or_default();
            }
            notes.shared.push(others.iter().copied().chain([home]).collect());
        }
    });
}

/// While it lives, frees of this thread into its pool close no epoch.
///
/// Made by [`StreamPool::quiesce`], after one synchronize of the device. Whatever the program does
/// inside — launches, frees of new buffers, a leak of the scope, a panic — stays right: at its end each
/// stream that was touched is asked once, and only what has finished counts as clean.
///
/// It belongs to its thread:
///
/// ```compile_fail,E0277
/// # use streampool::{StreamPool, sim::SimDevice};
/// let pool = StreamPool::new(SimDevice::new(1));
/// let scope = pool.quiesce().unwrap();
/// std::thread::spawn(move || drop(scope)); // `QuiescentScope` cannot be sent between threads
/// ```
///
/// while the pool itself can be sent:
///
/// ```
/// # use streampool::{StreamPool, sim::SimDevice};
/// let pool = StreamPool::new(SimDevice::new(1));
/// std::thread::spawn(move || drop(pool.quiesce().unwrap())).join().unwrap();
/// ```
///
/// A future that holds it across an await is not `Send`:
///
/// ```compile_fail
/// # use streampool::{StreamPool, sim::SimDevice};
/// fn spawn(_: impl Future<Output = ()> + Send) {}
/// let pool = StreamPool::new(SimDevice::new(1));
/// spawn(async move {
///     let scope = pool.quiesce().unwrap();
///     std::future::ready(()).await;
///     drop(scope);
/// });
/// ```
///
/// one that ends it before is:
///
/// ```
/// # use streampool::{StreamPool, sim::SimDevice};
/// fn spawn(_: impl Future<Output = ()> + Send) {}
/// let pool = StreamPool::new(SimDevice::new(1));
/// spawn(async move {
///     drop(pool.quiesce().unwrap());
///     std::future::ready(()).await;
/// });
/// ```
#[must_use = "the scope ends when it is dropped"]
pub struct QuiescentScope<B: Backend> {
    pool: Arc<PoolCore<B>>,
    id: u64,
    ended: bool,
    _of_this_thread: PhantomData<*const ()>,
}

impl<B: Backend> StreamPool<B> {
    /// Waits once for everything that was submitted to the device, and opens a scope on this thread:
    /// everything that was freed before is clean, and what this thread frees while the scope lives is
    /// settled at its end by one event for each *stream*, not one for each buffer.
    ///
    /// While a registered stream captures into a graph, or with
    /// [`foreign_captures`](crate::PoolBuilder::foreign_captures), the streams are waited for one by
    /// one instead, the capturing ones left out, because a synchronize of the context would break the
    /// capture.
    ///
    /// Blocks the calling thread. Scopes nest, and several pools' scopes can be open on one thread.
    ///
    /// # Errors
    ///
    /// The synchronize's error. There is no scope then, and nothing counts as finished that was not
    /// seen to finish.
    ///
    /// ```
    /// # use streampool::{StreamPool, sim::SimDevice};
    /// let device = SimDevice::new(1);
    /// let pool = StreamPool::new(device.clone());
    /// let stream = pool.stream(device.create_stream())?;
    /// let buffers: Vec<_> = (0..100).map(|_| stream.alloc(1 << 20)).collect::<Result<_, _>>()?;
    /// let scope = pool.quiesce()?;
    /// drop(buffers);
    /// let report = scope.finish();
    /// assert_eq!((report.freed, report.clean, report.deferred), (100, 100, 0));
    /// # Ok::<(), streampool::Error>(())
    /// ```
    pub fn quiesce(&self) -> Result<QuiescentScope<B>, Error> {
        let _call = self.core().begin_call()?;
        self.core().quiesce_streams()?;
        Ok(QuiescentScope::open(Arc::clone(self.core())))
    }

    /// Frees everything that `value` owns in a scope of its own: waits for the device once, drops the
    /// value, ends the scope.
    ///
    /// # Errors
    ///
    /// As for [`quiesce`](Self::quiesce); the value is then dropped in the ordinary way.
    pub fn release<T>(&self, value: T) -> Result<QuiescentReport, Error> {
        let scope = self.quiesce()?;
        drop(value);
        Ok(scope.finish())
    }
}

impl<B: Backend> QuiescentScope<B> {
    fn open(pool: Arc<PoolCore<B>>) -> QuiescentScope<B> {
        static NEXT: host::AtomicU64 = host::AtomicU64::new(1);
        // Relaxed: only that no two scopes get the same number matters.
        let id = NEXT.fetch_add(1, host::Ordering::Relaxed);
        let notes = Notes {
            scope: id,
            pool: pool.id,
            freed: 0,
            bytes: 0,
            streams: BTreeMap::new(),
            shared: Vec::new(),
        };
        // In a thread-local destructor there may be no scopes any more; this one then notes nothing.
        let _ = SCOPES.try_with(|scopes| {
            let mut scopes = scopes.borrow_mut();
            INNERMOST.with(|innermost| {
                if let Some(outer) = scopes.last_mut() {
                    innermost.flush(outer);
                }
                scopes.push(notes);
                innermost.follow(&scopes);
            });
        });
        QuiescentScope { pool, id, ended: false, _of_this_thread: PhantomData }
    }

    /// Ends the scope and says what became of the buffers freed in it. Errors of the driver at the end
    /// defer the buffers concerned, and are kept for [`StreamPool::take_error`].
    pub fn finish(mut self) -> QuiescentReport {
        self.end()
    }

    fn end(&mut self) -> QuiescentReport {
        if std::mem::replace(&mut self.ended, true) {
            return QuiescentReport::default();
        }
        // The thread's flag first: whatever follows may meet a panic or a slow driver.
        let notes = SCOPES.try_with(|scopes| {
            let mut scopes = scopes.borrow_mut();
            let at = scopes.iter().position(|notes| notes.scope == self.id)?;
            Some(INNERMOST.with(|innermost| {
                innermost.flush(scopes.last_mut().expect("this scope is open"));
                let notes = scopes.remove(at);
                innermost.follow(if seeded!(BoolForDepth) { &[] } else { &scopes });
                notes
            }))
        });
        let Ok(Some(notes)) = notes else { return QuiescentReport::default() };
        let mut unfinished = self.pool.settle_noted(notes.streams.keys().copied());
        unfinished.sort_unstable();
        let is_unfinished = |timeline: &TimelineId| unfinished.binary_search(timeline).is_ok();
        let single: u64 = (notes.streams.iter())
            .filter(|(timeline, _)| is_unfinished(timeline))
            .map(|(_, freed)| *freed)
            .sum();
        let shared =
            notes.shared.iter().filter(|streams| streams.iter().any(is_unfinished)).count();
        let deferred = single + shared as u64;
        QuiescentReport {
            freed: notes.freed,
            bytes: notes.bytes,
            clean: notes.freed - deferred,
            deferred,
        }
    }
}

impl<B: Backend> fmt::Debug for QuiescentScope<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuiescentScope").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<B: Backend> Drop for QuiescentScope<B> {
    fn drop(&mut self) {
        if seeded!(NotRestoredOnUnwinding) && std::thread::panicking() {
            return;
        }
        let _ = self.end();
    }
}

#[cfg(all(test, loom))]
mod models;

//! The quiescent scope, and the thread-local flag behind it.
//!
//! Semantics, which the functions below keep:
//!
//! - Entering synchronizes the device; every block that was freed before is clean then.
//! - While a scope of a pool is open on a thread, frees of that thread into that pool close no epoch,
//!   and their streams count them for the scope. The blocks go where they always go, with their ordinary
//!   stamps.
//! - At its end the streams that were touched are asked, once. If everything on them has finished, the
//!   blocks are clean; if not, they keep their stamps.
//!
//! So the flag decides what is *recorded*, never what is *safe*: a scope that is leaked, or ends on
//! another order, or holds a launch, costs precision and nothing else.

mod several;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;

use crate::backend::Backend;
use crate::error::Error;
use crate::fault::seeded;
use crate::history::Action;
use crate::order::{Stamps, TimelineId};
use crate::pool::{PoolCore, PoolId, StreamPool};
use crate::sync::{Arc, host, pool_thread_local};

pub use several::QuiescentScopes;

/// Tells scopes apart; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScopeId(u64);

impl ScopeId {
    /// No scope.
    pub(crate) const NONE: ScopeId = ScopeId(0);

    pub(crate) fn fresh() -> ScopeId {
        static NEXT: host::AtomicU64 = host::AtomicU64::new(1);
        // Relaxed: only that no two scopes get the same number matters.
        ScopeId(NEXT.fetch_add(1, host::Ordering::Relaxed))
    }

    pub(crate) fn is_some(self) -> bool {
        self != ScopeId::NONE
    }
}

pool_thread_local! {
    /// The innermost scope of the thread, of whichever pool. It needs no destructor, so that a free in a
    /// thread-local destructor can always ask it.
    static INNERMOST: Cell<ScopeId> = Cell::new(ScopeId::NONE);
    /// The scopes that are open on this thread, the innermost last.
    static SCOPES: RefCell<Vec<Open>> = RefCell::new(Vec::new());
}

/// An open scope.
struct Open {
    scope: ScopeId,
    pool: PoolId,
    shared: Vec<Shared>,
}

/// A buffer that was freed in a scope after streams beside its home had used it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) home: TimelineId,
    pub(crate) others: Box<[TimelineId]>,
}

/// The innermost scope that is open on this thread, of whichever pool.
#[inline]
pub(crate) fn innermost() -> ScopeId {
    INNERMOST.with(Cell::get)
}

/// The innermost scope of this pool that is open on this thread.
pub(crate) fn scope_of(pool: PoolId) -> ScopeId {
    if !innermost().is_some() {
        return ScopeId::NONE;
    }
    // Once the thread's scopes are gone, at its end, there is none.
    let find = |scopes: &RefCell<Vec<Open>>| {
        let scopes = scopes.borrow();
        scopes.iter().rev().find(|open| open.pool == pool).map(|open| open.scope)
    };
    SCOPES.try_with(find).ok().flatten().unwrap_or(ScopeId::NONE)
}

/// Whether a scope of this pool is open on this thread.
pub(crate) fn is_open(pool: PoolId) -> bool {
    #[cfg(feature = "faults")]
    if seeded!(GlobalFlag) {
        return crate::fault::any_scope();
    }
    scope_of(pool).is_some() || (seeded!(FlagOfEveryPool) && innermost().is_some())
}

/// Notes, in a scope of this thread, the free of a buffer that others have used as well.
pub(crate) fn note_shared(scope: ScopeId, home: TimelineId, others: &Stamps) {
    let others = others.points().iter().map(|point| point.timeline).collect();
    let _ = SCOPES.try_with(|scopes| {
        let mut scopes = scopes.borrow_mut();
        if let Some(open) = scopes.iter_mut().find(|open| open.scope == scope) {
            open.shared.push(Shared { home, others });
        }
    });
}

/// The thread's scopes have changed.
fn follow(scopes: &[Open]) {
    #[cfg(feature = "faults")]
    crate::fault::scopes_change(scopes.len());
    let innermost = scopes.last().map_or(ScopeId::NONE, |open| open.scope);
    INNERMOST.with(|own| own.set(innermost));
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

/// While it lives, frees of this thread into its pool close no epoch.
///
/// Made by [`StreamPool::quiesce`], after one synchronize of the device. Whatever the program does
/// inside — launches, frees of new buffers, a leak of the scope, a panic — stays right: at its end the
/// streams that were touched are asked once, and only what has finished counts as clean.
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
    scope: ScopeId,
    ended: bool,
    _of_this_thread: PhantomData<*const ()>,
}

impl<B: Backend> StreamPool<B> {
    /// Waits once for everything that was submitted to the device, and opens a scope on this thread:
    /// everything that was freed before is clean (what streams of other devices have used waits for them
    /// still; [`quiesce_all`](Self::quiesce_all) is for several devices), and what this thread frees while the scope lives is
    /// settled at its end by one event for the whole context, or one for each *stream* where other work
    /// is under way; never by one for each buffer.
    ///
    /// While a registered stream captures into a graph, or with
    /// [`foreign_captures`](crate::PoolBuilder::foreign_captures), the streams are waited for one by
    /// one instead, the capturing ones left out, because a synchronize of the context, and an event of
    /// it, would break the capture. A stream that is *not* registered must therefore not be capturing when
    /// a scope begins or ends, unless the pool was told that it may.
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
        self.core().prefetch_streams();
        let _call = self.core().begin_blocking_call()?;
        let scope = ScopeId::fresh();
        self.core().quiesce_streams(Some(scope))?;
        Ok(QuiescentScope::open(Arc::clone(self.core()), scope))
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
    /// Opens a scope on this thread; the device has been synchronized.
    pub(crate) fn open(pool: Arc<PoolCore<B>>, scope: ScopeId) -> QuiescentScope<B> {
        pool.note_own(Action::ScopeBegin { scope: scope.0 });
        let open = Open { scope, pool: pool.id, shared: Vec::new() };
        // In a thread-local destructor there may be no scopes any more; this one then notes nothing.
        let _ = SCOPES.try_with(|scopes| {
            let mut scopes = scopes.borrow_mut();
            scopes.push(open);
            follow(&scopes);
        });
        QuiescentScope { pool, scope, ended: false, _of_this_thread: PhantomData }
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
        self.pool.prefetch_streams();
        // The thread's flag first: whatever follows may meet a panic or a slow driver.
        let open = SCOPES.try_with(|scopes| {
            let mut scopes = scopes.borrow_mut();
            let at = scopes.iter().position(|open| open.scope == self.scope)?;
            let open = scopes.remove(at);
            follow(if seeded!(BoolForDepth) { &[] } else { &scopes });
            Some(open)
        });
        let shared = match open {
            Ok(Some(open)) => open.shared,
            Ok(None) => return QuiescentReport::default(),
            // In a thread-local destructor they may be gone; the streams still have their accounts.
            Err(_) => Vec::new(),
        };
        let report = self.pool.settle_scope(self.scope, &shared);
        let QuiescentReport { freed, bytes, clean, deferred } = report;
        let scope = self.scope.0;
        self.pool.note_own(Action::ScopeEnd { scope, freed, bytes, clean, deferred });
        report
    }
}

impl<B: Backend> fmt::Debug for QuiescentScope<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuiescentScope").field("scope", &self.scope.0).finish_non_exhaustive()
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

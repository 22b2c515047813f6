//! The only file that names `loom`, `std::sync` or `parking_lot`.
//!
//! Under `--cfg loom` the atomics and locks of the pool are loom's, so that a model explores their
//! interleavings. Three things stay the standard library's in every build: reference counts (not
//! what the models are about), counters that only give numbers (loom's objects live in one execution
//! only, and no model turns on a number) and the simulated device's own lock, which would make models
//! explode; a [`CallPoint`] stands for it. For the same reason a lock that blocks stands for the spin
//! lock, which has models of its own.
//!
//! No lock of the pool may be held across a call of a backend. With debug assertions both locks count
//! themselves, and [`assert_no_lock_held`] checks it at every such call.

pub(crate) use std::sync::{Arc, Weak};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
use loom::sync::{Mutex as Inner, MutexGuard as InnerGuard};
#[cfg(not(loom))]
use parking_lot::{Mutex as Inner, MutexGuard as InnerGuard};

use std::ops::{Deref, DerefMut};

#[cfg(loom)]
mod blocking;
#[cfg(all(test, loom))]
mod models;
#[cfg_attr(loom, allow(dead_code, reason = "only its own models use it"))]
mod spin;

#[cfg(loom)]
pub(crate) use blocking::SpinLock;
#[cfg(not(loom))]
pub(crate) use spin::SpinLock;

/// What stays the standard library's in every build.
pub(crate) mod host {
    #[cfg(feature = "sim")]
    pub(crate) use std::sync::Condvar;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use std::sync::{Mutex, MutexGuard, OnceLock};
}

/// A lock for short sections: parking_lot's, or loom's in a model.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    inner: Inner<T>,
}

/// Holds a [`Mutex`] locked.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    inner: InnerGuard<'a, T>,
    _held: Held,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex { inner: Inner::new(value) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(not(loom))]
        let inner = self.inner.lock();
        #[cfg(loom)]
        let inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        MutexGuard { inner, _held: Held::new() }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// One lock held by this thread. Without debug assertions it is nothing.
#[derive(Debug)]
struct Held {
    /// A lock is given back by the thread that took it.
    _not_send: std::marker::PhantomData<*const ()>,
}

#[cfg(all(debug_assertions, not(loom)))]
thread_local! {
    static LOCKS_HELD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Held {
    #[inline]
    fn new() -> Held {
        #[cfg(all(debug_assertions, not(loom)))]
        LOCKS_HELD.set(LOCKS_HELD.get() + 1);
        Held { _not_send: std::marker::PhantomData }
    }
}

#[cfg(all(debug_assertions, not(loom)))]
impl Drop for Held {
    fn drop(&mut self) {
        LOCKS_HELD.set(LOCKS_HELD.get() - 1);
    }
}

/// Checks, with debug assertions, that this thread holds no lock of the pool: a backend is about to be
/// called.
#[inline]
pub(crate) fn assert_no_lock_held() {
    #[cfg(all(debug_assertions, not(loom)))]
    assert_eq!(LOCKS_HELD.get(), 0, "a backend is called with a lock of the pool held");
}

/// Thread-locals that a model's threads do not share: loom's in a model. Each is constant at first.
macro_rules! pool_thread_local {
    ($($(#[$doc:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        #[cfg(not(loom))]
        thread_local! { $($(#[$doc])* static $name: $type = const { $value };)* }
        #[cfg(loom)]
        loom::thread_local! { $($(#[$doc])* static $name: $type = $value;)* }
    };
}
pub(crate) use pool_thread_local;

/// A counter of the whole process that threads take decisions by; in a model, one of each execution.
macro_rules! process_counter {
    ($(#[$doc:meta])* static $name:ident;) => {
        #[cfg(not(loom))]
        $(#[$doc])*
        static $name: $crate::sync::AtomicU64 = $crate::sync::AtomicU64::new(0);
        #[cfg(loom)]
        loom::lazy_static! {
            $(#[$doc])*
            static ref $name: $crate::sync::AtomicU64 = $crate::sync::AtomicU64::new(0);
        }
    };
}
pub(crate) use process_counter;

/// Lets other threads run: a step of a bounded wait.
pub(crate) fn pause_thread(micros: u64) {
    #[cfg(not(loom))]
    std::thread::sleep(std::time::Duration::from_micros(micros));
    #[cfg(loom)]
    {
        let _ = micros;
        loom::thread::yield_now();
    }
}

/// A point at which the order of driver calls on different threads matters. Under loom each
/// [`reach`](Self::reach) is one read-modify-write, where the model may switch threads.
#[cfg(any(feature = "sim", loom))]
#[derive(Debug, Default)]
pub(crate) struct CallPoint {
    #[cfg(loom)]
    calls: loom::sync::atomic::AtomicUsize,
}

#[cfg(any(feature = "sim", loom))]
impl CallPoint {
    /// Passes the point.
    #[inline]
    pub(crate) fn reach(&self) {
        #[cfg(loom)]
        self.calls.fetch_add(1, loom::sync::atomic::Ordering::AcqRel);
    }
}

/// Part of an object that is freed by hand, so that a model sees who touches it too late: loom wants
/// every [`touch`](Self::touch) to happen before the drop. Nothing without loom.
#[derive(Debug, Default)]
pub(crate) struct Lifetime {
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<()>,
}

impl Lifetime {
    /// The object is in use here.
    #[inline]
    pub(crate) fn touch(&self) {
        #[cfg(loom)]
        self.cell.with(|_| ());
    }
}

// SAFETY: there is no value behind the cell, and loom checks who touches it.
#[cfg(loom)]
unsafe impl Sync for Lifetime {}

#[cfg(loom)]
impl Drop for Lifetime {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.cell.with_mut(|_| ());
        }
    }
}

/// What models are made of.
#[cfg(all(test, loom))]
pub(crate) mod model {
    use std::cell::Cell;
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Arc, Once};

    /// A model's thread calls the whole pool, for which loom's default stack is small.
    const STACK_BYTES: usize = 256 << 10;

    /// A thread of a model.
    pub(crate) struct Thread<T>(loom::thread::JoinHandle<T>);

    impl<T> Thread<T> {
        pub(crate) fn join(self) -> T {
            self.0.join().expect("the thread did not panic")
        }
    }

    pub(crate) fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Thread<T> {
        let thread = loom::thread::Builder::new().stack_size(STACK_BYTES);
        Thread(thread.spawn(run).expect("loom spawns up to four threads"))
    }

    /// A value with no lock of its own: loom wants its accesses ordered by something else.
    #[derive(Default)]
    pub(crate) struct Plain(loom::cell::UnsafeCell<u64>);

    // SAFETY: loom checks that no two accesses are concurrent.
    unsafe impl Sync for Plain {}

    impl Plain {
        pub(crate) fn set(&self, value: u64) {
            // SAFETY: loom checks that nobody else has access.
            self.0.with_mut(|own| unsafe { *own = value });
        }

        pub(crate) fn get(&self) -> u64 {
            // SAFETY: loom checks that nobody writes.
            self.0.with(|own| unsafe { *own })
        }
    }

    /// Whether a state that a model is about was reached in any execution: a model that never gets
    /// there proves nothing.
    #[derive(Clone, Default)]
    pub(crate) struct Reached(Arc<AtomicBool>);

    impl Reached {
        pub(crate) fn mark(&self, reached: bool) {
            self.0.fetch_or(reached, Ordering::Relaxed);
        }

        pub(crate) fn assert(&self, what: &str) {
            assert!(self.0.load(Ordering::Relaxed), "no execution of the model: {what}");
        }
    }

    std::thread_local! {
        /// The model that this test thread runs; loom runs all its threads on this one.
        static RUNNING: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Has a model that fails end the whole run, with its name: unwinding would drop a real pool in the
    /// middle of an execution, and leave what is process-wide to other models.
    fn abort_on_failure() {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                let Some(name) = RUNNING.get() else { return report(panic) };
                // Past the capture of the test's output, which an abort would lose.
                let _ = writeln!(std::io::stderr(), "the model \"{name}\" has failed: {panic}");
                std::process::abort();
            }));
        });
    }

    /// Runs `model` under every interleaving, with no bound on preemptions whatever the environment
    /// says, and prints how many there were.
    pub(crate) fn check(name: &'static str, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = None;
        builder.max_branches = 20_000;
        let executions = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&executions);
        let start = std::time::Instant::now();
        abort_on_failure();
        RUNNING.set(Some(name));
        let model = Arc::new(model);
        builder.check(move || {
            count.fetch_add(1, Ordering::Relaxed);
            // Not on loom's first thread, whose stack is always the default one.
            let model = Arc::clone(&model);
            spawn(move || model()).join();
        });
        RUNNING.set(None);
        let executions = executions.load(Ordering::Relaxed);
        println!("{name}: {executions} executions in {:.2} s", start.elapsed().as_secs_f64());
    }
}

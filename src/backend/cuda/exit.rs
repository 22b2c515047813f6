//! The end of the process: once exit has begun, the driver is not called any more.
//!
//! At exit the driver tears itself down while other threads still run, and even an event query can
//! then crash inside it (rmm#2367). So an exit hook closes a gate that every call passes, and lets
//! the calls that are inside return before the driver goes.
//!
//! # Why no call is made after the hook has returned
//!
//! A call counts itself in, then looks at the flag; the hook sets the flag, then looks at the count.
//! All four accesses are `SeqCst`, so they have one order. If the call's look comes before the hook's
//! store, its count comes before the hook's look, and the hook waits for it. Otherwise the call sees
//! the flag and is not made.

use std::ffi::c_int;
use std::thread;
use std::time::{Duration, Instant};

use super::CudaError;
use crate::sync::host::{AtomicBool, AtomicUsize, OnceLock, Ordering};

/// How long exit waits for calls that are inside the driver. There must be a bound: the call may wait
/// for work that never ends, or that the exiting thread would have had to finish (exit from a host
/// function, or from a signal handler that interrupted the call).
const PATIENCE: Duration = Duration::from_secs(5);

static EXITING: AtomicBool = AtomicBool::new(false);
static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    /// C's `atexit`: `hook` runs when the process exits, before all hooks registered earlier.
    fn atexit(hook: extern "C" fn()) -> c_int;
}

/// Registers the exit hook, once. Hooks run in the reverse order of registration, so a caller has
/// made sure that the driver is initialized: ours then runs before the driver's.
pub(super) fn watch() {
    static WATCHED: OnceLock<()> = OnceLock::new();
    WATCHED.get_or_init(|| {
        // SAFETY: sound because `close_gate` is a function of the program's own, touches only
        // statics, and cannot unwind. When registration fails (no memory), the driver's own answer
        // "deinitialized" still stops the calls.
        unsafe { atexit(close_gate) };
    });
}

/// The driver has said that it is shutting down.
pub(super) fn driver_has_gone() {
    EXITING.store(true, Ordering::SeqCst);
}

extern "C" fn close_gate() {
    EXITING.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    while IN_FLIGHT.load(Ordering::SeqCst) != 0 && begun.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Proof that the driver may be called: exit waits for it to be dropped.
#[derive(Debug)]
pub(super) struct InFlight(());

impl InFlight {
    /// Passes the gate, to make `call`.
    ///
    /// # Errors
    ///
    /// The process is exiting.
    pub(super) fn enter(call: &'static str) -> Result<InFlight, CudaError> {
        IN_FLIGHT.fetch_add(1, Ordering::SeqCst);
        let pass = InFlight(());
        if EXITING.load(Ordering::SeqCst) { Err(CudaError::exiting(call)) } else { Ok(pass) }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        IN_FLIGHT.fetch_sub(1, Ordering::SeqCst);
    }
}

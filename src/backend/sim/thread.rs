//! What a thread of the host program carries: its number, its capture mode, its current context,
//! and an error that other code has left pending.
//!
//! None of these has a destructor, so that a buffer dropped in a thread-local destructor finds them.
#![forbid(unsafe_code)]

use std::cell::Cell;

use super::capture::CaptureMode;
use super::error::SimErrorCode;
use crate::sync::host::{AtomicU64, Ordering};

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
    static PARKED: Cell<Option<SimErrorCode>> = const { Cell::new(None) };
    static CONTEXT: Cell<Option<u64>> = const { Cell::new(None) };
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// A number for the calling thread, from 1, never used again.
pub(super) fn number() -> u64 {
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT_THREAD.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

pub(super) fn capture_mode() -> CaptureMode {
    MODE.with(Cell::get)
}

pub(super) fn exchange_capture_mode(mode: CaptureMode) -> CaptureMode {
    MODE.with(|cell| cell.replace(mode))
}

pub(super) fn parked_error() -> Option<SimErrorCode> {
    PARKED.with(Cell::get)
}

pub(super) fn park_error(error: Option<SimErrorCode>) -> Option<SimErrorCode> {
    PARKED.with(|cell| cell.replace(error))
}

pub(super) fn current_context() -> Option<u64> {
    CONTEXT.with(Cell::get)
}

pub(super) fn set_current_context(context: Option<u64>) {
    CONTEXT.with(|cell| cell.set(context));
}

/// Whether the calling thread is inside a host function, where the driver may not be called.
pub(super) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.with(Cell::get)
}

/// Runs a host function, as the driver's own thread would.
pub(super) fn as_host_function(function: Box<dyn FnOnce() + Send>) {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            IN_HOST_FUNCTION.with(|cell| cell.set(self.0));
        }
    }
    let _leave = Leave(IN_HOST_FUNCTION.with(|cell| cell.replace(true)));
    function();
}

//! The calling thread's state, borrowed for one call: its current context and its capture mode.

use std::ptr;

use cudarc::driver::sys;

use super::CudaError;
use super::error::check;
use super::exit::InFlight;

/// What a call may do to captures that are in progress elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Captures {
    /// The driver allows the call in every capture mode.
    Unaffected,
    /// The driver counts the call as potentially unsafe: made as it is, it fails and breaks every
    /// capture in global mode in the process, also on other devices, and the calling thread's own
    /// in thread-local mode. Made by a thread in relaxed mode it works, and breaks none (measured
    /// on an H200).
    Spared,
}

/// While this lives, `context` is current on the calling thread; dropping it puts back what was
/// there.
///
/// The current context is read, set and read back with the driver's own calls (10 and 22 ns).
/// cudarc's `bind_to_thread` is not an option: it returns, and clears, errors that other code has
/// left in the `CudaContext` for itself to find.
#[derive(Debug)]
pub(super) struct Borrowed {
    /// The context to make current again, or `None` when ours was current anyway.
    context: Option<sys::CUcontext>,
    /// The capture mode to go back to, or `None` when it was not changed.
    mode: Option<sys::CUstreamCaptureMode>,
    /// Last, so that the exit hook waits until the thread is as it was.
    _in_flight: InFlight,
}

impl Borrowed {
    /// Prepares the calling thread to make `call` in `context`, which must be alive.
    ///
    /// # Errors
    ///
    /// The process is exiting, or the driver refuses the context. The thread is then as it was.
    pub(super) fn enter(
        context: sys::CUcontext,
        captures: Captures,
        call: &'static str,
    ) -> Result<Borrowed, CudaError> {
        let in_flight = InFlight::enter(call)?;
        let mut borrowed = Borrowed { context: None, mode: None, _in_flight: in_flight };
        let found = current()?;
        if found != context {
            // Replaces the top of the thread's context stack, or pushes on an empty one; putting
            // `found` back undoes exactly that, because setting null pops.
            set_current(context)?;
            borrowed.context = Some(found);
        }
        if captures == Captures::Spared {
            let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            borrowed.mode = Some(exchange_mode(relaxed)?);
        }
        Ok(borrowed)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Failures are not reported: the call itself has succeeded or failed by now, and the context
        // found at the start can only have become invalid because its owner destroyed it meanwhile.
        if let Some(mode) = self.mode {
            let _ = exchange_mode(mode);
        }
        if let Some(context) = self.context {
            let _ = set_current(context);
        }
    }
}

/// The calling thread's current context, null for none.
pub(super) fn current() -> Result<sys::CUcontext, CudaError> {
    let mut context = ptr::null_mut();
    // SAFETY: sound because the only pointer passed is to a local of the right type.
    check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
    Ok(context)
}

/// Makes a context current on the calling thread; null for none.
pub(super) fn set_current(context: sys::CUcontext) -> Result<(), CudaError> {
    // SAFETY: sound because the driver only looks the handle up: a context that is gone is an error.
    check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context) })
}

/// Changes the calling thread's capture mode, and returns what it was.
fn exchange_mode(mode: sys::CUstreamCaptureMode) -> Result<sys::CUstreamCaptureMode, CudaError> {
    let mut mode = mode;
    // SAFETY: sound because the only pointer passed is to a local of the right type, which holds a
    // valid mode; the driver puts another of its three modes there.
    let code = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    check("cuThreadExchangeStreamCaptureMode", code)?;
    Ok(mode)
}

//! Contexts and streams that other code owns, by their raw handles.

use std::mem;
use std::ptr;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use super::error::check;
use super::exit::InFlight;
use super::thread::{Captures, current};
use super::{CudaBackend, CudaError, driver_is_present, open_context, release};
use crate::backend::Backend;
use crate::sync::Arc;

use sys::CUresult as Code;

impl CudaBackend {
    /// A backend for the context that is current on the calling thread, whoever made it.
    ///
    /// Where that is the device's primary context, as with the CUDA runtime, this is
    /// [`open`](Self::open) for the device, and keeps the context alive. Another context
    /// (`cuCtxCreate`) stays its owner's.
    ///
    /// # Errors
    ///
    /// No driver can be loaded, no context is current, or any other driver error.
    ///
    /// # Safety
    ///
    /// A context that is not a primary one is not destroyed while this backend, or anything made from
    /// it, lives.
    pub unsafe fn of_current_context() -> Result<CudaBackend, CudaError> {
        let call = "cuCtxGetCurrent";
        let _in_flight = InFlight::enter(call)?;
        if !driver_is_present() {
            return Err(CudaError::no_driver("cuInit"));
        }
        result::init().map_err(|error| CudaError::driver("cuInit", error.0))?;
        let found = current()?;
        if found.is_null() {
            return Err(CudaError::driver(call, Code::CUDA_ERROR_INVALID_CONTEXT));
        }
        let mut device = 0;
        // SAFETY: sound because the pointer is to a local of the right type.
        check("cuCtxGetDevice", unsafe { sys::cuCtxGetDevice(&mut device) })?;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: sound because both pointers are to locals of the right type.
        let state = unsafe { sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) };
        check("cuDevicePrimaryCtxGetState", state)?;
        // A device's handle is its ordinal.
        let ordinal = device as usize;
        // To retain a primary context that nobody uses would make it.
        if active != 0 {
            let primary = open_context(ordinal)?;
            let backend = (primary.cu_ctx() == found).then(|| CudaBackend::new(&primary));
            release(primary.cu_ctx(), "cuDevicePrimaryCtxRelease", primary);
            if let Some(backend) = backend {
                return backend;
            }
        }
        // SAFETY: sound because the context is current, and so alive, and is of this device; that it
        // must never be destroyed from here is seen to below.
        let context = unsafe { CudaContext::from_raw_context(ordinal, device, found) };
        let context =
            context.map_err(|error| CudaError::driver("cuDeviceGetAttribute", error.0))?;
        // cudarc destroys a context with the last of its handles. This one is another's.
        mem::forget(Arc::clone(&context));
        CudaBackend::new(&context)
    }

    /// A handle of a stream that other code owns, or `None` for a stream of another context. Dropping
    /// it leaves the stream alone. Null is the legacy default stream.
    ///
    /// # Errors
    ///
    /// A driver error; for a capturing stream one of kind
    /// [`ErrorKind::Capture`](crate::backend::ErrorKind::Capture).
    ///
    /// # Safety
    ///
    /// The handle is that of a live stream, or of one of the default streams, and its owner does not
    /// destroy the stream while what this returns, or anything that it was given to, lives.
    pub unsafe fn borrow_stream(
        &self,
        handle: sys::CUstream,
    ) -> Result<Option<Arc<CudaStream>>, CudaError> {
        // SAFETY: sound because the caller keeps the stream alive; that it belongs to this context is
        // checked below, before anything is submitted to it.
        let stream = unsafe { self.context.wrap_borrowed_stream(handle) };
        // The default streams (null, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD) are those of whichever
        // context is current.
        if handle.addr() <= 2 {
            return Ok(Some(stream));
        }
        let call = "cuStreamGetCtx";
        if self.is_capturing(&stream)? {
            return Err(CudaError::driver(call, Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
        }
        let mut context = ptr::null_mut();
        self.call(Captures::Unaffected, call, || {
            // SAFETY: sound because the stream lives, and the pointer is to a local of the right type.
            unsafe { sys::cuStreamGetCtx(handle, &mut context) }
        })?;
        Ok((context == self.context.cu_ctx()).then_some(stream))
    }
}

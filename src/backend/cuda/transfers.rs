//! Fills and copies, and what else the typed slices ask of the driver: with the thread left as found,
//! like the verbs.

use std::ffi::c_void;

use cudarc::driver::{CudaContext, CudaStream, DriverError, sys};

use super::context_number::number_of;
use super::error::check;
use super::thread::{Borrowed, Captures};
use super::{CudaError, call_in};

use sys::CUresult as Code;

/// The number of a context: that of the backends which stand for it.
pub(crate) fn context_id(context: &CudaContext) -> u64 {
    number_of(context.cu_ctx())
}

/// Submits one operation to a stream, unless the stream is capturing: memory of a pool is not to be
/// drawn into a graph by a call that means to run now.
fn submit(
    stream: &CudaStream,
    call: &'static str,
    operation: impl FnOnce() -> sys::CUresult,
) -> Result<(), CudaError> {
    submit_with(Captures::Unaffected, stream, call, operation)
}

/// The same for an operation that captures must be spared.
fn submit_with(
    captures: Captures,
    stream: &CudaStream,
    call: &'static str,
    operation: impl FnOnce() -> sys::CUresult,
) -> Result<(), CudaError> {
    let _borrowed = Borrowed::enter(stream.context().cu_ctx(), captures, call)?;
    let none = sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut status = none;
    // SAFETY: sound because the stream lives while `stream` does, and the pointer is to a local of the
    // right type, in which the driver puts one of its three states.
    let look = unsafe { sys::cuStreamIsCapturing(stream.cu_stream(), &mut status) };
    check("cuStreamIsCapturing", look)?;
    if status != none {
        return Err(CudaError::driver(call, Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    }
    check(call, operation())
}

/// Fills memory with zero bytes.
///
/// # Safety
///
/// The range is memory of the stream's context, and nothing that the stream does not wait for uses it.
pub(crate) unsafe fn fill_zeros(
    stream: &CudaStream,
    address: u64,
    bytes: usize,
) -> Result<(), CudaError> {
    submit(stream, "cuMemsetD8Async", || {
        // SAFETY: sound because of this function's own condition; the stream lives.
        unsafe { sys::cuMemsetD8Async(address, 0, bytes, stream.cu_stream()) }
    })
}

/// Copies from the host. Pageable memory has been read when this returns; page-locked memory is read
/// when the stream comes to it.
///
/// # Safety
///
/// As for [`fill_zeros`]; and the host's range can be read, until the stream has read it.
pub(crate) unsafe fn copy_in(
    stream: &CudaStream,
    to: u64,
    from: *const c_void,
    bytes: usize,
) -> Result<(), CudaError> {
    submit(stream, "cuMemcpyHtoDAsync", || {
        // SAFETY: sound because of this function's own condition; the stream lives.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, stream.cu_stream()) }
    })
}

/// Copies to the host.
///
/// # Safety
///
/// As for [`fill_zeros`]; and the host's range can be written, and is not used otherwise, until the
/// stream has written it.
pub(crate) unsafe fn copy_out(
    stream: &CudaStream,
    to: *mut c_void,
    from: u64,
    bytes: usize,
) -> Result<(), CudaError> {
    submit(stream, "cuMemcpyDtoHAsync", || {
        // SAFETY: sound because of this function's own condition; the stream lives.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes, stream.cu_stream()) }
    })
}

/// Copies on the device.
///
/// # Safety
///
/// As for [`fill_zeros`], for both ranges.
pub(crate) unsafe fn copy(
    stream: &CudaStream,
    to: u64,
    from: u64,
    bytes: usize,
) -> Result<(), CudaError> {
    submit(stream, "cuMemcpyDtoDAsync", || {
        // SAFETY: sound because of this function's own condition; the stream lives.
        unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.cu_stream()) }
    })
}

/// Copies from one context to another. Copies of one context are allowed in every capture mode (measured);
/// of those between two, which may have the driver take memory to stage them in, that is not known, so they
/// are made as the calls that are not.
///
/// # Safety
///
/// Each range is memory of the context beside it, both contexts live, and nothing that the stream does not
/// wait for uses either.
pub(crate) unsafe fn copy_between(
    stream: &CudaStream,
    (to, own): (u64, sys::CUcontext),
    (from, other): (u64, sys::CUcontext),
    bytes: usize,
) -> Result<(), CudaError> {
    submit_with(Captures::Spared, stream, "cuMemcpyPeerAsync", || {
        // SAFETY: sound because of this function's own condition; the stream lives.
        unsafe { sys::cuMemcpyPeerAsync(to, own, from, other, bytes, stream.cu_stream()) }
    })
}

/// Blocks until all that is on a stream has finished: for when an event of the pool's could not say so
/// and memory of the host is at stake. The stream is not capturing.
pub(crate) fn drain(stream: &CudaStream) -> Result<(), CudaError> {
    call_in(stream.context(), Captures::Spared, "cuStreamSynchronize", || {
        // SAFETY: sound because the stream lives.
        unsafe { sys::cuStreamSynchronize(stream.cu_stream()) }
    })
}

/// Runs code of cudarc's that makes a context current, and that takes an error left in it for its own:
/// afterwards the thread's current context, and that error, are as they were.
pub(crate) fn keeping_thread<R>(
    context: &CudaContext,
    call: &'static str,
    run: impl FnOnce() -> R,
) -> Result<R, CudaError> {
    struct Parked<'a>(&'a CudaContext, Result<(), DriverError>);
    impl Drop for Parked<'_> {
        fn drop(&mut self) {
            self.0.record_err(self.1);
        }
    }
    let _borrowed = Borrowed::enter(context.cu_ctx(), Captures::Spared, call)?;
    let _parked = Parked(context, context.check_err());
    Ok(run())
}

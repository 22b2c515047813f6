//! The verbs of [`Backend`], each one driver call and the facts that shape it.

use cudarc::driver::{CudaStream, sys};

use super::context_number::number_of;
use super::thread::Captures;
use super::virtual_memory::{Access, accesses};
use super::{CudaBackend, CudaError, Event, Granule, call_in, release, transfers};
use crate::backend::{Backend, ErrorKind, MemoryInfo, StreamIdentity, StreamKind};
use crate::sync::Arc;

use sys::CUresult as Code;

// SAFETY: sound because the driver gives what the trait asks for: ranges from `cuMemAlloc` and
// `cuMemAddressReserve` are disjoint in the process's one address space and usable by every stream of
// the context, and records, waits, queries and synchronizes are CUDA's own. The calls are made in the
// context that the handles belong to, which the stream or the backend keeps alive.
unsafe impl Backend for CudaBackend {
    type Stream = Arc<CudaStream>;
    type Event = Event;
    type Granule = Granule;
    type Error = CudaError;

    fn error_kind(&self, error: &CudaError) -> ErrorKind {
        error.kind()
    }

    fn context_id(&self) -> u64 {
        self.number.get()
    }

    /// A stream of a context for which no backend lives has the context number 0.
    ///
    /// A capturing stream is refused with an error of kind [`ErrorKind::Capture`]: asking for a
    /// capturing stream's id is known to break the capture, and asking for its flags is not known to
    /// be harmless.
    fn identify(&self, stream: &Arc<CudaStream>) -> Result<StreamIdentity, CudaError> {
        let handle = stream.cu_stream();
        let kind = match handle.addr() {
            // Null, or CU_STREAM_LEGACY.
            0 | 1 => StreamKind::Legacy,
            // CU_STREAM_PER_THREAD.
            2 => StreamKind::PerThread,
            _ => {
                if self.is_capturing(stream)? {
                    let code = Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
                    return Err(CudaError::driver("cuStreamGetFlags", code));
                }
                let mut flags = 0;
                call_in(stream.context(), Captures::Unaffected, "cuStreamGetFlags", || {
                    // SAFETY: sound because the stream lives while `stream` does, and the pointer is
                    // to a local of the right type.
                    unsafe { sys::cuStreamGetFlags(handle, &mut flags) }
                })?;
                match flags & sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32 {
                    0 => StreamKind::Blocking,
                    _ => StreamKind::NonBlocking,
                }
            }
        };
        let context = number_of(stream.context().cu_ctx());
        Ok(StreamIdentity { context, handle: handle.addr() as u64, kind })
    }

    fn is_capturing(&self, stream: &Arc<CudaStream>) -> Result<bool, CudaError> {
        let none = sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut status = none;
        // In the stream's own context: the legacy stream's handle means that of the current one.
        let answer = call_in(stream.context(), Captures::Unaffected, "cuStreamIsCapturing", || {
            // SAFETY: sound because the stream lives while `stream` does, and the pointer is to a
            // local of the right type, in which the driver puts one of its three states.
            unsafe { sys::cuStreamIsCapturing(stream.cu_stream(), &mut status) }
        });
        match answer {
            // An invalidated capture goes on until its owner ends it.
            Ok(()) => Ok(status != none),
            // The legacy stream, while a blocking stream captures. The capture is not harmed.
            Err(error) if error.is(Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn release_stream(&self, stream: Arc<CudaStream>) {
        let context = stream.context().cu_ctx();
        release(context, "cuStreamDestroy", stream);
    }

    fn memory_info(&self) -> Result<MemoryInfo, CudaError> {
        let (mut free, mut total) = (0, 0);
        self.call(Captures::Unaffected, "cuMemGetInfo", || {
            // SAFETY: sound because both pointers are to locals of the right type.
            unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }
        })?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn granularity(&self) -> Option<u64> {
        self.granularity
    }

    /// `cuMemAlloc`, not the driver's own pool: with its release threshold of 0 that gives everything
    /// back at each synchronize.
    fn alloc_segment(&self, bytes: u64) -> Result<u64, CudaError> {
        let call = "cuMemAlloc";
        let bytes = length(call, bytes)?;
        let mut address = 0;
        self.call(Captures::Spared, call, || {
            // SAFETY: sound because the pointer is to a local of the right type.
            unsafe { sys::cuMemAlloc_v2(&mut address, bytes) }
        })?;
        Ok(address)
    }

    unsafe fn free_segment(&self, address: u64, _bytes: u64) -> Result<(), CudaError> {
        self.call(Captures::Spared, "cuMemFree", || {
            // SAFETY: sound because the caller owns the segment and its last use has completed.
            unsafe { sys::cuMemFree_v2(address) }
        })
    }

    fn reserve_range(&self, bytes: u64) -> Result<u64, CudaError> {
        let call = "cuMemAddressReserve";
        let bytes = length(call, bytes)?;
        let mut address = 0;
        self.call(Captures::Spared, call, || {
            // SAFETY: sound because the pointer is to a local of the right type. Alignment 0 asks
            // for the default, the granularity; address 0 for any place.
            unsafe { sys::cuMemAddressReserve(&mut address, bytes, 0, 0, 0) }
        })?;
        Ok(address)
    }

    unsafe fn release_range(&self, address: u64, bytes: u64) -> Result<(), CudaError> {
        let call = "cuMemAddressFree";
        let bytes = length(call, bytes)?;
        self.call(Captures::Spared, call, || {
            // SAFETY: sound because the caller owns the range and has nothing mapped in it.
            unsafe { sys::cuMemAddressFree(address, bytes) }
        })
    }

    fn create_granule(&self, bytes: u64) -> Result<Granule, CudaError> {
        let call = "cuMemCreate";
        let bytes = length(call, bytes)?;
        let allocation = self.allocation();
        let mut handle = 0;
        self.call(Captures::Spared, call, || {
            // SAFETY: sound because both pointers are to locals that live through the call, and
            // `Allocation` has the layout of the bindings' structure.
            unsafe { sys::cuMemCreate(&mut handle, bytes, allocation.as_ptr(), 0) }
        })?;
        Ok(Granule(handle))
    }

    unsafe fn destroy_granule(&self, granule: Granule) -> Result<(), (Granule, CudaError)> {
        let released = self.call(Captures::Spared, "cuMemRelease", || {
            // SAFETY: sound because the granule owns its handle, and it is given up here.
            unsafe { sys::cuMemRelease(granule.0) }
        });
        released.map_err(|error| (granule, error))
    }

    unsafe fn map(&self, address: u64, bytes: u64, granule: &Granule) -> Result<(), CudaError> {
        let call = "cuMemMap";
        let bytes = length(call, bytes)?;
        self.call(Captures::Spared, call, || {
            // SAFETY: sound because the caller owns the range, has nothing mapped in it, and gives
            // the granule's own size; the granule lives.
            unsafe { sys::cuMemMap(address, bytes, 0, granule.0, 0) }
        })
    }

    unsafe fn set_access(
        &self,
        address: u64,
        bytes: u64,
        peers: &[&CudaBackend],
    ) -> Result<(), CudaError> {
        let call = "cuMemSetAccess";
        let bytes = length(call, bytes)?;
        // One entry for a device: access is the device's, not the context's.
        let mut list = vec![Access::read_write(self.context.cu_device())];
        for peer in peers {
            let device = peer.context.cu_device();
            if list.iter().all(|access| access.device() != device) {
                list.push(Access::read_write(device));
            }
        }
        self.call(Captures::Spared, call, || {
            // SAFETY: sound because the list lives through the call and `Access` has the layout of
            // the bindings' structure; the caller vouches for the range.
            unsafe { sys::cuMemSetAccess(address, bytes, accesses(&list), list.len()) }
        })
    }

    /// The driver does not wait for the device (measured), so nothing but the caller protects it.
    unsafe fn unmap(&self, address: u64, bytes: u64) -> Result<(), CudaError> {
        let call = "cuMemUnmap";
        let bytes = length(call, bytes)?;
        self.call(Captures::Spared, call, || {
            // SAFETY: sound because the caller owns the range, names whole granules, and knows that
            // their last use has completed.
            unsafe { sys::cuMemUnmap(address, bytes) }
        })
    }

    /// Plain segments are opened by giving the peer's context access to *all* plain memory of this one, also
    /// that of other code: so only where they are wanted.
    fn allow_peer(&self, peer: &CudaBackend, segments: bool) -> Result<(), CudaError> {
        let (own, other) = (&*self.context, &*peer.context);
        if own.cu_ctx() == other.cu_ctx() {
            return Ok(());
        }
        let mut can_access = 0;
        let call = "cuDeviceCanAccessPeer";
        peer.call(Captures::Spared, call, || {
            // SAFETY: sound because the pointer is to a local of the right type, and both devices
            // are those of live contexts.
            unsafe {
                sys::cuDeviceCanAccessPeer(&mut can_access, other.cu_device(), own.cu_device())
            }
        })?;
        if can_access == 0 {
            return Err(CudaError::driver(call, Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
        }
        if !segments {
            return Ok(());
        }
        // It is the current context that gains access to the one named.
        let enabled = peer.call(Captures::Spared, "cuCtxEnablePeerAccess", || {
            // SAFETY: sound because both contexts are alive.
            unsafe { sys::cuCtxEnablePeerAccess(own.cu_ctx(), 0) }
        });
        match enabled {
            Err(error) if error.is(Code::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) => Ok(()),
            enabled => enabled,
        }
    }

    /// Between contexts by the peer copy: where the devices have no access to each other, it alone copes with
    /// memory that is not from `cuMemAlloc` (as PyTorch's allocator found, `CUDACachingAllocator.cpp`,
    /// `memcpyAsync`), and goes by way of the host if it must.
    unsafe fn copy(
        &self,
        stream: &Arc<CudaStream>,
        to: u64,
        source: &CudaBackend,
        from: u64,
        bytes: u64,
    ) -> Result<(), CudaError> {
        let (own, other) = (self.context.cu_ctx(), source.context.cu_ctx());
        if own == other {
            let bytes = length("cuMemcpyDtoDAsync", bytes)?;
            // SAFETY: sound because the caller vouches for both ranges and their order.
            return unsafe { transfers::copy(stream, to, from, bytes) };
        }
        let bytes = length("cuMemcpyPeerAsync", bytes)?;
        // SAFETY: sound because the caller vouches for both ranges and their order, and both contexts live.
        unsafe { transfers::copy_between(stream, (to, own), (from, other), bytes) }
    }

    /// Without timing: an event that keeps time costs the device more.
    fn create_event(&self) -> Result<Event, CudaError> {
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        self.call(Captures::Unaffected, "cuEventCreate", || {
            // SAFETY: sound because the pointer is to a local of the right type.
            unsafe { sys::cuEventCreate(&mut event, flags) }
        })?;
        Ok(Event(event))
    }

    /// A failure leaks the event: it comes when the context is lost or the process exits, and then
    /// the driver has no use for it either.
    fn destroy_event(&self, event: Event) {
        let _ = self.call(Captures::Spared, "cuEventDestroy", || {
            // SAFETY: sound because the value owns the event, and it is given up here.
            unsafe { sys::cuEventDestroy_v2(event.0) }
        });
    }

    fn record(&self, event: &Event, stream: &Arc<CudaStream>) -> Result<(), CudaError> {
        self.call(Captures::Unaffected, "cuEventRecord", || {
            // SAFETY: sound because the event and the stream live while their values do.
            unsafe { sys::cuEventRecord(event.0, stream.cu_stream()) }
        })
    }

    /// Since CUDA 12.5. In relaxed mode, for the sake of captures on other devices. It breaks those of
    /// this context all the same.
    fn record_context(&self, event: &Event) -> Result<bool, CudaError> {
        let Some(record) = self.record_context else { return Ok(false) };
        let recorded = self.call(Captures::Spared, "cuCtxRecordEvent", || {
            // SAFETY: sound because the context and the event live while their values do.
            unsafe { record(self.context.cu_ctx(), event.0) }
        });
        match recorded {
            Ok(()) => Ok(true),
            // The driver has the function, and this device has not what it needs.
            Err(error) if error.is(Code::CUDA_ERROR_NOT_SUPPORTED) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn wait(&self, stream: &Arc<CudaStream>, event: &Event) -> Result<(), CudaError> {
        // In the stream's own context, because the stream may be another device's legacy stream.
        call_in(stream.context(), Captures::Unaffected, "cuStreamWaitEvent", || {
            // SAFETY: sound because the event and the stream live while their values do.
            unsafe { sys::cuStreamWaitEvent(stream.cu_stream(), event.0, 0) }
        })
    }

    fn query(&self, event: &Event) -> Result<bool, CudaError> {
        let answer = self.call(Captures::Spared, "cuEventQuery", || {
            // SAFETY: sound because the event lives while its value does.
            unsafe { sys::cuEventQuery(event.0) }
        });
        match answer {
            Ok(()) => Ok(true),
            Err(error) if error.is(Code::CUDA_ERROR_NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn synchronize_event(&self, event: &Event) -> Result<(), CudaError> {
        self.call(Captures::Spared, "cuEventSynchronize", || {
            // SAFETY: sound because the event lives while its value does.
            unsafe { sys::cuEventSynchronize(event.0) }
        })
    }

    /// In relaxed mode, for the sake of captures on other devices. It breaks those of this context
    /// all the same.
    fn synchronize_context(&self) -> Result<(), CudaError> {
        self.call(Captures::Spared, "cuCtxSynchronize", || {
            // SAFETY: sound because the context is alive and current.
            unsafe { sys::cuCtxSynchronize() }
        })
    }
}

/// A length for the driver. One that does not fit the address space is out of memory.
fn length(call: &'static str, bytes: u64) -> Result<usize, CudaError> {
    usize::try_from(bytes).map_err(|_| CudaError::driver(call, Code::CUDA_ERROR_OUT_OF_MEMORY))
}

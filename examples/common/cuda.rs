//! A CUDA device for the examples: the crate's backend, with its calls counted, and one kernel.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{CudaStream, result, sys};
use streampool::Backend;
use streampool::backend::{ErrorKind, MemoryInfo, StreamIdentity};
use streampool::cuda::{CudaBackend, CudaError, Event, Granule};

use super::cli::Outcome;
use super::device::{Counts, Device, Launch};

/// Device 0. Each has counts of its own.
#[derive(Clone)]
pub(crate) struct Cuda {
    counted: Counted,
    touch: sys::CUfunction,
}

impl Cuda {
    pub(crate) fn open() -> Outcome<Cuda> {
        let backend = CudaBackend::open(0)?;
        // SAFETY: sound because the context lives as long as the backend, and the examples never let it
        // go while they run.
        unsafe { result::ctx::set_current(backend.context().cu_ctx()) }?;
        let text = CString::new(include_str!("../../kernels/bench.ptx"))?;
        // SAFETY: sound because the text is a PTX module that ends in NUL, and a context is current.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
        // SAFETY: sound because the module was just loaded, and is never unloaded.
        let touch = unsafe { result::module::get_function(module, CString::new("touch")?) }?;
        Ok(Cuda { counted: Counted::new(backend), touch })
    }
}

impl Device for Cuda {
    type Backend = Counted;

    fn backend(&self) -> Counted {
        self.counted.clone()
    }

    fn create_stream(&self) -> Outcome<Arc<CudaStream>> {
        Ok(self.counted.backend.context().new_stream()?)
    }

    fn launch(&self, stream: &Arc<CudaStream>, launch: Launch) -> Outcome<()> {
        let mut address = launch.address;
        let mut arguments = [ptr::from_mut(&mut address).cast::<c_void>()];
        let one = (1, 1, 1);
        // SAFETY: sound because the stream lives, the argument is copied before the call returns, and
        // the kernel writes one byte of a buffer that its program holds.
        unsafe {
            result::launch_kernel(self.touch, one, one, 0, stream.cu_stream(), &mut arguments)
        }?;
        Ok(())
    }

    fn synchronize(&self) -> Outcome<()> {
        Ok(self.counted.backend.synchronize_context()?)
    }

    fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let calls = &self.counted.calls;
        Counts {
            event_records: read(&calls.records),
            stream_waits: read(&calls.waits),
            event_queries: read(&calls.queries),
            synchronizes: read(&calls.synchronizes),
            mapping_calls: read(&calls.mappings),
        }
    }

    fn memory_taken(&self) -> u64 {
        self.counted.calls.taken.load(Ordering::Relaxed)
    }

    fn memory_peak(&self) -> u64 {
        self.counted.calls.peak.load(Ordering::Relaxed)
    }

    fn hazards(&self) -> Option<u64> {
        None
    }

    fn first_hazard(&self) -> Option<String> {
        None
    }

    fn handed_out(&self, _: &Arc<CudaStream>, _: u64, _: u64) {}

    fn given_back(&self, _: u64, _: u64) {}
}

/// The crate's backend, with its calls counted.
#[derive(Clone)]
pub(crate) struct Counted {
    backend: Arc<CudaBackend>,
    calls: Arc<Calls>,
}

#[derive(Default)]
struct Calls {
    records: AtomicU64,
    waits: AtomicU64,
    queries: AtomicU64,
    synchronizes: AtomicU64,
    mappings: AtomicU64,
    /// Physical bytes taken now, and at most.
    taken: AtomicU64,
    peak: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counted {
    fn new(backend: CudaBackend) -> Counted {
        Counted { backend: Arc::new(backend), calls: Arc::default() }
    }

    fn take(&self, bytes: u64) {
        let taken = self.calls.taken.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.calls.peak.fetch_max(taken, Ordering::Relaxed);
    }

    fn give(&self, bytes: u64) {
        self.calls.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A granule, with its size.
pub(crate) struct CountedGranule {
    granule: Granule,
    bytes: u64,
}

// SAFETY: sound because every verb is the CUDA backend's own; counting changes nothing.
unsafe impl Backend for Counted {
    type Stream = Arc<CudaStream>;
    type Event = Event;
    type Granule = CountedGranule;
    type Error = CudaError;

    fn error_kind(&self, error: &CudaError) -> ErrorKind {
        self.backend.error_kind(error)
    }

    fn context_id(&self) -> u64 {
        self.backend.context_id()
    }

    fn identify(&self, stream: &Self::Stream) -> Result<StreamIdentity, CudaError> {
        self.backend.identify(stream)
    }

    fn is_capturing(&self, stream: &Self::Stream) -> Result<bool, CudaError> {
        self.backend.is_capturing(stream)
    }

    fn release_stream(&self, stream: Self::Stream) {
        self.backend.release_stream(stream);
    }

    fn memory_info(&self) -> Result<MemoryInfo, CudaError> {
        self.backend.memory_info()
    }

    fn granularity(&self) -> Option<u64> {
        self.backend.granularity()
    }

    fn alloc_segment(&self, bytes: u64) -> Result<u64, CudaError> {
        count(&self.calls.mappings);
        self.backend.alloc_segment(bytes).inspect(|_| self.take(bytes))
    }

    unsafe fn free_segment(&self, address: u64, bytes: u64) -> Result<(), CudaError> {
        count(&self.calls.mappings);
        // SAFETY: sound because the caller's promise is the same.
        unsafe { self.backend.free_segment(address, bytes) }.inspect(|()| self.give(bytes))
    }

    fn reserve_range(&self, bytes: u64) -> Result<u64, CudaError> {
        self.backend.reserve_range(bytes)
    }

    unsafe fn release_range(&self, address: u64, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: sound because the caller's promise is the same.
        unsafe { self.backend.release_range(address, bytes) }
    }

    fn create_granule(&self, bytes: u64) -> Result<CountedGranule, CudaError> {
        count(&self.calls.mappings);
        let granule = self.backend.create_granule(bytes).inspect(|_| self.take(bytes))?;
        Ok(CountedGranule { granule, bytes })
    }

    unsafe fn destroy_granule(
        &self,
        granule: CountedGranule,
    ) -> Result<(), (CountedGranule, CudaError)> {
        count(&self.calls.mappings);
        let CountedGranule { granule, bytes } = granule;
        // SAFETY: sound because the caller's promise is the same.
        unsafe { self.backend.destroy_granule(granule) }
            .inspect(|()| self.give(bytes))
            .map_err(|(granule, error)| (CountedGranule { granule, bytes }, error))
    }

    unsafe fn map(
        &self,
        address: u64,
        bytes: u64,
        granule: &CountedGranule,
    ) -> Result<(), CudaError> {
        count(&self.calls.mappings);
        // SAFETY: sound because the caller's promise is the same.
        unsafe { self.backend.map(address, bytes, &granule.granule) }
    }

    unsafe fn set_access(
        &self,
        address: u64,
        bytes: u64,
        peers: &[&Self],
    ) -> Result<(), CudaError> {
        count(&self.calls.mappings);
        let peers: Vec<&CudaBackend> = peers.iter().map(|peer| &*peer.backend).collect();
        // SAFETY: sound because the caller's promise is the same.
        unsafe { self.backend.set_access(address, bytes, &peers) }
    }

    unsafe fn unmap(&self, address: u64, bytes: u64) -> Result<(), CudaError> {
        count(&self.calls.mappings);
        // SAFETY: sound because the caller's promise is the same.
        unsafe { self.backend.unmap(address, bytes) }
    }

    fn allow_peer(&self, peer: &Self, segments: bool) -> Result<(), CudaError> {
        self.backend.allow_peer(&peer.backend, segments)
    }

    unsafe fn copy(
        &self,
        stream: &Self::Stream,
        to: u64,
        source: &Self,
        from: u64,
        bytes: u64,
    ) -> Result<(), CudaError> {
        // SAFETY: sound because the caller's promise is the same.
        unsafe { self.backend.copy(stream, to, &source.backend, from, bytes) }
    }

    fn create_event(&self) -> Result<Event, CudaError> {
        self.backend.create_event()
    }

    fn destroy_event(&self, event: Event) {
        self.backend.destroy_event(event);
    }

    fn record(&self, event: &Event, stream: &Self::Stream) -> Result<(), CudaError> {
        count(&self.calls.records);
        self.backend.record(event, stream)
    }

    fn record_context(&self, event: &Event) -> Result<bool, CudaError> {
        let recorded = self.backend.record_context(event);
        if !matches!(recorded, Ok(false)) {
            count(&self.calls.records);
        }
        recorded
    }

    fn wait(&self, stream: &Self::Stream, event: &Event) -> Result<(), CudaError> {
        count(&self.calls.waits);
        self.backend.wait(stream, event)
    }

    fn query(&self, event: &Event) -> Result<bool, CudaError> {
        count(&self.calls.queries);
        self.backend.query(event)
    }

    fn synchronize_event(&self, event: &Event) -> Result<(), CudaError> {
        count(&self.calls.synchronizes);
        self.backend.synchronize_event(event)
    }

    fn synchronize_context(&self) -> Result<(), CudaError> {
        count(&self.calls.synchronizes);
        self.backend.synchronize_context()
    }
}

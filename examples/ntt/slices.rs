//! The allocators that are compared on a GPU: the pool, and cudarc's own allocation.

use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use streampool::PoolStream;
use streampool::cuda::{CudaBackend, CudaPool, PooledSlice};

use super::common::cli::Outcome;
use super::common::device::Counts;
use super::cuda::Gpu;
use super::driver_pool::DriverPool;
use super::machine::settled;

/// An allocator of words, as cudarc's calls see it.
pub(crate) trait Slices {
    type Slice: DevicePtr<u64> + DevicePtrMut<u64>;

    /// Makes the device ready for this allocator.
    fn prepare(&self) -> Outcome<()>;
    fn alloc(&self, stream: usize, words: usize) -> Outcome<Self::Slice>;
    fn share(&self, slice: &Self::Slice, stream: usize) -> Outcome<()>;
    /// `readers`: the other streams that have read the slice.
    fn free(&self, slice: Self::Slice, readers: &[usize]) -> Outcome<()>;
    /// Frees them when all work has finished.
    fn clear(&self, slices: Vec<Self::Slice>) -> Outcome<()>;
    /// The address for a launch that reads the slice, and what is to be dropped after the launch.
    fn read<'a>(slice: &'a Self::Slice, stream: &'a CudaStream) -> (u64, Option<SyncOnDrop<'a>>);
    /// The same for a launch that writes it.
    fn write<'a>(
        slice: &'a mut Self::Slice,
        stream: &'a CudaStream,
    ) -> (u64, Option<SyncOnDrop<'a>>);
    fn calls(&self) -> Option<Counts>;
    fn close(self) -> Outcome<()>;
}

/// The pool.
pub(crate) struct Pooled {
    pool: CudaPool,
    streams: Vec<PoolStream<CudaBackend>>,
}

impl Pooled {
    pub(crate) fn new(gpu: &Gpu) -> Outcome<Pooled> {
        let pool = CudaPool::new(CudaBackend::new(&gpu.context)?);
        let streams = gpu.streams.iter().map(|stream| pool.stream(Arc::clone(stream)));
        Ok(Pooled { streams: streams.collect::<Result<_, _>>()?, pool })
    }
}

impl Slices for Pooled {
    type Slice = PooledSlice<u64>;

    fn prepare(&self) -> Outcome<()> {
        Ok(())
    }

    fn alloc(&self, stream: usize, words: usize) -> Outcome<PooledSlice<u64>> {
        // SAFETY: sound because each step of the program writes all words of its target.
        Ok(unsafe { self.streams[stream].alloc_slice(words) }?)
    }

    fn share(&self, slice: &PooledSlice<u64>, stream: usize) -> Outcome<()> {
        Ok(slice.use_on(&self.streams[stream])?)
    }

    fn free(&self, slice: PooledSlice<u64>, _: &[usize]) -> Outcome<()> {
        drop(slice);
        Ok(())
    }

    fn clear(&self, slices: Vec<PooledSlice<u64>>) -> Outcome<()> {
        let scope = self.pool.quiesce()?;
        drop(slices);
        settled(&scope.finish())
    }

    fn read<'a>(slice: &'a PooledSlice<u64>, _: &'a CudaStream) -> (u64, Option<SyncOnDrop<'a>>) {
        // At home, or on a stream that `use_on` has made wait: there is nothing to order.
        (slice.address(), None)
    }

    fn write<'a>(
        slice: &'a mut PooledSlice<u64>,
        _: &'a CudaStream,
    ) -> (u64, Option<SyncOnDrop<'a>>) {
        (slice.address(), None)
    }

    fn calls(&self) -> Option<Counts> {
        Some(Counts::of_pool(&self.pool.stats()))
    }

    fn close(self) -> Outcome<()> {
        drop(self.streams);
        Ok(self.pool.close()?)
    }
}

/// cudarc's own. A slice that is tracked carries two events, for its reads and its writes: each use on a
/// stream waits for the one and records the other. That is cudarc's default. Where it is turned off, the
/// program orders what crosses streams.
pub(crate) struct Own {
    gpu: Rc<Gpu>,
    tracked: bool,
    /// The driver's pool that slices are from; `None` on a device without such pools.
    pool: Option<DriverPool>,
}

impl Own {
    /// `raised`: from a pool that keeps its free memory. Only for a device that has pools.
    pub(crate) fn new(gpu: &Rc<Gpu>, tracked: bool, raised: bool) -> Outcome<Own> {
        let device = gpu.context.cu_device();
        let pool = match (gpu.context.has_async_alloc(), raised) {
            (false, _) => None,
            (true, false) => Some(DriverPool::of_device(device)?),
            (true, true) => Some(DriverPool::raised(device)?),
        };
        let own = Own { gpu: Rc::clone(gpu), tracked, pool };
        own.prepare()?;
        Ok(own)
    }
}

impl Slices for Own {
    type Slice = CudaSlice<u64>;

    fn prepare(&self) -> Outcome<()> {
        self.pool.as_ref().map_or(Ok(()), DriverPool::make_current)
    }

    fn alloc(&self, stream: usize, words: usize) -> Outcome<CudaSlice<u64>> {
        let context = &self.gpu.context;
        if !self.tracked {
            // SAFETY: sound because `share` and `free` order the uses on other streams.
            unsafe { context.disable_event_tracking() };
        }
        // SAFETY: sound because each step of the program writes all words of its target.
        let slice = unsafe { self.gpu.streams[stream].alloc(words) };
        // SAFETY: sound because it is the default. What matters is how it was when a slice was made.
        unsafe { context.enable_event_tracking() };
        Ok(slice?)
    }

    fn share(&self, slice: &CudaSlice<u64>, stream: usize) -> Outcome<()> {
        if !self.tracked {
            self.gpu.streams[stream].join(slice.stream())?;
        }
        // Otherwise the launch waits for the slice's last write by itself.
        Ok(())
    }

    fn free(&self, slice: CudaSlice<u64>, readers: &[usize]) -> Outcome<()> {
        // A tracked slice too has one event for all that read it, so that its drop waits for the last of
        // them only: the program has to make the slice's stream wait for the others.
        for &reader in readers {
            slice.stream().join(&self.gpu.streams[reader])?;
        }
        drop(slice);
        Ok(())
    }

    fn clear(&self, slices: Vec<CudaSlice<u64>>) -> Outcome<()> {
        drop(slices);
        Ok(())
    }

    fn read<'a>(
        slice: &'a CudaSlice<u64>,
        stream: &'a CudaStream,
    ) -> (u64, Option<SyncOnDrop<'a>>) {
        // What `launch_builder` does too: waits for the last write, records the read in the end.
        let (address, record) = slice.device_ptr(stream);
        (address, Some(record))
    }

    fn write<'a>(
        slice: &'a mut CudaSlice<u64>,
        stream: &'a CudaStream,
    ) -> (u64, Option<SyncOnDrop<'a>>) {
        let (address, record) = slice.device_ptr_mut(stream);
        (address, Some(record))
    }

    fn calls(&self) -> Option<Counts> {
        None
    }

    fn close(self) -> Outcome<()> {
        // Errors of drops are kept for the next call.
        Ok(self.gpu.context.check_err()?)
    }
}

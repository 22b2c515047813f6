//! The device, its kernels, and pools on it as the options say.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, result, sys};
use streampool::cuda::CudaBackend;
use streampool::{Buffer, PoolBuilder, PoolStream, Reuse, StreamPool};

use crate::Failure;
use crate::options::Options;
use crate::report::Line;

pub(crate) type Pool = StreamPool<CudaBackend>;
pub(crate) type Stream = PoolStream<CudaBackend>;
pub(crate) type DeviceBuffer = Buffer<CudaBackend>;

/// How long the `spin` kernel keeps a stream busy, in nanoseconds.
const BUSY: u64 = 20_000_000;

/// Device 0, current on the main thread until the program ends.
pub(crate) struct Bench<'a> {
    options: &'a Options,
    context: Arc<CudaContext>,
    spin: sys::CUfunction,
    touch: sys::CUfunction,
    compute: sys::CUfunction,
}

impl Bench<'_> {
    pub(crate) fn open(options: &Options) -> Result<Bench<'_>, Failure> {
        let context = Arc::clone(CudaBackend::open(0)?.context());
        // SAFETY: sound because the context lives as long as this program measures.
        unsafe { result::ctx::set_current(context.cu_ctx()) }?;
        let text = CString::new(include_str!("../../kernels/bench.ptx"))?;
        // SAFETY: sound because the text is a PTX module that ends in NUL, and a context is current.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
        let kernel = |name: &str| -> Result<sys::CUfunction, Failure> {
            let name = CString::new(name)?;
            // SAFETY: sound because the module was just loaded, and is never unloaded.
            Ok(unsafe { result::module::get_function(module, name) }?)
        };
        let (spin, touch, compute) = (kernel("spin")?, kernel("touch")?, kernel("compute")?);
        Ok(Bench { options, context, spin, touch, compute })
    }

    /// A pool of its own for a workload, empty.
    pub(crate) fn pool(&self) -> Result<Pool, Failure> {
        self.pool_with(|builder| builder)
    }

    /// The same, with options of a workload's own.
    pub(crate) fn pool_with(
        &self,
        options: impl FnOnce(PoolBuilder<CudaBackend>) -> PoolBuilder<CudaBackend>,
    ) -> Result<Pool, Failure> {
        let mut backend = CudaBackend::new(&self.context)?;
        if self.options.segments {
            backend = backend.with_plain_segments();
        }
        Ok(options(StreamPool::builder(backend).reuse(self.options.reuse)).build()?)
    }

    /// New non-blocking streams, registered.
    pub(crate) fn streams(&self, pool: &Pool, count: usize) -> Result<Vec<Stream>, Failure> {
        (0..count).map(|_| Ok(pool.stream(self.context.new_stream()?)?)).collect()
    }

    pub(crate) fn stream(&self, pool: &Pool) -> Result<Stream, Failure> {
        Ok(pool.stream(self.context.new_stream()?)?)
    }

    /// Waits for everything on the device, without the pool's knowledge.
    pub(crate) fn synchronize(&self) -> Result<(), Failure> {
        Ok(result::ctx::synchronize()?)
    }

    /// Free memory of the device in bytes, as the driver says.
    pub(crate) fn free_memory(&self) -> Result<u64, Failure> {
        Ok(result::mem_get_info()?.0 as u64)
    }

    /// Keeps the stream busy for 20 ms.
    pub(crate) fn keep_busy(&self, stream: &Stream) -> Result<(), Failure> {
        self.spin(stream, BUSY)
    }

    /// Keeps the stream busy for so many nanoseconds.
    pub(crate) fn spin(&self, stream: &Stream, ns: u64) -> Result<(), Failure> {
        // SAFETY: sound because `spin` takes one number and touches no memory.
        Ok(unsafe { launch(self.spin, stream, [ns]) }?)
    }

    /// Keeps the buffer's stream busy for so many ticks of the device's clock, and writes to the buffer, of
    /// at least 8 bytes.
    pub(crate) fn compute(&self, buffer: &DeviceBuffer, ticks: u64) -> Result<(), Failure> {
        assert!(buffer.len() >= 8, "a number does not fit in {} bytes", buffer.len());
        // SAFETY: sound because `compute` takes two numbers, and writes 8 bytes at an address of a live
        // buffer that has them, on the buffer's stream.
        Ok(unsafe { launch(self.compute, &buffer.stream(), [buffer.device_ptr(), ticks]) }?)
    }

    /// Writes one byte of the buffer on its stream.
    pub(crate) fn touch(&self, buffer: &DeviceBuffer, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: sound because `touch` writes one byte at an address of a live buffer, on the stream
        // that the buffer was allocated on and is freed on.
        Ok(unsafe { launch(self.touch, stream, [buffer.device_ptr()]) }?)
    }

    /// A smaller count where only the run as such matters.
    pub(crate) fn count(&self, full: usize, quick: usize) -> usize {
        if self.options.quick { quick } else { full }
    }

    pub(crate) fn line(&self, workload: &str, unit: &str, value: f64) -> Line {
        self.line_of("", workload, unit, value)
    }

    /// A line for a pool that reuses in a way of the workload's own, whatever the options say.
    pub(crate) fn line_reusing(
        &self,
        reuse: Reuse,
        workload: &str,
        unit: &str,
        value: f64,
    ) -> Line {
        Line::new(&self.options.peer_reusing("", reuse), workload, unit, value)
    }

    /// A line for one of several ways to use the pool.
    pub(crate) fn line_of(&self, way: &str, workload: &str, unit: &str, value: f64) -> Line {
        Line::new(&self.options.peer(way), workload, unit, value)
    }
}

/// Launches one thread of a kernel that takes so many 64-bit arguments.
///
/// # Safety
///
/// As for the kernel.
unsafe fn launch<const N: usize>(
    kernel: sys::CUfunction,
    stream: &Stream,
    arguments: [u64; N],
) -> Result<(), DriverError> {
    let raw = stream.raw().cu_stream();
    let one = (1, 1, 1);
    let mut arguments =
        arguments.each_ref().map(|own| ptr::from_ref(own).cast_mut().cast::<c_void>());
    // SAFETY: sound because the stream lives, the arguments are read before the call returns, and the
    // caller answers for what the kernel does.
    unsafe { result::launch_kernel(kernel, one, one, 0, raw, &mut arguments) }
}

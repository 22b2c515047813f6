//! The program on a GPU: what is the same on every allocator.

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaContext, CudaStream, DeviceSlice, PinnedHostSlice, result, sys};
use streampool::cuda::CudaBackend;

use super::common::cli::{Failure, Outcome};
use super::common::device::Counts;
use super::inputs::Inputs;
use super::kernels::{Kernel, Launch};
use super::machine::Machine;
use super::measure::{Allocator, Contestant, Measured, measure};
use super::options::Options;
use super::program::Program;
use super::reference::Polynomial;
use super::ring::Ring;
use super::slices::{Own, Pooled, Slices};

/// Measures the pool and cudarc's own allocation on device 0.
pub(crate) fn compare(
    options: &Options,
    ring: &Ring,
    inputs: &Inputs,
    expected: Option<&[Polynomial]>,
) -> Outcome<Vec<Measured>> {
    let gpu = Gpu::open(options.streams)?;
    let contestants: Vec<Which> = match gpu.context.has_async_alloc() {
        true => vec![
            Which::Pool,
            Which::cudarc(
                "cudarc untracked, threshold raised",
                ASYNC_UNTRACKED_RAISED,
                false,
                true,
            ),
            Which::cudarc("cudarc, threshold raised", ASYNC_RAISED, true, true),
            Which::cudarc("cudarc untracked", ASYNC_UNTRACKED, false, false),
            Which::cudarc("cudarc", ASYNC, true, false),
        ],
        // The driver has no pools, and no thresholds.
        false => vec![
            Which::Pool,
            Which::cudarc("cudarc untracked", PLAIN_UNTRACKED, false, false),
            Which::cudarc("cudarc", PLAIN, true, false),
        ],
    };
    let allocators: Vec<Allocator> = contestants.iter().map(Which::allocator).collect();
    measure(options, &allocators, true, |index, _| {
        let share = || Rc::clone(&gpu);
        let contestant: Box<dyn Contestant> = match contestants[index] {
            Which::Pool => {
                let machine = Cuda::new(share(), Pooled::new(&gpu)?)?;
                Box::new(Program::new(machine, ring, inputs, expected)?)
            }
            Which::Cudarc { tracked, raised, .. } => {
                let machine = Cuda::new(share(), Own::new(&gpu, tracked, raised)?)?;
                Box::new(Program::new(machine, ring, inputs, expected)?)
            }
        };
        Ok(contestant)
    })
}

/// An allocator of a GPU's memory.
enum Which {
    Pool,
    /// cudarc's: with its events at each use or without, and from a pool of the driver's whose release
    /// threshold is raised or from the device's default one.
    Cudarc {
        allocator: Allocator,
        tracked: bool,
        raised: bool,
    },
}

const ASYNC: &str = "CudaStream::alloc and CudaSlice by cuMemAllocAsync, with cudarc's events at each use; \
                     from the device's default pool, which gives free memory back at each synchronize";
const ASYNC_UNTRACKED: &str = "the same pool, with cudarc's event tracking turned off: the program orders \
                               its streams by events of its own";
const ASYNC_RAISED: &str = "cudarc's events at each use; from a pool of the driver's with the release \
                            threshold raised to the most: it gives nothing back";
const ASYNC_UNTRACKED_RAISED: &str = "cuMemAllocAsync from a pool of the driver's with the release \
                                      threshold raised, with cudarc's event tracking turned off";
const PLAIN: &str =
    "CudaStream::alloc and CudaSlice by cuMemAlloc, with cudarc's events at each use";
const PLAIN_UNTRACKED: &str = "CudaStream::alloc and CudaSlice by cuMemAlloc, with cudarc's event tracking \
                               turned off: the program orders its streams by events of its own";

impl Which {
    fn cudarc(name: &'static str, meaning: &'static str, tracked: bool, raised: bool) -> Which {
        Which::Cudarc { allocator: Allocator { name, meaning }, tracked, raised }
    }

    fn allocator(&self) -> Allocator {
        match self {
            Which::Pool => {
                Allocator { name: "streampool", meaning: "PoolStream::alloc_slice and PooledSlice" }
            }
            Which::Cudarc { allocator, .. } => *allocator,
        }
    }
}

/// What all allocators work on.
pub(crate) struct Gpu {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) streams: Vec<Arc<CudaStream>>,
    /// In the order of [`Kernel::ALL`].
    kernels: Vec<sys::CUfunction>,
    begun: Instant,
}

impl Gpu {
    fn open(streams: usize) -> Outcome<Rc<Gpu>> {
        // It says so where there is no driver; cudarc alone would panic.
        let backend = CudaBackend::open(0)?;
        let context = Arc::clone(backend.context());
        let streams = (0..streams).map(|_| context.new_stream()).collect::<Result<_, _>>()?;
        let text = CString::new(include_str!("../../kernels/ntt.ptx"))?;
        // SAFETY: sound because the context lives as long as the program, which has one thread.
        unsafe { result::ctx::set_current(context.cu_ctx()) }?;
        // SAFETY: sound because the text is a PTX module that ends in NUL, and a context is current.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
        let kernel = |kernel: &Kernel| {
            let name = CString::new(kernel.name())?;
            // SAFETY: sound because the module was just loaded, and is never unloaded.
            Ok(unsafe { result::module::get_function(module, name) }?)
        };
        let kernels = Kernel::ALL.iter().map(kernel).collect::<Outcome<_>>()?;
        Ok(Rc::new(Gpu { context, streams, kernels, begun: Instant::now() }))
    }

    fn kernel(&self, kernel: Kernel) -> sys::CUfunction {
        let at = Kernel::ALL.iter().position(|&other| other == kernel);
        self.kernels[at.expect("every kernel is loaded")]
    }
}

/// The device with one of the allocators.
struct Cuda<S: Slices> {
    gpu: Rc<Gpu>,
    slices: S,
    /// Free memory of the device when this was made, in bytes.
    free_at_first: u64,
    /// The least that was seen since.
    least_free: Cell<u64>,
}

/// A slice, with the streams that it was shared with.
struct Shared<S> {
    slice: S,
    home: usize,
    readers: Vec<usize>,
}

impl<S: Slices> Cuda<S> {
    fn new(gpu: Rc<Gpu>, slices: S) -> Outcome<Cuda<S>> {
        gpu.context.synchronize()?;
        let free = gpu.context.mem_get_info()?.0 as u64;
        Ok(Cuda { gpu, slices, free_at_first: free, least_free: Cell::new(free) })
    }
}

impl<S: Slices> Machine for Cuda<S> {
    type Buffer = Shared<S::Slice>;
    type Host = PinnedHostSlice<u64>;

    fn streams(&self) -> usize {
        self.gpu.streams.len()
    }

    fn host(&self, words: &[u64]) -> Outcome<PinnedHostSlice<u64>> {
        // SAFETY: sound because all of it is written before it is read.
        let mut host = unsafe { self.gpu.context.alloc_pinned(words.len()) }?;
        host.as_mut_slice()?.copy_from_slice(words);
        Ok(host)
    }

    fn prepare(&self) -> Outcome<()> {
        self.slices.prepare()
    }

    fn alloc(&self, stream: usize, words: usize) -> Outcome<Self::Buffer> {
        Ok(Shared { slice: self.slices.alloc(stream, words)?, home: stream, readers: Vec::new() })
    }

    fn words(&self, buffer: &Self::Buffer) -> usize {
        buffer.slice.len()
    }

    fn free(&self, buffer: Self::Buffer) -> Outcome<()> {
        self.slices.free(buffer.slice, &buffer.readers)
    }

    fn clear(&self, buffers: Vec<Self::Buffer>) -> Outcome<()> {
        self.slices.clear(buffers.into_iter().map(|buffer| buffer.slice).collect())
    }

    fn share(&self, buffer: &mut Self::Buffer, stream: usize) -> Outcome<()> {
        self.slices.share(&buffer.slice, stream)?;
        buffer.readers.push(stream);
        Ok(())
    }

    fn upload(&self, host: &PinnedHostSlice<u64>, buffer: &mut Self::Buffer) -> Outcome<()> {
        Ok(self.gpu.streams[buffer.home].memcpy_htod(host, &mut buffer.slice)?)
    }

    fn launch(
        &self,
        launch: &Launch,
        inputs: [&Self::Buffer; 2],
        target: &mut Self::Buffer,
    ) -> Outcome<()> {
        let stream = &*self.gpu.streams[target.home];
        let left = S::read(&inputs[0].slice, stream);
        let right = S::read(&inputs[1].slice, stream);
        let written = S::write(&mut target.slice, stream);
        let numbers = launch.numbers().iter().copied();
        let mut words: Vec<u64> = [left.0, right.0, written.0].into_iter().chain(numbers).collect();
        let mut arguments: Vec<*mut c_void> =
            words.iter_mut().map(|word| ptr::from_mut(word).cast()).collect();
        // SAFETY: sound because the kernel has these parameters and stays within its buffers for these
        // numbers; the inputs are at home on this stream, or were shared with it after they were written.
        let launched = unsafe {
            result::launch_kernel(
                self.gpu.kernel(launch.kernel),
                (launch.blocks, 1, 1),
                (launch.threads, 1, 1),
                launch.shared_bytes(),
                stream.cu_stream(),
                &mut arguments,
            )
        };
        let name = launch.kernel.name();
        launched.map_err(|error| Failure::Run(format!("kernel {name}: {error}").into()))
    }

    fn download(&self, buffer: &Self::Buffer) -> Outcome<Option<Vec<u64>>> {
        Ok(Some(self.gpu.streams[buffer.home].clone_dtoh(&buffer.slice)?))
    }

    fn synchronize(&self) -> Outcome<()> {
        Ok(self.gpu.context.synchronize()?)
    }

    fn now(&self) -> u64 {
        self.gpu.begun.elapsed().as_nanos() as u64
    }

    fn look_at_memory(&self) -> Outcome<()> {
        let free = self.gpu.context.mem_get_info()?.0 as u64;
        self.least_free.set(self.least_free.get().min(free));
        Ok(())
    }

    fn memory_peak(&self) -> u64 {
        self.free_at_first.saturating_sub(self.least_free.get())
    }

    fn reset_memory_peak(&self) {
        self.least_free.set(self.free_at_first);
    }

    fn calls(&self) -> Option<Counts> {
        self.slices.calls()
    }

    fn hazards(&self) -> Option<u64> {
        None
    }

    fn first_hazard(&self) -> Option<String> {
        None
    }

    fn close(self) -> Outcome<()> {
        self.slices.close()
    }
}

//! The ring on GPUs.

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, result, sys};
use streampool::PoolStream;
use streampool::cuda::{CudaBackend, CudaError, CudaPools, PooledSlice};

use super::chunk::{FACTOR, addend, count_wrong, first_word};
use super::common::cli::{Failure, Outcome};
use super::common::device::Counts;
use super::machine::Machine;
use super::measure::{Measured, measure};
use super::options::Options;

const THREADS: u32 = 256;
const BLOCKS: usize = 1024;

/// The ring by pools, and by cudarc's own allocation.
pub(crate) fn compare(options: &Options) -> Outcome<Vec<Measured>> {
    let gpus = Gpus::open(options)?;
    let mut measured = Vec::new();
    for (name, copies) in [("streampool copy", true), ("streampool peer", false)] {
        let pooled = Pooled::new(&gpus, copies)?;
        if !copies && !pooled.all_have_access()? {
            eprintln!("ring: not all of these GPUs can use each other's memory: no `{name}`");
            continue;
        }
        measured.push(measure(options, name, &pooled)?);
        pooled.close()?;
    }
    let (synchronizes, memory_calls) = (Cell::new(0), Cell::new(0));
    let own = Own { gpus: &gpus, synchronizes, memory_calls };
    measured.push(measure(options, "cudarc", &own)?);
    Ok(measured)
}

/// What all ways work on: for each place in the ring a stream of its GPU.
struct Gpus {
    places: Vec<Place>,
    /// How many there are.
    count: usize,
    words: usize,
    /// What each place begins with.
    first: Vec<Vec<u32>>,
    begun: Instant,
}

struct Place {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    advance: sys::CUfunction,
}

impl Gpus {
    fn open(options: &Options) -> Outcome<Gpus> {
        let mut backends = Vec::new();
        while backends.len() < options.ranks(64) {
            match CudaBackend::open(backends.len()) {
                Ok(backend) => backends.push(backend),
                // There are no more.
                Err(error) if !backends.is_empty() && is_no_device(&error) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let count = backends.len();
        let kernels = backends.iter().map(load).collect::<Outcome<Vec<_>>>()?;
        let place = |rank: usize| {
            let context = Arc::clone(backends[rank % count].context());
            // SAFETY: sound because the program orders its streams, by synchronizes or through the pools.
            unsafe { context.disable_event_tracking() };
            let stream = context.new_stream()?;
            Ok(Place { context, stream, advance: kernels[rank % count] })
        };
        let ranks = options.ranks(count);
        let places = (0..ranks).map(place).collect::<Outcome<Vec<_>>>()?;
        let words = options.words();
        let chunk = |rank| (0..words).map(|at| first_word(rank, at)).collect();
        let first = (0..ranks).map(chunk).collect();
        Ok(Gpus { places, count, words, first, begun: Instant::now() })
    }

    /// Launches the next state of a chunk.
    fn advance(&self, rank: usize, from: u64, to: u64) -> Outcome<()> {
        let place = &self.places[rank];
        // SAFETY: sound because the context lives as long as the place, and the program has one thread.
        unsafe { result::ctx::set_current(place.context.cu_ctx()) }?;
        let numbers = [self.words as u64, u64::from(FACTOR), u64::from(addend(rank))];
        let mut words = [from, to, numbers[0], numbers[1], numbers[2]];
        let mut arguments = words.each_mut().map(|word| ptr::from_mut(word).cast::<c_void>());
        let blocks = self.words.div_ceil(THREADS as usize).min(BLOCKS) as u32;
        let (grid, block) = ((blocks, 1, 1), (THREADS, 1, 1));
        // SAFETY: sound because the kernel has these parameters and stays within so many words, which both
        // buffers hold; the stream comes after what was done with either.
        let launched = unsafe {
            let stream = place.stream.cu_stream();
            result::launch_kernel(place.advance, grid, block, 0, stream, &mut arguments)
        };
        launched.map_err(|error| Failure::Run(format!("the kernel: {error}").into()))
    }

    fn synchronize(&self) -> Outcome<()> {
        Ok(self.places.iter().try_for_each(|place| place.stream.synchronize())?)
    }

    fn is_shared(&self) -> bool {
        self.places.len() > self.count
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }
}

fn is_no_device(error: &CudaError) -> bool {
    error.code() == Some(sys::CUresult::CUDA_ERROR_INVALID_DEVICE as u32)
}

/// Loads the kernel on a GPU.
fn load(backend: &CudaBackend) -> Outcome<sys::CUfunction> {
    // SAFETY: sound because the context lives as long as the program, which has one thread.
    unsafe { result::ctx::set_current(backend.context().cu_ctx()) }?;
    let text = CString::new(include_str!("../../kernels/ring.ptx"))?;
    // SAFETY: sound because the text is a PTX module that ends in NUL, and a context is current.
    let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
    // SAFETY: sound because the module was just loaded, and is never unloaded.
    Ok(unsafe { result::module::get_function(module, CString::new("advance")?) }?)
}

/// A pool for each place.
struct Pooled<'a> {
    gpus: &'a Gpus,
    pools: CudaPools,
    streams: Vec<PoolStream<CudaBackend>>,
    /// For each place one more, on which copies come in, and stay until they are used: a copy waits for all
    /// that is queued where the original is at home, and must not find another copy there.
    incoming: Vec<PoolStream<CudaBackend>>,
    copies: bool,
}

impl<'a> Pooled<'a> {
    fn new(gpus: &'a Gpus, copies: bool) -> Outcome<Pooled<'a>> {
        let backends = gpus.places.iter().map(|place| CudaBackend::new(&place.context));
        let pools = CudaPools::new(backends.collect::<Result<Vec<_>, _>>()?);
        let (mut streams, mut incoming) = (Vec::new(), Vec::new());
        for (rank, place) in gpus.places.iter().enumerate() {
            let pool = pools.pool(rank)?;
            streams.push(pool.stream(Arc::clone(&place.stream))?);
            incoming.push(pool.stream(place.context.new_stream()?)?);
        }
        Ok(Pooled { gpus, pools, streams, incoming, copies })
    }

    /// Whether each place can use the memory of the one before.
    fn all_have_access(&self) -> Outcome<bool> {
        for (rank, stream) in self.streams.iter().enumerate() {
            let next = &self.streams[(rank + 1) % self.streams.len()];
            match stream.alloc(4)?.use_on(next) {
                Ok(()) => {}
                Err(error) if error.is_no_peer_access() => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn close(self) -> Outcome<()> {
        drop((self.streams, self.incoming));
        Ok(self.pools.close()?)
    }
}

impl Machine for Pooled<'_> {
    type Chunk = PooledSlice<u32>;

    fn ranks(&self) -> usize {
        self.gpus.places.len()
    }

    fn is_shared(&self) -> bool {
        self.gpus.is_shared()
    }

    fn start(&self, rank: usize) -> Outcome<PooledSlice<u32>> {
        Ok(self.streams[rank].clone_htod(&self.gpus.first[rank])?)
    }

    fn compute(
        &self,
        rank: usize,
        _: usize,
        _: usize,
        mut last: PooledSlice<u32>,
    ) -> Outcome<PooledSlice<u32>> {
        if self.copies {
            last.move_to(&self.streams[rank])?;
        }
        // SAFETY: sound because the kernel writes every word before it is read.
        let next = unsafe { self.streams[rank].alloc_slice(self.gpus.words) }?;
        self.gpus.advance(rank, last.address(), next.address())?;
        Ok(next)
    }

    fn hand_over(&self, chunk: PooledSlice<u32>, _: usize, to: usize) -> Outcome<PooledSlice<u32>> {
        if self.copies {
            return Ok(chunk.copy_to(&self.incoming[to])?);
        }
        chunk.use_on(&self.streams[to])?;
        Ok(chunk)
    }

    fn synchronize(&self) -> Outcome<()> {
        self.gpus.synchronize()
    }

    fn wrong(
        &self,
        chunk: PooledSlice<u32>,
        _: usize,
        origin: usize,
        steps: usize,
    ) -> Outcome<u64> {
        Ok(count_wrong(&chunk.to_vec()?, origin, steps, self.ranks()))
    }

    fn now(&self) -> u64 {
        self.gpus.now()
    }

    fn calls(&self) -> Counts {
        let pools = self.pools.made();
        let counts = pools.iter().map(|pool| Counts::of_pool(&pool.stats()));
        counts.fold(Counts::default(), |all, own| all + own)
    }

    fn memory_peak(&self) -> Option<u64> {
        self.pools.made().iter().map(|pool| pool.stats().peak_reserved).max()
    }

    fn hazards(&self) -> Option<u64> {
        None
    }
}

/// cudarc's own allocation, with no events: the program synchronizes a stream before another uses what it
/// has written, and before it frees what it has read.
struct Own<'a> {
    gpus: &'a Gpus,
    synchronizes: Cell<u64>,
    memory_calls: Cell<u64>,
}

impl Own<'_> {
    fn alloc(&self, rank: usize) -> Outcome<CudaSlice<u32>> {
        // Each is freed as well.
        self.memory_calls.set(self.memory_calls.get() + 2);
        // SAFETY: sound because every word is written before it is read.
        Ok(unsafe { self.gpus.places[rank].stream.alloc(self.gpus.words) }?)
    }

    fn finish(&self, rank: usize) -> Outcome<()> {
        self.synchronizes.set(self.synchronizes.get() + 1);
        Ok(self.gpus.places[rank].stream.synchronize()?)
    }
}

impl Machine for Own<'_> {
    type Chunk = CudaSlice<u32>;

    fn ranks(&self) -> usize {
        self.gpus.places.len()
    }

    fn is_shared(&self) -> bool {
        self.gpus.is_shared()
    }

    fn start(&self, rank: usize) -> Outcome<CudaSlice<u32>> {
        let mut chunk = self.alloc(rank)?;
        self.gpus.places[rank].stream.memcpy_htod(&self.gpus.first[rank], &mut chunk)?;
        Ok(chunk)
    }

    fn compute(
        &self,
        rank: usize,
        _: usize,
        _: usize,
        last: CudaSlice<u32>,
    ) -> Outcome<CudaSlice<u32>> {
        let next = self.alloc(rank)?;
        let stream = &self.gpus.places[rank].stream;
        self.gpus.advance(rank, last.device_ptr(stream).0, next.device_ptr(stream).0)?;
        self.finish(rank)?;
        Ok(next)
    }

    fn hand_over(&self, chunk: CudaSlice<u32>, from: usize, to: usize) -> Outcome<CudaSlice<u32>> {
        let copy = self.alloc(to)?;
        let (source, target) = (&self.gpus.places[from], &self.gpus.places[to]);
        let (out, into) = (source.context.cu_ctx(), target.context.cu_ctx());
        let bytes = self.gpus.words * size_of::<u32>();
        let from = chunk.device_ptr(&source.stream).0;
        let at = copy.device_ptr(&target.stream).0;
        let stream = target.stream.cu_stream();
        // SAFETY: sound because both contexts live; the target's is set as current.
        let copied = unsafe {
            result::ctx::set_current(into)?;
            match out == into {
                true => sys::cuMemcpyDtoDAsync_v2(at, from, bytes, stream),
                false => sys::cuMemcpyPeerAsync(at, into, from, out, bytes, stream),
            }
        };
        copied.result()?;
        self.finish(to)?;
        Ok(copy)
    }

    fn synchronize(&self) -> Outcome<()> {
        self.gpus.synchronize()
    }

    fn wrong(
        &self,
        chunk: CudaSlice<u32>,
        rank: usize,
        origin: usize,
        steps: usize,
    ) -> Outcome<u64> {
        let words = self.gpus.places[rank].stream.clone_dtoh(&chunk)?;
        Ok(count_wrong(&words, origin, steps, self.ranks()))
    }

    fn now(&self) -> u64 {
        self.gpus.now()
    }

    fn calls(&self) -> Counts {
        let (synchronizes, mapping_calls) = (self.synchronizes.get(), self.memory_calls.get());
        Counts { synchronizes, mapping_calls, ..Counts::default() }
    }

    fn memory_peak(&self) -> Option<u64> {
        None
    }

    fn hazards(&self) -> Option<u64> {
        None
    }
}

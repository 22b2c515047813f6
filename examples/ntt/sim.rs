//! The program on the simulated device.
//!
//! Its kernels tell the device what they read and write, so that each pair of unordered uses is found.
//! When the result is wanted they also compute: the words are on the host, by address, and change when the
//! device executes the kernel.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use streampool::sim::{Kernel, SimConfig, SimDevice, SimStream};
use streampool::{Backend, Buffer, PoolStream, StreamPool};

use super::common::cli::Outcome;
use super::common::device::Counts;
use super::kernels::Launch;
use super::machine::{Machine, settled};

/// Bytes that a kernel moves in a nanosecond, and a copy from the host.
const KERNEL_SPEED: u64 = 4000;
const UPLOAD_SPEED: u64 = 50;
/// What it takes to start either, in nanoseconds.
const START_NS: u64 = 2000;

/// Who gives the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Pool,
    /// The driver, for each buffer: an allocation is one call, and a free waits for the device first, as
    /// `cudaMalloc` and `cudaFree` do.
    Driver,
}

pub(crate) struct Sim {
    device: SimDevice,
    streams: Vec<SimStream>,
    allocator: Allocator,
    /// The words of each buffer that has been written, by address.
    words: Option<Arc<Mutex<Words>>>,
}

type Words = HashMap<u64, Arc<Vec<u64>>>;

enum Allocator {
    Pool { pool: StreamPool<SimDevice>, streams: Vec<PoolStream<SimDevice>> },
    Driver,
}

pub(crate) struct SimBuffer {
    address: u64,
    words: usize,
    /// The number of its stream.
    home: usize,
    /// The pool's handle.
    pooled: Option<Buffer<SimDevice>>,
}

impl SimBuffer {
    fn bytes(&self) -> u64 {
        (self.words * size_of::<u64>()) as u64
    }
}

impl Sim {
    /// `compute`: whether its kernels do what they stand for.
    pub(crate) fn new(source: Source, compute: bool, streams: usize) -> Outcome<Sim> {
        let device = SimDevice::new(SimConfig::default());
        let streams: Vec<_> = (0..streams).map(|_| device.create_stream()).collect();
        let allocator = match source {
            Source::Driver => Allocator::Driver,
            Source::Pool => {
                let pool = StreamPool::new(device.clone());
                let registered = streams.iter().map(|stream| pool.stream(stream.clone()));
                Allocator::Pool { streams: registered.collect::<Result<_, _>>()?, pool }
            }
        };
        Ok(Sim { device, streams, allocator, words: compute.then(Arc::default) })
    }

    fn free_now(&self, buffer: SimBuffer) -> Outcome<()> {
        let (address, bytes) = (buffer.address, buffer.bytes());
        self.device.note_given_back(address, bytes);
        match buffer.pooled {
            Some(pooled) => drop(pooled),
            // SAFETY: sound because the segment was taken with this size and is given back once, and
            // everything on the device has finished: the callers have synchronized it.
            None => unsafe { self.device.free_segment(address, bytes) }?,
        }
        Ok(())
    }
}

impl Machine for Sim {
    type Buffer = SimBuffer;
    type Host = Arc<Vec<u64>>;

    fn streams(&self) -> usize {
        self.streams.len()
    }

    fn host(&self, words: &[u64]) -> Outcome<Arc<Vec<u64>>> {
        // A device that computes nothing reads nothing.
        let kept = if self.words.is_some() { words } else { &[] };
        Ok(Arc::new(kept.to_vec()))
    }

    fn prepare(&self) -> Outcome<()> {
        // The device is its own.
        Ok(())
    }

    fn alloc(&self, stream: usize, words: usize) -> Outcome<SimBuffer> {
        let bytes = words * size_of::<u64>();
        let pooled = match &self.allocator {
            Allocator::Pool { streams, .. } => Some(streams[stream].alloc(bytes)?),
            Allocator::Driver => None,
        };
        let address = match &pooled {
            Some(buffer) => buffer.device_ptr(),
            None => self.device.alloc_segment(bytes as u64)?,
        };
        self.device.note_handed_out(&self.streams[stream], address, bytes as u64);
        Ok(SimBuffer { address, words, home: stream, pooled })
    }

    fn words(&self, buffer: &SimBuffer) -> usize {
        buffer.words
    }

    fn free(&self, buffer: SimBuffer) -> Outcome<()> {
        if buffer.pooled.is_none() {
            self.device.synchronize_context()?;
        }
        self.free_now(buffer)
    }

    fn clear(&self, buffers: Vec<SimBuffer>) -> Outcome<()> {
        match &self.allocator {
            Allocator::Pool { pool, .. } => {
                let scope = pool.quiesce()?;
                buffers.into_iter().try_for_each(|buffer| self.free_now(buffer))?;
                settled(&scope.finish())
            }
            Allocator::Driver => buffers.into_iter().try_for_each(|buffer| self.free(buffer)),
        }
    }

    fn share(&self, buffer: &mut SimBuffer, stream: usize) -> Outcome<()> {
        if let (Some(pooled), Allocator::Pool { streams, .. }) = (&buffer.pooled, &self.allocator) {
            pooled.use_on(&streams[stream])?;
        } else {
            let event = self.device.create_event()?;
            self.device.record(&event, &self.streams[buffer.home])?;
            self.device.wait(&self.streams[stream], &event)?;
            self.device.destroy_event(event);
        }
        self.device.note_use_on(&self.streams[stream], buffer.address);
        Ok(())
    }

    fn upload(&self, host: &Arc<Vec<u64>>, buffer: &mut SimBuffer) -> Outcome<()> {
        let (address, bytes) = (buffer.address, buffer.bytes());
        let mut copy = Kernel::new().writes(address, bytes).taking(START_NS + bytes / UPLOAD_SPEED);
        if let Some(words) = &self.words {
            let (words, host) = (Arc::clone(words), Arc::clone(host));
            let function = move || drop(words.lock().insert(address, host));
            copy = copy.host_function(Box::new(function));
        }
        Ok(self.device.launch(&self.streams[buffer.home], copy)?)
    }

    fn launch(
        &self,
        launch: &Launch,
        inputs: [&SimBuffer; 2],
        target: &mut SimBuffer,
    ) -> Outcome<()> {
        let (address, bytes) = (target.address, target.bytes());
        let mut kernel = Kernel::new().writes(address, bytes);
        for input in inputs {
            kernel = kernel.reads(input.address, input.bytes());
        }
        let moved = bytes + inputs.iter().map(|input| input.bytes()).sum::<u64>();
        kernel = kernel.taking(START_NS + moved / KERNEL_SPEED);
        if let Some(words) = &self.words {
            let (words, launch) = (Arc::clone(words), *launch);
            let places = inputs.map(|input| (input.address, input.words));
            let length = target.words;
            let function = move || {
                // What nothing has written is 0.
                let read = |(address, length)| match words.lock().get(&address) {
                    Some(words) if words.len() == length => Arc::clone(words),
                    _ => Arc::new(vec![0; length]),
                };
                let [left, right] = places.map(read);
                let mut written = vec![0; length];
                launch.execute([&left, &right], &mut written);
                words.lock().insert(address, Arc::new(written));
            };
            kernel = kernel.host_function(Box::new(function));
        }
        Ok(self.device.launch(&self.streams[target.home], kernel)?)
    }

    fn download(&self, buffer: &SimBuffer) -> Outcome<Option<Vec<u64>>> {
        self.device.synchronize_context()?;
        let Some(words) = &self.words else { return Ok(None) };
        let written = words.lock().get(&buffer.address).map(|words| words.to_vec());
        Ok(Some(written.unwrap_or_else(|| vec![0; buffer.words])))
    }

    fn synchronize(&self) -> Outcome<()> {
        Ok(self.device.synchronize_context()?)
    }

    fn now(&self) -> u64 {
        self.device.now()
    }

    fn look_at_memory(&self) -> Outcome<()> {
        // The device keeps its own peak.
        Ok(())
    }

    fn memory_peak(&self) -> u64 {
        self.device.memory_peak()
    }

    fn reset_memory_peak(&self) {
        self.device.reset_memory_peak();
    }

    fn calls(&self) -> Option<Counts> {
        Some(match &self.allocator {
            Allocator::Pool { pool, .. } => Counts::of_pool(&pool.stats()),
            // All synchronizes but the program's own are those of frees.
            Allocator::Driver => {
                let counts = self.device.counts();
                let frees = counts.segment_frees;
                Counts {
                    synchronizes: frees,
                    mapping_calls: counts.mapping_calls(),
                    ..Counts::default()
                }
            }
        })
    }

    fn hazards(&self) -> Option<u64> {
        Some(self.device.hazard_count())
    }

    fn first_hazard(&self) -> Option<String> {
        self.device.hazards().first().map(ToString::to_string)
    }

    fn close(self) -> Outcome<()> {
        match self.allocator {
            Allocator::Driver => Ok(()),
            Allocator::Pool { pool, streams } => {
                drop(streams);
                Ok(pool.close()?)
            }
        }
    }
}

//! The ring on simulated devices.
//!
//! Nothing is computed: each kernel must find the stamp of the step before in what it reads, and writes its
//! own. Copies carry stamps along. So a step that reads too early, or what somebody has overwritten, shows.

use streampool::sim::{HazardKind, Kernel, SimConfig, SimDevice, SimStream};
use streampool::{Backend, Buffer, DevicePools, PoolStream};

use super::common::cli::Outcome;
use super::common::device::Counts;
use super::machine::Machine;
use super::options::Options;

/// Bytes that a kernel moves in a nanosecond, on its own device and over the link to another.
const KERNEL_SPEED: u64 = 2000;
const LINK_SPEED: u64 = 200;
/// What it takes to start one, in nanoseconds.
const START_NS: u64 = 2000;

/// Where buffers come from, and how they go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// From pools; the pool copies.
    Copies,
    /// From pools; the next device reads where it is.
    Peers,
    /// From the driver, with synchronizes.
    Driver,
}

pub(crate) struct Ring {
    devices: Vec<SimDevice>,
    streams: Vec<SimStream>,
    pooled: Option<Pooled>,
    source: Source,
    bytes: u64,
}

struct Pooled {
    pools: DevicePools<SimDevice>,
    streams: Vec<PoolStream<SimDevice>>,
    /// For each device one more, on which copies come in, and stay until they are used: a copy waits for all
    /// that is queued where the original is at home, and must not find another copy there.
    incoming: Vec<PoolStream<SimDevice>>,
}

pub(crate) struct Chunk {
    address: u64,
    /// The device whose memory it is.
    home: usize,
    /// The pool's handle.
    pooled: Option<Buffer<SimDevice>>,
}

/// What a chunk that began at `origin` is stamped with after so many steps.
fn stamp(origin: usize, steps: usize) -> u64 {
    (origin as u64) << 32 | steps as u64
}

impl Ring {
    pub(crate) fn new(options: &Options, source: Source) -> Outcome<Ring> {
        let devices = SimDevice::several(SimConfig::default(), options.ranks(4));
        let streams: Vec<_> = devices.iter().map(SimDevice::create_stream).collect();
        let pooled = match source {
            Source::Driver => None,
            Source::Copies | Source::Peers => Some(Pooled::new(&devices, &streams)?),
        };
        Ok(Ring { devices, streams, pooled, source, bytes: options.bytes })
    }

    fn alloc(&self, rank: usize) -> Outcome<Chunk> {
        let pooled = match &self.pooled {
            Some(own) => Some(own.streams[rank].alloc(self.bytes as usize)?),
            None => None,
        };
        let address = match &pooled {
            Some(buffer) => buffer.device_ptr(),
            None => self.devices[rank].alloc_segment(self.bytes)?,
        };
        self.devices[rank].note_handed_out(&self.streams[rank], address, self.bytes);
        Ok(Chunk { address, home: rank, pooled })
    }

    /// Makes a copy that has come in ready for the device's stream.
    fn take(&self, chunk: &mut Chunk, rank: usize) -> Outcome<()> {
        if let (Some(own), Some(buffer)) = (&self.pooled, &mut chunk.pooled)
            && self.source == Source::Copies
        {
            buffer.move_to(&own.streams[rank])?;
            self.devices[rank].note_moved_to(&self.streams[rank], chunk.address);
        }
        Ok(())
    }

    /// Frees a chunk. What the driver takes back at once has been synchronized.
    fn free(&self, chunk: Chunk) -> Outcome<()> {
        self.devices[chunk.home].note_given_back(chunk.address, self.bytes);
        match chunk.pooled {
            Some(pooled) => drop(pooled),
            // SAFETY: sound because the segment was taken with this size, is given back once, and both
            // devices that have used it were synchronized.
            None => unsafe { self.devices[chunk.home].free_segment(chunk.address, self.bytes) }?,
        }
        Ok(())
    }
}

impl Pooled {
    fn new(devices: &[SimDevice], streams: &[SimStream]) -> Outcome<Pooled> {
        let pools = DevicePools::new(devices.iter().cloned());
        let register =
            |(rank, stream): (usize, &SimStream)| pools.pool(rank)?.stream(stream.clone());
        let streams = streams.iter().enumerate().map(register).collect::<Result<_, _>>()?;
        let more: Vec<_> = devices.iter().map(SimDevice::create_stream).collect();
        let incoming = more.iter().enumerate().map(register).collect::<Result<_, _>>()?;
        Ok(Pooled { pools, streams, incoming })
    }
}

impl Machine for Ring {
    type Chunk = Chunk;

    fn ranks(&self) -> usize {
        self.devices.len()
    }

    fn start(&self, rank: usize) -> Outcome<Chunk> {
        let chunk = self.alloc(rank)?;
        let kernel = Kernel::new().writes(chunk.address, self.bytes).stamp(stamp(rank, 0));
        self.devices[rank].launch(&self.streams[rank], kernel)?;
        Ok(chunk)
    }

    fn compute(&self, rank: usize, step: usize, origin: usize, mut last: Chunk) -> Outcome<Chunk> {
        self.take(&mut last, rank)?;
        let next = self.alloc(rank)?;
        let speed = if last.home == rank { KERNEL_SPEED } else { LINK_SPEED };
        let kernel = Kernel::new()
            .expects(last.address, self.bytes, stamp(origin, step))
            .writes(next.address, self.bytes)
            .stamp(stamp(origin, step + 1))
            .taking(START_NS + self.bytes / speed);
        self.devices[rank].launch(&self.streams[rank], kernel)?;
        if self.source == Source::Driver {
            // Before it is freed, and before what was computed is handed over.
            self.devices[rank].synchronize_context()?;
        }
        self.free(last)?;
        Ok(next)
    }

    fn hand_over(&self, chunk: Chunk, from: usize, to: usize) -> Outcome<Chunk> {
        let stream = &self.streams[to];
        let copy = match (&self.pooled, &chunk.pooled) {
            (Some(own), Some(buffer)) if self.source == Source::Copies => {
                let incoming = &own.incoming[to];
                let copy = buffer.copy_to(incoming)?;
                self.devices[to].note_handed_out(incoming.raw(), copy.device_ptr(), self.bytes);
                Chunk { address: copy.device_ptr(), home: to, pooled: Some(copy) }
            }
            (Some(own), Some(buffer)) => {
                buffer.use_on(&own.streams[to])?;
                self.devices[from].note_use_on(stream, chunk.address);
                return Ok(chunk);
            }
            _ => {
                let copy = self.alloc(to)?;
                let source = &self.devices[from];
                // SAFETY: sound because both are segments of this size, of these devices; the one has just
                // been taken, and all uses of the other have finished.
                unsafe {
                    self.devices[to].copy(stream, copy.address, source, chunk.address, self.bytes)
                }?;
                self.devices[to].synchronize_context()?;
                copy
            }
        };
        self.free(chunk)?;
        Ok(copy)
    }

    fn synchronize(&self) -> Outcome<()> {
        Ok(self.devices.iter().try_for_each(Backend::synchronize_context)?)
    }

    fn wrong(&self, mut chunk: Chunk, rank: usize, origin: usize, steps: usize) -> Outcome<u64> {
        self.take(&mut chunk, rank)?;
        // Corruption found by the kernels on the way counts, too.
        let kernel = Kernel::new().expects(chunk.address, self.bytes, stamp(origin, steps));
        self.devices[rank].launch(&self.streams[rank], kernel)?;
        self.devices[rank].synchronize_context()?;
        self.free(chunk)?;
        let hazards = self.devices[0].hazards();
        let corrupted = hazards.iter().filter(|hazard| hazard.kind() == HazardKind::Corruption);
        Ok(corrupted.count() as u64)
    }

    fn now(&self) -> u64 {
        self.devices[0].now()
    }

    fn calls(&self) -> Counts {
        let mut all = Counts::default();
        for (rank, device) in self.devices.iter().enumerate() {
            let own = match &self.pooled {
                Some(own) => Counts::of_pool(&own.pools.made()[rank].stats()),
                None => {
                    let counts = device.counts();
                    Counts {
                        synchronizes: counts.synchronizes(),
                        mapping_calls: counts.mapping_calls(),
                        ..Counts::default()
                    }
                }
            };
            all = all + own;
        }
        all
    }

    fn memory_peak(&self) -> Option<u64> {
        self.devices.iter().map(SimDevice::memory_peak).max()
    }

    fn hazards(&self) -> Option<u64> {
        Some(self.devices[0].hazard_count())
    }
}

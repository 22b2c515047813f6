//! What the pool's loom models share: a small world, the same at the start of every execution.
//!
//! A model is two or three threads that make a few calls of a real pool on a real simulated device,
//! under every interleaving. The device executes nothing of the first operation, a kernel, and what is
//! ordered after it, until a synchronize needs it; all else it executes at once. So a block that the
//! kernel uses is never clean by accident, and a stream that has nothing to wait for does not wait.

use crate::buffer::Buffer;
use crate::config::{Growth, Reuse};
use crate::pool::{PoolCore, StreamPool};
use crate::pool_stream::PoolStream;
use crate::sim::{Costs, Kernel, Schedule, SimConfig, SimDevice, SimStream};
use crate::sync::{Arc, Weak};

/// The size of every block in the models: the pool takes segments of this size from the device.
pub(crate) const BLOCK: usize = 2 << 20;

pub(crate) type Pool = StreamPool<SimDevice>;
pub(crate) type Stream = PoolStream<SimDevice>;
pub(crate) type Block = Buffer<SimDevice>;

/// A device, and a pool on it that may reserve a few blocks.
pub(crate) struct World {
    pub(crate) device: SimDevice,
    pub(crate) pool: Pool,
    core: Weak<PoolCore<SimDevice>>,
}

impl World {
    /// A pool that may reserve this many blocks, and takes another stream's rather than more memory.
    pub(crate) fn new(blocks: usize) -> World {
        World::with(blocks, Schedule::Frozen(1))
    }

    /// The same on a device that executes everything at once.
    pub(crate) fn prompt(blocks: usize) -> World {
        World::with(blocks, Schedule::Timed)
    }

    fn with(blocks: usize, schedule: Schedule) -> World {
        let device = SimDevice::new(SimConfig {
            schedule,
            costs: Costs::free(),
            granularity: None,
            ..SimConfig::default()
        });
        let pool = StreamPool::builder(device.clone())
            .growth(Growth::Segments)
            .reuse(Reuse::Memory)
            .limit((blocks * BLOCK) as u64)
            .build()
            .expect("the options are in range");
        let core = Arc::downgrade(pool.core());
        // The counter of completions belongs to the execution from its first use on.
        crate::order::completions();
        World { device, pool, core }
    }

    pub(crate) fn core(&self) -> Arc<PoolCore<SimDevice>> {
        Arc::clone(self.pool.core())
    }

    /// A new stream.
    pub(crate) fn stream(&self) -> Stream {
        self.register(&self.device.create_stream())
    }

    pub(crate) fn register(&self, raw: &SimStream) -> Stream {
        self.pool.stream(raw.clone()).expect("a stream of this device")
    }

    /// A new buffer that a kernel writes: the first of them never finishes by itself.
    pub(crate) fn used_block(&self, stream: &Stream) -> Block {
        let block = stream.alloc(BLOCK).expect("a block for the start");
        self.write(stream, &block);
        block
    }

    /// A kernel on `stream` writes the block, which `stream` has just got.
    pub(crate) fn write(&self, stream: &Stream, block: &Block) {
        write(&self.device, stream, block);
    }

    /// Ends the world: no block was handed out too early, and the device has everything back.
    pub(crate) fn end(self, streams: impl IntoIterator<Item = Stream>) {
        no_hazards(&self.device);
        assert_eq!(self.pool.take_error().map(|error| error.to_string()), None);
        self.pool.close().expect("no buffer lives");
        assert_eq!(self.device.memory_in_use(), 0, "memory is lost");
        streams.into_iter().for_each(drop);
        drop(self.pool);
        assert!(self.core.upgrade().is_none(), "something still holds the pool");
        assert_eq!(self.device.live_events(), 0, "events are lost");
        assert_eq!(self.device.live_streams(), 0, "streams are lost");
        no_hazards(&self.device);
    }
}

/// Tells the oracle that the stream has got a buffer, and writes it there.
pub(crate) fn write(device: &SimDevice, stream: &Stream, block: &Block) {
    device.note_handed_out(stream.raw(), block.device_ptr(), block.capacity() as u64);
    use_again(device, stream, block);
}

/// A kernel on `stream` writes a buffer of it.
pub(crate) fn use_again(device: &SimDevice, stream: &Stream, block: &Block) {
    let kernel = Kernel::new().taking(0).writes(block.device_ptr(), block.capacity() as u64);
    device.launch(stream.raw(), kernel).expect("a kernel");
}

/// Gives a buffer back, in the oracle's eyes too.
pub(crate) fn free(device: &SimDevice, block: Block) {
    device.note_given_back(block.device_ptr(), block.capacity() as u64);
    drop(block);
}

pub(crate) fn no_hazards(device: &SimDevice) {
    let hazards = device.hazards();
    assert!(hazards.is_empty(), "{}", hazards[0]);
}

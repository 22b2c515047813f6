//! What every test of a hazard needs: a device and a pool in each kind of growth, and buffers whose
//! hand-outs and uses the device's oracle is told of.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::thread;

use streampool::sim::{
    CallCounts, CallFilter, Kernel, PausePoint, Schedule, SimConfig, SimDevice, SimStream,
};
use streampool::{Buffer, Error, Growth, PoolBuilder, PoolStream, Stats, StreamPool};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
/// The size of most blocks here: a whole granule, so that neither kind of growth leaves a rest.
pub(crate) const BLOCK: u64 = 4 * MIB;
/// How long a kernel takes that a host waits for only if it must: a second of virtual time.
pub(crate) const LONG: u64 = 1_000_000_000;

pub(crate) type Pool = StreamPool<SimDevice>;
pub(crate) type Stream = PoolStream<SimDevice>;

/// How the pool of a test grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) growth: Growth,
}

/// Runs a test in both kinds of growth.
pub(crate) fn in_both_kinds(test: impl Fn(Setup)) {
    for growth in [Growth::Virtual, Growth::Segments] {
        eprintln!("growth: {growth:?}");
        test(Setup { growth });
    }
}

impl Setup {
    /// A pool with default options on a device whose clock is virtual.
    pub(crate) fn lab(self) -> Lab {
        self.lab_with(|builder| builder)
    }

    pub(crate) fn lab_with(
        self,
        options: impl FnOnce(PoolBuilder<SimDevice>) -> PoolBuilder<SimDevice>,
    ) -> Lab {
        self.lab_on(SimDevice::new(1), options)
    }

    /// A pool that may take this many bytes.
    pub(crate) fn lab_of(self, limit: u64) -> Lab {
        self.lab_with(|builder| builder.limit(limit))
    }

    /// A pool on a device on which nothing finishes before somebody synchronizes.
    pub(crate) fn lazy_lab_with(
        self,
        options: impl FnOnce(PoolBuilder<SimDevice>) -> PoolBuilder<SimDevice>,
    ) -> Lab {
        self.lab_on(lazy_device(), options)
    }

    pub(crate) fn lazy_lab_of(self, limit: u64) -> Lab {
        self.lazy_lab_with(|builder| builder.limit(limit))
    }

    pub(crate) fn lab_on(
        self,
        device: SimDevice,
        options: impl FnOnce(PoolBuilder<SimDevice>) -> PoolBuilder<SimDevice>,
    ) -> Lab {
        let builder = StreamPool::builder(device.clone()).growth(self.growth);
        Lab { pool: options(builder).build().expect("the options are good"), device, watch: true }
    }
}

pub(crate) fn lazy_device() -> SimDevice {
    SimDevice::new(SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() })
}

/// A pool on a device. When it is dropped, the test must have left no hazard and right accounts.
pub(crate) struct Lab {
    pub(crate) device: SimDevice,
    pub(crate) pool: Pool,
    watch: bool,
}

impl Lab {
    pub(crate) fn stream(&self) -> Stream {
        self.pool.stream(self.device.create_stream()).expect("a stream can be registered")
    }

    pub(crate) fn streams<const N: usize>(&self) -> [Stream; N] {
        std::array::from_fn(|_| self.stream())
    }

    pub(crate) fn hold(&self, stream: &Stream, bytes: u64) -> Held {
        self.try_hold(stream, bytes).expect("there is memory")
    }

    pub(crate) fn try_hold(&self, stream: &Stream, bytes: u64) -> Result<Held, Error> {
        hold(&self.device, stream, bytes)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.pool.stats()
    }

    /// How many buffers have been freed.
    pub(crate) fn frees(&self) -> u64 {
        let stats = self.stats();
        stats.hits + stats.misses - stats.live
    }

    /// The driver calls that something makes, launches left out.
    pub(crate) fn calls_of<R>(&self, act: impl FnOnce() -> R) -> (R, CallCounts) {
        let before = self.device.counts();
        let result = act();
        (result, self.device.counts() - before)
    }

    /// Whether all that is on a stream has finished by now. The host learns it, if so.
    pub(crate) fn is_idle(&self, stream: &Stream) -> bool {
        self.device.user_stream_query(stream.raw()).expect("no capture is in progress")
    }

    /// Everything has executed, though the host has not seen it.
    pub(crate) fn let_run(&self) {
        self.device.run();
    }

    #[track_caller]
    pub(crate) fn no_hazard(&self) {
        let hazards = self.device.hazards();
        assert!(hazards.is_empty(), "{} hazards; the first: {}", hazards.len(), hazards[0]);
    }

    /// At rest every byte is somewhere, and the device's account is the pool's.
    #[track_caller]
    pub(crate) fn accounts_match(&self) {
        let stats = self.stats();
        let accounted = stats.in_use + stats.free_clean + stats.free_pending + stats.quarantined;
        assert_eq!(stats.reserved, accounted + stats.in_transit, "{stats:?}");
        assert_eq!(stats.in_transit, 0, "in transit at rest: {stats:?}");
        assert_eq!(stats.reserved, self.device.memory_in_use(), "{stats:?}");
        assert!(stats.peak_reserved >= stats.reserved && stats.peak_in_use >= stats.in_use);
    }

    /// For a test that ends with a lost device, or with a pool that others have finished.
    pub(crate) fn unwatched(mut self) -> Lab {
        self.watch = false;
        self
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.watch && !thread::panicking() {
            self.no_hazard();
            self.accounts_match();
            // So that no pool stays behind that others would have to ask again and again.
            let _ = self.pool.synchronize();
        }
    }
}

/// A buffer whose owner tells the oracle all that it does.
pub(crate) struct Held {
    buffer: ManuallyDrop<Buffer<SimDevice>>,
    /// The device whose memory it is, and that its home stream is on.
    device: SimDevice,
}

pub(crate) fn hold(device: &SimDevice, stream: &Stream, bytes: u64) -> Result<Held, Error> {
    let buffer = stream.alloc(bytes as usize)?;
    Ok(Held::of(device, stream, buffer))
}

impl Held {
    pub(crate) fn of(device: &SimDevice, stream: &Stream, buffer: Buffer<SimDevice>) -> Held {
        device.note_handed_out(stream.raw(), buffer.device_ptr(), buffer.capacity() as u64);
        Held { buffer: ManuallyDrop::new(buffer), device: device.clone() }
    }

    pub(crate) fn at(&self) -> u64 {
        self.device_ptr()
    }

    pub(crate) fn size(&self) -> u64 {
        self.capacity() as u64
    }

    pub(crate) fn writes(&self) -> Kernel {
        Kernel::new().writes(self.at(), self.size())
    }

    pub(crate) fn reads(&self) -> Kernel {
        Kernel::new().reads(self.at(), self.size())
    }

    /// Writes it, on a stream of the same device.
    pub(crate) fn write(&self, stream: &Stream) {
        self.launch(stream, self.writes());
    }

    /// Writes it for a second.
    pub(crate) fn write_long(&self, stream: &Stream) {
        self.launch(stream, self.writes().taking(LONG));
    }

    pub(crate) fn read(&self, stream: &Stream) {
        self.launch(stream, self.reads());
    }

    pub(crate) fn read_long(&self, stream: &Stream) {
        self.launch(stream, self.reads().taking(LONG));
    }

    pub(crate) fn launch(&self, stream: &Stream, kernel: Kernel) {
        self.device.launch(stream.raw(), kernel).expect("the launch succeeds");
    }

    pub(crate) fn share(&self, other: &Stream) {
        self.use_on(other).expect("the stream can use it");
        self.device.note_use_on(other.raw(), self.at());
    }

    pub(crate) fn rehome(&mut self, other: &Stream) {
        self.buffer.move_to(other).expect("the stream can have it");
        self.device.note_moved_to(other.raw(), self.buffer.device_ptr());
    }
}

impl Deref for Held {
    type Target = Buffer<SimDevice>;

    fn deref(&self) -> &Self::Target {
        &self.buffer
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.buffer
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Before the pool has the bytes back, and so before anybody else can be given them.
        self.device.note_given_back(self.device_ptr(), self.capacity() as u64);
        // SAFETY: the buffer is dropped here and nowhere else, and not touched again.
        unsafe { ManuallyDrop::drop(&mut self.buffer) };
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.buffer.fmt(f)
    }
}

/// Puts a kernel on a stream that touches nothing.
pub(crate) fn launch(device: &SimDevice, stream: &SimStream, kernel: Kernel) {
    device.launch(stream, kernel).expect("the launch succeeds");
}

/// Runs `work` on a thread of its own and holds it at each of its driver calls, `point` of them,
/// while `between` acts on this thread. Returns what the work returned and at how many calls it was
/// held.
pub(crate) fn interleave<R: Send>(
    device: &SimDevice,
    point: PausePoint,
    work: impl FnOnce() -> R + Send,
    mut between: impl FnMut(usize),
) -> (R, usize) {
    thread::scope(|scope| {
        let mut pause = device.pause(CallFilter::any(), point);
        let worker = scope.spawn(work);
        let mut held = 0;
        loop {
            while !pause.is_reached() && !worker.is_finished() {
                thread::yield_now();
            }
            if !pause.is_reached() {
                break;
            }
            // Nothing is armed now: the calls that `between` makes go through.
            between(held);
            held += 1;
            let next = device.pause(CallFilter::any(), point);
            pause.resume();
            pause = next;
        }
        drop(pause);
        (worker.join().expect("the work does not panic"), held)
    })
}

/// A small generator of chance (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

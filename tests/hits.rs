//! A hit makes no driver call and waits for none: whatever another thread is held in, hits of all other
//! threads go on, by the device's own counters.

use std::thread;

use streampool::sim::{Call, CallCounts, Kernel, PausePoint, Schedule, SimConfig, SimDevice};
use streampool::{Buffer, Growth, PoolStream, Reuse, StreamPool};

type Pool = StreamPool<SimDevice>;
type Stream = PoolStream<SimDevice>;

const BLOCK: usize = 4 << 20;
const THREADS: usize = 16;
/// How many hits each thread makes.
const HITS: usize = 100;

/// A pool with streams for the hits, each of which has work in flight and a buffer, and one stream more
/// that has freed memory which its own work in flight uses.
struct Rig {
    device: SimDevice,
    pool: Pool,
    streams: Vec<Stream>,
    buffers: Vec<Buffer<SimDevice>>,
    busy: Stream,
}

impl Rig {
    fn new(growth: Growth) -> Rig {
        let device = SimDevice::new(SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() });
        let builder = StreamPool::builder(device.clone()).growth(growth).floor(0);
        let pool = builder.reuse(Reuse::Memory).build().unwrap();
        let stream = || pool.stream(device.create_stream()).unwrap();
        let (streams, busy): (Vec<_>, _) = ((0..THREADS).map(|_| stream()).collect(), stream());
        let buffers: Vec<_> = streams.iter().map(|own| own.alloc(BLOCK).unwrap()).collect();
        buffers.iter().for_each(|buffer| use_it(&device, buffer));
        let freed = busy.alloc(BLOCK).unwrap();
        use_it(&device, &freed);
        drop(freed);
        Rig { device, pool, streams, buffers, busy }
    }

    fn stream(&self) -> Stream {
        self.pool.stream(self.device.create_stream()).unwrap()
    }

    /// Frees each stream's buffer and makes hits there, each stream on a thread of its own.
    fn hit(&self, buffers: Vec<Buffer<SimDevice>>) {
        thread::scope(|scope| {
            for (stream, buffer) in self.streams.iter().zip(buffers) {
                scope.spawn(move || {
                    drop(buffer);
                    for _ in 0..HITS {
                        let buffer = stream.alloc_hit(BLOCK).expect("the block is on the list");
                        use_it(&self.device, &buffer);
                    }
                });
            }
        });
    }
}

fn use_it(device: &SimDevice, buffer: &Buffer<SimDevice>) {
    let kernel = Kernel::new().writes(buffer.device_ptr(), buffer.capacity() as u64);
    device.launch(buffer.stream().raw(), kernel).unwrap();
}

/// What `Rig::hit` makes: nothing but the program's own launches.
fn launches_alone() -> CallCounts {
    let mut counts = CallCounts::default();
    counts.launches = (THREADS * HITS) as u64;
    counts
}

#[test]
fn hits_of_sixteen_threads_with_work_in_flight_make_no_call() {
    for growth in [Growth::Virtual, Growth::Segments] {
        let mut rig = Rig::new(growth);
        let buffers = std::mem::take(&mut rig.buffers);
        let (before, stats) = (rig.device.counts(), rig.pool.stats());
        rig.hit(buffers);
        assert_eq!(rig.device.counts() - before, launches_alone());
        let made = rig.pool.stats();
        let made = (made.hits - stats.hits, made.misses - stats.misses);
        assert_eq!(made, ((THREADS * HITS) as u64, 0));
        rig.device.assert_no_hazards();
    }
}

/// What makes the call that a thread is held in.
type Slow = fn(&Rig);

/// A wait for what another stream has freed, with all calls that it takes.
const STEAL: Slow = |rig| drop(rig.stream().alloc(BLOCK).unwrap());
const GROW: Slow = |rig| drop(rig.busy.alloc(16 * BLOCK).unwrap());
const GIVE_BACK: Slow = |rig| {
    rig.pool.synchronize().unwrap();
    assert!(rig.pool.trim(0).unwrap() > 0);
};
const SCOPE: Slow = |rig| {
    // So many of the streams that one event is recorded for all of them.
    let streams: Vec<Stream> = (0..THREADS).map(|_| rig.stream()).collect();
    let buffers: Vec<_> = streams.iter().map(|own| own.alloc(BLOCK).unwrap()).collect();
    let scope = rig.pool.quiesce().unwrap();
    drop(buffers);
    drop(scope);
};

/// Every driver call that a pool makes once it has memory, and what makes it.
const CALLS: [(Call, Growth, Slow); 16] = [
    (Call::IsCapturing, Growth::Virtual, STEAL),
    (Call::CreateEvent, Growth::Virtual, STEAL),
    (Call::Record, Growth::Virtual, STEAL),
    (Call::Query, Growth::Virtual, STEAL),
    (Call::Wait, Growth::Virtual, STEAL),
    (Call::CreateGranule, Growth::Virtual, GROW),
    (Call::Map, Growth::Virtual, GROW),
    (Call::SetAccess, Growth::Virtual, GROW),
    (Call::AllocSegment, Growth::Segments, GROW),
    (Call::Unmap, Growth::Virtual, GIVE_BACK),
    (Call::DestroyGranule, Growth::Virtual, GIVE_BACK),
    (Call::FreeSegment, Growth::Segments, GIVE_BACK),
    (Call::SynchronizeContext, Growth::Virtual, SCOPE),
    (Call::RecordContext, Growth::Virtual, SCOPE),
    (Call::SynchronizeEvent, Growth::Virtual, |rig| rig.busy.synchronize().unwrap()),
    (Call::ReleaseStream, Growth::Virtual, |rig| rig.stream().retire().unwrap()),
];

#[test]
fn while_any_call_of_another_thread_blocks_hits_go_on() {
    for point in [PausePoint::Before, PausePoint::After] {
        for (call, growth, slow) in CALLS {
            let mut rig = Rig::new(growth);
            let buffers = std::mem::take(&mut rig.buffers);
            let pause = rig.device.pause(call, point);
            thread::scope(|scope| {
                let held = scope.spawn(|| slow(&rig));
                pause.wait_reached();
                let before = rig.device.counts();
                rig.hit(buffers);
                assert_eq!(rig.device.counts() - before, launches_alone(), "{call}");
                // Had a hit waited for the call, the pause would have run out of patience.
                assert!(!held.is_finished(), "{call} was not held");
                pause.resume();
                held.join().unwrap();
            });
            rig.device.assert_no_hazards();
        }
    }
}

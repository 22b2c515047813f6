//! Precision across streams: which waits between streams the pool adds to those of the program. Work that
//! nothing orders must stay unordered, unless the policy prefers a wait to more memory.

use streampool::sim::{Kernel, Schedule, SimConfig, SimDevice};
use streampool::{Buffer, PoolStream, Reuse, StreamPool};

type Pool = StreamPool<SimDevice>;
type Stream = PoolStream<SimDevice>;

const POLICIES: [Reuse; 3] = [Reuse::Balanced, Reuse::Memory, Reuse::Speed];

fn rig(reuse: Reuse, streams: usize) -> (SimDevice, Pool, Vec<Stream>) {
    let device = SimDevice::new(SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() });
    let pool = StreamPool::builder(device.clone()).reuse(reuse).build().unwrap();
    let streams = (0..streams).map(|_| pool.stream(device.create_stream()).unwrap()).collect();
    (device, pool, streams)
}

fn write(device: &SimDevice, buffer: &Buffer<SimDevice>, ns: u64) {
    let kernel = Kernel::new().writes(buffer.device_ptr(), buffer.capacity() as u64).taking(ns);
    device.launch(buffer.stream().raw(), kernel).unwrap();
}

/// Long kernels by turns on a few streams, each with a small buffer of its own that is freed behind it.
#[test]
fn independent_streams_with_small_buffers_never_wait_for_each_other() {
    for reuse in POLICIES {
        for count in [1, 2, 4] {
            let (device, pool, streams) = rig(reuse, count);
            for round in 0..10 {
                for at in 0..4 {
                    let buffer = streams[at % count].alloc(8).unwrap();
                    write(&device, &buffer, 500_000);
                }
                if round % 2 == 1 {
                    device.run();
                }
            }
            let made = device.counts();
            assert_eq!((made.stream_waits, made.synchronizes()), (0, 0), "{reuse:?}, {count}");
            assert_eq!(pool.stats().misses, count as u64, "{reuse:?}");
            device.assert_no_hazards();
        }
    }
}

const STAGES: usize = 8;
const ITEMS: usize = 64;
const BYTES: usize = 8 << 20;

/// What a pipeline took: waits between streams beside the program's own, and bytes from the device.
#[derive(Debug)]
struct Took {
    waits: u64,
    reserved: u64,
}

/// Items that go through stages, each on a stream of its own: a stage allocates its output, takes its input
/// over from the stage before, and frees it. All of it is queued before anything has finished.
fn pipeline(reuse: Reuse) -> Took {
    let (device, pool, streams) = rig(reuse, STAGES);
    let mut own = 0;
    for _ in 0..ITEMS {
        let mut input: Option<Buffer<SimDevice>> = None;
        for stream in &streams {
            let output = stream.alloc(BYTES).unwrap();
            if let Some(mut input) = input.take() {
                input.move_to(stream).unwrap();
                own += 1;
                let read = Kernel::new().reads(input.device_ptr(), input.capacity() as u64);
                device.launch(stream.raw(), read).unwrap();
            }
            write(&device, &output, 100_000);
            input = Some(output);
        }
    }
    let waits = device.counts().stream_waits - own;
    device.run();
    device.assert_no_hazards();
    Took { waits, reserved: pool.stats().peak_reserved }
}

#[test]
fn a_pipeline_waits_as_its_policy_says() {
    let [balanced, memory, speed] = POLICIES.map(pipeline);
    // The first stage gets nothing back, so that each item's first buffer is new; the others have one each.
    assert_eq!((speed.waits, speed.reserved), (0, ((ITEMS + STAGES - 1) * BYTES) as u64));
    assert!(memory.reserved < balanced.reserved, "{memory:?} {balanced:?}");
    assert!(balanced.reserved < speed.reserved, "{balanced:?} {speed:?}");
    assert!(balanced.waits < memory.waits, "{balanced:?} {memory:?}");
}

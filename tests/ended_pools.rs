//! Pools that were left behind, in a process of their own: nobody else looks after them here.
#![cfg(not(loom))]

use streampool::sim::{Kernel, Schedule, SimConfig, SimDevice};
use streampool::{Growth, StreamPool};

const BYTES: u64 = 4 << 20;

fn lazy() -> SimDevice {
    SimDevice::new(SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() })
}

/// One test: what one pool does to the list of those that were left would show in another.
#[test]
fn ended_pools_are_listed_once_and_no_drop_waits_for_them() {
    a_streams_handle_that_comes_back_costs_nothing_when_it_goes();
    plain_segments_go_back_only_where_blocking_is_allowed();
}

fn a_streams_handle_that_comes_back_costs_nothing_when_it_goes() {
    let device = lazy();
    let pool = StreamPool::new(device.clone());
    let stream = pool.stream(device.create_stream()).unwrap();
    let (x, y) = (stream.alloc(BYTES as usize).unwrap(), stream.alloc(BYTES as usize).unwrap());
    device.launch(stream.raw(), Kernel::new().writes(y.device_ptr(), BYTES)).unwrap();
    drop((y, stream, pool));
    let before = device.counts();
    for _ in 0..5 {
        // A handle of the ended pool, and its last one again.
        drop(x.stream());
    }
    assert_eq!(device.counts(), before, "a drop asks about what is pending");
    // It is listed once: a call of another pool asks once about what is pending.
    let other = StreamPool::new(lazy());
    other.reserve(0).unwrap();
    let asked = (device.counts() - before).event_queries;
    assert_eq!(asked, 1);
    drop(x);
    for _ in 0..4 {
        device.run();
        other.reserve(0).unwrap();
    }
    assert_eq!((device.memory_in_use(), device.live_streams()), (0, 0));
    device.assert_no_hazards();
}

fn plain_segments_go_back_only_where_blocking_is_allowed() {
    let device = SimDevice::new(1);
    let pool = StreamPool::builder(device.clone()).growth(Growth::Segments).build().unwrap();
    let stream = pool.stream(device.create_stream()).unwrap();
    let raw = stream.raw().clone();
    drop(stream.alloc(BYTES as usize).unwrap());
    stream.synchronize().unwrap();
    // Something else runs, which the driver waits for before it takes a segment.
    device.launch(&raw, Kernel::new().taking(1 << 40)).unwrap();
    drop((stream, pool));
    let other_device = SimDevice::new(2);
    let other = StreamPool::new(other_device.clone());
    let own = other.stream(other_device.create_stream()).unwrap();
    own.mark().unwrap();
    drop(own.alloc(1).unwrap());
    assert_eq!(device.counts().segment_frees, 0, "a call that must not block may have");
    own.synchronize().unwrap();
    assert_eq!((device.counts().segment_frees, device.memory_in_use()), (1, 0));
}

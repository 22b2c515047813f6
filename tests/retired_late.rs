//! A stream that left by itself, because its last handle was dropped, closed its last epoch at a moment
//! that a miss chose: what the program queued on it since must not be waited for early.

use streampool::StreamPool;
use streampool::sim::{Kernel, Schedule, SimConfig, SimDevice};

const BYTES: u64 = 4 << 20;

#[test]
fn h19_a_stream_that_left_by_itself_is_not_waited_for_early() {
    let device = SimDevice::new(SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() });
    let builder = StreamPool::builder(device.clone()).floor(0).late_waits(false);
    let pool = builder.build().unwrap();
    let raw = device.create_stream();
    let (a, b) = (pool.stream(raw.clone()).unwrap(), pool.stream(device.create_stream()).unwrap());
    let x = a.alloc(BYTES as usize).unwrap();
    device.launch(&raw, Kernel::new().writes(x.device_ptr(), BYTES)).unwrap();
    let address = x.device_ptr();
    drop((x, a));
    // It ends only when the host opens the gate, after the next allocation.
    let gate = device.gate();
    device.launch(&raw, Kernel::new().after(&gate)).unwrap();
    let before = device.counts();
    let y = b.alloc(BYTES as usize).unwrap();
    assert_eq!((device.counts() - before).stream_waits, 0, "a wait for what the gate holds");
    assert_ne!(y.device_ptr(), address);
    gate.open();
    device.assert_no_hazards();
}

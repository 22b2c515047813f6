//! H66, and what else must not grow with the number of operations: a million distinct sizes and a
//! million steals leave bookkeeping, driver calls and device memory as they were. In a program of its
//! own, because the host's allocator counts here.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use streampool::sim::{Costs, Kernel, Schedule, SimConfig, SimDevice};
use streampool::{Growth, PoolStream, StreamPool};

struct Counting;

thread_local! {
    /// Bytes that this thread has taken from the host and not given back.
    static TAKEN: Cell<i64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; the count is a constant-initialised
// thread-local without a destructor, which allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.set(TAKEN.get() + layout.size() as i64);
        // SAFETY: the caller's promise is the system allocator's condition.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        TAKEN.set(TAKEN.get() - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static HOST: Counting = Counting;

const MIB: u64 = 1 << 20;

/// What an operation costs, as far as it can be counted, over one stretch of a run.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Bytes of the host's memory that are taken now.
    host: i64,
    calls: u64,
    reserved: u64,
    events: u64,
}

/// A device that keeps no history of its own: what grows is the pool's.
fn device(schedule: Schedule) -> SimDevice {
    SimDevice::new(SimConfig {
        check: false,
        schedule,
        costs: Costs::free(),
        ..SimConfig::default()
    })
}

/// Runs `n` operations in ten stretches and returns what each has cost.
fn stretches(
    device: &SimDevice,
    pool: &StreamPool<SimDevice>,
    n: u64,
    mut operation: impl FnMut(u64),
) -> Vec<Cost> {
    let mut costs = Vec::with_capacity(10);
    for stretch in 0..10 {
        let before = device.counts().driver_calls();
        for at in stretch * n / 10..(stretch + 1) * n / 10 {
            operation(at);
        }
        costs.push(Cost {
            host: TAKEN.get(),
            calls: device.counts().driver_calls() - before,
            reserved: pool.stats().reserved,
            events: device.live_events(),
        });
    }
    costs
}

/// From the second stretch on nothing grows; on the host by no more than what the simulated device
/// itself keeps for each stream that was ever created, given in bytes. The device's memory goes up and
/// down, as the sizes of the moment fit together: in the second half no more is taken than in the first.
#[track_caller]
fn assert_flat(costs: &[Cost], devices_own: i64) {
    let first = costs[1];
    let (early, late) = costs.split_at(costs.len() / 2);
    let most = |costs: &[Cost]| costs.iter().map(|cost| cost.reserved).max();
    let (early, late) = (most(early).unwrap(), most(late).unwrap());
    assert!(late <= early + early / 8, "more memory: {costs:#?}");
    for cost in &costs[2..] {
        let grown = cost.host - first.host;
        assert!(grown < (64 << 10) + devices_own, "{grown} bytes of the host's more: {costs:#?}");
        assert!(cost.calls <= first.calls + first.calls / 8 + 100, "more calls: {costs:#?}");
        // It may breathe: pieces are exchanged for a whole, and go back.
        assert!(cost.reserved <= first.reserved + first.reserved / 2, "more memory: {costs:#?}");
        assert!(cost.events <= first.events + 8, "more events: {costs:#?}");
    }
}

fn in_both_kinds(test: impl Fn(Growth)) {
    for growth in [Growth::Virtual, Growth::Segments] {
        eprintln!("growth: {growth:?}");
        test(growth);
    }
}

#[test]
fn h66_a_million_distinct_sizes_leave_the_bookkeeping_flat() {
    in_both_kinds(|growth| {
        let device = device(Schedule::Timed);
        let pool = StreamPool::builder(device.clone()).growth(growth).build().unwrap();
        let streams = [(); 2].map(|()| pool.stream(device.create_stream()).unwrap());
        let mut window = std::collections::VecDeque::with_capacity(16);
        let costs = stretches(&device, &pool, 1_000_000, |n| {
            // Every size once: a multiplication by an odd number goes through all of them.
            let bytes = 1 + n.wrapping_mul(0x9E37_79B1) % (1 << 22);
            window.push_back(streams[n as usize % 2].alloc(bytes as usize).unwrap());
            if window.len() > 8 {
                window.pop_front();
            }
        });
        assert_flat(&costs, 0);
        // Up to the floor it grows rather than asks.
        assert!(pool.stats().peak_reserved <= 128 * MIB, "{:?}", pool.stats());
    });
}

#[test]
fn h66_a_million_steals_leave_the_bookkeeping_flat() {
    in_both_kinds(|growth| {
        let device = device(Schedule::Timed);
        let pool =
            StreamPool::builder(device.clone()).growth(growth).limit(8 * MIB).build().unwrap();
        let streams: Vec<PoolStream<SimDevice>> =
            (0..5).map(|_| pool.stream(device.create_stream()).unwrap()).collect();
        let mut held = std::collections::VecDeque::new();
        let costs = stretches(&device, &pool, 1_000_000, |n| {
            let stream = &streams[n as usize % 5];
            held.push_back((stream.alloc(2 * MIB as usize).unwrap(), n));
            // Work that is under way when the next stream wants the block; now and then time passes.
            device.launch(stream.raw(), Kernel::new().taking(1000)).unwrap();
            if held.len() > 2 {
                held.pop_front();
            }
            if n % 8 == 0 {
                device.advance(4000);
            }
        });
        assert_flat(&costs, 0);
        let stats = pool.stats();
        assert!(stats.late_steals > 100_000, "{stats:?}");
        assert!(stats.late_steals + stats.asked + stats.covered + stats.gathered > 900_000);
    });
}

#[test]
fn h42_twenty_thousand_streams_of_two_pools_leave_the_bookkeeping_flat() {
    in_both_kinds(|growth| {
        let device = device(Schedule::Timed);
        let pool = StreamPool::builder(device.clone()).growth(growth).build().unwrap();
        let other = StreamPool::builder(device.clone()).growth(growth).build().unwrap();
        let home = other.stream(device.create_stream()).unwrap();
        const STREAMS: u64 = 20_000;
        let costs = stretches(&device, &pool, STREAMS, |n| {
            let stream = pool.stream(device.create_stream()).unwrap();
            let x = stream.alloc(1 << 20).unwrap();
            device.launch(stream.raw(), Kernel::new().taking(100)).unwrap();
            if n % 4 == 0 {
                // Named by a buffer of another pool as well.
                let y = home.alloc(1 << 20).unwrap();
                y.use_on(&stream).unwrap();
            }
            drop(x);
            device.advance(1000);
        });
        // Two vectors with an entry each, which double.
        assert_flat(&costs, 48 * STREAMS as i64);
        assert!(pool.stats().streams <= 2, "{:?}", pool.stats());
    });
}

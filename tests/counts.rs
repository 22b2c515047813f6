//! Precision: how many driver calls each operation makes, exactly. A pool that waits too much is right
//! and useless; only counters see that. What is not listed in a case is zero.

use streampool::sim::{CallCounts, Kernel, Schedule, SimConfig, SimDevice};
use streampool::{Buffer, Growth, PoolStream, QuiescentReport, Reuse, StreamPool};

type Pool = StreamPool<SimDevice>;
type Stream = PoolStream<SimDevice>;

const BLOCK: usize = 4 << 20;

/// A device on which nothing finishes before a synchronize needs it.
fn lazy() -> SimDevice {
    SimDevice::new(SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() })
}

/// A pool that steals before it grows, with `blocks` blocks at most.
fn pool(device: &SimDevice, blocks: usize) -> Pool {
    let limit = (blocks * BLOCK) as u64;
    let builder = StreamPool::builder(device.clone()).limit(limit).floor(0);
    builder.reuse(Reuse::Memory).build().unwrap()
}

fn streams<const N: usize>(pool: &Pool, device: &SimDevice) -> [Stream; N] {
    std::array::from_fn(|_| pool.stream(device.create_stream()).unwrap())
}

fn use_it(device: &SimDevice, buffer: &Buffer<SimDevice>) {
    let kernel = Kernel::new().writes(buffer.device_ptr(), buffer.capacity() as u64);
    device.launch(buffer.stream().raw(), kernel).unwrap();
}

/// A buffer that work on the stream uses, and that is free again.
fn free_one(device: &SimDevice, stream: &Stream) {
    let buffer = stream.alloc(BLOCK).unwrap();
    use_it(device, &buffer);
}

/// Runs something and checks the driver calls that it makes: all of them, by name.
macro_rules! makes {
    ($device:expr, $run:expr, {$($call:ident: $count:expr),*}) => {{
        let before = $device.counts();
        let value = $run;
        let made = $device.counts() - before;
        #[allow(unused_mut, reason = "where no call is made")]
        let mut wanted = CallCounts::default();
        $(wanted.$call = $count;)*
        assert_eq!(made, wanted, "{}", stringify!($run));
        assert_eq!($device.hazards().len(), 0, "{}", $device.hazards()[0]);
        value
    }};
}

#[test]
fn hits_frees_and_looks_make_no_call() {
    let device = lazy();
    let pool = pool(&device, 4);
    let [a] = streams(&pool, &device);
    free_one(&device, &a);
    let hit = makes!(device, a.alloc(BLOCK).unwrap(), {});
    makes!(device, drop(hit), {});
    let nothing = makes!(device, a.alloc(0).unwrap(), {});
    makes!(device, drop(nothing), {});
    makes!(device, pool.stats(), {});
    makes!(device, pool.reset_peak(), {});
    assert_eq!(pool.stats().hits, 1);
    let again = makes!(device, pool.stream(a.raw().clone()).unwrap(), {stream_releases: 1});
    assert_eq!(again, a);
}

#[test]
fn growth_maps_small_granules_under_one_access_or_takes_one_segment() {
    let device = lazy();
    let [a] = streams(&pool(&device, 8), &device);
    let first = makes!(device, a.alloc(BLOCK).unwrap(), {
        capture_queries: 1, memory_infos: 1, range_reserves: 1,
        granule_creates: 2, maps: 2, set_accesses: 1
    });
    let second = makes!(device, a.alloc(BLOCK).unwrap(), {
        capture_queries: 1, granule_creates: 2, maps: 2, set_accesses: 1
    });
    drop((first, second));

    let plain = StreamPool::builder(device.clone()).growth(Growth::Segments).build().unwrap();
    let [b] = streams(&plain, &device);
    makes!(device, drop(b.alloc(BLOCK).unwrap()), {capture_queries: 1, segment_allocs: 1});
    makes!(device, plain.reserve(2 * BLOCK as u64).unwrap(), {segment_allocs: 1});
}

#[test]
fn a_mark_is_one_record() {
    let device = lazy();
    let pool = pool(&device, 4);
    let [a, b] = streams(&pool, &device);
    makes!(device, a.mark().unwrap(), {capture_queries: 2, event_creates: 1, event_records: 1});
    makes!(device, a.synchronize().unwrap(), {
        capture_queries: 2, event_creates: 1, event_records: 1, event_synchronizes: 1
    });
    // Events come back when they have finished.
    makes!(device, b.mark().unwrap(), {capture_queries: 2, event_records: 1});
}

#[test]
fn naming_moving_and_waiting_are_one_record_and_one_wait() {
    let device = lazy();
    let pool = pool(&device, 4);
    let [a, b] = streams(&pool, &device);
    let mut buffer = a.alloc(BLOCK).unwrap();
    use_it(&device, &buffer);
    makes!(device, buffer.use_on(&a).unwrap(), {});
    makes!(device, buffer.move_to(&a).unwrap(), {});
    makes!(device, a.wait_for(&a).unwrap(), {});
    for _ in 0..2 {
        // Nothing is ever covered: what was launched in between is not known.
        makes!(device, buffer.use_on(&b).unwrap(), {
            capture_queries: 3, event_creates: 1, event_records: 1, stream_waits: 1
        });
    }
    makes!(device, buffer.move_to(&b).unwrap(), {
        capture_queries: 3, event_creates: 1, event_records: 1, stream_waits: 1
    });
    makes!(device, b.wait_for(&a).unwrap(), {
        capture_queries: 3, event_creates: 1, event_records: 1, stream_waits: 1
    });
    makes!(device, drop(buffer), {});
    let empty = a.alloc(0).unwrap();
    makes!(device, empty.use_on(&b).unwrap(), {});
}

#[test]
fn h13_an_early_steal_waits_once_and_a_second_one_not_at_all() {
    let device = lazy();
    let pool = pool(&device, 2);
    let [a, b] = streams(&pool, &device);
    let both = [a.alloc(BLOCK).unwrap(), a.alloc(BLOCK).unwrap()];
    both.iter().for_each(|buffer| use_it(&device, buffer));
    drop(both);
    a.mark().unwrap();
    // The event is asked once, has not finished, and is waited for.
    let first = makes!(device, b.alloc(BLOCK).unwrap(), {
        capture_queries: 1, event_queries: 1, stream_waits: 1
    });
    let second = makes!(device, b.alloc(BLOCK).unwrap(), {capture_queries: 1});
    use_it(&device, &first);
    use_it(&device, &second);
    assert_eq!((pool.stats().early_steals, pool.stats().late_steals), (1, 0));
    makes!(device, drop((first, second)), {});
}

#[test]
fn a_late_steal_records_once_and_waits_once() {
    let device = lazy();
    let pool = pool(&device, 2);
    let [a, b] = streams(&pool, &device);
    let both = [a.alloc(BLOCK).unwrap(), a.alloc(BLOCK).unwrap()];
    both.iter().for_each(|buffer| use_it(&device, buffer));
    drop(both);
    let first = makes!(device, b.alloc(BLOCK).unwrap(), {
        capture_queries: 3, event_creates: 1, event_records: 1, event_queries: 1, stream_waits: 1
    });
    let second = makes!(device, b.alloc(BLOCK).unwrap(), {capture_queries: 1});
    use_it(&device, &first);
    use_it(&device, &second);
    assert_eq!(pool.stats().late_steals, 1);
}

#[test]
fn a_steal_waits_only_for_what_is_not_covered() {
    let device = lazy();
    let pool = pool(&device, 1);
    let [a, b, c] = streams(&pool, &device);
    let shared = a.alloc(BLOCK).unwrap();
    use_it(&device, &shared);
    shared.use_on(&b).unwrap();
    let read = Kernel::new().reads(shared.device_ptr(), BLOCK as u64);
    device.launch(b.raw(), read).unwrap();
    drop(shared);
    b.mark().unwrap();
    a.mark().unwrap();
    c.wait_for(&a).unwrap();
    // Used on a and b: the one is waited for already, the other is not.
    let buffer = makes!(device, c.alloc(BLOCK).unwrap(), {
        capture_queries: 1, event_queries: 1, stream_waits: 1
    });
    use_it(&device, &buffer);
}

#[test]
fn what_a_wait_covers_needs_no_other() {
    let device = lazy();
    let pool = pool(&device, 1);
    let [a, b, c] = streams(&pool, &device);
    free_one(&device, &a);
    b.wait_for(&a).unwrap();
    c.wait_for(&b).unwrap();
    // By transitivity: c has never waited for a.
    let buffer = makes!(device, c.alloc(BLOCK).unwrap(), {capture_queries: 1});
    use_it(&device, &buffer);
}

#[test]
fn h03_what_has_finished_is_taken_after_one_question() {
    let device = SimDevice::new(1);
    let pool = pool(&device, 1);
    let [a, b] = streams(&pool, &device);
    free_one(&device, &a);
    device.run();
    let buffer = makes!(device, b.alloc(BLOCK).unwrap(), {
        capture_queries: 3, event_creates: 1, event_records: 1, event_queries: 1
    });
    use_it(&device, &buffer);
    assert_eq!(pool.stats().asked, 1);
}

#[test]
fn h38_a_scope_with_nothing_to_do_is_one_synchronize() {
    let device = lazy();
    let pool = pool(&device, 4);
    let scope = makes!(device, pool.quiesce().unwrap(), {context_synchronizes: 1});
    makes!(device, drop(scope), {});
    let report = makes!(device, pool.release(()).unwrap(), {context_synchronizes: 1});
    assert_eq!(report, QuiescentReport::default());
    makes!(device, pool.synchronize().unwrap(), {context_synchronizes: 1});

    // Each stream is asked whether it captures, for a synchronize would break the capture.
    let _streams: [Stream; 3] = streams(&pool, &device);
    let scope = makes!(device, pool.quiesce().unwrap(), {
        capture_queries: 3, context_synchronizes: 1
    });
    makes!(device, drop(scope), {});
}

/// A device, prompt, that can record an event on its context, or cannot.
fn prompt(context_events: bool) -> SimDevice {
    SimDevice::new(SimConfig { context_events, ..SimConfig::default() })
}

#[test]
fn a_scope_of_many_frees_asks_once_where_the_device_can() {
    scope_of_many_frees(true);
}

#[test]
fn a_scope_of_many_frees_asks_each_stream_once_where_the_device_cannot() {
    scope_of_many_frees(false);
}

fn scope_of_many_frees(context_events: bool) {
    let device = prompt(context_events);
    let pool = StreamPool::new(device.clone());
    let streams: [Stream; 4] = streams(&pool, &device);
    let mut buffers = Vec::new();
    for at in 0..100 {
        buffers.push(streams[at % 3].alloc(512 << 10).unwrap());
        use_it(&device, &buffers[at]);
    }
    buffers[0].use_on(&streams[3]).unwrap();
    let scope = pool.quiesce().unwrap();
    makes!(device, drop(buffers), {});
    let before = device.counts();
    let report = scope.finish();
    let made = device.counts() - before;
    assert_eq!((report.freed, report.clean), (100, 100));
    let records = (made.context_records, made.event_records, made.event_queries);
    assert_eq!(records, if context_events { (1, 0, 1) } else { (0, 4, 4) }, "{made:?}");
    let rest = made.event_creates + made.capture_queries;
    assert_eq!(made.driver_calls(), if context_events { 2 } else { 8 } + rest, "{made:?}");
    // All of it is clean now, for any stream.
    let stats = pool.stats();
    makes!(device, drop(streams[3].alloc(512 << 10).unwrap()), {capture_queries: 1});
    assert_eq!(pool.stats().covered, stats.covered + 1);
}

#[test]
fn a_release_is_one_synchronize_and_one_event() {
    let device = prompt(true);
    let pool = StreamPool::new(device.clone());
    let streams: [Stream; 2] = streams(&pool, &device);
    let buffers: Vec<_> = (0..50).map(|at| streams[at % 2].alloc(4096).unwrap()).collect();
    buffers.iter().for_each(|buffer| use_it(&device, buffer));
    let report = makes!(device, pool.release(buffers).unwrap(), {
        context_synchronizes: 1, capture_queries: 2 + 2, event_creates: 1, context_records: 1,
        event_queries: 1
    });
    assert_eq!((report.freed, report.clean, report.deferred), (50, 50, 0));
}

#[test]
fn a_release_is_one_synchronize_and_one_event_a_stream_where_the_context_has_none() {
    let device = prompt(false);
    let pool = StreamPool::new(device.clone());
    let streams: [Stream; 2] = streams(&pool, &device);
    let buffers: Vec<_> = (0..50).map(|at| streams[at % 2].alloc(4096).unwrap()).collect();
    buffers.iter().for_each(|buffer| use_it(&device, buffer));
    // What the first scope has learned about the device, the second knows.
    for looks in [2, 0] {
        // The first event has finished, and serves the second stream too.
        let buffers: Vec<_> = (0..50).map(|at| streams[at % 2].alloc(4096).unwrap()).collect();
        let report = makes!(device, pool.release(buffers).unwrap(), {
            context_synchronizes: 1, capture_queries: 2 + looks + 4,
            event_creates: looks / 2, event_records: 2, event_queries: 2
        });
        assert_eq!((report.freed, report.clean, report.deferred), (50, 50, 0));
    }
    drop(buffers);
}

#[test]
fn a_scope_beside_other_work_asks_each_of_its_streams() {
    let device = prompt(true);
    let pool = StreamPool::new(device.clone());
    let streams: [Stream; 3] = streams(&pool, &device);
    let buffers: Vec<_> = (0..50).map(|at| streams[at % 2].alloc(4096).unwrap()).collect();
    let scope = pool.quiesce().unwrap();
    drop(buffers);
    // Nothing of the scope's, and it never ends.
    let other = device.create_stream();
    let gate = device.gate();
    device.launch(&other, Kernel::new().after(&gate)).unwrap();
    let report = makes!(device, scope.finish(), {
        capture_queries: 3 + 4, event_creates: 1, context_records: 1, event_records: 2,
        event_queries: 3
    });
    assert_eq!((report.freed, report.clean, report.deferred), (50, 50, 0));
    gate.open();
}

#[test]
fn a_scope_on_one_stream_of_many_asks_that_one() {
    let device = prompt(true);
    let pool = StreamPool::new(device.clone());
    let streams: [Stream; 9] = streams(&pool, &device);
    let buffer = streams[4].alloc(4096).unwrap();
    let scope = pool.quiesce().unwrap();
    drop(buffer);
    let report = makes!(device, scope.finish(), {
        capture_queries: 2, event_creates: 1, event_records: 1, event_queries: 1
    });
    assert_eq!((report.freed, report.clean), (1, 1));
}

#[test]
fn h04_many_frees_make_no_call_and_each_source_is_recorded_once() {
    const EACH: usize = 12;
    const SIZE: usize = 512 << 10;
    let device = lazy();
    let limit = (36 * EACH * SIZE) as u64;
    let builder = StreamPool::builder(device.clone()).reuse(Reuse::Memory).limit(limit);
    let pool = builder.build().unwrap();
    let sources: [Stream; 36] = streams(&pool, &device);
    let [taker] = streams(&pool, &device);
    let allocs = (0..36 * EACH).map(|at| sources[at % 36].alloc(SIZE).unwrap());
    let buffers: Vec<_> = allocs.collect();
    buffers.iter().for_each(|buffer| use_it(&device, buffer));
    makes!(device, drop(buffers), {});
    let before = device.counts();
    let taken: Vec<_> = (0..36 * EACH).map(|_| taker.alloc(SIZE).unwrap()).collect();
    let made = device.counts() - before;
    taken.iter().for_each(|buffer| use_it(&device, buffer));
    assert_eq!((made.event_records, made.stream_waits), (36, 36), "{made:?}");
    assert_eq!((made.synchronizes(), made.mapping_calls()), (0, 0), "{made:?}");
    assert!(device.hazards().is_empty());
}

#[test]
fn a_free_that_closes_its_epoch_is_one_record_and_none_in_a_scope() {
    let device = lazy();
    let pool = pool(&device, 4);
    let a = pool.stream_record_on_free(device.create_stream()).unwrap();
    let [first, second] = [a.alloc(BLOCK).unwrap(), a.alloc(BLOCK).unwrap()];
    makes!(device, drop(first), {capture_queries: 2, event_creates: 1, event_records: 1});
    let scope = pool.quiesce().unwrap();
    makes!(device, drop(second), {});
    makes!(device, drop(scope), {capture_queries: 2, event_records: 1, event_queries: 1});
}

#[test]
fn trim_asks_each_stream_once_and_unmaps_what_is_clean() {
    let device = lazy();
    let pool = pool(&device, 4);
    let [a, b] = streams(&pool, &device);
    let both = [a.alloc(BLOCK).unwrap(), b.alloc(BLOCK).unwrap()];
    both.iter().for_each(|buffer| use_it(&device, buffer));
    drop(both);
    let given = makes!(device, pool.trim(0).unwrap(), {
        capture_queries: 4, event_creates: 2, event_records: 2, event_queries: 2
    });
    assert_eq!(given, 0, "nothing is seen to have finished");
    // The two events are published: they are asked again, and no other is recorded.
    makes!(device, pool.trim(0).unwrap(), {event_queries: 2});
    pool.synchronize().unwrap();
    let given = makes!(device, pool.trim(0).unwrap(), {unmaps: 1, granule_destroys: 4});
    assert_eq!(given, 2 * BLOCK as u64);
}

#[test]
fn retiring_is_one_record() {
    let device = lazy();
    let pool = pool(&device, 4);
    let [a, b] = streams(&pool, &device);
    free_one(&device, &a);
    makes!(device, a.retire().unwrap(), {
        capture_queries: 2, event_creates: 1, event_records: 1, stream_releases: 1
    });
    // The last drop makes no call; the next call that may block retires the stream, and asks it later.
    makes!(device, drop(b), {});
    makes!(device, pool.trim(u64::MAX).unwrap(), {
        capture_queries: 2, event_creates: 1, event_records: 1, stream_releases: 1,
        event_queries: 3
    });
}

#[test]
fn out_of_memory_synchronizes_once() {
    let device = lazy();
    let pool = pool(&device, 2);
    let [a, b] = streams(&pool, &device);
    let _both = [a.alloc(BLOCK).unwrap(), a.alloc(BLOCK).unwrap()];
    let error = makes!(device, b.alloc(BLOCK).unwrap_err(), {
        capture_queries: 1 + 2, context_synchronizes: 1, memory_infos: 1
    });
    assert!(error.is_over_limit());
}

/// Small memory is not passed on: below the floor each stream gets some of its own, and then needs neither
/// a driver call nor a wait, in whatever order the streams take their turns.
#[test]
fn below_the_floor_streams_share_nothing_and_make_no_call() {
    let device = lazy();
    let pool = StreamPool::new(device.clone());
    let streams: [Stream; 8] = streams(&pool, &device);
    let turn = |count: usize| {
        for at in 0..count {
            let buffer = streams[at % 8].alloc(8 << 20).unwrap();
            use_it(&device, &buffer);
        }
    };
    turn(8);
    makes!(device, turn(1000), {launches: 1000});
    assert_eq!((pool.stats().hits, pool.stats().reserved), (1000, 64 << 20));
}

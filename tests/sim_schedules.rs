//! When operations execute, what that costs, and how calls are counted.
#![cfg(not(loom))]

use streampool::backend::Backend;
use streampool::sim::{
    CallCounts, Costs, Kernel, Schedule, SimConfig, SimDevice, SimStream, SizeCost,
};

fn device(schedule: Schedule, seed: u64) -> SimDevice {
    SimDevice::new(SimConfig { schedule, seed, costs: Costs::free(), ..SimConfig::default() })
}

#[test]
fn timed_operations_start_and_end_when_the_virtual_clock_says() {
    let device = device(Schedule::Timed, 0);
    let (a, b) = (device.create_stream(), device.create_stream());
    let (of_a, of_b) = (device.create_event().unwrap(), device.create_event().unwrap());
    device.launch(&a, Kernel::new().taking(100)).unwrap();
    device.record(&of_a, &a).unwrap();
    device.wait(&b, &of_a).unwrap();
    device.launch(&b, Kernel::new().taking(50)).unwrap();
    device.record(&of_b, &b).unwrap();
    let finished = || [device.query(&of_a).unwrap(), device.query(&of_b).unwrap()];
    device.advance(99);
    assert_eq!(finished(), [false, false]);
    device.advance(1);
    assert_eq!(finished(), [true, false]);
    device.advance(49);
    assert_eq!(finished(), [true, false]);
    device.advance(1);
    assert_eq!(finished(), [true, true]);
    assert_eq!(device.now(), 150);
}

#[test]
fn streams_run_side_by_side_and_a_synchronize_takes_the_time_that_is_left() {
    let device = device(Schedule::Timed, 0);
    let streams: Vec<_> = (0..4).map(|_| device.create_stream()).collect();
    let event = device.create_event().unwrap();
    for (stream, ns) in streams.iter().zip([400, 100, 300, 200]) {
        device.launch(stream, Kernel::new().taking(ns)).unwrap();
    }
    device.record(&event, &streams[3]).unwrap();
    device.synchronize_event(&event).unwrap();
    assert_eq!(device.now(), 200);
    device.synchronize_context().unwrap();
    assert_eq!(device.now(), 400);
}

#[test]
fn a_kernel_behind_a_gate_starts_when_it_opens() {
    let device = device(Schedule::Timed, 0);
    let stream = device.create_stream();
    let gate = device.gate();
    device.launch(&stream, Kernel::new().taking(100).after(&gate)).unwrap();
    device.advance(1000);
    gate.open();
    device.synchronize_context().unwrap();
    assert_eq!(device.now(), 1100);
}

#[test]
fn untimed_schedules_keep_time_too() {
    for schedule in [Schedule::Random, Schedule::Lazy, Schedule::Frozen(1)] {
        let device = device(schedule, 3);
        let (a, b) = (device.create_stream(), device.create_stream());
        let event = device.create_event().unwrap();
        device.launch(&a, Kernel::new().taking(100)).unwrap();
        device.record(&event, &a).unwrap();
        device.wait(&b, &event).unwrap();
        device.launch(&b, Kernel::new().taking(50)).unwrap();
        device.synchronize_context().unwrap();
        assert_eq!(device.now(), 150, "{schedule:?}");
    }
}

#[test]
fn calls_cost_what_the_table_says() {
    let device = SimDevice::new(1);
    let costs = Costs::default();
    let stream = device.create_stream();
    let cost = |call: &dyn Fn()| {
        let start = device.now();
        call();
        device.now() - start
    };
    assert_eq!(device.now(), 0, "creating streams is not timed");
    let create = cost(&|| device.destroy_event(device.create_event().unwrap()));
    assert_eq!(create, costs.create_event + costs.destroy_event);
    let event = device.create_event().unwrap();
    let launch = || device.launch(&stream, Kernel::new().taking(10_000)).unwrap();
    assert_eq!(cost(&launch), costs.launch);
    assert_eq!(cost(&|| device.record(&event, &stream).unwrap()), costs.record);
    assert_eq!(cost(&|| assert!(!device.query(&event).unwrap())), costs.query_pending);
    assert_eq!(cost(&|| device.wait(&stream, &event).unwrap()), costs.wait);
    device.synchronize_context().unwrap();
    assert_eq!(cost(&|| assert!(device.query(&event).unwrap())), costs.query_finished);
    assert_eq!(cost(&|| device.synchronize_context().unwrap()), costs.synchronize);
    assert_eq!(cost(&|| drop(device.is_capturing(&stream))), costs.is_capturing);
    let alloc = cost(&|| assert!(device.alloc_segment(64 << 20).is_ok()));
    assert_eq!(alloc, costs.alloc_segment.of(64 << 20));
    assert!(alloc > SizeCost::FREE.of(64 << 20));
}

#[test]
fn memory_calls_cost_what_the_table_says_for_their_size() {
    const BYTES: u64 = 64 << 20;
    let device = SimDevice::new(1);
    let costs = Costs::default();
    let start = |expected: u64| device.now() + expected;
    let end = start(costs.range);
    let range = device.reserve_range(BYTES).unwrap();
    assert_eq!(device.now(), end);
    let end = start(costs.create_granule.of(BYTES));
    let granule = device.create_granule(BYTES).unwrap();
    assert_eq!(device.now(), end);
    let end = start(costs.map.of(BYTES) + costs.set_access.of(BYTES) + costs.unmap.of(BYTES));
    // SAFETY: The range is reserved and empty, the granule of its size, and nothing uses it.
    unsafe {
        device.map(range, BYTES, &granule).unwrap();
        device.set_access(range, BYTES, &[]).unwrap();
        device.unmap(range, BYTES).unwrap();
    }
    assert_eq!(device.now(), end);
    let segment = device.alloc_segment(BYTES).unwrap();
    let end = start(costs.destroy_granule.of(BYTES) + costs.free_segment.of(BYTES));
    // SAFETY: The granule is mapped nowhere; the segment is of this size and unused.
    unsafe {
        device.destroy_granule(granule).unwrap();
        device.free_segment(segment, BYTES).unwrap();
    }
    assert_eq!(device.now(), end);
    let end = start(costs.memory_info + costs.allow_peer);
    device.memory_info().unwrap();
    device.allow_peer(&device, true).unwrap();
    assert_eq!(device.now(), end);
}

/// The order in which the operations of three streams execute.
fn order(device: &SimDevice, step: impl Fn(&SimDevice)) -> Vec<u64> {
    let streams: Vec<SimStream> = (0..3).map(|_| device.create_stream()).collect();
    let (sender, receiver) = std::sync::mpsc::channel();
    for number in 0..12u64 {
        let sender = sender.clone();
        let function = Box::new(move || sender.send(number).unwrap());
        let kernel = Kernel::new().host_function(function);
        device.launch(&streams[number as usize % 3], kernel).unwrap();
    }
    step(device);
    receiver.try_iter().collect()
}

#[test]
fn a_lazy_device_executes_only_what_a_synchronize_needs() {
    let device = device(Schedule::Lazy, 0);
    let (a, b, c) = (device.create_stream(), device.create_stream(), device.create_stream());
    let (of_a, of_b) = (device.create_event().unwrap(), device.create_event().unwrap());
    let x = device.alloc_segment(3).unwrap();
    device.launch(&a, Kernel::new().writes(x, 1).stamp(1)).unwrap();
    device.record(&of_a, &a).unwrap();
    device.launch(&a, Kernel::new().writes(x, 1).stamp(2)).unwrap();
    device.wait(&b, &of_a).unwrap();
    device.launch(&b, Kernel::new().writes(x + 1, 1).stamp(3)).unwrap();
    device.record(&of_b, &b).unwrap();
    device.launch(&c, Kernel::new().writes(x + 2, 1).stamp(4)).unwrap();
    device.advance(1_000_000);
    assert!(!device.query(&of_a).unwrap());
    let stamps = || [0, 1, 2].map(|at| device.read_stamp(x + at));
    assert_eq!(stamps(), [None, None, None]);
    device.synchronize_event(&of_b).unwrap();
    assert_eq!(stamps(), [Some(1), Some(3), None]);
    assert!(device.query(&of_a).unwrap());
    assert!(device.step() && device.step() && !device.step());
    assert_eq!(stamps(), [Some(2), Some(3), Some(4)]);
}

#[test]
fn a_frozen_operation_waits_for_a_synchronize_and_all_else_runs() {
    let device = device(Schedule::Frozen(1), 0);
    let (a, b) = (device.create_stream(), device.create_stream());
    let (of_a, of_b) = (device.create_event().unwrap(), device.create_event().unwrap());
    device.launch(&a, Kernel::new()).unwrap();
    device.record(&of_a, &a).unwrap();
    device.launch(&b, Kernel::new()).unwrap();
    device.record(&of_b, &b).unwrap();
    device.run();
    assert!(device.query(&of_b).unwrap() && !device.query(&of_a).unwrap());
    device.synchronize_event(&of_a).unwrap();
    assert!(device.query(&of_a).unwrap());
}

#[test]
fn records_and_waits_can_be_frozen_too() {
    // 1 launch, 2 record, 3 launch on a; 4 wait, 5 launch on b.
    for (frozen, executed) in [(2, [true, false, false]), (4, [true, true, false])] {
        let device = device(Schedule::Frozen(frozen), 0);
        let (a, b) = (device.create_stream(), device.create_stream());
        let event = device.create_event().unwrap();
        let x = device.alloc_segment(3).unwrap();
        let write = |stream, at| device.launch(stream, Kernel::new().writes(x + at, 1)).unwrap();
        write(&a, 0);
        device.record(&event, &a).unwrap();
        write(&a, 1);
        device.wait(&b, &event).unwrap();
        write(&b, 2);
        device.run();
        let found = [0, 1, 2].map(|at| device.read_stamp(x + at).is_some());
        assert_eq!(found, executed, "frozen {frozen}");
        device.synchronize_context().unwrap();
        assert!([0, 1, 2].iter().all(|at| device.read_stamp(x + at).is_some()));
    }
}

#[test]
fn chance_is_the_seeds_and_orders_differ() {
    let run = |seed| order(&device(Schedule::Random, seed), SimDevice::run);
    let orders: Vec<_> = (0..20).map(run).collect();
    assert_eq!(orders, (0..20).map(run).collect::<Vec<_>>(), "the same seed, the same order");
    let mut distinct = orders.clone();
    distinct.sort();
    distinct.dedup();
    assert!(distinct.len() > 15, "{distinct:?}");
    for order in orders {
        assert_eq!(order.len(), 12);
        for stream in 0..3 {
            let of_stream: Vec<_> = order.iter().filter(|&&n| n % 3 == stream).collect();
            assert!(of_stream.is_sorted(), "stream order holds: {order:?}");
        }
    }
}

#[test]
fn every_schedule_executes_everything_in_the_end() {
    for schedule in [Schedule::Timed, Schedule::Random, Schedule::Lazy, Schedule::Frozen(0)] {
        for finish in [SimDevice::run, |device: &SimDevice| device.synchronize_context().unwrap()] {
            let mut order = order(&device(schedule, 1), finish);
            order.sort_unstable();
            assert_eq!(order, (0..12).collect::<Vec<_>>(), "{schedule:?}");
        }
    }
}

#[test]
fn counts_are_exact_and_leave_out_the_programs_own_calls() {
    let devices = SimDevice::several(1, 2);
    let device = &devices[0];
    let before = device.counts();
    assert_eq!(before, CallCounts::default());
    let stream = device.create_stream();
    let event = device.create_event().unwrap();
    device.record(&event, &stream).unwrap();
    device.wait(&stream, &event).unwrap();
    device.query(&event).unwrap();
    device.synchronize_event(&event).unwrap();
    device.synchronize_context().unwrap();
    device.is_capturing(&stream).unwrap();
    device.memory_info().unwrap();
    let segment = device.alloc_segment(64).unwrap();
    // SAFETY: Allocated with this size and unused.
    unsafe { device.free_segment(segment, 64).unwrap() };
    let calls = device.counts() - before;
    assert_eq!((calls.event_creates, calls.event_records, calls.stream_waits), (1, 1, 1));
    assert_eq!((calls.event_queries, calls.capture_queries, calls.memory_infos), (1, 1, 1));
    assert_eq!((calls.synchronizes(), calls.mapping_calls(), calls.driver_calls()), (2, 2, 10));

    device.launch(&stream, Kernel::new()).unwrap();
    device.user_stream_query(&stream).unwrap();
    device.user_stream_synchronize(&stream).unwrap();
    device.user_event_query(&event).unwrap();
    device.run();
    let calls = device.counts() - calls;
    assert_eq!((calls.launches, calls.driver_calls()), (1, 0));
    assert_eq!(devices[1].counts(), CallCounts::default(), "a device counts its own calls");
}

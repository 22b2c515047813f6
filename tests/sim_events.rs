//! What orders, and what does not: events, handles, the legacy stream, and what the host knows.
#![cfg(not(loom))]

use std::thread;

use streampool::backend::{Backend, StreamKind};
use streampool::sim::{
    Call, FaultPlan, Kernel, Schedule, SimConfig, SimDevice, SimErrorCode as Code, SimStream,
};

fn device() -> (SimDevice, u64) {
    let device = SimDevice::new(1);
    let x = device.alloc_segment(4096).unwrap();
    (device, x)
}

/// Whether a write on one stream is ordered before a write on the other that is launched now.
fn is_ordered(device: &SimDevice, stream: &SimStream, x: u64) -> bool {
    device.launch(stream, Kernel::new().writes(x, 64)).unwrap();
    device.take_hazards().is_empty()
}

fn write(device: &SimDevice, stream: &SimStream, x: u64) {
    device.launch(stream, Kernel::new().writes(x, 64)).unwrap();
}

#[test]
fn an_event_that_was_never_recorded_is_finished_and_orders_nothing() {
    let (device, x) = device();
    let (a, b) = (device.create_stream(), device.create_stream());
    let event = device.create_event().unwrap();
    assert!(device.query(&event).unwrap());
    device.synchronize_event(&event).unwrap();
    write(&device, &a, x);
    device.wait(&b, &event).unwrap();
    assert!(!is_ordered(&device, &b, x));
}

#[test]
fn a_wait_takes_the_record_at_the_time_of_the_call() {
    let (device, x) = device();
    let (a, b, c) = (device.create_stream(), device.create_stream(), device.create_stream());
    let event = device.create_event().unwrap();
    write(&device, &a, x);
    device.record(&event, &a).unwrap();
    device.wait(&b, &event).unwrap();
    // Recording again on an idle stream neither weakens the earlier wait ...
    device.record(&event, &c).unwrap();
    assert!(is_ordered(&device, &b, x));
    // ... nor does it mean the old record to a later one.
    device.wait(&c, &event).unwrap();
    assert!(!is_ordered(&device, &c, x));
}

#[test]
fn a_record_does_not_cover_what_comes_after_it() {
    let (device, x) = device();
    let (a, b) = (device.create_stream(), device.create_stream());
    let event = device.create_event().unwrap();
    device.record(&event, &a).unwrap();
    write(&device, &a, x);
    device.wait(&b, &event).unwrap();
    assert!(!is_ordered(&device, &b, x));
}

#[test]
fn an_event_of_the_context_stands_for_all_its_streams_and_for_nothing_later() {
    let (device, x) = device();
    let (a, b, c) = (device.create_stream(), device.create_stream(), device.create_stream());
    let event = device.create_event().unwrap();
    let gate = device.gate();
    device.launch(&a, Kernel::new().writes(x, 64).after(&gate)).unwrap();
    write(&device, &b, x + 64);
    assert!(device.record_context(&event).unwrap());
    write(&device, &b, x + 128);
    assert!(!device.query(&event).unwrap(), "one stream has not finished");
    device.wait(&c, &event).unwrap();
    gate.open();
    for part in [x, x + 64] {
        assert!(is_ordered(&device, &c, part));
    }
    assert!(!is_ordered(&device, &c, x + 128));
    device.run();
    assert!(device.query(&event).unwrap());
    let cannot = SimDevice::new(SimConfig { context_events: false, ..SimConfig::default() });
    let event = cannot.create_event().unwrap();
    assert!(!cannot.record_context(&event).unwrap());
    assert_eq!(cannot.counts().context_records, 0);
}

#[test]
fn an_event_carries_what_its_stream_was_ordered_after_then() {
    let (device, x) = device();
    let streams: Vec<_> = (0..4).map(|_| device.create_stream()).collect();
    let [a, b, c, d] = &streams[..] else { unreachable!() };
    let events: Vec<_> = (0..3).map(|_| device.create_event().unwrap()).collect();
    let [of_a, early, late] = &events[..] else { unreachable!() };
    write(&device, a, x);
    write(&device, a, x + 64);
    device.record(of_a, a).unwrap();
    device.record(early, b).unwrap();
    device.wait(b, of_a).unwrap();
    device.record(late, b).unwrap();
    device.wait(c, early).unwrap();
    assert!(!is_ordered(&device, c, x));
    device.wait(d, late).unwrap();
    assert!(is_ordered(&device, d, x + 64));
}

#[test]
fn a_failed_call_makes_no_edge() {
    for call in [Call::Record, Call::Wait] {
        for late in [false, true] {
            let (device, x) = device();
            let (a, b) = (device.create_stream(), device.create_stream());
            let event = device.create_event().unwrap();
            write(&device, &a, x);
            let plan = FaultPlan::new(call);
            device.inject(if late { plan.late() } else { plan });
            let results = [device.record(&event, &a), device.wait(&b, &event)];
            assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1);
            // A late error is another call's: this one has had its effect.
            assert_eq!(is_ordered(&device, &b, x), late);
        }
    }
}

#[test]
fn the_host_knows_what_it_has_seen_finish_and_no_more() {
    let (device, x) = device();
    let (a, b) = (device.create_stream(), device.create_stream());
    let event = device.create_event().unwrap();

    // Virtual time has passed and all has executed, but nobody has looked.
    write(&device, &a, x);
    device.run();
    assert!(!is_ordered(&device, &b, x));

    device.record(&event, &b).unwrap();
    device.synchronize_event(&event).unwrap();
    assert!(is_ordered(&device, &a, x));

    device.record(&event, &a).unwrap();
    device.run();
    assert!(device.query(&event).unwrap());
    assert!(is_ordered(&device, &b, x));

    device.synchronize_context().unwrap();
    assert!(is_ordered(&device, &a, x));

    device.user_stream_synchronize(&a).unwrap();
    assert!(is_ordered(&device, &b, x));
}

#[test]
fn a_query_that_says_no_teaches_nothing() {
    let (device, x) = device();
    let (a, b) = (device.create_stream(), device.create_stream());
    let event = device.create_event().unwrap();
    device.launch(&a, Kernel::new().writes(x, 64).taking(1_000_000)).unwrap();
    device.record(&event, &a).unwrap();
    assert!(!device.query(&event).unwrap());
    assert!(!is_ordered(&device, &b, x));
}

#[test]
fn a_query_teaches_what_the_event_was_ordered_after() {
    let (device, x) = device();
    let (a, b, c) = (device.create_stream(), device.create_stream(), device.create_stream());
    let (of_a, of_b) = (device.create_event().unwrap(), device.create_event().unwrap());
    write(&device, &a, x);
    device.record(&of_a, &a).unwrap();
    device.wait(&b, &of_a).unwrap();
    device.record(&of_b, &b).unwrap();
    device.synchronize_event(&of_b).unwrap();
    assert!(is_ordered(&device, &c, x));
}

#[test]
fn what_one_host_thread_has_seen_all_know() {
    let (device, x) = device();
    let (a, b) = (device.create_stream(), device.create_stream());
    write(&device, &a, x);
    thread::scope(|scope| scope.spawn(|| device.synchronize_context().unwrap()).join().unwrap());
    assert!(is_ordered(&device, &b, x));
}

#[test]
fn a_freed_segment_is_no_synchronize_though_it_takes_the_time() {
    let (device, x) = device();
    let (a, b) = (device.create_stream(), device.create_stream());
    let other = device.alloc_segment(64 << 20).unwrap();
    device.launch(&a, Kernel::new().writes(x, 64).taking(50_000_000)).unwrap();
    // SAFETY: The segment was allocated with this size and never used.
    unsafe { device.free_segment(other, 64 << 20).unwrap() };
    assert!(device.now() > 50_000_000);
    assert!(!is_ordered(&device, &b, x));
}

#[test]
fn a_raw_handle_comes_back_at_once_and_means_another_stream() {
    let (device, x) = device();
    let a = device.create_stream();
    let (handle, number) = (a.handle(), a.number());
    let gate = device.gate();
    device.launch(&a, Kernel::new().writes(x, 64).after(&gate)).unwrap();
    drop(a);
    assert_eq!(device.live_streams(), 0);
    let b = device.create_stream();
    assert_eq!(b.handle(), handle);
    assert_ne!(b.number(), number);
    assert!(!is_ordered(&device, &b, x), "the old stream's work is not b's");
    gate.open();
    device.synchronize_context().unwrap();
    assert!(is_ordered(&device, &b, x), "a context synchronize covers destroyed streams");
}

#[test]
fn handles_come_back_last_in_first_out() {
    let (device, _) = device();
    let streams: Vec<_> = (0..3).map(|_| device.create_stream()).collect();
    let handles: Vec<_> = streams.iter().map(SimStream::handle).collect();
    let clone = streams[2].clone();
    drop(streams);
    assert_eq!(device.live_streams(), 1, "a clone keeps its stream");
    let again: Vec<_> = (0..3).map(|_| device.create_stream().handle()).collect();
    assert_eq!(again[0], handles[1]);
    drop(clone);
    assert_eq!(device.create_stream().handle(), handles[2]);
}

#[test]
fn an_event_outlives_its_stream() {
    let (device, x) = device();
    let (a, b) = (device.create_stream(), device.create_stream());
    let event = device.create_event().unwrap();
    write(&device, &a, x);
    device.record(&event, &a).unwrap();
    drop(a);
    device.wait(&b, &event).unwrap();
    device.destroy_event(event);
    assert!(is_ordered(&device, &b, x));
}

#[test]
fn events_of_other_machines_and_devices_are_refused_where_cuda_refuses_them() {
    let devices = SimDevice::several(1, 2);
    let (a, other) = (devices[0].create_stream(), devices[1].create_stream());
    let event = devices[0].create_event().unwrap();
    assert_eq!(devices[0].record(&event, &other).unwrap_err().code(), Code::InvalidHandle);
    devices[0].record(&event, &a).unwrap();
    devices[0].wait(&other, &event).unwrap();
    devices[1].query(&event).unwrap();

    let stranger = SimDevice::new(1);
    let foreign = stranger.create_event().unwrap();
    assert_eq!(devices[0].record(&foreign, &a).unwrap_err().code(), Code::InvalidHandle);
    assert_eq!(devices[0].wait(&a, &foreign).unwrap_err().code(), Code::InvalidHandle);
    assert_eq!(stranger.wait(&a, &foreign).unwrap_err().code(), Code::InvalidHandle);
}

#[test]
fn the_legacy_stream_is_a_barrier_for_blocking_streams_only() {
    let (device, x) = device();
    let legacy = device.legacy_stream();
    let (blocking, other) = (device.create_blocking_stream(), device.create_stream());
    write(&device, &blocking, x);
    assert!(is_ordered(&device, &legacy, x));
    assert!(is_ordered(&device, &blocking, x));
    assert!(!is_ordered(&device, &other, x));
    assert!(!is_ordered(&device, &legacy, x));
    // Through the legacy stream blocking streams are ordered after each other.
    let second = device.create_blocking_stream();
    write(&device, &blocking, x + 64);
    device.launch(&legacy, Kernel::new()).unwrap();
    assert!(is_ordered(&device, &second, x + 64));
    // A destroyed stream's pending work counts still.
    write(&device, &second, x + 128);
    drop(second);
    assert!(is_ordered(&device, &legacy, x + 128));
}

#[test]
fn the_per_thread_stream_is_another_one_on_each_thread() {
    let (device, x) = device();
    let mine = device.per_thread_stream();
    assert_eq!(device.identify(&mine).unwrap().kind, StreamKind::PerThread);
    write(&device, &mine, x);
    assert!(is_ordered(&device, &mine, x));
    let ordered =
        thread::scope(|scope| scope.spawn(|| is_ordered(&device, &mine, x)).join().unwrap());
    assert!(!ordered);
    // It is a blocking stream.
    assert!(is_ordered(&device, &device.legacy_stream(), x));
}

#[test]
fn identities_tell_streams_and_contexts_apart() {
    let devices = SimDevice::several(1, 2);
    assert_ne!(devices[0].context_id(), devices[1].context_id());
    assert_ne!(devices[0].context_id(), SimDevice::new(1).context_id());
    assert_eq!(devices[0].context_id(), devices[0].clone().context_id());
    let stream = devices[1].create_blocking_stream();
    let identity = devices[0].identify(&stream).unwrap();
    assert_eq!(identity.context, devices[1].context_id());
    assert_eq!((identity.handle, identity.kind), (stream.handle(), StreamKind::Blocking));
    assert_eq!(devices[0].identify(&devices[0].legacy_stream()).unwrap().kind, StreamKind::Legacy);
}

#[test]
fn what_was_seen_finished_costs_clocks_nothing_and_orders_still() {
    let config = SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() };
    let device = SimDevice::new(config);
    let x = device.alloc_segment(64).unwrap();
    let (main, event) = (device.create_stream(), device.create_event().unwrap());
    for _ in 0..1000 {
        let stream = device.create_stream();
        device.record(&event, &main).unwrap();
        device.wait(&stream, &event).unwrap();
        write(&device, &stream, x);
        device.record(&event, &stream).unwrap();
        device.wait(&main, &event).unwrap();
        device.synchronize_event(&event).unwrap();
    }
    assert!(is_ordered(&device, &main, x));
    assert_eq!(device.hazard_count(), 0);
}

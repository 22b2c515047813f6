//! Calls that fail or are held, host functions, gates, and what threads carry.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use streampool::backend::{Backend, ErrorKind};
use streampool::sim::{
    Call, CallFilter, FaultPlan, HazardKind, Kernel, PausePoint, Schedule, SimConfig, SimDevice,
    SimErrorCode as Code,
};

#[test]
fn the_nth_matching_call_fails_once_or_from_then_on() {
    let device = SimDevice::new(1);
    let stream = device.create_stream();
    let event = device.create_event().unwrap();
    let pattern = |plan: FaultPlan| {
        device.inject(plan);
        let results: Vec<bool> = (0..5).map(|_| device.record(&event, &stream).is_ok()).collect();
        device.clear_faults();
        results
    };
    let record = || FaultPlan::new(Call::Record);
    assert_eq!(pattern(record()), [false, true, true, true, true]);
    assert_eq!(pattern(record().nth(3)), [true, true, false, true, true]);
    assert_eq!(pattern(record().nth(3).from_then_on()), [true, true, false, false, false]);
    assert_eq!(pattern(FaultPlan::new(Call::Wait)), [true; 5]);
    let filter = CallFilter::only(Call::Wait).or(Call::Record);
    assert_eq!(pattern(FaultPlan::new(filter).nth(2)), [true, false, true, true, true]);
    assert_eq!(pattern(FaultPlan::new(CallFilter::any()).nth(5)), [true, true, true, true, false]);
    assert_eq!(device.injected_count(), 7);
    assert_eq!(device.counts().event_records, 30, "failed calls are calls");
}

#[test]
fn errors_have_the_kind_that_was_asked_for() {
    let device = SimDevice::new(1);
    for kind in [ErrorKind::OutOfMemory, ErrorKind::Capture, ErrorKind::Exiting, ErrorKind::Other] {
        device.inject(FaultPlan::new(Call::CreateEvent).kind(kind));
        let error = device.create_event().unwrap_err();
        assert_eq!((error.kind(), device.error_kind(&error)), (kind, kind));
        assert_eq!((error.call(), error.is_injected()), (Call::CreateEvent, true));
        assert!(error.to_string().contains("create event"), "{error}");
        assert!(error.to_string().contains("injected"), "{error}");
    }
    assert_eq!(device.live_events(), 0);
}

#[test]
fn a_lost_device_is_lost_for_every_later_call_and_alone() {
    let devices = SimDevice::several(1, 2);
    let stream = devices[0].create_stream();
    let event = devices[0].create_event().unwrap();
    devices[0].record(&event, &stream).unwrap();
    devices[0].inject(FaultPlan::new(Call::Query).kind(ErrorKind::DeviceLost));
    assert_eq!(devices[0].query(&event).unwrap_err().kind(), ErrorKind::DeviceLost);
    devices[0].clear_faults();
    assert_eq!(devices[0].query(&event).unwrap_err().kind(), ErrorKind::DeviceLost);
    assert_eq!(
        devices[0].launch(&stream, Kernel::new()).unwrap_err().kind(),
        ErrorKind::DeviceLost
    );
    assert_eq!(devices[0].synchronize_context().unwrap_err().kind(), ErrorKind::DeviceLost);
    let theirs = devices[1].create_event().unwrap();
    assert_eq!(devices[1].wait(&stream, &theirs).unwrap_err().kind(), ErrorKind::DeviceLost);
    devices[1].synchronize_context().unwrap();
    // What cannot fail does what it can: nothing leaks.
    devices[0].destroy_event(event);
    devices[0].release_stream(stream);
    assert_eq!((devices[0].live_events(), devices[0].live_streams()), (0, 0));
}

#[test]
fn a_late_error_comes_back_from_a_call_that_had_its_effect() {
    let device = SimDevice::new(1);
    let stream = device.create_stream();
    let event = device.create_event().unwrap();
    let x = device.alloc_segment(64).unwrap();
    device.launch(&stream, Kernel::new().writes(x, 64)).unwrap();
    device.inject(FaultPlan::new(CallFilter::any()).late());
    device.record(&event, &stream).unwrap_err();
    assert!(!device.query(&event).unwrap(), "it was recorded");
    // A synchronize that fails has waited, and says nothing.
    device.inject(FaultPlan::new(CallFilter::any()).late());
    device.synchronize_context().unwrap_err();
    assert_eq!(device.read_stamp(x), Some(1));
    // SAFETY: Allocated with this size, and finished; that the host does not know is the point.
    unsafe { device.free_segment(x, 64).unwrap() };
    assert_eq!(device.take_hazards()[0].kind(), HazardKind::UnmappedInUse);
    // A call that makes something has made nothing.
    device.inject(FaultPlan::new(CallFilter::any()).late());
    device.create_event().unwrap_err();
    assert_eq!(device.live_events(), 1);
    device.destroy_event(event);
}

#[test]
fn a_late_sticky_error_is_sticky() {
    let device = SimDevice::new(1);
    let stream = device.create_stream();
    let event = device.create_event().unwrap();
    device.inject(FaultPlan::new(Call::Record).late().kind(ErrorKind::DeviceLost));
    device.record(&event, &stream).unwrap_err();
    assert_eq!(device.memory_info().unwrap_err().kind(), ErrorKind::DeviceLost);
}

#[test]
fn a_paused_call_holds_its_thread_and_nobody_else() {
    for point in [PausePoint::Before, PausePoint::After] {
        let device = SimDevice::new(1);
        let (a, b) = (device.create_stream(), device.create_stream());
        let event = device.create_event().unwrap();
        let x = device.alloc_segment(64).unwrap();
        device.launch(&a, Kernel::new().writes(x, 64)).unwrap();
        let pause = device.pause(Call::Record, point);
        let returned = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                device.record(&event, &a).unwrap();
                returned.store(1, Ordering::SeqCst);
            });
            pause.wait_reached();
            assert!(pause.is_reached());
            // Other calls go on, also of the same kind.
            device.wait(&b, &event).unwrap();
            device.launch(&b, Kernel::new().writes(x, 64)).unwrap();
            let ordered = device.hazard_count() == 0;
            assert_eq!(ordered, point == PausePoint::After);
            assert_eq!(returned.load(Ordering::SeqCst), 0);
            device.record(&device.create_event().unwrap(), &b).unwrap();
            pause.resume();
        });
        assert_eq!(returned.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn a_pause_that_is_dropped_or_resumed_holds_nobody() {
    let patience = Duration::from_secs(60);
    let device = SimDevice::new(SimConfig { patience, ..SimConfig::default() });
    drop(device.pause(CallFilter::any(), PausePoint::Before));
    let pause = device.pause(CallFilter::any(), PausePoint::Before);
    pause.resume();
    let start = Instant::now();
    device.memory_info().unwrap();
    assert!(start.elapsed() < patience / 2);
}

#[test]
#[should_panic(expected = "no thread made the paused call")]
fn waiting_for_a_pause_that_nobody_reaches_panics_in_time() {
    let patience = Duration::from_millis(20);
    let device = SimDevice::new(SimConfig { patience, ..SimConfig::default() });
    device.pause(Call::Record, PausePoint::Before).wait_reached();
}

#[test]
fn a_thread_that_nobody_resumes_goes_on_in_time() {
    let patience = Duration::from_millis(20);
    let device = SimDevice::new(SimConfig { patience, ..SimConfig::default() });
    let _pause = device.pause(Call::MemoryInfo, PausePoint::Before);
    device.memory_info().unwrap();
}

#[test]
fn a_synchronize_waits_until_another_thread_opens_the_gate() {
    for schedule in [Schedule::Timed, Schedule::Random, Schedule::Lazy, Schedule::Frozen(1)] {
        let device = SimDevice::new(SimConfig { schedule, ..SimConfig::default() });
        let (a, b) = (device.create_stream(), device.create_stream());
        let event = device.create_event().unwrap();
        let gates = [device.gate(), device.gate()];
        device.launch(&a, Kernel::new().after(&gates[0]).after(&gates[1])).unwrap();
        device.record(&event, &a).unwrap();
        device.wait(&b, &event).unwrap();
        device.record(&event, &b).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| device.synchronize_event(&event));
            thread::sleep(Duration::from_millis(5));
            gates[1].open();
            thread::sleep(Duration::from_millis(5));
            assert!(!waiter.is_finished() && !gates[0].is_open());
            gates[0].open();
            waiter.join().unwrap().unwrap();
        });
        assert!(device.query(&event).unwrap());
    }
}

#[test]
fn a_synchronize_behind_a_gate_that_nobody_opens_fails_in_time() {
    let patience = Duration::from_millis(20);
    let device = SimDevice::new(SimConfig { patience, ..SimConfig::default() });
    let stream = device.create_stream();
    let gate = device.gate();
    device.launch(&stream, Kernel::new().after(&gate)).unwrap();
    let start = Instant::now();
    let error = device.synchronize_context().unwrap_err();
    assert_eq!((error.code(), error.kind()), (Code::Stuck, ErrorKind::Other));
    assert!(start.elapsed() >= patience);
    gate.open();
    device.synchronize_context().unwrap();
}

#[test]
fn an_unrelated_stream_goes_on_while_another_is_gated() {
    let device = SimDevice::new(1);
    let (a, b) = (device.create_stream(), device.create_stream());
    let event = device.create_event().unwrap();
    let gate = device.gate();
    device.launch(&a, Kernel::new().after(&gate)).unwrap();
    device.launch(&b, Kernel::new()).unwrap();
    device.record(&event, &b).unwrap();
    device.synchronize_event(&event).unwrap();
    gate.open();
}

#[test]
fn a_host_function_runs_in_stream_order_with_no_lock_held() {
    let device = SimDevice::new(1);
    let (a, b) = (device.create_stream(), device.create_stream());
    let (sender, receiver) = mpsc::channel();
    let gate = device.gate();
    let (send, open) = (sender.clone(), gate.clone());
    let first = Kernel::new().host_function(Box::new(move || {
        send.send("first").unwrap();
        open.open();
    }));
    device
        .launch(
            &b,
            Kernel::new().after(&gate).host_function(Box::new(move || {
                sender.send("second").unwrap();
            })),
        )
        .unwrap();
    device.launch(&a, first).unwrap();
    device.synchronize_context().unwrap();
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), ["first", "second"]);
}

#[test]
fn a_synchronize_waits_for_a_host_function_that_another_thread_runs() {
    let patience = Duration::from_secs(60);
    let device = SimDevice::new(SimConfig { patience, ..SimConfig::default() });
    let stream = device.create_stream();
    let (entered, at_entry) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    let function = Box::new(move || {
        entered.send(()).unwrap();
        may_leave.recv().unwrap();
    });
    device.launch(&stream, Kernel::new().host_function(function)).unwrap();
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| device.synchronize_context().unwrap());
        at_entry.recv().unwrap();
        let waiter = scope.spawn(|| device.synchronize_context().unwrap());
        thread::sleep(Duration::from_millis(5));
        assert!(!waiter.is_finished());
        leave.send(()).unwrap();
    });
    assert!(start.elapsed() < patience / 2, "it is woken");
}

#[test]
fn the_driver_may_not_be_called_in_a_host_function() {
    let device = SimDevice::new(1);
    let stream = device.create_stream();
    let (inside, dropped) = (device.clone(), device.create_stream());
    let result = Arc::new(std::sync::Mutex::new(None));
    let out = Arc::clone(&result);
    let function = Box::new(move || {
        drop(dropped);
        *out.lock().unwrap() = Some(inside.create_event().map(drop));
    });
    device.launch(&stream, Kernel::new().host_function(function)).unwrap();
    device.synchronize_context().unwrap();
    let error = result.lock().unwrap().take().unwrap().unwrap_err();
    assert_eq!(error.code(), Code::NotPermitted);
    let hazards = device.hazards();
    assert_eq!(hazards.len(), 2, "{hazards:#?}");
    assert!(hazards.iter().all(|hazard| hazard.kind() == HazardKind::Misuse));
    assert_eq!(device.live_streams(), 1);
    // Outside it may again.
    device.create_event().unwrap();
}

#[test]
fn a_host_function_that_panics_does_not_hang_its_stream() {
    let device = SimDevice::new(1);
    let stream = device.create_stream();
    device
        .launch(&stream, Kernel::new().host_function(Box::new(|| panic!("in the test"))))
        .unwrap();
    thread::scope(|scope| scope.spawn(|| device.synchronize_context()).join().unwrap_err());
    device.launch(&stream, Kernel::new()).unwrap();
    device.synchronize_context().unwrap();
}

#[test]
fn many_threads_at_once_neither_hang_nor_race() {
    for schedule in [Schedule::Timed, Schedule::Random, Schedule::Lazy, Schedule::Frozen(100)] {
        let device = SimDevice::new(SimConfig { schedule, ..SimConfig::default() });
        let memory = device.alloc_segment(4 * 64).unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        thread::scope(|scope| {
            for thread in 0..4 {
                let (device, ran) = (&device, &ran);
                scope.spawn(move || work_of_one_thread(device, memory + 64 * thread, ran));
            }
        });
        device.synchronize_context().unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 4 * 50, "{schedule:?}");
        assert_eq!(device.hazard_count(), 0, "{schedule:?}");
    }
}

/// Hands bytes to and fro between two streams, with host functions and gates in between.
fn work_of_one_thread(device: &SimDevice, address: u64, ran: &Arc<AtomicUsize>) {
    let event = device.create_event().unwrap();
    let mut streams = [device.create_stream(), device.create_stream()];
    for round in 0..50 {
        let gate = device.gate();
        let ran = Arc::clone(ran);
        let count = Box::new(move || {
            ran.fetch_add(1, Ordering::SeqCst);
        });
        let kernel = Kernel::new().writes(address, 64).stamp(round).after(&gate);
        device.launch(&streams[0], kernel.host_function(count)).unwrap();
        device.record(&event, &streams[0]).unwrap();
        device.wait(&streams[1], &event).unwrap();
        device.launch(&streams[1], Kernel::new().expects(address, 64, round)).unwrap();
        gate.open();
        match round % 3 {
            0 => device.synchronize_event(&event).unwrap(),
            1 => device.synchronize_context().unwrap(),
            _ => assert!(device.query(&event).is_ok()),
        }
        streams.swap(0, 1);
    }
    device.destroy_event(event);
}

#[test]
fn a_kernel_that_is_not_launched_may_own_the_last_handle_of_a_stream() {
    let device = SimDevice::new(1);
    let (stream, owned) = (device.create_stream(), device.create_stream());
    device.begin_capture(&stream, streampool::sim::CaptureMode::Relaxed).unwrap();
    let kernel = Kernel::new().host_function(Box::new(move || drop(owned)));
    device.launch(&stream, kernel).unwrap_err();
    assert_eq!(device.live_streams(), 1);
}

#[test]
fn threads_keep_their_pending_errors_and_contexts() {
    let devices = SimDevice::several(1, 2);
    let stream = devices[0].create_stream();
    SimDevice::set_current_context(Some(devices[1].context_id()));
    assert_eq!(SimDevice::park_error(Some(Code::InvalidValue)), None);
    let event = devices[0].create_event().unwrap();
    devices[0].record(&event, &stream).unwrap();
    devices[0].inject(FaultPlan::new(Call::Wait));
    devices[0].wait(&stream, &event).unwrap_err();
    devices[0].synchronize_context().unwrap();
    assert_eq!(SimDevice::current_context(), Some(devices[1].context_id()));
    assert_eq!(SimDevice::pending_error(), Some(Code::InvalidValue));
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(SimDevice::pending_error(), None);
            assert_eq!(SimDevice::current_context(), None);
        });
    });
    assert_eq!(SimDevice::park_error(None), Some(Code::InvalidValue));
    SimDevice::set_current_context(None);
}

//! Captures: the tables measured on an H200, row by row, in every mode and from every thread.
#![cfg(not(loom))]

use std::thread;

use streampool::backend::{Backend, ErrorKind};
use streampool::sim::{
    CaptureMode, HazardKind, Kernel, SimDevice, SimError, SimErrorCode as Code, SimEvent, SimStream,
};

const MODES: [CaptureMode; 3] =
    [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
const GRANULE: u64 = 2 << 20;

/// A captures, B does not; `of_a` and `of_b` were recorded on them before, and the work is over.
struct Scene {
    device: SimDevice,
    a: SimStream,
    b: SimStream,
    of_a: SimEvent,
    of_b: SimEvent,
    memory: u64,
}

impl Scene {
    fn new() -> Scene {
        let device = SimDevice::new(1);
        let (a, b) = (device.create_stream(), device.create_stream());
        let (of_a, of_b) = (device.create_event().unwrap(), device.create_event().unwrap());
        let memory = device.alloc_segment(4096).unwrap();
        for (stream, event) in [(&a, &of_a), (&b, &of_b)] {
            device.launch(stream, Kernel::new()).unwrap();
            device.record(event, stream).unwrap();
        }
        device.synchronize_context().unwrap();
        Scene { device, a, b, of_a, of_b, memory }
    }
}

/// Makes a call while A captures in this mode, from the capturing thread or another, with the
/// calling thread in this mode. Returns the call's error, and whether the capture survived.
fn during_capture(
    mode: CaptureMode,
    same_thread: bool,
    caller: CaptureMode,
    call: impl Fn(&Scene) -> Result<(), SimError> + Sync,
) -> (Option<Code>, bool) {
    let scene = Scene::new();
    scene.device.begin_capture(&scene.a, mode).unwrap();
    let make = || {
        let was = SimDevice::exchange_capture_mode(caller);
        let result = call(&scene);
        assert_eq!(SimDevice::exchange_capture_mode(was), caller, "the mode is as it was");
        result.err().map(|error| error.code())
    };
    let error =
        if same_thread { make() } else { thread::scope(|scope| scope.spawn(make).join().unwrap()) };
    let end = scene.device.end_capture(&scene.a);
    if let Err(error) = &end {
        assert_eq!(error.code(), Code::CaptureInvalidated);
    }
    assert!(!scene.device.is_capturing(&scene.a).unwrap(), "the capture has ended in any case");
    (error, end.is_ok())
}

type Row = (&'static str, fn(&Scene) -> Result<(), SimError>);

/// Fine in every mode, from any thread.
const HARMLESS: &[Row] = &[
    ("is capturing", |s| {
        assert!(s.device.is_capturing(&s.a)?);
        assert!(!s.device.is_capturing(&s.b)?);
        Ok(())
    }),
    ("create an event", |s| s.device.create_event().map(|event| s.device.destroy_event(event))),
    ("create and destroy a stream", |s| {
        drop(s.device.create_stream());
        Ok(())
    }),
    ("memory info", |s| s.device.memory_info().map(drop)),
    ("record on B", |s| s.device.record(&s.of_b, &s.b)),
    ("B waits for an event of B", |s| s.device.wait(&s.b, &s.of_b)),
    ("launch on B", |s| s.device.launch(&s.b, Kernel::new().writes(s.memory, 64))),
    ("host function on B", |s| s.device.launch(&s.b, Kernel::new().host_function(Box::new(|| {})))),
    ("virtual memory", |s| {
        let device = &s.device;
        let range = device.reserve_range(GRANULE)?;
        let granule = device.create_granule(GRANULE)?;
        // SAFETY: The range is reserved, the granule is new and of its size, and nothing uses it.
        unsafe {
            device.map(range, GRANULE, &granule)?;
            device.set_access(range, GRANULE, &[])?;
            device.unmap(range, GRANULE)?;
            device.destroy_granule(granule).map_err(|(_, error)| error)?;
            device.release_range(range, GRANULE)
        }
    }),
    // The verbs of a pool run with the thread relaxed.
    ("query an event of B, relaxed", |s| s.device.query(&s.of_b).map(|done| assert!(done))),
    ("synchronize an event of B, relaxed", |s| s.device.synchronize_event(&s.of_b)),
    ("query an event from before the capture", |s| s.device.query(&s.of_a).map(|d| assert!(d))),
    ("synchronize an event from before the capture", |s| s.device.synchronize_event(&s.of_a)),
    ("B waits for an event from before the capture", |s| s.device.wait(&s.b, &s.of_a)),
    ("allocate and free, relaxed", |s| {
        let segment = s.device.alloc_segment(4096)?;
        // SAFETY: It is the segment just allocated, never used.
        unsafe { s.device.free_segment(segment, 4096) }
    }),
];

/// Forbidden to some threads in some modes: what any code but a careful library calls.
const UNSAFE: &[Row] = &[
    ("query an event of B", |s| s.device.user_event_query(&s.of_b).map(drop)),
    ("synchronize an event of B", |s| s.device.user_event_synchronize(&s.of_b)),
    ("query B", |s| s.device.user_stream_query(&s.b).map(drop)),
    ("synchronize B", |s| s.device.user_stream_synchronize(&s.b)),
    ("allocate", |s| s.device.user_alloc(4096).map(drop)),
    ("free", |s| s.device.user_free(s.memory, 4096)),
];

/// No capture survives these, whoever calls.
const DEADLY: &[(Row, Code)] = &[
    (("synchronize the context", |s| s.device.synchronize_context()), Code::CaptureUnsupported),
    (("record the context", |s| s.device.user_context_record(&s.of_b)), Code::CaptureUnsupported),
    (("query A", |s| s.device.user_stream_query(&s.a).map(drop)), Code::CaptureUnsupported),
    (("get A's id", |s| s.device.user_stream_id(&s.a).map(drop)), Code::CaptureUnsupported),
    (("synchronize A", |s| s.device.user_stream_synchronize(&s.a)), Code::CaptureUnsupported),
    (
        ("A waits for an event from outside", |s| s.device.wait(&s.a, &s.of_b)),
        Code::CaptureIsolation,
    ),
    (("A waits for its own past", |s| s.device.wait(&s.a, &s.of_a)), Code::CaptureIsolation),
    (
        ("query an event in the capture", |s| {
            s.device.record(&s.of_b, &s.a)?;
            s.device.query(&s.of_b).map(drop)
        }),
        Code::CapturedEvent,
    ),
    (
        ("synchronize an event in the capture", |s| {
            s.device.record(&s.of_b, &s.a)?;
            s.device.synchronize_event(&s.of_b)
        }),
        Code::CapturedEvent,
    ),
];

fn everywhere(mut each: impl FnMut(CaptureMode, bool, CaptureMode)) {
    for mode in MODES {
        for same_thread in [true, false] {
            for caller in MODES {
                each(mode, same_thread, caller);
            }
        }
    }
}

#[test]
fn harmless_calls_are_fine_in_every_mode() {
    everywhere(|mode, same, caller| {
        for (name, call) in HARMLESS {
            let outcome = during_capture(mode, same, caller, call);
            assert_eq!(outcome, (None, true), "{name}, {mode:?}, same thread {same}, {caller:?}");
        }
    });
}

#[test]
fn unsafe_calls_fail_and_kill_where_the_mode_forbids_them() {
    everywhere(|mode, same, caller| {
        for (name, call) in UNSAFE {
            let forbidden = match (mode, caller) {
                (CaptureMode::Relaxed, _) | (_, CaptureMode::Relaxed) => false,
                (CaptureMode::Global, CaptureMode::Global) => true,
                _ => same,
            };
            let error = forbidden.then_some(Code::CaptureUnsupported);
            let outcome = during_capture(mode, same, caller, call);
            let expected = (error, !forbidden);
            assert_eq!(outcome, expected, "{name}, {mode:?}, same thread {same}, {caller:?}");
        }
    });
}

#[test]
fn deadly_calls_fail_and_kill_always() {
    everywhere(|mode, same, caller| {
        for ((name, call), code) in DEADLY {
            let outcome = during_capture(mode, same, caller, call);
            let expected = (Some(*code), false);
            assert_eq!(outcome, expected, "{name}, {mode:?}, same thread {same}, {caller:?}");
        }
    });
}

#[test]
fn a_broken_capture_takes_nothing_more_until_it_ends() {
    let s = Scene::new();
    s.device.begin_capture(&s.a, CaptureMode::Relaxed).unwrap();
    s.device.synchronize_context().unwrap_err();
    assert!(s.device.is_capturing(&s.a).unwrap());
    for result in [
        s.device.launch(&s.a, Kernel::new()),
        s.device.record(&s.of_a, &s.a),
        s.device.wait(&s.a, &s.of_a),
    ] {
        let error = result.unwrap_err();
        assert_eq!((error.code(), error.kind()), (Code::CaptureInvalidated, ErrorKind::Capture));
    }
    s.device.end_capture(&s.a).unwrap_err();
    s.device.launch(&s.a, Kernel::new()).unwrap();
    s.device.synchronize_context().unwrap();
}

#[test]
fn an_event_of_a_capture_is_an_error_after_it_until_recorded_anew() {
    for mode in MODES {
        let s = Scene::new();
        s.device.begin_capture(&s.a, mode).unwrap();
        s.device.record(&s.of_a, &s.a).unwrap();
        s.device.end_capture(&s.a).unwrap();
        assert_eq!(s.device.query(&s.of_a).unwrap_err().code(), Code::InvalidValue);
        assert_eq!(s.device.wait(&s.b, &s.of_a).unwrap_err().code(), Code::InvalidValue);
        assert_eq!(s.device.synchronize_event(&s.of_a).unwrap_err().code(), Code::InvalidValue);
        s.device.record(&s.of_a, &s.a).unwrap();
        assert!(s.device.query(&s.of_a).unwrap());
        s.device.wait(&s.b, &s.of_a).unwrap();
    }
}

#[test]
fn an_event_from_before_a_capture_means_the_work_before_it() {
    let s = Scene::new();
    let gate = s.device.gate();
    s.device.launch(&s.a, Kernel::new().after(&gate).writes(s.memory, 64)).unwrap();
    s.device.record(&s.of_a, &s.a).unwrap();
    s.device.begin_capture(&s.a, CaptureMode::Global).unwrap();
    s.device.run();
    assert!(!s.device.query(&s.of_a).unwrap());
    s.device.wait(&s.b, &s.of_a).unwrap();
    s.device.launch(&s.b, Kernel::new().writes(s.memory, 64)).unwrap();
    gate.open();
    s.device.synchronize_event(&s.of_a).unwrap();
    s.device.end_capture(&s.a).unwrap();
    assert_eq!(s.device.hazard_count(), 0);
}

#[test]
fn a_stream_that_waits_for_a_captured_event_is_drawn_in_and_gets_no_edge() {
    let s = Scene::new();
    s.device.launch(&s.a, Kernel::new().writes(s.memory, 64)).unwrap();
    s.device.begin_capture(&s.a, CaptureMode::Global).unwrap();
    s.device.record(&s.of_a, &s.a).unwrap();
    s.device.wait(&s.b, &s.of_a).unwrap();
    assert!(s.device.is_capturing(&s.b).unwrap());
    s.device.launch(&s.b, Kernel::new().writes(s.memory, 64)).unwrap();
    assert_eq!(s.device.operations(), 5, "what is captured is not put on the device");
    assert_eq!(s.device.end_capture(&s.b).unwrap_err().code(), Code::CaptureUnmatched);
    assert_eq!(s.device.end_capture(&s.a).unwrap_err().code(), Code::CaptureUnjoined);
    // B has no edge to A's work.
    s.device.launch(&s.b, Kernel::new().writes(s.memory, 64)).unwrap();
    assert_eq!(s.device.hazards()[0].kind(), HazardKind::Race);
}

#[test]
fn a_forked_stream_is_joined_by_a_wait_for_its_last_work() {
    for late_work in [false, true] {
        let s = Scene::new();
        s.device.begin_capture(&s.a, CaptureMode::Global).unwrap();
        s.device.launch(&s.a, Kernel::new().writes(s.memory, 64)).unwrap();
        s.device.record(&s.of_a, &s.a).unwrap();
        s.device.wait(&s.b, &s.of_a).unwrap();
        s.device.launch(&s.b, Kernel::new().reads(s.memory, 64)).unwrap();
        s.device.record(&s.of_b, &s.b).unwrap();
        if late_work {
            s.device.launch(&s.b, Kernel::new()).unwrap();
        }
        s.device.wait(&s.a, &s.of_b).unwrap();
        let end = s.device.end_capture(&s.a);
        if late_work {
            assert_eq!(end.unwrap_err().code(), Code::CaptureUnjoined);
        } else {
            assert_eq!(end.unwrap().len(), 2);
        }
        assert!(!s.device.is_capturing(&s.b).unwrap());
    }
}

#[test]
fn two_captures_that_meet_are_both_broken() {
    let s = Scene::new();
    s.device.begin_capture(&s.a, CaptureMode::Global).unwrap();
    s.device.begin_capture(&s.b, CaptureMode::Global).unwrap();
    s.device.record(&s.of_a, &s.a).unwrap();
    assert_eq!(s.device.wait(&s.b, &s.of_a).unwrap_err().code(), Code::CaptureMerge);
    for stream in [&s.a, &s.b] {
        assert_eq!(s.device.end_capture(stream).unwrap_err().code(), Code::CaptureInvalidated);
    }
}

#[test]
fn only_the_thread_that_began_a_capture_ends_it_unless_relaxed() {
    for mode in MODES {
        let s = Scene::new();
        s.device.begin_capture(&s.a, mode).unwrap();
        let end = thread::scope(|scope| scope.spawn(|| s.device.end_capture(&s.a)).join().unwrap());
        if mode == CaptureMode::Relaxed {
            assert!(end.unwrap().is_empty());
        } else {
            assert_eq!(end.unwrap_err().code(), Code::CaptureWrongThread);
            assert!(s.device.end_capture(&s.a).unwrap().is_empty());
        }
    }
}

#[test]
fn captures_begin_and_end_only_where_they_may() {
    let s = Scene::new();
    let legacy = s.device.legacy_stream();
    let error = s.device.begin_capture(&legacy, CaptureMode::Global).unwrap_err();
    assert_eq!(error.code(), Code::CaptureUnsupported);
    s.device.end_capture(&s.a).unwrap_err();
    s.device.begin_capture(&s.a, CaptureMode::Global).unwrap();
    s.device.begin_capture(&s.a, CaptureMode::Global).unwrap_err();
    let error = s.device.launch(&s.a, Kernel::new().host_function(Box::new(|| {}))).unwrap_err();
    assert_eq!(error.code(), Code::NotSupported);
    assert!(s.device.end_capture(&s.a).unwrap().is_empty());
}

#[test]
fn the_legacy_stream_captures_with_any_blocking_stream_and_breaks_it_when_used() {
    let s = Scene::new();
    let (legacy, blocking) = (s.device.legacy_stream(), s.device.create_blocking_stream());
    type Use = fn(&Scene, &SimStream) -> Result<(), SimError>;
    let uses: [Use; 3] = [
        |s, legacy| s.device.launch(legacy, Kernel::new()),
        |s, legacy| s.device.record(&s.of_a, legacy),
        |s, legacy| s.device.wait(legacy, &s.of_b),
    ];
    for use_legacy in uses {
        s.device.begin_capture(&s.a, CaptureMode::Global).unwrap();
        assert!(!s.device.is_capturing(&legacy).unwrap());
        use_legacy(&s, &legacy).unwrap();
        s.device.end_capture(&s.a).unwrap();

        s.device.begin_capture(&blocking, CaptureMode::Relaxed).unwrap();
        assert!(s.device.is_capturing(&legacy).unwrap());
        assert_eq!(use_legacy(&s, &legacy).unwrap_err().code(), Code::CaptureImplicit);
        s.device.end_capture(&blocking).unwrap_err();
    }
}

#[test]
fn a_destroyed_origin_takes_its_capture_along() {
    let s = Scene::new();
    let a = s.device.create_stream();
    s.device.begin_capture(&a, CaptureMode::Global).unwrap();
    s.device.record(&s.of_a, &a).unwrap();
    s.device.wait(&s.b, &s.of_a).unwrap();
    drop(a);
    assert!(!s.device.is_capturing(&s.b).unwrap());
    assert_eq!(s.device.query(&s.of_a).unwrap_err().code(), Code::InvalidValue);
    s.device.user_stream_query(&s.b).unwrap();
}

#[test]
fn captured_kernels_use_memory_at_each_launch_of_the_graph() {
    let s = Scene::new();
    s.device.begin_capture(&s.a, CaptureMode::Global).unwrap();
    s.device.launch(&s.a, Kernel::new().writes(s.memory, 64).stamp(5)).unwrap();
    let graph = s.device.end_capture(&s.a).unwrap();
    s.device.synchronize_context().unwrap();
    assert_eq!(s.device.read_stamp(s.memory), None, "a capture executes nothing");

    s.device.launch_graph(&graph, &s.a).unwrap();
    s.device.launch_graph(&graph, &s.a).unwrap();
    assert_eq!(s.device.hazard_count(), 0);
    s.device.launch_graph(&graph, &s.b).unwrap();
    assert_eq!(s.device.hazards()[0].kind(), HazardKind::Race);
    drop(graph);
    s.device.run();
    assert_eq!(s.device.read_stamp(s.memory), Some(5), "a graph may go while it runs");
}

#[test]
fn captures_on_two_devices() {
    let devices = SimDevice::several(1, 2);
    let (a, other) = (devices[0].create_stream(), devices[1].create_stream());
    let event = devices[1].create_event().unwrap();
    devices[1].record(&event, &other).unwrap();
    let survives = |call: &dyn Fn()| {
        devices[0].begin_capture(&a, CaptureMode::Global).unwrap();
        call();
        devices[0].end_capture(&a).is_ok()
    };
    // What no capture of its own context survives does not reach another device's.
    assert!(survives(&|| devices[1].synchronize_context().unwrap()));
    let event = devices[1].create_event().unwrap();
    assert!(survives(&|| devices[1].user_context_record(&event).unwrap()));
    // What the mode forbids does.
    assert!(!survives(&|| assert!(devices[1].user_event_query(&event).is_err())));
    assert!(!survives(&|| assert!(devices[1].user_stream_synchronize(&other).is_err())));
    assert!(!survives(&|| assert!(devices[1].user_alloc(64).is_err())));
    assert!(survives(&|| assert!(devices[1].query(&event).unwrap())));
    assert!(survives(&|| assert!(devices[1].alloc_segment(64).is_ok())));
}

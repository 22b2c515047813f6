//! The stand-in itself: cudarc's own API runs on it, and it follows the measured rules that the other
//! tests lean on.

use super::*;

fn code<T>(outcome: Result<T, DriverError>) -> Code {
    outcome.err().map_or(Code::CUDA_SUCCESS, |error| error.0)
}

/// A context without cudarc's events per slice, which captures do not bear.
fn context() -> Arc<CudaContext> {
    let context = CudaContext::new(0).unwrap();
    // SAFETY: sound because these tests order their uses of memory themselves.
    unsafe { context.disable_event_tracking() };
    context
}

#[test]
fn cudarc_copies_and_fills() {
    standin().run(copy_and_fill);
    standin().with("STANDIN_NO_POOLS", 1).run(copy_and_fill);
}

fn copy_and_fill(standin: &Standin) {
    let context = CudaContext::new(0).unwrap();
    assert_eq!(context.name().unwrap(), "streampool stand-in");
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let first = a.clone_htod(&[1u32, 2, 3]).unwrap();
    let second = b.clone_dtod(&first).unwrap();
    assert_eq!(b.clone_dtoh(&second).unwrap(), [1, 2, 3]);
    let zeros = a.alloc_zeros::<u64>(1000).unwrap();
    assert_eq!(a.clone_dtoh(&zeros).unwrap(), [0; 1000]);
    drop((first, second, zeros));
    context.synchronize().unwrap();
    let (free, total) = context.mem_get_info().unwrap();
    assert_eq!(free, total);
    assert_eq!(standin.count("cuMemFreeAsync") + standin.count("cuMemFree_v2"), 3);
    context.check_err().unwrap();
}

#[test]
fn a_held_stream_holds_back_what_waits_for_it() {
    standin().run(|standin| {
        let context = context();
        let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let mut data = a.alloc_zeros::<u8>(4).unwrap();
        context.synchronize().unwrap();
        standin.hold(a.cu_stream());
        a.memcpy_htod(&[7; 4], &mut data).unwrap();
        let event = a.record_event(None).unwrap();
        assert!(!event.try_is_complete().unwrap());
        assert_eq!(b.clone_dtoh(&data).unwrap(), [0; 4], "b runs unordered");
        b.wait(&event).unwrap();
        let copy = thread::scope(|scope| {
            let reader = scope.spawn(|| b.clone_dtoh(&data).unwrap());
            standin.release(a.cu_stream());
            reader.join().unwrap()
        });
        assert_eq!(copy, [7; 4], "b has waited");
        assert!(event.try_is_complete().unwrap());
    });
}

#[test]
fn the_legacy_stream_is_a_barrier_for_blocking_streams_only() {
    standin().run(|standin| {
        let context = context();
        let legacy = context.default_stream();
        let free = context.new_stream().unwrap();
        let raw = result::stream::create(result::stream::StreamKind::Default).unwrap();
        // SAFETY: sound because the stream is live and of this context, and is never destroyed.
        let bound = unsafe { context.wrap_borrowed_stream(raw) };
        standin.hold(legacy.cu_stream());
        let event = |stream: &CudaStream| stream.record_event(None).unwrap();
        let (in_legacy, in_free, in_bound) = (event(&legacy), event(&free), event(&bound));
        assert!(in_free.try_is_complete().unwrap());
        assert!(!in_legacy.try_is_complete().unwrap());
        assert!(!in_bound.try_is_complete().unwrap());
        standin.release(legacy.cu_stream());
        assert!(in_bound.try_is_complete().unwrap());
    });
}

#[test]
fn stream_handles_come_back_at_once() {
    standin().run(|standin| {
        let context = context();
        let old = context.new_stream().unwrap();
        standin.hold(old.cu_stream());
        let event = old.record_event(None).unwrap();
        let handle = old.cu_stream();
        drop(old);
        let new = context.new_stream().unwrap();
        assert_eq!(new.cu_stream(), handle);
        assert!(new.record_event(None).unwrap().try_is_complete().unwrap());
        assert!(!event.try_is_complete().unwrap(), "the old stream's work is still pending");
        standin.release(handle);
        assert!(event.try_is_complete().unwrap());
    });
}

#[test]
fn bad_addresses_stick_to_the_context() {
    standin().run(|_| {
        let context = context();
        let stream = context.new_stream().unwrap();
        // SAFETY: sound because the stand-in looks the address up and touches nothing.
        unsafe { result::memset_d8_async(0x10, 0, 16, stream.cu_stream()).unwrap() };
        assert_eq!(code(stream.synchronize()), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(code(context.new_stream()), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn graphs_replay_what_was_captured() {
    standin().run(|_| {
        let context = context();
        let stream = context.new_stream().unwrap();
        let mut data = stream.clone_htod(&[5u8; 8]).unwrap();
        stream.begin_capture(MODES[1]).unwrap();
        stream.memset_zeros(&mut data).unwrap();
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().unwrap();
        assert_eq!(stream.clone_dtoh(&data).unwrap(), [5; 8], "captured, not run");
        graph.launch().unwrap();
        assert_eq!(stream.clone_dtoh(&data).unwrap(), [0; 8]);
    });
}

/// Begins a capture on a stream, makes a call from this or another thread, and ends the capture.
/// Returns what the call and the end came to.
fn during_capture(
    context: &Arc<CudaContext>,
    a: &CudaStream,
    mode: Mode,
    other_thread: bool,
    call: impl FnOnce() -> Code + Send,
) -> (Code, Code) {
    a.begin_capture(mode).unwrap();
    let came_to = match other_thread {
        true => thread::scope(|scope| {
            let called = scope.spawn(|| {
                context.bind_to_thread().unwrap();
                call()
            });
            called.join().unwrap()
        }),
        false => call(),
    };
    // SAFETY: sound because the stream is live.
    let graph = unsafe { result::stream::end_capture(a.cu_stream()) };
    let ended = code(graph);
    if let Ok(graph) = graph {
        // SAFETY: sound because the graph was just made.
        unsafe { result::graph::destroy(graph).unwrap() };
    }
    (came_to, ended)
}

const SUCCESS: (Code, Code) = (Code::CUDA_SUCCESS, Code::CUDA_SUCCESS);
const BROKEN: (Code, Code) =
    (Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

#[test]
fn potentially_unsafe_calls_break_captures_as_measured() {
    standin().run(|_| {
        let context = context();
        let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let event = b.record_event(None).unwrap();
        let ask = || code(event.try_is_complete());
        for other_thread in [false, true] {
            let came_to = MODES.map(|mode| during_capture(&context, &a, mode, other_thread, ask));
            let thread_local = if other_thread { SUCCESS } else { BROKEN };
            assert_eq!(came_to, [BROKEN, thread_local, SUCCESS]);
            for mode in MODES {
                let synchronize = || code(context.synchronize());
                let came_to = during_capture(&context, &a, mode, other_thread, synchronize);
                assert_eq!(came_to, BROKEN, "a context synchronize, {mode:?}");
                let ask = || code(a.synchronize());
                assert_eq!(during_capture(&context, &a, mode, other_thread, ask), BROKEN);
                let fine = || {
                    b.record_event(None).unwrap();
                    b.wait(&event).unwrap();
                    code(context.new_stream())
                };
                assert_eq!(during_capture(&context, &a, mode, other_thread, fine), SUCCESS);
            }
        }
    });
}

#[test]
fn events_and_captures_mix_as_measured() {
    standin().run(|_| {
        let context = context();
        let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let before = a.record_event(None).unwrap();
        let event = context.new_event(None).unwrap();
        for mode in MODES {
            let came_to = during_capture(&context, &a, mode, false, || code(b.wait(&before)));
            assert_eq!(came_to, SUCCESS, "an event from before means the work before");
            let came_to = during_capture(&context, &a, mode, false, || code(a.wait(&before)));
            let broken = Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
            assert_eq!(came_to, (Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION, broken));
            let came_to = during_capture(&context, &a, mode, false, || {
                event.record(&a).unwrap();
                code(event.try_is_complete())
            });
            assert_eq!(came_to, (Code::CUDA_ERROR_CAPTURED_EVENT, broken));
            assert_eq!(code(event.try_is_complete()), Code::CUDA_ERROR_INVALID_VALUE);
            assert_eq!(code(b.wait(&event)), Code::CUDA_ERROR_INVALID_VALUE);
            event.record(&b).unwrap();
            assert!(event.try_is_complete().unwrap());
        }
        let came_to = during_capture(&context, &a, MODES[2], false, || {
            event.record(&a).unwrap();
            b.wait(&event).unwrap();
            assert_eq!(
                b.capture_status().unwrap(),
                sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_ACTIVE,
                "drawn in"
            );
            Code::CUDA_SUCCESS
        });
        assert_eq!(came_to, (Code::CUDA_SUCCESS, Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
    });
}

#[test]
fn the_log_says_who_called_what() {
    standin().run(|standin: &Standin| {
        let context = context();
        let stream = context.new_stream().unwrap();
        let event = context.new_event(None).unwrap();
        standin.reset();
        event.record(&stream).unwrap();
        standin.fail("cuEventQuery", 1, 1, Code::CUDA_ERROR_UNKNOWN);
        let answers = [(); 3].map(|()| code(event.try_is_complete()));
        assert_eq!(answers, [Code::CUDA_SUCCESS, Code::CUDA_ERROR_UNKNOWN, Code::CUDA_SUCCESS]);
        assert_eq!(standin.calls(), 5);
        assert_eq!(standin.count("cuEventQuery"), 3);
        let log = standin.log();
        assert_eq!(log[0].name, "cuCtxGetCurrent");
        let record = &log[1];
        assert_eq!(
            (record.name.as_str(), record.context),
            ("cuEventRecord", context.cu_ctx().addr())
        );
        assert_eq!(record.stream, stream.cu_stream().addr());
        assert_eq!((record.event, record.code), (event.cu_event().addr(), 0));
        assert_eq!(log[3].code, Code::CUDA_ERROR_UNKNOWN as u32);
    });
}

#[test]
fn a_paused_call_waits() {
    standin().run(|standin| {
        let context = context();
        let stream = context.new_stream().unwrap();
        standin.pause("cuEventCreate");
        thread::scope(|scope| {
            let slow = scope.spawn(|| context.new_event(None).map(|_| ()));
            standin.wait_until_standing("cuEventCreate");
            stream.synchronize().unwrap();
            assert!(!slow.is_finished());
            standin.resume("cuEventCreate");
            slow.join().unwrap().unwrap();
        });
    });
}

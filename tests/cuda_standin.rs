//! The CUDA backend, verb by verb, on the stand-in for the driver: what the thread, the program's own
//! errors, other captures and the end of the process see of it.

#[path = "common/standin.rs"]
mod standin;

use std::ffi::c_int;
use std::fs;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use streampool::backend::{Backend, ErrorKind, StreamKind};
use streampool::cuda::{CudaBackend, CudaError, Event};

use standin::{Logged, Scratch, Standin, no_driver, standin};
use sys::CUresult as Code;
use sys::CUstreamCaptureMode as Mode;

const MIB: u64 = 1 << 20;

/// Calls every verb once, on a stream of the backend's context, and `check` after each, with the
/// verb's name. A synchronize of the whole context is left to the caller.
fn every_verb(backend: &CudaBackend, stream: &Arc<CudaStream>, check: &mut dyn FnMut(&str)) {
    let mut done = |name: &str, succeeded: bool| {
        assert!(succeeded, "{name} fails");
        check(name);
    };
    done("identify", backend.identify(stream).is_ok());
    done("is_capturing", !backend.is_capturing(stream).unwrap());
    done("memory_info", backend.memory_info().is_ok());
    let event = backend.create_event().unwrap();
    done("create_event", true);
    done("record", backend.record(&event, stream).is_ok());
    done("wait", backend.wait(stream, &event).is_ok());
    done("query", backend.query(&event).unwrap());
    done("synchronize_event", backend.synchronize_event(&event).is_ok());
    backend.destroy_event(event);
    done("destroy_event", true);
    let segment = backend.alloc_segment(MIB).unwrap();
    done("alloc_segment", true);
    // SAFETY: sound because the segment was just made and nothing uses it.
    done("free_segment", unsafe { backend.free_segment(segment, MIB) }.is_ok());
    let size = backend.granularity().unwrap();
    let range = backend.reserve_range(4 * size).unwrap();
    done("reserve_range", true);
    let granule = backend.create_granule(size).unwrap();
    done("create_granule", true);
    // SAFETY: sound because the range and the granule were just made, the range is big enough, and
    // nothing uses either.
    unsafe {
        done("map", backend.map(range, size, &granule).is_ok());
        done("set_access", backend.set_access(range, size, &[]).is_ok());
        done("unmap", backend.unmap(range, size).is_ok());
        done("destroy_granule", backend.destroy_granule(granule).is_ok());
        done("release_range", backend.release_range(range, 4 * size).is_ok());
    }
    done("allow_peer", backend.allow_peer(backend).is_ok());
    backend.release_stream(Arc::clone(stream));
    done("release_stream", true);
}

fn set_current(context: sys::CUcontext) {
    // SAFETY: sound because the context is alive, or null.
    unsafe { result::ctx::set_current(context).unwrap() };
}

fn set_mode(mut mode: Mode) {
    // SAFETY: sound because the pointer is to a local that holds a mode.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode).result().unwrap() };
}

/// The calls that only prepare the thread, and may be made in any context.
fn prepares(logged: &Logged) -> bool {
    let names = ["cuCtxGetCurrent", "cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"];
    names.contains(&logged.name.as_str())
}

#[test]
fn the_current_context_is_left_as_found() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let own = CudaContext::new(0).unwrap();
        let other = CudaContext::new(1).unwrap();
        let backend = CudaBackend::new(&own).unwrap();
        let stream = own.new_stream().unwrap();
        for found in [ptr::null_mut(), other.cu_ctx(), own.cu_ctx()] {
            set_current(found);
            standin.reset();
            every_verb(&backend, &stream, &mut |verb| {
                assert_eq!(standin.current_context(), found.addr(), "{verb}");
            });
            backend.synchronize_context().unwrap();
            assert_eq!(standin.current_context(), found.addr());
            for logged in standin.log().iter().filter(|logged| !prepares(logged)) {
                assert_eq!(logged.context, own.cu_ctx().addr(), "{logged:?}");
            }
        }
    });
}

#[test]
fn opening_and_dropping_a_backend_leave_the_context_as_found() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let backend = CudaBackend::open(1).unwrap();
        assert_eq!(standin.current_context(), 0);
        assert_eq!(CudaBackend::open(7).unwrap_err().code(), Some(101));
        drop(backend);
        assert_eq!(standin.current_context(), 0);
        let other = CudaContext::new(0).unwrap();
        let backend = CudaBackend::open(1).unwrap();
        let stream = backend.context().new_stream().unwrap();
        other.bind_to_thread().unwrap();
        standin.reset();
        backend.release_stream(stream);
        assert_eq!(standin.count("cuStreamDestroy_v2"), 1);
        drop(backend);
        assert_eq!(standin.count("cuDevicePrimaryCtxRelease_v2"), 1);
        assert_eq!(standin.current_context(), other.cu_ctx().addr());
    });
}

#[test]
fn the_capture_mode_is_exchanged_there_and_back() {
    standin().run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let modes =
            [Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL];
        for mode in modes {
            set_mode(mode);
            standin.reset();
            every_verb(&backend, &stream, &mut |verb| {
                assert_eq!(standin.capture_mode(), mode as u32, "{verb}");
            });
            let spared = ["cuEventQuery", "cuEventSynchronize", "cuMemAlloc_v2", "cuMemFree_v2"];
            let log = standin.log();
            let asked = log.iter().filter(|logged| spared.contains(&logged.name.as_str()));
            let relaxed = asked.filter(|logged| logged.mode == 2).count();
            assert_eq!(relaxed, spared.len());
        }
    });
}

/// Captures on one stream, calls every verb on another from this or another thread, and ends the
/// capture, which must be whole.
fn verbs_during_capture(backend: &CudaBackend, mode: Mode, other_thread: bool) {
    let context = backend.context();
    let (captured, stream) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let before = backend.create_event().unwrap();
    backend.record(&before, &captured).unwrap();
    captured.begin_capture(mode).unwrap();
    let verbs = || {
        assert!(backend.is_capturing(&captured).unwrap());
        assert_eq!(backend.identify(&captured).unwrap_err().kind(), ErrorKind::Capture);
        assert!(backend.query(&before).unwrap(), "an event from before can be asked");
        every_verb(backend, &stream, &mut |_| {});
    };
    if other_thread {
        thread::scope(|scope| scope.spawn(verbs).join().unwrap());
    } else {
        verbs();
    }
    captured.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap();
    backend.destroy_event(before);
}

#[test]
fn no_verb_breaks_a_capture_on_another_stream() {
    standin().run(|_| {
        let backend = CudaBackend::open(0).unwrap();
        for mode in [
            Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
        ] {
            verbs_during_capture(&backend, mode, false);
            verbs_during_capture(&backend, mode, true);
        }
    });
}

#[test]
fn a_context_synchronize_spares_captures_on_other_devices() {
    standin().with("STANDIN_DEVICES", 2).run(|_| {
        let (backend, other) = (CudaBackend::open(0).unwrap(), CudaBackend::open(1).unwrap());
        let captured = other.context().new_stream().unwrap();
        captured.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        backend.synchronize_context().unwrap();
        assert_eq!(other.synchronize_context().unwrap_err().kind(), ErrorKind::Capture);
        assert!(captured.end_capture(sys::CUgraphInstantiate_flags(0)).is_err());
    });
}

#[test]
fn capture_errors_have_their_kind() {
    standin().run(|_| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let legacy = backend.context().default_stream();
        let raw = result::stream::create(result::stream::StreamKind::Default).unwrap();
        // SAFETY: sound because the stream is live and of this context, and is never destroyed.
        let blocking = unsafe { backend.context().wrap_borrowed_stream(raw) };
        let event = backend.create_event().unwrap();
        assert!(!backend.is_capturing(&legacy).unwrap());
        stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        assert!(!backend.is_capturing(&legacy).unwrap(), "it does not mind non-blocking streams");
        backend.record(&event, &stream).unwrap();
        assert_eq!(backend.query(&event).unwrap_err().kind(), ErrorKind::Capture);
        assert!(backend.is_capturing(&stream).unwrap(), "a broken capture goes on until its end");
        assert!(stream.end_capture(sys::CUgraphInstantiate_flags(0)).is_err());
        assert_eq!(backend.query(&event).unwrap_err().kind(), ErrorKind::Other);
        blocking.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        assert!(backend.is_capturing(&legacy).unwrap());
        assert_eq!(backend.record(&event, &legacy).unwrap_err().kind(), ErrorKind::Capture);
    });
}

#[test]
fn errors_of_the_program_are_neither_consumed_nor_reported() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let own = CudaContext::new(0).unwrap();
        let backend = CudaBackend::new(&own).unwrap();
        let (stream, doomed) = (own.new_stream().unwrap(), own.new_stream().unwrap());
        let other = CudaContext::new(1).unwrap();
        let parked = DriverError(Code::CUDA_ERROR_NOT_FOUND);
        own.record_err(Err::<(), _>(parked));
        every_verb(&backend, &stream, &mut |_| {});
        backend.synchronize_context().unwrap();
        drop(CudaBackend::new(&own).unwrap());
        standin.reset();
        backend.release_stream(doomed);
        let log = standin.log();
        let destroyed = log.iter().find(|logged| logged.name == "cuStreamDestroy_v2").unwrap();
        assert_eq!((destroyed.context, destroyed.code), (own.cu_ctx().addr(), 0));
        assert_eq!(standin.current_context(), other.cu_ctx().addr());
        assert_eq!(own.check_err(), Err(parked), "still there for its owner");
        assert_eq!(own.check_err(), Ok(()), "and nothing else");
    });
}

#[test]
fn a_verb_that_cannot_prepare_the_thread_leaves_it_alone() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let other = CudaContext::new(1).unwrap();
        let event = backend.create_event().unwrap();
        for function in ["cuCtxGetCurrent", "cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"]
        {
            standin.reset();
            standin.fail(function, 0, 1, Code::CUDA_ERROR_UNKNOWN);
            let error = backend.query(&event).unwrap_err();
            assert_eq!((error.call(), error.kind()), (function, ErrorKind::Other));
            assert_eq!(standin.count("cuEventQuery"), 0);
            assert_eq!(standin.current_context(), other.cu_ctx().addr());
            assert_eq!(standin.capture_mode(), 0);
        }
        assert!(backend.query(&event).unwrap());
    });
}

#[test]
fn each_verb_is_one_call_and_what_prepares_it() {
    standin().run(|standin| {
        let own = CudaContext::new(0).unwrap();
        let backend = CudaBackend::new(&own).unwrap();
        let stream = own.new_stream().unwrap();
        let event = backend.create_event().unwrap();
        standin.reset();
        backend.record(&event, &stream).unwrap();
        assert_eq!(standin.names(), ["cuCtxGetCurrent", "cuEventRecord"]);
        backend.wait(&stream, &event).unwrap();
        assert_eq!(standin.names(), ["cuCtxGetCurrent", "cuStreamWaitEvent"]);
        backend.query(&event).unwrap();
        let exchange = "cuThreadExchangeStreamCaptureMode";
        assert_eq!(standin.names(), ["cuCtxGetCurrent", exchange, "cuEventQuery", exchange]);
        set_current(ptr::null_mut());
        standin.reset();
        backend.record(&event, &stream).unwrap();
        let set = "cuCtxSetCurrent";
        assert_eq!(standin.names(), ["cuCtxGetCurrent", set, "cuEventRecord", set]);
        backend.error_kind(&CudaBackend::open(9).unwrap_err());
        standin.reset();
        let _ = (backend.context_id(), backend.granularity(), format!("{backend:?}"));
        assert_eq!(standin.calls(), 0);
    });
}

#[test]
fn streams_and_contexts_are_told_apart() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let own = CudaContext::new(0).unwrap();
        let (first, second) = (CudaBackend::new(&own).unwrap(), CudaBackend::open(0).unwrap());
        let other = CudaBackend::open(1).unwrap();
        assert_eq!(first.context_id(), second.context_id());
        assert_ne!(first.context_id(), other.context_id());
        let raw = result::stream::create(result::stream::StreamKind::Default).unwrap();
        // SAFETY: sound because the stream is live and of this context, and is never destroyed.
        let blocking = unsafe { own.wrap_borrowed_stream(raw) };
        // SAFETY: sound because the legacy stream always lives.
        let explicit = unsafe { own.wrap_borrowed_stream(ptr::without_provenance_mut(1)) };
        let kind = |stream: &Arc<CudaStream>| first.identify(stream).unwrap().kind;
        assert_eq!(kind(&own.new_stream().unwrap()), StreamKind::NonBlocking);
        assert_eq!(kind(&blocking), StreamKind::Blocking);
        assert_eq!(kind(&own.default_stream()), StreamKind::Legacy);
        assert_eq!(kind(&explicit), StreamKind::Legacy);
        assert_eq!(kind(&own.per_thread_stream()), StreamKind::PerThread);
        let foreign = other.context().new_stream().unwrap();
        let identity = first.identify(&foreign).unwrap();
        assert_eq!(identity.context, other.context_id());
        assert_eq!(identity.handle, foreign.cu_stream().addr() as u64);
        // The primary context is given back, and comes again with the same handle.
        let (handle, number) = (own.cu_ctx(), first.context_id());
        assert_eq!(first.identify(&blocking).unwrap().context, number);
        drop((first, second, blocking, explicit, own));
        assert_eq!(standin.count("cuDevicePrimaryCtxRelease_v2"), 2);
        let again = CudaBackend::open(0).unwrap();
        assert_eq!(again.context().cu_ctx(), handle);
        assert_ne!(again.context_id(), number);
    });
}

#[test]
fn the_legacy_stream_of_another_device_is_found_in_its_own_context() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let (backend, other) = (CudaBackend::open(0).unwrap(), CudaBackend::open(1).unwrap());
        let stream = backend.context().new_stream().unwrap();
        let (event, after) = (backend.create_event().unwrap(), other.create_event().unwrap());
        standin.hold(stream.cu_stream());
        backend.record(&event, &stream).unwrap();
        let legacy = other.context().default_stream();
        backend.wait(&legacy, &event).unwrap();
        other.record(&after, &legacy).unwrap();
        assert!(!other.query(&after).unwrap());
        assert!(!backend.is_capturing(&legacy).unwrap());
        standin.release(stream.cu_stream());
        assert!(other.query(&after).unwrap());
    });
}

#[test]
fn events_are_asked_and_waited_for() {
    standin().run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let event = backend.create_event().unwrap();
        assert!(backend.query(&event).unwrap(), "never recorded counts as complete");
        standin.hold(stream.cu_stream());
        backend.record(&event, &stream).unwrap();
        assert!(!backend.query(&event).unwrap());
        thread::scope(|scope| {
            let waiting = [
                scope.spawn(|| backend.synchronize_event(&event)),
                scope.spawn(|| backend.synchronize_context()),
            ];
            thread::sleep(Duration::from_millis(20));
            assert!(waiting.iter().all(|thread| !thread.is_finished()));
            standin.release(stream.cu_stream());
            for thread in waiting {
                thread.join().unwrap().unwrap();
            }
        });
        assert!(backend.query(&event).unwrap());
    });
}

fn fill_and_read(backend: &CudaBackend, address: u64, value: Option<u8>) -> [u8; 4] {
    backend.context().bind_to_thread().unwrap();
    let mut bytes = [0; 4];
    // SAFETY: sound because the caller gives an address with at least 4 bytes of live memory.
    unsafe {
        if let Some(value) = value {
            result::memset_d8_sync(address, value, 4).unwrap();
        }
        result::memcpy_dtoh_sync(&mut bytes, address).unwrap();
    }
    bytes
}

#[test]
fn granules_keep_their_bytes_wherever_they_are_mapped() {
    standin().run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let size = backend.granularity().unwrap();
        assert!(size.is_power_of_two() && size >= 256);
        let before = backend.memory_info().unwrap();
        let range = backend.reserve_range(8 * size).unwrap();
        assert_eq!(range % size, 0);
        assert_eq!(backend.memory_info().unwrap(), before, "addresses are not memory");
        let (one, two) =
            (backend.create_granule(size).unwrap(), backend.create_granule(2 * size).unwrap());
        assert_eq!(backend.memory_info().unwrap().free, before.free - 3 * size);
        let (left, right) = (range, range + size);
        // SAFETY: sound because range and granules were just made, each mapping has its granule's
        // size and its own place, and the copies that touch them have returned before they go.
        unsafe {
            backend.map(left, size, &one).unwrap();
            backend.map(right, 2 * size, &two).unwrap();
            backend.set_access(left, 3 * size, &[]).unwrap();
            assert_eq!(fill_and_read(&backend, left, Some(7)), [7; 4]);
            assert_eq!(fill_and_read(&backend, right + size, Some(9)), [9; 4]);
            assert_eq!(
                backend.release_range(range, 8 * size).unwrap_err().kind(),
                ErrorKind::Other
            );
            backend.unmap(left, 3 * size).unwrap();
            let elsewhere = range + 5 * size;
            backend.map(elsewhere, size, &one).unwrap();
            backend.set_access(elsewhere, size, &[]).unwrap();
            assert_eq!(fill_and_read(&backend, elsewhere, None), [7; 4]);
            backend.unmap(elsewhere, size).unwrap();
            standin.fail("cuMemRelease", 0, 1, Code::CUDA_ERROR_UNKNOWN);
            let (one, error) = backend.destroy_granule(one).unwrap_err();
            assert_eq!(error.call(), "cuMemRelease");
            backend.destroy_granule(one).unwrap();
            backend.destroy_granule(two).unwrap();
            backend.release_range(range, 8 * size).unwrap();
        }
        assert_eq!(backend.memory_info().unwrap(), before);
    });
}

#[test]
fn memory_runs_out_with_its_own_kind() {
    standin().with("STANDIN_MEMORY", 64 * MIB).run(|_| {
        let backend = CudaBackend::open(0).unwrap();
        let kind = |error: CudaError| error.kind();
        assert_eq!(backend.alloc_segment(65 * MIB).map_err(kind), Err(ErrorKind::OutOfMemory));
        assert_eq!(backend.alloc_segment(u64::MAX).map_err(kind), Err(ErrorKind::OutOfMemory));
        let granule = backend.create_granule(66 * MIB);
        assert_eq!(granule.unwrap_err().kind(), ErrorKind::OutOfMemory);
        let segment = backend.alloc_segment(60 * MIB).unwrap();
        assert_eq!(segment % 256, 0);
        assert_eq!(fill_and_read(&backend, segment + 60 * MIB - 4, Some(3)), [3; 4]);
        assert_eq!(backend.alloc_segment(8 * MIB).map_err(kind), Err(ErrorKind::OutOfMemory));
        // SAFETY: sound because the segment was made above, and the copies have returned.
        unsafe { backend.free_segment(segment, 60 * MIB).unwrap() };
        // SAFETY: not sound on a device; the stand-in looks it up and refuses.
        let again = unsafe { backend.free_segment(segment, 60 * MIB) };
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Other);
    });
}

#[test]
fn virtual_memory_is_used_where_the_device_has_it_and_the_program_wants_it() {
    standin().run(|_| {
        let backend = CudaBackend::open(0).unwrap();
        assert_eq!(backend.granularity(), Some(2 * MIB));
        assert_eq!(backend.with_plain_segments().granularity(), None);
    });
    standin().with("STANDIN_NO_VIRTUAL_MEMORY", 1).run(|_| {
        assert_eq!(CudaBackend::open(0).unwrap().granularity(), None);
    });
}

#[test]
fn peers_share_granules_by_access_and_segments_by_context() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let (own, peer) = (CudaBackend::open(0).unwrap(), CudaBackend::open(1).unwrap());
        own.allow_peer(&peer).unwrap();
        assert_eq!(standin.count("cuCtxEnablePeerAccess"), 0, "granules need none");
        let size = own.granularity().unwrap();
        let range = own.reserve_range(size).unwrap();
        let granule = own.create_granule(size).unwrap();
        // SAFETY: sound because range and granule were just made, and are never given back.
        unsafe {
            own.map(range, size, &granule).unwrap();
            own.set_access(range, size, &[&peer, &own, &peer]).unwrap();
        }
        assert_eq!(fill_and_read(&peer, range, Some(4)), [4; 4]);

        let own = own.with_plain_segments();
        let segment = own.alloc_segment(MIB).unwrap();
        own.allow_peer(&peer).unwrap();
        own.allow_peer(&peer).unwrap();
        let enabled = standin.log();
        let enabled = enabled.iter().filter(|logged| logged.name == "cuCtxEnablePeerAccess");
        let enabled: Vec<_> = enabled.map(|logged| (logged.context, logged.code)).collect();
        let current = peer.context().cu_ctx().addr();
        assert_eq!(enabled, [(current, 0), (current, 704)], "the peer gains, and twice is fine");
        assert_eq!(fill_and_read(&peer, segment, Some(5)), [5; 4]);
        assert_eq!(standin.current_context(), current);
    });
}

#[test]
fn a_sticky_error_is_told_from_the_rest() {
    standin().run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let event = backend.create_event().unwrap();
        let context = backend.context().cu_ctx();
        standin.stick(context, Code::CUDA_ERROR_LAUNCH_FAILED);
        let errors = [
            backend.query(&event).unwrap_err(),
            backend.record(&event, &stream).unwrap_err(),
            backend.wait(&stream, &event).unwrap_err(),
            backend.synchronize_event(&event).unwrap_err(),
            backend.synchronize_context().unwrap_err(),
            backend.alloc_segment(MIB).unwrap_err(),
            backend.is_capturing(&stream).unwrap_err(),
            backend.memory_info().unwrap_err(),
        ];
        for error in errors {
            assert_eq!(backend.error_kind(&error), ErrorKind::DeviceLost, "{error}");
            assert_eq!(error.code(), Some(719));
        }
        backend.destroy_event(event);
        backend.release_stream(stream);
        assert_eq!(standin.current_context(), context.addr());
    });
}

#[test]
fn every_code_of_the_driver_comes_through_with_its_kind() {
    standin().run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let event = backend.create_event().unwrap();
        for (code, kind) in [
            (Code::CUDA_ERROR_INVALID_VALUE, ErrorKind::Other),
            (Code::CUDA_ERROR_OUT_OF_MEMORY, ErrorKind::OutOfMemory),
            (Code::CUDA_ERROR_INVALID_HANDLE, ErrorKind::Other),
            (Code::CUDA_ERROR_ILLEGAL_ADDRESS, ErrorKind::DeviceLost),
            (Code::CUDA_ERROR_CONTEXT_IS_DESTROYED, ErrorKind::DeviceLost),
            (Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, ErrorKind::Capture),
            (Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, ErrorKind::Capture),
            (Code::CUDA_ERROR_UNKNOWN, ErrorKind::Other),
        ] {
            standin.fail("cuEventQuery", 0, 1, code);
            let error = backend.query(&event).unwrap_err();
            assert_eq!((error.kind(), error.code()), (kind, Some(code as u32)));
        }
        assert!(backend.query(&event).unwrap());
        standin.reset();
        standin.fail("cuEventQuery", 0, 1, Code::CUDA_ERROR_DEINITIALIZED);
        assert_eq!(backend.query(&event).unwrap_err().kind(), ErrorKind::Exiting);
        let error = backend.query(&event).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Exiting, None));
        assert_eq!(standin.count("cuEventQuery"), 1, "a driver that is going is left alone");
    });
}

#[test]
fn without_a_driver_there_is_an_error_and_no_panic() {
    no_driver().run(|_| {
        // SAFETY: sound because it only opens and closes the library.
        if unsafe { sys::is_culib_present() } {
            println!("this machine has a driver: nothing to see");
            return;
        }
        let error = CudaBackend::open(0).unwrap_err();
        assert!(error.is_no_driver());
        assert_eq!((error.kind(), error.code()), (ErrorKind::Other, None));
        assert!(error.to_string().contains("no CUDA driver"));
    });
}

#[test]
fn without_a_device_there_is_an_error() {
    standin().with("STANDIN_DEVICES", 0).run(|_| {
        let error = CudaBackend::open(0).unwrap_err();
        assert_eq!((error.call(), error.code()), ("cuInit", Some(100)));
    });
}

unsafe extern "C" {
    fn atexit(hook: extern "C" fn()) -> c_int;
}

/// What the exit hooks below work with.
static AT_EXIT: OnceLock<(CudaBackend, Arc<CudaStream>, Event)> = OnceLock::new();

/// Runs when the backend's hook has run: every verb is refused, and the driver hears nothing of it.
extern "C" fn verbs_are_refused() {
    let standin = Standin::get();
    standin.reset();
    let (backend, stream, event) = AT_EXIT.get().expect("a backend");
    let answers = [
        backend.query(event).map(|_| ()),
        backend.record(event, stream),
        backend.wait(stream, event),
        backend.synchronize_event(event),
        backend.synchronize_context(),
        backend.create_event().map(|_| ()),
        backend.alloc_segment(MIB).map(|_| ()),
        backend.create_granule(2 * MIB).map(|_| ()),
        backend.is_capturing(stream).map(|_| ()),
        backend.identify(stream).map(|_| ()),
        backend.memory_info().map(|_| ()),
        CudaBackend::open(0).map(|_| ()),
        CudaBackend::new(backend.context()).map(|_| ()),
    ];
    backend.release_stream(Arc::clone(stream));
    let exiting = |error: &CudaError| error.kind() == ErrorKind::Exiting;
    let refused = answers.iter().all(|answer| answer.as_ref().is_err_and(exiting));
    let texts: Vec<_> = answers.iter().map(|answer| format!("{answer:?}")).collect();
    if !refused || standin.calls() != 0 {
        eprintln!("{} calls after exit: {texts:?}", standin.calls());
        process::abort();
    }
    println!("refused");
}

#[test]
fn after_exit_has_begun_nothing_is_called() {
    standin().run(|_| {
        let context = CudaContext::new(0).unwrap();
        // Before the backend's hook, so that it runs after it.
        // SAFETY: sound because the hook is a function of this program.
        unsafe { atexit(verbs_are_refused) };
        let backend = CudaBackend::new(&context).unwrap();
        let (stream, event) = (context.new_stream().unwrap(), backend.create_event().unwrap());
        drop(context);
        assert!(AT_EXIT.set((backend, stream, event)).is_ok());
        process::exit(0);
    });
}

#[test]
fn exit_waits_for_a_call_that_is_inside_the_driver() {
    let scratch = Scratch::new();
    let trace = scratch.0.join("trace");
    standin().with("STANDIN_TRACE", trace.display()).run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let event = backend.create_event().unwrap();
        standin.hold(stream.cu_stream());
        backend.record(&event, &stream).unwrap();
        let handle = stream.cu_stream().addr();
        let (backend, _, event) = AT_EXIT.get_or_init(|| (backend, stream, event));
        thread::spawn(|| backend.synchronize_event(event));
        // Nothing says that a thread is inside the call; this is long for getting there.
        thread::sleep(Duration::from_millis(100));
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            Standin::get().release(ptr::without_provenance_mut(handle));
        });
        process::exit(0);
    });
    if let Ok(trace) = fs::read_to_string(trace) {
        let lines: Vec<&str> = trace.lines().collect();
        assert_eq!(lines.last(), Some(&"exit"), "nothing after the driver has gone: {lines:?}");
        assert!(lines.iter().any(|line| line.starts_with("cuEventSynchronize")), "{lines:?}");
    }
}

#[test]
fn exit_does_not_wait_for_ever() {
    let begun = Instant::now();
    standin().run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let event = backend.create_event().unwrap();
        standin.hold(stream.cu_stream());
        backend.record(&event, &stream).unwrap();
        let (backend, _, event) = AT_EXIT.get_or_init(|| (backend, stream, event));
        thread::spawn(|| backend.synchronize_event(event));
        thread::sleep(Duration::from_millis(100));
        process::exit(0);
    });
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn exit_under_load_is_clean() {
    static STARTED: AtomicU64 = AtomicU64::new(0);
    static REFUSED: AtomicBool = AtomicBool::new(false);
    let scratch = Scratch::new();
    let trace = scratch.0.join("trace");
    standin().with("STANDIN_TRACE", trace.display()).run(|_| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let event = backend.create_event().unwrap();
        let (backend, stream, event) = AT_EXIT.get_or_init(|| (backend, stream, event));
        for _ in 0..4 {
            thread::spawn(|| {
                loop {
                    STARTED.fetch_add(1, Ordering::Relaxed);
                    let answers = [backend.record(event, stream), backend.query(event).map(|_| ())];
                    for error in answers.into_iter().filter_map(Result::err) {
                        assert_eq!(error.kind(), ErrorKind::Exiting);
                        REFUSED.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
        while STARTED.load(Ordering::Relaxed) < 200 {
            thread::yield_now();
        }
        assert!(!REFUSED.load(Ordering::Relaxed));
        process::exit(0);
    });
    if let Ok(trace) = fs::read_to_string(trace) {
        assert_eq!(trace.lines().last(), Some("exit"), "a call after the driver has gone");
    }
}

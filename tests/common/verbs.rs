//! Uses of the verbs of the CUDA backend that hold on a real device and on the stand-in alike.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::sync::Arc;
use std::thread;

use cudarc::driver::{CudaStream, result, sys};
use streampool::backend::{Backend, ErrorKind};
use streampool::cuda::CudaBackend;

use sys::CUstreamCaptureMode as Mode;

pub(crate) const MIB: u64 = 1 << 20;

/// All capture modes.
pub(crate) const MODES: [Mode; 3] = [
    Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

/// Calls every verb once, on a stream of the backend's context, and `check` after each, with the
/// verb's name. A synchronize of the whole context is left to the caller.
pub(crate) fn every_verb(
    backend: &CudaBackend,
    stream: &Arc<CudaStream>,
    check: &mut dyn FnMut(&str),
) {
    let mut done = |name: &str, succeeded: bool| {
        assert!(succeeded, "{name} fails");
        check(name);
    };
    done("identify", backend.identify(stream).is_ok());
    done("is_capturing", !backend.is_capturing(stream).unwrap());
    done("memory_info", backend.memory_info().is_ok());
    let segment = backend.alloc_segment(MIB).unwrap();
    done("alloc_segment", true);
    // SAFETY: sound because the segment was just made, nothing else uses it, and the synchronize below
    // covers the copy.
    let copied = unsafe { backend.copy(stream, segment, backend, segment + MIB / 2, MIB / 2) };
    done("copy", copied.is_ok());
    let event = backend.create_event().unwrap();
    done("create_event", true);
    done("record", backend.record(&event, stream).is_ok());
    done("wait", backend.wait(stream, &event).is_ok());
    done("query", backend.query(&event).is_ok());
    done("synchronize_event", backend.synchronize_event(&event).is_ok());
    backend.destroy_event(event);
    done("destroy_event", true);
    // SAFETY: sound because the copy has finished.
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
    done("allow_peer", backend.allow_peer(backend, true).is_ok());
    backend.release_stream(Arc::clone(stream));
    done("release_stream", true);
}

/// Makes a context current; null for none.
pub(crate) fn set_current(context: sys::CUcontext) {
    // SAFETY: sound because the context is alive, or null.
    unsafe { result::ctx::set_current(context).unwrap() };
}

/// Changes the thread's capture mode, and returns what it was.
pub(crate) fn exchange_mode(mut mode: Mode) -> Mode {
    // SAFETY: sound because the pointer is to a local that holds a mode.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode).result().unwrap() };
    mode
}

/// Captures on one stream, calls every verb on another from this or another thread, and ends the
/// capture, which must be whole.
pub(crate) fn verbs_during_capture(backend: &CudaBackend, mode: Mode, other_thread: bool) {
    let context = backend.context();
    let (captured, stream) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let before = backend.create_event().unwrap();
    backend.record(&before, &captured).unwrap();
    captured.begin_capture(mode).unwrap();
    let verbs = || {
        assert!(backend.is_capturing(&captured).unwrap());
        assert_eq!(backend.identify(&captured).unwrap_err().kind(), ErrorKind::Capture);
        backend.synchronize_event(&before).unwrap();
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

/// Fills the first bytes at an address of the device, if there is a value, and reads them.
pub(crate) fn fill_and_read(backend: &CudaBackend, address: u64, value: Option<u8>) -> [u8; 4] {
    #[expect(clippy::disallowed_methods, reason = "the test is the other code")]
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

/// Maps two granules, moves one to another address, and finds its bytes there.
pub(crate) fn move_a_granule(backend: &CudaBackend) {
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
        assert_eq!(fill_and_read(backend, left, Some(7)), [7; 4]);
        assert_eq!(fill_and_read(backend, right + size, Some(9)), [9; 4]);
        backend.unmap(left, 3 * size).unwrap();
        let elsewhere = range + 5 * size;
        backend.map(elsewhere, size, &one).unwrap();
        backend.set_access(elsewhere, size, &[]).unwrap();
        assert_eq!(fill_and_read(backend, elsewhere, None), [7; 4]);
        backend.unmap(elsewhere, size).unwrap();
        backend.destroy_granule(one).unwrap();
        backend.destroy_granule(two).unwrap();
        backend.release_range(range, 8 * size).unwrap();
    }
    assert_eq!(backend.memory_info().unwrap(), before);
}

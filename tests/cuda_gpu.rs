//! The verbs of the CUDA backend on a real device: what the stand-in is told, checked against the
//! driver. Ignored unless asked for; on a machine with a GPU:
//!
//! ```console
//! $ cargo test --features cuda --test cuda_gpu -- --ignored --test-threads=1 --nocapture
//! ```

#[path = "common/verbs.rs"]
mod verbs;

use std::process;
use std::ptr;
use std::thread;
use std::time::Duration;

use cudarc::driver::{CudaContext, DriverError, result, sys};
use streampool::backend::{Backend, ErrorKind};
use streampool::cuda::CudaBackend;

use sys::CUstreamCaptureMode as Mode;
use verbs::{
    MIB, MODES, every_verb, exchange_mode, fill_and_read, move_a_granule, set_current,
    verbs_during_capture,
};

#[test]
#[ignore = "needs a CUDA device"]
fn the_thread_is_left_as_found() {
    let own = CudaContext::new(0).unwrap();
    let backend = CudaBackend::new(&own).unwrap();
    let stream = own.new_stream().unwrap();
    let mut found = vec![own.cu_ctx(), ptr::null_mut()];
    let other = CudaContext::new(1);
    found.extend(other.as_ref().map(|other| other.cu_ctx()));
    let mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    for context in found {
        set_current(context);
        exchange_mode(mode);
        let check = &mut |verb: &str| {
            assert_eq!(result::ctx::get_current().unwrap().unwrap_or_default(), context, "{verb}");
            assert_eq!(exchange_mode(mode), mode, "{verb}");
        };
        every_verb(&backend, &stream, check);
        backend.synchronize_context().unwrap();
        check("synchronize_context");
        exchange_mode(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn no_verb_breaks_a_capture_on_another_stream() {
    let backend = CudaBackend::open(0).unwrap();
    for mode in MODES {
        verbs_during_capture(&backend, mode, false);
        verbs_during_capture(&backend, mode, true);
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn errors_of_the_program_are_neither_consumed_nor_reported() {
    let own = CudaContext::new(0).unwrap();
    let backend = CudaBackend::new(&own).unwrap();
    let (stream, doomed) = (own.new_stream().unwrap(), own.new_stream().unwrap());
    let parked = DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND);
    own.record_err(Err::<(), _>(parked));
    set_current(ptr::null_mut());
    every_verb(&backend, &stream, &mut |_| {});
    backend.release_stream(doomed);
    assert_eq!(result::ctx::get_current().unwrap(), None);
    assert_eq!(own.check_err(), Err(parked));
    assert_eq!(own.check_err(), Ok(()));
}

#[test]
#[ignore = "needs a CUDA device"]
fn granules_and_segments_hold_bytes() {
    let backend = CudaBackend::open(0).unwrap();
    println!("granularity: {:?}", backend.granularity());
    let total = backend.memory_info().unwrap().total;
    if let Some(size) = backend.granularity() {
        move_a_granule(&backend);
        let error = backend.create_granule((2 * total).next_multiple_of(size)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    }
    let backend = backend.with_plain_segments();
    let segment = backend.alloc_segment(MIB).unwrap();
    assert_eq!(segment % 256, 0);
    assert_eq!(fill_and_read(&backend, segment, Some(6)), [6; 4]);
    // SAFETY: sound because the segment was made above, and the copies have returned.
    unsafe { backend.free_segment(segment, MIB).unwrap() };
    assert_eq!(backend.alloc_segment(2 * total).unwrap_err().kind(), ErrorKind::OutOfMemory);
}

#[test]
#[ignore = "needs a CUDA device"]
fn peers_share_memory_where_there_are_two_devices() {
    let own = CudaBackend::open(0).unwrap();
    let Ok(peer) = CudaBackend::open(1) else {
        println!("one device: no peers");
        return;
    };
    own.allow_peer(&peer, false).unwrap();
    let size = own.granularity().unwrap();
    let range = own.reserve_range(size).unwrap();
    let granule = own.create_granule(size).unwrap();
    // SAFETY: sound because range and granule were just made, and are given back after the copies
    // that touch them have returned.
    unsafe {
        own.map(range, size, &granule).unwrap();
        own.set_access(range, size, &[&peer]).unwrap();
        assert_eq!(fill_and_read(&peer, range, Some(4)), [4; 4]);
        peer.synchronize_context().unwrap();
        own.unmap(range, size).unwrap();
        own.destroy_granule(granule).unwrap();
        own.release_range(range, size).unwrap();
    }
    let own = own.with_plain_segments();
    let segment = own.alloc_segment(MIB).unwrap();
    own.allow_peer(&peer, true).unwrap();
    own.allow_peer(&peer, true).unwrap();
    assert_eq!(fill_and_read(&peer, segment, Some(5)), [5; 4]);
    let (legacy, event) = (peer.context().default_stream(), own.create_event().unwrap());
    own.record(&event, &own.context().default_stream()).unwrap();
    own.wait(&legacy, &event).unwrap();
    own.destroy_event(event);
}

/// Whether asking for a capturing stream's flags breaks the capture: not measured so far, and the
/// backend does not ask.
#[test]
#[ignore = "needs a CUDA device"]
fn what_asking_for_a_capturing_streams_flags_does() {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    for mode in MODES {
        stream.begin_capture(mode).unwrap();
        let mut flags = 0;
        // SAFETY: sound because the stream lives, and the pointer is to a local of the right type.
        let asked = unsafe { sys::cuStreamGetFlags(stream.cu_stream(), &mut flags) };
        let ended = stream.end_capture(sys::CUgraphInstantiate_flags(0)).map(|_| ());
        println!("{mode:?}: cuStreamGetFlags {asked:?}, flags {flags}, the capture {ended:?}");
    }
}

/// Leaves threads inside the driver when the process ends; the test is that it ends well.
#[test]
#[ignore = "needs a CUDA device"]
fn exit_under_load_is_clean() {
    let backend = Box::leak(Box::new(CudaBackend::open(0).unwrap()));
    let stream = Box::leak(Box::new(backend.context().new_stream().unwrap()));
    let event = Box::leak(Box::new(backend.create_event().unwrap()));
    for _ in 0..4 {
        let (backend, stream, event) = (&*backend, &*stream, &*event);
        thread::spawn(move || {
            loop {
                let answers = [backend.record(event, stream), backend.query(event).map(|_| ())];
                for error in answers.into_iter().filter_map(Result::err) {
                    if error.kind() != ErrorKind::Exiting {
                        eprintln!("{error}");
                        process::abort();
                    }
                }
            }
        });
    }
    thread::sleep(Duration::from_millis(100));
}

//! The pool on a real device. Ignored unless asked for; on a machine with a GPU:
//!
//! ```console
//! $ cargo test --features cuda --test gpu_pool -- --ignored --test-threads=1 --nocapture
//! ```

#![cfg(target_os = "linux")]

#[path = "common/operations.rs"]
mod operations;
#[path = "common/pooled.rs"]
mod pooled;

use std::ptr;

use cudarc::driver::{DriverError, result, sys};
use streampool::backend::{Backend, ErrorKind};
use streampool::cuda::CudaBackend;

use operations::{
    MODES, capture_on_a_registered_stream, capture_on_an_announced_stream, every_operation,
    limited, set_current,
};

#[test]
#[ignore = "needs a CUDA device"]
fn a_capture_on_a_registered_stream_survives_every_operation() {
    capture_on_a_registered_stream();
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_capture_on_an_announced_stream_survives_every_operation() {
    capture_on_an_announced_stream();
}

#[test]
#[ignore = "needs a CUDA device"]
fn the_current_context_and_parked_errors_are_left_as_found() {
    let pooled = limited();
    let own = pooled.context.cu_ctx();
    let parked = DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND);
    for found in [own, ptr::null_mut()] {
        set_current(found);
        every_operation(&pooled, &mut |operation| match operation {
            // cudarc's stream, which this makes, is what changes the context, and looks at errors.
            "stream" => {
                set_current(found);
                pooled.context.record_err(Err::<(), _>(parked));
            }
            _ => {
                let current = result::ctx::get_current().unwrap().unwrap_or_default();
                assert_eq!(current, found, "{operation}");
                assert_eq!(pooled.context.check_err(), Err(parked), "{operation}");
                pooled.context.record_err(Err::<(), _>(parked));
            }
        });
        assert_eq!(pooled.context.check_err(), Err(parked));
    }
}

/// What the pool takes for granted where it records a whole context.
#[test]
#[ignore = "needs a CUDA device"]
fn an_event_of_the_context_stands_for_every_stream() {
    let backend = CudaBackend::open(0).unwrap();
    let context = backend.context();
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let event = backend.create_event().unwrap();
    if !backend.record_context(&event).unwrap() {
        println!("this driver has no cuCtxRecordEvent");
        return;
    }
    backend.synchronize_event(&event).unwrap();
    assert!(backend.query(&event).unwrap(), "an idle context has finished");

    // Enough to be under way when the event is asked.
    let bytes = 1 << 30;
    let mut block = context.default_stream().alloc_zeros::<u8>(bytes).unwrap();
    context.default_stream().synchronize().unwrap();
    for stream in [&a, &b] {
        for _ in 0..200 {
            stream.memset_zeros(&mut block).unwrap();
        }
        assert!(backend.record_context(&event).unwrap());
        assert!(!backend.query(&event).unwrap(), "200 GiB are not written yet");
        backend.synchronize_event(&event).unwrap();
        assert!(backend.query(&event).unwrap());
        stream.synchronize().unwrap();
    }
    for mode in MODES {
        a.begin_capture(mode).unwrap();
        let error = backend.record_context(&event).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Capture, "{mode:?}");
        assert!(a.end_capture(sys::CUgraphInstantiate_flags(0)).is_err());
    }
    backend.destroy_event(event);
}

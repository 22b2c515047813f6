//! The pool on the CUDA backend, on the stand-in for the driver (`standin/`): which driver calls each
//! operation makes, and what they leave alone.

#![cfg(target_os = "linux")]

#[path = "common/operations.rs"]
mod operations;
#[path = "common/pooled.rs"]
mod pooled;
#[path = "common/standin.rs"]
mod standin;

use std::fs;
use std::process;
use std::sync::{Arc, OnceLock};
use std::thread;

use cudarc::driver::{CudaContext, DriverError, result, sys};
use streampool::Buffer;
use streampool::cuda::{CudaBackend, CudaPool, PooledSlice};

use operations::{
    MIB, capture_on_a_registered_stream, capture_on_an_announced_stream, every_operation, limited,
    set_current,
};
use pooled::Pooled;
use standin::{Scratch, standin};
use sys::CUresult as Code;

#[test]
fn a_hit_and_a_free_make_no_call_in_any_context() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let pooled = Pooled::new();
        let elsewhere = CudaContext::new(1).unwrap();
        let sizes = [1, 4096, 512 << 10, 3 * MIB];
        let warm: Vec<_> = sizes.map(|bytes| pooled.home.alloc(bytes).unwrap()).into();
        drop(warm);
        for found in [pooled.context.cu_ctx(), elsewhere.cu_ctx(), std::ptr::null_mut()] {
            set_current(found);
            standin.reset();
            for _ in 0..3 {
                let buffers: Vec<_> = sizes.map(|bytes| pooled.home.alloc(bytes).unwrap()).into();
                // SAFETY: sound because nothing is read.
                let slice = unsafe { pooled.home.alloc_slice::<u64>(0).unwrap() };
                // Freed where it was allocated, and elsewhere.
                thread::scope(|scope| {
                    scope.spawn(|| drop(slice)).join().unwrap();
                });
                drop(buffers);
            }
            assert_eq!(standin.names(), Vec::<String>::new());
            assert_eq!(standin.current_context(), found.addr());
        }
        assert_eq!(pooled.pool.stats().hits, 36);
    });
}

#[test]
fn a_slice_is_dropped_in_a_thread_local_destructor_without_a_call() {
    thread_local! {
        static KEPT: std::cell::RefCell<Option<PooledSlice<u8>>> =
            const { std::cell::RefCell::new(None) };
    }
    standin().run(|standin| {
        let pooled = Pooled::new();
        let slice = pooled.home.alloc_zeros::<u8>(100).unwrap();
        standin.reset();
        thread::spawn(|| KEPT.set(Some(slice))).join().unwrap();
        assert_eq!(standin.calls(), 0);
        assert_eq!(pooled.pool.stats().in_use, 0);
    });
}

#[test]
fn a_scope_is_one_synchronize_and_one_record_and_query() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let mut homes = vec![pooled.home.clone()];
        homes.extend((0..6).map(|_| pooled.another().1));
        for count in [0, 1, 7] {
            // Many buffers: the calls are by stream.
            let used = homes[..count].iter();
            let buffers: Vec<Buffer<_>> =
                used.flat_map(|home| (0..20).map(|_| home.alloc(4096).unwrap())).collect();
            standin.reset();
            let report = pooled.pool.release(buffers).unwrap();
            assert_eq!((report.freed, report.clean), (20 * count as u64, 20 * count as u64));
            assert_eq!(standin.count("cuCtxSynchronize"), 1);
            // On the one stream, or on the context.
            assert_eq!(standin.count("cuEventRecord"), u64::from(count == 1));
            assert_eq!(standin.count("cuCtxRecordEvent"), u64::from(count > 1));
            assert_eq!(standin.count("cuEventQuery"), u64::from(count > 0));
            for waits in ["cuStreamWaitEvent", "cuEventSynchronize", "cuStreamSynchronize"] {
                assert_eq!(standin.count(waits), 0, "{waits}");
            }
        }
    });
}

#[test]
fn a_miss_across_streams_is_one_record_for_each_source() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let (stream, other) = pooled.another();
        let buffers: Vec<_> = (0..30).map(|_| other.alloc(MIB).unwrap()).collect();
        standin.hold(stream.cu_stream());
        standin.reset();
        drop(buffers);
        assert_eq!(standin.calls(), 0);
        let _taken = pooled.home.alloc(MIB).unwrap();
        assert!(standin.count("cuEventRecord") <= 1);
        standin.release(stream.cu_stream());
        // Finished by now: one query tells, no wait is needed.
        standin.reset();
        let _taken: Vec<_> = (0..29).map(|_| pooled.home.alloc(MIB).unwrap()).collect();
        assert!(standin.count("cuEventRecord") <= 1);
        assert_eq!(standin.count("cuStreamWaitEvent"), 0);
    });
}

#[test]
fn every_operation_leaves_the_current_context_as_found() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let pooled = limited();
        let elsewhere = CudaContext::new(1).unwrap();
        for found in [pooled.context.cu_ctx(), elsewhere.cu_ctx(), std::ptr::null_mut()] {
            set_current(found);
            // cudarc's stream, which this makes, is what changes the context here.
            every_operation(&pooled, &mut |operation| match operation {
                "stream" => set_current(found),
                _ => assert_eq!(standin.current_context(), found.addr(), "{operation}"),
            });
        }
        let Pooled { context, pool, stream, home } = pooled;
        drop((context, stream));
        set_current(elsewhere.cu_ctx());
        drop((home, pool));
        assert_eq!(standin.current_context(), elsewhere.cu_ctx().addr());
    });
}

#[test]
fn errors_of_the_program_are_neither_consumed_nor_reported() {
    standin().run(|_| {
        let pooled = limited();
        let parked = DriverError(Code::CUDA_ERROR_NOT_FOUND);
        every_operation(&pooled, &mut |operation| {
            if operation != "stream" {
                assert_eq!(pooled.context.check_err(), Err(parked), "{operation}");
                assert_eq!(pooled.context.check_err(), Ok(()), "{operation}");
            }
            pooled.context.record_err(Err::<(), _>(parked));
        });
        drop((pooled.home, pooled.stream, pooled.pool));
        assert_eq!(pooled.context.check_err(), Err(parked));
    });
}

#[test]
fn a_capture_on_a_registered_stream_survives_every_operation() {
    standin().run(|_| capture_on_a_registered_stream());
}

#[test]
fn a_capture_on_an_announced_stream_survives_every_operation() {
    standin().run(|_| capture_on_an_announced_stream());
}

/// Leaves buffers behind where the end of the process finds them: in a static, and in a thread-local of
/// the main thread.
fn leave_behind() {
    static LIVE: OnceLock<(PooledSlice<u8>, Buffer<CudaBackend>)> = OnceLock::new();
    thread_local! {
        static LAST: std::cell::OnceCell<(PooledSlice<u8>, Pooled)> =
            const { std::cell::OnceCell::new() };
    }
    let pooled = Pooled::new();
    let slice = pooled.home.alloc_zeros::<u8>(100).unwrap();
    let buffer = pooled.home.alloc(MIB).unwrap();
    assert!(LIVE.set((slice, buffer)).is_ok());
    let last = pooled.home.clone_htod(&[1u8; 64]).unwrap();
    assert!(LAST.with(|kept| kept.set((last, pooled)).is_ok()));
}

/// Nothing is called after the driver has gone. In the child there is no trace of its own to read.
fn check_end(trace: &std::path::Path) {
    if let Ok(trace) = fs::read_to_string(trace) {
        let lines: Vec<&str> = trace.lines().collect();
        assert_eq!(lines.last(), Some(&"exit"), "a call after the driver has gone: {lines:?}");
    }
}

#[test]
fn the_process_returns_with_live_buffers() {
    let scratch = Scratch::new();
    let trace = scratch.0.join("trace");
    standin().with("STANDIN_TRACE", trace.display()).run(|_| leave_behind());
    check_end(&trace);
}

#[test]
fn the_process_exits_with_live_buffers() {
    let scratch = Scratch::new();
    let trace = scratch.0.join("trace");
    standin().with("STANDIN_TRACE", trace.display()).run(|_| {
        leave_behind();
        process::exit(0);
    });
    check_end(&trace);
}

#[test]
fn a_pool_that_is_dropped_gives_everything_back() {
    standin().run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let context = Arc::clone(backend.context());
        set_current(context.cu_ctx());
        let before = result::mem_get_info().unwrap();
        let pool = CudaPool::new(backend);
        let home = pool.stream(context.new_stream().unwrap()).unwrap();
        let slice = home.clone_htod(&[1u8; 5000]).unwrap();
        drop((pool, home));
        let kept = slice.pool_stream();
        drop((slice, kept));
        // What the last drop left is finished by the next call of any pool.
        let other = CudaPool::new(CudaBackend::new(&context).unwrap());
        for _ in 0..3 {
            other.trim(0).unwrap();
        }
        assert_eq!(result::mem_get_info().unwrap(), before);
        assert_eq!(standin.count("cuStreamDestroy_v2"), 1);
    });
}

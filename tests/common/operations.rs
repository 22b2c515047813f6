//! Every operation of a pool on the CUDA backend, alone and during captures: on a real device and on the
//! stand-in alike.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::sync::Arc;
use std::thread;

use cudarc::driver::{CudaStream, result, sys};
use streampool::cuda::CudaPool;

use super::pooled::Pooled;
use sys::CUstreamCaptureMode as Mode;

pub(crate) const MIB: usize = 1 << 20;

/// All capture modes.
pub(crate) const MODES: [Mode; 3] = [
    Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

/// Makes a context current; null for none.
pub(crate) fn set_current(context: sys::CUcontext) {
    // SAFETY: sound because the context is alive, or null.
    unsafe { result::ctx::set_current(context).unwrap() };
}

/// Every operation of a pool that may call the driver, the out-of-memory ladder among them; `check` is
/// called after each, with its name.
pub(crate) fn every_operation(pooled: &Pooled, check: &mut dyn FnMut(&str)) {
    let Pooled { pool, home, .. } = pooled;
    let (_, other) = pooled.another();
    let mut done = |name: &str, succeeded: bool| {
        assert!(succeeded, "{name} fails");
        check(name);
    };
    done("stream", true);
    let first = home.alloc(MIB);
    done("a growth", first.is_ok());
    drop(first);
    done("a free", true);
    let mut first = home.alloc(MIB).unwrap();
    done("a hit", true);
    done("use_on", first.use_on(&other).is_ok());
    done("move_to", first.move_to(&other).is_ok());
    drop(first);
    done("a free of what two streams used", true);
    done("a miss", home.alloc(2 * MIB).is_ok());
    done("mark", other.mark().is_ok());
    done("wait_for", home.wait_for(&other).is_ok());
    done("a stream's synchronize", home.synchronize().is_ok());
    done("the pool's synchronize", pool.synchronize().is_ok());
    let scope = pool.quiesce().unwrap();
    done("quiesce", true);
    drop(home.alloc(MIB).unwrap());
    done("the end of a scope", scope.finish().freed == 1);
    done("release", pool.release(home.alloc(MIB).unwrap()).is_ok());
    done("reserve", pool.reserve(40 << 20).is_ok());
    done("trim", pool.trim(0).is_ok());
    done("the ladder", home.alloc(64 * MIB + 1).unwrap_err().is_over_limit());
    done("retire", other.retire().is_ok());
    done("stats", pool.stats().in_use == 0);
    done("take_error", pool.take_error().is_none());
}

/// A pool with the limit that [`every_operation`] reaches.
pub(crate) fn limited() -> Pooled {
    Pooled::with(|backend| CudaPool::builder(backend).limit(64 << 20).build().unwrap())
}

/// Captures in each mode, runs every operation on this or another thread, and ends the capture, which
/// must be whole.
fn operate_during_captures(pooled: &Pooled, captured: &Arc<CudaStream>) {
    for mode in MODES {
        for other_thread in [false, true] {
            captured.begin_capture(mode).unwrap();
            if other_thread {
                let run = || every_operation(pooled, &mut |_| {});
                thread::scope(|scope| scope.spawn(run).join().unwrap());
            } else {
                every_operation(pooled, &mut |_| {});
            }
            let ended = captured.end_capture(sys::CUgraphInstantiate_flags(0));
            ended.unwrap_or_else(|error| panic!("{mode:?}, {other_thread}: {error:?}"));
        }
    }
    // And afterwards all can be had again.
    drop(pooled.home.alloc(64 * MIB).unwrap());
}

/// A stream that the pool knows captures; the pool sees it, and leaves it alone.
pub(crate) fn capture_on_a_registered_stream() {
    let pooled = limited();
    let (captured, registered) = pooled.another();
    let before = registered.alloc(MIB).unwrap();
    drop(before);
    operate_during_captures(&pooled, &captured);
    captured.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    assert!(registered.alloc(MIB).unwrap_err().is_capture());
    assert!(registered.mark().unwrap_err().is_capture());
    captured.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap();
}

/// A stream captures that the pool does not know, but was told of.
pub(crate) fn capture_on_an_announced_stream() {
    let pooled = Pooled::with(|backend| {
        let pool = CudaPool::builder(backend).limit(64 << 20).foreign_captures(true);
        pool.build().unwrap()
    });
    operate_during_captures(&pooled, &pooled.stranger());
}

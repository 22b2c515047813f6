//! H59: a process may exit with live buffers, while its threads are in calls.

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use streampool::cuda::CudaPool;

use crate::cuda_rig::Gpu;
use crate::rig::{BLOCK, Held, Rig, Stream};

/// Makes this test's process the one that exits.
const VARIABLE: &str = "STREAMPOOL_GATE_EXIT";
const TEST: &str = "exit::h59_a_process_may_exit_with_live_buffers";

static KEPT: Mutex<Vec<Held<Gpu>>> = Mutex::new(Vec::new());

fn keep(buffer: Held<Gpu>) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
}

/// Leaves buffers in a static, a pool in a thread, and threads inside the pool.
fn leave_everything() {
    let gpu = Gpu::open();
    let pool = CudaPool::builder(gpu.backend()).limit(8 * BLOCK).build().unwrap();
    let streams: [Stream<Gpu>; 3] = gpu.independent().map(|raw| pool.stream(raw).unwrap());
    let kept = streams[0].alloc(BLOCK as usize).unwrap();
    gpu.stamp(streams[0].raw(), kept.device_ptr(), BLOCK, 1, 50_000_000);
    keep(kept);
    for stream in streams {
        thread::spawn(move || {
            loop {
                // At exit the pool says so, and nothing crashes.
                let Ok(x) = stream.alloc(BLOCK as usize) else { continue };
                let _ = stream.mark();
                drop(x);
            }
        });
    }
    thread::sleep(Duration::from_millis(50));
}

#[test]
#[ignore = "needs a CUDA device"]
fn h59_a_process_may_exit_with_live_buffers() {
    if std::env::var_os(VARIABLE).is_some() {
        return leave_everything();
    }
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().expect("the program has a path"));
        child.args(["--exact", TEST, "--include-ignored", "--test-threads=1"]);
        let output = child.env(VARIABLE, "1").output().expect("a process can be started");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {text}", output.status);
    }
}

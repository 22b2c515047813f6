//! A run on a real device, judged by the simulated one: every call that the pool makes of the backend, and
//! every kernel, is recorded in one order, and made anew on a simulated device, whose race detector sees
//! what no timing shows. It finds nothing; without the waits it finds hazards.
//!
//! Recorder and replay are tested by recording a simulated device. On a machine with a GPU:
//!
//! ```console
//! $ cargo test --features cuda,faults --test gpu_trace -- \
//!       --include-ignored --test-threads=1 --nocapture
//! ```

#[cfg(feature = "cuda")]
#[path = "../common/card.rs"]
mod card;
#[path = "../common/stress/mod.rs"]
mod stress;

mod recorder;
mod replay;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use serde_json::json;
use streampool::backend::Backend;
use streampool::sim::{Schedule, SimConfig};

use recorder::{Entry, Recording};
use replay::replay;
use stress::on_sim::Sim;
use stress::{Device, run};

/// Records rounds of random programs, each with a pool of its own, and judges each.
fn judged<D: Device>(device: &D, name: &str, rounds: u64) {
    let granularity = device.backend().granularity();
    let (mut entries, mut waits, mut without) = (0, 0, 0);
    for seed in 0..rounds {
        let recording = Recording::of(device);
        // A round that goes wrong can lose its device; its trace is judged all the same.
        let played = catch_unwind(AssertUnwindSafe(|| run(&recording, seed, |rounds| rounds < 1)));
        let trace = recording.log.take();
        let hazards = replay(&trace, granularity);
        if let Some(first) = hazards.first() {
            panic!("{} hazards in the round of seed {seed}, the first: {first}", hazards.len());
        }
        let wrong = played.unwrap_or_else(|panic| resume_unwind(panic)).mismatches;
        assert_eq!(wrong, 0, "mismatches in the round of seed {seed}, and no hazard");
        let unordered: Vec<Entry> = trace.iter().copied().filter(|entry| !is_wait(entry)).collect();
        waits += trace.len() - unordered.len();
        entries += trace.len();
        without += replay(&unordered, granularity).len();
    }
    let line = json!({
        "trace": name, "rounds": rounds, "entries": entries, "waits": waits, "hazards": 0,
        "hazards_without_waits": without,
    });
    println!("\n{line}");
    assert!(without > 0, "nothing is missed of {waits} waits");
}

fn is_wait(entry: &Entry) -> bool {
    matches!(entry, Entry::Wait { .. })
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs a CUDA device"]
fn on_a_gpu() {
    judged(&card::Card::open(), "gpu", 40);
}

#[test]
fn on_the_simulated_device() {
    for schedule in [Schedule::Timed, Schedule::Random, Schedule::Lazy] {
        let sim = Sim::new(SimConfig { schedule, ..SimConfig::default() });
        judged(&sim, "simulated", 8);
        assert_eq!(
            sim.hazards.into_inner(),
            0,
            "the recorded device has seen more than the replay"
        );
    }
}

/// The replay of a run that goes wrong goes wrong.
#[cfg(feature = "faults")]
fn can_fail(test: &str) {
    use std::process::Command;
    use streampool::fault::{Fault, VARIABLE};

    let mut command = Command::new(std::env::current_exe().expect("the program has a path"));
    command.args(["--exact", test, "--include-ignored", "--test-threads=1", "--nocapture"]);
    let output = command.env(VARIABLE, Fault::SkipWait.name()).output();
    let output = output.expect("a process can be started");
    let text = String::from_utf8_lossy(&output.stderr);
    let found = text.lines().find(|line| line.contains("hazards in the round of seed"));
    let found = found.unwrap_or_else(|| panic!("the fault is not seen: {text}"));
    assert!(!output.status.success());
    println!("\n{}", json!({ "trace": test, "fault": Fault::SkipWait.name(), "how": found }));
}

#[cfg(all(feature = "cuda", feature = "faults"))]
#[test]
#[ignore = "needs a CUDA device"]
fn on_a_gpu_it_can_fail() {
    can_fail("on_a_gpu");
}

#[cfg(feature = "faults")]
#[test]
fn on_the_simulated_device_it_can_fail() {
    can_fail("on_the_simulated_device");
}

//! Random programs on real streams, from several threads, with kernels of very different lengths: what a
//! pool hands out unordered shows in stamps that are not what was written.
//!
//! `STREAMPOOL_STRESS_SECONDS` says how long (20 by default), and one line of JSON says what was met. With a
//! fault seeded (`STREAMPOOL_FAULT="skip the wait"`, the feature `faults`) the run must fail, and a test
//! of its own sees that it does. The same on the simulated device tests the programs. On a machine with a
//! GPU:
//!
//! ```console
//! $ CUDA_DEVICE_MAX_CONNECTIONS=32 cargo test --features cuda,faults --test gpu_stress -- \
//!       --include-ignored --test-threads=1 --nocapture
//! ```

#[cfg(feature = "cuda")]
#[path = "../common/card.rs"]
mod card;
#[path = "../common/stress/mod.rs"]
mod stress;

use std::fmt::Debug;
use std::str::FromStr;
#[cfg(feature = "cuda")]
use std::time::{Duration, Instant};

use streampool::sim::{Schedule, SimConfig};

use stress::on_sim::Sim;
use stress::{Device, Report, run};

/// For how many seconds the real device is stressed.
#[cfg(any(feature = "cuda", feature = "faults"))]
const SECONDS: &str = "STREAMPOOL_STRESS_SECONDS";
/// The seed of the first round.
const SEED: &str = "STREAMPOOL_STRESS_SEED";

fn variable<T: FromStr<Err: Debug>>(name: &str) -> Option<T> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Plays rounds, and prints what they have met after those before them.
fn play<D: Device>(
    device: &D,
    name: &str,
    before: Report,
    goes_on: impl Fn(u64) -> bool,
) -> Report {
    let mut report = run(device, variable(SEED).unwrap_or(0), goes_on);
    report += before;
    let mut line = report.to_json();
    line["stress"] = name.into();
    // On a line of its own, whatever the harness has begun.
    println!("\n{line}");
    report
}

#[track_caller]
fn judge(report: &Report) {
    assert_eq!(report.mismatches, 0, "words that others have written");
    assert_eq!(report.missed(), [""; 0], "a run that has not met these proves nothing of them");
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs a CUDA device"]
fn on_a_gpu() {
    let time = Duration::from_secs(variable(SECONDS).unwrap_or(20));
    let card = card::Card::open();
    let begun = Instant::now();
    judge(&play(&card, "gpu", Report::default(), |_| begun.elapsed() < time));
}

#[test]
fn on_the_simulated_device() {
    let mut report = Report::default();
    for schedule in [Schedule::Timed, Schedule::Random, Schedule::Lazy] {
        let sim = Sim::new(SimConfig { schedule, ..SimConfig::default() });
        report = play(&sim, "simulated", report, |rounds| rounds < 30);
        assert_eq!(report.mismatches, 0, "words that others have written");
        assert_eq!(sim.hazards.into_inner(), 0, "the race detector has seen what no stamp shows");
    }
    judge(&report);
}

/// In a process of its own, with a fault, a stress sees mismatches. A program that uses memory by mistake
/// can also lose its device first, so that it gets several chances.
#[cfg(feature = "faults")]
fn can_fail(test: &str) {
    for seed in (0..5).map(|chance| chance * 1000) {
        let Some(report) = with_fault(test, seed) else { continue };
        println!("\n{report}");
        if report["mismatches"].as_u64() > Some(0) {
            return;
        }
    }
    panic!("the fault is not seen");
}

/// What a stress reports that must fail, if it comes to that.
#[cfg(feature = "faults")]
fn with_fault(test: &str, seed: u64) -> Option<serde_json::Value> {
    use std::process::Command;
    use streampool::fault::{Fault, VARIABLE};

    let mut command = Command::new(std::env::current_exe().expect("the program has a path"));
    command.args(["--exact", test, "--include-ignored", "--test-threads=1", "--nocapture"]);
    command.env(SECONDS, "5").env(SEED, seed.to_string()).env(VARIABLE, Fault::SkipWait.name());
    let output = command.output().expect("a process can be started");
    assert!(!output.status.success(), "the fault does not make the run fail");
    let text = String::from_utf8(output.stdout).expect("text");
    let Some(line) = text.lines().find(|line| line.starts_with('{')) else {
        eprintln!("seed {seed} has no report: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    };
    let mut report: serde_json::Value = serde_json::from_str(line).expect("JSON");
    report["fault"] = Fault::SkipWait.name().into();
    Some(report)
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

//! Do the gate tests see anything? Each of the faults that a device can show is seeded in a process of its
//! own, which runs one test; where the test must see the fault, it must fail there.
//!
//! The table goes to the output, a JSON object a line:
//! `{"device": …, "fault": …, "test": …, "fired": …, "must": …, "how": …}`. With `STREAMPOOL_GATE_TABLE=full`
//! it has every cell, and otherwise those that must fire.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use streampool::fault::{Fault, VARIABLE};

/// With `full` in it every fault meets every test.
const FULL: &str = "STREAMPOOL_GATE_TABLE";
/// A process that has not ended by then hangs.
const PATIENCE: Duration = Duration::from_secs(40);

/// Which test must see which fault.
const MUST: &[(Fault, &str)] = &[
    (Fault::SkipWait, "h02_another_stream_waits"),
    (Fault::SkipWait, "h10_use_on_and_move_to_make_the_other_stream_wait"),
    (Fault::SkipRecord, "h02_another_stream_waits"),
    (Fault::SkipRecord, "h15_home_waits_for_a_copy_elsewhere"),
    (Fault::WaitOnOwner, "h02_another_stream_waits"),
    (Fault::SkipSynchronize, "a_scope_begins_when_the_gate_opens"),
    (Fault::UnfinishedTaken, "h02_another_stream_waits"),
    (Fault::UnfinishedTaken, "h30_what_a_scope_launches_is_waited_for"),
    (Fault::CompletedPastSnapshot, "h31_what_is_used_after_the_synchronize_is_waited_for"),
    (Fault::EventReusedEarly, "h02_an_event_is_not_used_twice"),
    (Fault::JoinDropsStamps, "h11_the_owner_of_a_union_comes_after_both_parts"),
    (Fault::SecondStampLost, "h09_every_user_comes_before_the_next_owner"),
    (Fault::EarlierEpochKept, "h11_of_two_epochs_the_later_counts"),
    (Fault::SplitDropsStamps, "both_parts_of_a_split_wait"),
    (Fault::EagerJoin, "h16_a_stalled_neighbour_holds_nothing_up"),
    (Fault::DeadHandleKey, "h40_a_reused_handle_is_another_stream"),
    (Fault::DeadHandleKey, "h40_a_handle_that_comes_back_later_is_another_stream"),
    (Fault::RetiredUnderBuffers, "h40_a_reused_handle_is_another_stream"),
    (Fault::UseOnWithoutWait, "h10_use_on_and_move_to_make_the_other_stream_wait"),
    (Fault::ListHitWithSecondStamp, "h15_home_waits_for_a_copy_elsewhere"),
    (Fault::LateWaitForProbe, "h19_a_probe_is_not_waited_for"),
    (Fault::TrimWithoutCompletion, "h60_trim_leaves_what_is_in_flight"),
    (Fault::TrimWithoutCompletion, "m4_only_what_has_finished_is_moved"),
    (Fault::RecordInCapture, "h50_what_a_capturing_stream_freed_is_left_alone"),
    (Fault::PerThreadStream, "h43_the_per_thread_stream_is_refused"),
];

/// The same of the tests on two devices.
const MUST_OF_PAIRS: &[(Fault, &str)] = &[
    (Fault::SkipWait, "s4_h09_the_next_owner_waits_for_a_late_writer_of_the_other_device"),
    (Fault::SkipWait, "s4_a_copy_waits_for_the_original"),
    (Fault::UnfinishedTaken, "s4_h34_what_the_other_device_still_writes_is_deferred"),
    (Fault::UnfinishedTaken, "s4_h34_what_a_stream_only_waits_for_is_deferred"),
    (Fault::SkipSynchronize, "s4_h34_a_scope_of_both_begins_when_the_other_devices_gate_opens"),
    (Fault::SkipSynchronize, "s4_h34_a_scope_begins_when_what_a_stream_only_waits_for_is_done"),
    (Fault::UseOnWithoutWait, "s4_h10_the_other_device_waits_for_what_home_has_queued"),
    (Fault::OwnDeviceForAll, "s4_h60_trim_leaves_what_the_other_device_still_writes"),
    (Fault::OwnDeviceForAll, "s4_m4_nothing_is_moved_that_the_other_device_still_writes"),
    (Fault::ForeignForgotten, "s4_h09_the_next_owner_waits_for_a_late_writer_of_the_other_device"),
    (Fault::ForeignForgotten, "s4_s7_close_waits_for_the_other_device"),
    (Fault::ForeignForgotten, "s4_the_originals_next_owner_waits_for_the_copy"),
    (
        Fault::EventOfAnotherContext,
        "s4_h09_the_next_owner_waits_for_a_late_writer_of_the_other_device",
    ),
    (Fault::SegmentsClosed, "s4_h10_the_other_device_waits_for_what_home_has_queued"),
    (Fault::CopyTooEarly, "s4_a_copy_waits_for_the_original"),
    (Fault::CopyNotNamed, "s4_the_originals_next_owner_waits_for_the_copy"),
];

/// Only a real device is slow enough to be met between the two steps.
const MUST_ON_GPU: &[(Fault, &str)] =
    &[(Fault::PublishEarly, "h21_an_event_is_seen_only_once_recorded")];

struct Outcome {
    fired: bool,
    /// What the test said.
    how: String,
    /// It failed because nothing could be proven.
    inconclusive: bool,
}

/// The tests of a device, by the names that the table has.
fn tests_of(device: &str) -> Vec<String> {
    let program = std::env::current_exe().expect("the program has a path");
    let listed = Command::new(program).args(["--list", "--include-ignored"]).output();
    let text = String::from_utf8(listed.expect("the tests can be listed").stdout).expect("text");
    let prefix = format!("{device}::");
    let name = |line: &str| Some(line.strip_prefix(&prefix)?.strip_suffix(": test")?.to_owned());
    text.lines().filter_map(name).collect()
}

/// Runs one test in a process of its own, with a fault or none.
fn run(device: &str, test: &str, fault: Option<Fault>) -> Outcome {
    let mut command = Command::new(std::env::current_exe().expect("the program has a path"));
    command.args(["--exact", &format!("{device}::{test}")]);
    command.args(["--include-ignored", "--test-threads=1", "--nocapture"]);
    command.env_remove(VARIABLE);
    // More queues of the hardware, so that fewer streams hold each other up.
    command.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
    command.envs(fault.map(|fault| (VARIABLE, fault.name())));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a process can be started");
    let mut stderr = child.stderr.take().expect("its output is a pipe");
    let reading = thread::spawn(move || {
        let mut text = Vec::new();
        // What was written until it ended is what counts.
        let _ = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let begun = Instant::now();
    let ended = loop {
        if let Some(status) = child.try_wait().expect("the process can be asked") {
            break Some(status);
        }
        if begun.elapsed() > PATIENCE {
            child.kill().expect("the process can be ended");
            child.wait().expect("it has ended");
            break None;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let text = reading.join().expect("reading does not panic");
    let Some(status) = ended else {
        return Outcome { fired: true, how: "it hangs".to_owned(), inconclusive: false };
    };
    // The line after the one that says where the first panic was.
    let mut lines = text.lines().skip_while(|line| !line.contains("panicked at"));
    let how = lines.nth(1).unwrap_or(if status.success() { "" } else { "it crashes" });
    let inconclusive = how.contains("INCONCLUSIVE");
    Outcome { fired: !status.success() && !inconclusive, how: how.to_owned(), inconclusive }
}

/// Prints the cells, and says which of those that must fire did not.
fn table(device: &str, must: &[(Fault, &str)], tests: &[String]) -> Vec<String> {
    let is_full = std::env::var(FULL).is_ok_and(|wanted| wanted == "full");
    let mut faults: Vec<Fault> = Vec::new();
    for (fault, test) in must {
        assert!(tests.iter().any(|own| own == test), "there is no test {test}");
        if faults.last() != Some(fault) {
            faults.push(*fault);
        }
    }
    let mut green = Vec::new();
    for fault in faults {
        for test in tests {
            let must = must.contains(&(fault, test.as_str()));
            if !must && !is_full {
                continue;
            }
            let Outcome { fired, how, inconclusive } = run(device, test, Some(fault));
            let (name, cell) = (fault.name(), inconclusive.then_some("inconclusive"));
            let row = json!({
                "device": device, "fault": name, "test": test, "fired": fired, "must": must,
                "how": how, "cell": cell,
            });
            println!("{row}");
            if must && !fired {
                green.push(format!("{name} / {test}: {how}"));
            }
        }
    }
    green
}

/// With no fault every test that the table names is green in a process of its own, too. Says which are not.
fn no_fault_no_failure(device: &str, must: &[(Fault, &str)]) -> Vec<String> {
    let mut seen: Vec<&str> = Vec::new();
    let mut failed = Vec::new();
    for (_, test) in must {
        if seen.contains(test) {
            continue;
        }
        seen.push(test);
        let Outcome { fired, how, inconclusive } = run(device, test, None);
        let row = json!({
            "device": device, "fault": null, "test": test, "fired": fired, "must": false,
            "how": how, "cell": inconclusive.then_some("inconclusive"),
        });
        println!("{row}");
        if fired || inconclusive {
            failed.push(format!("{test}: {how}"));
        }
    }
    failed
}

/// Prints the whole table of a device; only then a cell that is wrong makes the test fail.
fn every_fault_fires(device: &str, must: &[(Fault, &str)]) {
    let failed = no_fault_no_failure(device, must);
    let green = table(device, must, &tests_of(device));
    assert_eq!(failed, [""; 0], "fail with no fault");
    assert_eq!(green, [""; 0], "must fire, and are green");
}

#[test]
#[ignore = "needs a CUDA device"]
fn on_a_gpu_every_fault_fires() {
    let must: Vec<(Fault, &str)> = MUST.iter().chain(MUST_ON_GPU).copied().collect();
    every_fault_fires("gpu", &must);
}

#[test]
fn on_the_simulated_device_every_fault_fires() {
    every_fault_fires("simulated", MUST);
}

#[test]
#[ignore = "needs two CUDA devices"]
fn on_two_gpus_every_fault_fires() {
    if crate::cuda_rig::Gpu::open_pair().is_some() {
        every_fault_fires("gpu_pair", MUST_OF_PAIRS);
    }
}

#[test]
fn on_two_simulated_devices_every_fault_fires() {
    every_fault_fires("simulated_pair", MUST_OF_PAIRS);
}

//! Runs checks in a process of their own, in which a mistake is made: whatever it leads to, a panic in a
//! drop or a thread that waits for ever, ends there.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use streampool::fault::{Fault, VARIABLE};

/// Checks that would take most of the time and see nothing that the others do not.
const SKIPPED: [&str; 7] = [
    "the_table_of",
    "h56_",
    "h42_",
    "h04_4816",
    "h27_",
    "h59_a_process_may_exit",
    "h57_random_requests",
];

/// A process that has not ended by then hangs.
const PATIENCE: Duration = Duration::from_secs(40);

/// What became of the checks.
pub(crate) struct Outcome {
    /// The names of those that failed.
    pub(crate) failed: Vec<String>,
    /// How many did not.
    pub(crate) passed: usize,
}

/// Runs the checks of this file's program.
pub(crate) fn run_checks(fault: Option<Fault>) -> Outcome {
    let mut command = Command::new(std::env::current_exe().expect("the program has a path"));
    // One after the other: the name of each is printed before it begins.
    command.arg("--test-threads=1");
    for skipped in SKIPPED {
        command.args(["--skip", skipped]);
    }
    outcome(command, fault, PATIENCE)
}

/// Runs the models.
pub(crate) fn run_models(fault: Option<Fault>) -> Outcome {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.args(["loom", "--features", "faults", "--", "models", "--test-threads=1"]);
    // It includes the build.
    outcome(command, fault, PATIENCE * 20)
}

fn outcome(mut command: Command, fault: Option<Fault>, patience: Duration) -> Outcome {
    command.env_remove(VARIABLE);
    command.envs(fault.map(|fault| (VARIABLE, fault.name())));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("a process can be started");
    let mut stdout = child.stdout.take().expect("its output is a pipe");
    let reading = thread::spawn(move || {
        let mut text = Vec::new();
        // What was written until it ended is what counts.
        let _ = stdout.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let start = Instant::now();
    let ended = loop {
        if let Some(status) = child.try_wait().expect("the process can be asked") {
            break Some(status);
        }
        if start.elapsed() > patience {
            child.kill().expect("the process can be ended");
            child.wait().expect("it has ended");
            break None;
        }
        thread::sleep(Duration::from_millis(10));
    };
    let text = reading.join().expect("reading does not panic");
    let mut outcome = read(&text);
    let failed = ended.is_none_or(|status| !status.success());
    assert_eq!(failed, !outcome.failed.is_empty(), "{fault:?}: {text}");
    outcome.failed.sort();
    outcome
}

/// Reads what a test program prints. A check that was begun and did not end has ended the process, or was
/// ended with it.
fn read(text: &str) -> Outcome {
    let mut outcome = Outcome { failed: Vec::new(), passed: 0 };
    let mut begun: Option<String> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("test ")
            && let Some((name, _)) = rest.split_once(" ... ")
        {
            outcome.failed.extend(begun.take());
            // `name - should panic` is how a test's name ends that must panic.
            begun = Some(name.split(' ').next().unwrap_or(name).to_owned());
        }
        if line.ends_with("ok") && line.starts_with("test ") && begun.take().is_some() {
            outcome.passed += 1;
        } else if line.ends_with("FAILED") {
            outcome.failed.extend(begun.take());
        }
    }
    outcome.failed.extend(begun);
    outcome
}

//! Do the checks see anything? Each of the mistakes of `streampool::fault` is made in a process of its own,
//! which runs the hazards, the counters and random programs; at least one of them must fail. With no
//! mistake all of them pass.
//!
//! The table goes to the output, a JSON object a line: `{"fault": …, "caught_by": […]}`.
//!
//! `STREAMPOOL_FAULTS` names the faults to look at, by a part of their name, if not all.

mod checks;
mod process;

// The tests of other files, here to be run with a mistake: a file names its neighbours through `crate`.
#[path = "../hazards/capture.rs"]
mod capture;
#[path = "../hazards/common.rs"]
mod common;
#[path = "../counts.rs"]
mod counts;
#[path = "../hazards/device_copies.rs"]
mod device_copies;
#[path = "../hazards/device_errors.rs"]
mod device_errors;
#[path = "../hazards/device_pools.rs"]
mod device_pools;
#[path = "../hazards/device_scopes.rs"]
mod device_scopes;
#[path = "../hazards/device_threads.rs"]
mod device_threads;
#[path = "../hazards/devices.rs"]
mod devices;
#[path = "../hazards/end.rs"]
mod end;
#[path = "../hazards/errors.rs"]
mod errors;
#[path = "../hazards/memory.rs"]
mod memory;
#[path = "../hazards/ordering.rs"]
mod ordering;
#[path = "../hazards/remap.rs"]
mod remap;
#[path = "../hazards/remap_random.rs"]
mod remap_random;
#[path = "../hazards/scope.rs"]
mod scope;
#[path = "../hazards/sizes.rs"]
mod sizes;
#[path = "../hazards/streams.rs"]
mod streams;
#[path = "../hazards/threads.rs"]
mod threads;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use process::Outcome;
use streampool::fault::Fault;

/// What only `STREAMPOOL_FAULTS` asks for, or all faults.
fn wanted(needs_model: bool) -> Vec<Fault> {
    let part = std::env::var("STREAMPOOL_FAULTS").unwrap_or_default();
    let all = Fault::ALL.iter().copied();
    all.filter(|fault| fault.needs_model() == needs_model && fault.name().contains(&part)).collect()
}

/// Prints a row, and says whether it is empty.
fn print_row(fault: Fault, caught_by: &[String]) -> bool {
    println!("{}", serde_json::json!({ "fault": fault.name(), "caught_by": caught_by }));
    caught_by.is_empty()
}

#[test]
fn the_table_of_faults_has_no_empty_row() {
    let none = process::run_checks(None);
    assert_eq!(none.failed, [""; 0], "with no fault all is well");
    assert!(none.passed > 100, "only {} checks ran", none.passed);

    let faults = wanted(false);
    let next = AtomicUsize::new(0);
    // A check of what threads do between each other's calls mostly sleeps.
    let workers = thread::available_parallelism().map_or(8, |cores| (cores.get() * 4).min(16));
    let (send, results) = mpsc::channel::<(usize, Outcome)>();
    let mut outcomes = thread::scope(|scope| {
        for _ in 0..workers {
            let (send, next, faults) = (send.clone(), &next, &faults);
            scope.spawn(move || {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(fault) = faults.get(at)
                {
                    let outcome = process::run_checks(Some(*fault));
                    send.send((at, outcome)).expect("the table is being made");
                }
            });
        }
        drop(send);
        results.iter().collect::<Vec<_>>()
    });
    outcomes.sort_by_key(|(at, _)| *at);
    let rows = outcomes.iter().map(|(at, outcome)| (faults[*at], &outcome.failed));
    let empty: Vec<&str> =
        rows.filter(|(fault, by)| print_row(*fault, by)).map(|(fault, _)| fault.name()).collect();
    assert_eq!(empty, [""; 0], "nothing sees these faults");
}

/// The same for the faults that only a model sees. It builds the models, so it is left to who asks for
/// it by `STREAMPOOL_FAULT_MODELS`.
#[test]
fn the_table_of_models_has_no_empty_row() {
    if std::env::var_os("STREAMPOOL_FAULT_MODELS").is_none() {
        return;
    }
    assert_eq!(process::run_models(None).failed, [""; 0], "with no fault all is well");
    let mut empty = Vec::new();
    for fault in wanted(true) {
        if print_row(fault, &process::run_models(Some(fault)).failed) {
            empty.push(fault.name());
        }
    }
    assert_eq!(empty, [""; 0], "no model sees these faults");
}

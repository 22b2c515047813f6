//! The pool on a real device: `cargo bench --features cuda --bench gpu`, one JSON object a line.
//! `benches/README.md` says what each workload is, and how to run this without Rust.

mod allocations;
mod clear;
mod device;
mod options;
mod pairs;
mod random;
mod report;
mod sizes;
mod streams;
mod tail;
mod threads;
mod trace;

use std::env;
use std::error::Error;
use std::process::ExitCode;

use device::Bench;
use options::{Command, Options};

/// What a workload that could not be finished says.
type Failure = Box<dyn Error>;

/// One workload, under the name by which it is chosen. Its lines' names begin with that name.
struct Workload {
    name: &'static str,
    run: fn(&Bench) -> Result<(), Failure>,
}

const WORKLOADS: &[Workload] = &[
    Workload { name: "pair 512 KiB", run: |bench| pairs::pair(bench, 512 << 10, false) },
    Workload { name: "pair busy 512 KiB", run: |bench| pairs::pair(bench, 512 << 10, true) },
    Workload { name: "pair 65536 KiB", run: |bench| pairs::pair(bench, 64 << 20, false) },
    Workload { name: "clear 4816", run: clear::clear },
    Workload { name: "handoff 8 streams", run: pairs::handoff },
    Workload { name: "threads 1", run: |bench| threads::own_streams(bench, 1) },
    Workload { name: "threads 2", run: |bench| threads::own_streams(bench, 2) },
    Workload { name: "threads 4", run: |bench| threads::own_streams(bench, 4) },
    Workload { name: "threads 8", run: |bench| threads::own_streams(bench, 8) },
    Workload { name: "threads 16", run: |bench| threads::own_streams(bench, 16) },
    Workload { name: "threads 16 one stream", run: |bench| threads::one_stream(bench, 16) },
    Workload { name: "random sizes", run: sizes::random_sizes },
    Workload { name: "random_allocations 100000", run: allocations::random_allocations },
    Workload { name: "alive 100000", run: allocations::alive },
    Workload { name: "tail 1 thread", run: |bench| tail::tail(bench, 1) },
    Workload { name: "tail 16 threads", run: |bench| tail::tail(bench, 16) },
    Workload { name: "multi-stream", run: streams::multi_stream },
    Workload { name: "pipeline 8 streams", run: streams::pipeline },
];

/// Everything that was asked for has been measured.
const MEASURED: u8 = 0;
/// At least one workload could not be finished.
const FAILED: u8 = 1;
/// Nothing has been measured: wrong arguments, or no device.
const NOTHING: u8 = 2;

fn main() -> ExitCode {
    ExitCode::from(run())
}

fn run() -> u8 {
    let options = match Options::parse(env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}\n\n{}", options::USAGE);
            return NOTHING;
        }
    };
    match &options.command {
        Command::Help => println!("{}", options::USAGE),
        Command::List => WORKLOADS.iter().for_each(|workload| println!("{}", workload.name)),
        Command::Workloads(filter) => {
            let chosen: Vec<_> = WORKLOADS.iter().filter(|one| one.name.contains(filter)).collect();
            if chosen.is_empty() {
                eprintln!("no workload's name contains `{filter}`; `list` lists them");
                return NOTHING;
            }
            return measure(&options, chosen, |bench, workload| {
                (workload.name.to_owned(), (workload.run)(bench))
            });
        }
        Command::Traces(files) => {
            return measure(&options, files, |bench, file| {
                (format!("trace {file}"), trace::trace(bench, file))
            });
        }
    }
    MEASURED
}

fn measure<T>(
    options: &Options,
    items: impl IntoIterator<Item = T>,
    one: impl Fn(&Bench, T) -> (String, Result<(), Failure>),
) -> u8 {
    let bench = match Bench::open(options) {
        Ok(bench) => bench,
        Err(error) => {
            eprintln!("!!! NOTHING WAS MEASURED: no CUDA device can be used: {error}");
            return NOTHING;
        }
    };
    let mut code = MEASURED;
    for item in items {
        if let (name, Err(error)) = one(&bench, item) {
            eprintln!("!!! {name}: not measured: {error}");
            code = FAILED;
        }
    }
    code
}

//! What the pool's own code costs on the host, over a backend whose calls cost nothing.
//!
//! ```text
//! cargo bench --bench host_path            # a table
//! cargo bench --bench host_path -- --json  # one JSON object a line
//! ```
//!
//! Host clocks drift, so each figure comes with a unit of comparison that is measured in alternation
//! with it: a `parking_lot::Mutex<Vec<u64>>` is locked, pushed to, unlocked, locked, popped from and
//! unlocked. Only the ratio of the two carries from one machine, or one hour, to another.

mod workloads;

use std::process::ExitCode;
use std::time::Duration;

use lexopt::prelude::*;
use serde_json::json;
use workloads::{ALL, Effort, Workload};

#[path = "../../tests/common/null_backend.rs"]
mod null_backend;
#[path = "../../examples/common/table.rs"]
mod table;

use table::Table;

const HELP: &str = "\
What the pool's own code costs on the host, over a backend whose calls cost nothing.

Usage: cargo bench --bench host_path -- [OPTIONS] [WORKLOAD]...

Runs the named workloads, or all. Times are in nanoseconds an operation: the median, and the 99th
percentile, over batches (of 500 operations; for `clear`, of one layer). `calibration` is a locked push
and a locked pop of a vector, measured in alternation with each workload; of five runs the figures are
those of the one whose ratio of the two is the median.

      --json   one JSON object a line
  -h, --help   this text
";

/// How often a workload runs.
const ALTERNATIONS: usize = 5;

struct Options {
    json: bool,
    names: Vec<String>,
    /// Run by `cargo bench`, not by `cargo test`, which only wants to see that it runs.
    bench: bool,
}

struct Figures {
    ns_median: f64,
    ns_p99: f64,
    calibration_ns: f64,
}

fn main() -> ExitCode {
    let options = match parse(lexopt::Parser::from_env()) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("host_path: {error}\nTry `cargo bench --bench host_path -- --help`.");
            return ExitCode::from(2);
        }
    };
    let effort = if options.bench {
        let threads_for = Duration::from_millis(300);
        Effort { rounds: 21, layers: 64, threads_for, steps: 100_000 }
    } else {
        Effort { rounds: 1, layers: 1, threads_for: Duration::from_millis(1), steps: 1000 }
    };
    let alternations = if options.bench { ALTERNATIONS } else { 1 };
    let mut table =
        Table::new(&["workload", "median|ns", "p99|ns", "calibration|ns", "median /|calibration"]);
    for workload in ALL {
        if !options.names.is_empty() && !options.names.iter().any(|name| name == workload.name) {
            continue;
        }
        let figures = measure(workload, effort, alternations);
        if options.json {
            println!("{}", line(workload, &figures));
        }
        table.row(row(workload, &figures));
    }
    if !options.json {
        print!("{table}\nOne operation is:\n");
        for workload in ALL {
            println!("  {:<16} {}", workload.name, workload.operation);
        }
    }
    ExitCode::SUCCESS
}

fn parse(mut parser: lexopt::Parser) -> Result<Option<Options>, lexopt::Error> {
    let mut options = Options { json: false, names: Vec::new(), bench: false };
    while let Some(argument) = parser.next()? {
        match argument {
            Long("json") => options.json = true,
            Long("bench") => options.bench = true,
            Short('h') | Long("help") => return Ok(None),
            Value(name) => {
                let name = name.string()?;
                if !ALL.iter().any(|workload| workload.name == name) {
                    let names: Vec<&str> = ALL.iter().map(|workload| workload.name).collect();
                    let words = format!("no workload `{name}`; there are: {}", names.join(", "));
                    return Err(words.into());
                }
                options.names.push(name);
            }
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(options))
}

/// Runs a workload several times, and the calibration before each of its rounds, so that what disturbs
/// the host disturbs both. The figures are those of the run whose ratio of the two is the median; the
/// 99th percentile is of all runs.
fn measure(workload: &Workload, effort: Effort, alternations: usize) -> Figures {
    let (mut all, mut runs) = (Vec::new(), Vec::new());
    for _ in 0..alternations {
        let mut round = (workload.start)(effort);
        let (mut samples, mut calibrations) = (Vec::new(), Vec::new());
        loop {
            calibrations.append(&mut workloads::calibrate());
            let Some(mut more) = round() else { break };
            samples.append(&mut more);
        }
        runs.push((quantile(&mut samples, 0.5), quantile(&mut calibrations, 0.5)));
        all.append(&mut samples);
    }
    runs.sort_unstable_by(|left, right| (left.0 / left.1).total_cmp(&(right.0 / right.1)));
    let (ns_median, calibration_ns) = runs[runs.len() / 2];
    Figures { ns_median, ns_p99: quantile(&mut all, 0.99), calibration_ns }
}

fn quantile(samples: &mut [f64], fraction: f64) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    samples[((samples.len() - 1) as f64 * fraction).round() as usize]
}

fn line(workload: &Workload, figures: &Figures) -> serde_json::Value {
    json!({
        "workload": workload.name,
        "ns_median": figures.ns_median,
        "ns_p99": figures.ns_p99,
        "calibration_ns": figures.calibration_ns,
    })
}

fn row(workload: &Workload, figures: &Figures) -> Vec<String> {
    vec![
        workload.name.to_owned(),
        format!("{:.1}", figures.ns_median),
        format!("{:.1}", figures.ns_p99),
        format!("{:.1}", figures.calibration_ns),
        format!("{:.2}", figures.ns_median / figures.calibration_ns),
    ]
}

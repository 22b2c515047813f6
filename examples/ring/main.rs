//! A ring exchange over all devices: each step computes into a new buffer from the pool, hands it to the
//! next device, and frees what it no longer needs.
//!
//! ```text
//! cargo run --release --example ring -- --devices 4
//! ```

#[path = "../common/mod.rs"]
pub(crate) mod common;

#[cfg(feature = "cuda")]
pub(crate) mod chunk;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod machine;
pub(crate) mod measure;
pub(crate) mod options;
pub(crate) mod report;
pub(crate) mod sim;

use std::process::ExitCode;

use common::cli::{BackendName, Outcome, end, present};
use measure::{Measured, measure};
use options::Options;
use sim::Source;

fn main() -> ExitCode {
    end("ring", Options::parse(lexopt::Parser::from_env()).and_then(run))
}

fn run(options: Option<Options>) -> Outcome<()> {
    let Some(options) = options else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let measured = exchange(&options)?;
    let report = match options.json {
        true => report::json(&options, &measured),
        false => report::table(&options, &measured),
    };
    present(&report, measured.iter().filter_map(Measured::failure))
}

/// Runs the ring with each allocator.
pub(crate) fn exchange(options: &Options) -> Outcome<Vec<Measured>> {
    match options.backend {
        BackendName::Sim => {
            let ring = |name, source| measure(options, name, &sim::Ring::new(options, source)?);
            Ok(vec![
                ring("streampool copy", Source::Copies)?,
                ring("streampool peer", Source::Peers)?,
                ring("driver", Source::Driver)?,
            ])
        }
        #[cfg(feature = "cuda")]
        BackendName::Cuda => cuda::compare(options),
    }
}

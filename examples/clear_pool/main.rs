//! Clears a pool of a few thousand buffers once per layer, in five ways, and counts what each costs.
//!
//! ```text
//! cargo run --release --example clear_pool
//! ```

#[path = "../common/mod.rs"]
pub(crate) mod common;

pub(crate) mod baseline;
pub(crate) mod demo;
pub(crate) mod measure;
pub(crate) mod modes;
pub(crate) mod options;
pub(crate) mod report;

use std::process::ExitCode;

use common::cli::{BackendName, Outcome, end};
use common::device::{Device, Purpose, Sim};
use options::Options;

fn main() -> ExitCode {
    end("clear_pool", Options::parse(lexopt::Parser::from_env()).and_then(run))
}

fn run(options: Option<Options>) -> Outcome<()> {
    let Some(options) = options else {
        print!("{}", options::HELP);
        return Ok(());
    };
    match options.backend {
        BackendName::Sim => run_on(&options, |purpose| Ok(Sim::new(purpose))),
        #[cfg(feature = "cuda")]
        BackendName::Cuda => run_on(&options, |_| common::cuda::Cuda::open()),
    }
}

/// Runs the program on devices of one kind. `device` makes a device for one mode, so that counts and
/// hazards are told apart.
fn run_on<D: Device>(options: &Options, device: impl Fn(Purpose) -> Outcome<D>) -> Outcome<()> {
    if options.unsafe_demo {
        let shown = demo::show(options, device)?;
        print!("{shown}");
        return Ok(());
    }
    let measured = measure::measure(options, device)?;
    if options.json {
        print!("{}", report::json(options, &measured));
    } else {
        print!("{}", report::table(options, &measured));
    }
    Ok(())
}

//! Replays recorded allocation traces on a pool, and tells what they cost: memory, driver calls, time.
//!
//! ```text
//! cargo run --release --example replay -- traces/streams.csv.gz
//! ```

#[path = "../common/mod.rs"]
pub(crate) mod common;

pub(crate) mod curves;
pub(crate) mod export;
pub(crate) mod options;
pub(crate) mod pass;
pub(crate) mod plot;
pub(crate) mod report;
pub(crate) mod snapshot;
pub(crate) mod trace;

use std::process::ExitCode;

use common::cli::{BackendName, Outcome, end};
use common::device::{Device, Sim};
use options::Options;
use plot::Picture;
use report::Replayed;
use trace::Trace;

fn main() -> ExitCode {
    end("replay", Options::parse(lexopt::Parser::from_env()).and_then(run))
}

pub(crate) fn run(options: Option<Options>) -> Outcome<()> {
    let Some(options) = options else {
        print!("{}", options::HELP);
        return Ok(());
    };
    // All files first: a mistake in the last one should not cost the replay of the others.
    let traces = options.files.iter().map(|file| Trace::read(file)).collect::<Outcome<Vec<_>>>()?;
    // And the file that is to be written, for the same reason.
    let mut picture = options.plot.as_deref().map(Picture::open).transpose()?;
    let mut files = export::Files::open(&options)?;
    for trace in &traces {
        let replayed = match options.backend {
            BackendName::Sim => replay(&options, trace, &Sim::new(options.purpose()))?,
            #[cfg(feature = "cuda")]
            BackendName::Cuda => replay(&options, trace, &common::cuda::Cuda::open()?)?,
        };
        if let Some((picture, curves)) = picture.take().zip(replayed.curves.as_ref()) {
            picture.write(&plot::draw(&plot::title(&options, &replayed), curves)?)?;
        }
        if let Some(exported) = &replayed.exported {
            files.write(exported)?;
        }
        if options.json {
            println!("{}", report::json(&options, &replayed));
        } else {
            print!("{}", report::text(&options, &replayed));
        }
    }
    Ok(())
}

/// Replays one trace: a cold pass from an empty pool, then a warm one.
pub(crate) fn replay<D: Device>(options: &Options, trace: &Trace, device: &D) -> Outcome<Replayed> {
    let mut program = pass::Program::new(options, trace, device)?;
    let cold = program.run("cold")?;
    let device_peak_bytes = device.memory_peak();
    let warm = program.run("warm")?;
    Ok(Replayed {
        trace: trace.name.clone(),
        operations: trace.operations.len(),
        streams: trace.streams,
        peak_live_bytes: trace.peak_live_bytes,
        limit_bytes: options.limit.bytes(trace.peak_live_bytes),
        device_peak_bytes,
        device_peak_bytes_warm: device.memory_peak(),
        cold,
        warm,
        hazards: device.hazards(),
        first_hazard: device.first_hazard(),
        exported: program.exported.take(),
        curves: program.curves.take(),
    })
}

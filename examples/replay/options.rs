//! The options of `replay`.

use std::path::PathBuf;
use std::str::FromStr;

use lexopt::prelude::*;
use streampool::{Growth, Reuse};

use super::common::cli::{BackendName, ByteSize, Failure, Outcome};
use super::common::device::Purpose;

pub(crate) const HELP: &str = "\
Replays recorded allocation traces on a pool, and tells what they cost: memory, driver calls, time.

Each trace is replayed twice, each operation on the stream that it was recorded on: a cold pass from an
empty pool, then a warm pass with what the pool has by then. traces/README.md describes the format; the
repository has one trace, traces/streams.csv.gz. A pickle of torch.cuda.memory._snapshot() is read too.

Usage: cargo run --release --example replay -- [OPTIONS] FILE...

      --kernels KIND   use: a kernel writes each buffer after it is allocated and another reads it
                       before it is freed, so that work is in flight and hazards mean something;
                       none: nothing runs, and only the pool is timed [default: use]
      --reuse POLICY   balanced, memory (wait rather than grow) or speed (grow rather than wait)
                       [default: balanced]
      --growth KIND    virtual (mapped granules) or segments [default: virtual]
      --limit BYTES    the most that the pool takes from the device, as 80M or 8G [default: none]
      --limit-over-live RATIO
                       the same, as a multiple of the trace's peak of live bytes: 1.03 leaves 3 %
                       for rounding and fragments. A trace that does not fit ends in an error
      --backend NAME   the device: sim, a simulated one, or cuda, a GPU (when built with
                       `--features cuda`) [default: sim]
      --plot FILE      draws a picture (SVG) of one trace: the memory that the pool has taken, what of
                       it is in buffers, and what the trace asked for, over the operations of both
                       passes. Each operation is then timed by itself, which makes the times rougher
      --snapshot FILE  writes, of one trace, what is where in the memory at the end of the warm pass and
                       the allocations that led there, as PyTorch's memory viewer reads it
                       (https://pytorch.org/memory_viz; scripts/open-snapshot.py)
      --perfetto FILE  writes, of one trace, what happened on each stream, as a trace for
                       https://ui.perfetto.dev. Both make the times rougher: events are noted
      --json           one JSON object a line for each trace. Memory and driver calls are those of the
                       cold pass, hazards those of both
  -h, --help           this text
";

/// What runs on the device between allocations and frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernels {
    Use,
    None,
}

impl Kernels {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kernels::Use => "use",
            Kernels::None => "none",
        }
    }
}

impl FromStr for Kernels {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "use" => Ok(Kernels::Use),
            "none" => Ok(Kernels::None),
            _ => Err("use or none is wanted".to_owned()),
        }
    }
}

/// The most that the pool takes from the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    None,
    Bytes(u64),
    /// A multiple of the trace's peak of live bytes.
    OverLive(f64),
}

impl Limit {
    /// In bytes, for a trace with this peak of live bytes.
    pub(crate) fn bytes(self, peak_live_bytes: u64) -> Option<u64> {
        match self {
            Limit::None => None,
            Limit::Bytes(bytes) => Some(bytes),
            // A float above all integers becomes the largest.
            Limit::OverLive(ratio) => Some((peak_live_bytes as f64 * ratio) as u64),
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) kernels: Kernels,
    pub(crate) reuse: Reuse,
    pub(crate) growth: Growth,
    pub(crate) limit: Limit,
    pub(crate) backend: BackendName,
    pub(crate) plot: Option<PathBuf>,
    pub(crate) snapshot: Option<PathBuf>,
    pub(crate) perfetto: Option<PathBuf>,
    pub(crate) json: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            files: Vec::new(),
            kernels: Kernels::Use,
            reuse: Reuse::default(),
            growth: Growth::default(),
            limit: Limit::None,
            backend: BackendName::Sim,
            plot: None,
            snapshot: None,
            perfetto: None,
            json: false,
        }
    }
}

impl Options {
    /// With no kernels there is nothing that could be unordered.
    pub(crate) fn purpose(&self) -> Purpose {
        match self.kernels {
            Kernels::Use => Purpose::Check,
            Kernels::None => Purpose::Time,
        }
    }

    /// Reads the command line; `None` when it asks for help.
    pub(crate) fn parse(mut parser: lexopt::Parser) -> Outcome<Option<Options>> {
        let mut options = Options::default();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("kernels") => options.kernels = parser.value()?.parse()?,
                Long("reuse") => options.reuse = parser.value()?.parse_with(reuse)?,
                Long("growth") => options.growth = parser.value()?.parse_with(growth)?,
                Long("limit") => {
                    let bytes = parser.value()?.parse::<ByteSize>()?.0;
                    options.set_limit(Limit::Bytes(bytes))?;
                }
                Long("limit-over-live") => {
                    let ratio = parser.value()?.parse_with(ratio)?;
                    options.set_limit(Limit::OverLive(ratio))?;
                }
                Long("plot") => options.plot = Some(parser.value()?.into()),
                Long("snapshot") => options.snapshot = Some(parser.value()?.into()),
                Long("perfetto") => options.perfetto = Some(parser.value()?.into()),
                Long("backend") => options.backend = parser.value()?.parse()?,
                Long("json") => options.json = true,
                Short('h') | Long("help") => return Ok(None),
                Value(file) => options.files.push(file.into()),
                other => return Err(other.unexpected().into()),
            }
        }
        if options.files.is_empty() {
            let words = "no trace is named; the repository has traces/streams.csv.gz";
            return Err(Failure::Usage(words.to_owned()));
        }
        if options.plot.is_some() && options.files.len() > 1 {
            let words = "--plot draws one trace: name one file, and run it once for each";
            return Err(Failure::Usage(words.to_owned()));
        }
        if options.exports() && options.files.len() > 1 {
            let words = "--snapshot and --perfetto write of one trace: name one file";
            return Err(Failure::Usage(words.to_owned()));
        }
        Ok(Some(options))
    }

    /// Whether the pool has to note what it does, to be written to a file.
    pub(crate) fn exports(&self) -> bool {
        self.snapshot.is_some() || self.perfetto.is_some()
    }

    fn set_limit(&mut self, limit: Limit) -> Outcome<()> {
        if self.limit != Limit::None {
            let words = "one limit is wanted: --limit or --limit-over-live, once";
            return Err(Failure::Usage(words.to_owned()));
        }
        self.limit = limit;
        Ok(())
    }

    /// The policy's name.
    pub(crate) fn reuse_name(&self) -> &'static str {
        match self.reuse {
            Reuse::Memory => "memory",
            Reuse::Speed => "speed",
            _ => "balanced",
        }
    }
}

fn reuse(name: &str) -> Result<Reuse, &'static str> {
    match name {
        "balanced" => Ok(Reuse::Balanced),
        "memory" => Ok(Reuse::Memory),
        "speed" => Ok(Reuse::Speed),
        _ => Err("balanced, memory or speed is wanted"),
    }
}

fn ratio(text: &str) -> Result<f64, &'static str> {
    match text.parse::<f64>() {
        Ok(ratio) if ratio.is_finite() && ratio >= 1.0 => Ok(ratio),
        _ => Err("a number of at least 1 is wanted, as 1.03"),
    }
}

fn growth(name: &str) -> Result<Growth, &'static str> {
    match name {
        "virtual" => Ok(Growth::Virtual),
        "segments" => Ok(Growth::Segments),
        _ => Err("virtual or segments is wanted"),
    }
}

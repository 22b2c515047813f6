//! The options of `clear_pool`.

use lexopt::prelude::*;

use super::common::cli::{BackendName, Failure, Outcome, Positive};

pub(crate) const HELP: &str = "\
Clears a pool once per layer, in five ways, and counts what each costs.

A program uses some thousands of buffers per layer, spread over many streams, and frees them all when
the layer is done. This measures only that clear: the driver calls that it makes and the host time that
it takes.

Usage: cargo run --release --example clear_pool -- [OPTIONS]

      --layers N       layers to run [default: 64]
      --buffers N      buffers of 512 KiB per layer [default: 4816]
      --streams N      streams that they are spread over [default: 37]
      --backend NAME   the device: sim, a simulated one, or cuda, a GPU (when built with
                       `--features cuda`) [default: sim]
      --json           one JSON object a line for each mode, instead of the table
      --unsafe-demo    show what goes wrong with mode `flag`, and not with mode `scope`, when work is
                       launched after the synchronize
  -h, --help           this text
";

/// What each buffer holds, in bytes.
pub(crate) const BUFFER_BYTES: u64 = 512 << 10;

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) layers: usize,
    pub(crate) buffers: usize,
    pub(crate) streams: usize,
    pub(crate) backend: BackendName,
    pub(crate) json: bool,
    pub(crate) unsafe_demo: bool,
}

impl Default for Options {
    /// The case that the crate was made for.
    fn default() -> Options {
        Options {
            layers: 64,
            buffers: 4816,
            streams: 37,
            backend: BackendName::Sim,
            json: false,
            unsafe_demo: false,
        }
    }
}

impl Options {
    /// Reads the command line; `None` when it asks for help.
    pub(crate) fn parse(mut parser: lexopt::Parser) -> Outcome<Option<Options>> {
        let mut options = Options::default();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("layers") => options.layers = parser.value()?.parse::<Positive>()?.0,
                Long("buffers") => options.buffers = parser.value()?.parse::<Positive>()?.0,
                Long("streams") => options.streams = parser.value()?.parse::<Positive>()?.0,
                Long("backend") => options.backend = parser.value()?.parse()?,
                Long("json") => options.json = true,
                Long("unsafe-demo") => options.unsafe_demo = true,
                Short('h') | Long("help") => return Ok(None),
                other => return Err(other.unexpected().into()),
            }
        }
        if options.json && options.unsafe_demo {
            return Err(Failure::Usage("--unsafe-demo prints no JSON".to_owned()));
        }
        Ok(Some(options))
    }
}

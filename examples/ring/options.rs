//! The options of `ring`.

use lexopt::prelude::*;

use super::common::cli::{BackendName, ByteSize, Failure, Outcome, Positive};

pub(crate) const HELP: &str = "\
A ring exchange over all devices, with every buffer from a pool of its own device.

Each device begins with a chunk. In each step it computes the chunk's next state into a new buffer, frees
the old one, and hands the new one to the next device. Three ways: the pool copies the buffer there
(`copy_to`); the pool lets the next device's kernel read it where it is (`use_on`); and, for comparison,
without a pool: on a GPU cudarc's own allocation, on the simulated devices the driver's, with explicit
synchronizes before a buffer is handed over and before it is freed. Every word is checked in the end, and on
the simulated devices every use.

Usage: cargo run --release --example ring -- [OPTIONS]

      --devices N      places in the ring, at most 64 [default: 4; on GPUs, as many as there are]. With
                       fewer GPUs than places, places share a GPU, each with a pool of its own: what is
                       handed over then stays within its memory
      --steps N        steps of a round [default: 32]
      --bytes SIZE     the size of a chunk, in whole words of 4 bytes [default: 16M]
      --rounds N       rounds of which the time is taken, after one to warm up [default: 5]
      --backend NAME   the devices: sim, simulated ones, whose time is virtual, or cuda, GPUs (when built
                       with `--features cuda`) [default: sim]
      --json           one JSON object a line for each way, instead of the table
  -h, --help           this text
";

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Places in the ring, if it was said how many.
    pub(crate) devices: Option<usize>,
    pub(crate) steps: usize,
    pub(crate) bytes: u64,
    pub(crate) rounds: usize,
    pub(crate) backend: BackendName,
    pub(crate) json: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            devices: None,
            steps: 32,
            bytes: 16 << 20,
            rounds: 5,
            backend: BackendName::Sim,
            json: false,
        }
    }
}

impl Options {
    /// Reads the command line; `None` when it asks for help.
    pub(crate) fn parse(mut parser: lexopt::Parser) -> Outcome<Option<Options>> {
        let mut options = Options::default();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("devices") => options.devices = Some(parser.value()?.parse::<Positive>()?.0),
                Long("steps") => options.steps = parser.value()?.parse::<Positive>()?.0,
                Long("bytes") => options.bytes = parser.value()?.parse::<ByteSize>()?.0,
                Long("rounds") => options.rounds = parser.value()?.parse::<Positive>()?.0,
                Long("backend") => options.backend = parser.value()?.parse()?,
                Long("json") => options.json = true,
                Short('h') | Long("help") => return Ok(None),
                other => return Err(other.unexpected().into()),
            }
        }
        if options.devices.is_some_and(|devices| devices > 64) {
            return Err(Failure::Usage("a ring has at most 64 places".to_owned()));
        }
        if !options.bytes.is_multiple_of(4) {
            return Err(Failure::Usage("a chunk is whole words of 4 bytes".to_owned()));
        }
        Ok(Some(options))
    }

    /// Places in the ring, of so many devices that there are.
    pub(crate) fn ranks(&self, there: usize) -> usize {
        self.devices.unwrap_or(there)
    }

    /// Words of a chunk.
    #[cfg(feature = "cuda")]
    pub(crate) fn words(&self) -> usize {
        (self.bytes / 4) as usize
    }
}

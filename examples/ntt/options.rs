//! The options of `ntt`.

use lexopt::prelude::*;

use super::common::cli::{BackendName, Failure, Outcome, Positive};

pub(crate) const HELP: &str = "\
Multiplies polynomials of many limbs on many streams, with every buffer from the pool.

A polynomial has n coefficients, each a number of limbs x 60 bits, kept as its residues modulo as many
primes: a limb is n words of 8 bytes, and has a stream. In each layer a batch of polynomials is multiplied
by another one, modulo X^n + 1, by number-theoretic transforms: an upload, transforms, products, inverse
transforms, each step into a new buffer. Then the last limb is dropped, as homomorphic encryption does:
each other limb reads it, on its own stream. In the end a layer's buffers are cleared in one scope.

The same program runs on other allocators too: on a GPU on cudarc's own, with its events and without,
from the driver's default pool and from one that keeps what is free; on the simulated device on the driver's
allocate and free. The result is compared with what the processor computes.

Usage: cargo run --release --example ntt -- [OPTIONS]

      --n N            coefficients, a power of two from 16 to 131072 [default: 65536]
      --limbs N        limbs of the polynomials in the first layer, at most 1000 [default: 25]
      --streams N      streams that the limbs are spread over, at most 1000 [default: 16]
      --layers N       layers: less than limbs, since each drops one [default: 4]
      --batch N        polynomials that are multiplied in each layer [default: 2]
      --rounds N       runs of which the time is taken, each allocator's in turn [default: 7]
      --no-check       do not compute the result on the processor, nor compare with it; a simulated
                       device then computes nothing
      --backend NAME   the device: sim, a simulated one, or cuda, a GPU (when built with
                       `--features cuda`) [default: sim]
      --json           one JSON object a line for each allocator, instead of the table
  -h, --help           this text
";

/// The inputs are kept on the host, once more for each allocator where a GPU reads them, and on the device.
const MOST_INPUT_BYTES: u64 = 8 << 30;

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) n: usize,
    pub(crate) limbs: usize,
    pub(crate) streams: usize,
    pub(crate) layers: usize,
    pub(crate) batch: usize,
    pub(crate) rounds: usize,
    pub(crate) check: bool,
    pub(crate) backend: BackendName,
    pub(crate) json: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            n: 1 << 16,
            limbs: 25,
            streams: 16,
            layers: 4,
            batch: 2,
            rounds: 7,
            check: true,
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
                Long("n") => options.n = parser.value()?.parse_with(coefficients)?,
                Long("limbs") => options.limbs = parser.value()?.parse_with(up_to_1000)?,
                Long("streams") => options.streams = parser.value()?.parse_with(up_to_1000)?,
                Long("layers") => options.layers = parser.value()?.parse::<Positive>()?.0,
                Long("batch") => options.batch = parser.value()?.parse_with(up_to_1000)?,
                Long("rounds") => options.rounds = parser.value()?.parse_with(up_to_1000)?,
                Long("no-check") => options.check = false,
                Long("backend") => options.backend = parser.value()?.parse()?,
                Long("json") => options.json = true,
                Short('h') | Long("help") => return Ok(None),
                other => return Err(other.unexpected().into()),
            }
        }
        if options.layers >= options.limbs {
            let Options { layers, limbs, .. } = options;
            return Err(Failure::Usage(format!(
                "{layers} layers need at least {} limbs, since each drops one, and there are {limbs}",
                layers.saturating_add(1)
            )));
        }
        let bytes = options.input_bytes();
        if bytes > MOST_INPUT_BYTES {
            let (gib, most) = (bytes.div_ceil(1 << 30), MOST_INPUT_BYTES >> 30);
            let words =
                format!("the inputs would take {gib} GiB of the host's memory: at most {most}");
            return Err(Failure::Usage(words));
        }
        Ok(Some(options))
    }

    /// What the factors of the transforms and the polynomials take on the host.
    fn input_bytes(&self) -> u64 {
        let Options { n, limbs, layers, batch, .. } = *self;
        let multipliers: usize = (0..layers).map(|layer| limbs - layer).sum();
        // A limb's factors are twice n words of two numbers.
        let words = n * (4 * limbs + batch * limbs + multipliers);
        (words * size_of::<u64>()) as u64
    }
}

fn coefficients(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if n.is_power_of_two() && (16..=1 << 17).contains(&n) => Ok(n),
        _ => Err("a power of two from 16 to 131072 is wanted".to_owned()),
    }
}

fn up_to_1000(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(number) if (1..=1000).contains(&number) => Ok(number),
        _ => Err("a whole number from 1 to 1000 is wanted".to_owned()),
    }
}

//! Multiplies polynomials of many limbs on many streams, with every buffer from the pool.
//!
//! ```text
//! cargo run --release --example ntt
//! ```

#[path = "../common/mod.rs"]
pub(crate) mod common;

pub(crate) mod account;
pub(crate) mod check;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(feature = "cuda")]
pub(crate) mod driver_pool;
pub(crate) mod inputs;
pub(crate) mod kernels;
pub(crate) mod machine;
pub(crate) mod measure;
pub(crate) mod modular;
pub(crate) mod options;
pub(crate) mod program;
pub(crate) mod reference;
pub(crate) mod report;
pub(crate) mod ring;
pub(crate) mod sim;
#[cfg(feature = "cuda")]
pub(crate) mod slices;

use std::process::ExitCode;

use common::cli::{BackendName, Failure, Outcome, end, present};
use common::device::Purpose;
use inputs::Inputs;
use measure::{Allocator, Contestant, Measured, measure};
use options::Options;
use program::Program;
use ring::Ring;
use sim::{Sim, Source};

fn main() -> ExitCode {
    end("ntt", Options::parse(lexopt::Parser::from_env()).and_then(run))
}

fn run(options: Option<Options>) -> Outcome<()> {
    let Some(options) = options else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let measured = multiply(&options)?;
    let report = match options.json {
        true => report::json(&options, &measured),
        false => report::table(&options, &measured),
    };
    present(&report, measured.iter().filter_map(Measured::failure))
}

/// Runs the program on all allocators of the device.
pub(crate) fn multiply(options: &Options) -> Outcome<Vec<Measured>> {
    let Options { n, limbs, .. } = *options;
    let Some(ring) = Ring::new(n, limbs) else {
        let words = format!("there are not {limbs} primes of 60 bits that are 1 modulo {}", 2 * n);
        return Err(Failure::Usage(words));
    };
    let inputs = Inputs::new(&ring, options.batch, options.layers);
    let expected = options.check.then(|| reference::results(&ring, &inputs));
    let expected = expected.as_deref();
    match options.backend {
        BackendName::Sim => {
            let sources = [Source::Pool, Source::Driver];
            let allocators = [
                Allocator { name: "streampool", meaning: "the pool, on the simulated device" },
                Allocator {
                    name: "driver",
                    meaning: "a driver call for each buffer; a free waits for the device, as cudaFree does",
                },
            ];
            measure(options, &allocators, false, |index, purpose| {
                // One run is enough to see that the numbers are right; all are looked at for hazards.
                let compute = options.check && purpose == Purpose::Check;
                let machine = Sim::new(sources[index], compute, options.streams)?;
                let expected = expected.filter(|_| compute);
                Ok(Box::new(Program::new(machine, &ring, &inputs, expected)?)
                    as Box<dyn Contestant>)
            })
        }
        #[cfg(feature = "cuda")]
        BackendName::Cuda => cuda::compare(options, &ring, &inputs, expected),
    }
}

//! Runs every mode, layer by layer, and measures the clears.

use std::time::Instant;

use super::common::cli::Outcome;
use super::common::device::{Access, Counts, Device, Purpose};
use super::modes::{Mode, Program};
use super::options::{BUFFER_BYTES, Options};

/// How long a kernel on one buffer takes, in nanoseconds.
const KERNEL_NS: u64 = 3000;

/// What one mode has cost.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) mode: Mode,
    /// The most calls of each sort that any clear has made.
    pub(crate) calls: Counts,
    /// Host time of the median clear, in milliseconds.
    pub(crate) clear_ms: f64,
    /// Unordered uses found; `None` from a device that cannot tell.
    pub(crate) hazards: Option<u64>,
}

/// One mode's program, as far as it has run.
struct Run<D: Device> {
    program: Program<D>,
    calls: Counts,
    clears_ns: Vec<u64>,
}

/// Runs all layers in all modes, twice: on devices that look for hazards, and then, for the time, on
/// devices that do not. What a device that checks does between two clears would be most of what is in
/// the processor's caches when a clear begins.
pub(crate) fn measure<D: Device>(
    options: &Options,
    device: impl Fn(Purpose) -> Outcome<D>,
) -> Outcome<Vec<Measured>> {
    let checked = run(options, || device(Purpose::Check))?;
    let timed = run(options, || device(Purpose::Time))?;
    Ok(checked.into_iter().zip(timed).map(|(checked, timed)| checked.finish(timed)).collect())
}

/// The modes take turns layer by layer, so that what disturbs the host disturbs them all alike.
fn run<D: Device>(options: &Options, device: impl Fn() -> Outcome<D>) -> Outcome<Vec<Run<D>>> {
    let mut runs = Vec::new();
    for mode in Mode::ALL {
        let program = Program::new(device()?, mode, options.streams, BUFFER_BYTES)?;
        runs.push(Run { program, calls: Counts::default(), clears_ns: Vec::new() });
    }
    for layer in 0..options.layers {
        for turn in 0..runs.len() {
            // Who comes first, and after whom, changes from layer to layer.
            let at = (layer + turn) % Mode::ALL.len();
            runs[at].layer(options.buffers)?;
        }
    }
    Ok(runs)
}

impl<D: Device> Run<D> {
    fn layer(&mut self, buffers: usize) -> Outcome<()> {
        let program = &mut self.program;
        program.allocate(buffers, 0)?;
        program.work(Access::Write, KERNEL_NS)?;
        // The layer is done, and the program knows it, before its pool is cleared.
        program.device.synchronize()?;
        program.give_back();

        let before = program.device.counts();
        let start = Instant::now();
        program.clear()?;
        let ns = start.elapsed().as_nanos() as u64;
        self.calls = self.calls.max(program.device.counts() - before);
        self.clears_ns.push(ns);
        Ok(())
    }

    fn finish(self, mut timed: Run<D>) -> Measured {
        timed.clears_ns.sort_unstable();
        let median = timed.clears_ns[timed.clears_ns.len() / 2];
        Measured {
            mode: self.program.mode(),
            calls: self.calls.max(timed.calls),
            clear_ms: median as f64 / 1e6,
            hazards: self.program.device.hazards(),
        }
    }
}

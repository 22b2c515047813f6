//! The program, and what a run of it took.

use super::common::cli::Outcome;
use super::common::device::Counts;
use super::machine::Machine;
use super::options::Options;

/// One allocator's runs.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) name: &'static str,
    /// Places in the ring, and whether some share a device.
    pub(crate) ranks: usize,
    pub(crate) shared: bool,
    /// The median over the rounds, in microseconds.
    pub(crate) step_us: f64,
    /// Of one warm round.
    pub(crate) calls: Counts,
    pub(crate) memory_peak: Option<u64>,
    /// Words that are not what the processor computes.
    pub(crate) wrong: u64,
    pub(crate) hazards: Option<u64>,
}

impl Measured {
    /// What went wrong, if anything did.
    pub(crate) fn failure(&self) -> Option<String> {
        let hazards = self.hazards.unwrap_or(0);
        (self.wrong > 0 || hazards > 0)
            .then(|| format!("{}: {} wrong words, {hazards} hazards", self.name, self.wrong))
    }
}

/// Runs the ring: once to warm up, then once a round.
pub(crate) fn measure<M: Machine>(
    options: &Options,
    name: &'static str,
    machine: &M,
) -> Outcome<Measured> {
    let (mut times, mut wrong, mut calls) = (Vec::new(), 0, Counts::default());
    for round in 0..=options.rounds {
        let before = machine.calls();
        let (ns, bad, after) = run(options.steps, machine)?;
        wrong += bad;
        if round > 0 {
            times.push(ns);
            calls = after - before;
        }
    }
    times.sort_unstable();
    let step_us = times[times.len() / 2] as f64 / options.steps as f64 / 1e3;
    let (memory_peak, hazards) = (machine.memory_peak(), machine.hazards());
    let (ranks, shared) = (machine.ranks(), machine.is_shared());
    Ok(Measured { name, ranks, shared, step_us, calls, memory_peak, wrong, hazards })
}

/// All chunks go round: how long the steps took, how many words are wrong in the end, and the calls made
/// when the last step had been submitted and had finished.
fn run<M: Machine>(steps: usize, machine: &M) -> Outcome<(u64, u64, Counts)> {
    let ranks = machine.ranks();
    let mut chunks: Vec<M::Chunk> =
        (0..ranks).map(|rank| machine.start(rank)).collect::<Outcome<_>>()?;
    machine.synchronize()?;
    let begun = machine.now();
    for step in 0..steps {
        let mut computed = Vec::with_capacity(ranks);
        for (rank, last) in chunks.into_iter().enumerate() {
            let origin = (rank + ranks - step % ranks) % ranks;
            computed.push(machine.compute(rank, step, origin, last)?);
        }
        chunks = Vec::with_capacity(ranks);
        // What the last has computed comes to the first.
        computed.rotate_right(1);
        for (rank, chunk) in computed.into_iter().enumerate() {
            chunks.push(machine.hand_over(chunk, (rank + ranks - 1) % ranks, rank)?);
        }
    }
    machine.synchronize()?;
    let (ns, calls) = (machine.now() - begun, machine.calls());
    let mut wrong = 0;
    for (rank, chunk) in chunks.into_iter().enumerate() {
        let origin = (rank + ranks - steps % ranks) % ranks;
        wrong += machine.wrong(chunk, rank, origin, steps)?;
    }
    machine.synchronize()?;
    Ok((ns, wrong, calls))
}

//! Runs the program on each allocator: once to check it, then again and again for the time.

use super::account::Watch;
use super::check::Wrong;
use super::common::cli::{Failure, Outcome};
use super::common::device::{Counts, Purpose};
use super::machine::Machine;
use super::options::Options;
use super::program::{Program, Round};

/// Runs in which the allocator's calls are timed, one by one.
const WATCHED: usize = 3;

/// Runs after the first, on the same allocator, whose memory is looked at too.
const WARM: usize = 2;

/// An allocator to be compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocator {
    pub(crate) name: &'static str,
    /// Where its memory comes from, in words.
    pub(crate) meaning: &'static str,
}

/// The program on one allocator.
pub(crate) trait Contestant {
    fn round(&mut self, watch: Watch) -> Outcome<Round>;
    fn diagnose(&mut self) -> Outcome<String>;
    /// The most memory that was seen taken, in bytes, since this was asked last.
    fn take_memory_peak(&self) -> u64;
    fn hazards(&self) -> Option<u64>;
    fn first_hazard(&self) -> Option<String>;
    fn close(self: Box<Self>) -> Outcome<()>;
}

impl<M: Machine> Contestant for Program<'_, M> {
    fn round(&mut self, watch: Watch) -> Outcome<Round> {
        self.run(watch)
    }

    fn diagnose(&mut self) -> Outcome<String> {
        Program::diagnose(self)
    }

    fn take_memory_peak(&self) -> u64 {
        let peak = self.machine().memory_peak();
        self.machine().reset_memory_peak();
        peak
    }

    fn hazards(&self) -> Option<u64> {
        self.machine().hazards()
    }

    fn first_hazard(&self) -> Option<String> {
        self.machine().first_hazard()
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        Program::close(*self)
    }
}

/// What the program has cost on one allocator.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) allocator: Allocator,
    /// In all runs that compute: on the simulated device those whose memory is looked at.
    pub(crate) wrong: Option<Wrong>,
    /// Which kernel is to blame, when something is wrong.
    pub(crate) diagnosis: Option<String>,
    pub(crate) live_peak_bytes: u64,
    /// Of a cold run: the first, when the allocator has nothing but the factors of the transforms.
    pub(crate) device_peak_bytes: u64,
    /// The most in the warm runs that follow it, with what the allocator has kept.
    pub(crate) warm_device_peak_bytes: u64,
    /// In all runs.
    pub(crate) hazards: Option<u64>,
    pub(crate) first_hazard: Option<String>,
    /// Of a warm run.
    pub(crate) allocations: u64,
    pub(crate) calls: Option<Counts>,
    /// The median run's.
    pub(crate) seconds: f64,
    /// The part of the time that is spent in the allocator's calls.
    pub(crate) allocator_share: f64,
    /// How much faster than the last allocator: the median of the rounds' ratios.
    pub(crate) speed: f64,
}

impl Measured {
    pub(crate) fn taken_over_live(&self) -> f64 {
        self.device_peak_bytes as f64 / self.live_peak_bytes as f64
    }

    pub(crate) fn warm_taken_over_live(&self) -> f64 {
        self.warm_device_peak_bytes as f64 / self.live_peak_bytes as f64
    }

    /// Adds what is wrong in a further run.
    fn add_wrong(&mut self, round: &Round) {
        if let (Some(wrong), Some(further)) = (&mut self.wrong, &round.wrong) {
            wrong.add(further.clone());
        }
    }

    /// What must not be, in words.
    pub(crate) fn failure(&self) -> Option<String> {
        let name = self.allocator.name;
        if let Some(wrong) = self.wrong.as_ref().filter(|wrong| wrong.count > 0) {
            let first = wrong.first.as_deref().unwrap_or_default();
            let diagnosis = self.diagnosis.as_deref().unwrap_or_default();
            let Wrong { count, compared, .. } = wrong;
            return Some(format!(
                "{name}: {count} of {compared} coefficients are wrong. The first: {first}\n{diagnosis}"
            ));
        }
        let hazards = self.hazards.filter(|&hazards| hazards > 0)?;
        let first = self.first_hazard.as_deref().unwrap_or_default();
        Some(format!("{name}: {hazards} hazards. The first:\n{first}"))
    }
}

/// Measures all allocators; the last is the one that the others are compared with. `open` makes the program
/// on one of them. `warm_up`: whether the device itself takes memory at the first launches.
pub(crate) fn measure<'a>(
    options: &Options,
    allocators: &[Allocator],
    warm_up: bool,
    open: impl Fn(usize, Purpose) -> Outcome<Box<dyn Contestant + 'a>>,
) -> Outcome<Vec<Measured>> {
    let told = |index: usize| {
        move |failure| match failure {
            Failure::Run(error) => {
                Failure::Run(format!("{}: {error}", allocators[index].name).into())
            }
            usage => usage,
        }
    };
    let last = allocators.len() - 1;
    if warm_up {
        let mut throwaway = open(last, Purpose::Time)?;
        throwaway.round(Watch::Nothing).map_err(told(last))?;
        throwaway.close()?;
    }
    let mut measured = Vec::new();
    for (index, &allocator) in allocators.iter().enumerate() {
        let program = open(index, Purpose::Check)?;
        measured.push(check(allocator, program).map_err(told(index))?);
    }
    let mut programs = Vec::new();
    for index in 0..allocators.len() {
        programs.push(open(index, Purpose::Time)?);
    }
    let mut rounds = vec![Vec::new(); allocators.len()];
    for round in 0..1 + options.rounds + WATCHED {
        let watch = if round > options.rounds { Watch::Allocator } else { Watch::Nothing };
        for turn in 0..allocators.len() {
            // Who comes first changes from round to round.
            let at = (round + turn) % allocators.len();
            let done = programs[at].round(watch).map_err(told(at))?;
            rounds[at].push(done);
        }
    }
    let seconds = |round: &Round| round.ns as f64 / 1e9;
    for (index, own) in measured.iter_mut().enumerate() {
        for done in &rounds[index] {
            own.add_wrong(done);
        }
        // The first round fills the pool.
        let timed = &rounds[index][1..=options.rounds];
        let watched = &rounds[index][options.rounds + 1..];
        let against = &rounds[last][1..=options.rounds];
        own.seconds = median(timed.iter().map(seconds));
        own.speed =
            median(timed.iter().zip(against).map(|(own, other)| seconds(other) / seconds(own)));
        own.allocator_share =
            median(watched.iter().map(|round| round.allocator_ns as f64 / round.ns as f64));
        (own.calls, own.allocations) = (timed[timed.len() - 1].calls, timed[0].allocations);
    }
    for (own, program) in measured.iter_mut().zip(programs) {
        own.hazards = own.hazards.zip(program.hazards()).map(|(first, later)| first + later);
        own.first_hazard = own.first_hazard.take().or_else(|| program.first_hazard());
        program.close()?;
    }
    Ok(measured)
}

/// The first run, from an empty pool, and warm ones after it.
fn check(allocator: Allocator, mut program: Box<dyn Contestant + '_>) -> Outcome<Measured> {
    let round = program.round(Watch::Memory)?;
    let mut own = Measured {
        allocator,
        wrong: round.wrong,
        diagnosis: None,
        live_peak_bytes: round.live_peak_bytes,
        device_peak_bytes: program.take_memory_peak(),
        warm_device_peak_bytes: 0,
        hazards: None,
        first_hazard: None,
        allocations: round.allocations,
        calls: round.calls,
        seconds: 0.0,
        allocator_share: 0.0,
        speed: 0.0,
    };
    for _ in 0..WARM {
        own.add_wrong(&program.round(Watch::Memory)?);
    }
    own.warm_device_peak_bytes = program.take_memory_peak();
    (own.hazards, own.first_hazard) = (program.hazards(), program.first_hazard());
    let is_wrong = own.wrong.as_ref().is_some_and(|wrong| wrong.count > 0);
    own.diagnosis = is_wrong.then(|| program.diagnose()).transpose()?;
    program.close()?;
    Ok(own)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

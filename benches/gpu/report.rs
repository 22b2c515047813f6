//! JSON lines, and the figures in them.

use std::fmt::{Display, Write as _};
use std::hint::black_box;
use std::time::{Duration, Instant};

use streampool::Stats;

/// One line of the report: what was measured, on what, and further numbers.
pub(crate) struct Line(String);

impl Line {
    pub(crate) fn new(peer: &str, workload: &str, unit: &str, value: f64) -> Line {
        let (peer, workload) = (escape(peer), escape(workload));
        Line(format!(
            "{{\"peer\":\"{peer}\",\"workload\":\"{workload}\",\"unit\":\"{unit}\",\
             \"value\":{value:.3}"
        ))
    }

    pub(crate) fn with(mut self, name: &str, value: impl Display) -> Line {
        // Writing to a string cannot fail.
        let _ = write!(self.0, ",\"{name}\":{value}");
        self
    }

    /// What the pool took from the device, and how its misses were served.
    pub(crate) fn with_pool(self, stats: &Stats) -> Line {
        self.with("reserved_mib", stats.peak_reserved >> 20)
            .with("hits", stats.hits)
            .with("covered", stats.covered)
            .with("asked", stats.asked)
            .with("gathered", stats.gathered)
            .with("early_steals", stats.early_steals)
            .with("late_steals", stats.late_steals)
            .with("growths", stats.growths)
    }

    pub(crate) fn print(self) {
        println!("{}}}", self.0);
    }
}

/// A file's name may hold anything.
fn escape(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).fold(String::new(), |mut out, letter| {
        if matches!(letter, '"' | '\\') {
            out.push('\\');
        }
        out.push(letter);
        out
    })
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub(crate) fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What two readings of the clock take, which is in every figure of single operations, in nanoseconds.
pub(crate) fn clock() -> f64 {
    const READINGS: u32 = 100_000;
    let mut total = Duration::ZERO;
    for _ in 0..READINGS {
        let begun = black_box(Instant::now());
        total += begun.elapsed();
    }
    nanoseconds(total) / f64::from(READINGS)
}

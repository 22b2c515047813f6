//! Not how long a hit takes as a rule, but how long at worst.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use crate::Failure;
use crate::device::{Bench, Stream};
use crate::pairs::one;
use crate::report::clock;

const BYTES: usize = 512 << 10;

/// Times each pair on its own; every thread has a stream of its own.
pub(crate) fn tail(bench: &Bench, threads: usize) -> Result<(), Failure> {
    let pool = bench.pool()?;
    let streams = bench.streams(&pool, threads)?;
    let pairs = bench.count(2_000_000, 2_000) / threads;
    let start = Barrier::new(threads);
    let worker = |stream: &Stream| -> Result<Vec<u64>, streampool::Error> {
        // Written once before, so that no page of it is new when it counts.
        let mut times = vec![1; pairs];
        let warmed = (0..1000).try_for_each(|_| one(stream, BYTES));
        start.wait();
        warmed?;
        for time in &mut times {
            let begun = Instant::now();
            one(stream, BYTES)?;
            *time = begun.elapsed().as_nanos() as u64;
        }
        Ok(times)
    };
    let mut times = Vec::new();
    thread::scope(|scope| -> Result<(), Failure> {
        let worker = &worker;
        let threads: Vec<_> =
            streams.iter().map(|stream| scope.spawn(move || worker(stream))).collect();
        for thread in threads {
            times.extend(thread.join().expect("no worker panics")?);
        }
        Ok(())
    })?;
    times.sort_unstable();
    // The smallest time that this part of all pairs did not exceed.
    let within = |part: f64| times[((times.len() as f64 * part) as usize).min(times.len() - 1)];
    let name = format!("tail {threads} thread{}", if threads == 1 { "" } else { "s" });
    bench
        .line(&name, "ns per alloc+free, median", within(0.5) as f64)
        .with("p99_ns", within(0.99))
        .with("p99_9_ns", within(0.999))
        .with("p99_99_ns", within(0.9999))
        .with("max_ns", within(1.0))
        .with("pairs", times.len())
        .with("clock_ns", format_args!("{:.1}", clock()))
        .print();
    Ok(())
}

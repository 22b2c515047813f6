//! Buffers of all sizes that come and go at random.

use std::time::{Duration, Instant};

use crate::Failure;
use crate::device::{Bench, DeviceBuffer, Pool, Stream};
use crate::random::Mt19937;
use crate::report::{Line, clock, nanoseconds};

const STREAMS: usize = 4;
const ALIVE: usize = 512;
const BYTES_ALIVE: u64 = 4 << 30;
/// What a pool that is warmed beforehand takes from the device.
const RESERVED: u64 = 8 << 30;

struct Outcome {
    time: Duration,
    steps: usize,
    /// The most bytes that were alive.
    peak: u64,
}

/// From an empty pool; again in the same pool; and in a pool that took its memory beforehand.
pub(crate) fn random_sizes(bench: &Bench) -> Result<(), Failure> {
    let pool = bench.pool()?;
    let streams = bench.streams(&pool, STREAMS)?;
    for name in ["random sizes cold", "random sizes"] {
        let outcome = once(bench, &streams)?;
        line(bench, name, &outcome, &pool).print();
    }
    drop((streams, pool));

    let pool = bench.pool()?;
    let streams = bench.streams(&pool, STREAMS)?;
    if bench.free_memory()? < RESERVED + RESERVED / 4 {
        eprintln!("random sizes reserved: left out, for the device has too little memory free");
        return Ok(());
    }
    pool.reserve(RESERVED)?;
    let outcome = once(bench, &streams)?;
    line(bench, "random sizes reserved", &outcome, &pool).print();
    Ok(())
}

fn line(bench: &Bench, name: &str, outcome: &Outcome, pool: &Pool) -> Line {
    bench
        .line(name, "ns per op", nanoseconds(outcome.time) / outcome.steps as f64)
        .with("peak_live_mib", outcome.peak >> 20)
        .with_pool(&pool.stats())
        .with("clock_ns", format_args!("{:.1}", clock()))
}

/// 100 000 steps: log-uniform sizes from 256 B to 64 MiB, up to 512 buffers and 4 GiB alive.
fn once(bench: &Bench, streams: &[Stream]) -> Result<Outcome, Failure> {
    let steps = bench.count(100_000, 2_000);
    let mut random = Mt19937::new(42);
    let mut alive: Vec<DeviceBuffer> = Vec::new();
    let (mut now, mut peak, mut time) = (0, 0, Duration::ZERO);
    for _ in 0..steps {
        // The order of the draws is part of the sequence.
        let wanted = alive.is_empty()
            || (alive.len() < ALIVE && now < BYTES_ALIVE && random.next() & 1 == 1);
        if wanted {
            let begun = Instant::now();
            let bytes = random.real(8.0, 26.0).exp2() as usize;
            let stream = &streams[random.below(STREAMS)];
            let buffer = stream.alloc(bytes)?;
            time += begun.elapsed();
            alive.push(buffer);
            now += bytes as u64;
            peak = peak.max(now);
        } else {
            let buffer = alive.swap_remove(random.below(alive.len()));
            let bytes = buffer.len() as u64;
            let begun = Instant::now();
            drop(buffer);
            time += begun.elapsed();
            now -= bytes;
        }
    }
    drop(alive);
    bench.synchronize()?;
    Ok(Outcome { time, steps, peak })
}

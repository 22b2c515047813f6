//! Allocate and free, again and again: on one stream, and over several.

use std::hint::black_box;
use std::time::Instant;

use crate::Failure;
use crate::device::{Bench, Pool, Stream};
use crate::report::{median, nanoseconds};

/// Allocates a buffer and frees it.
#[inline]
pub(crate) fn one(stream: &Stream, bytes: usize) -> Result<(), streampool::Error> {
    black_box(&stream.alloc(bytes)?);
    Ok(())
}

/// One stream: 1000 pairs to warm up, then 21 rounds of 5000 (500 while the stream is busy).
pub(crate) fn pair(bench: &Bench, bytes: usize, busy: bool) -> Result<(), Failure> {
    let pool = bench.pool()?;
    let stream = bench.stream(&pool)?;
    for _ in 0..1000 {
        one(&stream, bytes)?;
    }
    let pairs = if busy { 500 } else { 5000 };
    let mut rounds = Vec::new();
    for _ in 0..bench.count(21, 3) {
        bench.synchronize()?;
        if busy {
            bench.keep_busy(&stream)?;
        }
        let begun = Instant::now();
        for _ in 0..pairs {
            one(&stream, bytes)?;
        }
        rounds.push(nanoseconds(begun.elapsed()) / f64::from(pairs));
    }
    bench.synchronize()?;
    let name = format!("pair{} {} KiB", if busy { " busy" } else { "" }, bytes >> 10);
    bench.line(&name, "ns per alloc+free", median(rounds)).print();
    Ok(())
}

/// 8 MiB, allocated and freed on one of 8 streams after the other: what one freed the next wants. By
/// default each stream soon has 8 MiB of its own; without a floor the 8 MiB are passed on.
pub(crate) fn handoff(bench: &Bench) -> Result<(), Failure> {
    hand_on(bench, &bench.pool()?, "handoff 8 streams")?;
    let pool = bench.pool_with(|builder| builder.floor(0))?;
    hand_on(bench, &pool, "handoff 8 streams, no floor")
}

fn hand_on(bench: &Bench, pool: &Pool, name: &str) -> Result<(), Failure> {
    const STREAMS: usize = 8;
    const BYTES: usize = 8 << 20;
    let streams = bench.streams(pool, STREAMS)?;
    for turn in 0..200 {
        one(&streams[turn % STREAMS], BYTES)?;
    }
    let pairs = bench.count(20_000, 500);
    let mut rounds = Vec::new();
    for _ in 0..5 {
        bench.synchronize()?;
        let begun = Instant::now();
        for turn in 0..pairs {
            one(&streams[turn % STREAMS], BYTES)?;
        }
        rounds.push(nanoseconds(begun.elapsed()) / pairs as f64);
    }
    bench.synchronize()?;
    bench.line(name, "ns per alloc+free", median(rounds)).with_pool(&pool.stats()).print();
    Ok(())
}

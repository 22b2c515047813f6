//! Very many buffers alive at once.

use std::time::Instant;

use crate::Failure;
use crate::device::{Bench, DeviceBuffer};
use crate::random::Mt19937;
use crate::report::nanoseconds;

const BUFFERS: usize = 100_000;
const LARGEST: usize = 1 << 20;

/// The benchmark of this name in RMM, for sizes up to 1 MiB: 200 000 steps on one stream, each of which
/// allocates with a chance of 73 % while fewer than 100 000 buffers have been allocated and less than
/// 16 000 MiB are alive, and otherwise frees a buffer at random. The time includes the drawing.
pub(crate) fn random_allocations(bench: &Bench) -> Result<(), Failure> {
    let buffers = bench.count(BUFFERS, 2_000);
    let most = (16_000 << 20).min(bench.free_memory()? / 4 * 3);
    for name in ["random_allocations 100000 cold", "random_allocations 100000"] {
        let pool = bench.pool()?;
        let stream = bench.stream(&pool)?;
        if !name.ends_with("cold") {
            pool.reserve(most + most / 8)?;
        }
        let mut random = Mt19937::new(42);
        let mut alive: Vec<DeviceBuffer> = Vec::with_capacity(buffers);
        let (mut allocated, mut now, mut peak, mut peak_count) = (0, 0, 0, 0);
        let begun = Instant::now();
        for _ in 0..2 * buffers {
            let bytes = 1 + random.below(LARGEST);
            let wanted = alive.is_empty()
                || (random.below(100) < 73 && allocated < buffers && now + (bytes as u64) < most);
            if wanted {
                alive.push(stream.alloc(bytes)?);
                allocated += 1;
                now += bytes as u64;
                (peak, peak_count) = (now.max(peak), alive.len().max(peak_count));
            } else {
                now -= alive.swap_remove(random.below(alive.len())).len() as u64;
            }
        }
        let time = nanoseconds(begun.elapsed());
        drop(alive);
        bench.synchronize()?;
        bench
            .line(name, "ns per op", time / (2 * buffers) as f64)
            .with("peak_live_mib", peak >> 20)
            .with("peak_live_buffers", peak_count)
            .with_pool(&pool.stats())
            .print();
    }
    Ok(())
}

/// 100 000 buffers alive, of up to 1 MiB each (less where the device has too little memory): one is
/// freed at random and another of a new size allocated, 100 000 times.
pub(crate) fn alive(bench: &Bench) -> Result<(), Failure> {
    let buffers = bench.count(BUFFERS, 2_000);
    // Half of `largest` each on average, in at most half of what is free.
    let largest = LARGEST.min((bench.free_memory()? / buffers as u64) as usize);
    let pool = bench.pool()?;
    let stream = bench.stream(&pool)?;
    let mut random = Mt19937::new(42);
    let mut alive: Vec<DeviceBuffer> = Vec::with_capacity(buffers);
    let begun = Instant::now();
    for _ in 0..buffers {
        alive.push(stream.alloc(1 + random.below(largest))?);
    }
    let filled = nanoseconds(begun.elapsed());
    let begun = Instant::now();
    for _ in 0..buffers {
        drop(alive.swap_remove(random.below(alive.len())));
        alive.push(stream.alloc(1 + random.below(largest))?);
    }
    let time = nanoseconds(begun.elapsed());
    let stats = pool.stats();
    drop(alive);
    bench.synchronize()?;
    bench
        .line("alive 100000", "ns per free+alloc", time / buffers as f64)
        .with("fill_ns_per_alloc", format_args!("{:.1}", filled / buffers as f64))
        .with("largest_kib", largest >> 10)
        .with("in_use_mib", stats.peak_in_use >> 20)
        .with_pool(&stats)
        .print();
    Ok(())
}

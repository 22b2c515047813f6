//! Not what the host pays, but what the device does: work on several streams, which a pool may order where
//! the program does not.

use std::env;
use std::time::Instant;

use streampool::Reuse;

use crate::Failure;
use crate::device::{Bench, DeviceBuffer, Stream};
use crate::random::Mt19937;
use crate::report::{median, milliseconds};

/// A policy that avoids memory pays with waits, and the other way round: so all of them.
const POLICIES: [Reuse; 3] = [Reuse::Balanced, Reuse::Memory, Reuse::Speed];

/// RMM's benchmark of this name: four long kernels by turns on a few streams, each with a buffer of 8 bytes
/// that is allocated before it and freed behind it. Nothing orders the streams.
pub(crate) fn multi_stream(bench: &Bench) -> Result<(), Failure> {
    const KERNELS: usize = 4;
    const TICKS: u64 = 1_000_000;
    for reuse in POLICIES {
        for count in [1, 2, 4] {
            let name = format!("multi-stream {count}");
            run(bench, reuse, &name, count, None, |streams| {
                for at in 0..KERNELS {
                    let buffer = streams[at % count].alloc(8)?;
                    bench.compute(&buffer, TICKS)?;
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

const STAGES: usize = 8;
const ITEMS: usize = 64;
const BYTES: usize = 8 << 20;

/// Items that go through stages, each on a stream of its own: a stage allocates its output, waits for its
/// input, works on it for 20 µs to 2 ms, and frees it. The host queues everything at once.
pub(crate) fn pipeline(bench: &Bench) -> Result<(), Failure> {
    let mut random = Mt19937::new(42);
    let times: Vec<[u64; STAGES]> = (0..ITEMS)
        .map(|_| [(); STAGES].map(|()| random.real(2e4_f64.log2(), 2e6_f64.log2()).exp2() as u64))
        .collect();
    for reuse in POLICIES {
        let name = format!("pipeline {STAGES} streams");
        run(bench, reuse, &name, STAGES, Some(ideal(&times)), |streams| {
            for times in &times {
                let mut input: Option<DeviceBuffer> = None;
                for (stream, ns) in streams.iter().zip(times) {
                    let output = stream.alloc(BYTES)?;
                    if let Some(input) = &mut input {
                        // It makes this stream wait for the stage before, which frees it no more.
                        input.move_to(stream)?;
                    }
                    bench.spin(stream, *ns)?;
                    input = Some(output);
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// How long the work takes, in milliseconds, when it waits for nothing but what it must: for its stream, and
/// for its input.
fn ideal(times: &[[u64; STAGES]]) -> f64 {
    let mut ends = [0; STAGES];
    for item in times {
        let mut input = 0;
        for (end, ns) in ends.iter_mut().zip(item) {
            *end = input.max(*end) + ns;
            input = *end;
        }
    }
    ends[STAGES - 1] as f64 / 1e6
}

/// Queues work again and again, each time on an idle device: the first time in an empty pool.
fn run(
    bench: &Bench,
    reuse: Reuse,
    name: &str,
    streams: usize,
    ideal: Option<f64>,
    mut queue: impl FnMut(&[Stream]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let pool = bench.pool_with(|builder| builder.reuse(reuse))?;
    let streams = bench.streams(&pool, streams)?;
    let mut rounds = Vec::new();
    for _ in 0..1 + bench.count(21, 2) {
        bench.synchronize()?;
        let begun = Instant::now();
        queue(&streams)?;
        bench.synchronize()?;
        rounds.push(milliseconds(begun.elapsed()));
    }
    let cold = rounds.remove(0);
    let mut line = bench.line_reusing(reuse, name, "ms", median(rounds));
    line = line.with("cold_ms", format_args!("{cold:.3}"));
    if let Some(ideal) = ideal {
        line = line.with("ideal_ms", format_args!("{ideal:.3}"));
    }
    // Streams that share a queue of the hardware are in order whatever a pool does.
    let queues = env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok().and_then(|text| text.parse().ok());
    line.with("hardware_queues", queues.unwrap_or(8_u32)).with_pool(&pool.stats()).print();
    Ok(())
}

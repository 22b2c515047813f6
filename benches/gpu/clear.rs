//! 4816 buffers of 512 KiB on 37 streams, all freed at once, layer after layer: a ciphertext pool's
//! turn-over between two layers of a network.

use std::mem;
use std::time::{Duration, Instant};

use streampool::{QuiescentReport, QuiescentScope};

use crate::Failure;
use crate::device::{Bench, DeviceBuffer, Pool};
use crate::report::{median, milliseconds};

const BUFFERS: usize = 4816;
const STREAMS: usize = 37;
const BYTES: usize = 512 << 10;

/// The ways to free them all.
#[derive(Clone, Copy)]
enum Way {
    /// Ordinary drops.
    Lazy,
    /// Drops inside a `quiesce` scope.
    Scope,
    /// `release`, which takes the buffers and does both.
    Release,
}

/// What one layer took.
struct Layer {
    allocate: Duration,
    /// The frees alone, where they can be told from the rest.
    free: Option<Duration>,
    clear: Duration,
    /// Buffers that could not be told clean at the end of the scope.
    deferred: u64,
}

pub(crate) fn clear(bench: &Bench) -> Result<(), Failure> {
    for (name, way) in [("lazy", Way::Lazy), ("scope", Way::Scope), ("release", Way::Release)] {
        let pool = bench.pool()?;
        let layers = layers(bench, &pool, way, bench.count(64, 3))?;
        let line = |what: &str, times: Vec<f64>| {
            bench.line_of(name, &format!("clear 4816: {what}"), "ms", median(times))
        };
        let all = |time: fn(&Layer) -> Duration| -> Vec<f64> {
            layers.iter().map(|layer| milliseconds(time(layer))).collect()
        };
        line("allocate", all(|layer| layer.allocate)).with_pool(&pool.stats()).print();
        let frees: Vec<f64> =
            layers.iter().filter_map(|layer| layer.free).map(milliseconds).collect();
        if !frees.is_empty() {
            line("free", frees).print();
        }
        let deferred: u64 = layers.iter().map(|layer| layer.deferred).sum();
        line("whole clear", all(|layer| layer.clear)).with("deferred", deferred).print();
    }
    Ok(())
}

fn layers(bench: &Bench, pool: &Pool, way: Way, count: usize) -> Result<Vec<Layer>, Failure> {
    let streams = bench.streams(pool, STREAMS)?;
    let mut buffers = Vec::new();
    let mut layers = Vec::new();
    for _ in 0..count {
        buffers.reserve_exact(BUFFERS);
        let begun = Instant::now();
        for number in 0..BUFFERS {
            buffers.push(streams[number % STREAMS].alloc(BYTES)?);
        }
        let allocate = begun.elapsed();
        for (number, buffer) in buffers.iter().enumerate() {
            bench.touch(buffer, &streams[number % STREAMS])?;
        }
        // Nothing is in flight, as between two layers.
        bench.synchronize()?;
        let begun = Instant::now();
        let (free, report) = free_all(pool, &mut buffers, way)?;
        let clear = begun.elapsed();
        layers.push(Layer { allocate, free, clear, deferred: report.deferred });
    }
    Ok(layers)
}

fn free_all(
    pool: &Pool,
    buffers: &mut Vec<DeviceBuffer>,
    way: Way,
) -> Result<(Option<Duration>, QuiescentReport), Failure> {
    let scope = match way {
        Way::Lazy => None,
        Way::Scope => Some(pool.quiesce()?),
        Way::Release => return Ok((None, pool.release(mem::take(buffers))?)),
    };
    let begun = Instant::now();
    buffers.clear();
    let free = begun.elapsed();
    Ok((Some(free), scope.map(QuiescentScope::finish).unwrap_or_default()))
}

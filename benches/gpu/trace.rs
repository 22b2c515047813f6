//! Recorded traces of allocations: lines `t_us,action,ptr,bytes,stream` after a comment and a header.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::device::{Bench, DeviceBuffer, Stream};
use crate::report::{clock, nanoseconds};

struct Operation {
    allocate: bool,
    /// Tells live buffers apart.
    address: u64,
    bytes: usize,
    stream: usize,
}

struct Outcome {
    time: Duration,
    operations: usize,
    /// The most bytes that were alive.
    peak: u64,
    /// The most device memory that was gone, by the driver's figure.
    taken: u64,
}

/// Replays the file in order, with no kernels between: from an empty pool, and once more.
pub(crate) fn trace(bench: &Bench, file: &str) -> Result<(), Failure> {
    let operations = read(file)?;
    let pool = bench.pool()?;
    let count = 1 + operations.iter().map(|operation| operation.stream).max().unwrap_or(0);
    let streams = bench.streams(&pool, count)?;
    bench.synchronize()?;
    let free = bench.free_memory()?;
    let base = Path::new(file).file_name().map_or(file.into(), |name| name.to_string_lossy());
    for pass in ["", " warm"] {
        let outcome = replay(bench, &streams, &operations, free)?;
        let each = nanoseconds(outcome.time) / outcome.operations as f64;
        let over_live = outcome.taken as f64 / outcome.peak as f64;
        bench
            .line(&format!("trace {base}{pass}"), "ns per op", each)
            .with("peak_live_mib", outcome.peak >> 20)
            .with("taken_mib", outcome.taken >> 20)
            .with("taken_over_live", format_args!("{over_live:.3}"))
            .with("operations", outcome.operations)
            .with_pool(&pool.stats())
            .with("clock_ns", format_args!("{:.1}", clock()))
            .print();
    }
    Ok(())
}

fn read(file: &str) -> Result<Vec<Operation>, Failure> {
    if file.ends_with(".gz") {
        return Err("gunzip the trace first".into());
    }
    let text = fs::read_to_string(file)?;
    let lines = text.lines().filter(|line| !line.starts_with(['#', 't']) && !line.is_empty());
    let operations: Vec<Operation> = lines
        .map(|line| parse(line).ok_or_else(|| format!("not a line of a trace: {line}").into()))
        .collect::<Result<_, Failure>>()?;
    if operations.is_empty() { Err("no operation in it".into()) } else { Ok(operations) }
}

fn parse(line: &str) -> Option<Operation> {
    let mut fields = line.split(',').skip(1);
    let mut next = || fields.next();
    Some(Operation {
        allocate: match next()? {
            "allocate" => true,
            "free" => false,
            _ => return None,
        },
        address: u64::from_str_radix(next()?, 16).ok()?,
        bytes: next()?.parse().ok()?,
        stream: next()?.parse().ok()?,
    })
}

fn replay(
    bench: &Bench,
    streams: &[Stream],
    operations: &[Operation],
    free: u64,
) -> Result<Outcome, Failure> {
    let mut alive: HashMap<u64, DeviceBuffer> = HashMap::new();
    let (mut now, mut peak, mut least, mut time) = (0, 0, free, Duration::ZERO);
    let mut counted = 0;
    for operation in operations {
        if operation.allocate {
            let begun = Instant::now();
            let buffer = streams[operation.stream].alloc(operation.bytes)?;
            time += begun.elapsed();
            alive.insert(operation.address, buffer);
            now += operation.bytes as u64;
            peak = peak.max(now);
        } else if let Some(buffer) = alive.remove(&operation.address) {
            now -= buffer.len() as u64;
            let begun = Instant::now();
            drop(buffer);
            time += begun.elapsed();
        } else {
            // It was allocated before the recording began.
            continue;
        }
        counted += 1;
        if counted % 64 == 0 {
            least = least.min(bench.free_memory()?);
        }
    }
    least = least.min(bench.free_memory()?);
    drop(alive);
    bench.synchronize()?;
    Ok(Outcome { time, operations: counted, peak, taken: free - least })
}

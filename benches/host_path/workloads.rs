//! The workloads. Each gives samples: nanoseconds an operation, over a batch of operations.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use streampool::{Buffer, PoolStream, Reuse, StreamPool};

use super::null_backend::{Finish, NullBackend};

type Pool = StreamPool<NullBackend>;
type Stream = PoolStream<NullBackend>;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// How much of a workload to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) layers: usize,
    pub(crate) threads_for: Duration,
    pub(crate) steps: usize,
}

/// Runs a part of a workload; a calibration runs before each. `None` when there is no more.
pub(crate) type Round = Box<dyn FnMut() -> Option<Vec<f64>>>;

/// One workload.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// What one operation is.
    pub(crate) operation: &'static str,
    pub(crate) start: fn(Effort) -> Round,
}

pub(crate) const ALL: &[Workload] = &[
    Workload {
        name: "pair",
        operation: "allocate and free 512 KiB on one stream",
        start: |effort| pair(effort, Finish::Always, 5000),
    },
    Workload {
        name: "pair busy",
        operation: "the same while the stream's work never finishes",
        start: |effort| pair(effort, Finish::Never, 500),
    },
    Workload {
        name: "pair noted",
        operation: "a pair of a pool that keeps a history",
        start: noted_pair,
    },
    Workload {
        name: "clear: free",
        operation: "one free of 4816 buffers on 37 streams",
        start: |effort| clear(effort, |layer| layer.free),
    },
    Workload {
        name: "clear: allocate",
        operation: "one allocation of the 4816",
        start: |effort| clear(effort, |layer| layer.allocate),
    },
    Workload {
        name: "steal",
        operation: "allocate what another, busy stream has freed, and free it",
        start: steal,
    },
    Workload {
        name: "threads 1",
        operation: "a pair, as a thread on its own stream sees it",
        start: |effort| threads(effort, 1),
    },
    Workload {
        name: "threads 2",
        operation: "the same, with 2 threads",
        start: |effort| threads(effort, 2),
    },
    Workload {
        name: "random sizes",
        operation: "an allocation or a free, 256 B to 64 MiB, on 4 streams",
        start: random_sizes,
    },
];

/// The unit of comparison: a locked push and a locked pop of a vector.
pub(crate) fn calibrate() -> Vec<f64> {
    let list = Mutex::new(Vec::<u64>::with_capacity(16));
    in_batches(5000, |index| {
        list.lock().push(index as u64);
        std::hint::black_box(list.lock().pop());
    })
}

/// Runs an operation `count` times, and times it in batches.
fn in_batches(count: usize, mut operation: impl FnMut(usize)) -> Vec<f64> {
    const BATCH: usize = 500;
    let mut samples = Vec::with_capacity(count / BATCH);
    for batch in 0..count / BATCH {
        let start = Instant::now();
        for index in 0..BATCH {
            operation(batch * BATCH + index);
        }
        samples.push(per_operation(start, BATCH));
    }
    samples
}

/// A round that runs so many times.
fn rounds(count: usize, mut round: impl FnMut() -> Vec<f64> + 'static) -> Round {
    let mut left = count;
    Box::new(move || {
        left = left.checked_sub(1)?;
        Some(round())
    })
}

fn per_operation(since: Instant, operations: usize) -> f64 {
    since.elapsed().as_nanos() as f64 / operations as f64
}

fn pool_with(finish: Finish, streams: usize) -> (Pool, Vec<Stream>) {
    let backend = NullBackend::new(finish);
    let pool = StreamPool::new(backend.clone());
    let streams = register(&pool, &backend, streams);
    (pool, streams)
}

fn register(pool: &Pool, backend: &NullBackend, count: usize) -> Vec<Stream> {
    (0..count).map(|_| pool.stream(backend.create_stream()).expect("a stream")).collect()
}

fn allocate(stream: &Stream, bytes: usize) -> Buffer<NullBackend> {
    stream.alloc(bytes).expect("the backend has memory enough")
}

fn pair(effort: Effort, finish: Finish, count: usize) -> Round {
    let (_, mut streams) = pool_with(finish, 1);
    pairs(effort, streams.remove(0), count)
}

fn pairs(effort: Effort, stream: Stream, count: usize) -> Round {
    (0..1000).for_each(|_| drop(allocate(&stream, 512 * KIB)));
    rounds(effort.rounds, move || in_batches(count, |_| drop(allocate(&stream, 512 * KIB))))
}

/// With every event noted.
fn noted_pair(effort: Effort) -> Round {
    let backend = NullBackend::new(Finish::Always);
    let pool =
        StreamPool::builder(backend.clone()).history(1000).build().expect("the options are good");
    let stream = pool.stream(backend.create_stream()).expect("a null stream registers");
    pairs(effort, stream, 5000)
}

/// What an operation has cost in one layer.
struct Layer {
    allocate: f64,
    free: f64,
}

/// A round, and a sample, for each layer.
fn clear(effort: Effort, part: fn(Layer) -> f64) -> Round {
    const BUFFERS: usize = 4816;
    let (_, streams) = pool_with(Finish::Always, 37);
    let mut buffers = Vec::with_capacity(BUFFERS);
    let mut layer = move || {
        let start = Instant::now();
        for index in 0..BUFFERS {
            buffers.push(allocate(&streams[index % streams.len()], 512 * KIB));
        }
        let allocate = per_operation(start, BUFFERS);
        let start = Instant::now();
        buffers.clear();
        Layer { allocate, free: per_operation(start, BUFFERS) }
    };
    // The first layer takes memory from the device.
    layer();
    rounds(effort.layers, move || vec![part(layer())])
}

/// Two streams and memory for one buffer: each allocation takes what the other stream freed last.
fn steal(effort: Effort) -> Round {
    let backend = NullBackend::new(Finish::After(8));
    let builder = StreamPool::builder(backend.clone());
    let pool = builder.reuse(Reuse::Memory).limit(2 << 20).build().expect("a pool");
    let streams = register(&pool, &backend, 2);
    drop(allocate(&streams[1], 2 * MIB));
    rounds(effort.rounds, move || {
        let before = pool.stats().late_steals;
        let samples = in_batches(1000, |index| drop(allocate(&streams[index % 2], 2 * MIB)));
        assert_eq!(pool.stats().late_steals - before, 1000, "each must be a steal");
        samples
    })
}

/// Pairs on as many threads, each with a stream of its own, for a while.
fn threads(effort: Effort, count: usize) -> Round {
    let (_, streams) = pool_with(Finish::Always, count);
    rounds(1, move || {
        let start = Barrier::new(count);
        let work = |stream: &Stream| {
            (0..1000).for_each(|_| drop(allocate(stream, 512 * KIB)));
            let mut samples = Vec::new();
            start.wait();
            let begin = Instant::now();
            while begin.elapsed() < effort.threads_for {
                samples.extend(in_batches(500, |_| drop(allocate(stream, 512 * KIB))));
            }
            samples
        };
        let work = &work;
        std::thread::scope(|scope| {
            let running: Vec<_> =
                streams.iter().map(|stream| scope.spawn(move || work(stream))).collect();
            running.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        })
    })
}

/// Sizes log-uniform from 256 B to 64 MiB, at most 512 buffers and 4 GiB alive.
fn random_sizes(effort: Effort) -> Round {
    const BATCH: usize = 500;
    let mut steps = random_steps(effort.steps).into_iter();
    let (_, streams) = pool_with(Finish::Always, 4);
    let mut live = Vec::with_capacity(512);
    rounds(effort.steps / BATCH, move || {
        let start = Instant::now();
        for step in steps.by_ref().take(BATCH) {
            match step {
                Step::Allocate { bytes, stream } => live.push(allocate(&streams[stream], bytes)),
                Step::Free { index } => drop(live.swap_remove(index)),
            }
        }
        vec![per_operation(start, BATCH)]
    })
}

/// A step of [`random_sizes`], drawn beforehand.
enum Step {
    Allocate { bytes: usize, stream: usize },
    Free { index: usize },
}

fn random_steps(count: usize) -> Vec<Step> {
    let mut state = 42_u64;
    // splitmix64.
    let mut random = move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let (mut live, mut alive): (Vec<usize>, usize) = (Vec::new(), 0);
    let mut steps = Vec::with_capacity(count);
    for _ in 0..count {
        let wanted = live.len() < 512 && alive < 4096 * MIB && random() & 1 == 1;
        if live.is_empty() || wanted {
            let fraction = random() as f64 / u64::MAX as f64;
            let bytes = (8.0 + 18.0 * fraction).exp2() as usize;
            steps.push(Step::Allocate { bytes, stream: random() as usize % 4 });
            live.push(bytes);
            alive += bytes;
        } else {
            let index = random() as usize % live.len();
            steps.push(Step::Free { index });
            alive -= live.swap_remove(index);
        }
    }
    steps
}

//! A fixed number of operations, for a program that counts instructions: `scripts/instruction-budget.sh`.
//!
//! ```text
//! instructions MODE COUNT     that many operations
//! instructions list           the modes
//! ```
//!
//! Two runs of different counts differ by the operations alone: start and warming-up are the same. Without
//! arguments every mode runs a little, which only shows that it does.

use std::env;
use std::hint::black_box;
use std::process::ExitCode;

use streampool::{PoolStream, StreamPool};

#[path = "../../tests/common/null_backend.rs"]
mod null_backend;

use null_backend::{Finish, NullBackend};

type Pool = StreamPool<NullBackend>;
type Stream = PoolStream<NullBackend>;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A kind of operation, by name.
struct Mode {
    name: &'static str,
    run: fn(usize),
}

const MODES: &[Mode] = &[
    Mode { name: "pair 512 KiB", run: |count| pairs(Finish::Always, 512 * KIB, count) },
    Mode { name: "pair 64 MiB", run: |count| pairs(Finish::Always, 64 * MIB, count) },
    Mode { name: "pair busy 512 KiB", run: |count| pairs(Finish::Never, 512 * KIB, count) },
    Mode { name: "pair in a scope 512 KiB", run: in_a_scope },
    Mode { name: "pair on 8 streams 512 KiB", run: on_streams },
    Mode { name: "clear 4816 on 37 streams", run: clear },
];

fn main() -> ExitCode {
    // `cargo bench` adds `--bench`.
    let words: Vec<String> = env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let found = |name| MODES.iter().find(|mode| mode.name == name);
    match *words {
        [] => {
            MODES.iter().for_each(|mode| (mode.run)(10_000));
            println!("every mode has run; scripts/instruction-budget.sh counts");
        }
        ["list"] => MODES.iter().for_each(|mode| println!("{}", mode.name)),
        [name, count] => match (found(name), count.parse()) {
            (Some(mode), Ok(count)) => (mode.run)(count),
            _ => return usage(),
        },
        _ => return usage(),
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: instructions [list | MODE COUNT]");
    ExitCode::from(2)
}

fn pool_with(finish: Finish, streams: usize) -> (Pool, Vec<Stream>) {
    let backend = NullBackend::new(finish);
    let pool = StreamPool::new(backend.clone());
    let stream = |_| pool.stream(backend.create_stream()).expect("a null stream registers");
    let streams = (0..streams).map(stream).collect();
    (pool, streams)
}

#[inline]
fn pair(stream: &Stream, bytes: usize) {
    drop(black_box(stream.alloc(bytes).expect("the backend has memory enough")));
}

/// All of them hits: what is to be counted.
fn hits(pool: &Pool, count: usize, run: impl FnOnce()) {
    let before = pool.stats();
    run();
    let after = pool.stats();
    let made = (after.hits - before.hits, after.misses - before.misses);
    assert_eq!(made, (count as u64, 0), "these are no hits");
}

fn pairs(finish: Finish, bytes: usize, count: usize) {
    let (pool, streams) = pool_with(finish, 1);
    let stream = &streams[0];
    pair(stream, bytes);
    hits(&pool, count, || (0..count).for_each(|_| pair(stream, bytes)));
}

fn in_a_scope(count: usize) {
    let (pool, streams) = pool_with(Finish::Always, 1);
    let stream = &streams[0];
    pair(stream, 512 * KIB);
    let scope = pool.quiesce().expect("the null backend synchronizes");
    hits(&pool, count, || (0..count).for_each(|_| pair(stream, 512 * KIB)));
    assert_eq!(scope.finish().freed, count as u64);
}

fn on_streams(count: usize) {
    const STREAMS: usize = 8;
    let (pool, streams) = pool_with(Finish::Always, STREAMS);
    streams.iter().for_each(|stream| pair(stream, 512 * KIB));
    hits(&pool, count, || {
        (0..count).for_each(|turn| pair(&streams[turn % STREAMS], 512 * KIB));
    });
}

/// Buffers that are alive together and freed together, `count` in all.
fn clear(count: usize) {
    const BUFFERS: usize = 4816;
    let (pool, streams) = pool_with(Finish::Always, 37);
    let mut buffers = Vec::with_capacity(BUFFERS);
    let mut layer = |pairs: usize| {
        for at in 0..pairs {
            let buffer = streams[at % streams.len()].alloc(512 * KIB);
            buffers.push(buffer.expect("the backend has memory enough"));
        }
        buffers.clear();
    };
    // The first takes memory from the device.
    layer(BUFFERS);
    hits(&pool, count, || {
        (0..count / BUFFERS).for_each(|_| layer(BUFFERS));
        layer(count % BUFFERS);
    });
}

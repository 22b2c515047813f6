//! Many threads, on streams of their own and on one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::device::{Bench, Stream};
use crate::pairs::one;

const BYTES: usize = 512 << 10;

pub(crate) fn own_streams(bench: &Bench, threads: usize) -> Result<(), Failure> {
    let pool = bench.pool()?;
    let streams = bench.streams(&pool, threads)?;
    pairs_per_second(bench, &format!("threads {threads}"), &streams)
}

pub(crate) fn one_stream(bench: &Bench, threads: usize) -> Result<(), Failure> {
    let pool = bench.pool()?;
    let streams = vec![bench.stream(&pool)?; threads];
    pairs_per_second(bench, &format!("threads {threads} one stream"), &streams)
}

/// One thread for each of the streams, for 0.3 s.
fn pairs_per_second(bench: &Bench, name: &str, streams: &[Stream]) -> Result<(), Failure> {
    let ready = AtomicUsize::new(0);
    let (go, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let worker = |stream: &Stream| -> Result<u64, streampool::Error> {
        let warmed = (0..100).try_for_each(|_| one(stream, BYTES));
        // Also after a failure: the others wait for all.
        ready.fetch_add(1, Ordering::Release);
        warmed?;
        while !go.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        let mut pairs = 0;
        while !stop.load(Ordering::Relaxed) {
            one(stream, BYTES)?;
            pairs += 1;
        }
        Ok(pairs)
    };
    let (pairs, time) = thread::scope(|scope| {
        let worker = &worker;
        let threads: Vec<_> =
            streams.iter().map(|stream| scope.spawn(move || worker(stream))).collect();
        while ready.load(Ordering::Acquire) < streams.len() {
            thread::yield_now();
        }
        let begun = Instant::now();
        go.store(true, Ordering::Release);
        thread::sleep(Duration::from_millis(bench.count(300, 20) as u64));
        stop.store(true, Ordering::Relaxed);
        let time = begun.elapsed();
        let pairs: Result<u64, streampool::Error> =
            threads.into_iter().map(|thread| thread.join().expect("no worker panics")).sum();
        (pairs, time)
    });
    bench.synchronize()?;
    let rate = pairs? as f64 / (time.as_secs_f64() * 1e6);
    bench.line(name, "million pairs per s", rate).print();
    Ok(())
}

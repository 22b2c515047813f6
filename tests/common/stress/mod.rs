//! Random programs on a device that runs by itself: several threads, one pool, and stamps that are checked
//! before each free.
//!
//! The programs are those of `streampool::check`, played without its shadow, which needs one thread at a
//! time and a simulated device. What is left out: captures, injected errors, second devices, and closing a
//! pool that others use.

// Each test program uses a part of this.
#![allow(dead_code)]

#[cfg(feature = "cuda")]
pub(crate) mod on_cuda;
pub(crate) mod on_sim;
mod player;
mod report;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use streampool::backend::Backend;
use streampool::check::{Program, Setup};
use streampool::{PoolStream, StreamPool};

use player::{Live, Player};
pub(crate) use report::Report;

/// Threads that share a pool.
const THREADS: u64 = 4;
/// Operations of each thread in one round.
const LENGTH: usize = 300;

pub(crate) type Raw<D> = <<D as Device>::B as Backend>::Stream;

/// A device that can run the programs.
pub(crate) trait Device: Sync {
    type B: Backend;

    /// A backend of the one context that all rounds use.
    fn backend(&self) -> Self::B;

    /// A new non-blocking stream.
    fn stream(&self) -> Raw<Self>;

    /// Puts a kernel on the stream that takes so long, in nanoseconds, and touches nothing.
    fn busy(&self, stream: &Raw<Self>, ns: u64);

    /// Puts a kernel on the stream that takes so long and then writes a stamp over the bytes.
    fn stamp(&self, stream: &Raw<Self>, address: u64, bytes: u64, stamp: u64, ns: u64);

    /// Puts a kernel on the stream that counts what is not the stamp.
    fn check(&self, stream: &Raw<Self>, address: u64, bytes: u64, stamp: u64);

    /// What the checks have counted since the last call. Synchronizes.
    fn mismatches(&self) -> u64;
}

/// What the threads of a round share.
struct Round<'a, D: Device> {
    device: &'a D,
    pool: StreamPool<D::B>,
    /// Buffers that one thread has put down, for another to take.
    mail: Mutex<Vec<Live<D::B>>>,
    streams: AtomicU64,
    stamps: &'a AtomicU64,
    handles: &'a Mutex<BTreeSet<u64>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plays rounds, the first with this seed and the next ones with those after it, for as long as `goes_on`
/// says, given how many there were; and none after one with mismatches, which may be followed by anything.
pub(crate) fn run<D: Device>(device: &D, first: u64, goes_on: impl Fn(u64) -> bool) -> Report {
    let mut report = Report::default();
    let (stamps, handles) = (AtomicU64::new(0), Mutex::default());
    let mut rounds = 0;
    while report.mismatches == 0 && goes_on(rounds) {
        let seed = first + rounds;
        report.mismatches = round(device, seed, &stamps, &handles, &mut report);
        if report.mismatches > 0 {
            eprintln!("mismatches in the round of seed {seed}");
        }
        rounds += 1;
    }
    report
}

/// One pool, from its making to its end, and a program for each thread. Returns the mismatches.
fn round<D: Device>(
    device: &D,
    seed: u64,
    stamps: &AtomicU64,
    handles: &Mutex<BTreeSet<u64>>,
    report: &mut Report,
) -> u64 {
    let programs: Vec<Program> =
        (0..THREADS).map(|own| Program::random(seed * THREADS + own, LENGTH)).collect();
    let setup = programs[0].setup;
    let (mail, streams) = (Mutex::default(), AtomicU64::new(0));
    let pool = build(device.backend(), &setup);
    let round = Round { device, pool, mail, streams, stamps, handles };
    let counts: Vec<Report> = thread::scope(|scope| {
        let play = |program| Player::new(&round, setup).play(program);
        let players: Vec<_> =
            programs.iter().map(|program| scope.spawn(move || play(program))).collect();
        players.into_iter().map(|own| own.join().expect("a thread of the round failed")).collect()
    });
    counts.into_iter().for_each(|counts| *report += counts);
    let rest = std::mem::take(&mut *locked(&round.mail));
    rest.into_iter().for_each(|live| drop(live.checked(device, 0)));
    let wrong = device.mismatches();
    report.add_stats(&round.pool.stats());
    empty(&round.pool);
    wrong
}

/// A limit that several threads reach.
fn limit(setup: &Setup) -> u64 {
    setup.limit * THREADS * 3 / 4
}

fn build<B: Backend>(backend: B, setup: &Setup) -> StreamPool<B> {
    let mut builder = StreamPool::builder(backend)
        .limit(limit(setup))
        .floor(setup.floor)
        .reuse(setup.reuse)
        .growth(setup.growth)
        .late_waits(setup.late_waits);
    if let Some(target) = setup.soft_target {
        builder = builder.soft_target(target);
    }
    builder.build().expect("good options")
}

/// Nothing of a pool is left when nobody uses it.
fn empty<B: Backend>(pool: &StreamPool<B>) {
    pool.synchronize().expect("the device works");
    assert!(pool.take_error().is_none(), "an error that nobody was told");
    pool.trim(0).expect("what is free can go back");
    let stats = pool.stats();
    assert_eq!((stats.reserved, stats.in_use, stats.live), (0, 0, 0), "bytes are lost: {stats:?}");
    pool.close().expect("nobody needs it");
}

impl<D: Device> Round<'_, D> {
    /// A new stream, registered, and its number, which no other has.
    fn register(&self, record_on_free: bool, counts: &mut Report) -> (u64, PoolStream<D::B>) {
        let raw = self.device.stream();
        let backend = self.device.backend();
        let handle = backend.identify(&raw).expect("a stream of this context").handle;
        counts.streams_made += 1;
        counts.reused_handles += u64::from(!locked(self.handles).insert(handle));
        let registered = match record_on_free {
            true => self.pool.stream_record_on_free(raw),
            false => self.pool.stream(raw),
        };
        let number = self.streams.fetch_add(1, Ordering::Relaxed);
        (number, registered.expect("a stream can be registered"))
    }

    /// A stamp that no other kernel writes.
    fn next_stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::Relaxed) + 1
    }
}

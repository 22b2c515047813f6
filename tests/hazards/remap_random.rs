//! Free memory behind other addresses, by chance: random requests, trims, reserves and failing calls on a
//! small device, and each of them between any two driver calls of another thread's.
//!
//! After every step: the pool's account is the device's, no limit was ever passed, and nobody touched memory
//! that he did not have, or had not been let finish. At the end all of it goes back.

use std::thread;

use streampool::backend::ErrorKind;
use streampool::sim::{Call, FaultPlan, PausePoint, SimConfig, SimDevice};
use streampool::{Growth, Reuse};

use crate::common::{BLOCK, Held, KIB, Lab, MIB, Random, Setup, Stream, interleave};

const VIRTUAL: Setup = Setup { growth: Growth::Virtual };
const UNIT: u64 = 2 * MIB;
const VERBS: [Call; 7] = [
    Call::ReserveRange,
    Call::CreateGranule,
    Call::Map,
    Call::SetAccess,
    Call::Unmap,
    Call::DestroyGranule,
    Call::ReleaseRange,
];

/// The device has all of its memory back, and its addresses.
#[track_caller]
fn all_is_given_back(lab: &Lab) {
    lab.pool.synchronize().unwrap();
    lab.pool.trim(0).unwrap();
    let left = (lab.device.memory_in_use(), lab.device.live_granules(), lab.device.mapped_bytes());
    assert_eq!(left, (0, 0, 0));
    lab.accounts_match();
}

fn one_of<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len())]
}

fn some_size(random: &mut Random) -> u64 {
    let unit = one_of(random, &[256, 4 * KIB, 512 * KIB, MIB, UNIT, UNIT]);
    unit * (1 + random.below(5) as u64) + 256 * random.below(2) as u64
}

struct Run {
    lab: Lab,
    limit: u64,
    random: Random,
    streams: Vec<Stream>,
    live: Vec<(Held, usize)>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random(seed);
        let memory_bytes = UNIT * (6 + random.below(8) as u64);
        let device = SimDevice::new(SimConfig { memory_bytes, seed, ..SimConfig::default() });
        let limit = memory_bytes - UNIT * random.below(3) as u64;
        let reuse = one_of(&mut random, &[Reuse::Balanced, Reuse::Memory, Reuse::Speed]);
        let floor = UNIT * random.below(8) as u64;
        let late_waits = random.below(4) > 0;
        let lab = VIRTUAL.lab_on(device, |builder| {
            let builder = builder.reuse(reuse).floor(floor).late_waits(late_waits);
            if limit < memory_bytes { builder.limit(limit) } else { builder }
        });
        let streams = (0..3).map(|_| lab.stream()).collect();
        Run { lab, limit, random, streams, live: Vec::new() }
    }

    fn step(&mut self) {
        let stream = self.random.below(3);
        match self.random.below(16) {
            0..6 => self.allocate(stream),
            6..10 if !self.live.is_empty() => {
                let (own, home) = self.live.swap_remove(self.random.below(self.live.len()));
                if self.random.below(3) == 0 {
                    own.read(&self.streams[home]);
                }
            }
            10 if !self.live.is_empty() => {
                let at = self.random.below(self.live.len());
                let (own, home) = &self.live[at];
                own.read(&self.streams[*home]);
                if stream != *home {
                    own.share(&self.streams[stream]);
                    own.read(&self.streams[stream]);
                }
            }
            11 => self.streams[stream].synchronize().unwrap(),
            12 => self.lab.let_run(),
            13 => drop(self.lab.pool.trim(UNIT * self.random.below(8) as u64)),
            14 => drop(self.lab.pool.reserve(UNIT * self.random.below(12) as u64)),
            _ => {
                let scope = self.lab.pool.quiesce().unwrap();
                self.live.truncate(self.live.len() / 2);
                let _ = scope.finish();
            }
        }
    }

    fn allocate(&mut self, at: usize) {
        let bytes = some_size(&mut self.random);
        let align = one_of(&mut self.random, &[1, 1, 1, 4096, 2 * UNIT]);
        let stream = &self.streams[at];
        match stream.alloc_aligned(bytes as usize, align as usize) {
            Ok(buffer) => {
                assert!(buffer.device_ptr().is_multiple_of(align));
                let own = Held::of(&self.lab.device, stream, buffer);
                own.write(stream);
                self.live.push((own, at));
            }
            Err(error) => assert!(error.is_out_of_memory(), "{error}"),
        }
    }

    fn check(&self) {
        self.lab.no_hazard();
        self.lab.accounts_match();
        assert!(self.lab.device.memory_peak() <= self.limit, "above the limit for a while");
        assert_eq!(self.lab.stats().granules, self.lab.device.live_granules());
    }

    fn end(mut self) {
        self.live.clear();
        self.streams.iter().for_each(|stream| stream.synchronize().unwrap());
        all_is_given_back(&self.lab);
        self.streams.clear();
        self.lab.pool.close().unwrap();
        let counts = self.lab.device.counts();
        // A call that fails counts too.
        let failed = self.lab.device.injected_count();
        assert!(counts.range_reserves.abs_diff(counts.range_releases) <= failed, "{counts:?}");
    }
}

#[test]
fn m4_random_requests_with_failing_calls_lose_nothing() {
    let (mut remapped, mut revived, mut unmapped) = (0, 0, 0);
    for seed in 0..40 {
        let mut run = Run::new(seed);
        for _ in 0..150 {
            if run.random.below(3) == 0 {
                let kind = one_of(&mut run.random, &[ErrorKind::OutOfMemory, ErrorKind::Other]);
                let plan = FaultPlan::new(one_of(&mut run.random, &VERBS)).kind(kind);
                let plan = plan.nth(1 + run.random.below(3) as u64);
                run.lab.device.inject(plan);
            }
            run.step();
            run.lab.device.clear_faults();
            run.check();
        }
        remapped += run.lab.stats().remapped;
        revived += run.lab.stats().revived;
        unmapped += run.lab.device.counts().unmaps;
        run.end();
    }
    // What this is about has happened, often.
    assert!(remapped > 50 && revived > 10 && unmapped > 100, "{remapped} {revived} {unmapped}");
}

/// An error says that it could not be served: with everything finished, and all that is unused given back,
/// there is no room under the limit. And the same request fails once more.
#[test]
fn h57_random_requests_fail_only_when_whole_granules_are_lacking() {
    let mut refused = 0;
    for seed in 100..160 {
        let mut run = Run::new(seed);
        for _ in 0..60 {
            run.step();
            let bytes = some_size(&mut run.random) * 2;
            let at = run.random.below(3);
            run.lab.let_run();
            let Err(error) = run.streams[at].alloc(bytes as usize) else { continue };
            assert!(error.is_out_of_memory(), "{error}");
            refused += 1;
            run.streams[at].alloc(bytes as usize).expect_err("the identical retry succeeds");
            run.lab.pool.trim(0).unwrap();
            let left = run.limit - run.lab.stats().reserved;
            assert!(left < bytes.next_multiple_of(UNIT), "{left} bytes are left: {error:?}");
        }
        run.end();
    }
    assert!(refused > 100, "{refused}");
}

/// What a thread may do while another is between two driver calls.
const ACTS: usize = 5;

fn act<'a>(lab: &'a Lab, stream: &'a Stream, which: usize) -> Option<Held> {
    match which {
        0 => drop(lab.pool.trim(0)),
        1 => drop(lab.pool.reserve(8 * BLOCK)),
        _ => {
            let own = lab.try_hold(stream, [2, 4, 3][which - 2] * BLOCK).ok()?;
            own.write(stream);
            return Some(own);
        }
    }
    None
}

#[test]
fn h20_growths_trims_and_reserves_between_any_two_calls_of_each_other() {
    for number in 0..5 * ACTS * ACTS {
        let (fault, work, other) = (number % 5, number / 5 % ACTS, number / 5 / ACTS);
        let lab = VIRTUAL.lab_of(8 * BLOCK);
        let [a, b, c] = lab.streams();
        let mut blocks: Vec<Held> = (0..8).map(|_| lab.hold(&a, BLOCK)).collect();
        blocks.iter().for_each(|own| own.write(&a));
        let kept: Vec<Held> = (0..4).map(|n| blocks.remove(n)).collect();
        drop(blocks);
        a.synchronize().unwrap();
        // So that there are pieces with several places, and the places are in the way of others.
        drop(lab.hold(&b, 4 * BLOCK));
        let small = lab.hold(&b, BLOCK);
        b.synchronize().unwrap();
        let mut held = Vec::new();
        let between = |nth| {
            if fault == nth + 1 {
                lab.device.inject(FaultPlan::new(VERBS[nth % VERBS.len()]));
            }
            held.extend(act(&lab, &c, other));
            // Every other time it goes back at once.
            if nth % 2 == 0 {
                held.clear();
                let _ = c.synchronize();
            }
        };
        let (own, _) = interleave(&lab.device, PausePoint::Before, || act(&lab, &b, work), between);
        lab.device.clear_faults();
        lab.accounts_match();
        kept.iter().for_each(|own| own.read(&a));
        assert!(lab.device.memory_peak() <= 8 * BLOCK, "{work} {other} {fault}");
        drop((own, held, kept, small));
        lab.let_run();
        lab.hold(&a, 8 * BLOCK).write(&a);
        lab.hold(&c, 3 * BLOCK).write(&c);
        all_is_given_back(&lab);
    }
}

#[test]
fn m5_threads_that_grow_and_trim_at_once_stay_within_the_limit() {
    for seed in 0..4 {
        let lab = VIRTUAL.lab_of(8 * BLOCK);
        thread::scope(|scope| {
            for n in 0..3 {
                let lab = &lab;
                scope.spawn(move || {
                    let stream = lab.stream();
                    let mut random = Random(10 * seed + n);
                    let mut live: Vec<Held> = Vec::new();
                    for _ in 0..150 {
                        match random.below(8) {
                            0..4 => {
                                let own = lab.try_hold(&stream, some_size(&mut random));
                                own.iter().for_each(|own| own.write(&stream));
                                live.extend(own);
                            }
                            4 => drop(lab.pool.trim(UNIT * random.below(8) as u64)),
                            5 => drop(lab.pool.reserve(UNIT * random.below(16) as u64)),
                            _ => live.truncate(random.below(6)),
                        }
                    }
                    drop(live);
                    stream.synchronize().unwrap();
                });
            }
        });
        assert!(lab.device.memory_peak() <= 8 * BLOCK);
        all_is_given_back(&lab);
    }
}

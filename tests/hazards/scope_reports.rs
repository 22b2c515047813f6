//! Scopes of several threads, pools and depths on the same streams: every report is exact.

use std::sync::Mutex;
use std::thread;

use crate::common::{BLOCK, Held, Lab, MIB, Random, Setup, Stream, in_both_kinds, lazy_device};
use streampool::backend::ErrorKind;
use streampool::sim::{Call, FaultPlan, Kernel, Schedule, SimConfig, SimDevice};
use streampool::{Buffer, Growth, QuiescentScope, StreamPool};

const VIRTUAL: Setup = Setup { growth: Growth::Virtual };

/// What one scope must report.
struct Open {
    /// None: it was leaked, and what is freed in it is in nobody's report.
    scope: Option<QuiescentScope<SimDevice>>,
    pool: usize,
    freed: u64,
    bytes: u64,
}

#[test]
fn every_scope_counts_its_own_frees_and_no_others() {
    const THREADS: u64 = 4;
    const STEPS: usize = 1500;
    for seed in 0..6_u64 {
        for schedule in [Schedule::Random, Schedule::Timed, Schedule::Lazy] {
            let device = SimDevice::new(SimConfig {
                seed,
                schedule,
                context_events: seed % 3 != 1,
                ..SimConfig::default()
            });
            let pools = [0, 1].map(|at| {
                let builder = StreamPool::builder(device.clone()).floor(if seed % 2 == 0 {
                    0
                } else {
                    64 << 20
                });
                builder.foreign_captures(seed % 4 == 3 && at == 0).build().unwrap()
            });
            let shared: Vec<(usize, Stream)> = (0..6)
                .map(|at| {
                    let (pool, stream) = (&pools[at % 2], device.create_stream());
                    let record_on_free = at >= 4 && seed % 2 == 1;
                    let stream = match record_on_free {
                        true => pool.stream_record_on_free(stream),
                        false => pool.stream(stream),
                    };
                    (at % 2, stream.unwrap())
                })
                .collect();
            // Buffers that travel between threads.
            let market: Mutex<Vec<(usize, Buffer<SimDevice>)>> = Mutex::default();
            thread::scope(|threads| {
                for thread in 0..THREADS {
                    let (device, pools, shared, market) = (&device, &pools, &shared, &market);
                    threads.spawn(move || {
                        let mut chance = Random(seed * 100 + thread);
                        let mut own: Vec<(usize, Buffer<SimDevice>)> = Vec::new();
                        let mut streams: Vec<(usize, Stream)> = shared.clone();
                        let mut open: Vec<Open> = Vec::new();
                        for step in 0..STEPS {
                            match chance.below(20) {
                                0..=6 => {
                                    let (pool, stream) = &streams[chance.below(streams.len())];
                                    let bytes = [1, 5000, MIB, MIB + 256, 3 * MIB][chance.below(5)];
                                    let held = stream.alloc(bytes as usize).unwrap();
                                    let (at, size) = (held.device_ptr(), held.capacity() as u64);
                                    let writes = Kernel::new().writes(at, size).taking(50_000);
                                    if chance.below(3) != 0 {
                                        device.launch(stream.raw(), writes).unwrap();
                                    }
                                    own.push((*pool, held));
                                }
                                7 => {
                                    if !own.is_empty() {
                                        let at = chance.below(own.len());
                                        market.lock().unwrap().push(own.swap_remove(at));
                                    }
                                }
                                8 => {
                                    let got = market.lock().unwrap().pop();
                                    own.extend(got);
                                }
                                9 | 10 => {
                                    if let Some((pool, held)) = own.last() {
                                        let (of, other) = &streams[chance.below(streams.len())];
                                        if of == pool {
                                            held.use_on(other).unwrap();
                                            let (at, size) =
                                                (held.device_ptr(), held.capacity() as u64);
                                            let reads = Kernel::new().reads(at, size);
                                            device.launch(other.raw(), reads).unwrap();
                                        }
                                    }
                                }
                                11 => {
                                    if let Some((pool, held)) = own.last_mut() {
                                        let (of, other) = &streams[chance.below(streams.len())];
                                        if of == pool {
                                            held.move_to(other).unwrap();
                                        }
                                    }
                                }
                                12 => {
                                    // A stream of its own, and sometimes it goes.
                                    if streams.len() < 12 {
                                        let pool = chance.below(2);
                                        let new = pools[pool].stream(device.create_stream());
                                        streams.push((pool, new.unwrap()));
                                    } else {
                                        let at = 6 + chance.below(streams.len() - 6);
                                        let (_, gone) = streams.swap_remove(at);
                                        if chance.below(2) == 0 {
                                            let _ = gone.retire();
                                        }
                                    }
                                }
                                13 if open.len() < 4 => {
                                    let pool = chance.below(2);
                                    let scope = pools[pool].quiesce().unwrap();
                                    let scope = Some(scope);
                                    open.push(Open { scope, pool, freed: 0, bytes: 0 });
                                }
                                14 => {
                                    if !open.is_empty() {
                                        let at = chance.below(open.len());
                                        if chance.below(40) == 0 {
                                            std::mem::forget(open[at].scope.take());
                                        }
                                        let Some(scope) = open[at].scope.take() else { continue };
                                        let Open { freed, bytes, .. } = open.remove(at);
                                        let report = scope.finish();
                                        assert_eq!(
                                            (report.freed, report.bytes),
                                            (freed, bytes),
                                            "seed {seed} thread {thread} step {step}"
                                        );
                                        assert_eq!(report.clean + report.deferred, report.freed);
                                        assert!(report.deferred <= report.freed);
                                    }
                                }
                                _ => {
                                    if !own.is_empty() {
                                        let (pool, held) = own.swap_remove(chance.below(own.len()));
                                        if let Some(scope) =
                                            open.iter_mut().rev().find(|own| own.pool == pool)
                                        {
                                            scope.freed += 1;
                                            scope.bytes += held.capacity() as u64;
                                        }
                                        drop(held);
                                    }
                                }
                            }
                        }
                        for Open { scope, freed, bytes, .. } in open {
                            let Some(report) = scope.map(QuiescentScope::finish) else { continue };
                            assert_eq!((report.freed, report.bytes), (freed, bytes));
                        }
                    });
                }
            });
            market.lock().unwrap().clear();
            device.assert_no_hazards();
            for pool in &pools {
                pool.synchronize().unwrap();
                let stats = pool.stats();
                assert_eq!((stats.in_use, stats.in_transit), (0, 0));
                assert_eq!(stats.reserved, stats.free_clean + stats.free_pending);
            }
        }
    }
}

#[test]
fn whatever_fails_at_the_end_of_a_scope_what_counts_as_clean_is() {
    let calls =
        [Call::RecordContext, Call::Record, Call::Query, Call::CreateEvent, Call::IsCapturing];
    in_both_kinds(|setup| {
        for call in calls {
            for kind in [ErrorKind::Other, ErrorKind::Capture, ErrorKind::OutOfMemory] {
                for late in [false, true] {
                    for nth in 1..=6 {
                        for forever in [false, true] {
                            for busy in [false, true] {
                                fail_one(setup, call, kind, late, nth, forever, busy);
                            }
                        }
                    }
                }
            }
        }
    });
}

fn fail_one(
    setup: Setup,
    call: Call,
    kind: ErrorKind,
    late: bool,
    nth: u64,
    forever: bool,
    busy: bool,
) {
    let lab = setup.lab_of(8 * BLOCK);
    let [a, b, c, d] = lab.streams();
    let gone = lab.stream();
    let [x, y, z, w] = [(&a, &b), (&b, &c), (&c, &a), (&gone, &a)].map(|(home, other)| {
        let held = lab.hold(home, BLOCK);
        held.write(home);
        held.share(other);
        held.read(other);
        held
    });
    let scope = lab.pool.quiesce().unwrap();
    if busy {
        x.write_long(&a);
        w.write_long(&gone);
    }
    drop((x, y, w));
    let _ = gone.retire();
    drop(z);
    let mut plan = FaultPlan::new(call).nth(nth).kind(kind);
    if late {
        plan = plan.late();
    }
    if forever {
        plan = plan.from_then_on();
    }
    lab.device.inject(plan);
    let report = scope.finish();
    lab.device.clear_faults();
    assert_eq!(report.freed, 4);
    assert_eq!(report.clean + report.deferred, 4);
    if busy {
        assert!(report.deferred >= 2, "{report:?}");
    }
    // All of it on one stream.
    let all = lab.hold(&d, 8 * BLOCK);
    all.write(&d);
    drop(all);
    lab.pool.synchronize().unwrap();
}

#[test]
fn a_scope_that_could_not_open_leaves_no_account() {
    let lab = VIRTUAL.lab_of(8 * BLOCK);
    let [a, b] = lab.streams();
    let [x, y, z] = [&a, &b, &a].map(|stream| lab.hold(stream, BLOCK));
    let outer = lab.pool.quiesce().unwrap();
    drop(x);
    lab.device.inject(FaultPlan::new(Call::SynchronizeContext));
    assert!(lab.pool.release(y).is_err());
    drop(z);
    let report = outer.finish();
    // `y` was dropped in the ordinary way, in the outer scope.
    assert_eq!((report.freed, report.clean), (3, 3));
}

#[test]
fn sizes_around_the_bins_border_serve_only_their_own() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(1024 * MIB);
        let [a, b] = lab.streams();
        let mut chance = Random(7);
        let mut held: Vec<Held> = Vec::new();
        for step in 0..6000 {
            let bytes = MIB - 1024 + 256 * chance.below(9) as u64 + (step % 3) - 1;
            match chance.below(6) {
                0..=2 if held.len() < 60 => {
                    let align = [256, 4096, 1 << 20][chance.below(3)];
                    let buffer = a.alloc_aligned(bytes as usize, align as usize).unwrap();
                    assert_eq!(buffer.device_ptr() % align, 0);
                    assert!(buffer.len() == bytes as usize && buffer.capacity() >= buffer.len());
                    assert!(buffer.capacity() as u64 <= bytes + bytes / 8 + 256);
                    let own = Held::of(&lab.device, &a, buffer);
                    own.write(&a);
                    held.push(own);
                }
                3 if !held.is_empty() => {
                    let at = chance.below(held.len());
                    held[at].share(&b);
                }
                4 if !held.is_empty() => {
                    let at = chance.below(held.len());
                    held[at].rehome(if step % 2 == 0 { &b } else { &a });
                }
                _ => {
                    if !held.is_empty() {
                        let some = chance.below(held.len() + 1);
                        if some < held.len() {
                            held.swap_remove(some);
                        }
                    }
                }
            }
        }
        held.clear();
        lab.pool.synchronize().unwrap();
        let stats = lab.stats();
        assert_eq!((stats.in_use, stats.free_clean + stats.free_pending), (0, stats.reserved));
        // All of it together again: no block is anywhere else.
        lab.hold(&b, stats.reserved).write(&b);
    });
}

#[test]
fn a_stalled_device_defers_and_what_is_clean_is_clean() {
    let lab = VIRTUAL.lab_on(lazy_device(), |builder| builder.limit(4 * BLOCK));
    let [a, b, c] = lab.streams();
    let (x, y) = (lab.hold(&a, BLOCK), lab.hold(&b, BLOCK));
    let scope = lab.pool.quiesce().unwrap();
    x.write(&a);
    x.share(&b);
    drop((x, y));
    let report = scope.finish();
    // b waits for a, which nothing has let run.
    assert_eq!((report.freed, report.clean, report.deferred), (2, 0, 2));
    lab.hold(&c, 4 * BLOCK).write(&c);
    let _: &Lab = &lab;
}

#[test]
fn a_device_lost_at_the_end_of_a_scope_is_met_once() {
    let lab = VIRTUAL.lab_of(64 * BLOCK).unwatched();
    let streams: [Stream; 32] = lab.streams();
    let held: Vec<_> = streams.iter().map(|stream| lab.hold(stream, BLOCK)).collect();
    let scope = lab.pool.quiesce().unwrap();
    drop(held);
    lab.device.inject(FaultPlan::new(Call::RecordContext).kind(ErrorKind::DeviceLost));
    let (report, calls) = lab.calls_of(|| scope.finish());
    assert_eq!((report.freed, report.deferred), (32, 32));
    let stray = lab.stats().stray_errors;
    assert!(stray == 1, "{stray} errors kept for one lost device; calls {calls:?}");
}

#[test]
fn a_pool_closed_inside_a_scope_makes_no_call_at_its_end() {
    let lab = VIRTUAL.lab_of(8 * BLOCK).unwatched();
    let [a, b] = lab.streams();
    let (x, y) = (lab.hold(&a, BLOCK), lab.hold(&b, BLOCK));
    let scope = lab.pool.quiesce().unwrap();
    drop((x, y));
    lab.pool.close().unwrap();
    let events = lab.device.live_events();
    let (report, calls) = lab.calls_of(|| scope.finish());
    assert_eq!((report.freed, report.deferred), (2, 2), "a closed pool hands nothing out");
    assert_eq!(
        (calls.driver_calls(), lab.device.live_events()),
        (0, events),
        "a closed pool calls the driver: {calls:?}"
    );
}

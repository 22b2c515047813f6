//! H20 to H27: what threads do to each other between any two driver calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use streampool::backend::Backend;
use streampool::sim::{Call, CallCounts, Kernel, PausePoint, Schedule, SimConfig, SimDevice};

use crate::common::{BLOCK, Held, KIB, MIB, Random, Stream, in_both_kinds, interleave, launch};

const POINTS: [PausePoint; 2] = [PausePoint::Before, PausePoint::After];

#[test]
fn h20_frees_of_two_threads_at_every_driver_call_lose_no_dependency() {
    in_both_kinds(|setup| {
        for point in POINTS {
            // t1 (the worker) allocates on c what a freed, while t2 (this thread) frees on b, and
            // launches on a and on b, at each of its driver calls.
            for reserved in [6 * BLOCK, 12 * BLOCK] {
                let lab = setup.lazy_lab_of(reserved);
                lab.pool.reserve(6 * BLOCK).unwrap();
                let [a, b, c, d] = lab.streams();
                let hold_both = |stream: &Stream| [(); 3].map(|()| lab.hold(stream, BLOCK));
                let (of_a, of_b) = (hold_both(&a), hold_both(&b));
                of_a.iter().for_each(|own| own.write_long(&a));
                of_b.iter().for_each(|own| own.write_long(&b));
                let mut of_b: Vec<Held> = of_b.into();
                let work = || {
                    drop(of_a);
                    for bytes in [BLOCK, 2 * BLOCK, 3 * BLOCK, 5 * BLOCK] {
                        let y = lab.hold(&c, bytes);
                        y.write(&c);
                        c.mark().unwrap();
                    }
                };
                let ((), held) = interleave(&lab.device, point, work, |n| {
                    launch(&lab.device, a.raw(), Kernel::new());
                    if let Some(own) = of_b.pop() {
                        own.write(&b);
                    } else if n % 3 == 0
                        && let Ok(own) = lab.try_hold(&d, BLOCK)
                    {
                        own.write(&d);
                    }
                });
                assert!(held > 8, "held {held} times only");
                assert!(lab.device.counts().stream_waits > 0);
            }
        }
    });
}

#[test]
fn h20_two_threads_under_random_schedules_lose_no_dependency() {
    in_both_kinds(|setup| {
        for seed in 0..8 {
            let config = SimConfig { schedule: Schedule::Random, seed, ..SimConfig::default() };
            let lab = setup.lab_on(SimDevice::new(config), |builder| builder.limit(24 * MIB));
            let streams: [Stream; 4] = lab.streams();
            let shelf: Mutex<Vec<Held>> = Mutex::default();
            thread::scope(|scope| {
                for worker in 0..3 {
                    let (lab, streams, shelf) = (&lab, &streams, &shelf);
                    scope.spawn(move || {
                        let random = &mut Random(seed * 10 + worker);
                        for _ in 0..300 {
                            let stream = &streams[random.below(4)];
                            match random.below(8) {
                                0..4 => {
                                    let bytes = [MIB, 2 * MIB, 512 * KIB, 5 * MIB][random.below(4)];
                                    if let Ok(own) = lab.try_hold(stream, bytes) {
                                        own.write(stream);
                                        shelf.lock().unwrap().push(own);
                                    }
                                }
                                4 => stream.mark().unwrap(),
                                _ => {
                                    // Another thread's buffer as often as not.
                                    let mut shelf = shelf.lock().unwrap();
                                    let n = random.below(shelf.len() + 1);
                                    let own = (n < shelf.len()).then(|| shelf.swap_remove(n));
                                    drop(shelf);
                                    drop(own);
                                }
                            }
                        }
                    });
                }
            });
            drop(shelf);
            lab.no_hazard();
            let stats = lab.stats();
            assert!(stats.hits > 0 && stats.covered + stats.asked > 0, "{stats:?}");
        }
    });
}

#[test]
fn h21_a_block_whose_event_is_being_recorded_is_not_taken_as_ordered() {
    in_both_kinds(|setup| {
        for point in POINTS {
            for late_waits in [true, false] {
                let lab =
                    setup.lazy_lab_with(|builder| builder.limit(2 * BLOCK).late_waits(late_waits));
                let [a, b, c] = lab.streams();
                let x = lab.hold(&a, BLOCK);
                let _other = lab.hold(&a, BLOCK);
                x.write_long(&a);
                drop(x);
                let pause = lab.device.pause(Call::Record, point);
                thread::scope(|scope| {
                    let taker = scope.spawn(|| lab.try_hold(&b, BLOCK).inspect(|y| y.write(&b)));
                    pause.wait_reached();
                    // The epoch's number is taken, its event not published.
                    let z = lab.try_hold(&c, BLOCK);
                    if late_waits {
                        z.as_ref().unwrap().write(&c);
                    } else {
                        assert!(z.as_ref().unwrap_err().is_out_of_memory());
                    }
                    pause.resume();
                    let y = taker.join().unwrap();
                    // One of the two at the most.
                    assert!(y.is_err(), "b got what c holds");
                });
                lab.no_hazard();
            }
        }
    });
}

#[test]
fn h21_a_wait_under_way_counts_for_nobody() {
    in_both_kinds(|setup| {
        for point in POINTS {
            let lab = setup.lazy_lab_of(2 * BLOCK);
            let [a, b] = lab.streams();
            let (x, y) = (lab.hold(&a, BLOCK), lab.hold(&a, BLOCK));
            x.write_long(&a);
            y.write_long(&a);
            drop((x, y));
            let pause = lab.device.pause(Call::Wait, point);
            thread::scope(|scope| {
                let first = scope.spawn(|| {
                    let x = lab.hold(&b, BLOCK);
                    x.write(&b);
                    x
                });
                pause.wait_reached();
                // The same stream, on this thread: it must make a wait of its own.
                let y = lab.hold(&b, BLOCK);
                assert_eq!(lab.device.counts().stream_waits, 2);
                y.write(&b);
                pause.resume();
                assert_ne!(first.join().unwrap().at(), y.at());
            });
        }
    });
}

#[test]
fn h23_of_many_threads_that_want_one_block_one_gets_it() {
    in_both_kinds(|setup| {
        const THREADS: usize = 6;
        for round in 0..12 {
            let lazy = round % 2 == 0;
            let options = |builder: streampool::PoolBuilder<_>| builder.limit(BLOCK);
            let lab = if lazy { setup.lazy_lab_with(options) } else { setup.lab_with(options) };
            let a = lab.stream();
            let x = lab.hold(&a, BLOCK);
            x.write(&a);
            drop(x);
            let (start, end) = (Barrier::new(THREADS), Barrier::new(THREADS));
            let served = AtomicU64::new(0);
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        let stream = lab.stream();
                        start.wait();
                        let got = lab.try_hold(&stream, BLOCK);
                        match &got {
                            Ok(own) => {
                                own.write(&stream);
                                served.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => assert!(error.is_out_of_memory(), "{error}"),
                        }
                        end.wait();
                    });
                }
            });
            assert_eq!(served.into_inner(), 1, "round {round}");
        }
    });
}

#[test]
fn h24_while_a_record_blocks_hits_and_frees_go_on() {
    in_both_kinds(|setup| {
        for verb in [Call::Record, Call::Query, Call::Wait, Call::IsCapturing] {
            let lab = setup.lazy_lab_of(4 * BLOCK);
            lab.pool.reserve(4 * BLOCK).unwrap();
            let [a, b, c] = lab.streams();
            let [x, y, z, w] = std::array::from_fn(|n| lab.hold([&a, &a, &c, &b][n], BLOCK));
            x.write_long(&a);
            drop((x, y, z, w));
            let pause = lab.device.pause(verb, PausePoint::Before);
            thread::scope(|scope| {
                let slow = scope.spawn(|| lab.hold(&b, 2 * BLOCK));
                pause.wait_reached();
                let hits = lab.stats().hits;
                let ((), calls) = lab.calls_of(|| {
                    // On a third stream, and on the one that is being recorded where it has a block.
                    for _ in 0..1000 {
                        if let Some(again) = hit(&lab, &c) {
                            again.write(&c);
                        }
                    }
                });
                assert_eq!(calls.launches, lab.stats().hits - hits);
                assert_eq!(calls.driver_calls(), 0);
                assert!(!slow.is_finished(), "{verb} did not block");
                pause.resume();
                drop(slow.join().unwrap());
            });
        }
    });
}

/// A block of the stream's own list, if it has one: an allocation that is known to be a hit.
fn hit(lab: &crate::common::Lab, stream: &Stream) -> Option<Held> {
    let is_there = lab.stats().on_lists >= BLOCK;
    is_there.then(|| lab.hold(stream, BLOCK))
}

#[test]
fn h24_a_stream_whose_epoch_is_being_closed_serves_its_own_hits() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_with(|builder| builder);
        let a = lab.stream();
        let x = lab.hold(&a, BLOCK);
        x.write_long(&a);
        let pause = lab.device.pause(Call::Record, PausePoint::Before);
        thread::scope(|scope| {
            let slow = scope.spawn(|| a.mark().unwrap());
            pause.wait_reached();
            let ((), calls) = lab.calls_of(|| {
                drop(x);
                for _ in 0..1000 {
                    drop(lab.hold(&a, BLOCK));
                }
            });
            assert_eq!((calls, lab.stats().hits), (CallCounts::default(), 1000));
            assert!(!slow.is_finished());
            pause.resume();
        });
    });
}

#[test]
fn h25_a_free_on_a_thread_with_another_context_or_none_leaves_it_as_it_was() {
    in_both_kinds(|setup| {
        let [own, other]: [SimDevice; 2] = SimDevice::several(1, 2).try_into().unwrap();
        let lab = setup.lab_on(own.clone(), |builder| builder.limit(2 * BLOCK));
        let [a, b] = lab.streams();
        SimDevice::set_current_context(Some(own.context_id()));
        for context in [None, Some(other.context_id()), Some(own.context_id())] {
            let x = lab.hold(&a, BLOCK);
            x.write(&a);
            thread::scope(|scope| {
                scope.spawn(|| {
                    SimDevice::set_current_context(context);
                    drop(x);
                    lab.hold(&b, 2 * BLOCK).write(&b);
                    drop(lab.pool.quiesce().unwrap());
                    lab.pool.trim(0).unwrap();
                    assert_eq!(SimDevice::current_context(), context);
                });
            });
            lab.hold(&a, BLOCK).write(&a);
        }
        assert_eq!(SimDevice::current_context(), Some(own.context_id()));
    });
}

#[test]
fn h26_dropped_in_a_thread_local_destructor_it_makes_no_driver_call() {
    thread_local! {
        static LAST: std::cell::RefCell<Vec<Held>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    in_both_kinds(|setup| {
        for in_scope in [false, true] {
            let lab = setup.lazy_lab_with(|builder| builder);
            let [a, b] = lab.streams();
            let kept = [lab.hold(&a, BLOCK), lab.hold(&a, BLOCK)];
            kept[1].share(&b);
            let (before, after) = thread::scope(|scope| {
                let worker = scope.spawn(|| {
                    if in_scope {
                        // Leaked, so that the thread's scopes are open when its locals go.
                        std::mem::forget(lab.pool.quiesce().unwrap());
                    }
                    LAST.with(|last| last.borrow_mut().extend(kept));
                    lab.device.counts()
                });
                (worker.join().unwrap(), lab.device.counts())
            });
            // A scoped thread may be joined before its destructors have run.
            let deadline = Instant::now() + Duration::from_secs(10);
            while lab.frees() < 2 && Instant::now() < deadline {
                thread::yield_now();
            }
            assert_eq!((lab.frees(), lab.stats().in_use), (2, 0));
            assert_eq!((after, lab.device.counts()), (before, before));
            assert_eq!(lab.hold(&a, BLOCK).size(), BLOCK);
        }
    });
}

#[test]
fn h26_dropped_in_a_host_function_it_makes_no_driver_call() {
    in_both_kinds(|setup| {
        let lab = setup.lab_with(|builder| builder.limit(8 * BLOCK));
        let [a, b] = lab.streams();
        // One plain, one shared, one whose stream has no handle left, one of a shut list.
        let gone = lab.stream();
        let plain = lab.hold(&a, BLOCK);
        let shared = lab.hold(&a, BLOCK);
        shared.write(&a);
        shared.share(&b);
        shared.read(&b);
        let orphan = lab.hold(&gone, BLOCK);
        orphan.write(&gone);
        drop(gone);
        let dropped = Arc::new(AtomicU64::new(0));
        let all = Mutex::new(Some((plain, shared, orphan)));
        let (device, count) = (lab.device.clone(), Arc::clone(&dropped));
        let function = Box::new(move || {
            let before = device.counts();
            drop(all.lock().unwrap().take());
            assert_eq!(device.counts(), before, "a drop made a driver call");
            count.store(1, Ordering::Relaxed);
        });
        launch(&lab.device, a.raw(), Kernel::new().host_function(function));
        lab.let_run();
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        assert_eq!((lab.stats().in_use, lab.frees()), (0, 3));
        lab.hold(&b, 3 * BLOCK).write(&b);
        assert_eq!(lab.stats().streams, 2, "the stream with no handle has left");
    });
}

#[test]
fn h26_dropped_in_a_host_function_while_the_ladder_synchronizes() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(BLOCK);
        let [a, b] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        x.write(&a);
        let freed = Mutex::new(Some(x));
        let function = Box::new(move || drop(freed.lock().unwrap().take()));
        launch(&lab.device, a.raw(), Kernel::new().host_function(function));
        // b's ladder synchronizes; that executes the host function, which frees into a shut list.
        let y = lab.hold(&b, BLOCK);
        y.write(&b);
        assert_eq!(lab.stats().ladders, 1);
    });
}

#[test]
fn h27_hits_of_many_threads_share_nothing_but_their_streams() {
    in_both_kinds(|setup| {
        const THREADS: usize = 32;
        const PAIRS: u64 = 500;
        let lab = setup.lab();
        let streams: Vec<Stream> = (0..THREADS).map(|_| lab.stream()).collect();
        streams.iter().for_each(|stream| drop(lab.hold(stream, 64 * KIB)));
        let before = lab.stats();
        // A thread that is held in a driver call holds no lock that a hit needs: the hits of all
        // others end while it is there.
        let held = lab.stream();
        let pause = lab.device.pause(Call::Record, PausePoint::Before);
        let ((), calls) = lab.calls_of(|| {
            thread::scope(|scope| {
                let slow = scope.spawn(|| held.mark().unwrap());
                pause.wait_reached();
                let workers: Vec<_> = (streams.iter())
                    .map(|stream| {
                        scope.spawn(move || {
                            for _ in 0..PAIRS {
                                drop(stream.alloc(64 << 10).unwrap());
                            }
                        })
                    })
                    .collect();
                workers.into_iter().for_each(|worker| worker.join().unwrap());
                assert!(!slow.is_finished());
                pause.resume();
            });
        });
        let after = lab.stats();
        let pairs = THREADS as u64 * PAIRS;
        assert_eq!((after.hits - before.hits, after.misses, after.live), (pairs, before.misses, 0));
        assert_eq!(
            (calls.event_records, calls.driver_calls()),
            (1, after.calls.total() - before.calls.total())
        );
        assert!(calls.driver_calls() < 8, "{calls:?}");
        assert_eq!(after.reserved, before.reserved);
    });
}

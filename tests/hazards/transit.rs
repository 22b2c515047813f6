//! Bytes that other threads have in their hands: in the account and under the limit at every moment, and
//! seen by a ladder when they come back.

use std::sync::{Arc, Mutex};
use std::thread;

use streampool::sim::{Call, FaultPlan, Pause, PausePoint, SimConfig, SimDevice};
use streampool::{Growth, Reuse};

use crate::common::{BLOCK, MIB, Setup, Stream, in_both_kinds};

#[test]
fn m5_a_reserve_beside_a_growth_stays_within_the_limit() {
    in_both_kinds(|setup| {
        // Where a reserve has looked at the account and does not yet have the memory.
        let verbs: &[Call] = match setup.growth {
            Growth::Segments => &[Call::AllocSegment],
            _ => &[Call::ReserveRange, Call::CreateGranule],
        };
        for verb in verbs {
            let lab = setup.lab_of(BLOCK);
            let a = lab.stream();
            let pause = lab.device.pause(*verb, PausePoint::Before);
            thread::scope(|scope| {
                let reserving = scope.spawn(|| lab.pool.reserve(BLOCK));
                pause.wait_reached();
                let grown = lab.try_hold(&a, BLOCK);
                pause.resume();
                let reserved = reserving.join().unwrap();
                assert!(grown.is_ok() || reserved.is_ok(), "{grown:?}\n{reserved:?}");
                assert!(grown.is_err() || reserved.is_err() || lab.stats().reserved == BLOCK);
            });
            let peak = lab.device.memory_peak();
            assert!(peak <= BLOCK, "{peak} bytes taken under a limit of {BLOCK}");
        }
    });
}

#[test]
fn m5_a_reserve_that_fails_gives_its_claim_back() {
    in_both_kinds(|setup| {
        let verbs: &[Call] = match setup.growth {
            Growth::Segments => &[Call::AllocSegment],
            _ => &[Call::CreateGranule, Call::Map, Call::SetAccess, Call::ReserveRange],
        };
        for verb in verbs {
            let lab = setup.lab_of(BLOCK);
            lab.device.inject(FaultPlan::new(*verb));
            lab.pool.reserve(BLOCK).unwrap_err();
            // What the device had given by then is free, and no other memory is.
            let (stats, taken) = (lab.stats(), lab.device.memory_in_use());
            assert_eq!((stats.reserved, stats.free_clean), (taken, taken), "{verb}");
            assert_eq!(stats.in_transit, 0, "{verb}");
            lab.pool.reserve(BLOCK).unwrap();
            lab.hold(&lab.stream(), BLOCK);
        }
    });
}

#[test]
fn m5_memory_that_is_given_back_again_counts_while_the_driver_has_it() {
    let lab = Setup { growth: Growth::Virtual }.lab_of(BLOCK);
    let a = lab.stream();
    lab.pool.reserve(BLOCK).unwrap();
    lab.device.inject(FaultPlan::new(Call::DestroyGranule));
    lab.pool.trim(0).unwrap_err();
    assert_eq!((lab.stats().free_clean, lab.device.mapped_bytes()), (BLOCK, 0));
    let pause = lab.device.pause(Call::DestroyGranule, PausePoint::Before);
    thread::scope(|scope| {
        let trimming = scope.spawn(|| lab.pool.trim(0));
        pause.wait_reached();
        assert_eq!(lab.stats().reserved, BLOCK, "the device still holds it");
        let error = lab.try_hold(&a, BLOCK).unwrap_err();
        assert!(error.is_over_limit(), "{error}");
        pause.resume();
        trimming.join().unwrap().unwrap();
    });
    assert_eq!(lab.device.memory_peak(), BLOCK);
    lab.hold(&a, BLOCK).write(&a);
}

#[test]
fn m5_what_the_device_did_not_give_raises_no_peak() {
    in_both_kinds(|setup| {
        let verbs: &[Call] = match setup.growth {
            Growth::Segments => &[Call::AllocSegment],
            _ => &[Call::CreateGranule],
        };
        for verb in verbs {
            let lab = setup.lab();
            let a = lab.stream();
            let _x = lab.hold(&a, BLOCK);
            lab.device.inject(FaultPlan::new(*verb).from_then_on());
            lab.try_hold(&a, 4 * BLOCK).unwrap_err();
            lab.pool.reserve(8 * BLOCK).unwrap_err();
            assert_eq!(lab.stats().peak_reserved, lab.device.memory_peak(), "{verb}");
            // Nor while a thread still asks for it.
            lab.device.clear_faults();
            let pause = lab.device.pause(*verb, PausePoint::Before);
            thread::scope(|scope| {
                let reserving = scope.spawn(|| lab.pool.reserve(4 * BLOCK));
                pause.wait_reached();
                lab.pool.reset_peak();
                lab.device.inject(FaultPlan::new(*verb));
                pause.resume();
                let _ = reserving.join().unwrap();
            });
            lab.device.clear_faults();
            lab.device.reset_memory_peak();
            lab.pool.reset_peak();
            assert_eq!(lab.stats().peak_reserved, lab.device.memory_peak(), "{verb}");
        }
    });
}

/// A block leaves for another thread's trim after the last search of a ladder has begun, and is back before
/// the verdict: the driver does not take it.
#[test]
fn h55_what_leaves_and_comes_back_within_the_last_search_is_looked_at() {
    use Growth::{Segments, Virtual};
    // The calls for memory: the first of the last search, and the last of it, after what else is unused
    // has gone back.
    for (growth, late_waits, first, last) in
        [(Segments, true, 3, 4), (Virtual, false, 3, 8), (Virtual, true, 5, 10)]
    {
        let config = SimConfig { memory_bytes: 6 * MIB, ..SimConfig::default() };
        let lab = Setup { growth }.lab_on(SimDevice::new(config), |builder| {
            builder.reuse(Reuse::Memory).late_waits(late_waits).floor(0).soft_target(0)
        });
        let [a, c] = lab.streams();
        let (z, x) = (lab.hold(&a, 2 * MIB), lab.hold(&a, 4 * MIB));
        assert!(z.at() < x.at(), "a trim takes the highest first");
        let (take, give) = match growth {
            Segments => (Call::AllocSegment, Call::FreeSegment),
            _ => (Call::CreateGranule, Call::Unmap),
        };
        thread::scope(|scope| {
            let mut asks = lab.device.pause(take, PausePoint::After);
            let other = scope.spawn(|| lab.try_hold(&c, 4 * MIB));
            let next = |asks: &mut Pause| {
                let next = lab.device.pause(take, PausePoint::After);
                asks.resume();
                next.wait_reached();
                *asks = next;
            };
            asks.wait_reached();
            (1..first).for_each(|_| next(&mut asks));
            drop((x, z));
            a.synchronize().unwrap();
            let gives = lab.device.pause(give, PausePoint::Before);
            // The claim of the other thread counts as reserved.
            let trimming = scope.spawn(|| lab.pool.trim(6 * MIB));
            gives.wait_reached();
            (first..last).for_each(|_| next(&mut asks));
            lab.device.inject(FaultPlan::new(give));
            gives.resume();
            trimming.join().unwrap().expect_err("the driver refuses");
            asks.resume();
            other.join().unwrap().expect("a false out of memory").write(&c);
        });
    }
}

/// All that a stream was used for has finished, but the stream is just leaving on another thread, so that
/// nobody else can record on it.
#[test]
fn h55_what_a_leaving_stream_holds_is_waited_for() {
    in_both_kinds(|setup| {
        for by_hand in [true, false] {
            let held: Arc<Mutex<Option<Pause>>> = Arc::default();
            let hook = Arc::clone(&held);
            let lab = setup.lab_with(|builder| {
                builder.limit(BLOCK).late_waits(false).on_pressure(move |_| {
                    hook.lock().unwrap().take().unwrap().resume();
                })
            });
            let [a, c]: [Stream; 2] = lab.streams();
            let x = lab.hold(&a, BLOCK);
            x.write(&a);
            drop(x);
            lab.let_run();
            let pause = lab.device.pause(Call::Record, PausePoint::Before);
            thread::scope(|scope| {
                let leaving = scope.spawn(|| {
                    if by_hand {
                        a.retire().unwrap();
                    } else {
                        drop(a);
                        // Whatever may block.
                        c.mark().unwrap();
                    }
                });
                pause.wait_reached();
                *held.lock().unwrap() = Some(pause);
                let y = lab.try_hold(&c, BLOCK);
                leaving.join().unwrap();
                y.expect("a false out of memory").write(&c);
            });
        }
    });
}

#[test]
fn s1_a_stream_that_cannot_leave_yet_keeps_no_other_from_leaving() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let [a, b, c, d]: [Stream; 4] = lab.streams();
        let raw = b.raw().clone();
        lab.device.begin_capture(&raw, streampool::sim::CaptureMode::Relaxed).unwrap();
        drop(a);
        drop(b);
        drop(c);
        d.mark().unwrap();
        assert_eq!(lab.stats().streams, 2, "b, which captures, and d");
        lab.device.end_capture(&raw).unwrap();
        d.mark().unwrap();
        assert_eq!(lab.stats().streams, 1);
    });
}

#[test]
fn s1_many_streams_that_cannot_leave_cost_each_call_a_bounded_number_of_looks() {
    let lab = Setup { growth: Growth::Virtual }.lab();
    let d = lab.stream();
    let raws: Vec<_> = (0..200)
        .map(|_| {
            let stream = lab.stream();
            let raw = stream.raw().clone();
            lab.device.begin_capture(&raw, streampool::sim::CaptureMode::Relaxed).unwrap();
            raw
        })
        .collect();
    let ((), calls) = lab.calls_of(|| d.mark().unwrap());
    assert!(calls.of(Call::IsCapturing) < 80, "{calls:?}");
    for raw in &raws {
        lab.device.end_capture(raw).unwrap();
    }
    (0..4).for_each(|_| d.mark().unwrap());
    assert_eq!(lab.stats().streams, 1);
}

/// The driver may wait for whatever runs before it takes a plain segment: without late waits no
/// allocation asks it to.
#[test]
fn s6_without_late_waits_no_plain_segment_goes_back_for_an_allocation() {
    for late_waits in [false, true] {
        let lab = Setup { growth: Growth::Segments }
            .lab_with(|builder| builder.limit(2 * BLOCK).late_waits(late_waits));
        let [a, b]: [Stream; 2] = lab.streams();
        drop([lab.hold(&a, BLOCK), lab.hold(&a, BLOCK)]);
        a.synchronize().unwrap();
        let (taken, calls) = lab.calls_of(|| lab.try_hold(&b, 2 * BLOCK));
        assert_eq!(calls.segment_frees, if late_waits { 2 } else { 0 });
        assert_eq!(taken.is_ok(), late_waits);
    }
}

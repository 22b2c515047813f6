//! H55 to H61: failing calls, no memory, a lost device, and what a pool leaves alone.

use std::sync::{Arc, Mutex};
use std::thread;

use streampool::backend::ErrorKind;
use streampool::sim::{
    Call, CallCounts, CallFilter, FaultPlan, Kernel, Pause, PausePoint, Schedule, SimConfig,
    SimDevice, SimErrorCode,
};
use streampool::{Error, Growth, PoolBuilder, Reuse};

use crate::common::{
    BLOCK, GIB, Held, KIB, Lab, MIB, Random, Setup, Stream, in_both_kinds, launch,
};

/// Two threads want the only block that there can be; the call of the first that would get it is held
/// and then fails, while the second is in its own ladder. One of them must be served.
fn h55(lab: &Lab, held: &Mutex<Option<Pause>>, [b, c]: [&Stream; 2]) {
    thread::scope(|scope| {
        let first = scope.spawn(|| lab.try_hold(b, BLOCK).inspect(|own| own.write(b)));
        held.lock().unwrap().as_ref().unwrap().wait_reached();
        // The hook resumes the first.
        let second = lab.try_hold(c, BLOCK).inspect(|own| own.write(c));
        let first = first.join().unwrap();
        let served = [first.is_ok(), second.is_ok()];
        assert!(served != [false, false], "a false out of memory:\n{first:?}\n{second:?}");
        assert!(served != [true, true]);
    });
    assert_eq!(lab.device.injected_count(), 1);
}

fn resuming(setup: Setup, held: &Arc<Mutex<Option<Pause>>>) -> Lab {
    let held = Arc::clone(held);
    setup.lazy_lab_with(|builder: PoolBuilder<_>| {
        builder.limit(BLOCK).on_pressure(move |_| held.lock().unwrap().as_ref().unwrap().resume())
    })
}

#[test]
fn h55_a_growth_that_fails_during_anothers_ladder_makes_no_false_out_of_memory() {
    in_both_kinds(|setup| {
        let growths: &[Call] = match setup.growth {
            Growth::Segments => &[Call::AllocSegment],
            _ => &[Call::CreateGranule, Call::Map, Call::SetAccess],
        };
        for verb in growths {
            let held = Arc::default();
            let lab = resuming(setup, &held);
            let [b, c] = lab.streams();
            *held.lock().unwrap() = Some(lab.device.pause(*verb, PausePoint::Before));
            lab.device.inject(FaultPlan::new(*verb));
            h55(&lab, &held, [&b, &c]);
        }
    });
}

#[test]
fn h55_a_steal_whose_wait_fails_during_anothers_ladder_makes_none_either() {
    in_both_kinds(|setup| {
        let held = Arc::default();
        let lab = resuming(setup, &held);
        let [a, b, c] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        x.write_long(&a);
        drop(x);
        *held.lock().unwrap() = Some(lab.device.pause(Call::Wait, PausePoint::Before));
        lab.device.inject(FaultPlan::new(Call::Wait));
        h55(&lab, &held, [&b, &c]);
        assert_eq!(lab.device.counts().stream_waits, 1);
    });
}

/// The device's only granule is with a thread whose growth fails just when the last search of another's
/// ladder has found nothing: what has come back by the time of the verdict is looked at first.
#[test]
fn h55_what_comes_back_while_the_last_search_ends_is_looked_at() {
    let config =
        SimConfig { memory_bytes: 2 * MIB, schedule: Schedule::Lazy, ..SimConfig::default() };
    let setup = Setup { growth: Growth::Virtual };
    let lab = setup.lab_on(SimDevice::new(config), |builder| builder.reuse(Reuse::Memory));
    let [b, c] = lab.streams();
    let first = lab.device.pause(Call::Map, PausePoint::Before);
    lab.device.inject(FaultPlan::new(Call::Map).from_then_on());
    thread::scope(|scope| {
        let failing = scope.spawn(|| lab.try_hold(&b, 2 * MIB));
        first.wait_reached();
        let mut refused = lab.device.pause(Call::CreateGranule, PausePoint::After);
        let other = scope.spawn(|| lab.try_hold(&c, 2 * MIB));
        refused.wait_reached();
        while lab.device.counts().context_synchronizes == 0 {
            let next = lab.device.pause(Call::CreateGranule, PausePoint::After);
            refused.resume();
            refused = next;
            refused.wait_reached();
        }
        // The search after the synchronize has just been refused a granule; nothing follows it.
        first.resume();
        failing.join().unwrap().expect_err("it cannot map");
        lab.device.clear_faults();
        refused.resume();
        other.join().unwrap().expect("a false out of memory");
    });
}

#[test]
fn h55_while_a_ladder_lasts_what_is_freed_goes_where_it_can_be_seen() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(2 * BLOCK);
        lab.pool.reserve(2 * BLOCK).unwrap();
        let [a, b] = lab.streams();
        let (x, y) = (lab.hold(&a, BLOCK), lab.hold(&a, BLOCK));
        let pause = lab.device.pause(Call::SynchronizeContext, PausePoint::Before);
        thread::scope(|scope| {
            let climbing = scope.spawn(|| lab.hold(&b, 2 * BLOCK));
            pause.wait_reached();
            // A stream that comes now is no hiding place either.
            let late = lab.stream();
            drop(x);
            assert_eq!(lab.stats().on_lists, 0, "freed on a list that is shut");
            let z = lab.hold(&late, BLOCK);
            z.write(&late);
            drop((y, z));
            assert_eq!((lab.stats().on_lists, lab.stats().in_use), (0, 0));
            pause.resume();
            climbing.join().unwrap().write(&b);
        });
        assert_eq!(lab.stats().on_lists, 2 * BLOCK, "the lists are open again");
    });
}

/// A run of operations that reaches every verb; errors are let pass. A buffer is written once, by its
/// first owner, and then read on whatever stream: the program itself races with nothing.
fn h56_program(lab: &Lab, seed: u64) {
    let random = &mut Random(seed);
    let mut streams: Vec<Stream> =
        (0..3).filter_map(|_| lab.pool.stream(lab.device.create_stream()).ok()).collect();
    let mut held: Vec<Held> = Vec::new();
    for _ in 0..140 {
        if streams.is_empty() {
            break;
        }
        let n = random.below(streams.len());
        let stream = &streams[n];
        match random.below(24) {
            0..8 => {
                let bytes = [64 * KIB, MIB, 3 * MIB, 6 * MIB][random.below(4)];
                if let Ok(own) = lab.try_hold(stream, bytes) {
                    let _ = lab.device.launch(stream.raw(), own.writes());
                    held.push(own);
                }
            }
            8..14 => {
                let at = random.below(held.len() + 1);
                if at < held.len() {
                    held.swap_remove(at);
                }
            }
            14..16 => {
                if let Some(own) = held.last()
                    && own.use_on(stream).is_ok()
                {
                    lab.device.note_use_on(stream.raw(), own.at());
                    let _ = lab.device.launch(stream.raw(), own.reads());
                }
            }
            16 => {
                if let Some(own) = held.last_mut()
                    && own.move_to(stream).is_ok()
                {
                    lab.device.note_moved_to(stream.raw(), own.at());
                    let _ = lab.device.launch(stream.raw(), own.reads());
                }
            }
            17 => drop(stream.mark()),
            18 => drop(stream.wait_for(&streams[0])),
            19 => {
                let some: Vec<Held> = held.drain(held.len() / 2..).collect();
                let _ = lab.pool.release(some);
            }
            20 => drop(lab.pool.trim(4 * MIB)),
            21 => drop(lab.pool.synchronize()),
            22 => drop(lab.pool.reserve(8 * MIB)),
            _ => {
                drop(streams.swap_remove(n));
                if let Ok(stream) = lab.pool.stream(lab.device.create_stream()) {
                    streams.push(stream);
                }
            }
        }
    }
}

fn h56_lab(setup: Setup) -> Lab {
    setup.lab_with(|builder| builder.limit(16 * MIB).floor(4 * MIB))
}

#[test]
fn h56_whichever_call_fails_no_byte_is_lost_and_none_reused_too_early() {
    in_both_kinds(|setup| {
        for seed in 0..3 {
            let whole = h56_lab(setup);
            h56_program(&whole, seed);
            let calls = whole.device.counts();
            for verb in [Call::Record, Call::Wait, Call::Query, Call::IsCapturing] {
                assert!(calls.of(verb) > 0, "{verb} is never called");
            }
            let kinds = [ErrorKind::Other, ErrorKind::OutOfMemory, ErrorKind::Capture];
            for (at, kind) in kinds.into_iter().enumerate() {
                for late in [false, true] {
                    let step = 1 + at + usize::from(late);
                    for nth in (1..=calls.driver_calls()).step_by(step) {
                        let plan = FaultPlan::new(CallFilter::any()).nth(nth).kind(kind);
                        h56_one(setup, seed, if late { plan.late() } else { plan });
                    }
                }
            }
            for nth in (1..=calls.driver_calls()).step_by(7) {
                let plan = FaultPlan::new(CallFilter::any()).nth(nth).from_then_on();
                h56_one(setup, seed, plan);
            }
        }
    });
}

fn h56_one(setup: Setup, seed: u64, plan: FaultPlan) {
    let lab = h56_lab(setup);
    lab.device.inject(plan.clone());
    h56_program(&lab, seed);
    lab.device.clear_faults();
    lab.no_hazard();
    // Everything has been dropped, and can be had again, by anybody.
    drop(lab.pool.quiesce().unwrap());
    let taker = lab.stream();
    let all = lab.try_hold(&taker, 16 * MIB);
    let all = all.unwrap_or_else(|error| panic!("{plan:?}: {error}\n{:?}", lab.stats()));
    all.write(&taker);
    drop(all);
    lab.no_hazard();
    let stats = lab.stats();
    assert_eq!((stats.in_use, stats.quarantined, stats.live), (0, 0, 0), "{plan:?}: {stats:?}");
    // And given back.
    taker.synchronize().unwrap();
    lab.pool.trim(0).unwrap();
    assert_eq!(lab.device.memory_in_use(), 0, "{plan:?}: {:?}", lab.stats());
}

#[test]
fn h56_a_device_lost_at_any_call_breaks_nothing() {
    in_both_kinds(|setup| {
        let whole = h56_lab(setup);
        h56_program(&whole, 1);
        let mut struck = 0;
        for nth in 1..=whole.device.counts().driver_calls() {
            let lab = h56_lab(setup).unwatched();
            let plan = FaultPlan::new(CallFilter::any()).nth(nth).kind(ErrorKind::DeviceLost);
            lab.device.inject(plan);
            h56_program(&lab, 1);
            lab.no_hazard();
            assert_eq!(lab.stats().live, 0);
            if lab.device.injected_count() == 0 {
                // Calls that cannot fail are counted too: the last numbers strike nothing.
                continue;
            }
            struck += 1;
            let lost = lab.pool.quiesce().expect_err("the device is lost");
            assert!(lost.is_device_lost(), "the {nth}th: {lost}");
        }
        assert!(struck > 100, "{struck} calls were struck");
    });
}

#[test]
fn h57_free_memory_on_other_streams_in_pieces_or_pending_is_served() {
    in_both_kinds(|setup| {
        for reuse in [Reuse::Balanced, Reuse::Memory, Reuse::Speed] {
            for lazy in [false, true] {
                let options = |builder: PoolBuilder<_>| builder.limit(8 * BLOCK).reuse(reuse);
                let lab = if lazy { setup.lazy_lab_with(options) } else { setup.lab_with(options) };
                let streams: [Stream; 4] = lab.streams();
                let taker = lab.stream();
                // On other streams, in small pieces, all pending.
                let pieces: Vec<Held> =
                    (0..32).map(|n| lab.hold(&streams[n % 4], BLOCK / 4)).collect();
                pieces.iter().enumerate().for_each(|(n, own)| own.write_long(&streams[n % 4]));
                drop(pieces);
                let whole = lab.hold(&taker, 8 * BLOCK);
                whole.write_long(&taker);
                drop(whole);
                // Of one stream, in one piece, for many small ones.
                let small: Vec<Held> =
                    (0..128).map(|n| lab.hold(&streams[n % 4], BLOCK / 16)).collect();
                small.iter().enumerate().for_each(|(n, own)| own.write(&streams[n % 4]));
                drop(small);
                // Waiting for an event that a use elsewhere needs.
                let shared = lab.hold(&taker, 7 * BLOCK);
                shared.share(&streams[0]);
                shared.read_long(&streams[0]);
                drop(shared);
                lab.hold(&streams[1], 8 * BLOCK).write(&streams[1]);
            }
        }
    });
}

#[test]
fn h57_granules_with_something_in_use_between_them_become_one_block() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(8 * BLOCK);
        let [a, b] = lab.streams();
        let mut blocks: Vec<Held> = (0..8).map(|_| lab.hold(&a, BLOCK)).collect();
        blocks.iter().for_each(|own| own.write_long(&a));
        let kept: Vec<Held> = (0..4).map(|n| blocks.remove(n)).collect();
        drop(blocks);
        let large = lab.hold(&b, 4 * BLOCK);
        large.write(&b);
        kept.iter().for_each(|own| own.read(&a));
        assert_eq!(lab.stats().peak_reserved, 8 * BLOCK);
    });
}

#[test]
fn h57_with_none_it_is_an_error_with_its_numbers_and_the_pool_goes_on() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(4 * BLOCK);
        let [a, b] = lab.streams();
        let (x, y) = (lab.hold(&a, 2 * BLOCK), lab.hold(&a, BLOCK));
        drop(lab.hold(&b, BLOCK));
        let same = |first: &Error, again: &Error| {
            let (first, again) = (first.shortage().unwrap(), again.shortage().unwrap());
            assert_eq!((first.requested, first.in_use), (again.requested, again.in_use));
            assert_eq!(first.reserved, again.reserved);
        };
        let error = lab.try_hold(&b, 3 * BLOCK).unwrap_err();
        let numbers = error.shortage().unwrap().clone();
        assert!(error.is_out_of_memory() && error.is_over_limit());
        assert_eq!((numbers.requested, numbers.in_use), (3 * BLOCK, 3 * BLOCK));
        assert_eq!(numbers.limit, Some(4 * BLOCK));
        assert_eq!(numbers.reserved, numbers.in_use + numbers.free + numbers.quarantined);
        assert!(numbers.largest_free <= numbers.free && numbers.reserved <= 4 * BLOCK);
        let taken = lab.device.memory_in_use();
        assert_eq!(numbers.device_total, Some(141 * GIB));
        assert_eq!(numbers.device_free, Some(141 * GIB - taken));
        assert!(numbers.tried.len() >= 5, "{numbers:?}");
        let text = error.to_string();
        for words in ["limit", "requested 12582912", "in use 12582912", "tried"] {
            assert!(text.contains(words), "{text}");
        }
        for _ in 0..3 {
            same(&error, &lab.try_hold(&b, 3 * BLOCK).unwrap_err());
        }
        // On it goes.
        x.write(&a);
        drop(y);
        lab.hold(&b, 2 * BLOCK).write(&b);
    });
}

#[test]
fn h57_no_memory_on_the_device_is_told_from_the_pools_limit() {
    in_both_kinds(|setup| {
        let config = streampool::sim::SimConfig {
            memory_bytes: 64 * MIB,
            ..streampool::sim::SimConfig::default()
        };
        let lab = setup.lab_on(SimDevice::new(config), |builder| builder);
        let [a, b] = lab.streams();
        let x = lab.hold(&a, 48 * MIB);
        x.write_long(&a);
        let error = lab.try_hold(&b, 32 * MIB).unwrap_err();
        assert!(error.is_out_of_memory() && !error.is_over_limit(), "{error}");
        assert_eq!(error.shortage().unwrap().device_free, Some(64 * MIB - lab.stats().reserved));
        let source = std::error::Error::source(&error).expect("the driver's own error");
        assert!(source.to_string().contains("out of memory"), "{source}");
        // Exactly what the device has can be had.
        drop(lab.hold(&b, 16 * MIB));
        drop(x);
        let all = lab.hold(&b, 64 * MIB);
        all.write(&b);
        assert_eq!(lab.device.memory_peak(), 64 * MIB);
    });
}

/// Neighbours freed in five epochs of a, each larger than the one before. The first four epochs finish
/// when the device runs, the last does not before its gate opens; nothing but asking can tell.
fn h57_epochs(lab: &Lab, a: &Stream, c: &Stream) -> streampool::sim::Gate {
    drop(lab.hold(a, 15 * BLOCK));
    let gate = lab.device.gate();
    let blocks: Vec<Held> = (1..=5).map(|n| lab.hold(a, n * BLOCK)).collect();
    for (n, own) in blocks.into_iter().enumerate() {
        if n == 4 {
            launch(&lab.device, a.raw(), Kernel::new().after(&gate));
        }
        own.write(a);
        let bytes = own.size();
        drop(own);
        // Only this one is large enough for c's miss, which asks for it, and so closes its epoch.
        let ((), calls) = lab.calls_of(|| {
            lab.try_hold(c, bytes).expect_err("it is not over");
        });
        assert_eq!(calls.event_records, 1);
    }
    gate
}

#[test]
fn h57_never_an_error_whose_identical_retry_succeeds() {
    in_both_kinds(|setup| {
        for reuse in [Reuse::Balanced, Reuse::Memory, Reuse::Speed] {
            let options =
                |builder: PoolBuilder<_>| builder.limit(15 * BLOCK).late_waits(false).reuse(reuse);
            let lab = setup.lazy_lab_with(options);
            let [a, b, c] = lab.streams();
            let gate = h57_epochs(&lab, &a, &c);
            lab.let_run();
            // Four of five have finished: 1 + 2 + 3 + 4 blocks.
            let first = lab.try_hold(&b, 10 * BLOCK);
            let retry = first.is_err().then(|| lab.try_hold(&b, 10 * BLOCK).is_ok());
            assert_ne!(retry, Some(true), "the first attempt failed: {first:?}");
            first.expect("two thirds have finished").write(&b);
            gate.open();
        }
    });
}

#[test]
fn h57_random_requests_that_fail_fail_again() {
    in_both_kinds(|setup| {
        let mut failures = 0;
        for seed in 0..40 {
            let late_waits = seed % 2 == 0;
            let options = |builder: PoolBuilder<_>| {
                builder.limit(24 * MIB).floor(8 * MIB).late_waits(late_waits)
            };
            let lab = setup.lazy_lab_with(options);
            let streams: [Stream; 3] = lab.streams();
            let mut held: Vec<Held> = Vec::new();
            let random = &mut Random(seed);
            for _ in 0..80 {
                let stream = &streams[random.below(3)];
                let bytes = [MIB, 2 * MIB, 5 * MIB, 9 * MIB, 700 * KIB][random.below(5)];
                match random.below(5) {
                    0..3 => match lab.try_hold(stream, bytes) {
                        Ok(own) => {
                            own.write(stream);
                            held.push(own);
                        }
                        Err(error) => {
                            assert!(error.is_out_of_memory(), "{error}");
                            failures += 1;
                            let again = lab.try_hold(stream, bytes);
                            assert!(again.is_err(), "seed {seed}: first {error}");
                        }
                    },
                    3 => {
                        let at = random.below(held.len() + 1);
                        if at < held.len() {
                            held.swap_remove(at);
                        }
                    }
                    _ => {
                        for _ in 0..random.below(6) {
                            lab.device.step();
                        }
                    }
                }
            }
        }
        assert!(failures > 20, "{failures} failures show nothing");
    });
}

#[test]
fn h58_a_sticky_error_comes_back_from_allocations_and_drops_are_silent() {
    in_both_kinds(|setup| {
        for verb in
            [Call::Record, Call::Query, Call::Wait, Call::SynchronizeContext, Call::IsCapturing]
        {
            let lab = setup.lazy_lab_of(4 * BLOCK).unwatched();
            let [a, b] = lab.streams();
            let [x, y, z] = [(); 3].map(|()| lab.hold(&a, BLOCK));
            x.write_long(&a);
            x.share(&b);
            drop(y);
            lab.device.inject(FaultPlan::new(verb).kind(ErrorKind::DeviceLost));
            // Whichever call meets it first, it says so.
            let met: Error = match verb {
                Call::Record => a.mark().unwrap_err(),
                Call::Query => lab.try_hold(&b, 2 * BLOCK).unwrap_err(),
                Call::Wait => z.use_on(&b).unwrap_err(),
                Call::SynchronizeContext => lab.pool.synchronize().unwrap_err(),
                _ => {
                    let _ = b.mark();
                    b.mark().unwrap_err()
                }
            };
            assert!(met.is_device_lost(), "{verb}: {met}");
            // A hit, too, and on a stream that has met nothing.
            let (hit, calls) = lab.calls_of(|| lab.try_hold(&a, BLOCK));
            assert!(hit.expect_err("handed out").is_device_lost());
            assert!(lab.try_hold(&b, MIB).unwrap_err().is_device_lost());
            assert!(a.alloc(0).unwrap_err().is_device_lost());
            assert_eq!(calls, CallCounts::default(), "a lost device is called");
            let ((), calls) = lab.calls_of(|| drop((x, z)));
            assert_eq!((calls, lab.stats().live), (CallCounts::default(), 0));
            for error in [
                lab.pool.trim(0).unwrap_err(),
                lab.pool.reserve(MIB).unwrap_err(),
                lab.pool.close().unwrap_err(),
                a.synchronize().unwrap_err(),
                lab.pool.stream(lab.device.create_stream()).unwrap_err(),
                a.clone().retire().unwrap_err().error().clone(),
            ] {
                assert!(error.is_device_lost(), "{error}");
            }
            lab.no_hazard();
        }
    });
}

#[test]
fn h58_a_fault_of_a_kernel_closes_the_pool() {
    in_both_kinds(|setup| {
        let lab = setup.lab().unwatched();
        let a = lab.stream();
        let x = lab.hold(&a, BLOCK);
        launch(&lab.device, a.raw(), Kernel::new().writes(8, 8));
        assert!(lab.pool.synchronize().unwrap_err().is_device_lost());
        drop(x);
        assert!(lab.try_hold(&a, BLOCK).unwrap_err().is_device_lost());
        assert_eq!(lab.device.hazards().len(), 1, "the program's own");
    });
}

#[test]
fn h60_a_trim_leaves_what_is_in_flight_and_gives_the_rest_back_once() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let [a, b] = lab.streams();
        let blocks: Vec<Held> = (0..8).map(|n| lab.hold([&a, &b][n % 2], BLOCK)).collect();
        for (n, own) in blocks.iter().enumerate() {
            if n % 2 == 0 { own.write_long(&a) } else { own.write(&b) }
        }
        b.synchronize().unwrap();
        drop(blocks);
        let (given, calls) = lab.calls_of(|| lab.pool.trim(0).unwrap());
        assert_eq!(given, 4 * BLOCK);
        assert_eq!((lab.stats().reserved, lab.device.memory_in_use()), (4 * BLOCK, 4 * BLOCK));
        assert_eq!(calls.synchronizes() + calls.stream_waits, 0);
        match setup.growth {
            Growth::Segments => assert_eq!(calls.segment_frees, 4),
            _ => {
                // Granules of 2 MiB, the unit.
                let granules = 4 * BLOCK / (2 << 20);
                assert_eq!((calls.granule_destroys, calls.segment_frees), (granules, 0));
            }
        }
        lab.accounts_match();
        lab.no_hazard();
        // Nothing twice, and nothing that is still used. (Giving a segment back waits for the device,
        // as cuMemFree does, so that a may be over there by now.)
        if setup.growth == Growth::Virtual {
            let (given, calls) = lab.calls_of(|| lab.pool.trim(0).unwrap());
            assert_eq!((given, calls.mapping_calls()), (0, 0));
        }
        lab.let_run();
        assert_eq!(lab.pool.trim(0).unwrap(), 4 * BLOCK);
        assert_eq!((lab.stats().reserved, lab.device.memory_in_use()), (0, 0));
    });
}

#[test]
fn h60_a_piece_that_is_half_in_use_or_half_in_flight_stays_whole() {
    in_both_kinds(|setup| {
        for alive in [false, true] {
            let lab = setup.lab();
            lab.pool.reserve(2 * BLOCK).unwrap();
            let [a, b] = lab.streams();
            let (x, y) = (lab.hold(&a, BLOCK), lab.hold(&b, BLOCK));
            x.write_long(&a);
            drop(y);
            let x = Some(x).filter(|_| alive);
            let (given, calls) = lab.calls_of(|| lab.pool.trim(0).unwrap());
            assert_eq!((given, calls.mapping_calls()), (0, 0));
            drop(x);
            lab.let_run();
            assert_eq!(lab.pool.trim(0).unwrap(), 2 * BLOCK);
        }
    });
}

#[test]
fn h60_a_trim_that_the_driver_refuses_loses_nothing() {
    in_both_kinds(|setup| {
        let verbs: &[Call] = match setup.growth {
            Growth::Segments => &[Call::FreeSegment],
            _ => &[Call::Unmap, Call::DestroyGranule],
        };
        for verb in verbs {
            let lab = setup.lab();
            let a = lab.stream();
            drop([lab.hold(&a, BLOCK), lab.hold(&a, BLOCK)]);
            lab.device.inject(FaultPlan::new(*verb));
            let tried = lab.pool.trim(0);
            let kept = tried.is_err() || lab.pool.take_error().is_some();
            assert!(kept, "{verb}: the error is nowhere");
            lab.accounts_match();
            lab.pool.trim(0).unwrap();
            assert_eq!((lab.stats().reserved, lab.device.memory_in_use()), (0, 0), "{verb}");
            assert_eq!(lab.device.live_granules(), 0);
        }
    });
}

#[test]
fn h61_a_pending_error_of_the_program_is_neither_taken_nor_reported() {
    in_both_kinds(|setup| {
        let parked = Some(SimErrorCode::InvalidValue);
        assert_eq!(SimDevice::park_error(parked), None);
        let lab = setup.lab_of(2 * BLOCK);
        let [a, b] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        x.write(&a);
        x.share(&b);
        drop(x);
        lab.hold(&b, 2 * BLOCK).write(&b);
        assert!(lab.try_hold(&b, 3 * BLOCK).unwrap_err().is_out_of_memory());
        drop(lab.pool.quiesce().unwrap());
        lab.pool.trim(0).unwrap();
        drop((a, b));
        lab.pool.reserve(0).unwrap();
        lab.pool.close().unwrap();
        assert!(lab.pool.take_error().is_none());
        drop(lab);
        assert_eq!(SimDevice::pending_error(), parked);
        assert_eq!(SimDevice::park_error(None), parked);
    });
}

#[test]
fn s6_errors_that_no_result_tells_are_counted_and_kept() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let r = lab.pool.stream_record_on_free(lab.device.create_stream()).unwrap();
        assert!(lab.pool.take_error().is_none());
        for n in 1..=3 {
            let x = lab.hold(&r, BLOCK);
            lab.device.inject(FaultPlan::new(Call::Record));
            drop(x);
            assert_eq!(lab.stats().stray_errors, n);
        }
        let error = lab.pool.take_error().expect("a drop met an error");
        assert!(!error.is_out_of_memory() && !error.is_capture(), "{error}");
        assert!(lab.pool.take_error().is_none(), "it is taken once");
        assert_eq!(lab.stats().stray_errors, 3);
        // At a scope's end.
        let x = lab.hold(&r, BLOCK);
        let scope = lab.pool.quiesce().unwrap();
        drop(x);
        lab.device.inject(FaultPlan::new(Call::Query));
        let report = scope.finish();
        assert_eq!((report.freed, report.clean, report.deferred), (1, 0, 1));
        assert_eq!(lab.stats().stray_errors, 4);
        assert!(lab.pool.take_error().is_some());
    });
}

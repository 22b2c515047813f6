//! Bytes that other threads have in their hands: in the account and under the limit at every moment.

use std::thread;

use streampool::Growth;
use streampool::sim::{Call, FaultPlan, PausePoint};

use crate::common::{BLOCK, Setup, in_both_kinds};

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
            let stats = lab.stats();
            assert_eq!((stats.reserved, stats.in_transit), (0, 0), "{verb}");
            lab.pool.reserve(BLOCK).unwrap();
        }
    });
}

#[test]
fn m5_memory_that_is_given_back_again_counts_while_the_driver_has_it() {
    let lab = Setup { growth: Growth::Virtual }.lab_of(BLOCK);
    let a = lab.stream();
    lab.pool.reserve(BLOCK).unwrap();
    lab.device.inject(FaultPlan::new(Call::DestroyGranule));
    lab.pool.trim(0).unwrap();
    assert_eq!(lab.stats().quarantined, BLOCK);
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

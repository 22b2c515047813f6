//! Free memory behind other addresses: a request that no free block fits is served by mapping what is
//! free elsewhere at a further address.

use std::thread;

use streampool::backend::ErrorKind;
use streampool::sim::{Call, CaptureMode, FaultPlan, Kernel, PausePoint, SimConfig, SimDevice};
use streampool::{Growth, Reuse};

use super::common::*;

fn virtually() -> Setup {
    Setup { growth: Growth::Virtual }
}

/// Eight blocks of which every second one is kept, under a limit that forbids an eleventh.
fn in_pieces(lab: &Lab, stream: &Stream) -> Vec<Held> {
    let mut blocks: Vec<Held> = (0..8).map(|_| lab.hold(stream, BLOCK)).collect();
    blocks.iter().for_each(|own| own.write(stream));
    let kept = (0..4).map(|n| blocks.remove(n)).collect();
    drop(blocks);
    stream.synchronize().unwrap();
    kept
}

#[test]
fn m4_what_is_free_in_pieces_serves_a_large_request_and_what_lies_between_survives() {
    let lab = virtually().lab_of(8 * BLOCK);
    let [a, b] = lab.streams();
    let kept = in_pieces(&lab, &a);
    let stamps: Vec<_> = kept.iter().map(|own| lab.device.read_stamp(own.at())).collect();
    let (large, calls) = lab.calls_of(|| lab.hold(&b, 4 * BLOCK));
    // Two granules a block, which stay where they were as well; the last block lies before a hole, and is
    // used in its place.
    assert_eq!((calls.maps, calls.set_accesses), (6, 1));
    assert_eq!(calls.granule_creates + calls.unmaps + calls.synchronizes(), 0);
    assert_eq!((lab.stats().remapped, lab.stats().revived), (6, 0));
    assert_eq!(lab.device.mapped_bytes(), 11 * BLOCK);
    assert_eq!((lab.device.memory_in_use(), lab.stats().reserved), (8 * BLOCK, 8 * BLOCK));
    large.write(&b);
    lab.let_run();
    let after: Vec<_> = kept.iter().map(|own| lab.device.read_stamp(own.at())).collect();
    assert_eq!(stamps, after);
    kept.iter().for_each(|own| own.read(&a));
    drop((kept, large));
    a.synchronize().unwrap();
    b.synchronize().unwrap();
    assert_eq!(lab.pool.trim(0).unwrap(), 8 * BLOCK);
    assert_eq!((lab.device.mapped_bytes(), lab.device.live_granules()), (0, 0));
    drop((a, b));
    lab.pool.close().unwrap();
    assert_eq!(lab.device.counts().range_reserves, lab.device.counts().range_releases);
}

#[test]
fn m4_a_program_that_goes_round_in_a_circle_maps_nothing_in_the_second_round() {
    let lab = virtually().lab_of(8 * BLOCK);
    let a = lab.stream();
    let round = || {
        let kept = in_pieces(&lab, &a);
        let large = lab.hold(&a, 4 * BLOCK);
        large.write(&a);
        drop((kept, large));
        a.synchronize().unwrap();
        // Once all of it in one piece, so that every round begins with the same layout.
        lab.hold(&a, 8 * BLOCK).write(&a);
        a.synchronize().unwrap();
    };
    round();
    for _ in 0..10 {
        let ((), calls) = lab.calls_of(round);
        assert_eq!(calls.mapping_calls(), 0, "{calls:?}");
    }
    let stats = lab.stats();
    assert!(stats.remapped <= 8 && stats.revived >= 10 * 12, "{stats:?}");
}

#[test]
fn m5_a_program_that_has_memory_moved_in_every_round_gets_a_little_more_of_it() {
    let lab = virtually().lab_with(|builder| builder.floor(0));
    let a = lab.stream();
    // The list gives blocks back in another order each time, so that other ones lie between.
    let round = |blocks: u64| {
        let kept = in_pieces(&lab, &a);
        lab.hold(&a, blocks * BLOCK).write(&a);
        drop(kept);
        a.synchronize().unwrap();
    };
    (0..8).for_each(|_| round(4));
    let tight = lab.stats();
    assert!(tight.reserved >= 8 * BLOCK && tight.remapped > 0, "{tight:?}");
    (0..40).for_each(|_| round(4));
    let loose = lab.stats();
    assert!(loose.reserved > 8 * BLOCK, "it goes on moving: {loose:?}");
    assert!(loose.reserved <= 10 * BLOCK, "beyond a quarter above what is in use: {loose:?}");
}

#[test]
fn m4_memory_is_moved_only_when_the_host_has_seen_its_last_use_finish() {
    for reuse in [Reuse::Balanced, Reuse::Memory, Reuse::Speed] {
        let lab =
            virtually().lab_with(|builder| builder.limit(8 * BLOCK).late_waits(false).reuse(reuse));
        let [a, b] = lab.streams();
        let mut blocks: Vec<Held> = (0..8).map(|_| lab.hold(&a, BLOCK)).collect();
        let gate = lab.device.gate();
        launch(&lab.device, a.raw(), Kernel::new().after(&gate));
        blocks.iter().for_each(|own| own.write(&a));
        let kept: Vec<Held> = (0..4).map(|n| blocks.remove(n)).collect();
        drop(blocks);
        assert!(lab.try_hold(&b, 4 * BLOCK).unwrap_err().is_over_limit());
        assert_eq!(lab.stats().remapped, 0);
        gate.open();
        lab.let_run();
        lab.hold(&b, 4 * BLOCK).write(&b);
        assert_eq!(lab.stats().remapped, 6, "{reuse:?}");
        drop(kept);
    }
}

#[test]
fn m4_a_use_by_the_old_address_is_a_hazard() {
    let lab = virtually().lab_of(8 * BLOCK).unwatched();
    let [a, b] = lab.streams();
    let mut blocks: Vec<Held> = (0..8).map(|_| lab.hold(&a, BLOCK)).collect();
    let old = blocks[1].at();
    let kept: Vec<Held> = (0..4).map(|n| blocks.remove(n)).collect();
    drop(blocks);
    let large = lab.hold(&b, 4 * BLOCK);
    large.write(&b);
    launch(&lab.device, a.raw(), Kernel::new().writes(old, 64));
    assert!(!lab.device.take_hazards().is_empty(), "a stale address was written to, unnoticed");
    drop((kept, large));
}

#[test]
fn m4_a_dormant_place_is_unmapped_only_when_its_addresses_are_wanted_for_other_memory() {
    let lab = virtually().lab_of(8 * BLOCK);
    let [a, b] = lab.streams();
    let kept = in_pieces(&lab, &a);
    let large = lab.hold(&b, 4 * BLOCK);
    large.write_long(&b);
    // Free are the blocks between the old places of what `large` has; three of them in a row need one of
    // those addresses, whose two granules are in use elsewhere. That costs less than three new ones.
    drop(kept);
    a.synchronize().unwrap();
    let (second, calls) = lab.calls_of(|| lab.hold(&a, 3 * BLOCK));
    assert_eq!((calls.unmaps, calls.maps, calls.set_accesses), (1, 2, 1));
    assert_eq!(calls.granule_creates + calls.synchronizes(), 0);
    second.write(&a);
    large.read(&b);
    assert_eq!(lab.device.memory_in_use(), 8 * BLOCK);
}

#[test]
fn h61_whatever_driver_call_of_a_remapping_fails_nothing_is_lost() {
    for verb in [Call::Map, Call::SetAccess, Call::Unmap, Call::CreateGranule] {
        for nth in 1..=12 {
            let lab = virtually().lab_of(8 * BLOCK);
            let [a, b] = lab.streams();
            let kept = in_pieces(&lab, &a);
            drop(lab.hold(&b, 3 * BLOCK));
            b.synchronize().unwrap();
            lab.device.inject(FaultPlan::new(verb).nth(nth));
            // With the fault or without: served, or an error that says so.
            for blocks in [4, 2, 3] {
                match lab.try_hold(&b, blocks * BLOCK) {
                    Ok(own) => own.write(&b),
                    Err(error) => assert!(error.is_out_of_memory(), "{error}"),
                }
                b.synchronize().unwrap();
                lab.accounts_match();
            }
            lab.device.clear_faults();
            lab.hold(&b, 4 * BLOCK).write(&b);
            kept.iter().for_each(|own| own.read(&a));
            drop(kept);
            lab.let_run();
            lab.hold(&b, 8 * BLOCK).write(&b);
            assert!(lab.device.memory_peak() <= 8 * BLOCK, "{verb} {nth}");
            b.synchronize().unwrap();
            lab.pool.trim(0).unwrap();
            assert_eq!((lab.device.live_granules(), lab.device.mapped_bytes()), (0, 0));
        }
    }
}

#[test]
fn m4_when_the_device_is_full_memory_that_is_free_elsewhere_does() {
    let config = SimConfig { memory_bytes: 8 * BLOCK, ..SimConfig::default() };
    let lab = virtually().lab_on(SimDevice::new(config), |builder| builder.floor(0));
    let [a, b] = lab.streams();
    let kept = in_pieces(&lab, &a);
    let (large, calls) = lab.calls_of(|| lab.hold(&b, 4 * BLOCK));
    assert_eq!((calls.granule_creates, calls.granule_destroys, calls.maps), (0, 0, 6));
    large.write(&b);
    kept.iter().for_each(|own| own.read(&a));
}

#[test]
fn m4_allocate_synchronize_drop_never_goes_to_the_driver_for_memory_after_the_first_rounds() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let streams: [Stream; 4] = lab.streams();
        let mut random = Random(7);
        let sizes: Vec<u64> = (0..40).map(|_| 256 << random.below(18)).collect();
        let round = || {
            for (n, bytes) in sizes.iter().enumerate() {
                let own = lab.hold(&streams[n % 4], *bytes);
                own.write(&streams[n % 4]);
                streams[n % 4].synchronize().unwrap();
            }
        };
        for _ in 0..3 {
            round();
        }
        for _ in 0..10 {
            let ((), calls) = lab.calls_of(round);
            assert_eq!(calls.mapping_calls(), 0, "{calls:?}");
        }
    });
}

/// While one thread unmaps what goes back to the device, its addresses are nobody's: another thread must
/// not map there, whether the unmapping succeeds or not.
#[test]
fn h60_addresses_that_are_being_unmapped_are_not_mapped_again() {
    for refused in [false, true] {
        let lab = virtually().lab();
        let [a, b] = lab.streams();
        let kept = lab.hold(&a, BLOCK);
        drop(lab.hold(&a, 4 * BLOCK));
        a.synchronize().unwrap();
        let pause = lab.device.pause(Call::Unmap, PausePoint::Before);
        thread::scope(|scope| {
            let trimming = scope.spawn(|| lab.pool.trim(0));
            pause.wait_reached();
            let taken = lab.try_hold(&b, 2 * BLOCK);
            if refused {
                lab.device.inject(FaultPlan::new(Call::Unmap));
            }
            pause.resume();
            assert_eq!(trimming.join().unwrap().is_err(), refused);
            taken.expect("there is memory").write(&b);
        });
        lab.accounts_match();
        drop(kept);
        lab.let_run();
        lab.hold(&b, 6 * BLOCK).write(&b);
        b.synchronize().unwrap();
        lab.pool.trim(0).unwrap();
        assert_eq!((lab.device.live_granules(), lab.device.mapped_bytes()), (0, 0));
    }
}

/// A free piece that is too large for what is left of a gap keeps no smaller one from it.
#[test]
fn m4_of_the_free_pieces_those_are_moved_that_fit() {
    let lab = virtually().lab_of(16 * MIB);
    let [a, b] = lab.streams();
    let piece = |bytes| {
        lab.pool.reserve(lab.stats().reserved + bytes).unwrap();
        lab.hold(&a, bytes)
    };
    let (free, kept): (Vec<_>, Vec<_>) =
        [2, 4, 4].map(|mib| (piece(mib * MIB), piece(2 * MIB))).into_iter().unzip();
    drop(free);
    a.synchronize().unwrap();
    // What is at hand first are the two of 4 MiB.
    let (large, calls) = lab.calls_of(|| lab.hold(&b, 6 * MIB));
    assert_eq!((calls.maps, calls.granule_creates, calls.granule_destroys), (2, 0, 0));
    large.write(&b);
    kept.iter().for_each(|own| own.read(&a));
}

/// Where the room that takes the fewest mappings needs more than there is, another is taken, which has more
/// of it.
#[test]
fn h57_a_room_that_needs_less_memory_is_found_when_the_cheapest_needs_too_much() {
    let lab = virtually().lab_with(|builder| builder.limit(20 * MIB).late_waits(false));
    let [a, b] = lab.streams();
    let mut blocks: Vec<_> = (0..10).map(|_| Some(lab.hold(&a, 2 * MIB))).collect();
    let lowest = blocks[3].as_ref().unwrap().at();
    [3, 4, 6].iter().for_each(|n| blocks[*n] = None);
    a.synchronize().unwrap();
    let large = lab.hold(&b, 6 * MIB);
    assert_eq!(lab.stats().remapped, 3);
    large.write(&b);
    [0, 8].iter().for_each(|n| blocks[*n] = None);
    a.synchronize().unwrap();
    // What stays where it is, because it has not finished, and between two old places of `large`.
    let gate = lab.device.gate();
    launch(&lab.device, a.raw(), Kernel::new().after(&gate));
    blocks[5].as_ref().unwrap().write(&a);
    blocks[5] = None;
    let (taken, calls) = lab.calls_of(|| lab.hold(&a, 6 * MIB));
    assert_eq!(taken.at(), lowest);
    assert_eq!((calls.maps, calls.unmaps, calls.granule_creates), (2, 1, 0));
    taken.write(&a);
    large.read(&b);
    gate.open();
}

/// A request that the device cannot serve takes nothing: not what the device has left, and no addresses
/// if it could never be served.
#[test]
fn m5_a_request_that_cannot_be_served_keeps_nothing_of_the_device() {
    let config = SimConfig { memory_bytes: 64 * MIB, ..SimConfig::default() };
    let lab = virtually().lab_on(SimDevice::new(config), |builder| builder);
    let a = lab.stream();
    let hopeless = || {
        let (error, calls) = lab.calls_of(|| lab.try_hold(&a, 65 * MIB).unwrap_err());
        assert!(error.is_out_of_memory() && !error.is_over_limit(), "{error}");
        assert_eq!((calls.range_reserves, calls.granule_creates), (0, 0));
    };
    hopeless();
    let own = lab.hold(&a, 40 * MIB);
    hopeless();
    assert!(lab.try_hold(&a, 32 * MIB).unwrap_err().is_out_of_memory());
    assert_eq!((lab.device.memory_in_use(), lab.device.mapped_bytes()), (40 * MIB, 40 * MIB));
    own.write(&a);
    lab.hold(&a, 24 * MIB).write(&a);
}

/// While one thread unmaps an old place of a piece, the piece must not go back to the device.
#[test]
fn h60_what_is_being_unmapped_at_one_place_does_not_go_back() {
    let lab = virtually().lab_of(8 * BLOCK);
    let [a, b] = lab.streams();
    let kept = in_pieces(&lab, &a);
    let large = lab.hold(&b, 4 * BLOCK);
    drop(kept);
    a.synchronize().unwrap();
    let pause = lab.device.pause(Call::Unmap, PausePoint::Before);
    thread::scope(|scope| {
        // It needs an address that a piece of `large` has as well.
        let growing = scope.spawn(|| lab.hold(&a, 3 * BLOCK));
        pause.wait_reached();
        drop(large);
        b.synchronize().unwrap();
        lab.pool.trim(0).unwrap();
        assert!(lab.device.live_granules() > 0, "two of them are mapped where they are unmapped");
        pause.resume();
        growing.join().unwrap().write(&a);
    });
    a.synchronize().unwrap();
    lab.pool.trim(0).unwrap();
    assert_eq!((lab.device.live_granules(), lab.device.mapped_bytes()), (0, 0));
}

/// Mapping, unmapping and giving back are allowed while streams capture, and break no capture.
#[test]
fn h53_memory_moves_while_a_stream_captures() {
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let lab = virtually().lab_of(8 * BLOCK);
        let [a, b, c] = lab.streams();
        let kept = in_pieces(&lab, &a);
        lab.device.begin_capture(c.raw(), mode).unwrap();
        let large = lab.hold(&b, 4 * BLOCK);
        large.write(&b);
        drop(kept);
        a.synchronize().unwrap();
        let (second, calls) = lab.calls_of(|| lab.hold(&a, 3 * BLOCK));
        assert_eq!((calls.unmaps, calls.maps), (1, 2));
        second.write(&a);
        assert!(lab.pool.trim(0).unwrap() > 0);
        lab.device.end_capture(c.raw()).expect("the capture survives");
    }
}

/// The device is lost at any call of a growth: the pool says so, hands nothing out, and ends.
#[test]
fn h58_the_device_is_lost_within_a_growth() {
    for verb in [Call::CreateGranule, Call::Map, Call::SetAccess, Call::Unmap] {
        let lab = virtually().lab_of(10 * BLOCK).unwatched();
        let [a, b] = lab.streams();
        let kept = in_pieces(&lab, &a);
        let large = lab.hold(&b, 4 * BLOCK);
        drop(kept);
        a.synchronize().unwrap();
        lab.device.inject(FaultPlan::new(verb).kind(ErrorKind::DeviceLost).from_then_on());
        let lost = [3, 5].iter().find_map(|blocks| lab.try_hold(&a, blocks * BLOCK).err());
        assert!(lost.expect("it was met").is_device_lost(), "{verb}");
        assert!(lab.try_hold(&b, BLOCK).unwrap_err().is_device_lost());
        lab.no_hazard();
        drop((large, a, b));
    }
}

/// A peer has access by every address at which memory is mapped for it.
#[test]
fn s4_a_peer_has_access_to_memory_that_has_moved() {
    let [one, zero] = SimDevice::several(SimConfig::default(), 2).try_into().unwrap();
    let one = virtually().lab_on(one, |builder| builder);
    let zero = virtually().lab_on(zero, |builder| builder.limit(8 * BLOCK).peers([&one.pool]));
    let ([a, b], c) = (zero.streams(), one.stream());
    let kept = in_pieces(&zero, &a);
    let large = zero.hold(&b, 4 * BLOCK);
    assert_eq!(zero.stats().remapped, 6);
    large.share(&c);
    one.device.launch(c.raw(), large.writes()).unwrap();
    drop(large);
    // What the peer does counts: nothing is moved, or goes back, before it has finished.
    zero.pool.trim(0).unwrap();
    one.let_run();
    c.synchronize().unwrap();
    drop(kept);
    zero.hold(&a, 8 * BLOCK).write(&a);
}

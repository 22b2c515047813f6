//! Who comes after whom: H01 to H17, and the blocks that are cut, joined and shared.

use crate::rig::{BLOCK, Lab, Rig, in_both_kinds};

/// H01: stream order suffices, with no driver call.
pub(crate) fn h01_one_stream_takes_it_back_with_no_call<R: Rig>(rig: &R) {
    in_both_kinds(rig, BLOCK, |lab| {
        let [a] = lab.streams();
        let x = lab.alloc(&a);
        let at = x.device_ptr();
        let gate = lab.close(&a);
        lab.stamp(&a, &x, 1);
        let before = lab.calls();
        drop(x);
        let y = lab.alloc(&a);
        assert_eq!((y.device_ptr(), lab.calls() - before), (at, 0));
        lab.stamp(&a, &y, 2);
        drop(gate);
        lab.holds(&y, 2);
    });
}

/// H02, with no room: b waits.
pub(crate) fn h02_another_stream_waits<R: Rig>(rig: &R) {
    in_both_kinds(rig, BLOCK, |lab| {
        let [a, b] = lab.streams();
        let (at, gate) = lab.freed_behind_a_gate(&a, &b);
        lab.taken_in_order(&b, at, gate);
    });
}

/// H02, with room: b gets another block and does not wait.
pub(crate) fn h02_with_room_nobody_waits<R: Rig>(rig: &R) {
    in_both_kinds(rig, 2 * BLOCK, |lab| {
        let [a, b] = lab.streams();
        let (at, gate) = lab.freed_behind_a_gate(&a, &b);
        let y = lab.alloc(&b);
        assert_ne!(y.device_ptr(), at, "FIRED: it is in use");
        lab.stamp(&b, &y, 2);
        lab.finishes(&b, &gate);
        drop(gate);
        lab.holds(&y, 2);
    });
}

/// H02, with an event that was recorded early, after which another stream records one.
pub(crate) fn h02_an_event_is_not_used_twice<R: Rig>(rig: &R) {
    in_both_kinds(rig, BLOCK, |lab| {
        let [a, b, c] = lab.streams();
        let (at, gate) = lab.freed_behind_a_gate(&a, &b);
        a.mark().unwrap();
        c.mark().unwrap();
        lab.taken_in_order(&b, at, gate);
    });
}

/// H03: what a has finished, b takes with no wait, whether the pool was told of it or has to ask.
pub(crate) fn h03_what_has_finished_is_taken_with_no_wait<R: Rig>(rig: &R) {
    for told in [true, false] {
        in_both_kinds(rig, BLOCK, |lab| {
            let [a, b, c] = lab.streams();
            let x = lab.alloc(&a);
            let at = x.device_ptr();
            lab.stamp(&a, &x, 1);
            drop(x);
            match told {
                true => a.synchronize().unwrap(),
                false => lab.runs_dry(&a),
            }
            // Where the pool asks, it asks a.
            let gate = lab.close(if told { &a } else { &c });
            lab.is_free(&b, &gate);
            let before = lab.stream_waits();
            let y = lab.alloc(&b);
            assert_eq!((y.device_ptr(), lab.stream_waits() - before), (at, 0));
            lab.stamp(&b, &y, 2);
            lab.finishes(&b, &gate);
            drop(gate);
            lab.holds(&y, 2);
        });
    }
}

/// H04: frees make no call; to cross costs one record for each stream that freed, at most.
pub(crate) fn h04_frees_make_no_call<R: Rig>(rig: &R) {
    const BYTES: u64 = 512 << 10;
    let all = 4816 * BYTES;
    let lab = Lab::with(rig, |builder| builder.limit(all));
    lab.pool.reserve(all).unwrap();
    let streams = lab.many_streams(37);
    let buffers: Vec<_> = (0..4816).map(|n| lab.alloc_of(&streams[n % 37], BYTES)).collect();
    for (n, buffer) in buffers.iter().enumerate() {
        let slow = if n < 37 { 2_000_000 } else { 0 };
        lab.stamp_slowly(&streams[n % 37], buffer, 1, slow);
    }
    let before = lab.calls();
    drop(buffers);
    assert_eq!(lab.calls(), before, "a free made a driver call");
    let others = lab.many_streams(37);
    let before = lab.pool.stats().calls;
    let crossed: Vec<_> = others.iter().map(|other| lab.alloc_of(other, BYTES)).collect();
    let after = lab.pool.stats().calls;
    assert!(after.event_records - before.event_records <= 37, "{before:?} {after:?}");
    assert!(after.stream_waits - before.stream_waits <= 37, "{before:?} {after:?}");
    assert_eq!(after.context_synchronizes + after.event_synchronizes, 0);
    for (buffer, other) in crossed.iter().zip(&others) {
        lab.stamp(other, buffer, 2);
    }
    lab.synchronize();
    for (buffer, other) in crossed.iter().zip(&others) {
        lab.check(other, buffer, 2);
    }
    lab.no_mismatch();
}

/// H09: each stream that used it comes before the next owner, home as well.
pub(crate) fn h09_every_user_comes_before_the_next_owner<R: Rig>(rig: &R) {
    for gated in 0..3 {
        in_both_kinds(rig, BLOCK, |lab| {
            let [home, second, third, taker] = lab.streams();
            let users = [home, second, third];
            let x = lab.alloc(&users[0]);
            let at = x.device_ptr();
            x.use_on(&users[1]).unwrap();
            x.use_on(&users[2]).unwrap();
            let gate = lab.close(&users[gated]);
            lab.stamp(&users[gated], &x, 1);
            lab.is_free(&taker, &gate);
            drop(x);
            lab.taken_in_order(&taker, at, gate);
        });
    }
}

/// The start of a use elsewhere (H10).
pub(crate) fn h10_use_on_and_move_to_make_the_other_stream_wait<R: Rig>(rig: &R) {
    for moves in [false, true] {
        in_both_kinds(rig, BLOCK, |lab| {
            let [a, b] = lab.streams();
            let mut x = lab.alloc(&a);
            let gate = lab.close(&a);
            lab.stamp(&a, &x, 1);
            lab.is_free(&b, &gate);
            match moves {
                true => x.move_to(&b).unwrap(),
                false => x.use_on(&b).unwrap(),
            }
            lab.stamp(&b, &x, 2);
            lab.waits(&b, &gate);
            drop(gate);
            lab.holds(&x, 2);
        });
    }
}

/// H11: the owner of a union comes after both parts.
pub(crate) fn h11_the_owner_of_a_union_comes_after_both_parts<R: Rig>(rig: &R) {
    for case in 0..4 {
        in_both_kinds(rig, 2 * BLOCK, |lab| {
            let [a, b, c] = lab.streams();
            let (x, y) = (lab.alloc(&a), lab.alloc(&b));
            assert_eq!(x.device_ptr().abs_diff(y.device_ptr()), BLOCK, "INCONCLUSIVE: apart");
            let gate = lab.close(if case & 1 == 0 { &a } else { &b });
            lab.stamp(&a, &x, 1);
            lab.stamp(&b, &y, 1);
            lab.is_free(&c, &gate);
            match case & 2 == 0 {
                true => drop((x, y)),
                false => drop((y, x)),
            }
            let whole = lab.alloc_of(&c, 2 * BLOCK);
            lab.stamp(&c, &whole, 2);
            lab.waits(&c, &gate);
            drop(gate);
            lab.holds(&whole, 2);
        });
    }
}

/// H11, where both parts were freed on one stream, the second later.
pub(crate) fn h11_of_two_epochs_the_later_counts<R: Rig>(rig: &R) {
    in_both_kinds(rig, 2 * BLOCK, |lab| {
        let [a, c] = lab.streams();
        let (x, y) = (lab.alloc(&a), lab.alloc(&a));
        let first = lab.close(&a);
        lab.stamp(&a, &x, 1);
        drop(x);
        a.mark().unwrap();
        let second = lab.close(&a);
        lab.stamp(&a, &y, 1);
        lab.is_free(&c, &second);
        drop(y);
        let whole = lab.alloc_of(&c, 2 * BLOCK);
        lab.stamp(&c, &whole, 2);
        lab.waits(&c, &first);
        drop(first);
        lab.waits(&c, &second);
        drop(second);
        lab.holds(&whole, 2);
    });
}

/// Both parts of a block that is cut keep its dependencies.
pub(crate) fn both_parts_of_a_split_wait<R: Rig>(rig: &R) {
    in_both_kinds(rig, 2 * BLOCK, |lab| {
        let [a, b, c] = lab.streams();
        let x = lab.alloc_of(&a, 2 * BLOCK);
        let gate = lab.close(&a);
        lab.stamp(&a, &x, 1);
        lab.is_free(&b, &gate);
        lab.is_free(&c, &gate);
        drop(x);
        let (y, z) = (lab.alloc(&b), lab.alloc(&c));
        lab.stamp(&b, &y, 2);
        lab.stamp(&c, &z, 3);
        lab.waits(&b, &gate);
        lab.waits(&c, &gate);
        drop(gate);
        lab.holds(&y, 2);
        lab.holds(&z, 3);
    });
}

/// H15: a copy on b into a buffer of a, which a gets back at once.
pub(crate) fn h15_home_waits_for_a_copy_elsewhere<R: Rig>(rig: &R) {
    let source = Lab::with(rig, |builder| builder);
    in_both_kinds(rig, BLOCK, |lab| {
        let [a, b] = lab.streams();
        let [s] = source.streams();
        let from = source.alloc(&s);
        source.stamp(&s, &from, 1);
        source.synchronize();
        let x = lab.alloc(&a);
        let at = x.device_ptr();
        x.use_on(&b).unwrap();
        let gate = lab.close(&b);
        rig.copy(b.raw(), at, from.device_ptr(), BLOCK, 1);
        lab.is_free(&a, &gate);
        drop(x);
        lab.taken_in_order(&a, at, gate);
    });
}

/// H16: a free that has finished is not held up by one beside it that stalls.
pub(crate) fn h16_a_stalled_neighbour_holds_nothing_up<R: Rig>(rig: &R) {
    in_both_kinds(rig, 2 * BLOCK, |lab| {
        let [a, b] = lab.streams();
        let (x, y) = (lab.alloc(&a), lab.alloc(&a));
        let at = x.device_ptr();
        lab.stamp(&a, &x, 1);
        drop(x);
        a.mark().unwrap();
        lab.runs_dry(&a);
        let gate = lab.close(&a);
        lab.stamp(&a, &y, 1);
        lab.is_free(&b, &gate);
        drop(y);
        let taken = lab.alloc(&b);
        assert_eq!(taken.device_ptr(), at, "FIRED: the stalled one was taken");
        lab.stamp(&b, &taken, 2);
        lab.finishes(&b, &gate);
        drop(gate);
        lab.holds(&taken, 2);
    });
}

/// H17: a producer and a consumer, and a host that runs ahead of both.
pub(crate) fn h17_a_pipeline_stays_within_its_depth<R: Rig>(rig: &R) {
    let lab = Lab::with(rig, |builder| builder.floor(0));
    let [a, b] = lab.streams();
    for round in 0..400 {
        let x = lab.alloc(&a);
        lab.stamp_slowly(&a, &x, round, 20_000);
        x.use_on(&b).unwrap();
        lab.check(&b, &x, round);
    }
    let stats = lab.pool.stats();
    assert!(stats.peak_reserved <= 64 << 20, "{stats:?}");
    let synchronizes = stats.calls.context_synchronizes + stats.calls.event_synchronizes;
    assert_eq!(synchronizes, 0, "{stats:?}");
    lab.no_mismatch();
}

/// H19: with room to grow nobody waits for what a miss has recorded to ask, behind a host's flag.
pub(crate) fn h19_a_probe_is_not_waited_for<R: Rig>(rig: &R) {
    let lab = Lab::with(rig, |builder| builder.floor(0).soft_target(64 << 20));
    let [a, b] = lab.streams();
    let x = lab.alloc(&a);
    let at = x.device_ptr();
    lab.stamp(&a, &x, 1);
    drop(x);
    let gate = lab.close(&a);
    lab.is_free(&b, &gate);
    let y = lab.alloc(&b);
    assert_ne!(y.device_ptr(), at, "FIRED: it was waited for");
    lab.stamp(&b, &y, 2);
    lab.finishes(&b, &gate);
    drop(gate);
    lab.holds(&y, 2);
}

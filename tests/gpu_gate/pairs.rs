//! Two devices: S4. A gate holds up a stream of the second device, which uses memory of the first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use streampool::{Growth, StreamPool};

use crate::rig::{BLOCK, Held, Lab, Rig, Stream};

const KINDS: [Growth; 2] = [Growth::Virtual, Growth::Segments];
/// How long a thread that must be held up is watched.
const LOOKS: usize = 200;

/// A buffer of the first device that a stream of the second writes behind a gate.
fn written_behind_a_gate<R: Rig>(
    (near, far): (&Lab<'_, R>, &Lab<'_, R>),
    (a, c): (&Stream<R>, &Stream<R>),
) -> (Held<R>, R::Gate) {
    let x = near.alloc(a);
    x.use_on(c).unwrap();
    let gate = far.close(c);
    far.stamp(c, &x, 1);
    near.is_free(a, &gate);
    (x, gate)
}

/// The negative control: with no wait a write of the first device overtakes one of the second, and it shows.
pub(crate) fn without_a_wait_the_checks_fire_across_devices<R: Rig>(near: &R, far: &R) {
    let (near, far) = Lab::pair(near, far, Growth::Virtual, BLOCK);
    let ([a], [c]) = (near.streams(), far.streams());
    let (x, gate) = written_behind_a_gate((&near, &far), (&a, &c));
    near.stamp(&a, &x, 2);
    near.finishes(&a, &gate);
    drop(gate);
    far.synchronize();
    near.check(&a, &x, 2);
    assert!(near.rig.mismatches() > 0, "INCONCLUSIVE: what was overwritten was not seen");
}

/// What the rules on several devices rest on (measured on two H200): the host learns nothing of one device
/// from a synchronize of the other.
pub(crate) fn a_synchronize_of_one_device_does_not_wait_for_the_other<R: Rig>(near: &R, far: &R) {
    let (near, far) = Lab::pair(near, far, Growth::Virtual, BLOCK);
    let ([a], [c]) = (near.streams(), far.streams());
    let (x, gate) = written_behind_a_gate((&near, &far), (&a, &c));
    near.synchronize();
    far.waits(&c, &gate);
    drop(gate);
    far.synchronize();
    near.holds(&x, 1);
}

pub(crate) fn s4_h09_the_next_owner_waits_for_a_late_writer_of_the_other_device<R: Rig>(
    near: &R,
    far: &R,
) {
    for growth in KINDS {
        let (near, far) = Lab::pair(near, far, growth, BLOCK);
        let ([a, b], [c]) = (near.streams(), far.streams());
        let (x, gate) = written_behind_a_gate((&near, &far), (&a, &c));
        near.is_free(&b, &gate);
        let at = x.device_ptr();
        drop(x);
        near.taken_in_order(&b, at, gate);
    }
}

pub(crate) fn s4_h10_the_other_device_waits_for_what_home_has_queued<R: Rig>(near: &R, far: &R) {
    for growth in KINDS {
        let (near, far) = Lab::pair(near, far, growth, BLOCK);
        let ([a], [c]) = (near.streams(), far.streams());
        let x = near.alloc(&a);
        let gate = near.close(&a);
        near.stamp(&a, &x, 1);
        far.is_free(&c, &gate);
        x.use_on(&c).unwrap();
        far.check(&c, &x, 1);
        far.waits(&c, &gate);
        drop(gate);
        far.synchronize();
        far.no_mismatch();
    }
}

pub(crate) fn s4_h60_trim_leaves_what_the_other_device_still_writes<R: Rig>(near: &R, far: &R) {
    for growth in KINDS {
        let (near, far) = Lab::pair(near, far, growth, BLOCK);
        let ([a], [c]) = (near.streams(), far.streams());
        let (x, gate) = written_behind_a_gate((&near, &far), (&a, &c));
        drop(x);
        // Its own device is idle, and seen to be.
        drop(near.pool.quiesce().unwrap());
        assert_eq!(near.pool.trim(0).unwrap(), 0, "FIRED: it is in use on the other device");
        far.waits(&c, &gate);
        drop(gate);
        far.synchronize();
        assert_eq!(near.pool.trim(0).unwrap(), BLOCK);
    }
}

pub(crate) fn s4_m4_nothing_is_moved_that_the_other_device_still_writes<R: Rig>(near: &R, far: &R) {
    let others = far.backend();
    let near = Lab::with(near, |builder| {
        builder.growth(Growth::Virtual).limit(4 * BLOCK).late_waits(false).peer_devices([others])
    });
    let far = Lab::with(far, |builder| builder);
    let ([a, b], [c]) = (near.streams(), far.streams());
    // Each with granules of its own; two that do not touch are free.
    let [first, kept, third, last]: [Held<R>; 4] = std::array::from_fn(|_| near.alloc(&a));
    near.stamp(&a, &kept, 3);
    third.use_on(&c).unwrap();
    let gate = far.close(&c);
    far.stamp(&c, &third, 1);
    near.is_free(&b, &gate);
    drop((first, third));
    drop(near.pool.quiesce().unwrap());
    let taken = b.alloc(2 * BLOCK as usize);
    assert!(taken.is_err(), "FIRED: it has memory that is in use on the other device");
    drop(gate);
    far.synchronize();
    let large = near.alloc_of(&b, 2 * BLOCK);
    assert!(near.pool.stats().remapped >= 1, "INCONCLUSIVE: nothing was moved");
    near.stamp(&b, &large, 2);
    near.holds(&large, 2);
    near.holds(&kept, 3);
    drop(last);
}

/// Runs something on a thread of its own, which must not end before the gate is open.
fn held_up_by<R: Rig>(rig: &R, gate: R::Gate, what: &str, act: impl FnOnce() + Send) {
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        // Dropped before the thread is joined, also by a panic.
        let gate = gate;
        let held = scope.spawn(move || {
            act();
            over.store(true, Ordering::SeqCst);
        });
        for _ in 0..LOOKS {
            rig.pause();
        }
        assert!(!over.load(Ordering::SeqCst), "FIRED: {what}");
        drop(gate);
        held.join().unwrap();
    });
}

pub(crate) fn s4_h34_a_scope_of_both_begins_when_the_other_devices_gate_opens<R: Rig>(
    rig: &R,
    far: &R,
) {
    let (near, far) = Lab::pair(rig, far, Growth::Virtual, BLOCK);
    let ([a], [c]) = (near.streams(), far.streams());
    let (x, gate) = written_behind_a_gate((&near, &far), (&a, &c));
    drop(x);
    held_up_by(rig, gate, "the scopes have not waited for the other device", || {
        drop(StreamPool::quiesce_all(&[&near.pool, &far.pool]).unwrap());
    });
    // It is clean: no wait, and it can go back.
    let waits = near.stream_waits();
    drop(near.alloc(&a));
    assert_eq!(near.stream_waits(), waits);
}

pub(crate) fn s4_h34_what_the_other_device_still_writes_is_deferred<R: Rig>(near: &R, far: &R) {
    for growth in KINDS {
        let (near, far) = Lab::pair(near, far, growth, BLOCK);
        let ([a, b], [c]) = (near.streams(), far.streams());
        let scopes = StreamPool::quiesce_all(&[&near.pool, &far.pool]).unwrap();
        let (x, gate) = written_behind_a_gate((&near, &far), (&a, &c));
        near.is_free(&b, &gate);
        let at = x.device_ptr();
        drop(x);
        let reports = scopes.finish();
        assert_eq!((reports[0].freed, reports[0].deferred), (1, 1), "FIRED: {reports:?}");
        near.taken_in_order(&b, at, gate);
    }
}

pub(crate) fn s4_s7_close_waits_for_the_other_device<R: Rig>(rig: &R, far: &R) {
    for growth in KINDS {
        let builder = StreamPool::builder(rig.backend());
        let pool = builder.growth(growth).peer_devices([far.backend()]).build().unwrap();
        let far = Lab::with(far, |builder| builder);
        let [raw] = rig.independent();
        let (a, [c]) = (pool.stream(raw).unwrap(), far.streams());
        let x = a.alloc(BLOCK as usize).unwrap();
        x.use_on(&c).unwrap();
        let gate = far.close(&c);
        far.stamp(&c, &x, 1);
        drop(x);
        drop(a);
        held_up_by(rig, gate, "the memory has gone under the other device", || {
            pool.close().unwrap();
        });
        assert_eq!(pool.stats().reserved, 0);
        far.runs_dry(&c);
    }
}

pub(crate) fn s4_a_copy_waits_for_the_original<R: Rig>(near: &R, far: &R) {
    for growth in KINDS {
        let (near, far) = Lab::pair(near, far, growth, BLOCK);
        let ([a], [c]) = (near.streams(), far.streams());
        let x = near.alloc(&a);
        let gate = near.close(&a);
        near.stamp(&a, &x, 1);
        far.is_free(&c, &gate);
        let y = x.copy_to(&c).unwrap();
        far.waits(&c, &gate);
        drop(gate);
        drop(x);
        far.holds(&y, 1);
    }
}

pub(crate) fn s4_the_originals_next_owner_waits_for_the_copy<R: Rig>(near: &R, far: &R) {
    for growth in KINDS {
        let (near, far) = Lab::pair(near, far, growth, BLOCK);
        let ([a, b], [c]) = (near.streams(), far.streams());
        let x = near.alloc(&a);
        near.stamp(&a, &x, 1);
        near.runs_dry(&a);
        let gate = far.close(&c);
        let y = x.copy_to(&c).unwrap();
        near.is_free(&b, &gate);
        let at = x.device_ptr();
        drop(x);
        near.taken_in_order(&b, at, gate);
        far.holds(&y, 1);
    }
}

pub(crate) fn s4_h51_a_capture_survives_what_the_other_device_does<R: Rig>(rig: &R, far: &R) {
    for (mode, elsewhere) in [0, 1, 2].into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let (near, far) = &Lab::pair(rig, far, Growth::Virtual, 4 * BLOCK);
        let ([a, b], [c, d]) = (&near.streams(), &far.streams());
        rig.begin_capture(a.raw(), mode);
        rig.busy(a.raw(), 1000);
        let everything = move || {
            for round in 0..20 {
                let (x, y) = (near.alloc(b), far.alloc_of(c, BLOCK << (round % 2)));
                near.stamp(b, &x, round);
                let copy = x.copy_to(d).unwrap();
                far.check(d, &copy, round);
                x.use_on(c).unwrap();
                far.check(c, &x, round);
                y.use_on(b).unwrap();
                let scopes = StreamPool::quiesce_all(&[&near.pool, &far.pool]).unwrap();
                drop((x, y, copy));
                drop(scopes);
                far.pool.synchronize().unwrap();
                far.pool.trim(0).unwrap();
            }
            assert!(near.alloc(b).use_on(a).unwrap_err().is_capture());
        };
        match elsewhere {
            true => thread::scope(|scope| scope.spawn(everything).join().unwrap()),
            false => everything(),
        }
        assert!(rig.end_capture(a.raw()), "FIRED: the capture is broken, mode {mode}");
        assert!(far.finishes_within(c, Duration::from_secs(2)));
        far.no_mismatch();
    }
}

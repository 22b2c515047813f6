//! Two devices: S4. A gate holds up a stream of the second device, which uses memory of the first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use streampool::backend::Backend;
use streampool::{Growth, StreamPool};

use crate::rig::{BLOCK, Gate, Held, Lab, Rig, Stream};

const KINDS: [Growth; 2] = [Growth::Virtual, Growth::Segments];
/// How long a thread that must be held up is watched.
const LOOKS: usize = 200;

/// A pool on each device.
type Pair<'a, R> = (&'a Lab<'a, R>, &'a Lab<'a, R>);

/// Runs a test on pools that may use each other's memory, of one block each, with streams of both.
fn on_pools<R: Rig, const N: usize, const M: usize>(
    (near, far): (&R, &R),
    growth: Growth,
    test: impl Fn(Pair<'_, R>, [Stream<R>; N], [Stream<R>; M]),
) {
    let (near, far) = Lab::pair(near, far, growth, BLOCK);
    test((&near, &far), near.streams(), far.streams());
}

/// The same in both kinds of growth.
fn in_both_kinds<R: Rig, const N: usize, const M: usize>(
    near: &R,
    far: &R,
    test: impl Fn(Pair<'_, R>, [Stream<R>; N], [Stream<R>; M]),
) {
    for growth in KINDS {
        on_pools((near, far), growth, &test);
    }
}

fn with_virtual_memory<R: Rig, const N: usize, const M: usize>(
    near: &R,
    far: &R,
    test: impl Fn(Pair<'_, R>, [Stream<R>; N], [Stream<R>; M]),
) {
    on_pools((near, far), Growth::Virtual, test);
}

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
    with_virtual_memory(near, far, |(near, far), [a], [c]| {
        let (x, gate) = written_behind_a_gate((near, far), (&a, &c));
        near.stamp(&a, &x, 2);
        near.finishes(&a, &gate);
        drop(gate);
        far.synchronize();
        near.check(&a, &x, 2);
        assert!(near.rig.mismatches() > 0, "INCONCLUSIVE: what was overwritten was not seen");
    });
}

/// What the rules on several devices rest on (measured on two H200): the host learns nothing of one device
/// from a synchronize of the other.
pub(crate) fn a_synchronize_of_one_device_does_not_wait_for_the_other<R: Rig>(near: &R, far: &R) {
    with_virtual_memory(near, far, |(near, far), [a], [c]| {
        let (x, gate) = written_behind_a_gate((near, far), (&a, &c));
        near.synchronize();
        far.waits(&c, &gate);
        drop(gate);
        far.synchronize();
        near.holds(&x, 1);
    });
}

pub(crate) fn s4_h09_the_next_owner_waits_for_a_late_writer_of_the_other_device<R: Rig>(
    near: &R,
    far: &R,
) {
    in_both_kinds(near, far, |(near, far), [a, b], [c]| {
        let (x, gate) = written_behind_a_gate((near, far), (&a, &c));
        near.is_free(&b, &gate);
        let at = x.device_ptr();
        drop(x);
        near.taken_in_order(&b, at, gate);
    });
}

pub(crate) fn s4_h10_the_other_device_waits_for_what_home_has_queued<R: Rig>(near: &R, far: &R) {
    in_both_kinds(near, far, |(near, far), [a], [c]| {
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
    });
}

pub(crate) fn s4_h60_trim_leaves_what_the_other_device_still_writes<R: Rig>(near: &R, far: &R) {
    in_both_kinds(near, far, |(near, far), [a], [c]| {
        let (x, gate) = written_behind_a_gate((near, far), (&a, &c));
        drop(x);
        // Its own device is idle, and seen to be.
        drop(near.pool.quiesce().unwrap());
        assert_eq!(near.pool.trim(0).unwrap(), 0, "FIRED: it is in use on the other device");
        far.waits(&c, &gate);
        drop(gate);
        far.synchronize();
        assert_eq!(near.pool.trim(0).unwrap(), BLOCK);
    });
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
    with_virtual_memory(rig, far, |(near, far), [a], [c]| {
        let (x, gate) = written_behind_a_gate((near, far), (&a, &c));
        drop(x);
        held_up_by(rig, gate, "the scopes have not waited for the other device", || {
            drop(StreamPool::quiesce_all(&[&near.pool, &far.pool]).unwrap());
        });
        // It is clean: no wait, and it can go back.
        let waits = near.stream_waits();
        drop(near.alloc(&a));
        assert_eq!(near.stream_waits(), waits);
    });
}

pub(crate) fn s4_h34_what_the_other_device_still_writes_is_deferred<R: Rig>(near: &R, far: &R) {
    in_both_kinds(near, far, |(near, far), [a, b], [c]| {
        let scopes = StreamPool::quiesce_all(&[&near.pool, &far.pool]).unwrap();
        let (x, gate) = written_behind_a_gate((near, far), (&a, &c));
        near.is_free(&b, &gate);
        let at = x.device_ptr();
        drop(x);
        let reports = scopes.finish();
        assert_eq!((reports[0].freed, reports[0].deferred), (1, 1), "FIRED: {reports:?}");
        near.taken_in_order(&b, at, gate);
    });
}

/// A stream of the second device writes a buffer of the first behind a gate. No stream but home knows: all
/// that says so is that home waits for it, and home has nothing else to do.
fn known_by_a_wait_alone<R: Rig>(
    (near, far): Pair<'_, R>,
    x: &Held<R>,
    (a, c): (&Stream<R>, &Stream<R>),
) -> R::Gate {
    near.synchronize();
    c.wait_for(a).unwrap();
    let gate = far.close(c);
    far.stamp(c, x, 1);
    a.wait_for(c).unwrap();
    gate
}

/// An event of the whole context as it is now, where there is such a thing.
fn event_of_context<B: Backend>(own: &B) -> Option<B::Event> {
    let event = own.create_event().unwrap();
    if own.record_context(&event).unwrap() {
        return Some(event);
    }
    own.destroy_event(event);
    None
}

/// What scopes rest on: a context has not finished while one of its streams waits for another device, though
/// that is all that is on it; neither for an event of the whole context nor for who synchronizes it.
pub(crate) fn a_context_is_not_done_while_a_stream_waits_for_the_other_device<R: Rig>(
    rig: &R,
    far: &R,
) {
    with_virtual_memory(rig, far, |(near, far), [a, b], [c]| {
        let x = near.alloc(&a);
        let gate = known_by_a_wait_alone((near, far), &x, (&a, &c));
        near.is_free(&b, &gate);
        let own = rig.backend();
        let event = event_of_context(&own);
        for _ in 0..LOOKS {
            let finished = event.as_ref().is_some_and(|event| own.query(event).unwrap());
            assert!(!gate.was_forced(), "INCONCLUSIVE: the watchdog has opened the gate");
            assert!(!finished, "FIRED: an event of the context is done before its streams");
            rig.pause();
        }
        held_up_by(rig, gate, "a synchronize is over before a stream of the context", || {
            near.synchronize();
        });
        if let Some(event) = event {
            assert!(own.query(&event).unwrap(), "FIRED: the event is never done");
            own.destroy_event(event);
        }
        near.holds(&x, 1);
    });
}

pub(crate) fn s4_h34_a_scope_begins_when_what_a_stream_only_waits_for_is_done<R: Rig>(
    rig: &R,
    far: &R,
) {
    with_virtual_memory(rig, far, |(near, far), [a, b], [c]| {
        let x = near.alloc(&a);
        let gate = known_by_a_wait_alone((near, far), &x, (&a, &c));
        near.is_free(&b, &gate);
        drop(x);
        held_up_by(rig, gate, "the scope has not waited for what its stream waits for", || {
            drop(near.pool.quiesce().unwrap());
        });
        // It is clean, and nothing writes it any more.
        let (waits, y) = (near.stream_waits(), near.alloc(&b));
        assert_eq!(near.stream_waits(), waits);
        near.stamp(&b, &y, 2);
        near.holds(&y, 2);
    });
}

pub(crate) fn s4_h34_what_a_stream_only_waits_for_is_deferred<R: Rig>(near: &R, far: &R) {
    in_both_kinds(near, far, |(near, far), [a, b], [c]| {
        let own = near.rig.backend();
        let by_context = event_of_context(&own).map(|event| own.destroy_event(event)).is_some();
        let scope = near.pool.quiesce().unwrap();
        let x = near.alloc(&a);
        // So that the scope has two streams to settle, for which it asks an event of the whole context.
        x.use_on(&b).unwrap();
        let gate = known_by_a_wait_alone((near, far), &x, (&a, &c));
        near.is_free(&b, &gate);
        let at = x.device_ptr();
        drop(x);
        let records = || near.pool.stats().calls.event_records;
        let before = records();
        let report = scope.finish();
        assert_eq!((report.freed, report.deferred), (1, 1), "FIRED: {report:?}");
        let asked = records() - before;
        assert_eq!(asked, 2 + u64::from(by_context), "INCONCLUSIVE: it asked something else");
        near.taken_in_order(&b, at, gate);
    });
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
    in_both_kinds(near, far, |(near, far), [a], [c]| {
        let x = near.alloc(&a);
        let gate = near.close(&a);
        near.stamp(&a, &x, 1);
        far.is_free(&c, &gate);
        let y = x.copy_to(&c).unwrap();
        far.waits(&c, &gate);
        drop(gate);
        drop(x);
        far.holds(&y, 1);
    });
}

pub(crate) fn s4_the_originals_next_owner_waits_for_the_copy<R: Rig>(near: &R, far: &R) {
    in_both_kinds(near, far, |(near, far), [a, b], [c]| {
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
    });
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

//! Threads and streams: H21, H25, H40, H43.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::rig::{BLOCK, Gate, Lab, Raw, Rig, in_both_kinds};

/// H21: an event that another thread finds has been recorded.
pub(crate) fn h21_an_event_is_seen_only_once_recorded<R: Rig>(rig: &R) {
    const ROUNDS: usize = 500;
    in_both_kinds(rig, BLOCK, |lab| {
        let [a, b] = &lab.streams();
        for round in 0..ROUNDS {
            let x = lab.alloc(a);
            let at = x.device_ptr();
            lab.runs_dry(a);
            let gate = lab.close(a);
            lab.stamp(a, &x, 1);
            drop(x);
            let both = &Barrier::new(2);
            let y = thread::scope(|scope| {
                let marks = scope.spawn(move || {
                    both.wait();
                    a.mark().unwrap();
                });
                both.wait();
                // Some microseconds more in each round, so that every moment of the record is met.
                (0..round % 50 * 40).for_each(|_| std::hint::spin_loop());
                let y = lab.alloc(b);
                marks.join().unwrap();
                y
            });
            assert_eq!(y.device_ptr(), at, "INCONCLUSIVE: it is another block");
            lab.stamp(b, &y, 2);
            lab.waits_for(b, &gate, Duration::from_micros(100));
            drop(gate);
            lab.synchronize();
        }
        lab.no_mismatch();
    });
}

/// H25: freed and taken on a thread on which no context is current, and none is current then.
pub(crate) fn h25_a_thread_without_a_context_is_left_without<R: Rig>(rig: &R) {
    in_both_kinds(rig, BLOCK, |lab| {
        let [a, b] = &lab.streams();
        let x = lab.alloc(a);
        let at = x.device_ptr();
        let gate = lab.close(a);
        lab.stamp(a, &x, 1);
        lab.is_free(b, &gate);
        let y = thread::scope(|scope| {
            let other = scope.spawn(move || {
                rig.leave_context();
                drop(x);
                assert!(!rig.has_context(), "a free has made a context current");
                let y = lab.alloc(b);
                assert!(!rig.has_context(), "an allocation has made a context current");
                y
            });
            other.join().unwrap()
        });
        assert_eq!(y.device_ptr(), at, "INCONCLUSIVE: it is another block");
        lab.stamp(b, &y, 2);
        lab.waits(b, &gate);
        drop(gate);
        lab.holds(&y, 2);
    });
}

/// H40: a stream that has the raw handle of one that was destroyed with its work pending waits for it.
///
/// The driver may give the new stream the old one's queue of the hardware too. Then the device runs both
/// in order whatever the pool does, and only the pool's calls tell whether it has made the stream wait.
pub(crate) fn h40_a_reused_handle_is_another_stream<R: Rig>(rig: &R) {
    // Kept, so that those after them have other queues.
    let mut others = Vec::new();
    let mut counted = 0;
    for attempt in 0..24 {
        match destroyed_and_made_anew(rig, attempt, &mut others) {
            Anew::Proven => return,
            Anew::Counted => counted += 1,
            Anew::OtherHandle => eprintln!("attempt {attempt}: the handle is another one"),
        }
    }
    if counted > 0 {
        eprintln!("{counted} streams were in the old one's queue: the pool's calls decided");
        return;
    }
    eprintln!("no handle came back while work was pending: one that comes back later decides");
    h40_a_handle_that_comes_back_later_is_another_stream(rig);
}

/// H40, where the driver keeps a handle until the stream's work is over: what the pool has not seen finish
/// on the old stream, and what the new one does behind a gate, are told apart.
pub(crate) fn h40_a_handle_that_comes_back_later_is_another_stream<R: Rig>(rig: &R) {
    let mut others = Vec::new();
    let proven = (0..16).any(|_| came_back_later(rig, &mut others));
    assert!(proven, "INCONCLUSIVE: no stream had the handle of the one before it");
}

fn came_back_later<R: Rig>(rig: &R, others: &mut Vec<Raw<R>>) -> bool {
    let lab = Lab::with(rig, |builder| builder.limit(BLOCK));
    lab.pool.reserve(BLOCK).unwrap();
    let [raw] = rig.independent::<1>();
    let handle = lab.handle_of(&raw);
    let a = lab.register(raw.clone());
    let x = lab.alloc(&a);
    let at = x.device_ptr();
    lab.stamp(&a, &x, 1);
    drop(x);
    a.retire().unwrap();
    // The device is done, and only the test knows.
    lab.synchronize();
    drop(raw);
    let anew = rig.stream();
    if lab.handle_of(&anew) != handle {
        others.push(anew);
        return false;
    }
    let b = lab.register(anew);
    let y = lab.alloc(&b);
    assert_eq!(y.device_ptr(), at, "INCONCLUSIVE: it is another block");
    let c = rig.stream();
    let gate = lab.close(&b);
    lab.stamp(&b, &y, 3);
    drop(y);
    if !lab.is_free_now(&c) {
        others.push(c);
        return false;
    }
    lab.taken_in_order(&lab.register(c), at, gate);
    true
}

/// How it went.
enum Anew {
    /// Behind a gate.
    Proven,
    /// The gate holds the new stream up as well; the pool has made it wait.
    Counted,
    /// No new stream had the handle.
    OtherHandle,
}

fn destroyed_and_made_anew<R: Rig>(rig: &R, attempt: u64, others: &mut Vec<Raw<R>>) -> Anew {
    let lab = Lab::with(rig, |builder| builder.limit(BLOCK));
    lab.pool.reserve(BLOCK).unwrap();
    let [raw] = rig.independent::<1>();
    let handle = lab.handle_of(&raw);
    let a = lab.register(raw.clone());
    let x = lab.alloc(&a);
    let at = x.device_ptr();
    let Err(refused) = a.retire() else { panic!("FIRED: retired under a live buffer") };
    let a = refused.into_stream();
    // What the stream waits for may decide when the driver lets go of it.
    let gate = if attempt.is_multiple_of(2) { rig.close_by_kernel(&raw) } else { lab.close(&a) };
    lab.stamp(&a, &x, 1);
    drop(x);
    a.retire().unwrap();
    // The last handle, with nothing between the end of the one stream and the making of the next.
    drop(raw);
    let mut anew = rig.stream_of_priority(attempt / 2 % 2 == 1);
    for _ in 0..8 {
        if lab.handle_of(&anew) == handle {
            break;
        }
        others.push(anew);
        anew = rig.stream();
    }
    if lab.handle_of(&anew) != handle {
        others.push(anew);
        return Anew::OtherHandle;
    }
    if lab.is_free_now(&anew) {
        lab.taken_in_order(&lab.register(anew), at, gate);
        return Anew::Proven;
    }
    others.push(anew.clone());
    let b = lab.register(anew);
    let before = lab.stream_waits();
    let y = lab.alloc(&b);
    assert_eq!(y.device_ptr(), at, "INCONCLUSIVE: it is another block");
    assert!(!gate.was_forced(), "INCONCLUSIVE: the watchdog has opened the gate");
    assert!(lab.stream_waits() > before, "FIRED: it was not made to wait");
    Anew::Counted
}

/// H43: the legacy stream is one like any other.
pub(crate) fn h43_the_legacy_stream_waits_and_is_waited_for<R: Rig>(rig: &R) {
    for legacy_takes in [false, true] {
        in_both_kinds(rig, BLOCK, |lab| {
            let legacy = lab.register(rig.legacy());
            let [other] = lab.streams();
            let (a, b) = if legacy_takes { (&other, &legacy) } else { (&legacy, &other) };
            let x = lab.alloc(a);
            let at = x.device_ptr();
            let gate = lab.close(a);
            lab.stamp(a, &x, 1);
            lab.is_free(b, &gate);
            drop(x);
            lab.taken_in_order(b, at, gate);
        });
    }
}

/// H43: the per-thread default stream is refused.
pub(crate) fn h43_the_per_thread_stream_is_refused<R: Rig>(rig: &R) {
    let lab = Lab::with(rig, |builder| builder);
    match lab.pool.stream(rig.per_thread()) {
        Ok(_) => panic!("FIRED: it is registered"),
        Err(error) => assert!(error.is_wrong_stream(), "{error}"),
    }
}

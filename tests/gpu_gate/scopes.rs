//! Quiescent scopes: H30, H31, H37, and that the synchronize is one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::rig::{BLOCK, Lab, Rig, in_both_kinds};

/// A scope begins only when everything before it has finished.
pub(crate) fn a_scope_begins_when_the_gate_opens<R: Rig>(rig: &R) {
    let lab = &Lab::with(rig, |builder| builder);
    let [a, b] = &lab.streams();
    let x = lab.alloc(a);
    let begun = &AtomicBool::new(false);
    thread::scope(|scope| {
        // Dropped before the thread is joined, also by a panic.
        let gate = lab.close(a);
        lab.stamp(a, &x, 1);
        lab.is_free(b, &gate);
        let waiting = scope.spawn(move || {
            let open = lab.pool.quiesce().unwrap();
            begun.store(true, Ordering::SeqCst);
            drop(open);
        });
        for _ in 0..200 {
            rig.pause();
        }
        assert!(!begun.load(Ordering::SeqCst), "FIRED: the scope has not synchronized");
        drop(gate);
        waiting.join().unwrap();
    });
    lab.holds(&x, 1);
}

/// H30: what is launched and freed inside the scope. One stream is settled by its own event, several by
/// one of the context.
pub(crate) fn h30_what_a_scope_launches_is_waited_for<R: Rig>(rig: &R) {
    for several in [false, true] {
        in_both_kinds(rig, 2 * BLOCK, |lab| {
            let [a, b, c] = lab.streams();
            let scope = lab.pool.quiesce().unwrap();
            let (x, y) = (lab.alloc(&a), lab.alloc(&c));
            let at = x.device_ptr();
            let gate = lab.close(&a);
            lab.stamp(&a, &x, 1);
            lab.is_free(&b, &gate);
            drop(x);
            let kept = match several {
                true => {
                    drop(y);
                    None
                }
                false => Some(y),
            };
            let report = scope.finish();
            eprintln!("{report:?}");
            if several {
                // The one beside it can be had; it must not be x.
                let other = lab.alloc(&c);
                assert_ne!(other.device_ptr(), at, "FIRED: it is in use");
                lab.taken_in_order(&b, at, gate);
            } else {
                lab.taken_in_order(&b, at, gate);
            }
            drop(kept);
        });
    }
}

/// H31: a buffer from before is used again after the synchronize, and freed in the scope.
pub(crate) fn h31_what_is_used_after_the_synchronize_is_waited_for<R: Rig>(rig: &R) {
    in_both_kinds(rig, BLOCK, |lab| {
        let [a, b] = lab.streams();
        let x = lab.alloc(&a);
        let at = x.device_ptr();
        lab.stamp(&a, &x, 1);
        let scope = lab.pool.quiesce().unwrap();
        let gate = lab.close(&a);
        lab.stamp(&a, &x, 1);
        lab.is_free(&b, &gate);
        drop(x);
        drop(scope);
        lab.taken_in_order(&b, at, gate);
    });
}

/// H31, by another thread and with the scope still open when it is taken.
pub(crate) fn h31_another_thread_takes_it_while_the_scope_is_open<R: Rig>(rig: &R) {
    in_both_kinds(rig, BLOCK, |lab| {
        let [a, b] = lab.streams();
        let x = lab.alloc(&a);
        let at = x.device_ptr();
        let scope = lab.pool.quiesce().unwrap();
        let gate = lab.close(&a);
        lab.stamp(&a, &x, 1);
        lab.is_free(&b, &gate);
        drop(x);
        let taken = &lab.pool;
        let taken = thread::scope(|threads| {
            let taker = threads.spawn(|| {
                let own = taken.stream(b.raw().clone()).unwrap();
                own.alloc(BLOCK as usize).unwrap()
            });
            taker.join().unwrap()
        });
        assert_eq!(taken.device_ptr(), at, "INCONCLUSIVE: it is another block");
        lab.stamp(&b, &taken, 2);
        lab.waits(&b, &gate);
        drop(gate);
        drop(scope);
        lab.holds(&taken, 2);
    });
}

/// H37: what was freed before the scope waits for nothing.
pub(crate) fn h37_what_was_freed_before_a_scope_is_clean<R: Rig>(rig: &R) {
    in_both_kinds(rig, BLOCK, |lab| {
        let [a, b] = lab.streams();
        let x = lab.alloc(&a);
        let at = x.device_ptr();
        lab.stamp_slowly(&a, &x, 1, 1_000_000);
        drop(x);
        drop(lab.pool.quiesce().unwrap());
        let gate = lab.close(&a);
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

//! Captures, which no call of a pool breaks or is drawn into: H50, H51, H53.

use std::thread;

use crate::rig::{BLOCK, Lab, Rig};

/// H50: a frees X and begins a capture; b does not get X.
pub(crate) fn h50_what_a_capturing_stream_freed_is_left_alone<R: Rig>(rig: &R) {
    for mode in 0..3 {
        let lab = Lab::with(rig, |builder| builder.limit(2 * BLOCK).floor(0));
        lab.pool.reserve(BLOCK).unwrap();
        let [a, b] = lab.streams();
        let (at, gate) = lab.freed_behind_a_gate(&a, &b);
        rig.begin_capture(a.raw(), mode);
        let y = lab.alloc(&b);
        assert!(!lab.is_capturing(&b), "FIRED: b is drawn into the capture");
        assert_ne!(y.device_ptr(), at, "FIRED: it cannot be known that a has finished");
        lab.stamp(&b, &y, 2);
        lab.finishes(&b, &gate);
        let full = lab.pool.stream(b.raw().clone()).unwrap().alloc(BLOCK as usize);
        assert!(full.is_err_and(|error| error.is_out_of_memory()), "FIRED: it is in use");
        assert!(rig.end_capture(a.raw()), "FIRED: the capture is broken, mode {mode}");
        drop(gate);
        lab.holds(&y, 2);
        // And now it can be had.
        lab.alloc(&b);
    }
}

/// H51: allocations and frees of another thread, during a capture in each mode.
pub(crate) fn h51_other_threads_go_on_during_a_capture<R: Rig>(rig: &R) {
    for mode in 0..3 {
        let lab = &Lab::with(rig, |builder| builder.limit(8 * BLOCK));
        let [a, b, c] = &lab.streams();
        drop(lab.alloc(a));
        rig.begin_capture(a.raw(), mode);
        rig.busy(a.raw(), 1000);
        thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..100 {
                    let (x, y) = (lab.alloc(b), lab.alloc_of(c, BLOCK << (round % 2)));
                    lab.stamp(b, &x, 1);
                    x.use_on(c).unwrap();
                    lab.stamp(c, &y, 1);
                    lab.check(c, &x, 1);
                    if round % 10 == 0 {
                        c.synchronize().unwrap();
                    }
                }
            });
        });
        assert!(rig.end_capture(a.raw()), "FIRED: the capture is broken, mode {mode}");
        assert!(!lab.is_capturing(b) && !lab.is_capturing(c));
        lab.no_mismatch();
    }
}

/// H53: whatever synchronizes does so for the other streams, and the capture survives.
pub(crate) fn h53_what_synchronizes_spares_the_capture<R: Rig>(rig: &R) {
    for (mode, elsewhere) in [0, 1, 2].into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let lab = &Lab::with(rig, |builder| builder.limit(4 * BLOCK).floor(0));
        let [a, b, c] = &lab.streams();
        let kept = lab.alloc(a);
        rig.begin_capture(a.raw(), mode);
        rig.busy(a.raw(), 1000);
        let everything = move || {
            let x = lab.alloc(b);
            let at = x.device_ptr();
            lab.stamp_slowly(b, &x, 1, 1_000_000);
            drop(x);
            drop(lab.pool.quiesce().unwrap());
            // b's work has been waited for: c takes its block with no wait.
            let before = lab.stream_waits();
            let y = lab.alloc(c);
            assert_eq!((y.device_ptr(), lab.stream_waits() - before), (at, 0));
            lab.stamp(c, &y, 2);
            let report = lab.pool.release(y).unwrap();
            assert_eq!(report.freed, 1);
            lab.pool.synchronize().unwrap();
            let error = lab.pool.stream(b.raw().clone()).unwrap().alloc(5 * BLOCK as usize);
            assert!(error.is_err_and(|error| error.is_out_of_memory()));
            lab.pool.trim(0).unwrap();
            // What a's capture may use is in a live buffer.
            assert!(lab.pool.stats().reserved >= BLOCK);
        };
        match elsewhere {
            true => thread::scope(|scope| scope.spawn(everything).join().unwrap()),
            false => everything(),
        }
        assert!(rig.end_capture(a.raw()), "FIRED: the capture is broken, mode {mode}");
        drop(kept);
        lab.no_mismatch();
    }
}

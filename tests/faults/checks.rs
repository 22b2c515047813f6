//! The random programs, as many as see the faults.

use streampool::backend::ErrorKind;
use streampool::check::{Fault, Program, fail_call, frozen, quick, quick_on_threads};

#[test]
fn random_programs() {
    quick(0..500).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn lock_step() {
    quick_on_threads(0..150, 3).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn frozen_operations() {
    for seed in 0..16 {
        let program = Program::random(seed, 60);
        let mut operation = 0;
        loop {
            let run = frozen(&program, operation).unwrap_or_else(|failure| panic!("{failure}"));
            operation += 1;
            if operation > run.device_operations {
                break;
            }
        }
    }
}

#[test]
fn failing_calls() {
    for seed in 0..8 {
        let program = Program::random(seed, 60);
        for nth in 1..40 {
            let fault = Fault { nth, kind: ErrorKind::Other, forever: false, late: false };
            fail_call(&program, fault).unwrap_or_else(|failure| panic!("{fault:?}: {failure}"));
        }
    }
}

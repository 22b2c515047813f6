//! H56: every driver call of long random programs fails, one after the other, once and from then on, with
//! each kind of error, instead of its effect or after it. No panic, no lost byte, no unordered reuse; once
//! the faults are over everything can be had again (unless the device is lost): all memory goes back, the
//! whole limit is served, the pool closes.

use streampool::backend::ErrorKind;
use streampool::check::{Coverage, Fault, Program, fail_call};
use streampool::{Growth, Reuse};

const KINDS: [ErrorKind; 4] =
    [ErrorKind::OutOfMemory, ErrorKind::Capture, ErrorKind::DeviceLost, ErrorKind::Other];

/// Fails every call of a program, in every way; says what was reached, and how many calls there were.
fn fail_all(program: &Program) -> (Coverage, u64) {
    let mut reached = Coverage::default();
    let mut calls = 0;
    for kind in KINDS {
        for (forever, late) in [(false, false), (true, false), (false, true)] {
            for nth in 1.. {
                let fault = Fault { nth, kind, forever, late };
                let run = fail_call(program, fault)
                    .unwrap_or_else(|failure| panic!("with {fault:?}: {failure}"));
                reached += run;
                if run.injected == 0 {
                    calls = calls.max(nth - 1);
                    break;
                }
            }
        }
    }
    (reached, calls)
}

/// A long random program on one device, in which no capture and no fault of its own interferes.
fn program(seed: u64, growth: Growth, reuse: Reuse) -> Program {
    let mut program = Program::random(seed, 150);
    program.setup.devices = 1;
    program.setup.growth = growth;
    program.setup.reuse = reuse;
    program.setup.floor = 0;
    program.setup.limit = 12 << 20;
    program.setup.late_waits = true;
    program
}

fn check(growth: Growth, reuse: Reuse, foreign_captures: bool, seeds: [u64; 2]) {
    let mut reached = Coverage::default();
    for seed in seeds {
        let mut program = program(seed, growth, reuse);
        program.setup.foreign_captures = foreign_captures;
        let (run, calls) = fail_all(&program);
        assert!(calls > 100, "seed {seed} makes only {calls} driver calls");
        reached += run;
    }
    assert!(reached.failed_operations > 100, "the errors are met by too little: {reached:?}");
    assert!(reached.lost_devices > 100 && reached.emptied > 1000, "{reached:?}");
    assert!(reached.crossings > 0 && reached.ladders > 0, "{reached:?}");
}

#[test]
fn h56_virtual_memory() {
    check(Growth::Virtual, Reuse::Balanced, false, [1, 2]);
}

#[test]
fn h56_plain_segments() {
    check(Growth::Segments, Reuse::Memory, false, [3, 4]);
}

#[test]
fn h56_streams_one_by_one() {
    check(Growth::Virtual, Reuse::Memory, true, [5, 6]);
}

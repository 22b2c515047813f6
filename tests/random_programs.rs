//! Random programs on one thread. The properties, of every program:
//!
//! - No block is handed to a stream before every operation of its earlier owners is ordered before that
//!   stream's next one, and no byte that a kernel wrote is overwritten by an earlier owner's kernel.
//! - A stream that is named, or made the home, is ordered after all that was on the home by then.
//! - Live buffers do not overlap, are aligned as asked, hold what was asked, and round as promised.
//! - After every step: reserved = in use + free (clean, pending) + quarantined + in transit; in use is
//!   the live buffers' capacities; the device has given what is reserved, and never more than the limit.
//! - A hit, a free and the drop of a handle make no driver call; a free on a stream with
//!   `record_on_free` makes one record, unless a scope of its pool is open on its thread.
//! - A scope reports exactly the buffers that its thread has freed into its pool.
//! - Out of memory is the truth: an identical retry fails too, and an empty pool serves its limit.
//! - No stream is retired, and no pool closed, under a live buffer; no capture is broken; what names a
//!   capturing stream is refused where it is seen.
//! - Injected errors cost calls, not bytes: in the end everything goes back to the device, the whole
//!   limit can be had again, the pool can be closed, and no event and no stream survives.
//! - Nothing panics.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, RngAlgorithm, TestRng, TestRunner};
use streampool::backend::ErrorKind;
use streampool::check::{Op, Program, Setup, Step, quick, run};
use streampool::sim::{Call, CallFilter};

/// Programs a run, unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 20_000;
/// Seeds of programs that failed once; each run begins with them.
const REGRESSIONS: &str = "proptest-regressions/random_programs.txt";

#[test]
fn random_programs_keep_every_property() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let config = Config {
        cases: cases.unwrap_or(CASES),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    // The same programs in every run: a failure that comes and goes helps nobody.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let program = (any::<[u8; Setup::BYTES]>(), vec(any::<[u8; Step::BYTES]>(), 1..70)).prop_map(
        |(setup, steps)| Program {
            setup: Setup::from_bytes(setup),
            steps: steps.into_iter().map(Step::from_bytes).collect(),
        },
    );
    TestRunner::new_with_rng(config, rng)
        .run(&program, |program| {
            run(&program).map(drop).map_err(|failure| TestCaseError::fail(failure.to_string()))
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn every_state_is_reached() {
    let reached = quick(0..1500).unwrap_or_else(|failure| panic!("{failure}"));
    for (state, count) in reached.states() {
        println!("{state:24} {count}");
    }
    assert_eq!(reached.missed(), [""; 0], "the generator never reaches these");
}

/// Small programs that random ones were shrunk to, each by what it found.
fn runs(setup: Setup, ops: &[Op]) {
    let steps = ops.iter().map(|op| Step { thread: 0, op: *op }).collect();
    run(&Program { setup, steps }).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Plain segments of at most 12 MiB, on a device that finishes nothing by itself.
fn small() -> Setup {
    let setup = Setup::from_bytes([0; Setup::BYTES]);
    Setup { schedule: streampool::sim::Schedule::Lazy, ..setup }
}

#[test]
fn a_stream_of_another_pool_that_used_a_block_is_waited_for_before_out_of_memory() {
    let setup = Setup { devices: 2, ..small() };
    runs(
        setup,
        &[
            Op::Alloc { stream: 1, len: 4 << 20, align: 1 },
            Op::UseOn { buffer: 0, stream: 0 },
            Op::Launch { buffer: 0, on: 1, writes: true, ns: 1000 },
            Op::Free { buffer: 0 },
            Op::Alloc { stream: 1, len: 9 << 20, align: 1 },
        ],
    );
}

#[test]
fn a_retired_stream_whose_last_event_was_refused_loses_no_byte() {
    let setup = Setup { foreign_captures: true, faults: true, ..small() };
    let (nth, kind, filter) = (1, ErrorKind::Other, CallFilter::only(Call::Query));
    runs(
        setup,
        &[
            Op::Alloc { stream: 0, len: 4096, align: 1 },
            Op::Launch { buffer: 0, on: 0, writes: true, ns: 1000 },
            Op::DropStream { stream: 0 },
            Op::Free { buffer: 0 },
            Op::Mark { stream: 0 },
            Op::Fault { nth, kind, filter, forever: false, late: false },
            Op::Mark { stream: 0 },
        ],
    );
}

#[test]
fn a_stream_that_could_not_leave_while_it_captured_leaves_before_its_pool_is_closed() {
    runs(
        small(),
        &[
            Op::Alloc { stream: 0, len: 512 << 10, align: 1 },
            Op::BeginCapture { stream: 0, foreign: false },
            Op::DropStream { stream: 0 },
            Op::Free { buffer: 0 },
            // It is to leave, and cannot: it captures.
            Op::Mark { stream: 0 },
            Op::EndCapture { capture: 0 },
            Op::Close { pool: 0 },
        ],
    );
}

#[test]
fn a_stream_of_another_pool_that_could_not_leave_while_it_captured_is_waited_for() {
    runs(
        Setup { devices: 2, mutual: true, ..small() },
        &[
            Op::Alloc { stream: 0, len: 512 << 10, align: 1 },
            Op::UseOn { buffer: 0, stream: 3 },
            Op::Launch { buffer: 0, on: 1, writes: true, ns: 1000 },
            Op::Free { buffer: 0 },
            Op::BeginCapture { stream: 3, foreign: false },
            Op::DropStream { stream: 3 },
            // It is to leave, and cannot; its pool is not called again before the first one is emptied.
            Op::Mark { stream: 1 },
        ],
    );
}

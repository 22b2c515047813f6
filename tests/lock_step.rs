//! Random programs on two and three real threads in lock step: an operation says which thread makes it.
//! The properties are those of `random_programs`; what these tests see and that one cannot is a flag, a
//! depth or a list that belongs to the process where it should belong to the thread: a free beside
//! another thread's scope must close its epoch as ever, and must not be in that scope's report.

use streampool::check::{Coverage, quick_on_threads};

fn reached(threads: usize) -> Coverage {
    let reached = quick_on_threads(0..1200, threads).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(reached.frees_beside_scope > 300, "{reached:?}");
    assert!(reached.recorded_frees > 300 && reached.nested_scopes > 50, "{reached:?}");
    assert!(reached.leaked_scopes > 50 && reached.panics_in_scope > 50, "{reached:?}");
    reached
}

#[test]
fn two_threads_in_lock_step() {
    assert_eq!(reached(2).missed(), [""; 0]);
}

#[test]
fn three_threads_in_lock_step() {
    assert_eq!(reached(3).missed(), [""; 0]);
}

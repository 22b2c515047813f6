//! A backend that panics in a call of the pool's: the panic is the program's, and the pool goes on.

#[path = "common/null_backend.rs"]
mod null_backend;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use null_backend::{Finish, NullBackend};
use streampool::{PoolStream, StreamPool};

type Pool = StreamPool<NullBackend>;
type Stream = PoolStream<NullBackend>;

/// A stream on which a buffer was freed, and its pool.
fn used(backend: &NullBackend) -> (Pool, Stream) {
    let pool = StreamPool::new(backend.clone());
    let stream = pool.stream(backend.create_stream()).unwrap();
    drop(stream.alloc(4096).unwrap());
    (pool, stream)
}

/// Runs something while records panic, and checks that it did.
#[track_caller]
fn panics(backend: &NullBackend, run: impl FnOnce()) {
    backend.let_records_panic(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    backend.let_records_panic(false);
    assert!(outcome.is_err(), "nothing was recorded");
}

/// The pool ends, with all of its streams. It waits for those that are leaving, so that one that would leave for
/// ever would keep it.
#[track_caller]
fn can_be_closed(pool: Pool) {
    let (told, ended) = mpsc::channel();
    let closing = thread::spawn(move || {
        let closed = pool.close();
        // Nobody listens any more where this took too long.
        let _ = told.send((closed.is_ok(), pool.stats().reserved));
    });
    let outcome = ended.recv_timeout(Duration::from_secs(20));
    assert_eq!(outcome.expect("the close waits for a leave that nobody makes"), (true, 0));
    closing.join().unwrap();
}

#[test]
fn a_stream_that_was_to_leave_by_hand_leaves_later() {
    let backend = NullBackend::new(Finish::Always);
    let (pool, stream) = used(&backend);
    panics(&backend, || drop(stream.retire()));
    can_be_closed(pool);
}

#[test]
fn a_stream_that_a_miss_was_to_let_leave_leaves_later() {
    let backend = NullBackend::new(Finish::Always);
    let (pool, stream) = used(&backend);
    let other = pool.stream(backend.create_stream()).unwrap();
    drop(stream);
    panics(&backend, || drop(other.alloc(4096)));
    drop(other.alloc(4096).unwrap());
    drop(other);
    can_be_closed(pool);
}

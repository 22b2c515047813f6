//! The quiescent scopes of a thread, by number: C code holds a number, the thread holds the scope.
//!
//! So a scope cannot be ended on another thread, and one that was ended, or is left open when its thread
//! ends, is no dangling pointer.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};

use rust_pool::QuiescentScope;
use rust_pool::cuda::CudaBackend;

use crate::layout::Report;
use crate::status::{Failure, Status};

type Scope = QuiescentScope<CudaBackend>;

static THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static OPEN: RefCell<Open> = RefCell::new(Open {
        // Relaxed: only that no two threads get the same number matters.
        thread: THREADS.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
        begun: 0,
        scopes: Vec::new(),
    });
}

struct Open {
    /// The thread's own number, the high half of its scopes' numbers.
    thread: u32,
    /// How many scopes it has begun: the low half.
    begun: u32,
    scopes: Vec<(u64, Scope)>,
}

fn thread_ends<T>(_: T) -> Failure {
    Failure::new(Status::WrongThread, "the thread is ending, and has no scopes any more")
}

/// Keeps a scope of this thread, and names it. Never 0.
pub(crate) fn keep(scope: Scope) -> Result<u64, Failure> {
    let mut scope = Some(scope);
    let kept = OPEN.try_with(|open| {
        let mut open = open.borrow_mut();
        open.begun = open.begun.wrapping_add(1);
        let number = u64::from(open.thread) << 32 | u64::from(open.begun);
        open.scopes.extend(scope.take().map(|scope| (number, scope)));
        number
    });
    kept.map_err(thread_ends)
}

/// Ends a scope of this thread.
pub(crate) fn end(number: u64) -> Result<Report, Failure> {
    let taken = OPEN.try_with(|open| {
        let mut open = open.borrow_mut();
        if (number >> 32) as u32 != open.thread {
            return Err(Failure::new(
                Status::WrongThread,
                "a scope ends on the thread that has begun it; it is still open there",
            ));
        }
        let at = open.scopes.iter().position(|(own, _)| *own == number);
        let at = at.ok_or_else(|| {
            Failure::new(Status::UnknownScope, "this scope has ended already, or never began")
        })?;
        Ok(open.scopes.remove(at).1)
    });
    // With no borrow held: the end calls the driver.
    Ok(taken.map_err(thread_ends)??.finish().into())
}

//! What belongs to the calling thread: a number, a stack of contexts, a capture mode.
//!
//! All of it is plain `Cell`s without destructors, so that it is there in thread-local destructors
//! and exit hooks too.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::code::{Code, Outcome};

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`, a thread's mode at first.
pub(crate) const GLOBAL: u32 = 0;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
pub(crate) const THREAD_LOCAL: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) const RELAXED: u32 = 2;

const DEPTH: usize = 16;

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
    static CONTEXTS: Cell<([usize; DEPTH], usize)> = const { Cell::new(([0; DEPTH], 0)) };
}

/// The thread's number, from 1, in the order of first calls.
pub(crate) fn number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if NUMBER.get() == 0 {
        NUMBER.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
    }
    NUMBER.get()
}

pub(crate) fn mode() -> u32 {
    MODE.get()
}

pub(crate) fn set_mode(mode: u32) {
    MODE.set(mode);
}

/// The current context, or 0.
pub(crate) fn context() -> usize {
    let (stack, depth) = CONTEXTS.get();
    if depth == 0 { 0 } else { stack[depth - 1] }
}

/// Replaces the top of the stack, or pushes on an empty one; 0 pops.
pub(crate) fn set_context(context: usize) {
    let (mut stack, mut depth) = CONTEXTS.get();
    if context == 0 {
        depth = depth.saturating_sub(1);
    } else {
        depth = depth.max(1);
        stack[depth - 1] = context;
    }
    CONTEXTS.set((stack, depth));
}

pub(crate) fn push_context(context: usize) -> Outcome {
    let (mut stack, depth) = CONTEXTS.get();
    *stack.get_mut(depth).ok_or(Code::OUT_OF_MEMORY)? = context;
    CONTEXTS.set((stack, depth + 1));
    Ok(())
}

pub(crate) fn pop_context() -> Outcome<usize> {
    let (stack, depth) = CONTEXTS.get();
    let top = depth.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
    CONTEXTS.set((stack, top));
    Ok(stack[top])
}

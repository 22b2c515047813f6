//! A stand-in for `libcuda.so`, for tests of CUDA code without a GPU.
//!
//! Placed as `libcuda.so` in a folder on `LD_LIBRARY_PATH`, it is what cudarc loads. It keeps a log
//! of every call with the thread and the current context that it was made in, and has the
//! semantics that tests of an allocator lean on: streams and events in order, captures that break as
//! the real driver's do, memory that holds bytes, handles that are used again at once, errors that
//! stick. Kernels do nothing. `README.md` has the environment variables and the functions by which
//! a test controls it (`standin_…`).
//!
//! # How it is built
//!
//! - `state`: everything that the driver knows, behind one lock; `call`: the way in and out of each
//!   function: pauses, injected failures, the log.
//! - `stream`, `event`, `capture`, `memory`, `pools`: the rules.
//! - `api`: the exported functions, which only look up, apply one rule and write results.
//! - `os`: the system calls; `thread`: what belongs to a thread.

#![cfg(target_os = "linux")]

mod api;
mod call;
mod capture;
mod code;
mod event;
mod handle;
mod memory;
mod os;
mod pools;
mod state;
mod stream;
mod thread;

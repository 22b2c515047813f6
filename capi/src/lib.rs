//! The C interface of [streampool](rust_pool): `libstreampool.so` and `libstreampool.a`.
//!
//! The header `include/streampool.h` is the documentation for C code: units, errors, lifetimes, threads.
//! This is what is behind it:
//!
//! - C code holds addresses, raw stream handles and numbers; the [`Pool`] holds the buffers, the registered
//!   streams and the scopes by value (`addresses`, `streams`, `scopes`), so that the crate's types keep
//!   their promises whatever C code does with an address.
//! - Each entry point (`entry`, `torch`, `watch`) checks its pointers, calls a safe function, and turns what it
//!   returns into a [`Status`] and a text of the thread. Nothing unwinds into C.
//! - A hit and a free cost two or three short locks beside the pool's own, sharded by address and by stream,
//!   and no host allocation.

mod addresses;
mod defaults;
mod entry;
mod layout;
mod pool;
mod scopes;
mod status;
mod streams;
mod table;
mod torch;
mod watch;

pub use entry::*;
pub use layout::{Config, PressureHook, Report, Statistics};
pub use pool::Pool;
pub use status::Status;
pub use torch::*;
pub use watch::*;

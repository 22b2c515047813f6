//! Sequences that a stream-ordered pool gets wrong, each with its number, on the simulated device and
//! in both kinds of growth.
//!
//! A test asserts two things: that the device's oracle has seen no hazard, and, by counters and
//! addresses, that the pool did no more than it had to.

mod capture;
mod common;
mod device_copies;
mod device_errors;
mod device_leaves;
mod device_lost;
mod device_pools;
mod device_scopes;
mod device_threads;
mod devices;
mod end;
mod errors;
mod memory;
mod ordering;
mod remap;
mod remap_random;
mod scope;
mod scope_interleaved;
mod scope_reports;
mod sizes;
mod streams;
mod threads;
mod transit;

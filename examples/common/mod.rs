//! What the examples share: a device to run on, the command line, tables.
#![allow(dead_code, reason = "each example uses a part of this")]

pub(crate) mod cli;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod device;
pub(crate) mod table;

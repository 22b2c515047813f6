//! A stream-ordered memory pool for CUDA devices.

pub mod backend;

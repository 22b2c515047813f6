//! A stream-ordered memory pool for CUDA devices.

pub mod backend;
mod sync;

#[cfg(feature = "sim")]
pub use backend::sim;

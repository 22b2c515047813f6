//! A stream-ordered memory pool for CUDA devices.

pub mod backend;
mod sync;

#[cfg(feature = "cuda")]
pub use backend::cuda;
#[cfg(feature = "sim")]
pub use backend::sim;

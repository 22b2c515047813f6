//! How to use a pool, a chapter at a time. All code here is run by the tests.
//!
//! 1. `replacing_cudarc`: from `CudaStream::alloc` to a pool, and what changes with that (with the feature
//!    `cuda`).
//! 2. [`policies`]: how much memory the pool takes, and when it rather waits.
//! 3. [`scopes`]: clearing thousands of buffers at once.
//! 4. [`captures`]: what works beside CUDA graphs today, and what does not.
//! 5. [`testing`]: your stream code on a simulated device, with every missing wait found.
//! 6. [`watching`]: where the memory is; what happened; what the pool tells of itself.
//!
//! A few words come again and again. A *stream* is a queue of work on the device. A buffer has a *home*: the
//! stream that it was allocated on. A free *block* is *clean* when all work that used it has finished; any
//! stream may have it then. Otherwise it is *pending*, and another stream that takes it has to *wait* for an
//! *event*, a mark in the queue of the stream that used it. A *hit* is an allocation from what the same
//! stream has freed: it needs none of this.

#[cfg(feature = "cuda")]
#[doc = include_str!("guide/replacing_cudarc.md")]
pub mod replacing_cudarc {}

#[doc = include_str!("guide/policies.md")]
pub mod policies {}

#[doc = include_str!("guide/scopes.md")]
pub mod scopes {}

#[doc = include_str!("guide/captures.md")]
pub mod captures {}

#[doc = include_str!("guide/testing.md")]
pub mod testing {}

#[doc = include_str!("guide/watching.md")]
pub mod watching {}

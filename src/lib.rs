#![doc = include_str!("crate.md")]
#![cfg_attr(
    feature = "sim",
    doc = "\n# Where to go on\n\n\
           [`guide`] has a chapter for each task. [`StreamPool`], [`PoolStream`] and [`Buffer`] are what\n\
           programs hold; [`PoolBuilder`] has the options; [`sim`] is the device to test on."
)]

/// The README, whose code the tests run: its pictures and links are the repository's.
#[cfg(all(doctest, feature = "sim"))]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod backend;
mod buffer;
#[cfg(feature = "check")]
pub mod check;
mod config;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device_pools;
mod error;
#[cfg(feature = "faults")]
pub mod fault;
#[cfg(not(feature = "faults"))]
mod fault {
    /// Asks whether a mistake is to be made here; without the feature `faults`, never.
    macro_rules! seeded {
        ($fault:ident) => {
            false
        };
    }
    pub(crate) use seeded;
}
#[cfg(feature = "sim")]
pub mod guide;
mod heap;
pub mod history;
mod order;
mod pool;
mod pool_stream;
mod prefetch;
mod quiescent;
mod rows;
pub mod snapshot;
mod stats;
mod sync;
mod tag;
mod tell;

pub use backend::Backend;
#[cfg(feature = "sim")]
pub use backend::sim;
pub use buffer::Buffer;
pub use config::{Growth, PoolBuilder, Pressure, Reuse};
pub use device_pools::DevicePools;
pub use error::{Error, Shortage};
pub use history::History;
pub use pool::{DriverCalls, StreamPool};
pub use pool_stream::{PoolStream, RetireError};
pub use quiescent::{QuiescentReport, QuiescentScope, QuiescentScopes};
pub use snapshot::Snapshot;
pub use stats::{Stats, StreamStats};
pub use tag::{EnteredTag, Tag};

#[cfg(all(test, loom))]
mod models;

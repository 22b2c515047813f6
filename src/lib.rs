#![doc = include_str!("../README.md")]

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
pub mod snapshot;
mod stats;
mod sync;
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

#[cfg(all(test, loom))]
mod models;

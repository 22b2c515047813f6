//! A simulated device: CUDA's streams, events and memory on the host, with a race detector.
//!
//! [`SimDevice`] implements [`Backend`](crate::backend::Backend), so that a pool, and a program that
//! uses one, can be tested without a GPU, and more strictly than on one. On a GPU a missing wait
//! shows when the timing is unlucky; here every pair of unordered uses of the same bytes is found,
//! whatever the timing, and reported with both sides' histories and the edge that was missing.
//!
//! # Semantics
//!
//! - Operations of one stream execute in order. Nothing else orders them but events, the legacy
//!   stream's implicit barriers, and what the host has seen finish.
//! - A record makes an event stand for what is on the stream; a later record replaces that, and does
//!   not change what earlier waits wait for. A wait for an event that was never recorded is none.
//! - What the host has seen finish (a query that returned `true`, a synchronize) is ordered before
//!   everything that any host thread submits later: host threads are taken to know what any of them
//!   has seen. That a call happened to block is no synchronize, and neither are unmapping and
//!   freeing.
//! - A call that fails makes no edge.
//! - Each stream ever created has a history of its own, though raw handles are used again at once.
//! - Captures follow what was measured on an H200, in all three modes.
//! - Memory is sparse: a write of 512 KiB notes a range, not 512 KiB.
//!
//! Not modelled: priorities, programmatic dependent launch, the driver's own pools, memory shared
//! between processes, calls that block because a stream's queue is full, and what threads cost each
//! other in the driver.
//!
//! Whether two uses are ordered is decided when the later one is submitted, by vector clocks. In
//! which order operations execute is another matter: the [`Schedule`] decides, and under
//! [`Schedule::Frozen`] an operation that nothing orders after another overtakes it, so that what is
//! reported as a race shows in the bytes too.
//!
//! ```
//! use streampool::backend::Backend;
//! use streampool::sim::{HazardKind, Kernel, SimDevice};
//!
//! let device = SimDevice::new(1);
//! let (a, b) = (device.create_stream(), device.create_stream());
//! let memory = device.alloc_segment(4096)?;
//! device.launch(&a, Kernel::new().writes(memory, 4096))?;
//!
//! // Right: b waits for what a has done.
//! let event = device.create_event()?;
//! device.record(&event, &a)?;
//! device.wait(&b, &event)?;
//! device.launch(&b, Kernel::new().reads(memory, 4096))?;
//! assert!(device.hazards().is_empty());
//!
//! // Wrong: nothing orders this write on a after the read on b.
//! device.launch(&a, Kernel::new().writes(memory, 4096))?;
//! let hazards = device.take_hazards();
//! assert_eq!(hazards[0].kind(), HazardKind::Race);
//! println!("{}", hazards[0]);
//! # device.destroy_event(event);
//! # Ok::<(), streampool::sim::SimError>(())
//! ```
#![deny(unsafe_code)]

mod capture;
mod clock;
mod config;
mod counts;
mod device;
mod engine;
mod error;
mod events;
mod execute;
mod faults;
mod handles;
mod hazard;
mod history;
mod kernel;
mod mapping;
mod memory;
mod oracle;
mod owners;
mod pause;
mod range_map;
mod state;
mod submit;
mod thread;
mod user;
mod uses;
#[allow(unsafe_code, reason = "`Backend` is an unsafe trait; this file implements it")]
mod verbs;
mod work;

pub use capture::{CaptureMode, SimGraph};
pub use config::{Costs, Schedule, SimConfig, SizeCost};
pub use counts::{Call, CallCounts};
pub use device::SimDevice;
pub use error::{SimError, SimErrorCode};
pub use faults::{CallFilter, FaultPlan};
pub use handles::{SimEvent, SimGranule, SimStream};
pub use hazard::{Hazard, HazardKind};
pub use kernel::{Gate, Kernel, stamp_byte};
pub use pause::{Pause, PausePoint};

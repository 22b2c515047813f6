//! What stands in a stream's queue.
#![forbid(unsafe_code)]

use std::fmt;

use super::clock::{OpNumber, TimelineId};
use super::kernel::{Access, GateId};

#[derive(Debug)]
pub(super) struct Op {
    pub(super) number: OpNumber,
    /// When it was submitted, on the virtual clock.
    pub(super) submitted: u64,
    pub(super) work: Work,
}

#[derive(Debug)]
pub(super) enum Work {
    /// A record, or a wait for nothing.
    Marker,
    /// Ordered after an operation of another timeline.
    Wait(TimelineId, OpNumber),
    Kernel(Box<Launched>),
}

/// A kernel in a queue.
pub(super) struct Launched {
    pub(super) accesses: Vec<Access>,
    pub(super) duration: u64,
    pub(super) stamp: u64,
    pub(super) gates: Vec<GateId>,
    pub(super) function: Option<Box<dyn FnOnce() + Send>>,
    /// How often mappings had changed when `accesses` was resolved.
    pub(super) changes: u64,
}

impl fmt::Debug for Launched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launched").field("accesses", &self.accesses).finish_non_exhaustive()
    }
}

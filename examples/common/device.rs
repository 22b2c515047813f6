//! A device as the examples drive it: what a program does beside its pool.

use std::ops::{Add, Sub};

use streampool::sim::{Kernel, SimConfig, SimDevice};
use streampool::{Backend, Stats};

use super::cli::Outcome;

/// How a kernel touches a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A kernel that touches one buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) access: Access,
    /// How long it takes, in nanoseconds.
    pub(crate) ns: u64,
}

/// What a device is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To find hazards, if it can.
    Check,
    /// To measure the host's time: it does nothing beside what it is asked for.
    Time,
}

/// A device that a pool can be made for, and that a program can work on.
pub(crate) trait Device: Clone {
    type Backend: Backend;

    /// What a pool, or a baseline that stands in its place, is made for.
    fn backend(&self) -> Self::Backend;

    fn create_stream(&self) -> Outcome<<Self::Backend as Backend>::Stream>;

    fn launch(&self, stream: &<Self::Backend as Backend>::Stream, launch: Launch) -> Outcome<()>;

    /// Blocks until everything on the device has finished. The program's own call.
    fn synchronize(&self) -> Outcome<()>;

    /// The driver calls made through [`backend`](Self::backend) so far.
    fn counts(&self) -> Counts;

    /// Device memory that is taken now, in bytes, by the device's own account.
    fn memory_taken(&self) -> u64;

    /// The most device memory that was taken at once, in bytes, by the device's own account.
    fn memory_peak(&self) -> u64;

    /// Unordered uses found so far; `None` from a device that cannot tell.
    fn hazards(&self) -> Option<u64>;

    /// The first of them, in words.
    fn first_hazard(&self) -> Option<String>;

    /// Tells the device that the program holds these bytes from now on, on this stream. No driver call.
    fn handed_out(&self, stream: &<Self::Backend as Backend>::Stream, address: u64, bytes: u64);

    /// Tells the device that the program is done with these bytes. No driver call.
    fn given_back(&self, address: u64, bytes: u64);
}

/// Driver calls, by what the examples report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) event_records: u64,
    pub(crate) stream_waits: u64,
    pub(crate) event_queries: u64,
    /// Calls that block the host until work has finished.
    pub(crate) synchronizes: u64,
    /// Calls that take memory, give it back or map it.
    pub(crate) mapping_calls: u64,
}

impl Counts {
    /// What a pool has called, by its own account.
    pub(crate) fn of_pool(stats: &Stats) -> Counts {
        let calls = &stats.calls;
        Counts {
            event_records: calls.event_records,
            stream_waits: calls.stream_waits,
            event_queries: calls.event_queries,
            synchronizes: calls.event_synchronizes + calls.context_synchronizes,
            mapping_calls: calls.memory_calls,
        }
    }

    /// The larger of each count.
    pub(crate) fn max(self, other: Counts) -> Counts {
        Counts {
            event_records: self.event_records.max(other.event_records),
            stream_waits: self.stream_waits.max(other.stream_waits),
            event_queries: self.event_queries.max(other.event_queries),
            synchronizes: self.synchronizes.max(other.synchronizes),
            mapping_calls: self.mapping_calls.max(other.mapping_calls),
        }
    }
}

impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            event_records: self.event_records + other.event_records,
            stream_waits: self.stream_waits + other.stream_waits,
            event_queries: self.event_queries + other.event_queries,
            synchronizes: self.synchronizes + other.synchronizes,
            mapping_calls: self.mapping_calls + other.mapping_calls,
        }
    }
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, earlier: Counts) -> Counts {
        Counts {
            event_records: self.event_records - earlier.event_records,
            stream_waits: self.stream_waits - earlier.stream_waits,
            event_queries: self.event_queries - earlier.event_queries,
            synchronizes: self.synchronizes - earlier.synchronizes,
            mapping_calls: self.mapping_calls - earlier.mapping_calls,
        }
    }
}

/// The simulated device.
#[derive(Clone)]
pub(crate) struct Sim {
    device: SimDevice,
}

impl Sim {
    /// A machine of its own.
    pub(crate) fn new(purpose: Purpose) -> Sim {
        let check = purpose == Purpose::Check;
        Sim { device: SimDevice::new(SimConfig { check, ..SimConfig::default() }) }
    }
}

impl Device for Sim {
    type Backend = SimDevice;

    fn backend(&self) -> SimDevice {
        self.device.clone()
    }

    fn create_stream(&self) -> Outcome<<SimDevice as Backend>::Stream> {
        Ok(self.device.create_stream())
    }

    fn launch(&self, stream: &<SimDevice as Backend>::Stream, launch: Launch) -> Outcome<()> {
        let Launch { address, bytes, access, ns } = launch;
        let kernel = match access {
            Access::Read => Kernel::new().reads(address, bytes),
            Access::Write => Kernel::new().writes(address, bytes),
        };
        Ok(self.device.launch(stream, kernel.taking(ns))?)
    }

    fn synchronize(&self) -> Outcome<()> {
        Ok(self.device.synchronize_context()?)
    }

    fn counts(&self) -> Counts {
        let counts = self.device.counts();
        Counts {
            event_records: counts.event_records + counts.context_records,
            stream_waits: counts.stream_waits,
            event_queries: counts.event_queries,
            synchronizes: counts.synchronizes(),
            mapping_calls: counts.mapping_calls(),
        }
    }

    fn memory_taken(&self) -> u64 {
        self.device.memory_in_use()
    }

    fn memory_peak(&self) -> u64 {
        self.device.memory_peak()
    }

    fn hazards(&self) -> Option<u64> {
        Some(self.device.hazard_count())
    }

    fn first_hazard(&self) -> Option<String> {
        self.device.hazards().first().map(ToString::to_string)
    }

    fn handed_out(&self, stream: &<SimDevice as Backend>::Stream, address: u64, bytes: u64) {
        self.device.note_handed_out(stream, address, bytes);
    }

    fn given_back(&self, address: u64, bytes: u64) {
        self.device.note_given_back(address, bytes);
    }
}

//! What a program launches, and the host flags that it can be made to wait for.
#![forbid(unsafe_code)]

use std::fmt;

use super::state::Machine;
use crate::sync::Arc;

/// A kernel, copy or host function: what it touches and how long it takes.
///
/// ```
/// use streampool::backend::Backend;
/// use streampool::sim::{Kernel, SimDevice};
///
/// let device = SimDevice::new(1);
/// let stream = device.create_stream();
/// let memory = device.alloc_segment(4096)?;
/// device.launch(&stream, Kernel::new().writes(memory, 4096).stamp(7).taking(50_000))?;
/// device.launch(&stream, Kernel::new().expects(memory, 4096, 7))?;
/// device.run();
/// assert!(device.hazards().is_empty());
/// # Ok::<(), streampool::sim::SimError>(())
/// ```
#[derive(Default)]
pub struct Kernel {
    pub(super) accesses: Vec<Access>,
    pub(super) duration: Option<u64>,
    pub(super) stamp: Option<u64>,
    pub(super) gates: Vec<GateId>,
    pub(super) function: Option<Box<dyn FnOnce() + Send>>,
}

impl Kernel {
    /// What a kernel takes unless [`taking`](Self::taking) says otherwise: 1 µs.
    pub const DEFAULT_NS: u64 = 1000;

    /// A kernel that touches nothing.
    pub fn new() -> Self {
        Kernel::default()
    }

    /// It reads these bytes.
    pub fn reads(self, address: u64, bytes: u64) -> Self {
        self.access(address, bytes, Mode::Read)
    }

    /// It writes these bytes (and may read them).
    pub fn writes(self, address: u64, bytes: u64) -> Self {
        self.access(address, bytes, Mode::Write)
    }

    /// It reads these bytes and must find what a kernel with this [`stamp`](Self::stamp) wrote;
    /// else that is reported as [`HazardKind::Corruption`](super::HazardKind::Corruption).
    pub fn expects(self, address: u64, bytes: u64, stamp: u64) -> Self {
        self.access(address, bytes, Mode::Expect(stamp))
    }

    /// It copies these bytes: reads them at `from`, and writes them at `to`, with what was written there
    /// last ([`expects`](Self::expects) finds the same stamps). The ranges do not overlap.
    pub fn copies(self, to: u64, from: u64, bytes: u64) -> Self {
        self.access(from, bytes, Mode::Read).access(to, bytes, Mode::Copy(from))
    }

    /// The driver's copy between two devices: each range is reached as its own device reaches it.
    pub(super) fn copy_between(
        (to, own): (u64, usize),
        (from, source): (u64, usize),
        bytes: u64,
    ) -> Self {
        let mut copy = Kernel::new().copies(to, from, bytes);
        for (access, device) in copy.accesses.iter_mut().zip([source, own]) {
            access.device = Some(device);
        }
        // No figure of a real machine: enough that a copy to another device takes longer.
        let speed = if own == source { 2000 } else { 200 };
        copy.taking(Kernel::DEFAULT_NS + bytes / speed)
    }

    /// It takes this long, in nanoseconds of virtual time.
    pub fn taking(mut self, ns: u64) -> Self {
        self.duration = Some(ns);
        self
    }

    /// What it writes: every byte written has the value [`stamp_byte(stamp)`](stamp_byte). Without,
    /// its operation number is the stamp.
    pub fn stamp(mut self, stamp: u64) -> Self {
        self.stamp = Some(stamp);
        self
    }

    /// It does not start before the host has opened the gate. May be called several times.
    pub fn after(mut self, gate: &Gate) -> Self {
        self.gates.push(gate.id);
        self
    }

    /// The device's driver calls this function when the operation executes, on whichever host
    /// thread made it execute, with no lock held. Calls to the device from inside fail with
    /// [`NotPermitted`](super::SimErrorCode::NotPermitted), as in CUDA. A panic in it passes through
    /// the call that executed it.
    pub fn host_function(mut self, function: Box<dyn FnOnce() + Send>) -> Self {
        self.function = Some(function);
        self
    }

    fn access(mut self, address: u64, bytes: u64, mode: Mode) -> Self {
        if bytes > 0 {
            let (physical, device) = (UNRESOLVED, None);
            self.accesses.push(Access { address, bytes, mode, physical, device });
        }
        self
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("accesses", &self.accesses)
            .field("duration", &self.duration)
            .field("stamp", &self.stamp)
            .field("gates", &self.gates)
            .field("function", &self.function.is_some())
            .finish()
    }
}

/// The value of every byte that a kernel with this stamp writes. Never-written memory holds 0.
pub fn stamp_byte(stamp: u64) -> u8 {
    (stamp.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Read,
    Write,
    Expect(u64),
    /// A write of what is at this address, which the access before this one reads.
    Copy(u64),
}

impl Mode {
    pub(super) fn writes(self) -> bool {
        matches!(self, Mode::Write | Mode::Copy(_))
    }
}

/// Not looked up, or not one piece of physical memory.
pub(super) const UNRESOLVED: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) mode: Mode,
    /// Where the bytes were when the operation was submitted.
    pub(super) physical: u64,
    /// The device that reaches the bytes, where it is not the stream's: in a copy by the driver, which needs
    /// no access, and which a pool makes into memory that it has not handed out yet.
    pub(super) device: Option<usize>,
}

pub(super) type GateId = usize;

/// A host flag that kernels can wait for, made closed by [`SimDevice::gate`](super::SimDevice::gate).
///
/// The oracle takes a gate for no order at all: it only holds kernels back.
///
/// ```
/// use streampool::backend::Backend;
/// use streampool::sim::{Kernel, SimDevice};
///
/// let device = SimDevice::new(1);
/// let stream = device.create_stream();
/// let event = device.create_event()?;
/// let gate = device.gate();
/// device.launch(&stream, Kernel::new().after(&gate))?;
/// device.record(&event, &stream)?;
/// device.run();
/// assert!(!device.query(&event)?);
/// gate.open();
/// device.synchronize_event(&event)?;
/// assert!(device.query(&event)?);
/// # device.destroy_event(event);
/// # Ok::<(), streampool::sim::SimError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gate {
    pub(super) machine: Arc<Machine>,
    pub(super) id: GateId,
}

impl Gate {
    /// Lets the kernels behind it go on. Opening an open gate does nothing.
    pub fn open(&self) {
        self.machine.lock().open_gate(self.id);
        self.machine.wake.notify_all();
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.machine.lock().engine.gates[self.id].open
    }
}

//! The programs on the simulated device, on which they themselves are tested.

use std::sync::atomic::{AtomicU64, Ordering};

use streampool::sim::{HazardKind, Kernel, SimConfig, SimDevice, SimStream};

use super::Device;

pub(crate) struct Sim {
    pub(crate) device: SimDevice,
    /// What the race detector has found, of whatever kind.
    pub(crate) hazards: AtomicU64,
}

impl Sim {
    pub(crate) fn new(config: impl Into<SimConfig>) -> Sim {
        Sim { device: SimDevice::new(config), hazards: AtomicU64::new(0) }
    }

    fn launch(&self, stream: &SimStream, kernel: Kernel) {
        self.device.launch(stream, kernel).expect("the launch succeeds");
    }
}

impl Device for Sim {
    type B = SimDevice;

    fn backend(&self) -> SimDevice {
        self.device.clone()
    }

    fn stream(&self) -> SimStream {
        self.device.create_stream()
    }

    fn busy(&self, stream: &SimStream, ns: u64) {
        self.launch(stream, Kernel::new().taking(ns));
    }

    fn stamp(&self, stream: &SimStream, address: u64, bytes: u64, stamp: u64, ns: u64) {
        let kernel = Kernel::new().writes(address, bytes).stamp(stamp);
        self.launch(stream, kernel.taking(ns + Kernel::DEFAULT_NS));
    }

    fn check(&self, stream: &SimStream, address: u64, bytes: u64, stamp: u64) {
        self.launch(stream, Kernel::new().expects(address, bytes, stamp));
    }

    /// Only what a program would see.
    fn mismatches(&self) -> u64 {
        self.device.run();
        let hazards = self.device.take_hazards();
        if let Some(first) = hazards.first() {
            eprintln!("{} hazards, the first: {first}", hazards.len());
        }
        self.hazards.fetch_add(hazards.len() as u64, Ordering::Relaxed);
        hazards.iter().filter(|hazard| hazard.kind() == HazardKind::Corruption).count() as u64
    }
}

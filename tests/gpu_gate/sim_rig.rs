//! The simulated device, on which the gate tests are tested.

use std::thread;
use std::time::Duration;

use streampool::sim::{self, CaptureMode, HazardKind, Kernel, SimDevice, SimStream};

use crate::rig::{Gate, Rig};

pub(crate) struct Sim(SimDevice);

impl Sim {
    pub(crate) fn open() -> Sim {
        let device = SimDevice::new(1);
        SimDevice::set_current_context(Some(streampool::Backend::context_id(&device)));
        Sim(device)
    }

    /// Two devices of one machine.
    pub(crate) fn open_pair() -> [Sim; 2] {
        let [first, second] = SimDevice::several(1, 2).try_into().expect("two devices");
        SimDevice::set_current_context(Some(streampool::Backend::context_id(&first)));
        [Sim(first), Sim(second)]
    }

    fn launch(&self, stream: &SimStream, kernel: Kernel) {
        self.0.launch(stream, kernel).expect("the launch succeeds");
    }
}

pub(crate) struct SimGate(sim::Gate);

impl Gate for SimGate {
    fn was_forced(&self) -> bool {
        self.0.is_open()
    }
}

impl Drop for SimGate {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl Rig for Sim {
    type B = SimDevice;
    type Gate = SimGate;

    fn backend(&self) -> SimDevice {
        self.0.clone()
    }

    fn stream(&self) -> SimStream {
        self.0.create_stream()
    }

    fn independent<const N: usize>(&self) -> [SimStream; N] {
        std::array::from_fn(|_| self.stream())
    }

    fn stream_of_priority(&self, _urgent: bool) -> SimStream {
        self.stream()
    }

    fn legacy(&self) -> SimStream {
        self.0.legacy_stream()
    }

    fn per_thread(&self) -> SimStream {
        self.0.per_thread_stream()
    }

    fn close(&self, stream: &SimStream) -> SimGate {
        let gate = self.0.gate();
        self.launch(stream, Kernel::new().after(&gate));
        SimGate(gate)
    }

    fn close_by_kernel(&self, stream: &SimStream) -> SimGate {
        self.close(stream)
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

    fn copy(&self, stream: &SimStream, to: u64, from: u64, bytes: u64, stamp: u64) {
        let kernel = Kernel::new().reads(from, bytes).writes(to, bytes);
        self.launch(stream, kernel.stamp(stamp));
    }

    /// Only what a program would see: the other hazards are not the gate's to find.
    fn mismatches(&self) -> u64 {
        self.0.run();
        let hazards = self.0.take_hazards();
        hazards.iter().filter(|hazard| hazard.kind() == HazardKind::Corruption).count() as u64
    }

    fn pause(&self) {
        thread::sleep(Duration::from_micros(50));
        self.0.advance(50_000);
    }

    fn begin_capture(&self, stream: &SimStream, mode: usize) {
        let modes = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
        self.0.begin_capture(stream, modes[mode]).expect("a capture begins");
    }

    fn end_capture(&self, stream: &SimStream) -> bool {
        self.0.end_capture(stream).is_ok()
    }

    fn leave_context(&self) {
        SimDevice::set_current_context(None);
    }

    fn has_context(&self) -> bool {
        SimDevice::current_context().is_some()
    }
}

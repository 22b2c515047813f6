//! What the program counts at its allocator's door.

use super::common::cli::Outcome;
use super::machine::Machine;

/// What is looked at beside the time of the whole run, and would change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    Nothing,
    /// The time that the allocator's calls take.
    Allocator,
    /// The memory that is taken from the device.
    Memory,
}

pub(crate) struct Account {
    pub(crate) watch: Watch,
    /// The time in the allocator's calls, while those are watched.
    pub(crate) allocator_ns: u64,
    pub(crate) allocations: u64,
    pub(crate) live_peak_bytes: u64,
    live_bytes: u64,
    /// What two looks at the clock cost with nothing between them.
    look_ns: u64,
}

impl Account {
    pub(crate) fn new<M: Machine>(machine: &M) -> Account {
        let look = |_| {
            let start = machine.now();
            machine.now() - start
        };
        Account {
            watch: Watch::Nothing,
            allocator_ns: 0,
            allocations: 0,
            live_peak_bytes: 0,
            live_bytes: 0,
            look_ns: (0..8).map(look).min().unwrap_or(0),
        }
    }

    /// Starts to count, and to watch something.
    pub(crate) fn begin(&mut self, watch: Watch) {
        self.watch = watch;
        (self.allocator_ns, self.allocations) = (0, 0);
        self.live_peak_bytes = self.live_bytes;
    }

    pub(crate) fn alloc<M: Machine>(
        &mut self,
        machine: &M,
        limb: usize,
        words: usize,
    ) -> Outcome<M::Buffer> {
        let buffer = self.timed(machine, || machine.alloc(limb % machine.streams(), words))?;
        self.allocations += 1;
        self.live_bytes += bytes(words);
        self.live_peak_bytes = self.live_peak_bytes.max(self.live_bytes);
        Ok(buffer)
    }

    pub(crate) fn free<M: Machine>(&mut self, machine: &M, buffer: M::Buffer) -> Outcome<()> {
        self.live_bytes -= bytes(machine.words(&buffer));
        self.timed(machine, || machine.free(buffer))
    }

    pub(crate) fn clear<M: Machine>(
        &mut self,
        machine: &M,
        buffers: Vec<M::Buffer>,
    ) -> Outcome<()> {
        let words = |buffer| bytes(machine.words(buffer));
        self.live_bytes -= buffers.iter().map(words).sum::<u64>();
        self.timed(machine, || machine.clear(buffers))
    }

    pub(crate) fn share<M: Machine>(
        &mut self,
        machine: &M,
        buffer: &mut M::Buffer,
        stream: usize,
    ) -> Outcome<()> {
        self.timed(machine, || machine.share(buffer, stream))
    }

    fn timed<M: Machine, R>(&mut self, machine: &M, call: impl FnOnce() -> R) -> R {
        if self.watch != Watch::Allocator {
            return call();
        }
        let start = machine.now();
        let result = call();
        self.allocator_ns += (machine.now() - start).saturating_sub(self.look_ns);
        result
    }
}

fn bytes(words: usize) -> u64 {
    (words * size_of::<u64>()) as u64
}

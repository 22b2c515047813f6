//! Random programs on the simulated device, whose race detector is the judge: uses by home, by other
//! registered streams and by strangers, with calls that fail.

use super::*;
use crate::sim::{Call, CallFilter, FaultPlan, Kernel, SimDevice, SimStream};
use crate::{PoolStream, StreamPool};

const STEPS: usize = 400;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        // A linear congruential generator's upper bits are good enough to choose by.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

struct Lab {
    device: SimDevice,
    pool: StreamPool<SimDevice>,
    known: Vec<PoolStream<SimDevice>>,
    strangers: Vec<SimStream>,
    buffers: Vec<Buffer<SimDevice>>,
    used: u64,
    refused: u64,
}

impl Lab {
    fn new(seed: u64) -> Lab {
        let device = SimDevice::new(seed);
        let pool = StreamPool::builder(device.clone()).limit(8 << 20).build().unwrap();
        let register = |_| pool.stream(device.create_stream()).unwrap();
        let known = (0..3).map(register).collect();
        let strangers = (0..2).map(|_| device.create_stream()).collect();
        Lab { device, pool, known, strangers, buffers: Vec::new(), used: 0, refused: 0 }
    }

    /// A use of a buffer by one of the streams, if it can be ordered.
    fn use_buffer(&mut self, index: usize, stream: usize, writes: bool) {
        let buffer = &self.buffers[index];
        let core = &self.pool.core();
        let access = Access { writes, alone: true };
        let (raw, ordered) = match self.known.get(stream) {
            Some(known) => (known.raw(), core.order_use(buffer, &User::Known(&known.core), access)),
            None => {
                let raw = &self.strangers[stream - self.known.len()];
                (raw, core.order_use(buffer, &User::Stranger, access))
            }
        };
        if ordered.is_err() {
            self.refused += 1;
            return;
        }
        let (address, bytes) = (buffer.device_ptr(), buffer.len() as u64);
        let kernel = match writes {
            true => Kernel::new().writes(address, bytes),
            false => Kernel::new().reads(address, bytes),
        };
        self.device.launch(raw, kernel.taking(20_000)).unwrap();
        self.used += 1;
    }

    fn step(&mut self, random: &mut Random, faults: bool) {
        let streams = self.known.len() + self.strangers.len();
        let action = random.below(16);
        match action {
            0..=4 => {
                let home = &self.known[random.below(self.known.len())];
                if let Ok(buffer) = home.alloc(1 + random.below(2 << 20)) {
                    let own = self.known.iter().position(|known| buffer.home.is(&known.core));
                    self.buffers.push(buffer);
                    self.use_buffer(self.buffers.len() - 1, own.unwrap(), true);
                }
            }
            5..=9 if !self.buffers.is_empty() => {
                let index = random.below(self.buffers.len());
                self.use_buffer(index, random.below(streams), random.below(2) == 0);
            }
            10..=13 if !self.buffers.is_empty() => {
                let index = random.below(self.buffers.len());
                self.buffers.swap_remove(index);
            }
            14 if faults => {
                let calls =
                    [Call::Record, Call::Wait, Call::SynchronizeEvent, Call::SynchronizeContext];
                let filter = CallFilter::only(calls[random.below(calls.len())]);
                self.device.inject(FaultPlan::new(filter).nth(1 + random.below(3) as u64));
            }
            15 if random.below(8) == 0 => drop(self.pool.synchronize()),
            _ => drop(self.device.step()),
        }
    }
}

fn run(seed: u64, faults: bool) -> Lab {
    let mut lab = Lab::new(seed);
    let mut random = Random(seed);
    for _ in 0..STEPS {
        lab.step(&mut random, faults);
    }
    lab.device.assert_no_hazards();
    lab
}

#[test]
fn no_use_races_with_another_owner_or_with_an_earlier_use() {
    for seed in 1..=60 {
        let lab = run(seed, false);
        assert_eq!(lab.refused, 0, "seed {seed}");
        assert!(lab.used > 100, "seed {seed}: {} uses", lab.used);
    }
}

#[test]
fn nor_when_calls_fail() {
    let mut refused = 0;
    for seed in 1..=60 {
        let mut lab = run(seed, true);
        refused += lab.refused;
        // Afterwards everything can be had again.
        lab.device.clear_faults();
        lab.buffers.clear();
        lab.pool.synchronize().unwrap();
        let all =
            lab.known[0].alloc(8 << 20).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        drop(all);
        lab.device.assert_no_hazards();
    }
    assert!(refused > 0, "no failure had a consequence");
}

/// The judge sees a stranger that is left out.
#[test]
fn a_stranger_that_is_not_noted_is_a_hazard() {
    let lab = Lab::new(1);
    let home = &lab.known[0];
    let bytes = 1 << 20;
    for noted in [true, false] {
        let buffer = home.alloc(1 << 20).unwrap();
        let at = buffer.device_ptr();
        lab.device.launch(home.raw(), Kernel::new().writes(at, bytes)).unwrap();
        let access = Access { writes: false, alone: true };
        lab.pool.core().order_use(&buffer, &User::Stranger, access).unwrap();
        if !noted {
            buffer.remove_others(STRANGER_READ);
        }
        lab.device.launch(&lab.strangers[0], Kernel::new().reads(at, bytes)).unwrap();
        drop(buffer);
        for _ in 0..4 {
            let next = home.alloc(1 << 20).unwrap();
            let kernel = Kernel::new().writes(next.device_ptr(), bytes);
            lab.device.launch(home.raw(), kernel).unwrap();
        }
        assert_eq!(lab.device.take_hazards().is_empty(), noted);
    }
}

/// With captures of others possible nothing settles what strangers did but the program's own word; that
/// costs no more bookkeeping the longer it lasts.
#[test]
fn strangers_are_settled_by_a_synchronize_of_the_context_at_the_programs_wish() {
    let device = SimDevice::new(1);
    let pool = StreamPool::builder(device.clone()).foreign_captures(true).build().unwrap();
    let home = pool.stream(device.create_stream()).unwrap();
    let stranger = device.create_stream();
    let bytes = 4 << 20;
    for _ in 0..20 {
        let buffer = home.alloc(bytes).unwrap();
        let access = Access { writes: false, alone: true };
        pool.core().order_use(&buffer, &User::Stranger, access).unwrap();
        let kernel = Kernel::new().reads(buffer.device_ptr(), bytes as u64);
        device.launch(&stranger, kernel).unwrap();
        drop(buffer);
        pool.synchronize().unwrap();
    }
    let central = pool.core().central.lock();
    assert!(central.retired.is_empty(), "{} timelines of strangers", central.retired.len());
    drop(central);
    assert_eq!(pool.stats().free_pending, 20 * bytes as u64);
    // A known capture is not broken either.
    let raw = home.raw().clone();
    device.begin_capture(&raw, crate::sim::CaptureMode::Relaxed).unwrap();
    assert!(pool.synchronize_context().unwrap_err().is_capture());
    device.end_capture(&raw).unwrap();
    pool.synchronize_context().unwrap();
    assert!(pool.trim(0).unwrap() >= 20 * bytes as u64, "{:?}", pool.stats());
    pool.close().unwrap();
    assert_eq!(device.memory_in_use(), 0);
    device.assert_no_hazards();
}

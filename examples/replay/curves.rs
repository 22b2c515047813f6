//! How the memory goes over the operations of a replay.

use streampool::{Backend, Buffer};

use super::common::device::Device;

/// How many points a pass has in a picture, at most.
const POINTS: usize = 800;

/// The size of one buffer, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// As the pool rounds it.
    rounded: u64,
    /// As it was asked for.
    asked: u64,
}

impl Size {
    pub(crate) fn of<B: Backend>(buffer: &Buffer<B>) -> Size {
        Size { rounded: buffer.capacity() as u64, asked: buffer.len() as u64 }
    }
}

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Taken from the device, by the device's own account.
    pub(crate) reserved: u64,
    /// In buffers, as the pool rounds them.
    pub(crate) in_use: u64,
    /// In buffers, as they were asked for.
    pub(crate) live: u64,
}

impl Sample {
    fn max(self, other: Sample) -> Sample {
        Sample {
            reserved: self.reserved.max(other.reserved),
            in_use: self.in_use.max(other.in_use),
            live: self.live.max(other.live),
        }
    }
}

/// Samples over the operations of each pass, thinned out to the most of every so many operations, so that
/// no peak is lost.
#[derive(Clone, Debug)]
pub(crate) struct Curves {
    /// How many operations a pass has.
    pub(crate) operations: usize,
    /// How many operations a point stands for.
    pub(crate) stride: usize,
    /// The points of each pass that has begun.
    pub(crate) passes: Vec<Vec<Sample>>,
    now: Sample,
    /// How many operations the last point stands for so far; none where it is full.
    filled: usize,
    /// The device's peak at the last look.
    device_peak: u64,
}

impl Curves {
    pub(crate) fn new(operations: usize) -> Curves {
        Curves {
            operations,
            stride: operations.div_ceil(POINTS).max(1),
            passes: vec![Vec::new()],
            now: Sample::default(),
            filled: 0,
            device_peak: 0,
        }
    }

    /// A buffer was freed, or allocated.
    pub(crate) fn change(&mut self, freed: Option<Size>, allocated: Option<Size>) {
        if let Some(Size { rounded, asked }) = freed {
            self.now.in_use -= rounded;
            self.now.live -= asked;
        }
        if let Some(Size { rounded, asked }) = allocated {
            self.now.in_use += rounded;
            self.now.live += asked;
        }
    }

    /// Looks at the memory after an operation.
    pub(crate) fn look(&mut self, device: &impl Device) {
        let peak = device.memory_peak();
        // Memory may have been taken and given back within the operation.
        self.now.reserved = if peak > self.device_peak { peak } else { device.memory_taken() };
        self.device_peak = peak;
        let points = self.passes.last_mut().expect("a pass has begun");
        match points.last_mut().filter(|_| self.filled > 0) {
            Some(point) => *point = point.max(self.now),
            None => points.push(self.now),
        }
        self.filled = (self.filled + 1) % self.stride;
    }

    /// All buffers have been freed: the next look is at the first operation of another pass.
    pub(crate) fn end_pass(&mut self) {
        self.now = Sample::default();
        self.filled = 0;
        self.passes.push(Vec::new());
    }

    /// The points of all passes: after how many operations, and what there was.
    pub(crate) fn points(&self) -> impl Iterator<Item = (usize, Sample)> + '_ {
        self.passes.iter().enumerate().flat_map(move |(pass, points)| {
            let at = move |index: usize| pass * self.operations + index * self.stride;
            points.iter().enumerate().map(move |(index, sample)| (at(index), *sample))
        })
    }
}

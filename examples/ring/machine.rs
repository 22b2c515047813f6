//! Several devices with one way to allocate, and to hand a buffer over.

use super::common::cli::Outcome;
use super::common::device::Counts;

/// Devices are named by their places in the ring, their ranks.
pub(crate) trait Machine {
    /// Bytes on a device.
    type Chunk;

    fn ranks(&self) -> usize;

    /// Whether some places share a device.
    fn is_shared(&self) -> bool {
        false
    }

    /// The chunk that begins on a device.
    fn start(&self, rank: usize) -> Outcome<Self::Chunk>;

    /// Computes the next state of what began at `origin` into a new buffer of the device, and frees the
    /// last state.
    fn compute(
        &self,
        rank: usize,
        step: usize,
        origin: usize,
        last: Self::Chunk,
    ) -> Outcome<Self::Chunk>;

    /// Gives a chunk of one device to the next, which can use it when this returns.
    fn hand_over(&self, chunk: Self::Chunk, from: usize, to: usize) -> Outcome<Self::Chunk>;

    /// Blocks until everything on all devices has finished. The program's own call.
    fn synchronize(&self) -> Outcome<()>;

    /// How many words of the chunk that began at `origin`, and has come to `rank`, are wrong after so many
    /// steps. Frees it.
    fn wrong(&self, chunk: Self::Chunk, rank: usize, origin: usize, steps: usize) -> Outcome<u64>;

    /// The clock by which a step's time is measured, in nanoseconds.
    fn now(&self) -> u64;

    /// Driver calls that the allocator has made, and that the program has made in its place.
    fn calls(&self) -> Counts;

    /// The most memory that one device has given at once, in bytes; `None` where that cannot be told.
    fn memory_peak(&self) -> Option<u64>;

    /// Unordered uses found so far; `None` from devices that cannot tell.
    fn hazards(&self) -> Option<u64>;
}

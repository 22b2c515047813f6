//! A device together with an allocator: what the program does all its work through.

use streampool::QuiescentReport;

use super::common::cli::{Failure, Outcome};
use super::common::device::Counts;
use super::kernels::Launch;

/// Streams are named by number.
pub(crate) trait Machine {
    /// Words on the device, at home on one stream. Given back by [`free`](Self::free) or
    /// [`clear`](Self::clear).
    type Buffer;
    /// Words on the host, which the device can read by itself.
    type Host;

    fn streams(&self) -> usize;

    fn host(&self, words: &[u64]) -> Outcome<Self::Host>;

    /// Makes the device ready for this allocator, before a run: others have used it in between.
    fn prepare(&self) -> Outcome<()>;

    /// Memory for as many words, for use on this stream.
    fn alloc(&self, stream: usize, words: usize) -> Outcome<Self::Buffer>;

    /// How many words a buffer holds.
    fn words(&self, buffer: &Self::Buffer) -> usize;

    /// All uses have been submitted, not all have finished.
    fn free(&self, buffer: Self::Buffer) -> Outcome<()>;

    /// Frees a layer's buffers, when everything that was submitted has finished.
    fn clear(&self, buffers: Vec<Self::Buffer>) -> Outcome<()>;

    /// Lets another stream read the buffer, after what was submitted to its home before.
    fn share(&self, buffer: &mut Self::Buffer, stream: usize) -> Outcome<()>;

    /// Copies to the device, on the buffer's stream.
    fn upload(&self, host: &Self::Host, buffer: &mut Self::Buffer) -> Outcome<()>;

    /// Launches on the stream where the target is at home.
    fn launch(
        &self,
        launch: &Launch,
        inputs: [&Self::Buffer; 2],
        target: &mut Self::Buffer,
    ) -> Outcome<()>;

    /// The words of a buffer; `None` from a machine that computes nothing.
    fn download(&self, buffer: &Self::Buffer) -> Outcome<Option<Vec<u64>>>;

    /// Blocks until all that was submitted has finished. The program's own call.
    fn synchronize(&self) -> Outcome<()>;

    /// The device's clock or the host's, whichever the program's time is measured by, in nanoseconds.
    fn now(&self) -> u64;

    /// Looks how much device memory is taken, by the device's own account.
    fn look_at_memory(&self) -> Outcome<()>;

    /// The most that was seen taken, in bytes, above what was when the machine was made.
    fn memory_peak(&self) -> u64;

    /// Forgets what was seen, but not what is taken now.
    fn reset_memory_peak(&self);

    /// Driver calls that the allocator has made; `None` where they can't be counted.
    fn calls(&self) -> Option<Counts>;

    /// Unordered uses found so far; `None` from a device that cannot tell.
    fn hazards(&self) -> Option<u64>;

    /// The first of them, in words.
    fn first_hazard(&self) -> Option<String>;

    /// Ends the allocator: no buffer is left.
    fn close(self) -> Outcome<()>;
}

/// What a scope must say here: nothing was launched inside, so that all that was freed is clean.
pub(crate) fn settled(report: &QuiescentReport) -> Outcome<()> {
    match report.deferred {
        0 => Ok(()),
        _ => Err(Failure::Run(
            format!("a layer was cleared before its work was done: {report:?}").into(),
        )),
    }
}

//! What a pool asks of a device: memory, streams and events.
//!
//! The pool is written against [`Backend`] alone. Two backends ship with the crate: CUDA, and a
//! [simulated device](crate::sim) that executes streams on the host and reports every race.

use std::error::Error as StdError;

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "sim")]
pub mod sim;

/// A device, as a stream-ordered pool sees it: memory, streams, events.
///
/// A backend value stands for one context of one device. All verbs may be called from any thread at
/// any time, with any context (or none) current.
///
/// # What the pool owes
///
/// - It calls no verb while it holds a lock that an allocation or a free takes.
/// - It unmaps addresses, and frees memory, only after the last use by those addresses, or of that memory,
///   has completed *on the host's evidence*.
/// - It has a granule mapped at several addresses, but uses it by one of them at a time: it hands memory out
///   by another address only after the last use by the one before has completed on the host's evidence.
/// - It queries and synchronizes only events that it created, recorded while their stream, or for an event
///   of the context any stream that it knows, was not capturing; it never queries a stream.
///
/// # What the implementer owes
///
/// - Every verb leaves the calling thread as it found it: its current context, its capture mode, and
///   any error that other code has left pending there.
/// - A verb that fails has had no effect, unless its documentation says otherwise.
/// - [`query`](Self::query), [`synchronize_event`](Self::synchronize_event) and the memory verbs must
///   not disturb a capture that is in progress on *another* stream of the process, in any capture
///   mode (CUDA: run them with the thread in relaxed mode).
/// - No verb panics.
///
/// # Safety
///
/// The pool hands out the addresses that a backend returns, and safe callers rely on them being
/// distinct and usable. An implementer guarantees that
///
/// - ranges returned by [`alloc_segment`](Self::alloc_segment) and
///   [`reserve_range`](Self::reserve_range) do not overlap any other live range, and that a mapped,
///   accessible range is usable by every stream of this context;
/// - [`record`](Self::record), [`record_context`](Self::record_context), [`wait`](Self::wait),
///   [`query`](Self::query) and the two synchronizes have CUDA's meaning: a wait orders everything later
///   on its stream after everything that was on the recorded stream at the most recent record; `query`
///   returns `true`, and a synchronize returns `Ok`, only when all of that has finished.
pub unsafe trait Backend: Send + Sync + 'static {
    /// A handle that keeps one stream of the device alive while it, or a clone of it, lives.
    type Stream: Clone + Send + Sync + 'static;
    /// One event of this context. It is destroyed only by [`destroy_event`](Self::destroy_event);
    /// dropping the value makes no driver call (and leaks the event).
    type Event: Send + Sync + 'static;
    /// One piece of physical memory, made by [`create_granule`](Self::create_granule). It is given
    /// back only by [`destroy_granule`](Self::destroy_granule); dropping the value leaks it.
    type Granule: Send + Sync + 'static;
    /// What a failed verb returns.
    type Error: StdError + Send + Sync + 'static;

    /// Sorts an error into what the pool must do about it. Makes no driver call.
    fn error_kind(&self, error: &Self::Error) -> ErrorKind;

    /// A number for this context, equal for two backend values exactly when they stand for the same
    /// context, and never used again for another. Makes no driver call.
    fn context_id(&self) -> u64;

    /// Tells which stream this is. Makes no driver call that can block.
    ///
    /// # Errors
    ///
    /// Any error means that the stream cannot be registered.
    fn identify(&self, stream: &Self::Stream) -> Result<StreamIdentity, Self::Error>;

    /// Whether the stream is capturing into a graph. Must not disturb the capture. For the legacy
    /// stream, whether any blocking stream of the context captures.
    ///
    /// # Errors
    ///
    /// The pool takes any error as "it captures".
    fn is_capturing(&self, stream: &Self::Stream) -> Result<bool, Self::Error>;

    /// Lets a stream handle go. This may destroy the stream (pending work goes on), and may block.
    fn release_stream(&self, stream: Self::Stream);

    /// Free and total memory of the device, in bytes.
    ///
    /// # Errors
    ///
    /// Any driver error.
    fn memory_info(&self) -> Result<MemoryInfo, Self::Error>;

    /// The unit of virtual memory in bytes, a power of two of at least 256, or `None` when the device
    /// has no virtual memory (or an option says not to use it): the pool then grows by plain segments
    /// and calls no granule verb. Makes no driver call that can block, and always gives the same
    /// answer.
    fn granularity(&self) -> Option<u64>;

    /// Takes a plain segment of `bytes` bytes (not zero) from the device, aligned to 256 at least.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when the device has no such piece. May block.
    fn alloc_segment(&self, bytes: u64) -> Result<u64, Self::Error>;

    /// Gives a plain segment back. May block until everything that runs on the device has finished.
    ///
    /// # Errors
    ///
    /// Any driver error; the segment is then still allocated.
    ///
    /// # Safety
    ///
    /// `address` came from [`alloc_segment`](Self::alloc_segment) with this size, has not been given
    /// back, and its last use has completed.
    unsafe fn free_segment(&self, address: u64, bytes: u64) -> Result<(), Self::Error>;

    /// Reserves a range of addresses, aligned to the granularity, with no memory behind it.
    /// `bytes` is a multiple of the granularity.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when the address space has no such hole.
    fn reserve_range(&self, bytes: u64) -> Result<u64, Self::Error>;

    /// Gives a reserved range back.
    ///
    /// # Errors
    ///
    /// Any driver error; the range is then still reserved.
    ///
    /// # Safety
    ///
    /// The range came from [`reserve_range`](Self::reserve_range) with this size, and nothing is
    /// mapped in it.
    unsafe fn release_range(&self, address: u64, bytes: u64) -> Result<(), Self::Error>;

    /// Takes physical memory of `bytes` bytes, a multiple of the granularity.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when the device has not that much. May block.
    fn create_granule(&self, bytes: u64) -> Result<Self::Granule, Self::Error>;

    /// Gives physical memory back to the device.
    ///
    /// # Errors
    ///
    /// Any driver error, with the granule: it then still exists.
    ///
    /// # Safety
    ///
    /// The granule was made by this backend and is mapped nowhere.
    unsafe fn destroy_granule(
        &self,
        granule: Self::Granule,
    ) -> Result<(), (Self::Granule, Self::Error)>;

    /// Maps a whole granule of `bytes` bytes at `address`, whether or not it is mapped elsewhere: the
    /// addresses then name the same memory, each with an access of its own, and what was written by the one
    /// before it completed is read by the other afterwards (CUDA C++ Programming Guide, "Virtual Aliasing
    /// Support"). Nothing may touch it before [`set_access`](Self::set_access).
    ///
    /// # Errors
    ///
    /// Any driver error; nothing is then mapped.
    ///
    /// # Safety
    ///
    /// `address .. address + bytes` lies in a range of [`reserve_range`](Self::reserve_range),
    /// aligned to the granularity, nothing is mapped in it, and `bytes` is the granule's size.
    unsafe fn map(
        &self,
        address: u64,
        bytes: u64,
        granule: &Self::Granule,
    ) -> Result<(), Self::Error>;

    /// Lets this device, and the devices of `peers`, read and write a range of mapped granules (one
    /// or several that lie side by side).
    ///
    /// # Errors
    ///
    /// Any driver error; the range's access is then unknown, and nothing touches it before another call
    /// has succeeded.
    ///
    /// # Safety
    ///
    /// The range is made of whole mapped granules.
    unsafe fn set_access(
        &self,
        address: u64,
        bytes: u64,
        peers: &[&Self],
    ) -> Result<(), Self::Error>;

    /// Unmaps a range of whole granules. Does not wait for the device. Where they are mapped elsewhere
    /// too, they stay so, and work that uses them there goes on.
    ///
    /// # Errors
    ///
    /// Any driver error; the range is then still mapped.
    ///
    /// # Safety
    ///
    /// The range is made of whole mapped granules, and the last use by its addresses, by any device, has
    /// completed.
    unsafe fn unmap(&self, address: u64, bytes: u64) -> Result<(), Self::Error>;

    /// Makes `peer`'s streams able to use this backend's memory: granules when their access is set, and
    /// with `segments` plain segments from now on. Asked once for each peer, when a pool is built, with
    /// `segments` if it is to grow by them.
    ///
    /// # Errors
    ///
    /// Any error means that the two devices cannot share memory.
    fn allow_peer(&self, peer: &Self, segments: bool) -> Result<(), Self::Error>;

    /// Puts a copy on a stream of this context: `bytes` bytes (not zero), from the address `from` in memory
    /// of `source` to the address `to` in memory of this one. `source` may be this device or another, which
    /// need not have access to each other. The stream executes it in its order. May block while the stream's
    /// queue is full.
    ///
    /// # Errors
    ///
    /// Any driver error; whether the copy was submitted is then unknown. For a stream that captures, an
    /// error, with nothing submitted and the capture whole.
    ///
    /// # Safety
    ///
    /// Both ranges are memory of the backends named, they do not overlap, and what the stream does next is
    /// ordered after every conflicting use of either.
    unsafe fn copy(
        &self,
        stream: &Self::Stream,
        to: u64,
        source: &Self,
        from: u64,
        bytes: u64,
    ) -> Result<(), Self::Error>;

    /// Creates an event.
    ///
    /// # Errors
    ///
    /// Any driver error.
    fn create_event(&self) -> Result<Self::Event, Self::Error>;

    /// Destroys an event. Work that waits for it is not affected.
    fn destroy_event(&self, event: Self::Event);

    /// Records the event on a stream of this context: it now stands for all that is on the stream.
    /// May block while the stream's queue is full.
    ///
    /// # Errors
    ///
    /// Any driver error; whether the event was recorded is then unknown.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<(), Self::Error>;

    /// Records the event on the whole context: it now stands for all that has been submitted to any
    /// stream of the context. Does not wait for it. Breaks captures in progress in this context: the pool
    /// calls it only when none can be; and it never makes a stream wait for such an event.
    ///
    /// Says `false`, having done nothing, when this device or driver has no such call: it is not asked
    /// again then.
    ///
    /// # Errors
    ///
    /// Any driver error; whether the event was recorded is then unknown.
    fn record_context(&self, event: &Self::Event) -> Result<bool, Self::Error>;

    /// Makes everything later on `stream` wait for the event's most recent record. The event is one
    /// of this backend; the stream may belong to another device of the same type. May block while the
    /// stream's queue is full.
    ///
    /// # Errors
    ///
    /// Any driver error; whether the stream waits is then unknown.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Self::Error>;

    /// Whether all that the event stands for has finished. Does not block.
    ///
    /// # Errors
    ///
    /// Any driver error, also one that earlier work on the device has met.
    fn query(&self, event: &Self::Event) -> Result<bool, Self::Error>;

    /// Blocks the calling thread until all that the event stands for has finished.
    ///
    /// # Errors
    ///
    /// As for [`query`](Self::query).
    fn synchronize_event(&self, event: &Self::Event) -> Result<(), Self::Error>;

    /// Blocks the calling thread until all that was submitted to the context has finished. Breaks
    /// captures in progress in this context: the pool calls it only when none can be.
    ///
    /// # Errors
    ///
    /// As for [`query`](Self::query).
    fn synchronize_context(&self) -> Result<(), Self::Error>;
}

/// What the pool must do about a backend's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device, or the address space, has no more memory. The pool looks elsewhere.
    OutOfMemory,
    /// A stream capture forbids the call, or was broken by it. It may succeed when the capture ends.
    Capture,
    /// The context is lost: every later call fails too (CUDA: a sticky error). The pool closes. Of a verb that
    /// concerns two contexts ([`wait`](Backend::wait), [`copy`](Backend::copy),
    /// [`allow_peer`](Backend::allow_peer), …) either may be: the pool asks each for its
    /// [`memory_info`](Backend::memory_info), and only what is lost fails there.
    DeviceLost,
    /// The process is exiting, and the driver must not be called any more.
    Exiting,
    /// Anything else. Nothing is known about the next call.
    Other,
}

/// Which stream a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamIdentity {
    /// The [`context_id`](Backend::context_id) of the stream's context.
    pub context: u64,
    /// The driver's handle. It names this stream only while the stream lives.
    pub handle: u64,
    /// What sort of stream it is.
    pub kind: StreamKind,
}

/// The sorts of stream that differ in how they order work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StreamKind {
    /// Synchronizes with nothing but itself and the events that it waits for.
    NonBlocking,
    /// Also waits for the legacy stream, which waits for it.
    Blocking,
    /// The legacy default stream (CUDA handles 0 and 1).
    Legacy,
    /// The per-thread default stream (CUDA handle 2): a different stream on each thread, so that no
    /// pool can register it.
    PerThread,
}

/// The device's own account of its memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What can still be taken.
    pub free: u64,
    /// All that the device has.
    pub total: u64,
}

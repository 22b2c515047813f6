//! The owned handle of one block, and the way of a block back into the pool.

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::backend::Backend;
use crate::error::Error;
use crate::order::{FreePoint, Stamps};
use crate::pool_stream::PoolStream;
use crate::pool_stream::core::{Detours, StreamCore};
use crate::pool_stream::record::{Home, Record};
use crate::quiescent;

/// Device memory, owned. Dropping it frees it on its home stream.
///
/// Dropping makes no driver call (unless the stream was registered with `record_on_free`), never waits
/// and never panics; it may be done on any thread, also in a thread-local destructor or a host function
/// of the driver.
///
/// # The contract
///
/// When a buffer is dropped, every device operation that uses it has been submitted: to its home
/// stream; or to a stream that [`use_on`](Self::use_on) named while the buffer lived; or on another
/// stream before a point that the home stream already waits for. The legacy stream's implicit barriers
/// do not count: name it. A kernel that starts early, by programmatic dependent launch, must do its own
/// grid-dependency synchronize before it touches the memory.
///
/// In return, the memory is not handed to a stream before all those operations are ordered before that
/// stream's next one.
pub struct Buffer<B: Backend> {
    record: ManuallyDrop<Box<Record<B>>>,
}

impl<B: Backend> Buffer<B> {
    #[inline]
    pub(crate) fn new(record: Box<Record<B>>) -> Buffer<B> {
        Buffer { record: ManuallyDrop::new(record) }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn record(&self) -> &Record<B> {
        &self.record
    }

    pub(crate) fn home(&self) -> &StreamCore<B> {
        &self.record.home
    }

    /// What was asked for, in bytes.
    pub fn len(&self) -> usize {
        // It came from a `usize`.
        self.record.len as usize
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.record.len == 0
    }

    /// The size of the block behind the buffer, in bytes: at least [`len`](Self::len). All of it may be
    /// used.
    pub fn capacity(&self) -> usize {
        self.record.bytes as usize
    }

    /// The address of the first byte on the device, 0 for a buffer of zero bytes.
    pub fn device_ptr(&self) -> u64 {
        self.record.address
    }

    /// The home stream: the one that the buffer is freed on.
    pub fn stream(&self) -> PoolStream<B> {
        self.record.home.pool.handle_of(&self.record.home)
    }

    /// Lets `other` use this buffer from now on: makes it wait for all that is queued on the home
    /// stream by now, and has the buffer's next owner wait for all that is queued on `other` when the
    /// buffer is dropped. One event is recorded and one wait made at each call, since a hand-out's age
    /// says nothing about what has been launched since; nothing if `other` is home.
    ///
    /// # Errors
    ///
    /// [`is_wrong_stream`](Error::is_wrong_stream) when `other`'s device has no access to this memory;
    /// [`is_capture`](Error::is_capture) when either stream is capturing; a driver error. Nothing has
    /// changed then.
    pub fn use_on(&self, other: &PoolStream<B>) -> Result<(), Error> {
        self.home().pool.begin_call()?;
        self.home().pool.use_on(&self.record, &other.core)
    }

    /// Makes `other` the home stream, after making it wait for all that is queued on the present one by
    /// now. Streams that [`use_on`](Self::use_on) named stay named. Nothing if `other` is home.
    ///
    /// # Errors
    ///
    /// As for [`use_on`](Self::use_on); also [`is_wrong_stream`](Error::is_wrong_stream) for a stream
    /// of another pool.
    pub fn move_to(&mut self, other: &PoolStream<B>) -> Result<(), Error> {
        let pool = crate::sync::Arc::clone(&self.home().pool);
        pool.begin_call()?;
        pool.move_to(&mut self.record, &other.core)
    }

    /// Gives the buffer up for an opaque pointer, to be kept where Rust's ownership does not reach. The
    /// memory stays allocated until [`from_raw`](Self::from_raw) takes it back.
    pub fn into_raw(self) -> NonNull<c_void> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped and not used again, so the record is taken once.
        let record = unsafe { ManuallyDrop::take(&mut this.record) };
        NonNull::from(Box::leak(record)).cast()
    }

    /// Takes a buffer back that [`into_raw`](Self::into_raw) has given up.
    ///
    /// # Safety
    ///
    /// `raw` came from [`into_raw`](Self::into_raw) of a buffer of the same backend type, and is not
    /// taken back twice.
    pub unsafe fn from_raw(raw: NonNull<c_void>) -> Buffer<B> {
        // SAFETY: `into_raw` leaked this box, of this type, and the caller passes it back once.
        Buffer::new(unsafe { Box::from_raw(raw.cast().as_ptr()) })
    }
}

impl<B: Backend> fmt::Debug for Buffer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("device_ptr", &format_args!("{:#x}", self.device_ptr()))
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish()
    }
}

impl<B: Backend> Drop for Buffer<B> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the buffer is being dropped, so that its record is taken once.
        let record = unsafe { ManuallyDrop::take(&mut self.record) };
        if quiescent::any_open() {
            note_in_scope(&record);
        }
        free(record);
    }
}

/// Frees a block on its home stream. The usual case is a push on the stream's list.
#[inline]
fn free<B: Backend>(record: Box<Record<B>>) {
    // SAFETY: the buffer was counted in home's `live`, which is lowered below under home's lock; after
    // that only the guard's unlock touches home.
    let home = unsafe { record.home.counted() };
    let mut state = home.state.lock();
    if !state.detours.none() || record.is_shared() || record.block.is_none() {
        drop(state);
        return free_by_detour(record);
    }
    state.live -= 1;
    state.counters.frees += 1;
    state.counters.in_use -= record.bytes;
    state.put(record);
}

/// Notes a free in the scopes that are open on this thread.
fn note_in_scope<B: Backend>(record: &Record<B>) {
    if record.block.is_none() {
        return;
    }
    let home = &*record.home;
    let mut others = Vec::new();
    if record.is_shared() {
        let state = home.state.lock();
        let set = state.sets.get(&record.address);
        others.extend(set.into_iter().flatten().map(|other| other.id()));
        drop(state);
        if record.strangers() != (false, false) {
            others.push(home.pool.stranger_point().timeline);
        }
    }
    quiescent::note(home.pool.id, record.bytes, home.id(), &others);
}

/// The long way: a block with other streams' or strangers' free points, a shut list, an orphaned stream, a stream
/// whose frees close epochs, a buffer of no bytes.
#[cold]
fn free_by_detour<B: Backend>(record: Box<Record<B>>) {
    // SAFETY: as in `free`; the count is lowered in the last locked section below.
    let home = unsafe { record.home.counted() };
    let (address, bytes, block) = (record.address, record.bytes, record.block);
    let mut stamps =
        if record.is_shared() { collect_free_points(home, address) } else { Stamps::Clean };
    if record.strangers() != (false, false) {
        stamps.add(home.pool.stranger_point());
    }

    let mut record = Some(record);
    let mut state = home.state.lock();
    let to_heap = !stamps.is_clean()
        || state.detours.has(Detours::SHUT)
        || state.detours.has(Detours::RETIRED);
    if to_heap && !block.is_none() {
        let mut stamps = stamps;
        stamps.add(FreePoint { timeline: home.id(), epoch: state.open });
        drop(state);
        home.pool.free_to_heap(block, stamps, record.take());
        state = home.state.lock();
    }
    state.live -= 1;
    state.counters.frees += 1;
    state.counters.in_use -= bytes;
    if !block.is_none()
        && let Some(record) = record
    {
        state.put(record);
    }
    let closes = state.detours.has(Detours::RECORD_ON_FREE)
        && !block.is_none()
        && !quiescent::is_open(home.pool.id);
    if !closes {
        home.note_if_unused(&state);
        return;
    }
    state.pins += 1;
    drop(state);
    home.pool.close_epoch_of_free(home);
    // The pin kept the core; its last access is the unlock here.
    home.unpin();
}

/// Takes a buffer's set of other streams, and with it a free point on each: its uses there came before
/// the close of the epoch that is open now. The lock of each stream puts this read before any later
/// close, and so the uses, which were submitted before, before that close's record.
fn collect_free_points<B: Backend>(home: &StreamCore<B>, address: u64) -> Stamps {
    let set = home.state.lock().sets.remove(&address).unwrap_or_default();
    let mut stamps = Stamps::Clean;
    for other in set {
        // SAFETY: the set's entry is counted in the other stream's `live` until the section below.
        let other: &StreamCore<B> = unsafe { Home::counted(other) };
        let mut state = other.state.lock();
        stamps.add(FreePoint { timeline: other.id(), epoch: state.open });
        state.live -= 1;
        other.note_if_unused(&state);
    }
    stamps
}

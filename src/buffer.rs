//! The owned handle of one block, and the way of a block back into the pool.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;

use crate::backend::Backend;
use crate::error::Error;
use crate::fault::seeded;
use crate::heap::BlockId;
use crate::heap::size_class::{self, BINS, GRAIN, Grains, Rounded};
use crate::history::Action;
use crate::order::{FreePoint, Stamps};
use crate::pool_stream::PoolStream;
use crate::pool_stream::core::{Detours, StreamCore};
use crate::pool_stream::home::Home;
use crate::quiescent;
use crate::sync::{Arc, host};
use crate::tag::Tag;

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
///
/// It is a handful of words that name a block and its stream, to be moved by value: allocating it and
/// dropping it touch no count but those under the stream's own lock, and no host allocator (in a pool that
/// keeps no history: see [`PoolBuilder::history`](crate::PoolBuilder::history)).
pub struct Buffer<B: Backend> {
    pub(crate) home: Home<B>,
    pub(crate) address: u64,
    /// The heap's name for the block; none for a buffer of zero bytes.
    pub(crate) block: BlockId,
    /// The block's size, meaningless without a block.
    size: Grains,
    /// How many bytes of the block were not asked for: less than an eighth of 1 MiB, by the rounding.
    slack: u32,
    /// The bin of home's list that the block goes back to, or [`DETOUR`].
    route: host::AtomicU8,
    /// Who but home may use the block, and whether the buffer has a tag: bits, none of them in the usual case.
    others: host::AtomicU8,
}

/// The route of a buffer that has no block, or that others may have used: not by the list.
const DETOUR: u8 = u8::MAX;

const _: () = assert!(BINS <= DETOUR as usize, "no bin has the number of the detour");

/// Home's lock guards a set of streams for the block.
pub(crate) const NAMED: u8 = 1;
/// A stream that is not registered may have read it, with no synchronize since.
pub(crate) const STRANGER_READ: u8 = 2;
/// The same for a write.
pub(crate) const STRANGER_WROTE: u8 = 4;
/// All of those above.
#[cfg(feature = "cuda")]
pub(crate) const ANY_OTHER: u8 = NAMED | STRANGER_READ | STRANGER_WROTE;
/// The pool knows what the buffer is for.
const TAGGED: u8 = 8;

impl<B: Backend> Buffer<B> {
    /// A buffer of `len` bytes, which home counts already.
    #[inline]
    pub(crate) fn new(
        home: Home<B>,
        block: BlockId,
        address: u64,
        size: Rounded,
        len: u64,
    ) -> Self {
        let slack = (size.bytes - len) as u32;
        let (size, route) = (Grains::of(size.bytes), host::AtomicU8::new(size.bin));
        let others = host::AtomicU8::new(0);
        Buffer { home, address, block, size, slack, route, others }
    }

    /// A buffer of no bytes, which home counts already.
    pub(crate) fn empty(home: Home<B>) -> Self {
        let route = host::AtomicU8::new(DETOUR);
        let size = Grains::of(GRAIN);
        let others = host::AtomicU8::new(0);
        Buffer { home, address: 0, block: BlockId::NONE, size, slack: 0, route, others }
    }

    /// The size of the block, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        if self.block.is_none() { 0 } else { self.size.bytes() }
    }

    /// What the block's size rounds to: itself, with its bin.
    pub(crate) fn rounded(&self) -> Rounded {
        size_class::round(self.size.bytes()).expect("a block is no larger than the largest request")
    }

    #[inline]
    pub(crate) fn has_others(&self, which: u8) -> bool {
        // Relaxed: they are set through a reference, and asked by the drop, which comes after all of
        // them.
        self.others.load(host::Ordering::Relaxed) & which != 0
    }

    /// Notes that others may use the block now: it does not go back by the list.
    pub(crate) fn add_others(&self, which: u8) {
        self.others.fetch_or(which, host::Ordering::Relaxed);
        self.route.store(DETOUR, host::Ordering::Relaxed);
    }

    /// Notes that what others did has been waited for.
    #[cfg(feature = "cuda")]
    pub(crate) fn remove_others(&self, which: u8) {
        self.others.fetch_and(!which, host::Ordering::Relaxed);
    }

    /// The same buffer with what it is for, if that is known, in a pool that keeps a history.
    pub(crate) fn tagged(self, tag: Option<Tag>) -> Self {
        if let Some(tag) = tag {
            self.keep_tag(tag);
        }
        self
    }

    /// Notes what the buffer is for, in a pool that keeps a history.
    fn keep_tag(&self, tag: Tag) {
        self.home.pool.put_tag(self.address, tag);
        self.others.fetch_or(TAGGED, host::Ordering::Relaxed);
    }

    /// What was asked for, in bytes.
    pub fn len(&self) -> usize {
        // It came from a `usize`.
        (self.bytes() - u64::from(self.slack)) as usize
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.block.is_none()
    }

    /// The size of the block behind the buffer, in bytes: at least [`len`](Self::len). All of it may be
    /// used.
    pub fn capacity(&self) -> usize {
        self.bytes() as usize
    }

    /// The address of the first byte on the device, 0 for a buffer of zero bytes.
    pub fn device_ptr(&self) -> u64 {
        self.address
    }

    /// The home stream: the one that the buffer is freed on.
    pub fn stream(&self) -> PoolStream<B> {
        self.home.pool.handle_of(&self.home)
    }

    /// Says what the buffer is for, in the place of what was said before: where that is known only now, or
    /// better. See [`Tag`]. Nothing in a pool that keeps no [`history`](crate::PoolBuilder::history), or of a
    /// buffer of zero bytes.
    ///
    /// ```
    /// # use streampool::{StreamPool, Tag, sim::SimDevice};
    /// # let device = SimDevice::new(1);
    /// # let pool = StreamPool::builder(device.clone()).history(1000).build()?;
    /// # let stream = pool.stream(device.create_stream())?;
    /// let buffer = stream.alloc(4096)?;
    /// let saved = Tag::new("saved for the backward pass");
    /// buffer.set_tag(saved);
    /// assert_eq!(buffer.tag(), Some(saved));
    /// # Ok::<(), streampool::Error>(())
    /// ```
    pub fn set_tag(&self, tag: Tag) {
        if self.block.is_none() || !self.home.pool.keeps_history() {
            return;
        }
        self.keep_tag(tag);
        self.home.pool.note(&self.home, Action::SetTag { address: self.address, tag });
    }

    /// What the buffer is for, where that was said and the pool keeps a
    /// [`history`](crate::PoolBuilder::history).
    pub fn tag(&self) -> Option<Tag> {
        if self.has_others(TAGGED) { self.home.pool.tag_at(self.address) } else { None }
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
        let _call = self.home.pool.begin_call()?;
        self.home.pool.use_on(self, &other.core)
    }

    /// Makes `other` the home stream, after making it wait for all that is queued on the present one by
    /// now. Streams that [`use_on`](Self::use_on) named stay named. Nothing if `other` is home.
    ///
    /// # Errors
    ///
    /// As for [`use_on`](Self::use_on); also [`is_wrong_stream`](Error::is_wrong_stream) for a stream
    /// of another pool.
    pub fn move_to(&mut self, other: &PoolStream<B>) -> Result<(), Error> {
        let pool = Arc::clone(&self.home.pool);
        let _call = pool.begin_call()?;
        pool.move_to(self, &other.core)
    }

    /// A copy of the buffer, at home on `other`: a stream of this pool or of any other, also one of another
    /// device, which needs no access to this memory. To move the contents, drop the original after this.
    ///
    /// The copy is made by the device, on `other`: after all that is queued by now on the home stream and on
    /// every stream that [`use_on`](Self::use_on) has named, and before whatever the original's next owner
    /// does, because `other` is named as by `use_on`. One event is recorded and one wait made for each of
    /// these streams but `other` itself. All [`capacity`](Self::capacity) bytes are copied. Where copies go
    /// round, let them come in on streams of their own and be moved by [`move_to`](Self::move_to) when they
    /// are used: a copy that is queued on the next original's home, or waited for there, delays the next.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](PoolStream::alloc) on `other`; [`is_capture`](Error::is_capture) when one of the
    /// streams is capturing; a driver error. There is no copy then; the streams may have been ordered all the
    /// same.
    ///
    /// ```
    /// # use streampool::{StreamPool, sim::{Kernel, SimDevice}};
    /// let [zero, one] = SimDevice::several(1, 2).try_into().unwrap();
    /// let (near, far) = (StreamPool::new(zero.clone()), StreamPool::new(one.clone()));
    /// let (a, b) = (near.stream(zero.create_stream())?, far.stream(one.create_stream())?);
    /// let original = a.alloc(4096)?;
    /// zero.launch(a.raw(), Kernel::new().writes(original.device_ptr(), 4096).stamp(7))?;
    /// let copy = original.copy_to(&b)?;
    /// drop(original);
    /// one.launch(b.raw(), Kernel::new().expects(copy.device_ptr(), 4096, 7))?;
    /// one.run();
    /// one.assert_no_hazards();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn copy_to(&self, other: &PoolStream<B>) -> Result<Buffer<B>, Error> {
        if self.block.is_none() { other.alloc(0) } else { self.home.pool.copy_to(self, other) }
    }

    /// Gives the buffer up for an opaque pointer, to be kept where Rust's ownership does not reach. The
    /// memory stays allocated until [`from_raw`](Self::from_raw) takes it back.
    pub fn into_raw(self) -> NonNull<c_void> {
        NonNull::from(Box::leak(Box::new(self))).cast()
    }

    /// Takes a buffer back that [`into_raw`](Self::into_raw) has given up.
    ///
    /// # Safety
    ///
    /// `raw` came from [`into_raw`](Self::into_raw) of a buffer of the same backend type, and is not
    /// taken back twice.
    pub unsafe fn from_raw(raw: NonNull<c_void>) -> Buffer<B> {
        // SAFETY: `into_raw` leaked this box, of this type, and the caller passes it back once.
        *unsafe { Box::from_raw(raw.cast::<Buffer<B>>().as_ptr()) }
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
    /// Frees the block on its home stream: in the usual case, a push on the stream's list.
    #[inline]
    fn drop(&mut self) {
        let scope = quiescent::innermost();
        let route = *self.route.get_mut();
        if route != DETOUR {
            // SAFETY: the buffer is counted in home's `live`, which is lowered below under home's lock;
            // after that only the guard's unlock touches home.
            let home = unsafe { self.home.counted() };
            if let Some(mut state) = home.state.try_lock()
                && state.takes_frees_of(scope)
            {
                state.give(self.size.bytes());
                state.put(route, self.block, self.address, self.size);
                if seeded!(TouchedAfterUnlock) {
                    drop(state);
                    home.stream();
                }
                return;
            }
        }
        self.free_by_detour();
    }
}

impl<B: Backend> Buffer<B> {
    /// The long way, whatever the reason: a lock that another thread holds (to wait for it here would cost
    /// every free a register or two), a stream that counts for another scope, a block with others' free
    /// points, a shut list, an orphaned stream, a stream whose frees close epochs, a buffer of no bytes.
    #[cold]
    #[inline(never)]
    fn free_by_detour(&mut self) {
        // SAFETY: as in `drop`; the count is lowered in the last locked section below.
        let home = unsafe { self.home.counted() };
        let has_block = !self.block.is_none();
        let scope = quiescent::scope_of(home.pool.id);
        let mut stamps = match self.has_others(NAMED) {
            true => collect_free_points(home, self.address),
            false => Stamps::Clean,
        };
        if self.has_others(STRANGER_READ | STRANGER_WROTE) {
            stamps.add(home.pool.stranger_point());
        }
        if scope.is_some() && !stamps.is_clean() {
            quiescent::note_shared(scope, home.id, &stamps);
        }
        // While the address is still this buffer's alone.
        let tag = match self.has_others(TAGGED) {
            true => home.pool.take_tag(self.address),
            false => None,
        };
        let mut state = home.state.lock();
        if has_block {
            let (address, bytes, requested) = (self.address, self.bytes(), self.len() as u64);
            state.note(Action::Free { address, bytes, requested, tag });
        }
        let to_heap = (!stamps.is_clean() && !seeded!(ListHitWithSecondStamp))
            || state.detours.has(Detours::SHUT)
            || state.detours.has(Detours::RETIRED);
        if has_block && to_heap {
            stamps.add(FreePoint { timeline: home.id, epoch: state.open });
            drop(state);
            home.pool.free_to_heap(self.block, stamps);
            state = home.state.lock();
            state.forgo(self.rounded().bin);
        } else if has_block {
            state.put(self.rounded().bin, self.block, self.address, self.size);
        }
        state.count_for(scope);
        match has_block {
            true => state.give(self.bytes()),
            false => state.give_unnoticed(0),
        }
        let closes = has_block
            && state.detours.has(Detours::RECORD_ON_FREE)
            && !quiescent::is_open(home.pool.id);
        if !closes {
            home.note_if_unused(&mut state);
            return;
        }
        state.pins += 1;
        drop(state);
        home.pool.close_epoch_of_free(home);
        // The pin kept the core; its last access is the unlock here.
        home.unpin();
    }
}

/// Takes a buffer's set of other streams, and with it a free point on each: its uses there came before
/// the close of the epoch that is open now. The lock of each stream puts this read before any later
/// close, and so the uses, which were submitted before, before that close's record.
fn collect_free_points<B: Backend>(home: &StreamCore<B>, address: u64) -> Stamps {
    let set = home.state.lock().sets.remove(&address).unwrap_or_default();
    let mut stamps = Stamps::Clean;
    for other in set {
        // SAFETY: the set's entry is counted in the other stream's `named` until the section below.
        let other: &StreamCore<B> = unsafe { Home::counted(other) };
        let mut state = other.state.lock();
        stamps.add(FreePoint { timeline: other.id, epoch: state.open });
        state.named -= 1;
        other.note_if_unused(&mut state);
    }
    stamps
}

//! A registered stream, and its handle.

pub(crate) mod core;
pub(crate) mod home;
pub(crate) mod list;
pub(crate) mod tally;

use std::fmt;

use self::core::Detours;
use self::core::StreamCore;
use crate::backend::Backend;
use crate::buffer::Buffer;
use crate::error::{Error, Reason};
use crate::heap::size_class::{self, GRAIN};
use crate::order::Moment;
use crate::pool::StreamPool;
use crate::stats::StreamStats;
use crate::sync::Arc;

/// The largest alignment that can be asked for, in bytes.
const ALIGN_MAX: u64 = 1 << 30;

/// A stream that is registered with a pool. Buffers are allocated on it, and freed on it.
///
/// It keeps the backend's stream alive. A clone is the same stream; registering the stream again gives
/// the same one. Work on the stream is submitted through the backend's own stream, as always.
///
/// ```
/// # use streampool::{StreamPool, sim::SimDevice};
/// let device = SimDevice::new(1);
/// let pool = StreamPool::new(device.clone());
/// let stream = pool.stream(device.create_stream())?;
/// let first = stream.alloc(512 << 10)?;
/// let address = first.device_ptr();
/// drop(first);
/// // The same memory, at once: stream order suffices.
/// assert_eq!(stream.alloc(512 << 10)?.device_ptr(), address);
/// # Ok::<(), streampool::Error>(())
/// ```
pub struct PoolStream<B: Backend> {
    pub(crate) core: Arc<StreamCore<B>>,
    handle: Arc<StreamHandle<B>>,
}

/// What the clones of one `PoolStream` share: their one count under the stream's lock, and a handle of
/// the pool.
pub(crate) struct StreamHandle<B: Backend> {
    core: Arc<StreamCore<B>>,
    pool: StreamPool<B>,
}

impl<B: Backend> PoolStream<B> {
    /// A new handle of `core`. The caller has made sure, under the registry's lock, that the stream
    /// is not leaving.
    pub(crate) fn new(core: Arc<StreamCore<B>>, pool: StreamPool<B>) -> PoolStream<B> {
        {
            let mut state = core.state.lock();
            state.handles += 1;
            state.detours.set(Detours::ORPHAN, false);
        }
        let handle = Arc::new(StreamHandle { core: Arc::clone(&core), pool });
        PoolStream { core, handle }
    }

    pub(crate) fn handle(&self) -> &Arc<StreamHandle<B>> {
        &self.handle
    }

    pub(crate) fn from_handle(handle: Arc<StreamHandle<B>>) -> PoolStream<B> {
        PoolStream { core: Arc::clone(&handle.core), handle }
    }

    /// Allocates `len` bytes, aligned to 256 bytes, for use on this stream.
    ///
    /// The memory is not initialised. Zero bytes make a valid buffer with no address. When a block of
    /// this size was freed on this stream, this is a *hit*: no driver call, no host allocation.
    ///
    /// # Errors
    ///
    /// [`is_out_of_memory`](Error::is_out_of_memory) with the numbers, after everything that the pool
    /// may try; [`is_too_large`](Error::is_too_large); [`is_capture`](Error::is_capture) where the
    /// stream is seen to be capturing; [`is_closed`](Error::is_closed);
    /// [`is_device_lost`](Error::is_device_lost). The pool is as before, and goes on.
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<Buffer<B>, Error> {
        self.alloc_rounded(len, GRAIN)
    }

    /// As [`alloc`](Self::alloc), aligned to `align` bytes: a power of two from 1 to 1 GiB.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc); [`is_invalid_argument`](Error::is_invalid_argument) for another
    /// alignment.
    pub fn alloc_aligned(&self, len: usize, align: usize) -> Result<Buffer<B>, Error> {
        let align = align as u64;
        if !align.is_power_of_two() || align > ALIGN_MAX {
            return Err(Error::new(Reason::BadAlignment { align }));
        }
        self.alloc_rounded(len, align.max(GRAIN))
    }

    /// Allocates only where that is a hit: from the stream's own list, with no driver call, and no lock
    /// but the stream's (in a pool that keeps no [`history`](crate::PoolBuilder::history)). `None`, with
    /// nothing changed, where [`alloc`](Self::alloc) would have more to do, and for zero bytes.
    ///
    /// ```
    /// # use streampool::{StreamPool, sim::SimDevice};
    /// # let device = SimDevice::new(1);
    /// # let stream = StreamPool::new(device.clone()).stream(device.create_stream())?;
    /// assert!(stream.alloc_hit(4096).is_none());
    /// drop(stream.alloc(4096)?);
    /// assert!(stream.alloc_hit(4096).is_some());
    /// # Ok::<(), streampool::Error>(())
    /// ```
    #[inline]
    pub fn alloc_hit(&self, len: usize) -> Option<Buffer<B>> {
        if len == 0 {
            return None;
        }
        let len = len as u64;
        let size = size_class::round(len)?;
        self.core.hit(size, GRAIN, len).or_else(|| self.core.noted_hit(size, GRAIN, len))
    }

    /// Part of its caller, as the hit is in it: so the parts of a buffer go from the list into registers, or the
    /// place, where they are wanted. By way of memory they take as long again as all the rest.
    #[inline(always)]
    fn alloc_rounded(&self, len: usize, align: u64) -> Result<Buffer<B>, Error> {
        let len = len as u64;
        if len > 0
            && let Some(size) = size_class::round(len)
            && let Some(buffer) = self.core.hit(size, align, len)
        {
            return Ok(buffer);
        }
        self.alloc_no_hit(len, align).map(|buffer| *buffer)
    }

    /// By way of the host's heap, so that the buffer of a hit need not be where this could write one, and
    /// stays in registers.
    #[cold]
    #[inline(never)]
    fn alloc_no_hit(&self, len: u64, align: u64) -> Result<Box<Buffer<B>>, Error> {
        if len == 0 {
            return self.core.pool.alloc_nothing(&self.core).map(Box::new);
        }
        let size = size_class::round(len).ok_or_else(|| Error::new(Reason::TooLarge { len }))?;
        if let Some(buffer) = self.core.noted_hit(size, align, len) {
            return Ok(Box::new(buffer));
        }
        self.core.pool.alloc_miss(&self.core, size, align, len).map(Box::new)
    }

    /// Closes the stream's epoch here: what is freed before this needs to wait only for what is queued
    /// by now, whatever is queued later. One event is recorded.
    ///
    /// # Errors
    ///
    /// A driver error, or [`is_capture`](Error::is_capture) when the stream is capturing. Nothing has
    /// changed then.
    pub fn mark(&self) -> Result<(), Error> {
        let _call = self.core.pool.begin_call()?;
        self.core.pool.close_epoch(&self.core, Moment::Early).map(drop)
    }

    /// Makes this stream wait for all that is queued on `other` by now; memory that was freed there
    /// before this can then be used here without a further wait. One event is recorded, one wait made;
    /// nothing if `other` is this stream.
    ///
    /// # Errors
    ///
    /// As for [`mark`](Self::mark), for either stream.
    pub fn wait_for(&self, other: &PoolStream<B>) -> Result<(), Error> {
        let _call = self.core.pool.begin_call()?;
        if Arc::ptr_eq(&self.core, &other.core) {
            return Ok(());
        }
        other.core.pool.order_after_now(&other.core, &self.core)
    }

    /// Blocks the calling thread until all that is queued on this stream by now has finished; memory
    /// that was freed on it before is clean then.
    ///
    /// # Errors
    ///
    /// As for [`mark`](Self::mark).
    pub fn synchronize(&self) -> Result<(), Error> {
        let _call = self.core.pool.begin_blocking_call()?;
        self.core.pool.synchronize_stream(&self.core)
    }

    /// Takes the stream out of the pool: closes its last epoch, moves its free blocks to where every
    /// stream finds them, and lets the backend's stream go. Dropping the last handle does the same at
    /// the pool's next call that may block, once the stream's last buffer is gone.
    ///
    /// # Errors
    ///
    /// [`is_in_use`](Error::is_in_use) while buffers, other handles or driver calls in flight need the
    /// stream; a driver error; [`is_capture`](Error::is_capture). The handle comes back with the error.
    pub fn retire(self) -> Result<(), RetireError<B>> {
        let pool = Arc::clone(&self.core.pool);
        let _call = match pool.begin_call() {
            Ok(call) => call,
            Err(error) => return Err(RetireError { stream: self, error }),
        };
        pool.retire_by_hand(self).map_err(|(stream, error)| RetireError { stream, error })
    }

    /// The stream's own account, exact. Takes the stream's lock alone, and makes no driver call.
    ///
    /// ```
    /// # use streampool::{StreamPool, sim::SimDevice};
    /// # let device = SimDevice::new(1);
    /// # let pool = StreamPool::new(device.clone());
    /// let stream = pool.stream(device.create_stream())?;
    /// drop((stream.alloc(4096)?, stream.alloc(4096)?));
    /// let kept = stream.alloc(4096)?;
    /// let stats = stream.stats();
    /// assert_eq!((stats.in_use, stats.peak_in_use, stats.hits, stats.misses), (4096, 8192, 1, 2));
    /// # drop(kept);
    /// # Ok::<(), streampool::Error>(())
    /// ```
    pub fn stats(&self) -> StreamStats {
        StreamStats::of(&self.core.state.lock())
    }

    /// The pool that the stream is registered with.
    pub fn pool(&self) -> &StreamPool<B> {
        &self.handle.pool
    }

    /// The backend's stream.
    pub fn raw(&self) -> &B::Stream {
        self.core.stream()
    }
}

impl<B: Backend> Clone for PoolStream<B> {
    fn clone(&self) -> Self {
        PoolStream { core: Arc::clone(&self.core), handle: Arc::clone(&self.handle) }
    }
}

impl<B: Backend> PartialEq for PoolStream<B> {
    /// Whether both are the same stream of the same pool.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}

impl<B: Backend> Eq for PoolStream<B> {}

impl<B: Backend> fmt::Debug for PoolStream<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolStream")
            .field("timeline", &self.core.id.get())
            .field("stream", &self.core.identity)
            .finish()
    }
}

impl<B: Backend> Drop for StreamHandle<B> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        state.handles -= 1;
        if state.handles == 0 {
            state.detours.set(Detours::ORPHAN, true);
        }
        self.core.note_if_unused(&mut state);
        drop(state);
        self.core.pool.look_after_stream();
    }
}

/// A stream that could not be retired, and why.
pub struct RetireError<B: Backend> {
    stream: PoolStream<B>,
    error: Error,
}

impl<B: Backend> RetireError<B> {
    /// Why.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The stream, as it was.
    pub fn into_stream(self) -> PoolStream<B> {
        self.stream
    }
}

impl<B: Backend> fmt::Debug for RetireError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetireError")
            .field("stream", &self.stream)
            .field("error", &self.error)
            .finish()
    }
}

impl<B: Backend> fmt::Display for RetireError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stream was not retired: {}", self.error)
    }
}

impl<B: Backend> std::error::Error for RetireError<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<B: Backend> From<RetireError<B>> for Error {
    fn from(retire: RetireError<B>) -> Error {
        retire.error
    }
}

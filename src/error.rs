//! What can go wrong, in one opaque type.

use std::error::Error as StdError;
use std::fmt;

use crate::backend::ErrorKind;
use crate::heap::size_class::LARGEST;
use crate::sync::Arc;

/// Why a call on a pool failed.
///
/// The reason is asked by predicates, so that more can be told apart later. A clone is cheap.
///
/// ```
/// # use streampool::{StreamPool, sim::SimDevice};
/// let device = SimDevice::new(1);
/// let pool = StreamPool::builder(device.clone()).limit(1 << 20).build()?;
/// let stream = pool.stream(device.create_stream())?;
/// let error = stream.alloc(4 << 20).unwrap_err();
/// assert!(error.is_out_of_memory() && error.is_over_limit());
/// assert_eq!(error.shortage().map(|shortage| shortage.requested), Some(4 << 20));
/// # Ok::<(), streampool::Error>(())
/// ```
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    reason: Reason,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

#[derive(Debug)]
pub(crate) enum Reason {
    OutOfMemory(Shortage),
    TooLarge { len: u64 },
    BadAlignment { align: u64 },
    BadOption { what: &'static str },
    BadArgument { what: &'static str },
    Capturing { what: &'static str },
    Closed,
    ForeignContext,
    ForeignPool,
    NoPeerAccess,
    PerThreadStream,
    StreamInUse { buffers: u64, handles: u64 },
    BuffersAlive { buffers: u64 },
    CallsUnderWay { calls: u64 },
    NotGivenBack { bytes: u64 },
    Driver { verb: &'static str, kind: ErrorKind },
}

/// The state of a pool that could not serve a request. All sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// What was asked for, rounded as the pool rounds it.
    pub requested: u64,
    /// In buffers.
    pub in_use: u64,
    /// Free in the pool, over all streams.
    pub free: u64,
    /// The largest free block.
    pub largest_free: u64,
    /// On the way between threads when the search ended.
    pub in_transit: u64,
    /// Set aside because a dependency could not be settled.
    pub quarantined: u64,
    /// Taken from the device by this pool.
    pub reserved: u64,
    /// The pool's hard limit on `reserved`, if it has one.
    pub limit: Option<u64>,
    /// Whether the limit, rather than the device, kept the pool from growing.
    pub over_limit: bool,
    /// What the device has left, where it could be asked.
    pub device_free: Option<u64>,
    /// What the device has in all, where it could be asked.
    pub device_total: Option<u64>,
    /// What the pool tried, in order.
    pub tried: Vec<&'static str>,
}

impl Error {
    pub(crate) fn new(reason: Reason) -> Error {
        Error { inner: Arc::new(Inner { reason, source: None }) }
    }

    pub(crate) fn driver<E>(verb: &'static str, kind: ErrorKind, source: E) -> Error
    where
        E: StdError + Send + Sync + 'static,
    {
        let reason = Reason::Driver { verb, kind };
        Error { inner: Arc::new(Inner { reason, source: Some(Box::new(source)) }) }
    }

    pub(crate) fn out_of_memory(shortage: Shortage, source: Option<Error>) -> Error {
        let source = source.map(|source| Box::new(source) as Box<dyn StdError + Send + Sync>);
        Error { inner: Arc::new(Inner { reason: Reason::OutOfMemory(shortage), source }) }
    }

    /// For a stream that counts as capturing because it could not be asked.
    pub(crate) fn look_failed(what: &'static str, source: Error) -> Error {
        let source: Box<dyn StdError + Send + Sync> = Box::new(source);
        Error {
            inner: Arc::new(Inner { reason: Reason::Capturing { what }, source: Some(source) }),
        }
    }

    pub(crate) fn driver_kind(&self) -> Option<ErrorKind> {
        match self.inner.reason {
            Reason::Driver { kind, .. } => Some(kind),
            _ => None,
        }
    }

    /// No memory: neither in the pool nor, within its limit, on the device. What to do: free
    /// something, or raise the limit; [`shortage`](Self::shortage) has the numbers.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self.inner.reason, Reason::OutOfMemory(_))
            || self.driver_kind() == Some(ErrorKind::OutOfMemory)
    }

    /// Out of memory, and it was the pool's own limit that kept it from growing.
    pub fn is_over_limit(&self) -> bool {
        self.shortage().is_some_and(|shortage| shortage.over_limit)
    }

    /// The numbers of an out-of-memory error.
    pub fn shortage(&self) -> Option<&Shortage> {
        match &self.inner.reason {
            Reason::OutOfMemory(shortage) => Some(shortage),
            _ => None,
        }
    }

    /// The request is larger than any device's memory. Most often a size that has wrapped.
    pub fn is_too_large(&self) -> bool {
        matches!(self.inner.reason, Reason::TooLarge { .. })
    }

    /// An argument is out of its documented range: an alignment that is no power of two, an option of the
    /// builder, or a device that is not there.
    pub fn is_invalid_argument(&self) -> bool {
        matches!(
            self.inner.reason,
            Reason::BadAlignment { .. } | Reason::BadOption { .. } | Reason::BadArgument { .. }
        )
    }

    /// A stream that is capturing into a graph was named, or a capture forbade a driver call. It may
    /// succeed once the capture has ended.
    pub fn is_capture(&self) -> bool {
        matches!(self.inner.reason, Reason::Capturing { .. })
            || self.driver_kind() == Some(ErrorKind::Capture)
    }

    /// The device has met an error that every later call returns too. Nothing is allocated any more. Of a
    /// call that concerns two devices it may be either; the pool of the other goes on.
    pub fn is_device_lost(&self) -> bool {
        self.driver_kind() == Some(ErrorKind::DeviceLost)
    }

    /// The process is exiting, and the driver is not called any more.
    pub fn is_exiting(&self) -> bool {
        self.driver_kind() == Some(ErrorKind::Exiting)
    }

    /// The pool was closed.
    pub fn is_closed(&self) -> bool {
        matches!(self.inner.reason, Reason::Closed)
    }

    /// The stream cannot be used here: it belongs to another context or pool, it is the per-thread
    /// default stream, or its device has no access to the pool's memory.
    pub fn is_wrong_stream(&self) -> bool {
        matches!(
            self.inner.reason,
            Reason::ForeignContext
                | Reason::ForeignPool
                | Reason::NoPeerAccess
                | Reason::PerThreadStream
        )
    }

    /// The stream's device has no access to the pool's memory. What to do: name its pool in the builder's
    /// [`peers`](crate::PoolBuilder::peers), or its device in
    /// [`peer_devices`](crate::PoolBuilder::peer_devices); or copy the contents there by
    /// [`Buffer::copy_to`](crate::Buffer::copy_to), which needs no access.
    pub fn is_no_peer_access(&self) -> bool {
        matches!(self.inner.reason, Reason::NoPeerAccess)
    }

    /// Something is still in use: live buffers, handles or calls under way forbid closing a pool or
    /// retiring a stream.
    pub fn is_in_use(&self) -> bool {
        matches!(
            self.inner.reason,
            Reason::StreamInUse { .. } | Reason::BuffersAlive { .. } | Reason::CallsUnderWay { .. }
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.inner.reason {
            Reason::OutOfMemory(shortage) => shortage.fmt(f),
            Reason::TooLarge { len } => {
                write!(f, "a request of {len} bytes is too large: the most is {LARGEST} bytes")
            }
            Reason::BadAlignment { align } => write!(
                f,
                "an alignment of {align} bytes is not possible: use a power of two up to 1 GiB"
            ),
            Reason::BadOption { what } => write!(f, "this option cannot be used: {what}"),
            Reason::BadArgument { what } => f.write_str(what),
            Reason::Capturing { what } => write!(
                f,
                "{what} is capturing into a graph: do this before the capture begins or after it ends"
            ),
            Reason::Closed => f.write_str("the pool is closed"),
            Reason::ForeignContext => f.write_str(
                "the stream belongs to another context: use the pool that was made for its context",
            ),
            Reason::ForeignPool => f.write_str(
                "the stream is registered with another pool: a buffer's home is a stream of its own \
                 pool; name the other one by use_on(..), or copy the contents there by copy_to(..)",
            ),
            Reason::NoPeerAccess => f.write_str(
                "the stream's device has no access to this pool's memory: name its pool in the \
                 builder's peers(..), or its device in peer_devices(..), or copy the contents there \
                 by copy_to(..)",
            ),
            Reason::PerThreadStream => f.write_str(
                "the per-thread default stream cannot be registered, because its handle names \
                 another stream on each thread: create a stream instead",
            ),
            Reason::StreamInUse { buffers, handles } => write!(
                f,
                "the stream is in use by {buffers} buffers and driver calls and {handles} other \
                 handles: drop them first"
            ),
            Reason::BuffersAlive { buffers } => {
                write!(f, "the pool has {buffers} live buffers: drop them before it is closed")
            }
            Reason::CallsUnderWay { calls } => {
                write!(f, "{calls} calls on the pool are under way: let them return before it is closed")
            }
            Reason::NotGivenBack { bytes } => {
                write!(f, "the pool is closed, and {bytes} bytes could not be given back yet")
            }
            Reason::Driver { verb, kind } => {
                write!(f, "the driver call to {verb} failed")?;
                match kind {
                    ErrorKind::OutOfMemory => f.write_str(" (out of memory)"),
                    ErrorKind::Capture => f.write_str(" (a stream capture forbids it)"),
                    ErrorKind::DeviceLost => f.write_str(" (the device is lost to this process)"),
                    ErrorKind::Exiting => f.write_str(" (the process is exiting)"),
                    ErrorKind::Other => Ok(()),
                }
            }
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = if self.over_limit { "over the pool's limit" } else { "out of device memory" };
        write!(
            f,
            "{cause}: requested {}, in use {}, free {} (largest block {}), in transit {}, \
             quarantined {}, reserved {}",
            self.requested,
            self.in_use,
            self.free,
            self.largest_free,
            self.in_transit,
            self.quarantined,
            self.reserved
        )?;
        if let Some(limit) = self.limit {
            write!(f, ", limit {limit}")?;
        }
        if let (Some(free), Some(total)) = (self.device_free, self.device_total) {
            write!(f, ", device free {free} of {total}")?;
        }
        write!(f, " bytes; tried: {}", self.tried.join(", "))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("reason", &self.inner.reason)
            .field("source", &self.inner.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

//! A pool behind the C interface: the crate's pool, the buffers that C code holds, and the streams that
//! it has named.

use std::ffi::{c_int, c_void};

use rust_pool::cuda::{CudaBackend, CudaPool};
use rust_pool::{PoolStream, Stats, Tag};

use crate::addresses::{Addresses, Kept};
use crate::layout::{Config, Report};
use crate::scopes;
use crate::status::{Failure, Status};
use crate::streams::{Handle, Streams};

/// Stands for the context that is current on the calling thread.
pub(crate) const CURRENT: c_int = -1;

/// `streampool_pool`.
#[derive(Debug)]
pub struct Pool {
    // The streams go first: a handle that outlives the pool's own ends nothing.
    streams: Streams,
    pool: CudaPool,
    addresses: Addresses,
    /// Whether this is a device's default pool, which lives as long as the process.
    pub(crate) is_default: bool,
}

// C code calls with one pool on any threads.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Pool>();
};

impl Pool {
    /// # Safety
    ///
    /// With [`CURRENT`], as for [`CudaBackend::of_current_context`].
    pub(crate) unsafe fn new(device: c_int, config: &Config) -> Result<Pool, Failure> {
        let backend = match device {
            // SAFETY: the caller's promise is the backend's condition.
            CURRENT => unsafe { CudaBackend::of_current_context() }?,
            device => {
                let ordinal = usize::try_from(device)
                    .map_err(|_| Failure::invalid(format!("there is no device {device}")))?;
                CudaBackend::open(ordinal)?
            }
        };
        let pool = config.builder(backend)?.build()?;
        if config.reserve != 0 {
            pool.reserve(config.reserve)?;
        }
        let (streams, addresses) = (Streams::new(), Addresses::new());
        Ok(Pool { streams, pool, addresses, is_default: false })
    }

    /// # Safety
    ///
    /// As for [`CudaPool::borrow_stream`].
    unsafe fn stream(&self, raw: *mut c_void) -> Result<PoolStream<CudaBackend>, Failure> {
        // SAFETY: the caller's promise is the pool's condition.
        Ok(unsafe { self.streams.get(&self.pool, Handle::of(raw)) }?)
    }

    /// # Safety
    ///
    /// As for [`CudaPool::borrow_stream`].
    pub(crate) unsafe fn register(&self, stream: *mut c_void) -> Result<(), Failure> {
        // SAFETY: the caller's promise is this function's condition.
        unsafe { self.stream(stream) }.map(drop)
    }

    /// An address, 0 for no bytes.
    ///
    /// # Safety
    ///
    /// As for [`CudaPool::borrow_stream`].
    #[inline]
    pub(crate) unsafe fn allocate(
        &self,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<u64, Failure> {
        if let Some(buffer) = self.streams.hit(Handle::of(stream), bytes) {
            return Ok(self.keep(Kept::new(buffer)));
        }
        // SAFETY: the caller's promise is this function's condition.
        unsafe { self.allocate_by_miss(bytes, stream) }
    }

    /// # Safety
    ///
    /// As for [`CudaPool::borrow_stream`].
    #[cold]
    unsafe fn allocate_by_miss(&self, bytes: usize, stream: *mut c_void) -> Result<u64, Failure> {
        // SAFETY: the caller's promise is this function's condition.
        Ok(self.keep(Kept::new(unsafe { self.stream(stream) }?.alloc(bytes)?)))
    }

    /// # Safety
    ///
    /// As for [`CudaPool::borrow_stream`].
    pub(crate) unsafe fn allocate_aligned(
        &self,
        bytes: usize,
        alignment: usize,
        stream: *mut c_void,
    ) -> Result<u64, Failure> {
        // SAFETY: the caller's promise is this function's condition.
        let stream = unsafe { self.stream(stream) }?;
        Ok(self.keep(Kept::new(stream.alloc_aligned(bytes, alignment)?)))
    }

    /// A buffer of no bytes is not kept: it has no address to free it by.
    #[inline]
    fn keep(&self, buffer: Kept) -> u64 {
        let address = buffer.address();
        match address {
            0 => drop(buffer.into_buffer()),
            _ => self.addresses.insert(buffer),
        }
        address
    }

    #[inline]
    pub(crate) fn free(&self, address: u64) -> Result<(), Failure> {
        if address == 0 {
            return Ok(());
        }
        match self.addresses.remove(address) {
            // With no lock held.
            Some(buffer) => {
                drop(buffer);
                Ok(())
            }
            None => Err(Failure::unknown_address(address)),
        }
    }

    /// What was asked for, and the block's size.
    pub(crate) fn size(&self, address: u64) -> Result<(usize, usize), Failure> {
        if address == 0 {
            return Ok((0, 0));
        }
        self.addresses.size(address).ok_or_else(|| Failure::unknown_address(address))
    }

    /// # Safety
    ///
    /// As for [`CudaPool::borrow_stream`].
    pub(crate) unsafe fn use_on(&self, address: u64, stream: *mut c_void) -> Result<(), Failure> {
        if address == 0 {
            return Ok(());
        }
        // A stream is not registered for the sake of an address that is not there.
        self.size(address)?;
        // SAFETY: the caller's promise is this function's condition.
        let other = unsafe { self.stream(stream) }?;
        let used = self.addresses.with(address, |buffer| buffer.use_on(&other));
        Ok(used.ok_or_else(|| Failure::unknown_address(address))??)
    }

    /// # Safety
    ///
    /// As for [`CudaPool::borrow_stream`].
    pub(crate) unsafe fn move_to(&self, address: u64, stream: *mut c_void) -> Result<(), Failure> {
        if address == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise is this function's condition.
        let other = unsafe { self.stream(stream) }?;
        let moved = self.addresses.with(address, |buffer| buffer.move_to(&other));
        Ok(moved.ok_or_else(|| Failure::unknown_address(address))??)
    }

    pub(crate) fn set_tag(&self, address: u64, tag: Tag) -> Result<(), Failure> {
        if address == 0 {
            return Ok(());
        }
        let set = self.addresses.with(address, |buffer| buffer.set_tag(tag));
        set.ok_or_else(|| Failure::unknown_address(address))
    }

    /// A pickle for PyTorch's memory viewer.
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        self.pool.snapshot().to_pickle_with(&self.pool.history())
    }

    /// JSON for Perfetto.
    pub(crate) fn trace(&self) -> String {
        self.pool.history().to_perfetto()
    }

    pub(crate) fn retire(&self, stream: *mut c_void) -> Result<(), Failure> {
        Ok(self.streams.retire(Handle::of(stream))?)
    }

    pub(crate) fn quiesce_begin(&self) -> Result<u64, Failure> {
        scopes::keep(self.pool.quiesce()?)
    }

    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), Failure> {
        Ok(self.pool.reserve(bytes)?)
    }

    pub(crate) fn trim(&self, keep: u64) -> Result<u64, Failure> {
        Ok(self.pool.trim(keep)?)
    }

    pub(crate) fn synchronize(&self) -> Result<(), Failure> {
        Ok(self.pool.synchronize()?)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.pool.stats()
    }

    pub(crate) fn reset_peak(&self) {
        self.pool.reset_peak();
    }

    pub(crate) fn take_error(&self) -> Result<(), Failure> {
        self.pool.take_error().map_or(Ok(()), |error| Err(error.into()))
    }

    fn check_unused(&self) -> Result<(), Failure> {
        match self.addresses.len() {
            0 => Ok(()),
            live => Err(Failure::new(
                Status::InUse,
                format!("the pool has {live} live buffers: free them before it ends"),
            )),
        }
    }

    /// Ends the pool. Its streams leave first, while they are known to live.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        self.check_unused()?;
        self.let_streams_go()?;
        Ok(self.pool.close()?)
    }

    /// Makes the pool ready to be dropped without waiting for anything.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        self.check_unused()?;
        self.let_streams_go()
    }

    fn let_streams_go(&self) -> Result<(), Failure> {
        match self.streams.retire_all().map_err(Failure::from) {
            // There is no driver any more that could be told of them.
            Err(Failure { status: Status::DeviceLost | Status::Exiting, .. }) => Ok(()),
            // They have left with the pool.
            Err(Failure { status: Status::Closed, .. }) => Ok(()),
            other => other,
        }
    }
}

/// Ends a scope of the calling thread.
pub(crate) fn quiesce_end(scope: u64) -> Result<Report, Failure> {
    scopes::end(scope)
}

//! Typed allocation on a registered stream.

use cudarc::driver::{DeviceRepr, ValidAsZeroBits};

use super::{CudaBackend, PooledSlice};
use crate::backend::cuda::transfers;
use crate::error::{Error, Reason};
use crate::heap::size_class::GRAIN;
use crate::{Buffer, PoolStream};

/// The bytes of a slice.
pub(super) fn bytes_of<T>(len: usize) -> Result<usize, Error> {
    // What does not fit a `usize` is larger than any device.
    len.checked_mul(size_of::<T>()).ok_or_else(|| Error::new(Reason::TooLarge { len: u64::MAX }))
}

impl PoolStream<CudaBackend> {
    /// Allocates `len` elements, all of whose bytes are zero. The fill is submitted to this stream.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc); [`is_too_large`](Error::is_too_large) also when the size in bytes
    /// does not fit a `usize`; [`is_capture`](Error::is_capture) when the stream is capturing; a driver
    /// error of the fill.
    ///
    /// ```no_run
    /// # use streampool::{PoolStream, cuda::CudaBackend};
    /// # fn example(stream: &PoolStream<CudaBackend>) -> Result<(), streampool::Error> {
    /// let counts = stream.alloc_zeros::<u32>(256)?;
    /// assert_eq!(counts.to_vec()?, [0; 256]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn alloc_zeros<T: ValidAsZeroBits>(&self, len: usize) -> Result<PooledSlice<T>, Error> {
        let buffer = self.alloc_typed::<T>(len)?;
        if !buffer.is_empty() {
            self.core.pool.driver.transfer("fill a new slice", || {
                // SAFETY: sound because the memory was just allocated on this stream, which thereby
                // comes after all of its earlier uses.
                unsafe { transfers::fill_zeros(self.raw(), buffer.device_ptr(), buffer.len()) }
            })?;
        }
        Ok(PooledSlice::new(buffer, len))
    }

    /// Allocates a copy of host memory. The copy is submitted to this stream.
    ///
    /// Pageable memory, which is what Rust's own allocations are, has been read when this returns. (A
    /// slice of page-locked memory is read when the stream comes to it, as with cudarc: leave it
    /// unchanged until then, or copy with `memcpy_htod`, which keeps track of a `PinnedHostSlice`.)
    ///
    /// # Errors
    ///
    /// As for [`alloc_zeros`](Self::alloc_zeros).
    pub fn clone_htod<T: DeviceRepr>(&self, host: &[T]) -> Result<PooledSlice<T>, Error> {
        let mut slice = PooledSlice::new(self.alloc_typed::<T>(host.len())?, host.len());
        slice.copy_from_host(host)?;
        Ok(slice)
    }

    /// Allocates `len` elements of whatever the memory holds. No driver call, when it is a hit.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc); [`is_too_large`](Error::is_too_large) also when the size in bytes
    /// does not fit a `usize`.
    ///
    /// # Safety
    ///
    /// The elements are not read, as a `T`, before they were written.
    pub unsafe fn alloc_slice<T>(&self, len: usize) -> Result<PooledSlice<T>, Error> {
        Ok(PooledSlice::new(self.alloc_typed::<T>(len)?, len))
    }

    /// A buffer for `len` elements, with no bytes for elements of no size.
    fn alloc_typed<T>(&self, len: usize) -> Result<Buffer<CudaBackend>, Error> {
        let bytes = bytes_of::<T>(len)?;
        if align_of::<T>() <= GRAIN as usize {
            self.alloc(bytes)
        } else {
            self.alloc_aligned(bytes, align_of::<T>())
        }
    }
}

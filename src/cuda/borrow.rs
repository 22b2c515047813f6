//! Streams that other code owns.

use cudarc::driver::sys;

use crate::error::{Error, Reason};
use crate::{PoolStream, StreamPool, cuda::CudaBackend};

impl StreamPool<CudaBackend> {
    /// Registers a stream that other code owns, by its handle; null is the legacy default stream. As
    /// [`stream`](Self::stream), but the pool cannot keep the stream alive.
    ///
    /// # Errors
    ///
    /// As for [`stream`](Self::stream); [`is_capture`](Error::is_capture) for a stream that is
    /// capturing.
    ///
    /// # Safety
    ///
    /// The handle is that of a live stream, or of a default stream, and its owner does not destroy the
    /// stream before it has left the pool: before [`PoolStream::retire`] has succeeded, or
    /// [`StreamPool::close`] has.
    pub unsafe fn borrow_stream(
        &self,
        handle: sys::CUstream,
    ) -> Result<PoolStream<CudaBackend>, Error> {
        let driver = &self.core().driver;
        // SAFETY: the caller's promise is the backend's condition.
        let stream = driver.wrap_stream(|own| unsafe { own.borrow_stream(handle) })?;
        self.stream(stream.ok_or_else(|| Error::new(Reason::ForeignContext))?)
    }
}

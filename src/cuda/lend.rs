//! Lending a `CudaSlice`, for libraries that insist on one.

use std::mem::ManuallyDrop;

use cudarc::driver::CudaSlice;

use super::order::{READ, WRITE, order_at_home};
use super::{CudaBackend, PooledSlice};
use crate::Buffer;
use crate::backend::cuda::transfers::keeping_thread;
use crate::error::Error;
use crate::pool::Access;

/// A `CudaSlice` of pooled memory. cudarc never frees it: at the end, also of a panic, it is leaked.
struct Lent<'a, T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    buffer: &'a Buffer<CudaBackend>,
}

impl<'a, T> Lent<'a, T> {
    fn new(
        buffer: &'a Buffer<CudaBackend>,
        len: usize,
        access: Access,
    ) -> Result<Lent<'a, T>, Error> {
        order_at_home(buffer, access)?;
        let home = &*buffer.home;
        let (stream, mut lent) = (home.stream(), None);
        home.pool.driver.transfer("lend a slice", || {
            let make = || {
                // SAFETY: sound because the memory is that of a live buffer, has room for as many
                // elements, and holds what the slice holds.
                unsafe { stream.upgrade_device_ptr(buffer.device_ptr(), len) }
            };
            lent = Some(keeping_thread(stream.context(), "cuEventCreate", make)?);
            Ok(())
        })?;
        let slice = ManuallyDrop::new(lent.expect("it was made"));
        Ok(Lent { slice, buffer })
    }
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        // SAFETY: sound because the slice is being dropped, so that it is taken once.
        let slice = ManuallyDrop::new(unsafe { ManuallyDrop::take(&mut self.slice) });
        let home = &*self.buffer.home;
        // Lets cudarc's events and its handle of the stream go, not the memory. When the thread cannot
        // be prepared, at process exit above all, they are leaked too.
        let leaked = home.pool.driver.transfer("take a lent slice back", || {
            let leak = || ManuallyDrop::into_inner(slice).leak();
            keeping_thread(home.stream().context(), "cuEventDestroy", leak).map(drop)
        });
        if let Err(error) = leaked {
            home.pool.driver.keep_error(error);
        }
    }
}

impl<T> PooledSlice<T> {
    /// Lends the slice as a `CudaSlice` for as long as the closure runs, to a library that insists on
    /// one. The home stream comes after the uses that the slice knows of. It creates and destroys
    /// cudarc's two events.
    ///
    /// ```no_run
    /// # use streampool::cuda::PooledSlice;
    /// # use cudarc::driver::CudaSlice;
    /// # fn library_call(input: &CudaSlice<f32>) {}
    /// # fn example(slice: &PooledSlice<f32>) -> Result<(), streampool::Error> {
    /// // SAFETY: the library works on the slice's own stream.
    /// unsafe { slice.with_cuda_slice(|input| library_call(input))? };
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A driver error; the closure has not run then.
    ///
    /// # Panics
    ///
    /// As the closure does; and when cudarc cannot create its events.
    ///
    /// # Safety
    ///
    /// Every operation on the lent slice is submitted, in the closure, to the home stream, or to a
    /// stream that [`use_on`](Self::use_on) has named. cudarc's own copies would be safe on any stream,
    /// but it keeps no more than one event for reads, so that the pool could not come after two.
    pub unsafe fn with_cuda_slice<R>(
        &self,
        run: impl FnOnce(&CudaSlice<T>) -> R,
    ) -> Result<R, Error> {
        let lent = Lent::new(self.buffer(), self.len(), READ)?;
        Ok(run(&lent.slice))
    }

    /// As [`with_cuda_slice`](Self::with_cuda_slice), to be written.
    ///
    /// # Errors
    ///
    /// As for [`with_cuda_slice`](Self::with_cuda_slice).
    ///
    /// # Panics
    ///
    /// As for [`with_cuda_slice`](Self::with_cuda_slice).
    ///
    /// # Safety
    ///
    /// As for [`with_cuda_slice`](Self::with_cuda_slice); and the closure leaves the lent slice in its
    /// place: swapped for another, cudarc would free the pool's memory.
    pub unsafe fn with_cuda_slice_mut<R>(
        &mut self,
        run: impl FnOnce(&mut CudaSlice<T>) -> R,
    ) -> Result<R, Error> {
        let mut lent = Lent::new(self.buffer(), self.len(), WRITE)?;
        Ok(run(&mut lent.slice))
    }
}

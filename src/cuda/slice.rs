//! The typed slice: an owned buffer that knows what it holds.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use cudarc::driver::{CudaContext, CudaStream, DeviceRepr};

use super::alloc::bytes_of;
use super::view::{PooledView, PooledViewMut};
use super::{CudaBackend, order};
use crate::error::Error;
use crate::sync::Arc;
use crate::{Buffer, PoolStream, Tag};

/// `len` elements of type `T` in pooled device memory, owned. Dropping it frees the memory on its home
/// stream, like a [`Buffer`], with no driver call.
///
/// Made by [`alloc_zeros`](PoolStream::alloc_zeros), [`clone_htod`](PoolStream::clone_htod) and
/// [`alloc_slice`](PoolStream::alloc_slice). cudarc's copies, launches and libraries take it as they take
/// a `CudaSlice`; what differs is told in the [module](crate::cuda), and matters when a program uses
/// several streams.
///
/// ```no_run
/// # use streampool::cuda::{CudaPool, PooledSlice};
/// # use std::sync::Arc;
/// # use cudarc::driver::CudaStream;
/// # fn example(pool: &CudaPool, stream: Arc<CudaStream>) -> Result<(), Box<dyn std::error::Error>> {
/// let home = pool.stream(stream.clone())?;
/// let mut slice: PooledSlice<f32> = home.alloc_zeros(1 << 20)?;
/// stream.memcpy_htod(&[1.0, 2.0, 3.0], &mut slice.slice_mut(..3))?;
/// let host = stream.clone_dtoh(&slice.slice(..4))?;
/// assert_eq!(host, [1.0, 2.0, 3.0, 0.0]);
/// # Ok(())
/// # }
/// ```
pub struct PooledSlice<T> {
    buffer: Buffer<CudaBackend>,
    len: usize,
    /// The elements are on the device: no `T` is dropped, shared or sent with the slice.
    _elements: PhantomData<fn() -> T>,
}

impl<T> PooledSlice<T> {
    /// The buffer holds `len` elements.
    pub(super) fn new(buffer: Buffer<CudaBackend>, len: usize) -> PooledSlice<T> {
        debug_assert_eq!(Some(buffer.len()), len.checked_mul(size_of::<T>()), "bytes of a slice");
        let address = buffer.device_ptr();
        debug_assert_eq!(address % align_of::<T>() as u64, 0, "a slice at {address:#x}");
        PooledSlice { buffer, len, _elements: PhantomData }
    }

    /// A slice of `len` elements in a buffer.
    ///
    /// # Panics
    ///
    /// When the buffer is shorter than the elements, or not aligned for them.
    ///
    /// # Safety
    ///
    /// The elements are not read, as a `T`, before they were written as one.
    pub unsafe fn from_buffer(buffer: Buffer<CudaBackend>, len: usize) -> PooledSlice<T> {
        let (has, address) = (buffer.len(), buffer.device_ptr());
        let fits = bytes_of::<T>(len).is_ok_and(|bytes| bytes <= has);
        assert!(fits, "{len} elements of {} bytes do not fit {has} bytes", size_of::<T>());
        let align = align_of::<T>();
        assert_eq!(address % align as u64, 0, "{address:#x} is not aligned to {align} bytes");
        PooledSlice { buffer, len, _elements: PhantomData }
    }

    /// The buffer, with no type.
    pub fn into_buffer(self) -> Buffer<CudaBackend> {
        self.buffer
    }

    /// The buffer.
    pub fn buffer(&self) -> &Buffer<CudaBackend> {
        &self.buffer
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The size of the elements in bytes.
    pub fn num_bytes(&self) -> usize {
        // The buffer holds as many bytes.
        self.len * size_of::<T>()
    }

    /// The address of the first element on the device, 0 when the slice has no bytes. It orders nothing:
    /// whoever uses it keeps the contract of [`Buffer`]. (`DevicePtr::device_ptr` is the one that orders.)
    pub fn address(&self) -> u64 {
        self.buffer.device_ptr()
    }

    /// Where the address is: it stays there while the slice lives.
    pub(super) fn address_place(&self) -> &u64 {
        &self.buffer.address
    }

    /// The home stream, as cudarc has it.
    pub fn stream(&self) -> &Arc<CudaStream> {
        self.buffer.home.stream()
    }

    /// The home stream: the one that the slice is freed on.
    pub fn pool_stream(&self) -> PoolStream<CudaBackend> {
        self.buffer.stream()
    }

    /// The context of the memory.
    pub fn context(&self) -> &Arc<CudaContext> {
        self.stream().context()
    }

    /// Lets `other` use the slice from now on. A launch on a stream that is not home needs it. See
    /// [`Buffer::use_on`].
    ///
    /// # Errors
    ///
    /// As for [`Buffer::use_on`].
    pub fn use_on(&self, other: &PoolStream<CudaBackend>) -> Result<(), Error> {
        self.buffer.use_on(other)
    }

    /// Makes `other` the home stream. See [`Buffer::move_to`].
    ///
    /// # Errors
    ///
    /// As for [`Buffer::move_to`].
    pub fn move_to(&mut self, other: &PoolStream<CudaBackend>) -> Result<(), Error> {
        self.buffer.move_to(other)
    }

    /// Says what the slice is for. See [`Buffer::set_tag`].
    pub fn set_tag(&self, tag: Tag) {
        self.buffer.set_tag(tag);
    }

    /// What the slice is for. See [`Buffer::tag`].
    pub fn tag(&self) -> Option<Tag> {
        self.buffer.tag()
    }

    /// All elements.
    pub fn as_view(&self) -> PooledView<'_, T> {
        PooledView::new(&self.buffer, self.address(), self.len, order::READ)
    }

    /// All elements, to be written.
    pub fn as_view_mut(&mut self) -> PooledViewMut<'_, T> {
        PooledViewMut::new(&self.buffer, self.address(), self.len)
    }

    /// Some of the elements.
    ///
    /// # Panics
    ///
    /// When the range reaches beyond the slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> PooledView<'_, T> {
        self.as_view().slice(range)
    }

    /// Some of the elements, or `None` when the range reaches beyond the slice.
    pub fn try_slice(&self, range: impl RangeBounds<usize>) -> Option<PooledView<'_, T>> {
        self.as_view().try_slice(range)
    }

    /// Some of the elements, to be written.
    ///
    /// # Panics
    ///
    /// When the range reaches beyond the slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> PooledViewMut<'_, T> {
        self.as_view_mut().into_slice(range)
    }

    /// Some of the elements, to be written, or `None` when the range reaches beyond the slice.
    pub fn try_slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Option<PooledViewMut<'_, T>> {
        self.as_view_mut().try_into_slice(range)
    }

    /// The elements before `mid` and those from `mid` on.
    ///
    /// # Panics
    ///
    /// When `mid` is beyond the end.
    pub fn split_at(&self, mid: usize) -> (PooledView<'_, T>, PooledView<'_, T>) {
        (self.slice(..mid), self.slice(mid..))
    }

    /// The elements before `mid` and those from `mid` on, to be written.
    ///
    /// # Panics
    ///
    /// When `mid` is beyond the end.
    pub fn split_at_mut(&mut self, mid: usize) -> (PooledViewMut<'_, T>, PooledViewMut<'_, T>) {
        self.as_view_mut().into_split_at(mid)
    }
}

impl<T: DeviceRepr> PooledSlice<T> {
    /// Copies the elements to the host, on the home stream, and blocks until that is done.
    ///
    /// # Panics
    ///
    /// When `host` has another number of elements.
    ///
    /// # Errors
    ///
    /// A driver error; [`is_capture`](Error::is_capture) when the home stream is capturing.
    pub fn copy_to_host(&self, host: &mut [T]) -> Result<(), Error> {
        self.as_view().copy_to_host(host)
    }

    /// The elements, copied to the host as by [`copy_to_host`](Self::copy_to_host).
    ///
    /// # Errors
    ///
    /// As for [`copy_to_host`](Self::copy_to_host).
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        self.as_view().to_vec()
    }

    /// Copies from the host into the elements, on the home stream. What is said of the host's memory at
    /// [`clone_htod`](PoolStream::clone_htod) holds here too.
    ///
    /// # Panics
    ///
    /// When `host` has another number of elements.
    ///
    /// # Errors
    ///
    /// As for [`copy_to_host`](Self::copy_to_host).
    pub fn copy_from_host(&mut self, host: &[T]) -> Result<(), Error> {
        self.as_view_mut().write(host, order::WRITE)
    }

    /// A copy at home on `other`, a stream of any pool and device. See [`Buffer::copy_to`].
    ///
    /// # Errors
    ///
    /// As for [`Buffer::copy_to`].
    pub fn copy_to(&self, other: &PoolStream<CudaBackend>) -> Result<PooledSlice<T>, Error> {
        Ok(PooledSlice {
            buffer: self.buffer.copy_to(other)?,
            len: self.len,
            _elements: PhantomData,
        })
    }

    /// A copy with the same home stream, made there on the device.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](PoolStream::alloc); a driver error of the copy; [`is_capture`](Error::is_capture)
    /// when the home stream is capturing.
    pub fn try_clone(&self) -> Result<PooledSlice<T>, Error> {
        self.as_view().try_clone()
    }
}

impl<T> fmt::Debug for PooledSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledSlice")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("len", &self.len)
            .finish()
    }
}

//! Parts of a typed slice, and the copies between one and the host.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

use cudarc::driver::{CudaStream, DeviceRepr};

use super::order::{READ_PART, WRITE_PART, order_at_home};
use super::{CudaBackend, PooledSlice};
use crate::Buffer;
use crate::backend::cuda::transfers;
use crate::error::Error;
use crate::pool::Access;
use crate::sync::Arc;

/// Some elements of a [`PooledSlice`], borrowed. cudarc's calls take a reference to it as they take one
/// to a `CudaView`.
pub struct PooledView<'a, T> {
    pub(super) buffer: &'a Buffer<CudaBackend>,
    pub(super) address: u64,
    len: usize,
    pub(super) access: Access,
    _elements: PhantomData<fn() -> T>,
}

/// Some elements of a [`PooledSlice`], borrowed exclusively. cudarc's calls take a reference to it as
/// they take one to a `CudaViewMut`.
pub struct PooledViewMut<'a, T> {
    /// Shared with the views of other elements of the same slice.
    pub(super) buffer: &'a Buffer<CudaBackend>,
    pub(super) address: u64,
    len: usize,
    _elements: PhantomData<fn() -> T>,
}

/// The range in numbers, if it lies within `len`.
fn within(range: impl RangeBounds<usize>, len: usize) -> Option<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1)?,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    (start <= end && end <= len).then_some(start..end)
}

#[track_caller]
fn found<V>(part: Option<V>, len: usize) -> V {
    part.unwrap_or_else(|| panic!("a range reaches beyond the {len} elements of a slice"))
}

/// The address of an element.
fn offset<T>(address: u64, index: usize) -> u64 {
    // Within the slice, whose bytes fit a `usize`.
    address + (index * size_of::<T>()) as u64
}

impl<'a, T> PooledView<'a, T> {
    pub(super) fn new(
        buffer: &'a Buffer<CudaBackend>,
        address: u64,
        len: usize,
        access: Access,
    ) -> PooledView<'a, T> {
        check_part::<T>(buffer, address, len);
        PooledView { buffer, address, len, access, _elements: PhantomData }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The home stream of the memory, as cudarc has it.
    pub fn stream(&self) -> &'a Arc<CudaStream> {
        self.buffer.home.stream()
    }

    /// Some of these elements.
    ///
    /// # Panics
    ///
    /// When the range reaches beyond the view.
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> PooledView<'a, T> {
        found(self.try_slice(range), self.len)
    }

    /// Some of these elements, or `None` when the range reaches beyond the view.
    pub fn try_slice(&self, range: impl RangeBounds<usize>) -> Option<PooledView<'a, T>> {
        let range = within(range, self.len)?;
        let address = offset::<T>(self.address, range.start);
        Some(PooledView::new(self.buffer, address, range.len(), self.access))
    }

    /// The elements before `mid` and those from `mid` on.
    ///
    /// # Panics
    ///
    /// When `mid` is beyond the end.
    #[track_caller]
    pub fn split_at(&self, mid: usize) -> (PooledView<'a, T>, PooledView<'a, T>) {
        (self.slice(..mid), self.slice(mid..))
    }
}

impl<T> Clone for PooledView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PooledView<'_, T> {}

impl<T: DeviceRepr> PooledView<'_, T> {
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
        assert_eq!(host.len(), self.len, "elements on the host, and in the view");
        // SAFETY: sound because the destination is as long as the view, and is borrowed exclusively.
        unsafe { self.read(host.as_mut_ptr()) }
    }

    /// The elements, copied to the host as by [`copy_to_host`](Self::copy_to_host).
    ///
    /// # Errors
    ///
    /// As for [`copy_to_host`](Self::copy_to_host).
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        let mut host = Vec::with_capacity(self.len);
        // SAFETY: sound because the vector has room for as many elements, and nobody else uses it.
        unsafe { self.read(host.as_mut_ptr())? };
        // SAFETY: sound because the copy has written them all.
        unsafe { host.set_len(self.len) };
        Ok(host)
    }

    /// Copies to the host, and blocks until that is done.
    ///
    /// # Safety
    ///
    /// `host` has room for the elements, and nobody else uses it.
    unsafe fn read(&self, host: *mut T) -> Result<(), Error> {
        let bytes = self.len * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        order_at_home(self.buffer, self.access)?;
        let home = &*self.buffer.home;
        let (pool, stream) = (&home.pool, home.stream());
        pool.driver.transfer("copy a slice to the host", || {
            // SAFETY: sound because the view lies within the buffer, home comes after its earlier uses,
            // and the destination stays as the caller says until the synchronize below has returned.
            unsafe { transfers::copy_out(stream, host.cast(), self.address, bytes) }
        })?;
        pool.synchronize_stream(home).or_else(|error| {
            // The copy may still be under way, and the destination is the caller's again when this
            // returns.
            match pool.driver.transfer("wait for a copy", || transfers::drain(stream)) {
                Ok(()) => Ok(()),
                Err(_) => Err(error),
            }
        })
    }

    /// A slice of its own with the same elements and home stream, copied there on the device.
    ///
    /// # Errors
    ///
    /// As for [`PooledSlice::try_clone`].
    pub fn try_clone(&self) -> Result<PooledSlice<T>, Error> {
        // SAFETY: sound because the elements are written by the copy below, on the home stream, before
        // the slice is returned; the bytes of these came from values of the type.
        let clone = unsafe { self.buffer.stream().alloc_slice::<T>(self.len)? };
        let bytes = clone.num_bytes();
        if bytes == 0 {
            return Ok(clone);
        }
        order_at_home(self.buffer, self.access)?;
        let home = &*self.buffer.home;
        home.pool.driver.transfer("copy a slice", || {
            // SAFETY: sound because both ranges are of that size, one is new, and home comes after the
            // other's earlier uses.
            unsafe { transfers::copy(home.stream(), clone.address(), self.address, bytes) }
        })?;
        Ok(clone)
    }
}

impl<'a, T> PooledViewMut<'a, T> {
    /// The caller has exclusive use of the elements.
    pub(super) fn new(
        buffer: &'a Buffer<CudaBackend>,
        address: u64,
        len: usize,
    ) -> PooledViewMut<'a, T> {
        check_part::<T>(buffer, address, len);
        PooledViewMut { buffer, address, len, _elements: PhantomData }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The home stream of the memory, as cudarc has it.
    pub fn stream(&self) -> &'a Arc<CudaStream> {
        self.buffer.home.stream()
    }

    /// The same elements, to be read.
    pub fn as_view(&self) -> PooledView<'_, T> {
        PooledView::new(self.buffer, self.address, self.len, READ_PART)
    }

    /// Some of these elements, to be read.
    ///
    /// # Panics
    ///
    /// When the range reaches beyond the view.
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> PooledView<'_, T> {
        self.as_view().slice(range)
    }

    /// Some of these elements, to be read, or `None` when the range reaches beyond the view.
    pub fn try_slice(&self, range: impl RangeBounds<usize>) -> Option<PooledView<'_, T>> {
        self.as_view().try_slice(range)
    }

    /// Some of these elements.
    ///
    /// # Panics
    ///
    /// When the range reaches beyond the view.
    #[track_caller]
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> PooledViewMut<'_, T> {
        self.reborrow().into_slice(range)
    }

    /// Some of these elements, or `None` when the range reaches beyond the view.
    pub fn try_slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Option<PooledViewMut<'_, T>> {
        self.reborrow().try_into_slice(range)
    }

    /// The elements before `mid` and those from `mid` on.
    ///
    /// # Panics
    ///
    /// When `mid` is beyond the end.
    #[track_caller]
    pub fn split_at_mut(&mut self, mid: usize) -> (PooledViewMut<'_, T>, PooledViewMut<'_, T>) {
        self.reborrow().into_split_at(mid)
    }

    fn reborrow(&mut self) -> PooledViewMut<'_, T> {
        PooledViewMut::new(self.buffer, self.address, self.len)
    }

    #[track_caller]
    pub(super) fn into_slice(self, range: impl RangeBounds<usize>) -> PooledViewMut<'a, T> {
        let len = self.len;
        found(self.try_into_slice(range), len)
    }

    pub(super) fn try_into_slice(
        self,
        range: impl RangeBounds<usize>,
    ) -> Option<PooledViewMut<'a, T>> {
        let range = within(range, self.len)?;
        let address = offset::<T>(self.address, range.start);
        Some(PooledViewMut::new(self.buffer, address, range.len()))
    }

    #[track_caller]
    pub(super) fn into_split_at(self, mid: usize) -> (PooledViewMut<'a, T>, PooledViewMut<'a, T>) {
        let rest = found(self.len.checked_sub(mid), self.len);
        let from_mid = offset::<T>(self.address, mid);
        (
            PooledViewMut::new(self.buffer, self.address, mid),
            PooledViewMut::new(self.buffer, from_mid, rest),
        )
    }
}

impl<T: DeviceRepr> PooledViewMut<'_, T> {
    /// Copies from the host into the elements, on the home stream. What is said of the host's memory at
    /// [`clone_htod`](crate::PoolStream::clone_htod) holds here too.
    ///
    /// # Panics
    ///
    /// When `host` has another number of elements.
    ///
    /// # Errors
    ///
    /// A driver error; [`is_capture`](Error::is_capture) when the home stream is capturing.
    pub fn copy_from_host(&mut self, host: &[T]) -> Result<(), Error> {
        self.write(host, WRITE_PART)
    }

    pub(super) fn write(&mut self, host: &[T], access: Access) -> Result<(), Error> {
        assert_eq!(host.len(), self.len, "elements on the host, and in the view");
        let bytes = size_of_val(host);
        if bytes == 0 {
            return Ok(());
        }
        order_at_home(self.buffer, access)?;
        let home = &*self.buffer.home;
        home.pool.driver.transfer("copy a slice from the host", || {
            let from = host.as_ptr().cast();
            // SAFETY: sound because the view lies within the buffer and is borrowed exclusively, home
            // comes after its earlier uses, and the source is as long and has been read when the call
            // returns; for page-locked memory the documentation asks for more.
            unsafe { transfers::copy_in(home.stream(), self.address, from, bytes) }
        })
    }
}

/// With debug assertions: that the elements lie within the buffer.
fn check_part<T>(buffer: &Buffer<CudaBackend>, address: u64, len: usize) {
    let (start, end) = (buffer.device_ptr(), buffer.device_ptr() + buffer.len() as u64);
    debug_assert!(
        start <= address && offset::<T>(address, len) <= end,
        "{len} elements of {} bytes at {address:#x} of a buffer from {start:#x} to {end:#x}",
        size_of::<T>()
    );
}

impl<T> fmt::Debug for PooledView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe("PooledView", self.address, self.len, f)
    }
}

impl<T> fmt::Debug for PooledViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe("PooledViewMut", self.address, self.len, f)
    }
}

fn describe(name: &str, address: u64, len: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(name).field("address", &format_args!("{address:#x}")).field("len", &len).finish()
}

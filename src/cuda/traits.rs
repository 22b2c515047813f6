//! cudarc's traits: what lets its copies, its launches and its libraries take pooled memory.

use cudarc::driver::{
    CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs, PushKernelArg, SyncOnDrop, sys,
};

use super::order::{READ, READ_PART, WRITE, WRITE_PART, address_at_home, address_on};
use super::{PooledSlice, PooledView, PooledViewMut};
use crate::sync::Arc;

/// Nothing is left to do after the operation: what comes later is ordered when it comes.
fn nothing<'a>() -> SyncOnDrop<'a> {
    SyncOnDrop::Record(None)
}

impl<T> DeviceSlice<T> for PooledSlice<T> {
    fn len(&self) -> usize {
        PooledSlice::len(self)
    }

    fn stream(&self) -> &Arc<CudaStream> {
        PooledSlice::stream(self)
    }
}

impl<T> DeviceSlice<T> for PooledView<'_, T> {
    fn len(&self) -> usize {
        PooledView::len(self)
    }

    fn stream(&self) -> &Arc<CudaStream> {
        PooledView::stream(self)
    }
}

impl<T> DeviceSlice<T> for PooledViewMut<'_, T> {
    fn len(&self) -> usize {
        PooledViewMut::len(self)
    }

    fn stream(&self) -> &Arc<CudaStream> {
        PooledViewMut::stream(self)
    }
}

impl<T> DevicePtr<T> for PooledSlice<T> {
    /// Makes `stream` wait for every earlier use that the slice knows of. See the
    /// [module](crate::cuda).
    #[inline]
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (address_on(self.buffer(), self.address(), READ, stream), nothing())
    }
}

impl<T> DevicePtrMut<T> for PooledSlice<T> {
    /// As for [`DevicePtr`].
    #[inline]
    fn device_ptr_mut<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (address_on(self.buffer(), self.address(), WRITE, stream), nothing())
    }
}

impl<T> DevicePtr<T> for PooledView<'_, T> {
    /// As for [`PooledSlice`].
    #[inline]
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (address_on(self.buffer, self.address, self.access, stream), nothing())
    }
}

impl<T> DevicePtr<T> for PooledViewMut<'_, T> {
    /// As for [`PooledSlice`].
    #[inline]
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (address_on(self.buffer, self.address, READ_PART, stream), nothing())
    }
}

impl<T> DevicePtrMut<T> for PooledViewMut<'_, T> {
    /// As for [`PooledSlice`].
    #[inline]
    fn device_ptr_mut<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (address_on(self.buffer, self.address, WRITE_PART, stream), nothing())
    }
}

// The launches below push the place of an address, which cudarc's own implementation for `&u64` does:
// a kernel's pointer parameter is that number.

// SAFETY: sound because what is pushed is the place of a device address, 8 bytes that live for `'b` (in
// the slice's record on the heap, or in a static), and that nothing changes while the slice is borrowed.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b PooledSlice<T>> for LaunchArgs<'a> {
    /// Makes the slice's home stream wait for the other streams that the slice knows of. A launch on
    /// another stream needs [`use_on`](PooledSlice::use_on). See the [module](crate::cuda).
    #[inline(always)]
    fn arg(&mut self, arg: &'b PooledSlice<T>) -> &mut Self {
        self.arg(address_at_home(arg.buffer(), arg.address_place(), READ))
    }
}

// SAFETY: as for the shared borrow.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut PooledSlice<T>> for LaunchArgs<'a> {
    /// As for the shared borrow.
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut PooledSlice<T>) -> &mut Self {
        self.arg(address_at_home(arg.buffer(), arg.address_place(), WRITE))
    }
}

// SAFETY: as for a slice; the place is in the view, which is borrowed for `'b`.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b PooledView<'c, T>> for LaunchArgs<'a> {
    /// As for [`PooledSlice`].
    #[inline(always)]
    fn arg(&mut self, arg: &'b PooledView<'c, T>) -> &mut Self {
        self.arg(address_at_home(arg.buffer, &arg.address, arg.access))
    }
}

// SAFETY: as for a view.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b PooledViewMut<'c, T>> for LaunchArgs<'a> {
    /// As for [`PooledSlice`].
    #[inline(always)]
    fn arg(&mut self, arg: &'b PooledViewMut<'c, T>) -> &mut Self {
        self.arg(address_at_home(arg.buffer, &arg.address, READ_PART))
    }
}

// SAFETY: as for a view.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b mut PooledViewMut<'c, T>> for LaunchArgs<'a> {
    /// As for [`PooledSlice`].
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut PooledViewMut<'c, T>) -> &mut Self {
        self.arg(address_at_home(arg.buffer, &arg.address, WRITE_PART))
    }
}

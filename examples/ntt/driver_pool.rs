//! The driver's memory pools, from which cudarc's allocation comes where the device has them.

use cudarc::driver::{result, sys};
use std::mem;

use super::common::cli::Outcome;

/// One of the driver's pools of device 0.
///
/// The driver gives a pool's free memory back at each synchronize, down to the pool's *release threshold*.
/// That is 0 unless a program raises it, so that cudarc's allocation takes its memory from the device anew
/// after each. A pool whose threshold is raised keeps everything. It is one of its own, rather than the
/// device's with another threshold, because the allocators take turns: what it keeps must outlast the turn
/// of one that keeps nothing.
pub(crate) struct DriverPool {
    device: sys::CUdevice,
    pool: sys::CUmemoryPool,
    own: bool,
}

impl DriverPool {
    /// The device's default pool, as it is.
    pub(crate) fn of_device(device: sys::CUdevice) -> Outcome<DriverPool> {
        // SAFETY: sound because the device is one that cudarc has opened.
        let pool = unsafe { result::device::get_default_mem_pool(device) }?;
        Ok(DriverPool { device, pool, own: false })
    }

    /// A new pool like the default one, but with the threshold raised to the most there is.
    pub(crate) fn raised(device: sys::CUdevice) -> Outcome<DriverPool> {
        // SAFETY: sound because all fields are numbers, a null pointer, or enumerations that have a 0.
        let mut properties: sys::CUmemPoolProps = unsafe { mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        // With number 0: the field's name is not the same in all CUDA versions.
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        // SAFETY: sound because the properties are complete, and are copied by the call.
        let pool = unsafe { result::mem_pool::create(&properties) }?;
        let pool = DriverPool { device, pool, own: true };
        let mut threshold = u64::MAX;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: sound because the pool lives, and this attribute is a number of 64 bits.
        unsafe {
            result::mem_pool::set_attribute(pool.pool, attribute, (&raw mut threshold).cast())
        }?;
        Ok(pool)
    }

    /// Lets the device allocate from it, until another one is made current.
    pub(crate) fn make_current(&self) -> Outcome<()> {
        // SAFETY: sound because the pool lives, and is the device's.
        Ok(unsafe { result::device::set_mem_pool(self.device, self.pool) }?)
    }
}

impl Drop for DriverPool {
    fn drop(&mut self) {
        if self.own {
            // The driver makes the default pool the device's again, if this was it. Errors are nothing to
            // a program that ends.
            // SAFETY: sound because the pool is this one's own, and no slice of it is allocated any more.
            let _ = unsafe { result::mem_pool::destroy(self.pool) };
        }
    }
}

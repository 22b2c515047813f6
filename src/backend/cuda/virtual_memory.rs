//! The two structures of the driver's virtual memory calls, in one form for all CUDA versions.
//!
//! cudarc's bindings follow the headers, where the location's device number became a union in
//! CUDA 13.2. The layout has not changed: that is checked here at compile time.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr;

use cudarc::driver::sys;

/// `CUmemLocation`, for a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Location {
    kind: c_uint,
    device: sys::CUdevice,
}

impl Location {
    const fn device(device: sys::CUdevice) -> Location {
        let kind = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE as c_uint;
        Location { kind, device }
    }
}

/// `CUmemAccessDesc`: one device may read and write.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    location: Location,
    flags: c_uint,
}

impl Access {
    pub(super) const fn read_write(device: sys::CUdevice) -> Access {
        let flags = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as c_uint;
        Access { location: Location::device(device), flags }
    }

    pub(super) fn device(&self) -> sys::CUdevice {
        self.location.device
    }
}

/// `CUmemAllocationProp`: device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Allocation {
    kind: c_uint,
    handle_types: c_uint,
    location: Location,
    win32: *const c_void,
    compression: u8,
    gpu_direct_rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

impl Allocation {
    /// Memory of a device, which network cards may read and write directly where `gpu_direct_rdma`
    /// says that the device can (a plain segment always allows it there).
    pub(super) const fn on(device: sys::CUdevice, gpu_direct_rdma: bool) -> Allocation {
        Allocation {
            kind: sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint,
            handle_types: 0,
            location: Location::device(device),
            win32: ptr::null(),
            compression: 0,
            gpu_direct_rdma: gpu_direct_rdma as u8,
            usage: 0,
            reserved: [0; 4],
        }
    }

    /// The same structure, as the bindings call it.
    pub(super) fn as_ptr(&self) -> *const sys::CUmemAllocationProp {
        ptr::from_ref(self).cast()
    }
}

/// The same structures, as the bindings call them.
pub(super) fn accesses(list: &[Access]) -> *const sys::CUmemAccessDesc {
    list.as_ptr().cast()
}

const _: () = {
    assert!(size_of::<c_int>() == size_of::<sys::CUdevice>());
    assert!(size_of::<Location>() == size_of::<sys::CUmemLocation>());
    assert!(align_of::<Location>() == align_of::<sys::CUmemLocation>());
    assert!(offset_of!(sys::CUmemLocation, type_) == 0);
    assert!(size_of::<Access>() == size_of::<sys::CUmemAccessDesc>());
    assert!(align_of::<Access>() == align_of::<sys::CUmemAccessDesc>());
    assert!(offset_of!(Access, flags) == offset_of!(sys::CUmemAccessDesc, flags));
    assert!(size_of::<Allocation>() == size_of::<sys::CUmemAllocationProp>());
    assert!(align_of::<Allocation>() == align_of::<sys::CUmemAllocationProp>());
    assert!(offset_of!(Allocation, location) == offset_of!(sys::CUmemAllocationProp, location));
    assert!(
        offset_of!(Allocation, compression) == offset_of!(sys::CUmemAllocationProp, allocFlags)
    );
};

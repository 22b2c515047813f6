//! Memory: plain, stream-ordered, page-locked, virtual.

use std::ffi::{c_int, c_uint, c_ulonglong};

use super::{Out, array};
use crate::call::call;
use crate::code::{Code, Outcome};
use crate::memory::GRANULARITY;
use crate::state::Driver;
use crate::stream::Op;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Location {
    kind: c_uint,
    device: c_int,
}

/// `CUmemAllocationProp`, as far as it matters.
#[repr(C)]
pub(super) struct Allocation {
    kind: c_uint,
    handle_types: c_uint,
    pub(super) location: Location,
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct Access {
    location: Location,
    flags: c_uint,
}

impl Location {
    /// The device that it names, where it names one.
    pub(super) fn device(self, driver: &Driver) -> Outcome<usize> {
        const DEVICE: c_uint = 1;
        if self.kind == DEVICE { driver.device(self.device) } else { Err(Code::INVALID_VALUE) }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> u32 {
    call("cuMemGetInfo_v2").run(|driver| {
        let device = driver.context(driver.current()?)?.device;
        free.put(driver.memory.free_bytes(device))?;
        total.put(driver.memory.total())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: Out<usize>, bytes: usize) -> u32 {
    call("cuMemAlloc_v2").run(|driver| {
        let current = driver.current()?;
        driver.potentially_unsafe()?;
        let device = driver.context(current)?.device;
        address.put(driver.memory.allocate(device, current, bytes)?)
    })
}

/// Waits for everything that runs, as measured on the real driver.
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: usize) -> u32 {
    let name = "cuMemFree_v2";
    if address == 0 {
        return call(name).run(|_| Ok(()));
    }
    call(name).block(|driver| {
        let current = driver.current()?;
        driver.potentially_unsafe()?;
        if !driver.memory.is_plain(address) {
            return Err(Code::INVALID_VALUE);
        }
        let legacy = driver.context(current)?.legacy;
        for mark in driver.streams.tails(current) {
            driver.enqueue(legacy, Op::Wait(mark));
        }
        driver.enqueue(legacy, Op::Free { address });
        Ok((current, vec![driver.streams.tail(legacy)]))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: Out<usize>, bytes: usize, stream: usize) -> u32 {
    call("cuMemAllocAsync").on(stream).run(|driver| {
        let id = driver.stream(stream)?;
        if driver.capturing(id)?.is_some() || !driver.has_pools {
            return Err(Code::NOT_SUPPORTED);
        }
        driver.potentially_unsafe()?;
        let context = driver.streams.all[&id].context;
        let device = driver.context(context)?.device;
        address.put(driver.memory.allocate(device, context, bytes)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: usize, stream: usize) -> u32 {
    call("cuMemFreeAsync").on(stream).run(|driver| {
        let id = driver.stream(stream)?;
        if driver.capturing(id)?.is_some() || !driver.has_pools {
            return Err(Code::NOT_SUPPORTED);
        }
        driver.potentially_unsafe()?;
        if !driver.memory.is_plain(address) {
            return Err(Code::INVALID_VALUE);
        }
        driver.submit(id, Op::Free { address })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(address: Out<usize>, bytes: usize, _flags: c_uint) -> u32 {
    call("cuMemHostAlloc").run(|driver| {
        driver.current()?;
        address.put(driver.memory.allocate_host(bytes)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: usize) -> u32 {
    call("cuMemFreeHost").run(|driver| driver.memory.free_host(address))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAllocationGranularity(
    bytes: Out<usize>,
    _allocation: *const Allocation,
    _option: c_uint,
) -> u32 {
    call("cuMemGetAllocationGranularity").run(|_| bytes.put(GRANULARITY))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressReserve(
    address: Out<usize>,
    bytes: usize,
    align: usize,
    _wish: usize,
    _flags: c_ulonglong,
) -> u32 {
    call("cuMemAddressReserve").run(|driver| {
        virtual_memory(driver)?;
        address.put(driver.memory.reserve(bytes, align)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(address: usize, bytes: usize) -> u32 {
    call("cuMemAddressFree").run(|driver| driver.memory.unreserve(address, bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemCreate(
    handle: Out<u64>,
    bytes: usize,
    allocation: *const Allocation,
    _flags: c_ulonglong,
) -> u32 {
    call("cuMemCreate").run(|driver| {
        virtual_memory(driver)?;
        // SAFETY: sound because the caller gives a pointer to one such structure, as the header
        // demands, and the fields read are at its start.
        let allocation = unsafe { array(allocation, 1) }?;
        let device = allocation[0].location.device(driver)?;
        handle.put(driver.memory.create_granule(device, bytes)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(handle: u64) -> u32 {
    call("cuMemRelease").run(|driver| driver.memory.release_granule(handle))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemMap(
    address: usize,
    bytes: usize,
    offset: usize,
    handle: u64,
    _flags: c_ulonglong,
) -> u32 {
    call("cuMemMap").run(|driver| match offset {
        0 => driver.memory.map(address, bytes, handle),
        _ => Err(Code::INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemUnmap(address: usize, bytes: usize) -> u32 {
    call("cuMemUnmap").run(|driver| driver.memory.unmap(address, bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemSetAccess(
    address: usize,
    bytes: usize,
    accesses: *const Access,
    count: usize,
) -> u32 {
    call("cuMemSetAccess").run(|driver| {
        const READ_WRITE: c_uint = 3;
        // SAFETY: sound because the caller gives `count` such structures, as the header demands.
        let accesses = unsafe { array(accesses, count) }?;
        let mut devices = Vec::new();
        for access in accesses {
            if access.flags != READ_WRITE {
                return Err(Code::INVALID_VALUE);
            }
            devices.push(access.location.device(driver)?);
        }
        driver.memory.set_access(address, bytes, &devices)
    })
}

fn virtual_memory(driver: &Driver) -> Outcome {
    if driver.has_virtual_memory { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

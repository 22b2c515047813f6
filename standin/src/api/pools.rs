//! The driver's memory pools.

use std::ffi::{c_int, c_uint};

use super::regions::Allocation;
use super::{Out, array};
use crate::call::call;
use crate::code::{Code, Outcome};
use crate::pools::Pools;
use crate::state::Driver;

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`, a number of 64 bits. The other attributes are not here.
const RELEASE_THRESHOLD: c_uint = 4;

fn device_with_pools(driver: &Driver, device: c_int) -> Outcome<usize> {
    let device = driver.device(device)?;
    if driver.has_pools { Ok(device) } else { Err(Code::NOT_SUPPORTED) }
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetDefaultMemPool(pool: Out<usize>, device: c_int) -> u32 {
    call("cuDeviceGetDefaultMemPool")
        .run(|driver| pool.put(Pools::default_of(device_with_pools(driver, device)?)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetMemPool(pool: Out<usize>, device: c_int) -> u32 {
    call("cuDeviceGetMemPool").run(|driver| {
        let device = device_with_pools(driver, device)?;
        pool.put(driver.pools.current_of(device))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceSetMemPool(device: c_int, pool: usize) -> u32 {
    call("cuDeviceSetMemPool").run(|driver| {
        let device = device_with_pools(driver, device)?;
        driver.pools.make_current(device, pool)
    })
}

/// `CUmemPoolProps` begins as the properties of an allocation do.
#[unsafe(no_mangle)]
extern "C" fn cuMemPoolCreate(pool: Out<usize>, properties: *const Allocation) -> u32 {
    call("cuMemPoolCreate").run(|driver| {
        // SAFETY: sound because the caller gives a pointer to one such structure, as the header
        // demands, and the fields read are at its start.
        let properties = unsafe { array(properties, 1) }?;
        let device = properties[0].location.device(driver)?;
        if !driver.has_pools {
            return Err(Code::NOT_SUPPORTED);
        }
        pool.put(driver.pools.create(device))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolDestroy(pool: usize) -> u32 {
    call("cuMemPoolDestroy").run(|driver| driver.pools.destroy(pool))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolGetAttribute(pool: usize, attribute: c_uint, value: Out<u64>) -> u32 {
    call("cuMemPoolGetAttribute").run(|driver| match attribute {
        RELEASE_THRESHOLD => value.put(*driver.pools.threshold(pool)?),
        _ => Err(Code::NOT_SUPPORTED),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAttribute(pool: usize, attribute: c_uint, value: *const u64) -> u32 {
    call("cuMemPoolSetAttribute").run(|driver| match attribute {
        RELEASE_THRESHOLD => {
            // SAFETY: sound because the caller gives a pointer to the attribute's value, which the
            // header says is a number of 64 bits.
            let value = unsafe { array(value, 1) }?;
            *driver.pools.threshold(pool)? = value[0];
            Ok(())
        }
        _ => Err(Code::NOT_SUPPORTED),
    })
}

//! Contexts, the current one of each thread, and peers.

use std::ffi::{c_int, c_uint, c_void};

use super::Out;
use crate::call::call;
use crate::code::{Code, Outcome};
use crate::state::Driver;
use crate::thread;

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<usize>, device: c_int) -> u32 {
    call("cuDevicePrimaryCtxRetain").run(|driver| {
        let device = driver.device(device)?;
        context.put(driver.retain_primary(device))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> u32 {
    call("cuDevicePrimaryCtxRelease_v2").run(|driver| {
        let device = driver.device(device)?;
        driver.release_primary(device)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: Out<c_uint>,
    active: Out<c_int>,
) -> u32 {
    call("cuDevicePrimaryCtxGetState").run(|driver| {
        let device = driver.device(device)?;
        flags.put(0)?;
        active.put(driver.has_primary(device) as c_int)
    })
}

/// Makes a context and makes it current.
fn create(driver: &mut Driver, context: Out<usize>, device: c_int) -> Outcome {
    let device = driver.device(device)?;
    let handle = driver.create_context(device);
    thread::push_context(handle)?;
    context.put(handle)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v3(
    context: Out<usize>,
    _affinity: *const c_void,
    _count: c_int,
    _flags: c_uint,
    device: c_int,
) -> u32 {
    call("cuCtxCreate_v3").run(|driver| create(driver, context, device))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v4(
    context: Out<usize>,
    _params: *const c_void,
    _flags: c_uint,
    device: c_int,
) -> u32 {
    call("cuCtxCreate_v4").run(|driver| create(driver, context, device))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: usize) -> u32 {
    call("cuCtxDestroy_v2").run(|driver| {
        driver.context(context)?;
        driver.destroy_context(context);
        if thread::context() == context {
            thread::pop_context()?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<usize>) -> u32 {
    call("cuCtxGetCurrent").run(|_| context.put(thread::context()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: usize) -> u32 {
    call("cuCtxSetCurrent").run(|driver| {
        if context != 0 {
            driver.context(context)?;
        }
        thread::set_context(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: usize) -> u32 {
    call("cuCtxPushCurrent_v2").run(|driver| {
        driver.context(context)?;
        thread::push_context(context)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: Out<usize>) -> u32 {
    call("cuCtxPopCurrent_v2").run(|_| {
        let popped = thread::pop_context()?;
        context.put(popped)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: Out<c_int>) -> u32 {
    call("cuCtxGetDevice").run(|driver| {
        let current = driver.current()?;
        device.put(driver.context(current)?.device as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> u32 {
    call("cuCtxSynchronize").block(|driver| {
        let current = driver.current()?;
        driver.ask_context(current)?;
        Ok((current, driver.streams.tails(current)))
    })
}

/// Scheduling flags make no difference here.
#[unsafe(no_mangle)]
extern "C" fn cuCtxSetFlags(_flags: c_uint) -> u32 {
    call("cuCtxSetFlags").run(|driver| driver.current().map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) -> u32 {
    call("cuCtxGetStreamPriorityRange").run(|driver| {
        driver.current()?;
        least.put(0)?;
        greatest.put(-5)
    })
}

/// The current context may use the plain memory of `peer` from now on.
#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(peer: usize, _flags: c_uint) -> u32 {
    call("cuCtxEnablePeerAccess").run(|driver| {
        let current = driver.current()?;
        let (own, other) = (driver.context(current)?.device, driver.context(peer)?.device);
        if own == other {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        let context = driver.contexts.get_mut(&current).ok_or(Code::INVALID_CONTEXT)?;
        if context.peers.insert(peer) { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
    })
}

//! Copies and fills.

use std::ffi::{c_uchar, c_void};

use super::array;
use crate::call::{Call, call};
use crate::code::{Code, Outcome};
use crate::state::Driver;
use crate::stream::Op;

/// The legacy stream: where copies without a stream go.
const LEGACY: usize = 0;

/// Takes a copy of the source at once, as the real driver does with pageable memory, so that the
/// program may change it as soon as the call has returned.
fn write(
    driver: &mut Driver,
    stream: usize,
    address: usize,
    from: *const c_void,
    bytes: usize,
) -> Outcome {
    let id = driver.stream(stream)?;
    // SAFETY: sound because the caller gives `bytes` bytes to read, as the header demands.
    let data = unsafe { array(from.cast::<u8>(), bytes) }?.into();
    driver.submit(id, Op::Write { address, data })
}

/// Reads into page-locked memory in the stream's own time; into any other it blocks.
fn read(call: Call, stream: usize, to: *mut c_void, from: usize, bytes: usize, sync: bool) -> u32 {
    call.block(|driver| {
        let id = driver.stream(stream)?;
        let host = to.expose_provenance();
        if to.is_null() && bytes != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let captures = driver.capturing(id)?.is_some();
        driver.submit(id, Op::Read { to: host, from, bytes })?;
        let context = driver.streams.all[&id].context;
        if captures || (!sync && driver.memory.is_page_locked(host, bytes)) {
            return Ok((context, Vec::new()));
        }
        Ok((context, vec![driver.streams.tail(id)]))
    })
}

fn put(driver: &mut Driver, stream: usize, op: Op) -> Outcome {
    let id = driver.stream(stream)?;
    driver.submit(id, op)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(
    to: usize,
    from: *const c_void,
    bytes: usize,
    stream: usize,
) -> u32 {
    let call = call("cuMemcpyHtoDAsync_v2").on(stream);
    call.run(|driver| write(driver, stream, to, from, bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: usize, from: *const c_void, bytes: usize) -> u32 {
    call("cuMemcpyHtoD_v2").block(|driver| {
        write(driver, LEGACY, to, from, bytes)?;
        wait_for_legacy(driver)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: usize,
    bytes: usize,
    stream: usize,
) -> u32 {
    read(call("cuMemcpyDtoHAsync_v2").on(stream), stream, to, from, bytes, false)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: usize, bytes: usize) -> u32 {
    read(call("cuMemcpyDtoH_v2"), LEGACY, to, from, bytes, true)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) -> u32 {
    let call = call("cuMemcpyDtoDAsync_v2").on(stream);
    call.run(|driver| put(driver, stream, Op::Copy { to, from, bytes }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: usize, from: usize, bytes: usize) -> u32 {
    call("cuMemcpyDtoD_v2").run(|driver| put(driver, LEGACY, Op::Copy { to, from, bytes }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: usize,
    to_context: usize,
    from: usize,
    from_context: usize,
    bytes: usize,
    stream: usize,
) -> u32 {
    let call = call("cuMemcpyPeerAsync").on(stream);
    call.run(|driver| {
        let (own, other) = (driver.context(to_context)?, driver.context(from_context)?);
        let (to, from) = ((own.device, to), (other.device, from));
        put(driver, stream, Op::PeerCopy { to, from, bytes })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(address: usize, value: c_uchar, bytes: usize, stream: usize) -> u32 {
    let call = call("cuMemsetD8Async").on(stream);
    call.run(|driver| put(driver, stream, Op::Fill { address, value, bytes }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(address: usize, value: c_uchar, bytes: usize) -> u32 {
    call("cuMemsetD8_v2").run(|driver| put(driver, LEGACY, Op::Fill { address, value, bytes }))
}

fn wait_for_legacy(driver: &mut Driver) -> Outcome<(usize, Vec<crate::stream::Mark>)> {
    let id = driver.stream(LEGACY)?;
    Ok((driver.streams.all[&id].context, vec![driver.streams.tail(id)]))
}

//! Streams, captures, host functions.

use std::ffi::{c_int, c_uint, c_void};

use super::Out;
use crate::call::call;
use crate::code::{Code, Outcome};
use crate::state::Driver;
use crate::stream::{HostFunction, Op};
use crate::thread;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

fn create(driver: &mut Driver, stream: Out<usize>, flags: c_uint) -> Outcome {
    let current = driver.current()?;
    stream.put(driver.streams.create(current, flags & NON_BLOCKING == 0))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: Out<usize>, flags: c_uint) -> u32 {
    call("cuStreamCreate").run(|driver| create(driver, stream, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(
    stream: Out<usize>,
    flags: c_uint,
    _priority: c_int,
) -> u32 {
    call("cuStreamCreateWithPriority").run(|driver| create(driver, stream, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: usize) -> u32 {
    call("cuStreamDestroy_v2").on(stream).run(|driver| {
        if stream <= 2 {
            return Err(Code::INVALID_HANDLE);
        }
        let id = driver.stream(stream)?;
        driver.leave_capture(id);
        driver.streams.destroy(id);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: usize) -> u32 {
    call("cuStreamQuery").on(stream).run(|driver| {
        let id = driver.stream(stream)?;
        driver.ask_stream(id)?;
        driver.potentially_unsafe()?;
        let tail = driver.streams.tail(id);
        if driver.streams.has_passed(tail) { Ok(()) } else { Err(Code::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: usize) -> u32 {
    call("cuStreamSynchronize").on(stream).block(|driver| {
        let id = driver.stream(stream)?;
        driver.ask_stream(id)?;
        driver.potentially_unsafe()?;
        Ok((driver.streams.all[&id].context, vec![driver.streams.tail(id)]))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) -> u32 {
    call("cuStreamWaitEvent").on(stream).with(event).run(|driver| {
        let id = driver.stream(stream)?;
        driver.wait_for_event(id, event)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetFlags(stream: usize, flags: Out<c_uint>) -> u32 {
    call("cuStreamGetFlags").on(stream).run(|driver| {
        let id = driver.stream(stream)?;
        flags.put(if driver.streams.all[&id].blocking { 0 } else { NON_BLOCKING })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetId(stream: usize, number: Out<u64>) -> u32 {
    call("cuStreamGetId").on(stream).run(|driver| {
        let id = driver.stream(stream)?;
        driver.ask_stream(id)?;
        number.put(id)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: usize, context: Out<usize>) -> u32 {
    call("cuStreamGetCtx").on(stream).run(|driver| {
        let id = driver.stream(stream)?;
        context.put(driver.streams.all[&id].context)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: usize, status: Out<u32>) -> u32 {
    call("cuStreamIsCapturing").on(stream).run(|driver| {
        let id = driver.stream(stream)?;
        status.put(driver.capture_status(id)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: usize, mode: u32) -> u32 {
    call("cuStreamBeginCapture_v2").on(stream).run(|driver| {
        let id = driver.stream(stream)?;
        driver.begin_capture(id, mode)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: usize, graph: Out<usize>) -> u32 {
    call("cuStreamEndCapture").on(stream).run(|driver| {
        let id = driver.stream(stream)?;
        let captured = driver.end_capture(id);
        let handle = if captured.is_ok() { driver.object() } else { 0 };
        graph.put(handle)?;
        driver.graphs.insert(handle, captured?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> u32 {
    call("cuThreadExchangeStreamCaptureMode").run(|_| {
        if mode.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: sound because the caller gives a pointer to a mode, as the header demands.
        let wanted = unsafe { mode.read() };
        if wanted > thread::RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: as above.
        unsafe { mode.write(thread::mode()) };
        thread::set_mode(wanted);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(
    stream: usize,
    function: Option<extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> u32 {
    call("cuLaunchHostFunc").on(stream).run(|driver| {
        let id = driver.stream(stream)?;
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let argument = argument.expose_provenance();
        driver.submit(id, Op::Host(HostFunction { function, argument }))
    })
}

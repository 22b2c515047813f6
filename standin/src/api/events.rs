//! Events.

use std::ffi::c_uint;

use super::Out;
use crate::call::call;
use crate::code::{Code, Outcome};
use crate::state::Driver;

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<usize>, _flags: c_uint) -> u32 {
    call("cuEventCreate").run(|driver| {
        let current = driver.current()?;
        event.put(driver.events.create(current))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: usize) -> u32 {
    call("cuEventDestroy_v2").with(event).run(|driver| {
        driver.event(event)?;
        driver.events.destroy(event)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: usize, stream: usize) -> u32 {
    call("cuEventRecord").on(stream).with(event).run(|driver| {
        let id = driver.stream(stream)?;
        driver.record_event(event, id)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> u32 {
    call("cuEventQuery").with(event).run(|driver| match driver.ask_event(event)? {
        Some(mark) if !driver.streams.has_passed(mark) => Err(Code::NOT_READY),
        _ => Ok(()),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: usize) -> u32 {
    call("cuEventSynchronize").with(event).block(|driver| {
        let context = driver.event(event)?.context;
        Ok((context, driver.ask_event(event)?.into_iter().collect()))
    })
}

/// No time passes on the stand-in.
fn elapsed(driver: &mut Driver, milliseconds: Out<f32>, start: usize, end: usize) -> Outcome {
    for event in [start, end] {
        if driver.ask_event(event)?.is_some_and(|mark| !driver.streams.has_passed(mark)) {
            return Err(Code::NOT_READY);
        }
    }
    milliseconds.put(0.0)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: Out<f32>, start: usize, end: usize) -> u32 {
    call("cuEventElapsedTime").with(end).run(|driver| elapsed(driver, milliseconds, start, end))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: usize, end: usize) -> u32 {
    call("cuEventElapsedTime_v2").with(end).run(|driver| elapsed(driver, milliseconds, start, end))
}

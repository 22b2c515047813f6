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
extern "C" fn cuCtxRecordEvent(context: usize, event: usize) -> u32 {
    call("cuCtxRecordEvent").with(event).run(|driver| driver.record_context(event, context))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> u32 {
    call("cuEventQuery").with(event).run(|driver| {
        let marks = driver.ask_event(event)?;
        let passed = marks.into_iter().all(|mark| driver.streams.has_passed(mark));
        if passed { Ok(()) } else { Err(Code::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: usize) -> u32 {
    call("cuEventSynchronize").with(event).block(|driver| {
        let context = driver.event(event)?.context;
        Ok((context, driver.ask_event(event)?))
    })
}

/// No time passes on the stand-in.
fn elapsed(driver: &mut Driver, milliseconds: Out<f32>, start: usize, end: usize) -> Outcome {
    for event in [start, end] {
        let marks = driver.ask_event(event)?;
        if !marks.into_iter().all(|mark| driver.streams.has_passed(mark)) {
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

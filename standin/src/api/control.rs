//! How a test looks into the stand-in and steers it. None of these is logged or counted.

use super::Text;
use crate::call::Failure;
use crate::code::Code;
use crate::state::{lock, settle};

/// How many driver calls were begun since the last reset.
#[unsafe(no_mangle)]
extern "C" fn standin_calls() -> u64 {
    lock().calls.counts.values().sum()
}

/// How many calls of one driver function were begun since the last reset.
#[unsafe(no_mangle)]
extern "C" fn standin_count(name: Text) -> u64 {
    let Ok(name) = name.read() else { return 0 };
    lock().calls.counts.get(name.as_str()).copied().unwrap_or(0)
}

/// Forgets the log and the counts.
#[unsafe(no_mangle)]
extern "C" fn standin_reset() {
    let mut driver = lock();
    driver.calls.log.clear();
    driver.calls.counts.clear();
}

/// Moves the log into a buffer: one line a call, in the order of their returns, of the function's name
/// and six decimal numbers: thread, current context, the thread's capture mode, stream, event, result.
/// Returns the number of bytes that it takes; when that is more than `capacity`, nothing is moved.
#[unsafe(no_mangle)]
extern "C" fn standin_log_take(buffer: *mut u8, capacity: usize) -> usize {
    let mut driver = lock();
    let text = driver.calls.log.join("\n");
    if text.len() > capacity || buffer.is_null() {
        return text.len();
    }
    // SAFETY: sound because the caller gives room for `capacity` bytes, and the text is no longer.
    unsafe { buffer.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    driver.calls.log.clear();
    text.len()
}

/// After `skip` further calls of one driver function, its next `times` calls do nothing but return
/// `code`.
#[unsafe(no_mangle)]
extern "C" fn standin_fail(name: Text, skip: u64, times: u64, code: u32) {
    let Ok(name) = name.read() else { return };
    if times > 0 {
        lock().calls.failures.push(Failure { name, skip, times, code: Code(code) });
    }
}

/// Makes an error stick to a context: every later call in it returns that. 0 takes it away again.
#[unsafe(no_mangle)]
extern "C" fn standin_stick(context: usize, code: u32) {
    if let Some(context) = lock().contexts.get_mut(&context) {
        context.sticky = (code != 0).then_some(Code(code));
    }
}

/// Keeps the stream with this handle from running, as a long kernel would.
#[unsafe(no_mangle)]
extern "C" fn standin_hold(stream: usize) {
    lock().streams.hold(stream, true);
}

/// Lets streams with this handle run again, also one that was destroyed meanwhile.
#[unsafe(no_mangle)]
extern "C" fn standin_release(stream: usize) {
    let mut driver = lock();
    driver.streams.hold(stream, false);
    settle(driver);
}

/// Lets all streams run again.
#[unsafe(no_mangle)]
extern "C" fn standin_release_all() {
    let mut driver = lock();
    driver.streams.release_all();
    settle(driver);
}

/// Makes every thread that calls this driver function stand still before it does anything.
#[unsafe(no_mangle)]
extern "C" fn standin_pause(name: Text) {
    let Ok(name) = name.read() else { return };
    lock().calls.paused.insert(name);
}

/// Ends a pause.
#[unsafe(no_mangle)]
extern "C" fn standin_resume(name: Text) {
    let Ok(name) = name.read() else { return };
    let mut driver = lock();
    driver.calls.paused.remove(&name);
    settle(driver);
}

/// How many threads stand still before this driver function.
#[unsafe(no_mangle)]
extern "C" fn standin_standing(name: Text) -> u64 {
    let Ok(name) = name.read() else { return 0 };
    lock().calls.standing.get(name.as_str()).copied().unwrap_or(0)
}

/// The calling thread's current context, without a call to the driver.
#[unsafe(no_mangle)]
extern "C" fn standin_current_context() -> usize {
    crate::thread::context()
}

/// The calling thread's capture mode (0 global, 1 thread-local, 2 relaxed), without a call to the
/// driver.
#[unsafe(no_mangle)]
extern "C" fn standin_capture_mode() -> u32 {
    crate::thread::mode()
}

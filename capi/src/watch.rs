//! The functions of the header that say what buffers are for, and show what a pool has.
//!
//! Their conditions on pools are those of [`entry`](crate::entry).

use std::cell::RefCell;
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rust_pool::{EnteredTag, Tag};

use crate::entry::{address, live};
use crate::pool::Pool;
use crate::status::{Failure, Status, call};

/// How many tags a thread can have pushed: a program that never pops them is told so.
const DEPTH_MAX: usize = 1024;

thread_local! {
    static PUSHED: RefCell<Vec<EnteredTag>> = const { RefCell::new(Vec::new()) };
}

fn thread_ends<T>(_: T) -> Failure {
    Failure::new(Status::WrongThread, "the thread is ending, and has no tags any more")
}

/// The tag of a text.
///
/// # Safety
///
/// Null, or a C string.
unsafe fn tag(text: *const c_char) -> Result<Tag, Failure> {
    if text.is_null() {
        return Err(Failure::invalid("the text is null"));
    }
    // SAFETY: sound because it is not null, and so a C string.
    Ok(Tag::new(&unsafe { CStr::from_ptr(text) }.to_string_lossy()))
}

/// From here on what this thread allocates is for this.
///
/// # Safety
///
/// `text` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_tag_push(text: *const c_char) -> Status {
    call(|| {
        // SAFETY: the caller's promise is the condition of `tag`.
        let tag = unsafe { tag(text) }?;
        let pushed = PUSHED.try_with(|pushed| {
            let mut pushed = pushed.borrow_mut();
            if pushed.len() == DEPTH_MAX {
                let text = format!("{DEPTH_MAX} tags are pushed, and none of them popped");
                return Err(Failure::invalid(text));
            }
            pushed.push(tag.enter());
            Ok(())
        });
        pushed.map_err(thread_ends)?
    })
}

/// Takes back what this thread has pushed last.
#[unsafe(no_mangle)]
pub extern "C" fn streampool_tag_pop() -> Status {
    call(|| {
        let popped = PUSHED.try_with(|pushed| pushed.borrow_mut().pop());
        let popped = popped.map_err(thread_ends)?;
        popped.map(drop).ok_or_else(|| Failure::invalid("no tag is pushed on this thread"))
    })
}

/// Says what a buffer is for.
///
/// # Safety
///
/// The condition of the module on pools; `text` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_set_tag(
    pool: *const Pool,
    buffer: *const c_void,
    text: *const c_char,
) -> Status {
    // SAFETY: the caller's promises are the conditions of both.
    call(|| unsafe { live(pool)?.set_tag(address(buffer), tag(text)?) })
}

/// Writes a file.
///
/// # Safety
///
/// `path` is null or a C string.
unsafe fn write(path: *const c_char, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    if path.is_null() {
        return Err(Failure::invalid("the path is null"));
    }
    // SAFETY: sound because it is not null, and so a C string.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    fs::write(path, bytes).map_err(|error| {
        Failure::new(Status::File, format!("{} cannot be written: {error}", path.display()))
    })
}

/// Writes what a pool's memory looks like, for PyTorch's memory viewer.
///
/// # Safety
///
/// The condition of the module on pools; `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_write_snapshot(
    pool: *const Pool,
    path: *const c_char,
) -> Status {
    // SAFETY: the caller's promises are the conditions of both.
    call(|| unsafe { write(path, live(pool)?.snapshot()) })
}

/// Writes a pool's latest events, for Perfetto.
///
/// # Safety
///
/// The condition of the module on pools; `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_write_trace(pool: *const Pool, path: *const c_char) -> Status {
    // SAFETY: the caller's promises are the conditions of both.
    call(|| unsafe { write(path, live(pool)?.trace()) })
}

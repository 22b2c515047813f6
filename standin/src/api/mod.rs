//! The exported functions. Each looks its handles up, applies one rule and writes its results; the
//! parameters are those of `cuda.h`, with handles and device addresses as plain numbers.

// The names are NVIDIA's.
#![allow(non_snake_case)]
// A reference would claim what C cannot promise; each function checks its pointers itself.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

mod contexts;
mod control;
mod devices;
mod events;
mod modules;
mod pools;
mod regions;
mod streams;
mod transfers;
mod unsupported;

use std::ffi::{CStr, c_char};

use crate::code::{Code, Outcome};

/// Where a function puts a result.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result. A null pointer is the caller's error.
    fn put(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: sound because only a C caller makes an `Out`, from a pointer to a place for a `T`,
        // as the header demands, and it is not null.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// A C string from the caller.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    fn read(&self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: sound because only a C caller makes a `Text`, from a pointer to a C string, as the
        // header demands, and it is not null.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// Makes a slice of an array from the caller.
///
/// # Safety
///
/// As for `slice::from_raw_parts`, but null is allowed when `count` is zero.
unsafe fn array<'a, T>(first: *const T, count: usize) -> Outcome<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Code::INVALID_VALUE),
        // SAFETY: as the caller promises.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
    }
}

//! What a call returns, and the text behind it.

use std::any::Any;
use std::cell::RefCell;
use std::error::Error as StdError;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rust_pool::Error;
use rust_pool::backend::ErrorKind;
use rust_pool::cuda::CudaError;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal $c_name:literal,)*) => {
        /// What a call returns. The numbers are those of the header, and stay.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Status {
            $($(#[$doc])* $name = $code,)*
        }

        /// All of them, with their names in C.
        const NAMES: &[(Status, &CStr)] = &[$((Status::$name, $c_name),)*];
    };
}

statuses! {
    /// Done.
    Ok = 0 c"STREAMPOOL_OK",
    /// Neither the pool nor, within its limit, the device has the memory.
    OutOfMemory = 1 c"STREAMPOOL_OUT_OF_MEMORY",
    /// The request is larger than any device's memory.
    TooLarge = 2 c"STREAMPOOL_TOO_LARGE",
    /// An argument is null, or out of its range.
    InvalidArgument = 3 c"STREAMPOOL_INVALID_ARGUMENT",
    /// No buffer of this pool begins at this address: it never did, or was freed.
    UnknownAddress = 4 c"STREAMPOOL_UNKNOWN_ADDRESS",
    /// The stream belongs to another context, or is the per-thread default stream.
    WrongStream = 5 c"STREAMPOOL_WRONG_STREAM",
    /// The scope belongs to another thread.
    WrongThread = 6 c"STREAMPOOL_WRONG_THREAD",
    /// There is no such scope on this thread: it was ended.
    UnknownScope = 7 c"STREAMPOOL_UNKNOWN_SCOPE",
    /// A stream is capturing into a graph.
    Capturing = 8 c"STREAMPOOL_CAPTURING",
    /// Buffers, or calls on other threads, still need it.
    InUse = 9 c"STREAMPOOL_IN_USE",
    /// The pool is closed.
    Closed = 10 c"STREAMPOOL_CLOSED",
    /// The machine has no CUDA driver.
    NoDriver = 11 c"STREAMPOOL_NO_DRIVER",
    /// The device has met an error that every later call returns too.
    DeviceLost = 12 c"STREAMPOOL_DEVICE_LOST",
    /// The process is exiting, and the driver must not be called any more.
    Exiting = 13 c"STREAMPOOL_EXITING",
    /// Any other error of the driver.
    Driver = 14 c"STREAMPOOL_DRIVER",
    /// A fault in this library: it has panicked.
    Panic = 15 c"STREAMPOOL_PANIC",
    /// A file cannot be written.
    File = 16 c"STREAMPOOL_FILE",
}

/// The name of a status in C.
pub(crate) fn name(code: i32) -> &'static CStr {
    let named = NAMES.iter().find(|(status, _)| *status as i32 == code);
    named.map_or(c"an unknown status", |(_, name)| name)
}

/// Why a call fails, before it is told.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Failure {
        Failure { status, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Failure {
        Failure::new(Status::InvalidArgument, text)
    }

    pub(crate) fn unknown_address(address: u64) -> Failure {
        let text = format!(
            "no buffer of this pool begins at {address:#x}: it was freed already, or came from elsewhere"
        );
        Failure::new(Status::UnknownAddress, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(sort(&error), with_causes(&error))
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Failure {
        let status = match error.kind() {
            _ if error.is_no_driver() => Status::NoDriver,
            ErrorKind::OutOfMemory => Status::OutOfMemory,
            ErrorKind::Capture => Status::Capturing,
            ErrorKind::DeviceLost => Status::DeviceLost,
            ErrorKind::Exiting => Status::Exiting,
            _ => Status::Driver,
        };
        Failure::new(status, error.to_string())
    }
}

fn sort(error: &Error) -> Status {
    match () {
        () if error.is_out_of_memory() => Status::OutOfMemory,
        () if error.is_too_large() => Status::TooLarge,
        () if error.is_invalid_argument() => Status::InvalidArgument,
        () if error.is_capture() => Status::Capturing,
        () if error.is_device_lost() => Status::DeviceLost,
        () if error.is_closed() => Status::Closed,
        () if error.is_wrong_stream() => Status::WrongStream,
        () if error.is_in_use() => Status::InUse,
        () if error.is_exiting() => Status::Exiting,
        () => Status::Driver,
    }
}

fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The text of the last failure on this thread. It stays where it is until the next one.
pub(crate) fn last_error() -> *const c_char {
    // In a thread-local destructor it may be gone.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Keeps a failure's text for [`last_error`], and gives its status.
#[cold]
pub(crate) fn tell(failure: Failure) -> Status {
    let Failure { status, text } = failure;
    let text: Vec<u8> = text.into_bytes().into_iter().filter(|&byte| byte != 0).collect();
    let text = CString::new(text).unwrap_or_default();
    let _ = LAST.try_with(|last| last.replace(text));
    status
}

/// Runs the body of a call from C: nothing unwinds out of it.
#[inline]
pub(crate) fn guard<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // What a panic could leave behind is the pool's, which is made for panics, and this library's
    // tables, whose locks are not held over anything that panics.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(panicked(payload)))
}

#[cold]
fn panicked(payload: Box<dyn Any + Send>) -> Failure {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("of an unknown kind");
    let failure = Failure::new(Status::Panic, format!("streampool has panicked: {text}"));
    // A payload could panic when it is dropped.
    std::mem::forget(payload);
    failure
}

/// Runs the body of a call from C that returns a status.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    match guard(body) {
        Ok(()) => Status::Ok,
        Err(failure) => tell(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status_with_its_text() {
        let text = || {
            // SAFETY: sound because the text was made on this thread, and no call fails meanwhile.
            unsafe { CStr::from_ptr(last_error()) }.to_str().unwrap()
        };
        assert_eq!(call(|| panic!("three {}", 3)), Status::Panic);
        assert_eq!(text(), "streampool has panicked: three 3");
        assert_eq!(call(|| std::panic::panic_any(7)), Status::Panic);
        assert_eq!(text(), "streampool has panicked: of an unknown kind");
        assert_eq!(call(|| Err(Failure::invalid("with a \0 in it"))), Status::InvalidArgument);
        assert_eq!(text(), "with a  in it");
        assert_eq!(call(|| Ok(())), Status::Ok);
        assert_eq!(text(), "with a  in it");
    }
}

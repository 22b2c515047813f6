//! The driver's result codes.

use std::ffi::CStr;

/// A `CUresult`. Success has no value of its own: it is the `Ok` of an [`Outcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

/// What a driver function comes to.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $number:literal $text:literal)*) => {
        impl Code {
            // Some are here only for their texts: tests inject them.
            $(#[allow(dead_code)] pub(crate) const $name: Code = Code($number);)*

            /// The constant's name and its meaning in words.
            pub(crate) fn texts(self) -> Option<(&'static CStr, &'static CStr)> {
                match self.0 {
                    0 => Some((c"CUDA_SUCCESS", c"no error")),
                    $($number => {
                        let name = concat!("CUDA_ERROR_", stringify!($name), "\0");
                        let text = concat!($text, "\0");
                        CStr::from_bytes_with_nul(name.as_bytes()).ok()
                            .zip(CStr::from_bytes_with_nul(text.as_bytes()).ok())
                    })*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    INVALID_VALUE = 1 "invalid argument"
    OUT_OF_MEMORY = 2 "out of memory"
    NOT_INITIALIZED = 3 "initialization error"
    DEINITIALIZED = 4 "driver shutting down"
    NO_DEVICE = 100 "no CUDA-capable device is detected"
    INVALID_DEVICE = 101 "invalid device ordinal"
    INVALID_CONTEXT = 201 "invalid device context"
    ECC_UNCORRECTABLE = 214 "uncorrectable ECC error encountered"
    PEER_ACCESS_UNSUPPORTED = 217 "peer access is not supported between these two devices"
    INVALID_HANDLE = 400 "invalid resource handle"
    ILLEGAL_STATE = 401 "the operation cannot be performed in the present state"
    NOT_FOUND = 500 "named symbol not found"
    NOT_READY = 600 "device not ready"
    ILLEGAL_ADDRESS = 700 "an illegal memory access was encountered"
    LAUNCH_TIMEOUT = 702 "the launch timed out and was terminated"
    PEER_ACCESS_ALREADY_ENABLED = 704 "peer access is already enabled"
    CONTEXT_IS_DESTROYED = 709 "context is destroyed"
    ASSERT = 710 "device-side assert triggered"
    LAUNCH_FAILED = 719 "unspecified launch failure"
    NOT_PERMITTED = 800 "operation not permitted"
    NOT_SUPPORTED = 801 "operation not supported"
    STREAM_CAPTURE_UNSUPPORTED = 900 "operation not permitted when stream is capturing"
    STREAM_CAPTURE_INVALIDATED = 901 "operation failed due to a previous error during capture"
    STREAM_CAPTURE_MERGE = 902 "operation would result in a merge of separate capture sequences"
    STREAM_CAPTURE_UNMATCHED = 903 "capture was not ended in the same stream as it began"
    STREAM_CAPTURE_UNJOINED = 904 "capturing stream has unjoined work"
    STREAM_CAPTURE_ISOLATION = 905 "dependency created on uncaptured work in another stream"
    STREAM_CAPTURE_IMPLICIT = 906 "operation would make the legacy stream depend on a capturing stream"
    CAPTURED_EVENT = 907 "operation not permitted on an event last recorded in a capturing stream"
    STREAM_CAPTURE_WRONG_THREAD = 908 "attempt to terminate a thread-local capture sequence from another thread"
    UNKNOWN = 999 "unknown error"
}

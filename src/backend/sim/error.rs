//! What a failed call returns.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt;

use super::counts::Call;
use crate::backend::ErrorKind;

/// An error of the simulated device: CUDA's name for what went wrong, and the call that returned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimError {
    code: SimErrorCode,
    call: Call,
    injected: bool,
}

impl SimError {
    pub(super) fn new(code: SimErrorCode, call: Call) -> Self {
        SimError { code, call, injected: false }
    }

    pub(super) fn injected(code: SimErrorCode, call: Call) -> Self {
        SimError { code, call, injected: true }
    }

    /// What went wrong, by CUDA's name.
    pub fn code(&self) -> SimErrorCode {
        self.code
    }

    /// The call that returned the error (not always the one that caused it).
    pub fn call(&self) -> Call {
        self.call
    }

    /// Whether a [`FaultPlan`](super::FaultPlan) made it.
    pub fn is_injected(&self) -> bool {
        self.injected
    }

    /// What a pool must do about it.
    pub fn kind(&self) -> ErrorKind {
        self.code.kind()
    }
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let injected = if self.injected { " (injected)" } else { "" };
        write!(f, "{} returned {}{injected}", self.call, self.code.name())
    }
}

impl Error for SimError {}

/// CUDA's error codes, as far as the simulated device has them, and one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SimErrorCode {
    /// `CUDA_ERROR_INVALID_VALUE`
    InvalidValue,
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    OutOfMemory,
    /// `CUDA_ERROR_DEINITIALIZED`: the process is exiting.
    Deinitialized,
    /// `CUDA_ERROR_INVALID_HANDLE`
    InvalidHandle,
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`: sticky, the context is lost.
    IllegalAddress,
    /// `CUDA_ERROR_LAUNCH_FAILED`: sticky, the context is lost.
    LaunchFailed,
    /// `CUDA_ERROR_NOT_PERMITTED`: a call in a host function.
    NotPermitted,
    /// `CUDA_ERROR_NOT_SUPPORTED`
    NotSupported,
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`: not allowed while a stream captures.
    CaptureUnsupported,
    /// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`: an earlier error has broken this capture.
    CaptureInvalidated,
    /// `CUDA_ERROR_STREAM_CAPTURE_MERGE`: two captures would have become one.
    CaptureMerge,
    /// `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED`: the capture was not begun on this stream.
    CaptureUnmatched,
    /// `CUDA_ERROR_STREAM_CAPTURE_UNJOINED`: a stream that was drawn in was not joined again.
    CaptureUnjoined,
    /// `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`: a dependency on work outside the capture.
    CaptureIsolation,
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`: the legacy stream would have waited for the capture.
    CaptureImplicit,
    /// `CUDA_ERROR_CAPTURED_EVENT`: the event's last record is in a capture.
    CapturedEvent,
    /// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`: begun by another thread, not in relaxed mode.
    CaptureWrongThread,
    /// `CUDA_ERROR_UNKNOWN`
    Unknown,
    /// The device can never finish what the host waits for: it stands behind a closed
    /// [`Gate`](super::Gate), and nobody opened it within the real-time limit. A real program hangs.
    Stuck,
}

impl SimErrorCode {
    /// CUDA's name.
    pub fn name(self) -> &'static str {
        use SimErrorCode as Code;
        match self {
            Code::InvalidValue => "CUDA_ERROR_INVALID_VALUE",
            Code::OutOfMemory => "CUDA_ERROR_OUT_OF_MEMORY",
            Code::Deinitialized => "CUDA_ERROR_DEINITIALIZED",
            Code::InvalidHandle => "CUDA_ERROR_INVALID_HANDLE",
            Code::IllegalAddress => "CUDA_ERROR_ILLEGAL_ADDRESS",
            Code::LaunchFailed => "CUDA_ERROR_LAUNCH_FAILED",
            Code::NotPermitted => "CUDA_ERROR_NOT_PERMITTED",
            Code::NotSupported => "CUDA_ERROR_NOT_SUPPORTED",
            Code::CaptureUnsupported => "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            Code::CaptureInvalidated => "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            Code::CaptureMerge => "CUDA_ERROR_STREAM_CAPTURE_MERGE",
            Code::CaptureUnmatched => "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
            Code::CaptureUnjoined => "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
            Code::CaptureIsolation => "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
            Code::CaptureImplicit => "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
            Code::CapturedEvent => "CUDA_ERROR_CAPTURED_EVENT",
            Code::CaptureWrongThread => "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
            Code::Unknown => "CUDA_ERROR_UNKNOWN",
            Code::Stuck => "stuck (behind a gate that nobody opened)",
        }
    }

    /// What a pool must do about it.
    pub fn kind(self) -> ErrorKind {
        use SimErrorCode as Code;
        match self {
            Code::OutOfMemory => ErrorKind::OutOfMemory,
            Code::Deinitialized => ErrorKind::Exiting,
            Code::IllegalAddress | Code::LaunchFailed => ErrorKind::DeviceLost,
            Code::CaptureUnsupported
            | Code::CaptureInvalidated
            | Code::CaptureMerge
            | Code::CaptureUnmatched
            | Code::CaptureUnjoined
            | Code::CaptureIsolation
            | Code::CaptureImplicit
            | Code::CapturedEvent
            | Code::CaptureWrongThread => ErrorKind::Capture,
            Code::InvalidValue
            | Code::InvalidHandle
            | Code::NotPermitted
            | Code::NotSupported
            | Code::Unknown
            | Code::Stuck => ErrorKind::Other,
        }
    }

    /// The code that an injected error of this kind has.
    pub(super) fn of_kind(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::OutOfMemory => SimErrorCode::OutOfMemory,
            ErrorKind::Capture => SimErrorCode::CaptureUnsupported,
            ErrorKind::DeviceLost => SimErrorCode::LaunchFailed,
            ErrorKind::Exiting => SimErrorCode::Deinitialized,
            ErrorKind::Other => SimErrorCode::Unknown,
        }
    }
}

//! What a failed call returns: the driver's number, and what the pool must do about it.

use std::error::Error as StdError;
use std::fmt;

use cudarc::driver::sys;

use super::exit;
use crate::backend::ErrorKind;

/// Why a call of the CUDA backend failed.
///
/// It is plain data: printing it calls no driver function (cudarc's own error asks the driver for its
/// text, which crashes once the process is exiting).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaError {
    call: &'static str,
    cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The driver's `CUresult`, as a number: an older binding does not name what a newer driver
    /// returns, and sorting must not depend on the binding.
    Driver(u32),
    NoDriver,
    Exiting,
}

impl CudaError {
    /// The driver returned `code` from `call`.
    pub(super) fn driver(call: &'static str, code: sys::CUresult) -> CudaError {
        CudaError { call, cause: Cause::Driver(code as u32) }
    }

    /// No driver library can be loaded.
    pub(super) fn no_driver(call: &'static str) -> CudaError {
        CudaError { call, cause: Cause::NoDriver }
    }

    /// The process is exiting, so `call` was not made.
    pub(super) fn exiting(call: &'static str) -> CudaError {
        CudaError { call, cause: Cause::Exiting }
    }

    /// The name of the driver function that failed, or was not called.
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// The driver's `CUresult`, or `None` when the driver was not called.
    pub fn code(&self) -> Option<u32> {
        match self.cause {
            Cause::Driver(code) => Some(code),
            Cause::NoDriver | Cause::Exiting => None,
        }
    }

    /// Whether no CUDA driver could be loaded on this machine.
    pub fn is_no_driver(&self) -> bool {
        self.cause == Cause::NoDriver
    }

    /// What a pool must do about it. A code that this crate does not know is [`ErrorKind::Other`].
    pub fn kind(&self) -> ErrorKind {
        match self.cause {
            Cause::Driver(code) => known(code).map_or(ErrorKind::Other, |(_, _, kind)| *kind),
            Cause::NoDriver => ErrorKind::Other,
            Cause::Exiting => ErrorKind::Exiting,
        }
    }

    pub(super) fn is(&self, code: sys::CUresult) -> bool {
        self.code() == Some(code as u32)
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause {
            Cause::Driver(code) => match known(code) {
                Some((_, name, _)) => write!(f, "{} failed: {name} ({code})", self.call),
                None => write!(f, "{} failed with CUDA error {code}", self.call),
            },
            Cause::NoDriver => write!(f, "{}: no CUDA driver library can be loaded", self.call),
            Cause::Exiting => write!(f, "{} was not called: the process is exiting", self.call),
        }
    }
}

impl StdError for CudaError {}

/// Turns what a driver function returned into a result.
pub(super) fn check(call: &'static str, code: sys::CUresult) -> Result<(), CudaError> {
    match code {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        code => {
            if code == sys::CUresult::CUDA_ERROR_DEINITIALIZED {
                // The driver goes before the exit hook has run when its own exit handler was
                // registered later. It does not come back.
                exit::driver_has_gone();
            }
            Err(CudaError::driver(call, code))
        }
    }
}

fn known(code: u32) -> Option<&'static (u32, &'static str, ErrorKind)> {
    CODES.binary_search_by_key(&code, |(known, _, _)| *known).ok().map(|index| &CODES[index])
}

use ErrorKind::{Capture, DeviceLost, Exiting, Other, OutOfMemory};

/// Every code of CUDA 11.4 to 13.4, in ascending order.
///
/// `DeviceLost` are those of which NVIDIA's documentation says that any further work returns the same
/// error, that the context can no longer be used or that the process must be relaunched, those of a
/// device that is gone, and `NOT_INITIALIZED`: with a context at hand it means a forked child, in
/// which CUDA never works.
static CODES: &[(u32, &str, ErrorKind)] = &[
    (1, "CUDA_ERROR_INVALID_VALUE", Other),
    (2, "CUDA_ERROR_OUT_OF_MEMORY", OutOfMemory),
    (3, "CUDA_ERROR_NOT_INITIALIZED", DeviceLost),
    (4, "CUDA_ERROR_DEINITIALIZED", Exiting),
    (5, "CUDA_ERROR_PROFILER_DISABLED", Other),
    (6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", Other),
    (7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", Other),
    (8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", Other),
    (34, "CUDA_ERROR_STUB_LIBRARY", Other),
    (36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", Other),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE", DeviceLost),
    (47, "CUDA_ERROR_MULTICAST_RESOURCE_FULL", Other),
    (100, "CUDA_ERROR_NO_DEVICE", Other),
    (101, "CUDA_ERROR_INVALID_DEVICE", Other),
    (102, "CUDA_ERROR_DEVICE_NOT_LICENSED", Other),
    (200, "CUDA_ERROR_INVALID_IMAGE", Other),
    (201, "CUDA_ERROR_INVALID_CONTEXT", Other),
    (202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", Other),
    (205, "CUDA_ERROR_MAP_FAILED", Other),
    (206, "CUDA_ERROR_UNMAP_FAILED", Other),
    (207, "CUDA_ERROR_ARRAY_IS_MAPPED", Other),
    (208, "CUDA_ERROR_ALREADY_MAPPED", Other),
    (209, "CUDA_ERROR_NO_BINARY_FOR_GPU", Other),
    (210, "CUDA_ERROR_ALREADY_ACQUIRED", Other),
    (211, "CUDA_ERROR_NOT_MAPPED", Other),
    (212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", Other),
    (213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", Other),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE", DeviceLost),
    (215, "CUDA_ERROR_UNSUPPORTED_LIMIT", Other),
    (216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", Other),
    (217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", Other),
    (218, "CUDA_ERROR_INVALID_PTX", Other),
    (219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", Other),
    (220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", DeviceLost),
    (221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", Other),
    (222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", Other),
    (223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", Other),
    (224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", Other),
    (225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", Other),
    (226, "CUDA_ERROR_CONTAINED", DeviceLost),
    (227, "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION", Other),
    (300, "CUDA_ERROR_INVALID_SOURCE", Other),
    (301, "CUDA_ERROR_FILE_NOT_FOUND", Other),
    (302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", Other),
    (303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", Other),
    (304, "CUDA_ERROR_OPERATING_SYSTEM", Other),
    (400, "CUDA_ERROR_INVALID_HANDLE", Other),
    (401, "CUDA_ERROR_ILLEGAL_STATE", Other),
    (402, "CUDA_ERROR_LOSSY_QUERY", Other),
    (500, "CUDA_ERROR_NOT_FOUND", Other),
    (600, "CUDA_ERROR_NOT_READY", Other),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS", DeviceLost),
    (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", Other),
    (702, "CUDA_ERROR_LAUNCH_TIMEOUT", DeviceLost),
    (703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", Other),
    (704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", Other),
    (705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", Other),
    (708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", Other),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", DeviceLost),
    (710, "CUDA_ERROR_ASSERT", DeviceLost),
    (711, "CUDA_ERROR_TOO_MANY_PEERS", Other),
    (712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", Other),
    (713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", Other),
    (714, "CUDA_ERROR_HARDWARE_STACK_ERROR", DeviceLost),
    (715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", DeviceLost),
    (716, "CUDA_ERROR_MISALIGNED_ADDRESS", DeviceLost),
    (717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", DeviceLost),
    (718, "CUDA_ERROR_INVALID_PC", DeviceLost),
    (719, "CUDA_ERROR_LAUNCH_FAILED", DeviceLost),
    (720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", Other),
    (721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", DeviceLost),
    (800, "CUDA_ERROR_NOT_PERMITTED", Other),
    (801, "CUDA_ERROR_NOT_SUPPORTED", Other),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY", Other),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", Other),
    (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", Other),
    (805, "CUDA_ERROR_MPS_CONNECTION_FAILED", Other),
    (806, "CUDA_ERROR_MPS_RPC_FAILURE", Other),
    (807, "CUDA_ERROR_MPS_SERVER_NOT_READY", Other),
    (808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", Other),
    (809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", Other),
    (810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", DeviceLost),
    (811, "CUDA_ERROR_CDP_NOT_SUPPORTED", Other),
    (812, "CUDA_ERROR_CDP_VERSION_MISMATCH", Other),
    (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", Capture),
    (901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", Capture),
    (902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", Capture),
    (903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", Capture),
    (904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", Capture),
    (905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", Capture),
    (906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", Capture),
    (907, "CUDA_ERROR_CAPTURED_EVENT", Capture),
    (908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", Capture),
    (909, "CUDA_ERROR_TIMEOUT", Other),
    (910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", Other),
    (911, "CUDA_ERROR_EXTERNAL_DEVICE", DeviceLost),
    (912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", Other),
    (913, "CUDA_ERROR_FUNCTION_NOT_LOADED", Other),
    (914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", Other),
    (915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", Other),
    (916, "CUDA_ERROR_KEY_ROTATION", Other),
    (917, "CUDA_ERROR_STREAM_DETACHED", Other),
    (918, "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE", Other),
    (919, "CUDA_ERROR_FABRIC_NOT_READY", Other),
    (999, "CUDA_ERROR_UNKNOWN", Other),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_ascend_so_that_they_can_be_searched() {
        assert!(CODES.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn codes_are_sorted_by_what_the_pool_must_do() {
        let kind = |code| CudaError { call: "cuTest", cause: Cause::Driver(code) }.kind();
        assert_eq!(kind(2), OutOfMemory);
        assert_eq!(kind(4), Exiting);
        assert!((900..=908).all(|code| kind(code) == Capture));
        assert!(
            [214, 700, 702, 709, 710, 719, 810].into_iter().all(|code| kind(code) == DeviceLost)
        );
        assert!(
            [1, 201, 400, 600, 801, 909, 999, 12345].into_iter().all(|code| kind(code) == Other)
        );
    }

    #[test]
    fn errors_read_well() {
        let text = |cause| CudaError { call: "cuEventQuery", cause }.to_string();
        assert_eq!(
            text(Cause::Driver(700)),
            "cuEventQuery failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)"
        );
        assert_eq!(text(Cause::Driver(12345)), "cuEventQuery failed with CUDA error 12345");
        assert_eq!(text(Cause::Exiting), "cuEventQuery was not called: the process is exiting");
        assert_eq!(text(Cause::NoDriver), "cuEventQuery: no CUDA driver library can be loaded");
    }
}

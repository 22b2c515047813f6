//! Typed slices on the stand-in for the driver (`standin/`): what they hold, and which stream waits for
//! which.

#![cfg(target_os = "linux")]

#[path = "../common/effects.rs"]
mod effects;
#[path = "../common/pooled.rs"]
mod pooled;
#[path = "../common/standin.rs"]
mod standin;

mod bytes;
mod failures;
mod lending;
mod ordering;
mod strangers;
mod two_devices;

use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, DriverError, result, sys};
use streampool::Tag;
use streampool::cuda::{CudaBackend, CudaPool, PooledSlice};

use effects::{Effect, effects, handle};
use pooled::Pooled;
use standin::standin;
use sys::CUresult as Code;
use sys::CUstreamCaptureMode as Mode;

/// The address for a read on a stream, with nothing submitted.
fn read_on<T>(slice: &impl DevicePtr<T>, stream: &CudaStream) -> u64 {
    let (address, _nothing) = slice.device_ptr(stream);
    address
}

/// The address for a write on a stream, with nothing submitted.
fn write_on<T>(slice: &mut impl DevicePtrMut<T>, stream: &CudaStream) -> u64 {
    let (address, _nothing) = slice.device_ptr_mut(stream);
    address
}

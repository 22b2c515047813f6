//! The CUDA backend at the level of its verbs, on the stand-in for the driver (`standin/`): what the
//! thread, the program's own errors, other captures and the end of the process see of it.

#![expect(clippy::disallowed_methods, reason = "these tests play the other code of a program")]
#![cfg(target_os = "linux")]

#[path = "../common/standin.rs"]
mod standin;
#[path = "../common/verbs.rs"]
mod verbs;

mod captures;
mod errors;
mod exit;
mod itself;
mod memory;
mod streams;
mod threads;

use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use streampool::backend::{Backend, ErrorKind, StreamKind};
use streampool::cuda::{CudaBackend, CudaError};

use standin::{Logged, Standin, no_driver, standin};
use sys::CUresult as Code;
use sys::CUstreamCaptureMode as Mode;
use verbs::{
    MIB, MODES, every_verb, exchange_mode, fill_and_read, move_a_granule, set_current,
    verbs_during_capture,
};

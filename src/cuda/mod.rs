//! CUDA devices: the pool over [cudarc] 0.19, and typed slices that cudarc's own calls take.
//!
//! ```no_run
//! use cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
//! use streampool::cuda::{CudaBackend, CudaPool};
//!
//! # fn example(scale: &CudaFunction) -> Result<(), Box<dyn std::error::Error>> {
//! let context = CudaContext::new(0)?;
//! let pool = CudaPool::new(CudaBackend::new(&context)?);
//! let stream = context.new_stream()?;
//! let home = pool.stream(stream.clone())?;
//!
//! let input = home.clone_htod(&[1.0f32; 1024])?;
//! let mut output = home.alloc_zeros::<f32>(1024)?;
//! let mut launch = stream.launch_builder(scale);
//! launch.arg(&input).arg(&mut output);
//! // SAFETY: the kernel has these two parameters, and both slices are at home on this stream.
//! unsafe { launch.launch(LaunchConfig::for_num_elems(1024))? };
//! let result: Vec<f32> = stream.clone_dtoh(&output)?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is not as with `CudaSlice`
//!
//! A `CudaSlice` carries two events: cudarc makes each use wait for the last one on another stream,
//! also in kernel launches. **A [`PooledSlice`] carries none, and those automatic waits end here.** In
//! their place:
//!
//! | call | is ordered by |
//! |---|---|
//! | cudarc's copies and fills, and libraries that ask for `DevicePtr` or `DevicePtrMut` (cuBLAS, cuRAND, NCCL, …), on any stream | the slice itself: it sees the stream, makes it wait for all earlier uses, and counts it among the slice's streams |
//! | `launch.arg(&slice)`, launched on the home stream | the slice itself, for uses on streams that it has been told of |
//! | `launch.arg(&slice)`, launched on another stream | **you**: call [`use_on`](PooledSlice::use_on) with that stream, each time that work on the home stream is to come before the launch |
//! | the address as a number | **you**, by the contract of [`Buffer`] |
//!
//! A kernel's arguments do not say which stream it will be launched on, hence the difference. So what
//! the pool adds to the safety contract of a launch is: *each slice is at home on the launch's stream, or
//! that stream was named by `use_on` after the last work that the kernel depends on; and the launch is
//! submitted before the slice is dropped.* A slice that was used on another stream is ready at home
//! again with the next copy, fill, library call or `arg` there, which makes home wait.
//!
//! What the slice does costs nothing when nothing is to do: at home, with no other stream named, no
//! driver call is made. Otherwise it is one record and one wait for home and for each stream named,
//! except the one that the use is on.
//!
//! # Streams that are not registered
//!
//! A copy on a stream that the pool does not know is safe too, and slow: the host waits for the earlier
//! uses, the next conflicting use synchronizes the context, and so does whatever makes the memory free
//! again after the slice's drop ([`quiesce`](crate::StreamPool::quiesce),
//! [`synchronize`](crate::StreamPool::synchronize), a `release`, or running out of memory). cudarc
//! passes a stream by reference here, which cannot keep it alive, so that the pool cannot register it
//! itself. Register the streams that you use: [`CudaPool::stream`](crate::StreamPool::stream). The
//! legacy default stream lives as long as its context and is registered when it is first met.
//!
//! # When that cannot be done
//!
//! `device_ptr` and `arg` return no error. When a wait fails, as it does on a stream that is capturing
//! into a graph, the host waits instead. When that fails too, or for a stream of another device that was
//! not given access by [`peers`](crate::PoolBuilder::peers), the address is 0, so that the operation
//! fails rather than runs unordered, and [`take_error`](crate::StreamPool::take_error) says why.
//!
//! [`PooledSlice::copy_to`] copies to another device, in order at both ends, with or without access. cudarc's
//! `memcpy_dtod` between two devices reads its source on the destination's stream, and tells
//! the source nothing of it: name that stream with [`use_on`](PooledSlice::use_on) first.
//!
//! # cudarc's version features
//!
//! cudarc has a feature for each CUDA version, and they exclude each other. This crate chooses none:
//! your program does, on its own cudarc dependency, or by a feature of the same name here.

mod alloc;
mod borrow;
mod lend;
mod order;
mod slice;
mod traits;
mod view;

pub use crate::backend::cuda::{CudaBackend, CudaError, Event, Granule};
pub use slice::PooledSlice;
pub use view::{PooledView, PooledViewMut};

#[cfg(doc)]
use crate::{Buffer, PoolStream};
use crate::{DevicePools, StreamPool};

/// A pool of a CUDA device.
pub type CudaPool = StreamPool<CudaBackend>;

/// A pool for each of several CUDA devices.
///
/// ```no_run
/// use streampool::cuda::{CudaBackend, CudaPools};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pools = CudaPools::configured(CudaBackend::open_all()?, |builder| builder.limit_fraction(0.9));
/// let near = pools.pool(0)?; // of device 0
/// # Ok(())
/// # }
/// ```
pub type CudaPools = DevicePools<CudaBackend>;

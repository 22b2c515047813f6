//! CUDA devices, over [cudarc] 0.19: the only part of the crate that calls the driver.
//!
//! Every call goes the same way: pass the gate that process exit closes (`exit`), make the right
//! context current and, where captures elsewhere must be spared, put the thread in relaxed capture
//! mode (`thread`), call, and leave the thread as it was. Nothing goes through the parts of cudarc
//! that look at the errors which other code has left in its `CudaContext`.
//!
//! # Example
//!
//! ```no_run
//! use streampool::backend::Backend;
//! use streampool::backend::cuda::CudaBackend;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = CudaBackend::open(0)?; // an error where there is no driver; it never panics
//! let stream = backend.context().new_stream()?;
//! let event = backend.create_event()?;
//! backend.record(&event, &stream)?;
//! backend.synchronize_event(&event)?;
//! backend.destroy_event(event);
//! # Ok(())
//! # }
//! ```

mod borrow;
mod context_number;
mod error;
mod exit;
mod thread;
pub(crate) mod transfers;
mod verbs;
mod virtual_memory;

use std::fmt;
use std::mem::{self, ManuallyDrop};

use cudarc::driver::{CudaContext, result, sys};

use self::context_number::ContextNumber;
pub use self::error::CudaError;
use self::error::check;
use self::exit::InFlight;
use self::thread::{Borrowed, Captures, current, set_current};
use self::virtual_memory::Allocation;
use crate::sync::Arc;

/// A CUDA context, as a [`Backend`](crate::backend::Backend).
///
/// It shares the [`CudaContext`] that it was made from and keeps it alive. Its calls may be made from
/// any thread, whatever context is current there; they leave that context, the thread's capture mode
/// and the errors that other code has left in the [`CudaContext`] as they were.
///
/// Once process exit has begun its calls fail with
/// [`ErrorKind::Exiting`](crate::backend::ErrorKind::Exiting) and call nothing.
pub struct CudaBackend {
    /// Let go in `drop` alone, with the thread's state kept.
    context: ManuallyDrop<Arc<CudaContext>>,
    /// Dropped before the context.
    number: ManuallyDrop<ContextNumber>,
    /// The unit of virtual memory in bytes, where it is used.
    granularity: Option<u64>,
    /// `cuCtxRecordEvent`, where the driver has it (CUDA 12.5).
    record_context: Option<RecordContext>,
    /// Whether network cards may read and write the device's virtual memory directly.
    gpu_direct_rdma: bool,
}

/// An event of a [`CudaBackend`]. Dropping it leaks it.
#[derive(Debug)]
pub struct Event(sys::CUevent);

// SAFETY: sound because the driver's events belong to a context, not to a thread, and every driver
// function may be called from any thread with one.
unsafe impl Send for Event {}
// SAFETY: sound because the driver serializes calls that name the same event, and this type gives no
// other access to what the handle points to.
unsafe impl Sync for Event {}

/// One piece of physical memory of a [`CudaBackend`]. Dropping it leaks it.
#[derive(Debug)]
pub struct Granule(sys::CUmemGenericAllocationHandle);

impl CudaBackend {
    /// A backend for the primary context of the device with this ordinal.
    ///
    /// The calling thread's current context stays as it is (where `CudaContext::new` changes it), and
    /// a machine without a driver is an error (where `CudaContext::new` panics).
    ///
    /// # Errors
    ///
    /// No driver can be loaded ([`CudaError::is_no_driver`]), there is no such device, or any other
    /// driver error.
    pub fn open(ordinal: usize) -> Result<CudaBackend, CudaError> {
        let context = open_context(ordinal)?;
        let backend = CudaBackend::new(&context);
        // Where that failed, this is the context's last handle.
        release(context.cu_ctx(), "cuDevicePrimaryCtxRelease", context);
        backend
    }

    /// Backends for the primary contexts of all devices, by ordinal. On each that has no context yet one is
    /// made, which takes some of its memory.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn open_all() -> Result<Vec<CudaBackend>, CudaError> {
        let count = {
            let _in_flight = InFlight::enter("cuDeviceGetCount")?;
            initialize()?;
            let count = result::device::get_count();
            count.map_err(|error| CudaError::driver("cuDeviceGetCount", error.0))?
        };
        (0..count as usize).map(CudaBackend::open).collect()
    }

    /// A backend for a context that the program already has.
    ///
    /// It grows by virtual memory where the device has it. See
    /// [`with_plain_segments`](Self::with_plain_segments).
    ///
    /// # Errors
    ///
    /// Any driver error from asking the device for its abilities.
    pub fn new(context: &Arc<CudaContext>) -> Result<CudaBackend, CudaError> {
        // Before the first call: the context has initialized the driver, so that the exit hook is
        // registered after the driver's own and runs before it.
        exit::watch();
        let mut backend = CudaBackend {
            context: ManuallyDrop::new(Arc::clone(context)),
            number: ManuallyDrop::new(ContextNumber::of(context.cu_ctx())),
            granularity: None,
            record_context: find_record_context(),
            gpu_direct_rdma: false,
        };
        use sys::CUdevice_attribute_enum as Attribute;
        let virtual_memory = Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
        let rdma = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        if backend.device_has(virtual_memory)? {
            backend.gpu_direct_rdma = backend.device_has(rdma)?;
            backend.granularity = Some(backend.ask_granularity()?);
        }
        Ok(backend)
    }

    /// The same backend, growing by plain segments (`cuMemAlloc`) even where the device has virtual
    /// memory.
    ///
    /// Virtual memory grows during captures, gives memory back without stalling the device and does
    /// not fragment; but it cannot be exported with `cuIpcGetMemHandle`. Programs that do that need
    /// plain segments.
    #[must_use]
    pub fn with_plain_segments(mut self) -> CudaBackend {
        self.granularity = None;
        self
    }

    /// The context that this backend stands for.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Makes one driver call in this backend's context.
    fn call(
        &self,
        captures: Captures,
        call: &'static str,
        function: impl FnOnce() -> sys::CUresult,
    ) -> Result<(), CudaError> {
        call_in(&self.context, captures, call, function)
    }

    fn allocation(&self) -> Allocation {
        Allocation::on(self.context.cu_device(), self.gpu_direct_rdma)
    }

    fn device_has(&self, attribute: sys::CUdevice_attribute) -> Result<bool, CudaError> {
        let mut value = 0;
        let device = self.context.cu_device();
        self.call(Captures::Unaffected, "cuDeviceGetAttribute", || {
            // SAFETY: sound because the pointer is to a local of the right type, and the device is
            // that of a live context.
            unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) }
        })?;
        Ok(value != 0)
    }

    fn ask_granularity(&self) -> Result<u64, CudaError> {
        let mut bytes = 0;
        let allocation = self.allocation();
        let minimum = sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        self.call(Captures::Spared, "cuMemGetAllocationGranularity", || {
            // SAFETY: sound because both pointers are to locals that live through the call, and
            // `Allocation` has the layout of the bindings' structure.
            unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, allocation.as_ptr(), minimum) }
        })?;
        Ok(bytes as u64)
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        // SAFETY: sound because this is the only place that takes the field, and `drop` runs once.
        drop(unsafe { ManuallyDrop::take(&mut self.number) });
        // SAFETY: as for the number.
        let context = unsafe { ManuallyDrop::take(&mut self.context) };
        release(context.cu_ctx(), "cuDevicePrimaryCtxRelease", context);
    }
}

impl fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBackend")
            .field("ordinal", &self.context.ordinal())
            .field("context", &self.number.get())
            .field("granularity", &self.granularity)
            .finish_non_exhaustive()
    }
}

/// Makes one driver call with `context` current.
fn call_in(
    context: &CudaContext,
    captures: Captures,
    call: &'static str,
    function: impl FnOnce() -> sys::CUresult,
) -> Result<(), CudaError> {
    let _borrowed = Borrowed::enter(context.cu_ctx(), captures, call)?;
    check(call, function())
}

/// Drops a cudarc handle that belongs to `context`: its `Drop` may call the driver.
///
/// cudarc makes the context current and leaves it so; and when an error is waiting in the
/// `CudaContext` it does not even do that, and destroys the handle in whatever context is current.
/// With the right context current beforehand neither matters. When that cannot be had, at process
/// exit above all, the handle is leaked: its `Drop` would only fail, or crash.
fn release<T>(context: sys::CUcontext, call: &'static str, handle: T) {
    match Borrowed::enter(context, Captures::Spared, call) {
        Ok(_borrowed) => drop(handle),
        Err(_) => mem::forget(handle),
    }
}

/// `CudaContext::new`, with an error for a missing driver and the current context kept.
fn open_context(ordinal: usize) -> Result<Arc<CudaContext>, CudaError> {
    let call = "cuDevicePrimaryCtxRetain";
    let _in_flight = InFlight::enter(call)?;
    initialize()?;
    let found = current()?;
    let context = CudaContext::new(ordinal).map_err(|error| CudaError::driver(call, error.0));
    // Also after a failure, which may come after the change.
    set_current(found)?;
    context
}

/// `cuInit`, with an error for a missing driver. The caller has passed the gate.
fn initialize() -> Result<(), CudaError> {
    if !driver_is_present() {
        return Err(CudaError::no_driver("cuInit"));
    }
    result::init().map_err(|error| CudaError::driver("cuInit", error.0))
}

/// What is found in the place of two functions when cudarc was built to link the driver, and so does not
/// have them.
#[allow(dead_code, reason = "used only where cudarc has no functions of these names")]
mod linked {
    /// A program that was linked against the driver does not start without it.
    pub(super) unsafe fn is_culib_present() -> bool {
        true
    }

    /// A library of which nothing is known.
    pub(super) struct Unknown;

    impl Unknown {
        pub(super) unsafe fn get<T>(&self, _name: &[u8]) -> Result<Box<T>, ()> {
            Err(())
        }
    }

    pub(super) unsafe fn culib() -> Unknown {
        Unknown
    }
}

type RecordContext = unsafe extern "C" fn(sys::CUcontext, sys::CUevent) -> sys::CUresult;

/// The driver's `cuCtxRecordEvent`, if it has one. cudarc declares it for some CUDA versions only, and
/// panics where the driver is older; so it is asked for by name, once there is a driver.
fn find_record_context() -> Option<RecordContext> {
    #[allow(unused_imports, reason = "used only where the inner import has no such name")]
    use linked::*;
    {
        #[allow(unused_imports, reason = "used only where cudarc loads the driver itself")]
        use cudarc::driver::sys::*;
        // SAFETY: sound because a context exists, so that the library has been loaded before.
        let library = unsafe { culib() };
        // SAFETY: sound because the driver's function of this name has had this type since it came.
        let found = unsafe { library.get::<RecordContext>(b"cuCtxRecordEvent\0") };
        found.ok().map(|function| *function)
    }
}

/// Whether there is a driver library. cudarc panics at the first call when there is none.
fn driver_is_present() -> bool {
    // Whether cudarc has the function depends on a feature of cudarc that some other crate may
    // switch on, and that cannot be asked from here. The inner import wins where it has the name.
    #[allow(unused_imports, reason = "used only where the inner import has no such name")]
    use linked::*;
    {
        #[allow(unused_imports, reason = "used only where cudarc loads the driver itself")]
        use cudarc::driver::sys::*;
        // SAFETY: sound because the function only opens and closes the library, as cudarc's first
        // call is about to do; what runs then are the initializers of the driver library.
        unsafe { is_culib_present() }
    }
}

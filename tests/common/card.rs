//! A real device for tests: its context, and the kernels that stamp memory and check the stamps.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};
use streampool::backend::Backend;
use streampool::cuda::CudaBackend;

/// A device. It lives as long as the process: nothing of it is taken down.
pub(crate) struct Card {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) own: CudaBackend,
    pub(crate) kernels: Kernels,
    /// On the device: what the checks count.
    counter: u64,
    /// As long as there is one, making another does not synchronize the context.
    pub(crate) first: Arc<CudaStream>,
}

pub(crate) struct Kernels {
    pub(crate) hold: Kernel,
    spin: Kernel,
    stamp: Kernel,
    check: Kernel,
}

/// A function of the module, which is never unloaded.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(sys::CUfunction);

// SAFETY: a function is a handle of its context, which any thread may use.
unsafe impl Send for Kernel {}
// SAFETY: as for `Send`; launching does not change it.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Launches it with 64-bit arguments, which is all that these kernels take.
    pub(crate) fn launch(self, stream: &CudaStream, blocks: u32, arguments: &[u64]) {
        let mut values = arguments.to_vec();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
        let threads = if blocks == 0 { 1 } else { 256 };
        let (grid, block) = ((blocks.max(1), 1, 1), (threads, 1, 1));
        let raw = stream.cu_stream();
        // SAFETY: the stream lives, the arguments are copied before the call returns and are as many as
        // the kernel has; what it touches is the test's to answer for.
        unsafe { result::launch_kernel(self.0, grid, block, 0, raw, &mut pointers) }
            .expect("the launch succeeds");
    }
}

/// While this lives the device's context is current on this thread; then, what was before.
pub(crate) struct Entered(sys::CUcontext);

impl Entered {
    pub(crate) fn new(context: &CudaContext) -> Entered {
        let before = result::ctx::get_current().expect("it can be asked").unwrap_or_default();
        // SAFETY: the context lives as long as the process.
        unsafe { result::ctx::set_current(context.cu_ctx()) }.expect("it can be set");
        Entered(before)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: it was current before, or is null.
        let _ = unsafe { result::ctx::set_current(self.0) };
    }
}

impl Card {
    /// Opens the first, and launches every kernel once: the first launch may wait for the device.
    pub(crate) fn open() -> Card {
        Card::of(CudaBackend::open(0).expect("a CUDA device"))
    }

    /// The same for any.
    pub(crate) fn of(own: CudaBackend) -> Card {
        let context = Arc::clone(own.context());
        let _entered = Entered::new(&context);
        let text = CString::new(include_str!("kernels.ptx")).expect("no NUL in it");
        // SAFETY: the text is a PTX module that ends in NUL, and a context is current.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }.expect("kernels");
        let kernel = |name: &str| {
            let name = CString::new(name).expect("no NUL in it");
            // SAFETY: the module was just loaded, and is never unloaded.
            Kernel(unsafe { result::module::get_function(module, name) }.expect("a kernel"))
        };
        let kernels = Kernels {
            hold: kernel("hold"),
            spin: kernel("spin"),
            stamp: kernel("stamp"),
            check: kernel("check"),
        };
        let first = context.new_stream().expect("a stream");
        // SAFETY: never freed.
        let counter = unsafe { result::malloc_sync(4096) }.expect("a page of the device");
        // SAFETY: the page was just made.
        unsafe { result::memset_d8_sync(counter, 0, 4096) }.expect("it can be filled");
        let card = Card { context, own, kernels, counter, first };
        card.busy(&card.first, 0);
        card.stamp(&card.first, counter + 1024, 64, 7, 0);
        card.check(&card.first, counter + 1024, 64, 7);
        card.copy(&card.first, counter + 2048, counter + 1024, 64);
        assert_eq!(card.mismatches(), 0);
        card
    }

    /// Puts a kernel on the stream that takes so long and touches nothing.
    pub(crate) fn busy(&self, stream: &CudaStream, ns: u64) {
        let _entered = Entered::new(&self.context);
        self.kernels.spin.launch(stream, 0, &[ns]);
    }

    /// Puts a kernel on the stream that takes so long and then writes a stamp over the bytes.
    pub(crate) fn stamp(&self, stream: &CudaStream, address: u64, bytes: u64, stamp: u64, ns: u64) {
        let _entered = Entered::new(&self.context);
        self.kernels.stamp.launch(stream, blocks(bytes), &[address, bytes / 8, stamp, ns]);
    }

    /// Puts a kernel on the stream that counts the words that are not the stamp.
    pub(crate) fn check(&self, stream: &CudaStream, address: u64, bytes: u64, stamp: u64) {
        let _entered = Entered::new(&self.context);
        let arguments = [address, bytes / 8, stamp, self.counter];
        self.kernels.check.launch(stream, blocks(bytes), &arguments);
    }

    /// Puts a copy on the stream.
    pub(crate) fn copy(&self, stream: &CudaStream, to: u64, from: u64, bytes: u64) {
        let _entered = Entered::new(&self.context);
        let (bytes, raw) = (bytes as usize, stream.cu_stream());
        // SAFETY: the caller names live memory of the device, and answers for the order.
        unsafe { result::memcpy_dtod_async(to, from, bytes, raw) }.expect("a copy");
    }

    /// What the checks have counted since the last call. Synchronizes.
    pub(crate) fn mismatches(&self) -> u64 {
        let _entered = Entered::new(&self.context);
        self.own.synchronize_context().expect("the device works");
        let mut count = [0u64];
        // SAFETY: the counter is a page of the device, and nothing runs that changes it.
        unsafe {
            result::memcpy_dtoh_sync(&mut count, self.counter).expect("it can be read");
            result::memset_d8_sync(self.counter, 0, 8).expect("it can be reset");
        }
        // The fill of device memory may return before it is made.
        self.own.synchronize_context().expect("the device works");
        count[0]
    }
}

/// How many blocks of threads a kernel over so many bytes has.
fn blocks(bytes: u64) -> u32 {
    (bytes / (256 * 8 * 4)).clamp(1, 256) as u32
}

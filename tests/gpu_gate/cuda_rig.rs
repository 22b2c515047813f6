//! A real device.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream, result, sys};
use streampool::backend::Backend;
use streampool::cuda::CudaBackend;

use crate::cuda_gate::{CudaGate, Gates, Way};
use crate::rig::Rig;

use sys::CUstreamCaptureMode as Mode;

const MODES: [Mode; 3] = [
    Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
];
/// How long a kernel may take to begin on a stream that nothing holds up.
const SOON: Duration = Duration::from_millis(500);

/// The first device. It lives as long as the process: nothing of it is taken down with a gate closed.
pub(crate) struct Gpu {
    context: Arc<CudaContext>,
    own: CudaBackend,
    kernels: Kernels,
    gates: Gates,
    /// On the device: what the checks count.
    counter: u64,
    /// As long as there is one, making another does not synchronize the context.
    _stream: Arc<CudaStream>,
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

impl Gpu {
    pub(crate) fn open() -> &'static Gpu {
        static GPU: OnceLock<Gpu> = OnceLock::new();
        let gpu = GPU.get_or_init(Gpu::make);
        // SAFETY: the context lives as long as the process.
        unsafe { result::ctx::set_current(gpu.context.cu_ctx()) }.expect("it can be set");
        gpu
    }

    fn make() -> Gpu {
        let own = CudaBackend::open(0).expect("a CUDA device");
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
        let stream = context.new_stream().expect("a stream");
        // SAFETY: never freed.
        let counter = unsafe { result::malloc_sync(4096) }.expect("a page of the device");
        let gates = Gates::new(kernels.hold);
        let gpu = Gpu { own, kernels, gates, counter, _stream: Arc::clone(&stream), context };
        gpu.warm_up(&stream);
        gpu
    }

    /// A kernel's first launch may wait for the device.
    fn warm_up(&self, stream: &Arc<CudaStream>) {
        // SAFETY: the counter is a page of the device.
        unsafe { result::memset_d8_sync(self.counter, 0, 4096) }.expect("it can be filled");
        self.kernels.spin.launch(stream, 0, &[0]);
        self.kernels.stamp.launch(stream, 1, &[self.counter + 1024, 8, 7, 0]);
        self.kernels.check.launch(stream, 1, &[self.counter + 1024, 8, 7, self.counter]);
        self.gates.warm_up(&self.context, stream);
        self.copy(stream, self.counter + 2048, self.counter + 1024, 64, 0);
        assert_eq!(self.mismatches(), 0);
    }

    /// Whether a gate on one stream leaves another free to run.
    fn leaves_free(&self, gated: &Arc<CudaStream>, other: &Arc<CudaStream>) -> bool {
        let _gate = self.close(gated);
        self.busy(other, 0);
        let event = self.own.create_event().expect("an event");
        self.own.record(&event, other).expect("a record");
        let begun = Instant::now();
        let free = loop {
            let done = self.own.query(&event).expect("a query");
            if done || begun.elapsed() > SOON {
                break done;
            }
        };
        self.own.destroy_event(event);
        free
    }
}

/// How many blocks of threads a kernel over so many bytes has.
fn blocks(bytes: u64) -> u32 {
    (bytes / (256 * 8 * 4)).clamp(1, 256) as u32
}

impl Rig for Gpu {
    type B = CudaBackend;
    type Gate = CudaGate;

    fn backend(&self) -> CudaBackend {
        CudaBackend::new(&self.context).expect("the device answers")
    }

    fn stream(&self) -> Arc<CudaStream> {
        self.context.new_stream().expect("a stream")
    }

    fn independent<const N: usize>(&self) -> [Arc<CudaStream>; N] {
        let mut chosen: Vec<Arc<CudaStream>> = Vec::new();
        // Kept until the end, so that the next one made has another queue.
        let mut rejected = Vec::new();
        while chosen.len() < N {
            let next = self.stream();
            match chosen.iter().all(|own| self.leaves_free(own, &next)) {
                true => chosen.push(next),
                false => rejected.push(next),
            }
            assert!(rejected.len() < 64, "INCONCLUSIVE: all streams hold each other up");
        }
        if !rejected.is_empty() {
            eprintln!("{} streams were held up by a gate on another", rejected.len());
        }
        chosen.try_into().expect("as many as were asked for")
    }

    fn stream_of_priority(&self, urgent: bool) -> Arc<CudaStream> {
        if !urgent {
            return self.stream();
        }
        let _entered = Entered::new(&self.context);
        let (_, most_urgent) = result::stream::get_priority_range().expect("the device answers");
        self.context.new_stream_with_priority(most_urgent).expect("a stream")
    }

    fn legacy(&self) -> Arc<CudaStream> {
        self.context.default_stream()
    }

    fn per_thread(&self) -> Arc<CudaStream> {
        self.context.per_thread_stream()
    }

    fn close(&self, stream: &Arc<CudaStream>) -> CudaGate {
        let _entered = Entered::new(&self.context);
        self.gates.close(stream)
    }

    fn close_by_kernel(&self, stream: &Arc<CudaStream>) -> CudaGate {
        let _entered = Entered::new(&self.context);
        self.gates.close_by(&Way::Kernel(self.kernels.hold), stream)
    }

    fn busy(&self, stream: &Arc<CudaStream>, ns: u64) {
        let _entered = Entered::new(&self.context);
        self.kernels.spin.launch(stream, 0, &[ns]);
    }

    fn stamp(&self, stream: &Arc<CudaStream>, address: u64, bytes: u64, stamp: u64, ns: u64) {
        let _entered = Entered::new(&self.context);
        self.kernels.stamp.launch(stream, blocks(bytes), &[address, bytes / 8, stamp, ns]);
    }

    fn check(&self, stream: &Arc<CudaStream>, address: u64, bytes: u64, stamp: u64) {
        let _entered = Entered::new(&self.context);
        let arguments = [address, bytes / 8, stamp, self.counter];
        self.kernels.check.launch(stream, blocks(bytes), &arguments);
    }

    fn copy(&self, stream: &Arc<CudaStream>, to: u64, from: u64, bytes: u64, _stamp: u64) {
        let _entered = Entered::new(&self.context);
        let (bytes, raw) = (bytes as usize, stream.cu_stream());
        // SAFETY: the caller names live memory of the device, and answers for the order.
        unsafe { result::memcpy_dtod_async(to, from, bytes, raw) }.expect("a copy");
    }

    fn mismatches(&self) -> u64 {
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

    fn pause(&self) {
        thread::sleep(Duration::from_micros(100));
    }

    fn begin_capture(&self, stream: &Arc<CudaStream>, mode: usize) {
        stream.begin_capture(MODES[mode]).expect("a capture begins");
    }

    fn end_capture(&self, stream: &Arc<CudaStream>) -> bool {
        let ended = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        if let Err(error) = &ended {
            eprintln!("the capture: {error:?}");
        }
        ended.is_ok()
    }

    fn leave_context(&self) {
        // SAFETY: null is no context.
        unsafe { result::ctx::set_current(ptr::null_mut()) }.expect("it can be set");
    }

    fn has_context(&self) -> bool {
        result::ctx::get_current().expect("it can be asked").is_some()
    }
}

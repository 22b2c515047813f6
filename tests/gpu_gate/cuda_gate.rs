//! Gates on a real device: a stream waits for a word in the host's memory.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use crate::card::{Entered, Kernel};
use crate::rig::Gate;

/// The name of the variable with which the gate is a kernel that looks at the word, where it says
/// `kernel`; otherwise it is the driver's own wait, if there is one.
const VARIABLE: &str = "STREAMPOOL_GATE";
/// A gate that is still closed by then is opened by force.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long the kernel looks, in nanoseconds of the device's clock.
const HELD: u64 = 10_000_000_000;
/// Words in the page: each gate has one for itself, until all have had their turn.
const WORDS: usize = 1 << 16;

/// `cuStreamWaitValue32`. Bindings have it under one name or two, so it is asked for by name.
type WaitValue = unsafe extern "C" fn(sys::CUstream, sys::CUdeviceptr, u32, u32) -> sys::CUresult;
/// Its flag: until the word is at least the value.
const AT_LEAST: u32 = 0;

/// What holds a stream up.
pub(crate) enum Way {
    Driver(WaitValue),
    Kernel(Kernel),
}

/// Gates that may still be closed, and when each is opened by force.
type Closed = Arc<Mutex<Vec<(Instant, Weak<Word>)>>>;

pub(crate) struct Gates {
    way: Way,
    /// Pinned, never freed, and at the same address for the device.
    words: &'static [AtomicU32],
    next: AtomicUsize,
    closed: Closed,
}

/// The word of one gate.
struct Word {
    value: &'static AtomicU32,
    forced: AtomicBool,
}

impl Word {
    fn open(&self) {
        self.value.store(1, Ordering::SeqCst);
    }
}

pub(crate) struct CudaGate(Arc<Word>);

impl Gate for CudaGate {
    fn was_forced(&self) -> bool {
        self.0.forced.load(Ordering::SeqCst)
    }
}

impl Drop for CudaGate {
    fn drop(&mut self) {
        self.0.open();
    }
}

fn find_wait_value() -> Option<WaitValue> {
    // Since CUDA 11.7, and what CUDA 12's header means by the plain name; before, only the plain name.
    let names: [&[u8]; 2] = [b"cuStreamWaitValue32_v2\0", b"cuStreamWaitValue32\0"];
    names.into_iter().find_map(|name| {
        // SAFETY: the driver is loaded, since a context exists, and its functions of both names have
        // this type.
        let found = unsafe { sys::culib().get::<WaitValue>(name) };
        found.ok().map(|function| *function)
    })
}

impl Gates {
    pub(crate) fn new(hold: Kernel) -> Gates {
        let wants_kernel = std::env::var(VARIABLE).is_ok_and(|way| way == "kernel");
        let found = if wants_kernel { None } else { find_wait_value() };
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a context is current; the page is never freed.
        let page = unsafe { result::malloc_host(WORDS * size_of::<u32>(), flags) }.expect("a page");
        // SAFETY: the page has this size and alignment, is never freed, and is only used as atomics.
        let words = unsafe { std::slice::from_raw_parts(page.cast::<AtomicU32>(), WORDS) };
        words.iter().for_each(|word| word.store(1, Ordering::SeqCst));
        let closed = Arc::default();
        watch(&closed);
        let way = found.map_or(Way::Kernel(hold), Way::Driver);
        Gates { way, words, next: AtomicUsize::new(0), closed }
    }

    /// Uses the way once.
    pub(crate) fn warm_up(&self, context: &CudaContext, stream: &Arc<CudaStream>) {
        let _entered = Entered::new(context);
        drop(self.close(stream));
        let way = match self.way {
            Way::Driver(_) => "cuStreamWaitValue32",
            Way::Kernel(_) => "a kernel",
        };
        eprintln!("the gate: {way}");
    }

    /// Closes a gate in front of everything later on the stream. The context is current.
    pub(crate) fn close(&self, stream: &CudaStream) -> CudaGate {
        self.close_by(&self.way, stream)
    }

    /// Closes one in a certain way.
    pub(crate) fn close_by(&self, way: &Way, stream: &CudaStream) -> CudaGate {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % WORDS;
        let value = &self.words[at];
        let word = Arc::new(Word { value, forced: AtomicBool::new(false) });
        value.store(0, Ordering::SeqCst);
        let entry = (Instant::now() + PATIENCE, Arc::downgrade(&word));
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        // From here on whatever happens opens it.
        let gate = CudaGate(word);
        // With one address space for host and device (all 64-bit systems) a pinned word's address is the
        // device's as well.
        let address = std::ptr::from_ref(value).addr() as u64;
        match way {
            Way::Driver(wait) => {
                // SAFETY: the stream and the page live.
                let code = unsafe { wait(stream.cu_stream(), address, 1, AT_LEAST) };
                code.result().expect("the driver's wait; STREAMPOOL_GATE=kernel is another way");
            }
            Way::Kernel(hold) => hold.launch(stream, 0, &[address, HELD]),
        }
        gate
    }
}

/// Opens gates that nobody has opened in time, for as long as the process runs.
fn watch(closed: &Closed) {
    let closed = Arc::clone(closed);
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_millis(100));
            let now = Instant::now();
            closed.lock().unwrap_or_else(PoisonError::into_inner).retain(|(until, word)| {
                let Some(word) = word.upgrade() else { return false };
                if now < *until {
                    return true;
                }
                word.forced.store(true, Ordering::SeqCst);
                word.open();
                false
            });
        }
    });
}

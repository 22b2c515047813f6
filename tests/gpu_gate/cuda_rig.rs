//! A real device.

use std::ptr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaStream, result, sys};
use streampool::backend::Backend;
use streampool::cuda::CudaBackend;

use crate::card::{Card, Entered};
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

/// The first device, with gates. Nothing of it is taken down with a gate closed.
pub(crate) struct Gpu {
    card: Card,
    gates: Gates,
}

impl Gpu {
    pub(crate) fn open() -> &'static Gpu {
        static GPU: OnceLock<Gpu> = OnceLock::new();
        let gpu = GPU.get_or_init(|| Gpu::make(Card::open()));
        // SAFETY: the context lives as long as the process.
        unsafe { result::ctx::set_current(gpu.card.context.cu_ctx()) }.expect("it can be set");
        gpu
    }

    /// The first two devices, if there are two that can use each other's memory. Otherwise says loudly that
    /// there are not.
    pub(crate) fn open_pair() -> Option<[&'static Gpu; 2]> {
        static SECOND: OnceLock<Option<Gpu>> = OnceLock::new();
        let first = Gpu::open();
        let second = SECOND.get_or_init(|| Some(Gpu::make(Card::of(CudaBackend::open(1).ok()?))));
        let Some(second) = second else {
            eprintln!("SKIPPED: there is no second GPU");
            return None;
        };
        let [own, other] = [first, second].map(|gpu| &gpu.card.own);
        if own.allow_peer(other, false).and_then(|()| other.allow_peer(own, false)).is_err() {
            eprintln!("SKIPPED: the first two GPUs cannot use each other's memory");
            return None;
        }
        // SAFETY: the context lives as long as the process.
        unsafe { result::ctx::set_current(first.card.context.cu_ctx()) }.expect("it can be set");
        Some([first, second])
    }

    fn make(card: Card) -> Gpu {
        let _entered = Entered::new(&card.context);
        let gates = Gates::new(card.kernels.hold);
        gates.warm_up(&card.context, &card.first);
        card.own.synchronize_context().expect("the device works");
        Gpu { card, gates }
    }

    /// Whether a gate on one stream leaves another free to run.
    fn leaves_free(&self, gated: &Arc<CudaStream>, other: &Arc<CudaStream>) -> bool {
        let _gate = self.close(gated);
        self.busy(other, 0);
        let event = self.card.own.create_event().expect("an event");
        self.card.own.record(&event, other).expect("a record");
        let begun = Instant::now();
        let free = loop {
            let done = self.card.own.query(&event).expect("a query");
            if done || begun.elapsed() > SOON {
                break done;
            }
        };
        self.card.own.destroy_event(event);
        free
    }
}

impl Rig for Gpu {
    type B = CudaBackend;
    type Gate = CudaGate;

    fn backend(&self) -> CudaBackend {
        CudaBackend::new(&self.card.context).expect("the device answers")
    }

    fn stream(&self) -> Arc<CudaStream> {
        self.card.context.new_stream().expect("a stream")
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
        let _entered = Entered::new(&self.card.context);
        let (_, most_urgent) = result::stream::get_priority_range().expect("the device answers");
        self.card.context.new_stream_with_priority(most_urgent).expect("a stream")
    }

    fn legacy(&self) -> Arc<CudaStream> {
        self.card.context.default_stream()
    }

    fn per_thread(&self) -> Arc<CudaStream> {
        self.card.context.per_thread_stream()
    }

    fn close(&self, stream: &Arc<CudaStream>) -> CudaGate {
        let _entered = Entered::new(&self.card.context);
        self.gates.close(stream)
    }

    fn close_by_kernel(&self, stream: &Arc<CudaStream>) -> CudaGate {
        let _entered = Entered::new(&self.card.context);
        self.gates.close_by(&Way::Kernel(self.card.kernels.hold), stream)
    }

    fn busy(&self, stream: &Arc<CudaStream>, ns: u64) {
        self.card.busy(stream, ns);
    }

    fn stamp(&self, stream: &Arc<CudaStream>, address: u64, bytes: u64, stamp: u64, ns: u64) {
        self.card.stamp(stream, address, bytes, stamp, ns);
    }

    fn check(&self, stream: &Arc<CudaStream>, address: u64, bytes: u64, stamp: u64) {
        self.card.check(stream, address, bytes, stamp);
    }

    fn copy(&self, stream: &Arc<CudaStream>, to: u64, from: u64, bytes: u64, _stamp: u64) {
        self.card.copy(stream, to, from, bytes);
    }

    fn mismatches(&self) -> u64 {
        self.card.mismatches()
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

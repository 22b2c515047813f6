//! A backend whose calls cost nothing: what is measured over it is the pool alone.

// Each program uses a part of this.
#![allow(dead_code)]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use streampool::Backend;
use streampool::backend::{ErrorKind, MemoryInfo, StreamIdentity, StreamKind};

/// The unit of its virtual memory, in bytes.
const GRANULARITY: u64 = 2 << 20;
/// More than any workload takes.
const MEMORY: u64 = 1 << 40;

/// When an event counts as finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// At once.
    Always,
    /// Never.
    Never,
    /// When this many more have been recorded: work is always under way, and never piles up.
    After(u64),
}

/// A device without memory, on which nothing runs. Clones are the same device.
#[derive(Clone, Debug)]
pub(crate) struct NullBackend {
    finish: Finish,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    context: u64,
    next_address: AtomicU64,
    next_stream: AtomicU64,
    records: AtomicU64,
    record_panics: AtomicBool,
}

impl NullBackend {
    pub(crate) fn new(finish: Finish) -> NullBackend {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let shared = Shared {
            // Relaxed, here and below: only that the numbers differ matters.
            context: NEXT.fetch_add(1, Ordering::Relaxed),
            next_address: AtomicU64::new(1 << 32),
            next_stream: AtomicU64::new(1),
            records: AtomicU64::new(0),
            record_panics: AtomicBool::new(false),
        };
        NullBackend { finish, shared: Arc::new(shared) }
    }

    /// A new stream: a number.
    pub(crate) fn create_stream(&self) -> u64 {
        self.shared.next_stream.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether each record panics from now on: a backend that is not as it should be.
    pub(crate) fn let_records_panic(&self, panics: bool) {
        self.shared.record_panics.store(panics, Ordering::Relaxed);
    }

    fn take_addresses(&self, bytes: u64) -> u64 {
        let bytes = bytes.next_multiple_of(GRANULARITY);
        self.shared.next_address.fetch_add(bytes, Ordering::Relaxed)
    }
}

// SAFETY: addresses only rise, so that ranges never overlap, and nobody dereferences them. Nothing ever
// runs on a stream, so that all that was submitted has finished whatever `query` says, and there is
// nothing that a wait would have to order.
unsafe impl Backend for NullBackend {
    type Stream = u64;
    type Event = AtomicU64;
    type Granule = ();
    type Error = Infallible;

    fn error_kind(&self, error: &Infallible) -> ErrorKind {
        match *error {}
    }

    fn context_id(&self) -> u64 {
        self.shared.context
    }

    fn identify(&self, stream: &u64) -> Result<StreamIdentity, Infallible> {
        let context = self.shared.context;
        Ok(StreamIdentity { context, handle: *stream, kind: StreamKind::NonBlocking })
    }

    fn is_capturing(&self, _: &u64) -> Result<bool, Infallible> {
        Ok(false)
    }

    fn release_stream(&self, _: u64) {}

    fn memory_info(&self) -> Result<MemoryInfo, Infallible> {
        Ok(MemoryInfo { free: MEMORY, total: MEMORY })
    }

    fn granularity(&self) -> Option<u64> {
        Some(GRANULARITY)
    }

    fn alloc_segment(&self, bytes: u64) -> Result<u64, Infallible> {
        Ok(self.take_addresses(bytes))
    }

    unsafe fn free_segment(&self, _: u64, _: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn reserve_range(&self, bytes: u64) -> Result<u64, Infallible> {
        Ok(self.take_addresses(bytes))
    }

    unsafe fn release_range(&self, _: u64, _: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn create_granule(&self, _: u64) -> Result<(), Infallible> {
        Ok(())
    }

    unsafe fn destroy_granule(&self, (): ()) -> Result<(), ((), Infallible)> {
        Ok(())
    }

    unsafe fn map(&self, _: u64, _: u64, (): &()) -> Result<(), Infallible> {
        Ok(())
    }

    unsafe fn set_access(&self, _: u64, _: u64, _: &[&Self]) -> Result<(), Infallible> {
        Ok(())
    }

    unsafe fn unmap(&self, _: u64, _: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn allow_peer(&self, _: &Self, _: bool) -> Result<(), Infallible> {
        Ok(())
    }

    unsafe fn copy(&self, _: &u64, _: u64, _: &Self, _: u64, _: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn create_event(&self) -> Result<AtomicU64, Infallible> {
        Ok(AtomicU64::new(0))
    }

    fn destroy_event(&self, _: AtomicU64) {}

    fn record(&self, event: &AtomicU64, _: &u64) -> Result<(), Infallible> {
        assert!(!self.shared.record_panics.load(Ordering::Relaxed), "a record that panics");
        // Two plain operations: a lost count would only change when an event counts as finished.
        let number = self.shared.records.load(Ordering::Relaxed) + 1;
        self.shared.records.store(number, Ordering::Relaxed);
        event.store(number, Ordering::Relaxed);
        Ok(())
    }

    fn record_context(&self, event: &AtomicU64) -> Result<bool, Infallible> {
        self.record(event, &0).map(|()| true)
    }

    fn wait(&self, _: &u64, _: &AtomicU64) -> Result<(), Infallible> {
        Ok(())
    }

    fn query(&self, event: &AtomicU64) -> Result<bool, Infallible> {
        Ok(match self.finish {
            Finish::Always => true,
            Finish::Never => false,
            Finish::After(more) => {
                let since = event.load(Ordering::Relaxed) + more;
                self.shared.records.load(Ordering::Relaxed) >= since
            }
        })
    }

    fn synchronize_event(&self, _: &AtomicU64) -> Result<(), Infallible> {
        Ok(())
    }

    fn synchronize_context(&self) -> Result<(), Infallible> {
        Ok(())
    }
}

//! A backend that writes down what is called, in one order.
//!
//! A call and its entry are made under one lock, so that the order of the entries is the order in which the
//! device got the calls. Only a synchronize is outside of it, since it blocks: it has an entry for its
//! beginning, which says what it covers, and one for its end, from which on the host knows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use streampool::backend::{Backend, ErrorKind, MemoryInfo, StreamIdentity};

use crate::stress::{Device, Raw};

/// What was called and succeeded; a call that fails orders nothing. Streams, events, granules and
/// synchronizes have numbers that are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    StreamMade {
        stream: u64,
    },
    StreamGone {
        stream: u64,
    },
    EventGone {
        event: u64,
    },
    Record {
        event: u64,
        stream: u64,
    },
    RecordContext {
        event: u64,
    },
    Wait {
        stream: u64,
        event: u64,
    },
    /// A query has found the event finished.
    Finished {
        event: u64,
    },
    /// A synchronize with an event, or with the context, begins.
    SynchronizeBegins {
        number: u64,
        event: Option<u64>,
    },
    SynchronizeEnds {
        number: u64,
    },
    Segment {
        address: u64,
        bytes: u64,
    },
    SegmentGone {
        address: u64,
        bytes: u64,
    },
    Range {
        address: u64,
        bytes: u64,
    },
    RangeGone {
        address: u64,
        bytes: u64,
    },
    Granule {
        granule: u64,
        bytes: u64,
    },
    GranuleGone {
        granule: u64,
    },
    Map {
        address: u64,
        bytes: u64,
        granule: u64,
    },
    SetAccess {
        address: u64,
        bytes: u64,
    },
    Unmap {
        address: u64,
        bytes: u64,
    },
    Busy {
        stream: u64,
        ns: u64,
    },
    Stamp {
        stream: u64,
        address: u64,
        bytes: u64,
        stamp: u64,
        ns: u64,
    },
    Copy {
        stream: u64,
        to: u64,
        from: u64,
        bytes: u64,
    },
    Check {
        stream: u64,
        address: u64,
        bytes: u64,
        stamp: u64,
    },
}

#[derive(Default)]
pub(crate) struct Log {
    entries: Mutex<Vec<Entry>>,
    numbers: AtomicU64,
}

impl Log {
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a call, and its entry if it succeeds.
    fn calls<T, E>(&self, entry: Entry, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut entries = self.entries();
        let made = call()?;
        entries.push(entry);
        Ok(made)
    }

    pub(crate) fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut self.entries())
    }
}

/// A device whose pools, streams and kernels are recorded.
pub(crate) struct Recording<'a, D> {
    device: &'a D,
    pub(crate) log: Arc<Log>,
}

impl<'a, D: Device> Recording<'a, D> {
    pub(crate) fn of(device: &'a D) -> Recording<'a, D> {
        Recording { device, log: Arc::default() }
    }

    fn launch(&self, entry: Entry, launch: impl FnOnce()) {
        let mut entries = self.log.entries();
        launch();
        entries.push(entry);
    }
}

impl<D: Device> Device for Recording<'_, D> {
    type B = Recorder<D::B>;

    fn backend(&self) -> Recorder<D::B> {
        Recorder { inner: self.device.backend(), log: Arc::clone(&self.log) }
    }

    fn stream(&self) -> Stream<D::B> {
        let (raw, log) = (Some(self.device.stream()), Arc::clone(&self.log));
        let number = log.number();
        log.entries().push(Entry::StreamMade { stream: number });
        Stream(Arc::new(Followed { number, raw, log }))
    }

    fn busy(&self, stream: &Raw<Self>, ns: u64) {
        let entry = Entry::Busy { stream: stream.0.number, ns };
        self.launch(entry, || self.device.busy(stream.raw(), ns));
    }

    fn stamp(&self, stream: &Raw<Self>, address: u64, bytes: u64, stamp: u64, ns: u64) {
        let entry = Entry::Stamp { stream: stream.0.number, address, bytes, stamp, ns };
        self.launch(entry, || self.device.stamp(stream.raw(), address, bytes, stamp, ns));
    }

    fn check(&self, stream: &Raw<Self>, address: u64, bytes: u64, stamp: u64) {
        let entry = Entry::Check { stream: stream.0.number, address, bytes, stamp };
        self.launch(entry, || self.device.check(stream.raw(), address, bytes, stamp));
    }

    fn mismatches(&self) -> u64 {
        self.device.mismatches()
    }
}

pub(crate) struct Recorder<B: Backend> {
    inner: B,
    log: Arc<Log>,
}

/// A stream; clones name the same one.
pub(crate) struct Stream<B: Backend>(Arc<Followed<B>>);

struct Followed<B: Backend> {
    number: u64,
    /// None once the backend has been told to let it go.
    raw: Option<B::Stream>,
    log: Arc<Log>,
}

impl<B: Backend> Clone for Stream<B> {
    fn clone(&self) -> Self {
        Stream(Arc::clone(&self.0))
    }
}

impl<B: Backend> Stream<B> {
    fn raw(&self) -> &B::Stream {
        self.0.raw.as_ref().expect("only its end takes it")
    }
}

impl<B: Backend> Drop for Followed<B> {
    fn drop(&mut self) {
        self.log.entries().push(Entry::StreamGone { stream: self.number });
    }
}

/// An event or a granule, with its number.
pub(crate) struct Numbered<T> {
    number: u64,
    raw: T,
}

// SAFETY: every verb is the inner backend's, with the same arguments, and what it returns is returned; so
// all that it promises holds.
unsafe impl<B: Backend> Backend for Recorder<B> {
    type Stream = Stream<B>;
    type Event = Numbered<B::Event>;
    type Granule = Numbered<B::Granule>;
    type Error = B::Error;

    fn error_kind(&self, error: &B::Error) -> ErrorKind {
        self.inner.error_kind(error)
    }

    fn context_id(&self) -> u64 {
        self.inner.context_id()
    }

    fn identify(&self, stream: &Stream<B>) -> Result<StreamIdentity, B::Error> {
        self.inner.identify(stream.raw())
    }

    fn is_capturing(&self, stream: &Stream<B>) -> Result<bool, B::Error> {
        self.inner.is_capturing(stream.raw())
    }

    fn release_stream(&self, stream: Stream<B>) {
        let raw = Arc::into_inner(stream.0).and_then(|mut last| last.raw.take());
        raw.into_iter().for_each(|raw| self.inner.release_stream(raw));
    }

    fn memory_info(&self) -> Result<MemoryInfo, B::Error> {
        self.inner.memory_info()
    }

    fn granularity(&self) -> Option<u64> {
        self.inner.granularity()
    }

    fn alloc_segment(&self, bytes: u64) -> Result<u64, B::Error> {
        let mut entries = self.log.entries();
        let address = self.inner.alloc_segment(bytes)?;
        entries.push(Entry::Segment { address, bytes });
        Ok(address)
    }

    unsafe fn free_segment(&self, address: u64, bytes: u64) -> Result<(), B::Error> {
        // SAFETY: the caller's promises are the inner verb's.
        let call = || unsafe { self.inner.free_segment(address, bytes) };
        self.log.calls(Entry::SegmentGone { address, bytes }, call)
    }

    fn reserve_range(&self, bytes: u64) -> Result<u64, B::Error> {
        let mut entries = self.log.entries();
        let address = self.inner.reserve_range(bytes)?;
        entries.push(Entry::Range { address, bytes });
        Ok(address)
    }

    unsafe fn release_range(&self, address: u64, bytes: u64) -> Result<(), B::Error> {
        // SAFETY: the caller's promises are the inner verb's.
        let call = || unsafe { self.inner.release_range(address, bytes) };
        self.log.calls(Entry::RangeGone { address, bytes }, call)
    }

    fn create_granule(&self, bytes: u64) -> Result<Self::Granule, B::Error> {
        let number = self.log.number();
        let entry = Entry::Granule { granule: number, bytes };
        let raw = self.log.calls(entry, || self.inner.create_granule(bytes))?;
        Ok(Numbered { number, raw })
    }

    unsafe fn destroy_granule(
        &self,
        granule: Self::Granule,
    ) -> Result<(), (Self::Granule, B::Error)> {
        let Numbered { number, raw } = granule;
        // SAFETY: the caller's promises are the inner verb's.
        let call = || unsafe { self.inner.destroy_granule(raw) };
        self.log
            .calls(Entry::GranuleGone { granule: number }, call)
            .map_err(|(raw, error)| (Numbered { number, raw }, error))
    }

    unsafe fn map(
        &self,
        address: u64,
        bytes: u64,
        granule: &Self::Granule,
    ) -> Result<(), B::Error> {
        // SAFETY: the caller's promises are the inner verb's.
        let call = || unsafe { self.inner.map(address, bytes, &granule.raw) };
        self.log.calls(Entry::Map { address, bytes, granule: granule.number }, call)
    }

    unsafe fn set_access(&self, address: u64, bytes: u64, peers: &[&Self]) -> Result<(), B::Error> {
        let peers: Vec<&B> = peers.iter().map(|peer| &peer.inner).collect();
        // SAFETY: the caller's promises are the inner verb's.
        let call = || unsafe { self.inner.set_access(address, bytes, &peers) };
        self.log.calls(Entry::SetAccess { address, bytes }, call)
    }

    unsafe fn unmap(&self, address: u64, bytes: u64) -> Result<(), B::Error> {
        // SAFETY: the caller's promises are the inner verb's.
        let call = || unsafe { self.inner.unmap(address, bytes) };
        self.log.calls(Entry::Unmap { address, bytes }, call)
    }

    fn allow_peer(&self, peer: &Self, segments: bool) -> Result<(), B::Error> {
        self.inner.allow_peer(&peer.inner, segments)
    }

    unsafe fn copy(
        &self,
        stream: &Stream<B>,
        to: u64,
        source: &Self,
        from: u64,
        bytes: u64,
    ) -> Result<(), B::Error> {
        // SAFETY: the caller's promises are the inner verb's.
        let call = || unsafe { self.inner.copy(stream.raw(), to, &source.inner, from, bytes) };
        self.log.calls(Entry::Copy { stream: stream.0.number, to, from, bytes }, call)
    }

    fn create_event(&self) -> Result<Self::Event, B::Error> {
        Ok(Numbered { number: self.log.number(), raw: self.inner.create_event()? })
    }

    fn destroy_event(&self, event: Self::Event) {
        let mut entries = self.log.entries();
        self.inner.destroy_event(event.raw);
        entries.push(Entry::EventGone { event: event.number });
    }

    fn record(&self, event: &Self::Event, stream: &Stream<B>) -> Result<(), B::Error> {
        let entry = Entry::Record { event: event.number, stream: stream.0.number };
        self.log.calls(entry, || self.inner.record(&event.raw, stream.raw()))
    }

    fn record_context(&self, event: &Self::Event) -> Result<bool, B::Error> {
        let mut entries = self.log.entries();
        let recorded = self.inner.record_context(&event.raw)?;
        entries.extend(recorded.then_some(Entry::RecordContext { event: event.number }));
        Ok(recorded)
    }

    fn wait(&self, stream: &Stream<B>, event: &Self::Event) -> Result<(), B::Error> {
        let entry = Entry::Wait { stream: stream.0.number, event: event.number };
        self.log.calls(entry, || self.inner.wait(stream.raw(), &event.raw))
    }

    fn query(&self, event: &Self::Event) -> Result<bool, B::Error> {
        let mut entries = self.log.entries();
        let finished = self.inner.query(&event.raw)?;
        entries.extend(finished.then_some(Entry::Finished { event: event.number }));
        Ok(finished)
    }

    fn synchronize_event(&self, event: &Self::Event) -> Result<(), B::Error> {
        self.synchronize(Some(event.number), || self.inner.synchronize_event(&event.raw))
    }

    fn synchronize_context(&self) -> Result<(), B::Error> {
        self.synchronize(None, || self.inner.synchronize_context())
    }
}

impl<B: Backend> Recorder<B> {
    fn synchronize(
        &self,
        event: Option<u64>,
        call: impl FnOnce() -> Result<(), B::Error>,
    ) -> Result<(), B::Error> {
        let number = self.log.number();
        self.log.entries().push(Entry::SynchronizeBegins { number, event });
        call()?;
        self.log.entries().push(Entry::SynchronizeEnds { number });
        Ok(())
    }
}

//! The one place that calls the backend: counts calls, sorts errors, recycles events.

mod access;
mod calls;
mod event;

use crate::backend::{Backend, ErrorKind, MemoryInfo, StreamIdentity};
use crate::error::{Error, Reason};
use crate::fault::seeded;
use crate::sync::host::OnceLock;
use crate::sync::{Arc, Mutex, assert_no_lock_held, host};

use calls::Calls;
pub use calls::DriverCalls;
pub(crate) use event::PooledEvent;

/// A backend as the pool uses it. It outlives the pool while events of it are pinned elsewhere.
#[derive(Debug)]
pub(crate) struct Driver<B: Backend> {
    backend: B,
    calls: Calls,
    /// The backend has said that it has no events for the whole context.
    no_context_events: host::AtomicBool,
    /// Events that nothing uses, to be recorded anew.
    idle: Mutex<Vec<B::Event>>,
    /// Events that must not be used again, to be destroyed by a call that may block.
    doomed: Mutex<Vec<B::Event>>,
    /// The sticky error that ended this context, once there is one.
    lost: OnceLock<Error>,
    /// Errors met where no `Result` could tell: how many, and the last.
    stray: Mutex<(u64, Option<Error>)>,
}

const LOOK_FOR_CAPTURE: &str = "ask whether a stream captures";

impl<B: Backend> Driver<B> {
    pub(crate) fn new(backend: B) -> Driver<B> {
        Driver {
            backend,
            calls: Calls::default(),
            no_context_events: host::AtomicBool::new(false),
            idle: Mutex::default(),
            doomed: Mutex::default(),
            lost: OnceLock::new(),
            stray: Mutex::default(),
        }
    }

    pub(crate) fn context_id(&self) -> u64 {
        self.backend.context_id()
    }

    pub(crate) fn granularity(&self) -> Option<u64> {
        self.backend.granularity()
    }

    /// Which stream a handle names, maybe one of another context.
    pub(crate) fn identify(&self, stream: &B::Stream) -> Result<StreamIdentity, Error> {
        assert_no_lock_held();
        let sort = |error| self.sort_among([], "identify a stream", error);
        self.backend.identify(stream).map_err(sort)
    }

    /// Makes a handle of a stream that other code owns.
    #[cfg(feature = "cuda")]
    pub(crate) fn wrap_stream<T>(
        &self,
        wrap: impl FnOnce(&B) -> Result<T, B::Error>,
    ) -> Result<T, Error> {
        assert_no_lock_held();
        wrap(&self.backend).map_err(|error| self.sort_among([], "identify a stream", error))
    }

    pub(crate) fn calls(&self) -> DriverCalls {
        self.calls.read()
    }

    /// The sticky error that ended this context.
    pub(crate) fn lost(&self) -> Option<&Error> {
        self.lost.get()
    }

    /// What is asked of a lost device's event has one answer, and there may be no event behind it.
    fn refuse_lost(&self) -> Result<(), Error> {
        self.lost().cloned().map_or(Ok(()), Err)
    }

    /// Keeps an error that no `Result` can tell.
    pub(crate) fn keep_error(&self, error: Error) {
        let mut stray = self.stray.lock();
        stray.0 += 1;
        stray.1 = Some(error);
    }

    /// How many errors were kept, ever.
    pub(crate) fn stray_errors(&self) -> u64 {
        self.stray.lock().0
    }

    pub(crate) fn take_error(&self) -> Option<Error> {
        self.stray.lock().1.take()
    }

    /// Runs one verb of the backend.
    fn call<T>(
        &self,
        verb: &'static str,
        counter: &host::AtomicU64,
        run: impl FnOnce(&B) -> Result<T, B::Error>,
    ) -> Result<T, Error> {
        assert_no_lock_held();
        counter.fetch_add(1, host::Ordering::Relaxed);
        run(&self.backend).map_err(|error| self.sort(verb, error))
    }

    /// Runs one verb that concerns another driver's context as well, or the same.
    fn call_with<T>(
        &self,
        other: &Driver<B>,
        verb: &'static str,
        counter: &host::AtomicU64,
        run: impl FnOnce(&B) -> Result<T, B::Error>,
    ) -> Result<T, Error> {
        if self.context_id() == other.context_id() {
            return self.call(verb, counter, run);
        }
        assert_no_lock_held();
        counter.fetch_add(1, host::Ordering::Relaxed);
        run(&self.backend).map_err(|error| self.sort_among([other], verb, error))
    }

    /// Sorts the error of a call that concerns this context alone.
    fn sort(&self, verb: &'static str, error: B::Error) -> Error {
        let kind = self.backend.error_kind(&error);
        let error = Error::driver(verb, kind, error);
        if kind == ErrorKind::DeviceLost {
            self.lose(&error);
        }
        error
    }

    /// Sorts the error of a call that concerns other contexts as well: a sticky one ends those, and only
    /// those, that say so in a call that concerns them alone. Where none does, each will at its next call.
    fn sort_among<'a>(
        &'a self,
        others: impl IntoIterator<Item = &'a Driver<B>>,
        verb: &'static str,
        error: B::Error,
    ) -> Error {
        let kind = self.backend.error_kind(&error);
        let error = Error::driver(verb, kind, error);
        if kind == ErrorKind::DeviceLost {
            for own in std::iter::once(self).chain(others) {
                own.calls.memory_infos.fetch_add(1, host::Ordering::Relaxed);
                let is_lost = |met| own.backend.error_kind(&met) == ErrorKind::DeviceLost;
                if own.backend.memory_info().is_err_and(is_lost) || seeded!(LostTogether) {
                    own.lose(&error);
                }
            }
        }
        error
    }

    /// This context has ended. The first sticky error is the cause; later ones follow from it.
    fn lose(&self, error: &Error) {
        let _ = self.lost.set(error.clone());
    }

    fn look_for_capture(&self, stream: &B::Stream) -> Result<bool, Error> {
        self.call(LOOK_FOR_CAPTURE, &self.calls.capture_queries, |own| own.is_capturing(stream))
    }

    /// Whether any of these streams captures; an error of a look counts as capturing. The looks are counted
    /// together: a scope begins and ends with one at every stream.
    pub(crate) fn any_capturing<'a>(&self, streams: impl Iterator<Item = &'a B::Stream>) -> bool {
        assert_no_lock_held();
        let mut looks = 0;
        let mut captures =
            streams.inspect(|_| looks += 1).map(|own| self.backend.is_capturing(own));
        let found = captures.find(|captures| !matches!(captures, Ok(false)));
        self.calls.capture_queries.fetch_add(looks, host::Ordering::Relaxed);
        match found {
            Some(Err(error)) => {
                self.sort(LOOK_FOR_CAPTURE, error);
                true
            }
            found => found.is_some(),
        }
    }

    /// Fails for a stream that captures. An error of the look counts as capturing, but one that says that
    /// there is no device or driver any more is told as what it is: no capture's end will help.
    pub(crate) fn refuse_capturing(
        &self,
        stream: &B::Stream,
        what: &'static str,
    ) -> Result<(), Error> {
        let error = match self.look_for_capture(stream) {
            Ok(false) => return Ok(()),
            Ok(true) => return Err(Error::new(Reason::Capturing { what })),
            Err(error) => error,
        };
        Err(match error.driver_kind() {
            // What has ended the context, which is more than that it has ended.
            Some(ErrorKind::DeviceLost) => self.lost().cloned().unwrap_or(error),
            Some(ErrorKind::Exiting) => error,
            _ => Error::look_failed(what, error),
        })
    }

    /// An event to record: an idle one, or a new one.
    pub(crate) fn event(self: &Arc<Self>) -> Result<Arc<PooledEvent<B>>, Error> {
        let idle = self.idle.lock().pop();
        let event = match idle {
            Some(event) => event,
            None => self.call("create an event", &self.calls.event_creates, B::create_event)?,
        };
        Ok(Arc::new(PooledEvent {
            event: Some(event),
            discarded: host::AtomicBool::new(false),
            driver: Arc::clone(self),
        }))
    }

    pub(crate) fn record(&self, event: &PooledEvent<B>, stream: &B::Stream) -> Result<(), Error> {
        if seeded!(SkipRecord) {
            return Ok(());
        }
        self.call("record an event", &self.calls.event_records, |own| {
            own.record(event.raw(), stream)
        })
    }

    /// Whether an event may be able to stand for the whole context.
    pub(crate) fn may_record_context(&self) -> bool {
        // Relaxed: an answer that is missed is only asked for again.
        !self.no_context_events.load(host::Ordering::Relaxed)
    }

    /// Records an event that stands for everything in the context; says whether that can be done.
    pub(crate) fn record_context(&self, event: &PooledEvent<B>) -> Result<bool, Error> {
        if seeded!(SkipRecord) {
            return Ok(true);
        }
        assert_no_lock_held();
        let recorded = self.backend.record_context(event.raw());
        if matches!(recorded, Ok(false)) {
            self.no_context_events.store(true, host::Ordering::Relaxed);
        } else {
            self.calls.event_records.fetch_add(1, host::Ordering::Relaxed);
        }
        recorded.map_err(|error| self.sort("record an event on the context", error))
    }

    /// Makes a stream of `taker` wait for an event of this driver.
    pub(crate) fn wait(
        &self,
        (taker, stream): (&Driver<B>, &B::Stream),
        event: &PooledEvent<B>,
    ) -> Result<(), Error> {
        if seeded!(SkipWait) {
            return Ok(());
        }
        self.refuse_lost()?;
        let verb = "make a stream wait for an event";
        self.call_with(taker, verb, &self.calls.stream_waits, |own| own.wait(stream, event.raw()))
    }

    pub(crate) fn query(&self, event: &PooledEvent<B>) -> Result<bool, Error> {
        self.refuse_lost()?;
        self.call("query an event", &self.calls.event_queries, |own| own.query(event.raw()))
    }

    pub(crate) fn synchronize_event(&self, event: &PooledEvent<B>) -> Result<(), Error> {
        self.refuse_lost()?;
        self.call("synchronize an event", &self.calls.event_synchronizes, |own| {
            own.synchronize_event(event.raw())
        })
    }

    pub(crate) fn synchronize_context(&self) -> Result<(), Error> {
        if seeded!(SkipSynchronize) {
            return Ok(());
        }
        self.call(
            "synchronize the context",
            &self.calls.context_synchronizes,
            B::synchronize_context,
        )
    }

    pub(crate) fn memory_info(&self) -> Result<MemoryInfo, Error> {
        self.call("ask for the device's memory", &self.calls.memory_infos, B::memory_info)
    }

    /// Runs one of the memory verbs.
    pub(crate) fn memory<T>(
        &self,
        verb: &'static str,
        run: impl FnOnce(&B) -> Result<T, B::Error>,
    ) -> Result<T, Error> {
        self.call(verb, &self.calls.memory_calls, run)
    }

    /// Puts a copy on a stream of this driver, from another driver's memory or its own.
    ///
    /// # Safety
    ///
    /// As for [`Backend::copy`].
    pub(crate) unsafe fn copy(
        &self,
        (stream, to): (&B::Stream, u64),
        (source, from): (&Driver<B>, u64),
        bytes: u64,
    ) -> Result<(), Error> {
        self.call_with(source, "copy memory", &self.calls.transfers, |own| {
            // SAFETY: the caller's promise is the backend's condition.
            unsafe { own.copy(stream, to, &source.backend, from, bytes) }
        })
    }

    /// Submits a fill or a copy.
    #[cfg(feature = "cuda")]
    pub(crate) fn transfer(
        &self,
        verb: &'static str,
        run: impl FnOnce() -> Result<(), B::Error>,
    ) -> Result<(), Error> {
        self.call(verb, &self.calls.transfers, |_| run())
    }

    /// Gives granule memory back; on an error the granule still exists.
    ///
    /// # Safety
    ///
    /// As for [`Backend::destroy_granule`].
    pub(crate) unsafe fn destroy_granule(
        &self,
        granule: B::Granule,
    ) -> Result<(), (B::Granule, Error)> {
        assert_no_lock_held();
        self.calls.memory_calls.fetch_add(1, host::Ordering::Relaxed);
        // SAFETY: the caller's promise is the backend's condition.
        unsafe { self.backend.destroy_granule(granule) }
            .map_err(|(granule, error)| (granule, self.sort("give memory back", error)))
    }

    pub(crate) fn release_stream(&self, stream: B::Stream) {
        assert_no_lock_held();
        self.backend.release_stream(stream);
    }

    /// Destroys the events that must not be used again, and with `idle` the unused ones too.
    pub(crate) fn destroy_events(&self, idle: bool) {
        let mut events = std::mem::take(&mut *self.doomed.lock());
        if idle {
            events.append(&mut self.idle.lock());
        }
        for event in events {
            self.destroy(event);
        }
    }

    fn destroy(&self, event: B::Event) {
        assert_no_lock_held();
        self.calls.event_destroys.fetch_add(1, host::Ordering::Relaxed);
        self.backend.destroy_event(event);
    }
}

impl<B: Backend> Drop for Driver<B> {
    /// The last pin of an event of a closed pool went: in a call that may block, because a pool that is
    /// not closed keeps its driver.
    fn drop(&mut self) {
        self.destroy_events(true);
    }
}

//! Closing epochs, waiting, asking: every driver call that is about order.

use super::{PoolCore, PooledEvent};
use crate::backend::Backend;
use crate::buffer::{Buffer, NAMED};
use crate::error::{Error, Reason};
use crate::fault::seeded;
use crate::history::Action;
use crate::order::{Closed, Epoch, Evidence, Moment, Timeline, TimelineId};
use crate::pool_stream::core::StreamCore;
use crate::pool_stream::home::Home;
use crate::quiescent::ScopeId;
use crate::sync::Arc;

/// From this many published events on, closing an epoch also asks the oldest ones, so that a stream
/// whose epochs nobody asks for keeps no more of them than are under way.
const BACKLOG: usize = 16;

/// From this many entries on, a frontier is rid of those that have completed.
const FRONTIER: usize = 32;

/// A driver call in flight on a stream, counted under its lock. It holds the core as well, so that the
/// last unlock is safe.
pub(crate) struct Pin<B: Backend> {
    pub(crate) core: Arc<StreamCore<B>>,
}

impl<B: Backend> Drop for Pin<B> {
    fn drop(&mut self) {
        self.core.unpin();
    }
}

impl<B: Backend> PoolCore<B> {
    /// Closes a stream's open epoch and publishes its event. The stream is counted by the caller.
    ///
    /// The number is taken and the frontier copied before the record, so that the event covers the
    /// epoch and what the copy says; both are published only after it.
    pub(crate) fn close_epoch(
        &self,
        core: &StreamCore<B>,
        moment: Moment,
    ) -> Result<Closed<PooledEvent<B>>, Error> {
        let own = &core.pool.driver;
        let driver = if seeded!(EventOfAnotherContext) { &self.driver } else { own };
        if let Err(error) = driver.refuse_capturing(core.stream(), "the stream")
            && !seeded!(RecordInCapture)
        {
            return Err(error);
        }
        let event = match seeded!(EventReusedEarly).then(|| self.event_in_use(core)).flatten() {
            Some(event) => event,
            None => driver.event()?,
        };
        let (epoch, frontier) = {
            let mut state = core.state.lock();
            (state.advance(), Arc::clone(&state.frontier))
        };
        if seeded!(PublishEarly) {
            let (event, frontier) = (Arc::clone(&event), Arc::clone(&frontier));
            core.timeline.publish(Closed { epoch, event, frontier, moment });
        }
        if let Err(error) = driver.record(&event, core.stream())
            && !seeded!(FailedRecordTaken)
        {
            event.discard();
            return Err(error);
        }
        // Recorded into a capture that has just begun, the event stands for nothing.
        if let Err(error) = driver.refuse_capturing(core.stream(), "the stream")
            && !seeded!(RecordInCapture)
        {
            event.discard();
            return Err(error);
        }
        let late = seeded!(FrontierAfterRecord).then(|| Arc::clone(&core.state.lock().frontier));
        let frontier = late.unwrap_or(frontier);
        let closed = Closed { epoch, event, frontier, moment };
        if core.timeline.publish(closed.clone()) > BACKLOG {
            self.poll_backlog(&core.timeline);
        }
        Ok(closed)
    }

    /// An event that stands for an epoch of another stream: a fault takes it for a new one.
    fn event_in_use(&self, core: &StreamCore<B>) -> Option<Arc<PooledEvent<B>>> {
        let streams = self.streams();
        let mut others = streams.iter().filter(|other| other.id != core.id);
        others.find_map(|other| other.timeline.latest()).map(|closed| closed.event)
    }

    /// Closes the epoch of a free, on a stream that was registered for it.
    pub(crate) fn close_epoch_of_free(&self, core: &StreamCore<B>) {
        let _call = self.begin_end();
        if self.driver.lost().is_none()
            && let Err(error) = self.close_epoch(core, Moment::Early)
        {
            self.driver.keep_error(error);
        }
    }

    /// Makes `taker` wait for a closed epoch of another timeline, and then knows that it does.
    pub(super) fn wait(
        &self,
        taker: &StreamCore<B>,
        timeline: &Timeline<PooledEvent<B>>,
        closed: &Closed<PooledEvent<B>>,
    ) -> Result<(), Error> {
        if seeded!(FrontierBeforeWait) {
            taker.ordered_after(timeline.id(), closed);
        }
        let owner = seeded!(WaitOnOwner).then(|| self.stream_of(timeline.id())).flatten();
        let waits = owner.as_deref().unwrap_or(taker);
        let stream = (&*waits.pool.driver, waits.stream());
        if let Err(error) = closed.event.driver().wait(stream, &closed.event)
            && !seeded!(FailedWaitTaken)
        {
            self.reject(timeline, closed);
            return Err(error);
        }
        taker.pool.note(taker, Action::Wait { on: timeline.id().get() });
        if taker.ordered_after(timeline.id(), closed) > FRONTIER {
            taker.pool.prune_frontier(taker);
        }
        Ok(())
    }

    /// Drops what has completed from a stream's frontier: it orders nothing any more.
    fn prune_frontier(&self, core: &StreamCore<B>) {
        let central = self.central.lock();
        let mut state = core.state.lock();
        let completed = |timeline, epoch| central.timelines.completed(timeline) >= epoch;
        Arc::make_mut(&mut state.frontier).prune(completed);
    }

    /// Makes `taker` wait for all that is queued on `source` by now.
    pub(crate) fn order_after_now(
        &self,
        source: &StreamCore<B>,
        taker: &StreamCore<B>,
    ) -> Result<(), Error> {
        taker.pool.driver.refuse_capturing(taker.stream(), "the stream that is to wait")?;
        let closed = self.close_epoch(source, Moment::Early)?;
        self.wait(taker, &source.timeline, &closed)
    }

    /// Asks whether a closed epoch has finished, and if so marks it completed.
    pub(super) fn ask(
        &self,
        timeline: &Timeline<PooledEvent<B>>,
        closed: &Closed<PooledEvent<B>>,
    ) -> Result<bool, Error> {
        match closed.event.driver().query(&closed.event) {
            Ok(finished) => {
                let finished = finished || seeded!(UnfinishedTaken);
                if finished {
                    timeline.complete(closed.epoch);
                }
                Ok(finished)
            }
            Err(error) => {
                self.reject(timeline, closed);
                Err(error)
            }
        }
    }

    /// Blocks until a closed epoch has finished, and marks it completed.
    pub(super) fn synchronize(
        &self,
        timeline: &Timeline<PooledEvent<B>>,
        closed: &Closed<PooledEvent<B>>,
    ) -> Result<(), Error> {
        if let Err(error) = closed.event.driver().synchronize_event(&closed.event) {
            self.reject(timeline, closed);
            return Err(error);
        }
        timeline.complete(closed.epoch);
        Ok(())
    }

    /// An event that the driver refused is thrown away: its epoch counts as not closed. If nothing can
    /// close it any more, because the stream has left, the event is kept (and destroyed after it) and
    /// the blocks that wait for it are set aside until it, or the context, is synchronized.
    fn reject(&self, timeline: &Timeline<PooledEvent<B>>, closed: &Closed<PooledEvent<B>>) {
        closed.event.discard();
        if !timeline.unpublish(&closed.event) {
            self.central.lock().heap.quarantine_timeline(timeline.id());
        }
    }

    pub(crate) fn synchronize_stream(&self, core: &StreamCore<B>) -> Result<(), Error> {
        let closed = self.close_epoch(core, Moment::Early)?;
        self.synchronize(&core.timeline, &closed)
    }

    /// Counts a driver call on the stream of a timeline, unless it has left its pool.
    pub(super) fn pin(&self, id: TimelineId) -> Option<Pin<B>> {
        let core = self.stream_of(id)?;
        core.pin().then(|| Pin { core })
    }

    /// Everything that is queued on the pool's streams has finished when this returns `Ok`: their epochs
    /// up to now have completed. Streams that capture are left out.
    ///
    /// Each stream counts frees for `scope`, if one is about to open, from here on: so that already the
    /// first free on it takes the short way.
    pub(crate) fn quiesce_streams(&self, scope: Option<ScopeId>) -> Result<(), Error> {
        let streams = self.streams();
        let retired = self.central.lock().retired.clone();
        if self.may_capture(&streams) {
            return self.quiesce_one_by_one(&streams, &retired);
        }
        self.quiesce_context(&streams, &retired, scope)
    }

    /// Everything that is queued in the context has finished when this returns `Ok`, also on streams
    /// that are not registered. An error while a stream captures, since it would break the capture.
    pub(super) fn quiesce_strangers(&self) -> Result<(), Error> {
        if self.config.foreign_captures {
            return Err(Error::new(Reason::Capturing {
                what: "a stream that the pool does not know",
            }));
        }
        self.synchronize_context()
    }

    /// The same at the wish of a program that knows that no stream captures which the pool does not know.
    pub(super) fn synchronize_context(&self) -> Result<(), Error> {
        let streams = self.streams();
        let retired = self.central.lock().retired.clone();
        streams.iter().try_for_each(|core| {
            self.driver.refuse_capturing(core.stream(), "a stream of the context")
        })?;
        self.quiesce_context(&streams, &retired, None)
    }

    /// Whether a synchronize of the context might break a capture.
    pub(super) fn may_capture(&self, streams: &[Arc<StreamCore<B>>]) -> bool {
        self.config.foreign_captures || self.captures(streams)
    }

    fn captures(&self, streams: &[Arc<StreamCore<B>>]) -> bool {
        let streams = streams.iter().inspect(|core| core.timeline.prefetch());
        self.driver.any_capturing(streams.map(|core| core.stream()))
    }

    fn quiesce_context(
        &self,
        streams: &[Arc<StreamCore<B>>],
        retired: &[Arc<Timeline<PooledEvent<B>>>],
        scope: Option<ScopeId>,
    ) -> Result<(), Error> {
        let mut noted: Vec<(&Timeline<PooledEvent<B>>, Epoch)> = Vec::with_capacity(streams.len());
        for core in streams.iter() {
            let mut state = core.state.lock();
            if let Some(scope) = scope {
                state.count_for(scope);
            }
            noted.push((&core.timeline, state.advance()));
        }
        noted.extend(retired.iter().filter_map(|own| Some((&**own, own.last()?))));
        let strangers = self.central.lock().strangers_by_now();
        let foreign = if seeded!(OwnDeviceForAll) { self.foreign_streams() } else { Vec::new() };
        noted.extend(strangers.iter().map(|(timeline, epoch)| (&**timeline, *epoch)));
        let foreign = foreign.iter().filter_map(|(_, core)| core.as_ref());
        noted.extend(foreign.map(|core| (&*core.timeline, core.state.lock().advance())));
        self.driver.synchronize_context()?;
        let past = seeded!(CompletedPastSnapshot);
        let seen =
            |(timeline, epoch): (_, Epoch)| (timeline, if past { epoch.next() } else { epoch });
        Timeline::complete_all(noted.into_iter().map(seen));
        Ok(())
    }

    fn quiesce_one_by_one(
        &self,
        streams: &[Arc<StreamCore<B>>],
        retired: &[Arc<Timeline<PooledEvent<B>>>],
    ) -> Result<(), Error> {
        let (mut closed, mut leaving) = (Vec::with_capacity(streams.len()), Vec::new());
        for core in streams {
            if !core.pin() {
                leaving.push(core);
                continue;
            }
            let pin = Pin { core: Arc::clone(core) };
            match self.close_epoch(core, Moment::Probe) {
                Ok(own) => closed.push((pin, own)),
                // It is left out: that it captures is why we are here.
                Err(error) if error.is_capture() => {}
                Err(error) => return Err(error),
            }
        }
        for (pin, own) in &closed {
            self.synchronize(&pin.core.timeline, own)?;
        }
        leaving.into_iter().try_for_each(|core| self.synchronize_leaving(core))?;
        for timeline in retired {
            if let Some(own) = timeline.latest() {
                self.synchronize(timeline, &own)?;
            }
        }
        Ok(())
    }

    /// Asks the oldest events of a timeline that has many.
    fn poll_backlog(&self, timeline: &Timeline<PooledEvent<B>>) {
        for _ in 0..2 {
            match timeline.oldest() {
                Some((closed, count)) if count > BACKLOG => match self.ask(timeline, &closed) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => return self.driver.keep_error(error),
                },
                _ => return,
            }
        }
    }

    /// Lets a stream use a buffer from now on.
    pub(crate) fn use_on(&self, buffer: &Buffer<B>, other: &StreamCore<B>) -> Result<(), Error> {
        if buffer.home.is(other) || buffer.block.is_none() {
            return Ok(());
        }
        self.check_access(other)?;
        if !seeded!(UseOnWithoutWait) {
            self.order_after_now(&buffer.home, other)?;
        }
        self.name_user(buffer, other);
        Ok(())
    }

    /// Names a stream in a buffer's set. The caller keeps the stream registered until this returns.
    pub(super) fn name_user(&self, buffer: &Buffer<B>, other: &StreamCore<B>) {
        if !std::ptr::eq(self, &*other.pool) && !seeded!(ForeignForgotten) {
            self.know_foreign(other);
        }
        // Counted before it is named, so that a name is always counted.
        other.state.lock().named += 1;
        let named = {
            let mut home = buffer.home.state.lock();
            let set = home.sets.entry(buffer.address).or_default();
            let fresh = !set.iter().any(|own| own.is(other));
            if fresh {
                set.push(Home::new(other));
                buffer.add_others(NAMED);
            }
            fresh
        };
        if !named {
            // The caller's own count keeps it registered.
            other.state.lock().named -= 1;
        }
    }

    /// Makes another stream of this pool a buffer's home.
    pub(crate) fn move_to(
        &self,
        buffer: &mut Buffer<B>,
        other: &StreamCore<B>,
    ) -> Result<(), Error> {
        if buffer.home.is(other) {
            return Ok(());
        }
        if !std::ptr::eq(self, &*other.pool) {
            return Err(Error::new(Reason::ForeignPool));
        }
        if !buffer.block.is_none() {
            self.order_after_now(&buffer.home, other)?;
        }
        if buffer.block.is_none() {
            let mut state = other.state.lock();
            state.take(0);
            state.counters.moved += 1;
        } else {
            other.welcome(buffer.rounded(), false);
            // Before the buffer can be freed there: a snapshot never meets its block on two lists.
            self.central.lock().heap.set_home(buffer.block, other.id);
        }
        // SAFETY: the buffer is counted in home's `live` until the section below.
        let home = unsafe { buffer.home.counted() };
        let set = {
            let mut state = home.state.lock();
            let set = state.sets.remove(&buffer.address);
            state.give_unnoticed(buffer.bytes());
            if !buffer.block.is_none() {
                state.forgo(buffer.rounded().bin);
            }
            home.note_if_unused(&mut state);
            set
        };
        if let Some(set) = set {
            other.state.lock().sets.insert(buffer.address, set);
        }
        buffer.home = Home::new(other);
        Ok(())
    }
}

//! What a gate test needs of a device, and the pool of a test on it.
//!
//! The tests are written once, against [`Rig`], and run on two: a real device, where they prove something,
//! and the simulated one, where they themselves are tested.

use std::thread;
use std::time::{Duration, Instant};

use streampool::backend::Backend;
use streampool::{Buffer, Growth, PoolBuilder, PoolStream, StreamPool};

/// The size of most blocks: whole granules, so that neither kind of growth leaves a rest.
pub(crate) const BLOCK: u64 = 4 << 20;
/// How long work may take that nothing holds up.
const PATIENCE: Duration = Duration::from_secs(2);
/// For how long work that a gate holds up is watched.
const WATCHED: Duration = Duration::from_millis(20);

pub(crate) type Raw<R> = <<R as Rig>::B as Backend>::Stream;
pub(crate) type Stream<R> = PoolStream<<R as Rig>::B>;
pub(crate) type Held<R> = Buffer<<R as Rig>::B>;

/// A device for gate tests. No verb here waits for the device except those that say so.
pub(crate) trait Rig: Sync {
    type B: Backend;
    /// A closed gate. It opens when it is dropped.
    type Gate: Gate;

    /// A backend of the one context that all tests use.
    fn backend(&self) -> Self::B;

    /// A new non-blocking stream.
    fn stream(&self) -> Raw<Self>;

    /// New non-blocking streams, none of which is held up by a gate on another: on a real device two can
    /// share a queue of the hardware.
    fn independent<const N: usize>(&self) -> [Raw<Self>; N];

    /// A new non-blocking stream that comes before ordinary ones, or is one.
    fn stream_of_priority(&self, urgent: bool) -> Raw<Self>;

    /// The legacy stream, and the per-thread default stream.
    fn legacy(&self) -> Raw<Self>;
    fn per_thread(&self) -> Raw<Self>;

    /// Holds up everything later on the stream.
    fn close(&self, stream: &Raw<Self>) -> Self::Gate;

    /// The same, by a kernel that looks whether the gate is open, where there is another way.
    fn close_by_kernel(&self, stream: &Raw<Self>) -> Self::Gate;

    /// Puts a kernel on the stream that takes so long, in nanoseconds, and touches nothing.
    fn busy(&self, stream: &Raw<Self>, ns: u64);

    /// Puts a kernel on the stream that takes so long and then writes a stamp over the bytes.
    fn stamp(&self, stream: &Raw<Self>, address: u64, bytes: u64, stamp: u64, ns: u64);

    /// Puts a kernel on the stream that counts what is not the stamp.
    fn check(&self, stream: &Raw<Self>, address: u64, bytes: u64, stamp: u64);

    /// Puts a copy on the stream. What is copied is this stamp.
    fn copy(&self, stream: &Raw<Self>, to: u64, from: u64, bytes: u64, stamp: u64);

    /// What the checks have counted since the last call. Synchronizes.
    fn mismatches(&self) -> u64;

    /// Lets a little time pass.
    fn pause(&self);

    /// Begins a capture in one of three modes: global, thread-local, relaxed.
    fn begin_capture(&self, stream: &Raw<Self>, mode: usize);

    /// Ends a capture, and says whether it was whole.
    fn end_capture(&self, stream: &Raw<Self>) -> bool;

    /// Makes no context current on this thread.
    fn leave_context(&self);

    /// Whether a context is current on this thread.
    fn has_context(&self) -> bool;
}

pub(crate) trait Gate {
    /// Whether the test itself has not opened it, but a watchdog has: then what was seen proves nothing.
    fn was_forced(&self) -> bool;
}

/// A pool on a device, and what its tests do again and again.
pub(crate) struct Lab<'a, R: Rig> {
    pub(crate) rig: &'a R,
    pub(crate) pool: StreamPool<R::B>,
    own: R::B,
}

/// Runs a test on a pool of so many bytes, all taken from the device before, in both kinds of growth.
pub(crate) fn in_both_kinds<R: Rig>(rig: &R, bytes: u64, test: impl Fn(&Lab<'_, R>)) {
    for growth in [Growth::Virtual, Growth::Segments] {
        eprintln!("growth: {growth:?}");
        let lab = Lab::with(rig, |builder| builder.growth(growth).limit(bytes));
        lab.pool.reserve(bytes).expect("the device has so much");
        test(&lab);
    }
}

impl<'a, R: Rig> Lab<'a, R> {
    pub(crate) fn with(
        rig: &'a R,
        options: impl FnOnce(PoolBuilder<R::B>) -> PoolBuilder<R::B>,
    ) -> Lab<'a, R> {
        let pool = options(StreamPool::builder(rig.backend())).build().expect("good options");
        Lab { rig, pool, own: rig.backend() }
    }

    /// The same growth on two devices, each with a pool whose memory the other may use; the first has so many
    /// bytes, all taken from the device before.
    pub(crate) fn pair(
        near: &'a R,
        far: &'a R,
        growth: Growth,
        bytes: u64,
    ) -> (Lab<'a, R>, Lab<'a, R>) {
        let near = Lab::with(near, |builder| {
            builder.growth(growth).limit(bytes).peer_devices([far.backend()])
        });
        near.pool.reserve(bytes).expect("the device has so much");
        let far = Lab::with(far, |builder| builder.growth(growth).peers([&near.pool]));
        far.pool.reserve(bytes).expect("the device has so much");
        (near, far)
    }

    /// New streams, registered, none of which holds up another.
    pub(crate) fn streams<const N: usize>(&self) -> [Stream<R>; N] {
        self.rig.independent::<N>().map(|raw| self.register(raw))
    }

    /// New streams, registered; on a real device some may hold each other up.
    pub(crate) fn many_streams(&self, count: usize) -> Vec<Stream<R>> {
        (0..count).map(|_| self.register(self.rig.stream())).collect()
    }

    pub(crate) fn register(&self, raw: Raw<R>) -> Stream<R> {
        self.pool.stream(raw).expect("a stream can be registered")
    }

    pub(crate) fn alloc(&self, stream: &Stream<R>) -> Held<R> {
        self.alloc_of(stream, BLOCK)
    }

    pub(crate) fn alloc_of(&self, stream: &Stream<R>, bytes: u64) -> Held<R> {
        stream.alloc(bytes as usize).expect("there is memory")
    }

    pub(crate) fn close(&self, stream: &Stream<R>) -> R::Gate {
        self.rig.close(stream.raw())
    }

    /// Frees a buffer of `a` behind a gate that is closed there, where a stamp still uses it, with `other` free
    /// to run: its address, and the gate.
    pub(crate) fn freed_behind_a_gate(&self, a: &Stream<R>, other: &Stream<R>) -> (u64, R::Gate) {
        let x = self.alloc(a);
        let gate = self.close(a);
        self.stamp(a, &x, 1);
        self.is_free(other, &gate);
        (x.device_ptr(), gate)
    }

    /// Writes a stamp over a buffer, on a stream.
    pub(crate) fn stamp(&self, stream: &Stream<R>, buffer: &Held<R>, stamp: u64) {
        self.stamp_slowly(stream, buffer, stamp, 0);
    }

    pub(crate) fn stamp_slowly(&self, stream: &Stream<R>, buffer: &Held<R>, stamp: u64, ns: u64) {
        let (address, bytes) = (buffer.device_ptr(), buffer.capacity() as u64);
        self.rig.stamp(stream.raw(), address, bytes, stamp, ns);
    }

    pub(crate) fn check(&self, stream: &Stream<R>, buffer: &Held<R>, stamp: u64) {
        let (address, bytes) = (buffer.device_ptr(), buffer.capacity() as u64);
        self.rig.check(stream.raw(), address, bytes, stamp);
    }

    /// Whether all that is on the stream by now finishes in this time.
    pub(crate) fn finishes_within(&self, stream: &Stream<R>, time: Duration) -> bool {
        self.raw_finishes_within(stream.raw(), time)
    }

    fn raw_finishes_within(&self, raw: &Raw<R>, time: Duration) -> bool {
        let event = self.own.create_event().expect("an event");
        self.own.record(&event, raw).expect("a record");
        let begun = Instant::now();
        let finished = loop {
            if self.own.query(&event).expect("a query") {
                break true;
            }
            if begun.elapsed() > time {
                break false;
            }
            self.rig.pause();
        };
        self.own.destroy_event(event);
        finished
    }

    /// Whether all that is on the stream finishes in the time for which gated work is watched.
    pub(crate) fn finishes_soon(&self, stream: &Stream<R>) -> bool {
        self.finishes_within(stream, WATCHED)
    }

    /// Whether a stream that is not registered is free to run.
    pub(crate) fn is_free_now(&self, raw: &Raw<R>) -> bool {
        self.rig.busy(raw, 0);
        self.raw_finishes_within(raw, PATIENCE / 8)
    }

    /// The positive control: the gate holds up another stream, not this one.
    #[track_caller]
    pub(crate) fn is_free(&self, stream: &Stream<R>, gate: &R::Gate) {
        self.rig.busy(stream.raw(), 0);
        let finished = self.finishes_within(stream, PATIENCE);
        assert!(finished && !gate.was_forced(), "INCONCLUSIVE: the gate holds up another stream");
    }

    /// All that is on the stream finishes although the gate is closed.
    #[track_caller]
    pub(crate) fn finishes(&self, stream: &Stream<R>, gate: &R::Gate) {
        let finished = self.finishes_within(stream, PATIENCE);
        assert!(finished && !gate.was_forced(), "FIRED: it waits for what it need not wait for");
    }

    /// All that is on the stream finishes soon, with no gate closed. The pool does not learn it.
    #[track_caller]
    pub(crate) fn runs_dry(&self, stream: &Stream<R>) {
        assert!(self.finishes_within(stream, PATIENCE), "INCONCLUSIVE: the device hangs");
    }

    /// What is on the stream does not finish while the gate is closed.
    #[track_caller]
    pub(crate) fn waits(&self, stream: &Stream<R>, gate: &R::Gate) {
        self.waits_for(stream, gate, WATCHED);
    }

    #[track_caller]
    pub(crate) fn waits_for(&self, stream: &Stream<R>, gate: &R::Gate, time: Duration) {
        let finished = self.finishes_within(stream, time);
        assert!(!gate.was_forced(), "INCONCLUSIVE: the watchdog has opened the gate");
        assert!(!finished, "FIRED: it finished while what it depends on had not begun");
    }

    /// When everything has finished the buffer is full of the stamp.
    #[track_caller]
    pub(crate) fn holds(&self, buffer: &Held<R>, stamp: u64) {
        self.own.synchronize_context().expect("the device works");
        self.check(&buffer.stream(), buffer, stamp);
        self.no_mismatch();
    }

    /// Everything has finished, as far as the device is concerned. The pool does not learn it.
    pub(crate) fn synchronize(&self) {
        self.own.synchronize_context().expect("the device works");
    }

    #[track_caller]
    pub(crate) fn no_mismatch(&self) {
        let wrong = self.rig.mismatches();
        assert_eq!(wrong, 0, "FIRED: so much was overwritten");
    }

    /// The stream takes the block at this address, which another stream used behind the gate, and must
    /// wait for that.
    #[track_caller]
    pub(crate) fn taken_in_order(&self, taker: &Stream<R>, at: u64, gate: R::Gate) {
        let taken = self.alloc(taker);
        assert_eq!(taken.device_ptr(), at, "INCONCLUSIVE: it is another block");
        self.stamp(taker, &taken, 2);
        self.waits(taker, &gate);
        drop(gate);
        self.holds(&taken, 2);
    }

    /// The number of a stream's raw handle.
    pub(crate) fn handle_of(&self, raw: &Raw<R>) -> u64 {
        self.own.identify(raw).expect("a stream of this context").handle
    }

    pub(crate) fn is_capturing(&self, stream: &Stream<R>) -> bool {
        self.own.is_capturing(stream.raw()).expect("it can be asked")
    }

    /// Driver calls that the pool has made.
    pub(crate) fn calls(&self) -> u64 {
        self.pool.stats().calls.total()
    }

    /// Waits that the pool has made streams do.
    pub(crate) fn stream_waits(&self) -> u64 {
        self.pool.stats().calls.stream_waits
    }
}

impl<R: Rig> Drop for Lab<'_, R> {
    fn drop(&mut self) {
        if !thread::panicking() {
            // So that no pool stays behind that others would have to ask again and again.
            self.pool.synchronize().expect("the device works");
            assert!(self.pool.take_error().is_none(), "an error that nobody was told");
        }
    }
}

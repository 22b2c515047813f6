//! One thread of a round.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use streampool::backend::Backend;
use streampool::check::{Exit, Op, Program, Setup, Step};
use streampool::{Buffer, Error, PoolStream, QuiescentScope};

use super::{Device, LENGTH, Report, Round, locked};

/// Streams and buffers that a thread has at most.
const STREAMS: usize = 4;
const BUFFERS: usize = 12;

/// A buffer that a thread holds, and which streams are ordered after its uses.
pub(super) struct Live<B: Backend> {
    buffer: Buffer<B>,
    /// The streams that it may be used on, with their numbers: home, then those that `use_on` named.
    streams: Vec<(u64, B::Stream)>,
    stamp: Option<u64>,
    /// Streams that are ordered after the last write.
    may_read: Vec<u64>,
    /// Streams that are ordered after every use.
    may_write: Vec<u64>,
}

impl<B: Backend> Live<B> {
    /// What follows on `later` is ordered after what is on `earlier`.
    fn order(&mut self, earlier: u64, later: u64) {
        for ordered in [&mut self.may_read, &mut self.may_write] {
            if ordered.contains(&earlier) && !ordered.contains(&later) {
                ordered.push(later);
            }
        }
    }

    /// Writes a new stamp, on a stream that is ordered after every use.
    fn write<D: Device<B = B>>(&mut self, device: &D, on: usize, stamp: u64, ns: u64) {
        let (number, raw) = &self.streams[on];
        device.stamp(raw, self.buffer.device_ptr(), self.bytes(), stamp, ns);
        self.stamp = Some(stamp);
        self.may_read = vec![*number];
        self.may_write = vec![*number];
    }

    /// Checks the stamp, after so long, on a stream that is ordered after the last write.
    fn read<D: Device<B = B>>(&mut self, device: &D, on: usize, ns: u64) -> bool {
        let Some(stamp) = self.stamp else { return false };
        let (number, raw) = &self.streams[on];
        device.busy(raw, ns);
        device.check(raw, self.buffer.device_ptr(), self.bytes(), stamp);
        self.may_write.retain(|other| other == number);
        true
    }

    /// Checks the stamp a last time.
    pub(super) fn checked<D: Device<B = B>>(mut self, device: &D, ns: u64) -> Buffer<B> {
        let ordered = |own: &(u64, B::Stream)| self.may_read.contains(&own.0);
        let on = self.streams.iter().position(ordered).expect("who wrote it is one of its streams");
        self.read(device, on, ns);
        self.buffer
    }

    fn bytes(&self) -> u64 {
        self.buffer.capacity() as u64
    }
}

/// A registered stream.
struct Slot<B: Backend> {
    number: u64,
    handle: PoolStream<B>,
}

pub(super) struct Player<'a, D: Device> {
    round: &'a Round<'a, D>,
    setup: Setup,
    slots: Vec<Slot<D::B>>,
    live: Vec<Live<D::B>>,
    scopes: Vec<QuiescentScope<D::B>>,
    /// Scopes that end only with the program: as good as leaked.
    leaked: Vec<QuiescentScope<D::B>>,
    /// What was freed last: the number of its home, and its length.
    freed: Option<(u64, usize)>,
    counts: Report,
    chance: u64,
}

impl<'a, D: Device> Player<'a, D> {
    pub(super) fn new(round: &'a Round<'a, D>, setup: Setup) -> Player<'a, D> {
        let (slots, live, scopes, leaked, counts) = Default::default();
        Player { round, setup, slots, live, scopes, leaked, freed: None, counts, chance: 0 }
    }

    pub(super) fn play(mut self, program: &Program) -> Report {
        self.chance = program.setup.seed.wrapping_mul(LENGTH as u64);
        for index in 0..3 {
            self.create(self.setup.record_on_free >> index & 1 == 1);
        }
        for step in &program.steps {
            if step.thread.is_multiple_of(8) {
                self.take_mail();
            }
            let did = self.step(*step);
            self.counts.operations += u64::from(did);
        }
        while let Some(live) = self.live.pop() {
            let ns = self.delay();
            drop(live.checked(self.round.device, ns));
        }
        self.counts.programs += 1;
        self.counts
    }

    fn step(&mut self, step: Step) -> bool {
        // What one thread waits for is clean for all of them, so that with several nothing would ever be
        // pending: most of these are left out.
        let waits =
            matches!(step.op, Op::Quiesce { .. } | Op::Release { .. } | Op::Synchronize { .. });
        if waits && !(step.thread / 8).is_multiple_of(8) {
            return false;
        }
        match step.op {
            // Programs seldom want what their stream has just freed, and that is what its list is for.
            Op::Alloc { .. } if step.thread % 2 == 1 && self.freed.is_some() => self.alloc_again(),
            Op::Alloc { stream, len, align } => {
                let slot = self.slot(stream);
                self.alloc(slot, len, align)
            }
            Op::Free { buffer } => self.free(buffer, step.thread % 8 == 7),
            Op::Launch { buffer, on, writes, .. } => self.launch(buffer, on, writes),
            Op::Busy { stream, .. } => {
                let ns = self.delay();
                let slot = self.slot(stream);
                self.round.device.busy(self.slots[slot].handle.raw(), ns);
                true
            }
            Op::UseOn { buffer, stream } => self.use_on(buffer, stream),
            Op::MoveTo { buffer, stream } => self.move_to(buffer, stream),
            Op::Mark { stream } => {
                let slot = self.slot(stream);
                had(self.slots[slot].handle.mark(), "mark")
            }
            Op::WaitFor { stream, other } => self.wait_for(stream, other),
            Op::Time { .. } | Op::Run => {
                thread::yield_now();
                true
            }
            Op::Create { pool, record_on_free, .. } => {
                if self.slots.len() >= STREAMS {
                    self.slots.swap_remove(usize::from(pool) % STREAMS);
                }
                self.create(record_on_free);
                true
            }
            Op::DropStream { stream } => {
                let slot = self.slot(stream);
                self.slots.swap_remove(slot);
                self.create(false);
                true
            }
            Op::Retire { stream } => self.retire(stream),
            Op::Quiesce { .. } => match self.round.pool.quiesce() {
                Ok(scope) => {
                    self.scopes.push(scope);
                    true
                }
                Err(error) => panic!("quiesce fails: {error}"),
            },
            Op::EndScope { scope, exit } => self.end_scope(scope, exit),
            Op::Release { buffer, count, .. } => self.release(buffer, count),
            Op::Synchronize { .. } => had(self.round.pool.synchronize(), "synchronize"),
            Op::SynchronizeStream { stream } => {
                let slot = self.slot(stream);
                had(self.slots[slot].handle.synchronize(), "a stream's synchronize")
            }
            // In some rounds memory stays, so that what is used by mistake is still there.
            Op::Trim { keep, .. } if self.setup.seed.is_multiple_of(8) => {
                had(self.round.pool.trim(keep).map(drop), "trim")
            }
            Op::Reserve { bytes, .. } => self.reserve(bytes),
            _ => false,
        }
    }

    /// A delay with a heavy tail, in nanoseconds.
    fn delay(&mut self) -> u64 {
        self.chance =
            self.chance.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        let at = self.chance >> 33;
        let most = match at % 100 {
            0..50 => return 0,
            50..80 => 20_000,
            80..94 => 200_000,
            94..99 => 2_000_000,
            _ => 10_000_000,
        };
        at / 100 % most
    }

    fn slot(&self, stream: u8) -> usize {
        usize::from(stream) % self.slots.len()
    }

    fn create(&mut self, record_on_free: bool) {
        let (number, handle) = self.round.register(record_on_free, &mut self.counts);
        self.slots.push(Slot { number, handle });
    }

    fn take_mail(&mut self) {
        let taken = locked(&self.round.mail).pop();
        self.counts.passed_on += u64::from(taken.is_some());
        self.live.extend(taken);
    }

    fn index(&self, buffer: u8) -> Option<usize> {
        (!self.live.is_empty()).then(|| usize::from(buffer) % self.live.len())
    }

    /// Allocates what was freed last, where its home is still at hand.
    fn alloc_again(&mut self) -> bool {
        let Some((number, len)) = self.freed.take() else { return false };
        let slot = self.slots.iter().position(|slot| slot.number == number);
        slot.is_some_and(|slot| self.alloc(slot, len, 1))
    }

    fn alloc(&mut self, slot: usize, len: usize, align: usize) -> bool {
        if self.live.len() >= BUFFERS {
            self.free(len as u8, false);
        }
        let Slot { number, ref handle } = self.slots[slot];
        match handle.alloc_aligned(len, align) {
            Ok(buffer) if buffer.capacity() > 0 => {
                let streams = vec![(number, handle.raw().clone())];
                let (may_read, may_write) = (vec![number], vec![number]);
                let mut live = Live { buffer, streams, stamp: None, may_read, may_write };
                let ns = self.delay();
                live.write(self.round.device, 0, self.round.next_stamp(), ns);
                self.counts.stamps += 1;
                self.live.push(live);
            }
            // There is nothing to use.
            Ok(empty) => drop(empty),
            Err(error) => self.expect_shortage(&error),
        }
        true
    }

    fn expect_shortage(&mut self, error: &Error) {
        assert!(error.is_out_of_memory(), "an allocation fails: {error}");
        self.counts.out_of_memory += 1;
    }

    fn free(&mut self, buffer: u8, for_another: bool) -> bool {
        let Some(index) = self.index(buffer) else { return false };
        let live = self.live.swap_remove(index);
        if for_another {
            locked(&self.round.mail).push(live);
            return true;
        }
        let ns = self.delay();
        self.freed = Some((live.streams[0].0, live.buffer.len()));
        drop(self.last_use(live, ns));
        true
    }

    fn last_use(&mut self, live: Live<D::B>, ns: u64) -> Buffer<D::B> {
        self.counts.checks += 1;
        live.checked(self.round.device, ns)
    }

    fn launch(&mut self, buffer: u8, on: u8, writes: bool) -> bool {
        let Some(index) = self.index(buffer) else { return false };
        let ns = self.delay();
        let live = &mut self.live[index];
        let on = usize::from(on) % live.streams.len();
        let number = live.streams[on].0;
        if !live.may_read.contains(&number) {
            return false;
        }
        let writes = writes && live.may_write.contains(&number);
        self.counts.checks += u64::from(live.read(self.round.device, on, ns));
        if writes {
            live.write(self.round.device, on, self.round.next_stamp(), ns);
            self.counts.stamps += 1;
        }
        true
    }

    fn use_on(&mut self, buffer: u8, stream: u8) -> bool {
        let Some(index) = self.index(buffer) else { return false };
        let Slot { number, ref handle } = self.slots[self.slot(stream)];
        let live = &mut self.live[index];
        had(live.buffer.use_on(handle), "use_on");
        live.order(live.streams[0].0, number);
        if live.streams.iter().all(|own| own.0 != number) {
            live.streams.push((number, handle.raw().clone()));
        }
        true
    }

    fn move_to(&mut self, buffer: u8, stream: u8) -> bool {
        let Some(index) = self.index(buffer) else { return false };
        let Slot { number, ref handle } = self.slots[self.slot(stream)];
        let live = &mut self.live[index];
        had(live.buffer.move_to(handle), "move_to");
        live.order(live.streams[0].0, number);
        // The old home may be used no more, unless it is named again.
        live.streams.remove(0);
        live.streams.retain(|own| own.0 != number);
        live.streams.insert(0, (number, handle.raw().clone()));
        true
    }

    fn wait_for(&mut self, stream: u8, other: u8) -> bool {
        let (later, earlier) = (self.slot(stream), self.slot(other));
        let (later, earlier) = (&self.slots[later], &self.slots[earlier]);
        had(later.handle.wait_for(&earlier.handle), "wait_for");
        self.live.iter_mut().for_each(|live| live.order(earlier.number, later.number));
        true
    }

    fn retire(&mut self, stream: u8) -> bool {
        let slot = self.slot(stream);
        let Slot { number, handle } = self.slots.swap_remove(slot);
        match handle.retire() {
            Ok(()) => {
                self.counts.retired += 1;
                self.create(false);
            }
            Err(refused) => {
                assert!(refused.error().is_in_use(), "retire fails: {}", refused.error());
                self.slots.push(Slot { number, handle: refused.into_stream() });
            }
        }
        true
    }

    fn end_scope(&mut self, scope: u8, exit: Exit) -> bool {
        if self.scopes.is_empty() {
            return false;
        }
        let scope = self.scopes.remove(usize::from(scope) % self.scopes.len());
        self.counts.scopes += 1;
        match exit {
            Exit::Finish => drop(scope.finish()),
            Exit::Drop => drop(scope),
            Exit::Forget => self.leaked.push(scope),
            Exit::Panic => {
                let dropped = self.live.pop().map(|live| self.last_use(live, 0));
                // The message is what the test is about to see anyway: nothing is printed.
                let unwound = catch_unwind(AssertUnwindSafe(|| {
                    let _scope = scope;
                    let _dropped = dropped;
                    resume_unwind(Box::new("a panic inside a scope"));
                }));
                assert!(unwound.is_err());
            }
        }
        true
    }

    fn release(&mut self, buffer: u8, count: u8) -> bool {
        let mut value = Vec::new();
        for _ in 0..count {
            let Some(index) = self.index(buffer) else { break };
            let (live, ns) = (self.live.swap_remove(index), self.delay());
            value.push(self.last_use(live, ns));
        }
        self.counts.releases += 1;
        had(self.round.pool.release(value).map(drop), "release")
    }

    fn reserve(&mut self, bytes: u64) -> bool {
        if let Err(error) = self.round.pool.reserve(bytes) {
            self.expect_shortage(&error);
        }
        true
    }
}

/// Nothing fails here but for memory.
fn had(result: Result<(), Error>, what: &str) -> bool {
    result.unwrap_or_else(|error| panic!("{what} fails: {error}"));
    true
}

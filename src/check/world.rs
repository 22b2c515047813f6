//! What a program acts on, and what must hold after each of its steps.

use std::collections::BTreeSet;

use super::coverage::Coverage;
use super::program::Setup;
use super::shadow::{Ranges, Uid, Use, UserOrder};
use crate::backend::Backend;
use crate::sim::{Costs, SimConfig, SimDevice, SimStream};
use crate::{Buffer, Error, PoolStream, QuiescentScope, Stats, StreamPool};

/// A buffer that a program holds.
pub(super) struct Live {
    pub(super) buffer: Buffer<SimDevice>,
    pub(super) pool: usize,
    pub(super) home: Uid,
    /// The streams that `use_on` has named.
    pub(super) named: Vec<Uid>,
    pub(super) uses: Vec<Use>,
    /// What the last kernel wrote.
    pub(super) stamp: Option<u64>,
}

impl Live {
    pub(super) fn address(&self) -> u64 {
        self.buffer.device_ptr()
    }

    pub(super) fn capacity(&self) -> u64 {
        self.buffer.capacity() as u64
    }
}

/// A registered stream that a program holds a handle of.
pub(super) struct Slot {
    pub(super) uid: Uid,
    pub(super) pool: usize,
    pub(super) handle: PoolStream<SimDevice>,
}

/// What stays true of a stream.
pub(super) struct Facts {
    pub(super) pool: usize,
    pub(super) record_on_free: bool,
}

/// A capture in progress.
pub(super) struct Capturing {
    /// None for a stream that the pool does not know.
    pub(super) uid: Option<Uid>,
    pub(super) device: usize,
    pub(super) raw: SimStream,
}

/// One device, its pool, and what is known of both.
pub(super) struct Side {
    pub(super) device: SimDevice,
    pub(super) pool: StreamPool<SimDevice>,
    pub(super) ranges: Ranges,
    /// Tells this pool from the one before it on the same device.
    pub(super) serial: u64,
    pub(super) stats: Stats,
    /// Raw handles of all streams that were ever created.
    pub(super) handles: BTreeSet<u64>,
}

/// A scope that is open on a thread.
pub(super) struct Scope {
    /// None once it is leaked.
    pub(super) scope: Option<QuiescentScope<SimDevice>>,
    pub(super) pool: usize,
    pub(super) serial: u64,
    pub(super) freed: u64,
    pub(super) bytes: u64,
}

/// What each thread has for itself.
#[derive(Default)]
pub(super) struct Local {
    pub(super) scopes: Vec<Scope>,
    /// Scopes that end only when the thread has nothing more to do and the pool is gone: as good as
    /// leaked, and the checker itself leaks nothing.
    leaked: Vec<QuiescentScope<SimDevice>>,
}

impl Local {
    pub(super) fn leak(&mut self, at: usize) {
        self.leaked.extend(self.scopes[at].scope.take());
    }
}

/// All that the threads of a program share.
pub(super) struct World {
    pub(super) setup: Setup,
    pub(super) sides: Vec<Side>,
    pub(super) slots: Vec<Slot>,
    pub(super) live: Vec<Live>,
    pub(super) captures: Vec<Capturing>,
    pub(super) order: UserOrder,
    /// Every stream that ever was, by its number.
    pub(super) facts: Vec<Facts>,
    /// Scopes that are open on any thread.
    pub(super) open_scopes: u64,
    pub(super) coverage: Coverage,
    pub(super) serials: u64,
    pub(super) fault_armed: bool,
    /// Threads of the program.
    pub(super) threads: usize,
}

pub(super) type Check = Result<(), String>;

/// Fails with a message unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(super) use ensure;

impl World {
    pub(super) fn new(setup: Setup, threads: usize) -> World {
        let config = SimConfig {
            seed: setup.seed,
            schedule: setup.schedule,
            context_events: setup.context_events,
            costs: if setup.seed % 4 == 3 { Costs::free() } else { Costs::default() },
            ..SimConfig::default()
        };
        let mut world = World {
            setup,
            sides: Vec::new(),
            slots: Vec::new(),
            live: Vec::new(),
            captures: Vec::new(),
            order: UserOrder::default(),
            facts: Vec::new(),
            open_scopes: 0,
            coverage: Coverage::default(),
            serials: 0,
            fault_armed: false,
            threads,
        };
        let devices = SimDevice::several(config, setup.devices);
        for device in devices.clone() {
            let pool = world.build(&device, &devices);
            let (ranges, stats, handles) = Default::default();
            let serial = world.serials;
            world.sides.push(Side { device, pool, ranges, serial, stats, handles });
        }
        for index in 0..world.most_streams() {
            let record_on_free = setup.record_on_free >> index & 1 == 1;
            world.create(index % setup.devices, record_on_free).expect("no fault is armed");
        }
        world
    }

    /// Streams that a program has at most.
    pub(super) fn most_streams(&self) -> usize {
        self.setup.devices * if self.setup.devices < 3 { 3 } else { 2 }
    }

    /// Whether the devices of one pool may use another's memory.
    pub(super) fn has_access(&self, pool: usize, other: usize) -> bool {
        other <= pool || self.setup.mutual
    }

    /// A pool on a device. The devices before it have access to its memory, and where access is mutual
    /// those after it.
    pub(super) fn build(&mut self, device: &SimDevice, all: &[SimDevice]) -> StreamPool<SimDevice> {
        self.serials += 1;
        let setup = &self.setup;
        let mut builder = StreamPool::builder(device.clone())
            .limit(setup.limit)
            .floor(setup.floor)
            .reuse(setup.reuse)
            .growth(setup.growth)
            .late_waits(setup.late_waits)
            .foreign_captures(setup.foreign_captures);
        if let Some(target) = setup.soft_target {
            builder = builder.soft_target(target);
        }
        let own = device.context_id();
        let before = self.sides.iter().filter(|side| side.device.context_id() < own);
        builder = builder.peers(before.map(|side| &side.pool));
        if setup.mutual {
            let others = all.iter().filter(|other| other.context_id() != own);
            builder = builder.peer_devices(others.cloned());
        }
        builder.build().expect("no fault is armed")
    }

    /// Registers a new stream.
    pub(super) fn create(&mut self, pool: usize, record_on_free: bool) -> Result<(), Error> {
        let side = &mut self.sides[pool];
        let raw = side.device.create_stream();
        let reused = !side.handles.insert(raw.handle());
        let registered = match record_on_free {
            true => side.pool.stream_record_on_free(raw),
            false => side.pool.stream(raw),
        };
        let handle = registered?;
        self.coverage.reused_handles += u64::from(reused);
        let uid = self.order.add_stream();
        self.facts.push(Facts { pool, record_on_free });
        self.slots.push(Slot { uid, pool, handle });
        Ok(())
    }

    /// Whether an error can have come from an injected one: expectations of what succeeds no longer
    /// hold, those of what must not go wrong do.
    pub(super) fn is_relaxed(&self) -> bool {
        self.sides.iter().any(|side| side.device.injected_count() > 0)
    }

    pub(super) fn is_capturing(&self, uid: Uid) -> bool {
        self.captures.iter().any(|capture| capture.uid == Some(uid))
    }

    /// An operation failed. Is that as it must be?
    pub(super) fn expect_error(&mut self, error: &Error, expected: bool, what: &str) -> Check {
        let relaxed = self.is_relaxed();
        self.coverage.failed_operations += u64::from(relaxed && !expected);
        ensure!(expected || relaxed, "{what} failed: {error}");
        Ok(())
    }

    /// What holds after every step.
    pub(super) fn check(&mut self) -> Check {
        self.check_hazards()?;
        for pool in 0..self.sides.len() {
            self.check_account(pool)?;
        }
        Ok(())
    }

    pub(super) fn check_hazards(&self) -> Check {
        let device = &self.sides[0].device;
        if device.hazard_count() > 0 {
            let hazards: Vec<String> =
                device.hazards().iter().take(3).map(|hazard| hazard.to_string()).collect();
            return Err(format!("hazards:\n{}", hazards.join("\n")));
        }
        Ok(())
    }

    fn check_account(&mut self, pool: usize) -> Check {
        let relaxed = self.is_relaxed();
        let of_pool = |live: &&Live| live.pool == pool;
        let in_use: u64 = self.live.iter().filter(of_pool).map(Live::capacity).sum();
        let live = self.live.iter().filter(of_pool).count();
        let side = &mut self.sides[pool];
        let stats = side.pool.stats();
        ensure!(stats.in_use == in_use, "{in_use} bytes are in buffers: {stats:?}");
        ensure!(stats.live == live as u64, "{live} buffers are live: {stats:?}");
        let parts = stats.in_use
            + stats.free_clean
            + stats.free_pending
            + stats.quarantined
            + stats.in_transit;
        ensure!(stats.reserved == parts, "the parts make {parts} bytes: {stats:?}");
        ensure!(
            stats.on_lists <= stats.free_pending,
            "lists are a part of what is pending: {stats:?}"
        );
        let taken = side.device.memory_in_use();
        ensure!(stats.reserved == taken, "the device has given {taken} bytes: {stats:?}");
        let peak = side.device.memory_peak();
        let limit = self.setup.limit;
        ensure!(peak <= limit, "{peak} bytes were taken, over the limit of {limit}");
        ensure!(stats.peak_reserved >= stats.reserved, "a peak below what is reserved: {stats:?}");
        ensure!(relaxed || stats.quarantined == 0, "bytes are quarantined: {stats:?}");
        if let Some(error) = side.pool.take_error() {
            // A free that must close its epoch and cannot, because its stream captures, says so here.
            let told = error.is_capture() && self.coverage.captures > 0;
            ensure!(relaxed || told, "a stray error: {error}");
            self.coverage.stray_errors += 1;
        }
        let before = std::mem::replace(&mut side.stats, stats);
        self.coverage.quarantines += u64::from(stats.quarantined > 0);
        count_steps(&mut self.coverage, &before, &stats);
        Ok(())
    }

    /// The pool that a stream is, or was, registered with.
    pub(super) fn pool_of(&self, uid: Uid) -> usize {
        self.facts[uid.0].pool
    }
}

/// How misses were served since.
fn count_steps(coverage: &mut Coverage, before: &Stats, now: &Stats) {
    coverage.hits += now.hits.saturating_sub(before.hits);
    coverage.covered += now.covered - before.covered;
    coverage.asked += now.asked - before.asked;
    coverage.gathered += now.gathered - before.gathered;
    coverage.early_steals += now.early_steals - before.early_steals;
    coverage.late_steals += now.late_steals - before.late_steals;
    coverage.growths += now.growths - before.growths;
    coverage.remapped += now.remapped - before.remapped;
    coverage.revived += now.revived - before.revived;
    coverage.ladders += now.ladders - before.ladders;
}

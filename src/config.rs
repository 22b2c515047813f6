//! How a pool behaves: the builder and its options.

use std::fmt;

use crate::backend::Backend;
use crate::error::{Error, Reason};
use crate::pool::{Driver, Peers, PoolCore, StreamPool};
use crate::sync::Arc;

/// The most events that a stream keeps.
const HISTORY_MAX: usize = 1 << 24;

/// What a miss prefers: waiting for memory that another stream freed, or taking more from the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reuse {
    /// Grow below the floor, ask whether what other streams freed has finished, reuse by a wait on an
    /// event that the program had recorded, grow to the soft target, reuse by a late wait, grow to the
    /// limit. A pool that is a fifth beyond its soft target first waits on the host, once what is free could
    /// make up the request.
    #[default]
    Balanced,
    /// Reuse before any growth: the least memory, at the price of waits on the device. Before it grows beyond
    /// the soft target a miss also waits on the host, once what is free could make up the request.
    Memory,
    /// Grow before any wait: no stream ever waits for another's memory while the limit allows it.
    Speed,
}

/// How a pool takes memory from the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Growth {
    /// By mapping granules into a reserved range of addresses, where the device can; otherwise by plain
    /// segments. The range is several times the device's memory: memory that lies free in pieces serves a
    /// large request by being mapped at further addresses, side by side.
    #[default]
    Virtual,
    /// By plain segments always: such memory can be exported by legacy inter-process handles.
    Segments,
}

/// A pool that is out of memory, as its `on_pressure` hook sees it. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pressure {
    /// What the request that cannot be served asks for, rounded.
    pub requested: u64,
    /// In buffers.
    pub in_use: u64,
    /// Taken from the device by this pool.
    pub reserved: u64,
}

pub(crate) type PressureHook = Arc<dyn Fn(&Pressure) + Send + Sync>;

/// The most that a pool reserves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    None,
    Bytes(u64),
    Fraction(f64),
}

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) reuse: Reuse,
    pub(crate) growth: Growth,
    pub(crate) limit: Limit,
    pub(crate) soft_target: Option<u64>,
    pub(crate) floor: u64,
    pub(crate) late_waits: bool,
    pub(crate) foreign_captures: bool,
    /// How many events each stream keeps.
    pub(crate) history: usize,
    pub(crate) on_pressure: Option<PressureHook>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            reuse: Reuse::Balanced,
            growth: Growth::Virtual,
            limit: Limit::None,
            soft_target: None,
            floor: DEFAULT_FLOOR,
            late_waits: true,
            foreign_captures: false,
            history: 0,
            on_pressure: None,
        }
    }
}

/// Below this much reserved memory a miss grows rather than asks: eight streams that pass 8 MiB on to each
/// other then have 8 MiB each, and need neither a driver call nor a wait.
pub(crate) const DEFAULT_FLOOR: u64 = 128 << 20;

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("reuse", &self.reuse)
            .field("growth", &self.growth)
            .field("limit", &self.limit)
            .field("soft_target", &self.soft_target)
            .field("floor", &self.floor)
            .field("late_waits", &self.late_waits)
            .field("foreign_captures", &self.foreign_captures)
            .field("history", &self.history)
            .field("on_pressure", &self.on_pressure.is_some())
            .finish()
    }
}

/// Builds a [`StreamPool`] with options. Made by [`StreamPool::builder`].
///
/// ```
/// # use streampool::{Reuse, StreamPool, sim::SimDevice};
/// let device = SimDevice::new(1);
/// let pool = StreamPool::builder(device.clone())
///     .limit(8 << 30)
///     .reuse(Reuse::Memory)
///     .on_pressure(|pressure| eprintln!("{} bytes wanted", pressure.requested))
///     .build()?;
/// # Ok::<(), streampool::Error>(())
/// ```
#[must_use = "a builder makes a pool only by `build`"]
pub struct PoolBuilder<B: Backend> {
    driver: Arc<Driver<B>>,
    config: Config,
    peers: Peers<B>,
}

impl<B: Backend> fmt::Debug for PoolBuilder<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<B: Backend> PoolBuilder<B> {
    pub(crate) fn new(backend: B) -> PoolBuilder<B> {
        PoolBuilder::on(Arc::new(Driver::new(backend)))
    }

    /// A builder of a pool on a device that others know already.
    pub(crate) fn on(driver: Arc<Driver<B>>) -> PoolBuilder<B> {
        PoolBuilder { driver, config: Config::default(), peers: Peers::default() }
    }

    /// The most that the pool takes from the device, in bytes. Without a limit, the device's memory.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.config.limit = Limit::Bytes(bytes);
        self
    }

    /// The most that the pool takes from the device, as a fraction of its total memory: above 0, and 1
    /// at most.
    pub fn limit_fraction(mut self, fraction: f64) -> Self {
        self.config.limit = Limit::Fraction(fraction);
        self
    }

    /// Up to here, in bytes, a miss grows rather than makes a stream wait late: for all that another
    /// stream has queued since it freed a block. By default a quarter above the most that has been in
    /// use, so that the target follows the program. Free memory that lies in pieces elsewhere is of use
    /// before the device is asked for new memory; but in a program that has it moved again and again
    /// while the most in use does not rise, the pool grows up to the target first.
    pub fn soft_target(mut self, bytes: u64) -> Self {
        self.config.soft_target = Some(bytes);
        self
    }

    /// Up to here, in bytes, a miss takes memory from the device rather than asks for what other streams have
    /// freed, so that each gets some of its own. 128 MiB by default. Not while the device has no more.
    pub fn floor(mut self, bytes: u64) -> Self {
        self.config.floor = bytes;
        self
    }

    /// What a miss prefers. [`Reuse::Balanced`] by default.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.config.reuse = reuse;
        self
    }

    /// How the pool takes memory from the device. [`Growth::Virtual`] by default.
    pub fn growth(mut self, growth: Growth) -> Self {
        self.config.growth = growth;
        self
    }

    /// Whether the pool may make a stream, or an out-of-memory call, wait for *all* that another
    /// stream has queued by now, rather than for what it had queued when it freed a block. `true` by
    /// default. With `false` the pool rather reports out of memory, and gives no plain segment back for an
    /// allocation, since the driver may wait for whatever runs before it takes one: for programs in which
    /// a stream's queued work can wait for something that the host does only after a later allocation.
    pub fn late_waits(mut self, allowed: bool) -> Self {
        self.config.late_waits = allowed;
        self
    }

    /// Whether streams that the pool does not know may be capturing into graphs. The pool then never
    /// synchronizes the context, nor records an event of it at the end of a scope, which would break such a
    /// capture, but uses its own streams' events one by one. `false` by default: then no such stream may be
    /// capturing when a scope begins or ends.
    ///
    /// Streams that are not registered can use typed slices of the CUDA backend. No event of the pool says
    /// when they have finished; so with `true` the memory of such a slice, once freed, stays pending
    /// (`free_pending` of [`Stats`](crate::Stats)) until
    /// [`StreamPool::synchronize_context`] is called. Register the streams, or call that now and then, and
    /// before [`StreamPool::close`].
    pub fn foreign_captures(mut self, possible: bool) -> Self {
        self.config.foreign_captures = possible;
        self
    }

    /// How many of its latest events each stream keeps, for [`StreamPool::history`]; 0, nothing at all,
    /// by default, and 2^24 at most. With 1 or more the pool also knows what its buffers are for: see
    /// [`Tag`](crate::Tag). An event takes 72 bytes, which are set aside when the stream is registered. A hit
    /// and a free take a longer way then: measured, 55 ns longer each, most of it for the look at the clock;
    /// those of a buffer with a tag also put it into a table and take it out, under a lock that other
    /// streams share, and may ask the host's allocator.
    pub fn history(mut self, events_per_stream: usize) -> Self {
        self.config.history = events_per_stream;
        self
    }

    /// A hook that is called, with no lock held, when a request cannot be served: it can free buffers,
    /// on which the pool searches once more. It is not called again from within itself.
    pub fn on_pressure(mut self, hook: impl Fn(&Pressure) + Send + Sync + 'static) -> Self {
        self.config.on_pressure = Some(Arc::new(hook));
        self
    }

    /// Gives the devices of other pools access to this pool's memory: their streams can be named in
    /// [`Buffer::use_on`](crate::Buffer::use_on) and then read and write it. Access is set as memory is
    /// mapped, for every device at once; plain segments are opened to a device for good.
    ///
    /// It goes one way. Where pools are to use each other's memory, the one that is built first names the
    /// devices of the later ones by [`peer_devices`](Self::peer_devices);
    /// [`DevicePools`](crate::DevicePools) does so for any number of devices.
    pub fn peers<'a>(mut self, pools: impl IntoIterator<Item = &'a StreamPool<B>>) -> Self {
        self.peers.pools.extend(pools.into_iter().cloned());
        self
    }

    /// As [`peers`](Self::peers), for devices whose pools are built later, or not by this program. A backend
    /// is kept as long as the pool lives.
    ///
    /// ```
    /// # use streampool::{StreamPool, sim::SimDevice};
    /// let devices = SimDevice::several(1, 2);
    /// let [zero, one] = [&devices[0], &devices[1]];
    /// let first = StreamPool::builder(zero.clone()).peer_devices([one.clone()]).build()?;
    /// let second = StreamPool::builder(one.clone()).peers([&first]).build()?;
    /// let (a, b) = (first.stream(zero.create_stream())?, second.stream(one.create_stream())?);
    /// // Each device's streams may use the other's memory.
    /// a.alloc(4096)?.use_on(&b)?;
    /// b.alloc(4096)?.use_on(&a)?;
    /// # Ok::<(), streampool::Error>(())
    /// ```
    pub fn peer_devices(mut self, devices: impl IntoIterator<Item = B>) -> Self {
        let drivers = devices.into_iter().map(|backend| Arc::new(Driver::new(backend)));
        self.peers.devices.extend(drivers);
        self
    }

    /// The same devices and pools, where they can have access; others are passed over.
    pub(crate) fn peers_where_possible(mut self, peers: Peers<B>) -> Self {
        self.peers.where_possible.extend(peers.where_possible);
        self.peers.known.extend(peers.known);
        self
    }

    /// Makes the pool. Takes no memory yet.
    ///
    /// # Errors
    ///
    /// An option out of its range ([`Error::is_invalid_argument`]); a peer that cannot have access (a
    /// driver error); the device's memory could not be asked for (with [`limit_fraction`](Self::limit_fraction)).
    pub fn build(self) -> Result<StreamPool<B>, Error> {
        if let Limit::Fraction(fraction) = self.config.limit
            && !(fraction > 0.0 && fraction <= 1.0)
        {
            let what = "limit_fraction takes a number above 0, and 1 at most";
            return Err(Error::new(Reason::BadOption { what }));
        }
        if self.config.history > HISTORY_MAX {
            let what = "history keeps 2^24 events of each stream at most: 1.2 GB";
            return Err(Error::new(Reason::BadOption { what }));
        }
        PoolCore::build(self.driver, self.config, &self.peers)
    }
}

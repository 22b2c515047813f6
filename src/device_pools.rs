//! A pool for each device, made when it is first asked for.

use std::fmt;
use std::thread::{self, ThreadId};

use crate::backend::Backend;
use crate::config::PoolBuilder;
use crate::error::{Error, Reason};
use crate::pool::{Driver, Peers, StreamPool};
use crate::quiescent::QuiescentScopes;
use crate::sync::{Arc, host};

/// How each pool is configured.
type Configure<B> = dyn Fn(PoolBuilder<B>) -> PoolBuilder<B> + Send + Sync;

/// One pool for each of several devices, all configured alike, each made when it is first asked for.
///
/// Devices are named by their places in the list that this was made from, from 0 on: their ordinals. Every
/// pool gives every other device access to its memory, where the two can have it: a stream of one device's
/// pool can then be named in [`Buffer::use_on`](crate::Buffer::use_on) of another's buffers. Where they
/// cannot, `use_on` says so ([`Error::is_no_peer_access`]), and
/// [`Buffer::copy_to`](crate::Buffer::copy_to) works all the same. Any number of devices will do, also one.
///
/// A clone is the same. Pools may be closed one by one, in any order; a closed pool stays the device's.
///
/// ```
/// # use streampool::{DevicePools, sim::SimDevice};
/// let devices = SimDevice::several(1, 4);
/// let pools = DevicePools::configured(devices.clone(), |builder| builder.limit(1 << 30));
/// let zero = pools.pool(0)?.stream(devices[0].create_stream())?;
/// let three = pools.pool(3)?.stream(devices[3].create_stream())?;
/// // Device 3 reads what device 0 has.
/// let buffer = zero.alloc(1 << 20)?;
/// buffer.use_on(&three)?;
/// // The other two have no pool yet.
/// assert_eq!((pools.len(), pools.made().len()), (4, 2));
/// # Ok::<(), streampool::Error>(())
/// ```
pub struct DevicePools<B: Backend> {
    shared: Arc<Shared<B>>,
}

struct Shared<B: Backend> {
    devices: Vec<Device<B>>,
    configure: Box<Configure<B>>,
    /// Held while a pool is made, driver calls and all: of two that are made, the later one must know the
    /// earlier. Nothing that allocates or frees takes it.
    making: host::Mutex<()>,
    /// The thread that holds it, which must not wait for itself.
    maker: host::Mutex<Option<ThreadId>>,
}

/// A thread makes a pool while this lives.
struct Making<'a> {
    maker: &'a host::Mutex<Option<ThreadId>>,
    _making: host::MutexGuard<'a, ()>,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        *whole(self.maker) = None;
    }
}

/// A panic of `configure` has left nothing half made.
fn whole<T>(lock: &host::Mutex<T>) -> host::MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

struct Device<B: Backend> {
    driver: Arc<Driver<B>>,
    pool: host::OnceLock<StreamPool<B>>,
}

impl<B: Backend> DevicePools<B> {
    /// Pools with the default options, for these devices. Makes none of them yet, and no driver call.
    pub fn new(devices: impl IntoIterator<Item = B>) -> DevicePools<B> {
        DevicePools::configured(devices, |builder| builder)
    }

    /// Pools for these devices, with the options that `configure` gives each builder. It can have the pools that
    /// there are, and cannot have others made: [`pool`](Self::pool) is an error in it, and in another thread
    /// waits for its end.
    pub fn configured(
        devices: impl IntoIterator<Item = B>,
        configure: impl Fn(PoolBuilder<B>) -> PoolBuilder<B> + Send + Sync + 'static,
    ) -> DevicePools<B> {
        let device = |backend| {
            let (driver, pool) = (Arc::new(Driver::new(backend)), host::OnceLock::new());
            Device { driver, pool }
        };
        let devices = devices.into_iter().map(device).collect();
        let (configure, making, maker) =
            (Box::new(configure), Default::default(), Default::default());
        DevicePools { shared: Arc::new(Shared { devices, configure, making, maker }) }
    }

    /// How many devices there are.
    pub fn len(&self) -> usize {
        self.shared.devices.len()
    }

    /// Whether there is no device.
    pub fn is_empty(&self) -> bool {
        self.shared.devices.is_empty()
    }

    /// The pool of a device, made now if there was none. A pool that could not be made is tried again by the
    /// next call.
    ///
    /// # Errors
    ///
    /// [`is_invalid_argument`](Error::is_invalid_argument) when there is no such device, or where the options
    /// of one of these pools ask for another that there is not; as for [`PoolBuilder::build`].
    pub fn pool(&self, ordinal: usize) -> Result<StreamPool<B>, Error> {
        let Some(device) = self.shared.devices.get(ordinal) else {
            let what = "there is no device of this ordinal";
            return Err(Error::new(Reason::BadArgument { what }));
        };
        if let Some(pool) = device.pool.get() {
            return Ok(pool.clone());
        }
        let _making = self.begin_making()?;
        if let Some(pool) = device.pool.get() {
            return Ok(pool.clone());
        }
        let builder = (self.shared.configure)(PoolBuilder::on(Arc::clone(&device.driver)));
        let pool = builder.peers_where_possible(self.others(ordinal)).build()?;
        Ok(device.pool.get_or_init(|| pool).clone())
    }

    /// Waits until no other thread makes a pool.
    fn begin_making(&self) -> Result<Making<'_>, Error> {
        let (shared, own) = (&*self.shared, thread::current().id());
        if *whole(&shared.maker) == Some(own) {
            let what = "the options of a pool cannot ask for one that is not made yet";
            return Err(Error::new(Reason::BadArgument { what }));
        }
        let _making = whole(&shared.making);
        *whole(&shared.maker) = Some(own);
        Ok(Making { maker: &shared.maker, _making })
    }

    /// All devices but one, and the pools that there are.
    fn others(&self, ordinal: usize) -> Peers<B> {
        let others = self.shared.devices.iter().enumerate().filter(|(at, _)| *at != ordinal);
        let where_possible = others.map(|(_, device)| Arc::clone(&device.driver)).collect();
        Peers { where_possible, known: self.made(), ..Peers::default() }
    }

    /// The pools that have been made, by ordinal.
    pub fn made(&self) -> Vec<StreamPool<B>> {
        self.shared.devices.iter().filter_map(|device| device.pool.get().cloned()).collect()
    }

    /// A scope on each pool that has been made, opened and ended together; see
    /// [`StreamPool::quiesce_all`].
    ///
    /// # Errors
    ///
    /// As for [`StreamPool::quiesce_all`].
    pub fn quiesce(&self) -> Result<QuiescentScopes<B>, Error> {
        let pools = self.made();
        StreamPool::quiesce_all(&pools.iter().collect::<Vec<_>>())
    }

    /// Closes every pool that has been made, as [`StreamPool::close`] does. Tries them all.
    ///
    /// # Errors
    ///
    /// Of the first that could not be closed.
    pub fn close(&self) -> Result<(), Error> {
        self.made().iter().map(StreamPool::close).fold(Ok(()), Result::and)
    }
}

impl<B: Backend> Clone for DevicePools<B> {
    fn clone(&self) -> Self {
        DevicePools { shared: Arc::clone(&self.shared) }
    }
}

impl<B: Backend> fmt::Debug for DevicePools<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePools")
            .field("devices", &self.len())
            .field("made", &self.made())
            .finish_non_exhaustive()
    }
}

//! The structures of the header. Each begins with its own size, which the caller sets: a program that
//! was compiled against an older header has smaller ones, and gets what fits.

use std::ffi::c_void;

use rust_pool::cuda::{CudaBackend, CudaPool};
use rust_pool::{Growth, PoolBuilder, Pressure, QuiescentReport, Reuse, Stats};

use crate::status::Failure;

/// A hook for a pool that is out of memory: its user data, and the bytes that are wanted.
pub type PressureHook = unsafe extern "C" fn(*mut c_void, u64);

/// `streampool_config`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The structure's size in bytes, as the caller knows it.
    pub size: u32,
    /// 0 balanced, 1 memory, 2 speed.
    pub reuse: u32,
    /// 0 virtual memory where the device has it, 1 plain segments.
    pub growth: u32,
    /// Whether late waits are allowed: 0 or 1.
    pub late_waits: u32,
    /// Whether streams that the pool does not know may capture: 0 or 1.
    pub foreign_captures: u32,
    /// How many of its latest events each stream keeps.
    pub history: u32,
    /// The most bytes that the pool takes; 0 for no limit.
    pub limit: u64,
    /// The same as a fraction of the device's memory; 0 for no limit.
    pub limit_fraction: f64,
    /// Bytes to take when the pool is made.
    pub reserve: u64,
    /// Bytes below which a miss grows; `u64::MAX` for the crate's own.
    pub floor: u64,
    /// Bytes up to which a miss grows rather than waits late; 0 to follow the program.
    pub soft_target: u64,
    /// Called, with no lock held, when a request cannot be served; or null.
    pub on_pressure: Option<PressureHook>,
    /// What that is called with.
    pub user: *mut c_void,
}

/// A floor that is the crate's to choose.
const DEFAULT: u64 = u64::MAX;

/// What the first version of the header had.
const FIRST_CONFIG: usize = 80;

const _: () = assert!(size_of::<Config>() == FIRST_CONFIG);

/// What [`Config::on_pressure`] is called with.
struct User(*mut c_void);

// SAFETY: sound because the header demands of whoever sets the hook that it may be called on any thread.
unsafe impl Send for User {}
// SAFETY: as above; also by several threads at once.
unsafe impl Sync for User {}

impl User {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

impl Config {
    /// The defaults.
    pub(crate) fn new() -> Config {
        Config {
            size: size_of::<Config>() as u32,
            reuse: 0,
            growth: 0,
            late_waits: 1,
            foreign_captures: 0,
            history: 0,
            limit: 0,
            limit_fraction: 0.0,
            reserve: 0,
            floor: DEFAULT,
            soft_target: 0,
            on_pressure: None,
            user: std::ptr::null_mut(),
        }
    }

    /// Reads a caller's structure: what an older one does not have keeps its default.
    ///
    /// # Safety
    ///
    /// Null, or a pointer to a structure of the size that its first field says.
    pub(crate) unsafe fn read(from: *const Config) -> Result<Config, Failure> {
        let mut config = Config::new();
        if from.is_null() {
            return Ok(config);
        }
        // SAFETY: sound because every version of the structure begins with its size.
        let size = unsafe { from.cast::<u32>().read() } as usize;
        if !(FIRST_CONFIG..=4096).contains(&size) {
            return Err(Failure::invalid(format!(
                "a configuration of {size} bytes: set it up by streampool_config_init"
            )));
        }
        let bytes = size.min(size_of::<Config>());
        // SAFETY: sound because the caller's structure has so many bytes, and whoever made it has set all.
        let newer =
            unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(bytes), size - bytes) };
        if newer.iter().any(|&byte| byte != 0) {
            return Err(Failure::invalid(
                "an option that this version of the library does not have",
            ));
        }
        // SAFETY: sound because the caller's structure has at least so many bytes, our own too, and
        // every pattern of bits is a value of each field but the hook, which is null or a function of
        // the caller's, as the header demands.
        unsafe { from.cast::<u8>().copy_to_nonoverlapping((&raw mut config).cast(), bytes) };
        Ok(config)
    }

    /// A builder with these options.
    pub(crate) fn builder(
        &self,
        backend: CudaBackend,
    ) -> Result<PoolBuilder<CudaBackend>, Failure> {
        let flag = |name: &str, value: u32| match value {
            0 | 1 => Ok(value == 1),
            _ => Err(Failure::invalid(format!("{name} is 0 or 1, not {value}"))),
        };
        let reuse = match self.reuse {
            0 => Reuse::Balanced,
            1 => Reuse::Memory,
            2 => Reuse::Speed,
            other => return Err(Failure::invalid(format!("reuse is 0, 1 or 2, not {other}"))),
        };
        let growth = match flag("growth", self.growth)? {
            false => Growth::Virtual,
            true => Growth::Segments,
        };
        let mut builder = CudaPool::builder(backend)
            .reuse(reuse)
            .growth(growth)
            .late_waits(flag("late_waits", self.late_waits)?)
            .foreign_captures(flag("foreign_captures", self.foreign_captures)?)
            .history(self.history as usize);
        if self.floor != DEFAULT {
            builder = builder.floor(self.floor);
        }
        if self.limit != 0 {
            builder = builder.limit(self.limit);
        }
        if self.limit_fraction != 0.0 {
            if self.limit != 0 {
                return Err(Failure::invalid("limit and limit_fraction are both set"));
            }
            builder = builder.limit_fraction(self.limit_fraction);
        }
        if self.soft_target != 0 {
            builder = builder.soft_target(self.soft_target);
        }
        if let Some(hook) = self.on_pressure {
            let user = User(self.user);
            builder = builder.on_pressure(move |pressure: &Pressure| {
                // SAFETY: sound because the header demands a function that may be called with this
                // data, on any thread, while the pool lives.
                unsafe { hook(user.get(), pressure.requested) }
            });
        }
        Ok(builder)
    }
}

/// `streampool_report`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Buffers freed in the scope.
    pub freed: u64,
    /// The bytes of their blocks.
    pub bytes: u64,
    /// Those that any stream may take with no wait.
    pub clean: u64,
    /// Those that keep their dependencies.
    pub deferred: u64,
}

impl From<QuiescentReport> for Report {
    fn from(report: QuiescentReport) -> Report {
        let QuiescentReport { freed, bytes, clean, deferred } = report;
        Report { freed, bytes, clean, deferred }
    }
}

macro_rules! statistics {
    ($($name:ident: $from:expr,)*) => {
        /// `streampool_stats`: sizes in bytes.
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct Statistics {
            /// The structure's size in bytes, as the caller knows it.
            pub size: u32,
            /// The version of the structure.
            pub version: u32,
            $(#[doc = concat!("`", stringify!($name), "` of the pool's statistics.")] pub $name: u64,)*
        }

        impl Statistics {
            fn of(stats: &Stats, size: u32) -> Statistics {
                Statistics { size, version: STATISTICS_VERSION, $($name: ($from)(stats),)* }
            }
        }
    };
}

/// Raised when fields are added; those that there are stay where they are.
const STATISTICS_VERSION: u32 = 2;

statistics! {
    reserved: |stats: &Stats| stats.reserved,
    peak_reserved: |stats: &Stats| stats.peak_reserved,
    in_use: |stats: &Stats| stats.in_use,
    peak_in_use: |stats: &Stats| stats.peak_in_use,
    free_clean: |stats: &Stats| stats.free_clean,
    free_pending: |stats: &Stats| stats.free_pending,
    on_lists: |stats: &Stats| stats.on_lists,
    largest_free: |stats: &Stats| stats.largest_free,
    in_transit: |stats: &Stats| stats.in_transit,
    quarantined: |stats: &Stats| stats.quarantined,
    live: |stats: &Stats| stats.live,
    streams: |stats: &Stats| stats.streams,
    granules: |stats: &Stats| stats.granules,
    hits: |stats: &Stats| stats.hits,
    misses: |stats: &Stats| stats.misses,
    frees: |stats: &Stats| stats.frees,
    covered: |stats: &Stats| stats.covered,
    asked: |stats: &Stats| stats.asked,
    gathered: |stats: &Stats| stats.gathered,
    early_steals: |stats: &Stats| stats.early_steals,
    late_steals: |stats: &Stats| stats.late_steals,
    growths: |stats: &Stats| stats.growths,
    ladders: |stats: &Stats| stats.ladders,
    stray_errors: |stats: &Stats| stats.stray_errors,
    driver_calls: |stats: &Stats| stats.calls.total(),
    event_records: |stats: &Stats| stats.calls.event_records,
    stream_waits: |stats: &Stats| stats.calls.stream_waits,
    context_synchronizes: |stats: &Stats| stats.calls.context_synchronizes,
    memory_calls: |stats: &Stats| stats.calls.memory_calls,
    // Since version 2.
    synchronized: |stats: &Stats| stats.synchronized,
    remapped: |stats: &Stats| stats.remapped,
    revived: |stats: &Stats| stats.revived,
}

impl Statistics {
    /// Writes as much as the caller's structure has room for, and there its true size.
    ///
    /// # Safety
    ///
    /// A pointer to a structure of the size that its first field says, not null.
    pub(crate) unsafe fn write(stats: &Stats, to: *mut Statistics) -> Result<(), Failure> {
        // SAFETY: sound because every version of the structure begins with its size.
        let size = unsafe { to.cast::<u32>().read() } as usize;
        if size < 8 {
            return Err(Failure::invalid(format!(
                "statistics of {size} bytes: set the field `size` to sizeof(streampool_stats)"
            )));
        }
        let bytes = size.min(size_of::<Statistics>());
        let own = Statistics::of(stats, bytes as u32);
        // SAFETY: sound because the caller's structure has at least so many bytes, and so has `own`.
        unsafe { (&raw const own).cast::<u8>().copy_to_nonoverlapping(to.cast(), bytes) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_fields_are_those_of_the_pool() {
        let mut stats = Stats::default();
        (stats.synchronized, stats.remapped, stats.revived) = (1, 2, 3);
        let mut own = Statistics::of(&Stats::default(), size_of::<Statistics>() as u32);
        // SAFETY: sound because the structure has the size that its first field says.
        unsafe { Statistics::write(&stats, &mut own) }.unwrap();
        assert_eq!((own.version, own.synchronized, own.remapped, own.revived), (2, 1, 2, 3));
    }
}

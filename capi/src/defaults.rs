//! One pool for each device, made when it is first asked for, that lives as long as the process: for
//! allocator hooks that can carry no pool.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::layout::Config;
use crate::pool::Pool;
use crate::status::Failure;

/// As many devices as PyTorch can have in one process.
const DEVICES: usize = 128;

static POOLS: [AtomicPtr<Pool>; DEVICES] = [const { AtomicPtr::new(ptr::null_mut()) }; DEVICES];

/// Held while a pool is made. What pools are made with from now on; by default the defaults.
static MAKING: Mutex<Option<Wanted>> = Mutex::new(None);

struct Wanted(Config);

// SAFETY: sound because the only part of it that is not sent by itself is the hook's data, of which the
// header demands that it may be used on any thread.
unsafe impl Send for Wanted {}

fn making() -> MutexGuard<'static, Option<Wanted>> {
    // A panic in the making of a pool leaves the options whole.
    MAKING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Chooses the options of the default pools that are not made yet.
pub(crate) fn configure(config: Config) {
    *making() = Some(Wanted(config));
}

fn slot(device: c_int) -> Result<&'static AtomicPtr<Pool>, Failure> {
    let slot = usize::try_from(device).ok().and_then(|device| POOLS.get(device));
    slot.ok_or_else(|| Failure::invalid(format!("there is no device {device}")))
}

/// A device's pool if there is one.
#[inline]
fn found(slot: &AtomicPtr<Pool>) -> Option<&'static Pool> {
    // Acquire: the pool was made before its address was stored, with release.
    // SAFETY: sound because the pointer is null or comes from a box that is never freed.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

/// A device's pool, made if there is none.
#[inline]
pub(crate) fn get(device: c_int) -> Result<&'static Pool, Failure> {
    let slot = slot(device)?;
    match found(slot) {
        Some(pool) => Ok(pool),
        None => make(slot, device),
    }
}

#[cold]
fn make(slot: &AtomicPtr<Pool>, device: c_int) -> Result<&'static Pool, Failure> {
    let wanted = making();
    if let Some(pool) = found(slot) {
        return Ok(pool);
    }
    let config = wanted.as_ref().map_or_else(Config::new, |wanted| wanted.0);
    // SAFETY: sound because this is a device, whose primary context is meant, and not the current one.
    let mut pool = unsafe { Pool::new(device, &config) }?;
    pool.is_default = true;
    let pool: &'static Pool = Box::leak(Box::new(pool));
    slot.store(ptr::from_ref(pool).cast_mut(), Ordering::Release);
    Ok(pool)
}

/// The pools that there are.
pub(crate) fn all() -> impl Iterator<Item = &'static Pool> {
    POOLS.iter().filter_map(found)
}

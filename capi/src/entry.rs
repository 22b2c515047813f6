//! The functions of the header, but for PyTorch's and those that watch a pool.
//!
//! Those that take a pool have one condition in common: the pointer came from `streampool_create` or
//! `streampool_default_pool`, and `streampool_destroy` has not been called with it. Null is an error of its
//! own. Those that take a stream have another: the handle is that of a live stream or of a default stream,
//! and the stream is not destroyed before `streampool_retire_stream` has succeeded for it, or
//! `streampool_close` or `streampool_destroy` for the pool.

use std::ffi::{c_char, c_int, c_void};

use crate::defaults;
use crate::layout::{Config, Report, Statistics};
use crate::pool::{self, Pool};
use crate::status::{self, Failure, Status, call};

/// The pool behind a pointer.
///
/// # Safety
///
/// Null, or a live pool.
#[inline]
pub(crate) unsafe fn live<'a>(pool: *const Pool) -> Result<&'a Pool, Failure> {
    // SAFETY: sound because the caller passes null or a live pool.
    unsafe { pool.as_ref() }.ok_or_else(|| Failure::invalid("the pool is null"))
}

/// Puts a result where the caller wants it.
///
/// # Safety
///
/// Null, or a place for a `T`.
#[inline]
unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Failure> {
    check_place(out)?;
    // SAFETY: sound because it is not null, and so a place for a `T`.
    unsafe { out.write(value) };
    Ok(())
}

/// A place for a result must be there before anything is done.
#[inline]
fn check_place<T>(out: *const T) -> Result<(), Failure> {
    match out.is_null() {
        true => Err(Failure::invalid("the place for the result is null")),
        false => Ok(()),
    }
}

pub(crate) fn address(address: *const c_void) -> u64 {
    address.addr() as u64
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// The library's version, as a C string that lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn streampool_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The name of a status, as a C string that lives as long as the process. Any number may be asked for.
#[unsafe(no_mangle)]
pub extern "C" fn streampool_status_name(status: c_int) -> *const c_char {
    status::name(status).as_ptr()
}

/// What went wrong at the last call on this thread that failed, as a C string that stays until the next one.
#[unsafe(no_mangle)]
pub extern "C" fn streampool_last_error() -> *const c_char {
    status::last_error()
}

/// Fills a configuration with the defaults.
///
/// # Safety
///
/// Null, or a place for a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_config_init(config: *mut Config) -> Status {
    // SAFETY: the caller's promise is the condition of `put`.
    call(|| unsafe { put(config, Config::new()) })
}

/// Makes a pool for a device's primary context, or with -1 for the context that is current.
///
/// # Safety
///
/// `config` is null or a configuration of the size in its first field, whose hook may be called with its
/// data on any thread while the pool lives; `pool` is null or a place for a pointer. A current context that
/// is not a primary one outlives the pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_create(
    device: c_int,
    config: *const Config,
    pool: *mut *mut Pool,
) -> Status {
    call(|| {
        check_place(pool)?;
        // SAFETY: sound because the caller passes null or a configuration.
        let config = unsafe { Config::read(config) }?;
        // SAFETY: sound because the caller keeps a current context alive.
        let made = unsafe { Pool::new(device, &config) }?;
        // SAFETY: the caller's promise is the condition of `put`.
        unsafe { put(pool, Box::into_raw(Box::new(made))) }
    })
}

/// Ends a pool: waits for its work, and gives all memory back. The handle stays, to be destroyed.
///
/// # Safety
///
/// The condition of the module on pools.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_close(pool: *const Pool) -> Status {
    // SAFETY: the caller's promise is the condition of `live`.
    call(|| unsafe { live(pool) }?.close())
}

/// Frees a pool's handle, without waiting. Refused while buffers live, and for a default pool; null is no
/// error.
///
/// # Safety
///
/// The condition of the module on pools; no other call on it is under way, or is made later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_destroy(pool: *mut Pool) -> Status {
    call(|| {
        if pool.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise is the condition of `live`.
        let own = unsafe { live(pool) }?;
        if own.is_default {
            return Err(Failure::invalid("a default pool lives as long as the process"));
        }
        own.finish()?;
        // SAFETY: sound because the pointer came from a box in `streampool_create`, and the caller gives it
        // up.
        drop(unsafe { Box::from_raw(pool) });
        Ok(())
    })
}

/// Allocates `bytes` bytes, aligned to 256, for use on `stream`.
///
/// # Safety
///
/// The conditions of the module on pools and on streams; `out` is null or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_allocate(
    pool: *const Pool,
    bytes: usize,
    stream: *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    call(|| {
        check_place(out)?;
        // SAFETY: the caller's promises are the conditions of all three.
        unsafe { put(out, pointer(live(pool)?.allocate(bytes, stream)?)) }
    })
}

/// The same, aligned to `alignment` bytes: a power of two up to 1 GiB.
///
/// # Safety
///
/// As for [`streampool_allocate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_allocate_aligned(
    pool: *const Pool,
    bytes: usize,
    alignment: usize,
    stream: *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    call(|| {
        check_place(out)?;
        // SAFETY: the caller's promises are the conditions of all three.
        unsafe { put(out, pointer(live(pool)?.allocate_aligned(bytes, alignment, stream)?)) }
    })
}

/// Frees a buffer by its address. Null is no error. No driver call is made.
///
/// # Safety
///
/// The condition of the module on pools. Every device operation that uses the buffer has been submitted: to
/// the stream that it was allocated on or moved to, to one that was named by [`streampool_use_on`], or before
/// a point that the first already waits for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_free(pool: *const Pool, buffer: *mut c_void) -> Status {
    // SAFETY: the caller's promise is the condition of `live`.
    call(|| unsafe { live(pool) }?.free(address(buffer)))
}

/// How large a buffer is, in bytes: as asked for, and its block, all of which may be used.
///
/// # Safety
///
/// The condition of the module on pools; `bytes` and `capacity` are null, where that is not wanted, or
/// places for a `size_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_size(
    pool: *const Pool,
    buffer: *const c_void,
    bytes: *mut usize,
    capacity: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: the caller's promise is the condition of `live`.
        let size = unsafe { live(pool) }?.size(address(buffer))?;
        for (place, value) in [(bytes, size.0), (capacity, size.1)] {
            if !place.is_null() {
                // SAFETY: sound because it is not null, and so a place for a `usize`.
                unsafe { place.write(value) };
            }
        }
        Ok(())
    })
}

/// Lets `stream` use a buffer from now on: it waits for the buffer's home stream as it is now, and the
/// buffer's next owner will wait for it.
///
/// # Safety
///
/// The conditions of the module on pools and on streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_use_on(
    pool: *const Pool,
    buffer: *const c_void,
    stream: *mut c_void,
) -> Status {
    // SAFETY: the caller's promises are the conditions of both.
    call(|| unsafe { live(pool)?.use_on(address(buffer), stream) })
}

/// Makes `stream` a buffer's home stream, after making it wait for the present one as it is now.
///
/// # Safety
///
/// The conditions of the module on pools and on streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_move_to(
    pool: *const Pool,
    buffer: *const c_void,
    stream: *mut c_void,
) -> Status {
    // SAFETY: the caller's promises are the conditions of both.
    call(|| unsafe { live(pool)?.move_to(address(buffer), stream) })
}

/// Registers a stream before its first use.
///
/// # Safety
///
/// The conditions of the module on pools and on streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_register_stream(
    pool: *const Pool,
    stream: *mut c_void,
) -> Status {
    // SAFETY: the caller's promises are the conditions of both.
    call(|| unsafe { live(pool)?.register(stream) })
}

/// Lets a stream leave the pool, before its owner destroys it.
///
/// # Safety
///
/// The condition of the module on pools. A stream that the pool does not know may be any handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_retire_stream(
    pool: *const Pool,
    stream: *mut c_void,
) -> Status {
    // SAFETY: the caller's promise is the condition of `live`.
    call(|| unsafe { live(pool) }?.retire(stream))
}

/// Waits once for everything that was submitted to the device, and opens a scope on this thread.
///
/// # Safety
///
/// The condition of the module on pools; `scope` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_quiesce_begin(pool: *const Pool, scope: *mut u64) -> Status {
    call(|| {
        check_place(scope)?;
        // SAFETY: the caller's promises are the conditions of both.
        unsafe { put(scope, live(pool)?.quiesce_begin()?) }
    })
}

/// Ends a scope of this thread. Any number may be passed.
///
/// # Safety
///
/// `report` is null, where it is not wanted, or a place for a report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_quiesce_end(scope: u64, report: *mut Report) -> Status {
    call(|| {
        let ended = pool::quiesce_end(scope)?;
        if report.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise is the condition of `put`.
        unsafe { put(report, ended) }
    })
}

/// Makes sure that the pool can serve `bytes` bytes in all from what it has.
///
/// # Safety
///
/// The condition of the module on pools.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_reserve(pool: *const Pool, bytes: u64) -> Status {
    // SAFETY: the caller's promise is the condition of `live`.
    call(|| unsafe { live(pool) }?.reserve(bytes))
}

/// Gives unused memory back to the device, down to `keep` bytes, and says how many bytes went.
///
/// # Safety
///
/// The condition of the module on pools; `given_back` is null, where it is not wanted, or a place for a
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_trim(
    pool: *const Pool,
    keep: u64,
    given_back: *mut u64,
) -> Status {
    call(|| {
        // SAFETY: the caller's promise is the condition of `live`.
        let bytes = unsafe { live(pool) }?.trim(keep)?;
        if given_back.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise is the condition of `put`.
        unsafe { put(given_back, bytes) }
    })
}

/// Blocks until everything that is queued on the pool's streams has finished.
///
/// # Safety
///
/// The condition of the module on pools.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_synchronize(pool: *const Pool) -> Status {
    // SAFETY: the caller's promise is the condition of `live`.
    call(|| unsafe { live(pool) }?.synchronize())
}

/// What the pool holds and has done.
///
/// # Safety
///
/// The condition of the module on pools; `stats` is null or a structure of the size in its first field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_get_stats(pool: *const Pool, stats: *mut Statistics) -> Status {
    call(|| {
        check_place(stats)?;
        // SAFETY: the caller's promises are the conditions of both.
        unsafe { Statistics::write(&live(pool)?.stats(), stats) }
    })
}

/// Starts the peaks anew.
///
/// # Safety
///
/// The condition of the module on pools.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_reset_peak(pool: *const Pool) -> Status {
    call(|| {
        // SAFETY: the caller's promise is the condition of `live`.
        unsafe { live(pool) }?.reset_peak();
        Ok(())
    })
}

/// Takes the pool's last error that no call could tell, as this call's own.
///
/// # Safety
///
/// The condition of the module on pools.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_take_error(pool: *const Pool) -> Status {
    // SAFETY: the caller's promise is the condition of `live`.
    call(|| unsafe { live(pool) }?.take_error())
}

/// Chooses the options of the default pools that are not made yet. Null for the defaults.
///
/// # Safety
///
/// `config` is as for [`streampool_create`]; its hook may be called until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_default_configure(config: *const Config) -> Status {
    call(|| {
        // SAFETY: sound because the caller passes null or a configuration.
        defaults::configure(unsafe { Config::read(config) }?);
        Ok(())
    })
}

/// A device's default pool, made if there is none. It lives as long as the process.
///
/// # Safety
///
/// `pool` is null or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_default_pool(device: c_int, pool: *mut *const Pool) -> Status {
    call(|| {
        check_place(pool)?;
        // SAFETY: the caller's promise is the condition of `put`.
        unsafe { put(pool, defaults::get(device)?) }
    })
}

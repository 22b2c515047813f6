//! The system calls: address space, memory that can be mapped twice, the exit hook.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::ptr;

unsafe extern "C" {
    fn mmap(
        at: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        off: c_long,
    ) -> *mut c_void;
    fn munmap(at: *mut c_void, len: usize) -> c_int;
    fn mprotect(at: *mut c_void, len: usize, prot: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn ftruncate(fd: c_int, len: c_long) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn atexit(hook: extern "C" fn()) -> c_int;
}

const PROT_NONE: c_int = 0;
const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 0x01;
const MAP_PRIVATE: c_int = 0x02;
const MAP_FIXED: c_int = 0x10;
const MAP_ANONYMOUS: c_int = 0x20;
const MAP_NORESERVE: c_int = 0x4000;
const MFD_CLOEXEC: c_uint = 1;

/// Takes a range of addresses with nothing behind it, aligned to `align`, a power of two.
pub(crate) fn reserve(bytes: usize, align: usize) -> Option<usize> {
    let room = bytes.checked_add(align)?;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: sound because the system chooses an unused place.
    let at = unsafe { mmap(ptr::null_mut(), room, PROT_NONE, flags, -1, 0) }.addr();
    if at == usize::MAX {
        return None;
    }
    let start = at.next_multiple_of(align);
    // The slack on both sides goes back. Lengths of zero are refused and change nothing.
    // SAFETY: sound because both parts belong to the range just made, outside of what is kept.
    unsafe {
        munmap(ptr::without_provenance_mut(at), start - at);
        munmap(ptr::without_provenance_mut(start + bytes), at + room - (start + bytes));
    }
    Some(start)
}

/// Gives a range of addresses back.
///
/// # Safety
///
/// The range came from [`reserve`], and nothing uses it any more.
pub(crate) unsafe fn release(at: usize, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { munmap(ptr::without_provenance_mut(at), bytes) };
}

/// Lets the program read and write a range, or keeps it from both.
///
/// # Safety
///
/// The range lies within one that came from [`reserve`], and nothing uses it if it is closed.
pub(crate) unsafe fn open(at: usize, bytes: usize, open: bool) {
    let prot = if open { PROT_READ_WRITE } else { PROT_NONE };
    // SAFETY: as the caller promises.
    unsafe { mprotect(ptr::without_provenance_mut(at), bytes, prot) };
}

/// Makes memory that can be mapped; returns its file descriptor.
pub(crate) fn create(bytes: usize) -> Option<c_int> {
    const NAME: &CStr = c"standin-granule";
    // SAFETY: sound because the name is a C string.
    let fd = unsafe { memfd_create(NAME.as_ptr(), MFD_CLOEXEC) };
    let length = c_long::try_from(bytes).ok()?;
    // SAFETY: sound because the descriptor was just made.
    (fd >= 0 && unsafe { ftruncate(fd, length) } == 0).then_some(fd)
}

/// Gives memory back once nothing maps it.
pub(crate) fn destroy(fd: c_int) {
    // SAFETY: sound because the descriptor came from `create` and its owner gives it up.
    unsafe { close(fd) };
}

/// Puts memory behind a range, closed to the program at first; without memory, takes it away again.
///
/// # Safety
///
/// The range lies within one that came from [`reserve`], and nothing uses what was there.
pub(crate) unsafe fn map(at: usize, bytes: usize, memory: Option<c_int>) -> bool {
    let (flags, fd) = match memory {
        Some(fd) => (MAP_SHARED | MAP_FIXED, fd),
        None => (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1),
    };
    // SAFETY: as the caller promises.
    unsafe { mmap(ptr::without_provenance_mut(at), bytes, PROT_NONE, flags, fd, 0) }.addr() == at
}

/// Runs `hook` when the process exits.
pub(crate) fn at_exit(hook: extern "C" fn()) {
    // SAFETY: sound because the hook is a function of this library, which is never unloaded once the
    // driver has been initialized: cudarc keeps it open for ever.
    unsafe { atexit(hook) };
}

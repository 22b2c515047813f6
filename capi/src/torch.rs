//! The functions that PyTorch's `CUDAPluggableAllocator` takes.
//!
//! PyTorch takes a null address for a success. What it understands is a C++ exception, as of an allocator
//! written in C++: it passes through and becomes a `RuntimeError`. So the two functions that can fail throw
//! a `std::runtime_error` where the process has a C++ runtime, which is asked for by name, since this
//! library links none. They are the only functions of the interface that throw.

use std::ffi::{CString, c_char, c_int, c_void};

use crate::defaults;
use crate::status::{Failure, Status, guard, tell};

const RTLD_NOW: c_int = 2;
/// Not to load the library where the process has not got it.
const RTLD_NOLOAD: c_int = 4;

unsafe extern "C" {
    fn dlopen(name: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;
type Construct = unsafe extern "C" fn(*mut c_void, *const c_char);
type Destruct = unsafe extern "C" fn(*mut c_void);
type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, Destruct) -> !;

/// What throwing takes, of the C++ runtime of the process.
struct Runtime {
    allocate: Allocate,
    construct: Construct,
    destruct: Destruct,
    throw: Throw,
    type_info: *const c_void,
}

/// The size of a `std::runtime_error`: the table of its functions, and its text.
const RUNTIME_ERROR: usize = 2 * size_of::<usize>();

impl Runtime {
    fn find() -> Option<Runtime> {
        // SAFETY: sound because the name is a C string, and nothing is loaded.
        let library = unsafe { dlopen(c"libstdc++.so.6".as_ptr(), RTLD_NOW | RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: sound because the library is loaded and the name is a C string.
            let found = unsafe { dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let allocate = symbol(c"__cxa_allocate_exception")?;
        let construct = symbol(c"_ZNSt13runtime_errorC1EPKc")?;
        let destruct = symbol(c"_ZNSt13runtime_errorD1Ev")?;
        let throw = symbol(c"__cxa_throw")?;
        let type_info = symbol(c"_ZTISt13runtime_error")?;
        Some(Runtime {
            // SAFETY: sound because the C++ ABI gives the function of this name this type.
            allocate: unsafe { std::mem::transmute::<*mut c_void, Allocate>(allocate) },
            // SAFETY: as above; it is `std::runtime_error::runtime_error(char const*)`.
            construct: unsafe { std::mem::transmute::<*mut c_void, Construct>(construct) },
            // SAFETY: as above; it is `std::runtime_error::~runtime_error()`.
            destruct: unsafe { std::mem::transmute::<*mut c_void, Destruct>(destruct) },
            // SAFETY: as for the first.
            throw: unsafe { std::mem::transmute::<*mut c_void, Throw>(throw) },
            type_info,
        })
    }
}

/// Throws a failure as a C++ exception. Returns where the process has no C++ runtime; the text is kept for
/// `streampool_last_error` in any case.
#[cold]
fn throw(failure: Failure) {
    let begin = match failure.status {
        // The words by which programs know it.
        Status::OutOfMemory | Status::TooLarge => "CUDA out of memory. ",
        _ => "",
    };
    let text = CString::new(format!("{begin}streampool: {}", failure.text)).unwrap_or_default();
    tell(failure);
    let Some(runtime) = Runtime::find() else { return };
    // SAFETY: sound because the runtime gives room for that many bytes, or ends the process.
    let exception = unsafe { (runtime.allocate)(RUNTIME_ERROR) };
    // SAFETY: sound because the room is as large as the class, and the text is a C string, which is copied.
    unsafe { (runtime.construct)(exception, text.as_ptr()) };
    // The frames that the exception passes own nothing any more.
    drop(text);
    // SAFETY: sound because the object is a `std::runtime_error`, given with its own type and destructor,
    // and every Rust frame up to the caller's may be unwound through ("C-unwind") and has no destructor left.
    unsafe { (runtime.throw)(exception, runtime.type_info, runtime.destruct) }
}

/// Allocates `size` bytes on a device's default pool, for use on `stream`.
///
/// Throws a `std::runtime_error`, or returns null where the process has no C++ runtime.
///
/// # Safety
///
/// The stream is a live one of the device's primary context, or null, and lives until the process ends
/// or `streampool_retire_stream` has succeeded for it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn streampool_torch_alloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let allocated = guard(|| {
        let size = usize::try_from(size)
            .map_err(|_| Failure::invalid(format!("a request of {size} bytes")))?;
        if size == 0 {
            return Ok(0);
        }
        // SAFETY: the caller's promise is the pool's condition.
        unsafe { defaults::get(device)?.allocate(size, stream) }
    });
    match allocated {
        Ok(address) => std::ptr::with_exposed_provenance_mut(address as usize),
        Err(failure) => {
            throw(failure);
            std::ptr::null_mut()
        }
    }
}

/// Frees what [`streampool_torch_alloc`] returned. `size` and `stream` are not looked at. Never throws: an
/// address that is not there is told by `streampool_last_error` alone.
///
/// # Safety
///
/// All uses of the memory have been submitted, to the stream that it was allocated on or to one that was
/// named by [`streampool_torch_record_stream`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streampool_torch_free(
    address: *mut c_void,
    _size: isize,
    device: c_int,
    _stream: *mut c_void,
) {
    if let Err(failure) = guard(|| defaults::get(device)?.free(address.addr() as u64)) {
        tell(failure);
    }
}

/// Lets another stream use memory from now on, as `streampool_use_on`. Memory that came from elsewhere is
/// left alone, as by PyTorch's own allocator.
///
/// Throws as [`streampool_torch_alloc`] does: the memory must then not be used on that stream.
///
/// # Safety
///
/// As for [`streampool_torch_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn streampool_torch_record_stream(
    address: *mut c_void,
    stream: *mut c_void,
) {
    let recorded = guard(|| {
        for pool in defaults::all() {
            // SAFETY: the caller's promise is the pool's condition.
            match unsafe { pool.use_on(address.addr() as u64, stream) } {
                Err(failure) if failure.status == Status::UnknownAddress => {}
                other => return other,
            }
        }
        Ok(())
    });
    if let Err(failure) = recorded {
        throw(failure);
    }
}

/// Gives the unused memory of all default pools back to their devices: `torch.cuda.empty_cache()`.
#[unsafe(no_mangle)]
pub extern "C" fn streampool_torch_empty_cache() {
    for pool in defaults::all() {
        if let Err(failure) = guard(|| pool.trim(0)) {
            tell(failure);
        }
    }
}

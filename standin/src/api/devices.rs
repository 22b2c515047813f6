//! Initialization, devices, error texts.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use super::Out;
use crate::call::call;
use crate::code::{Code, Outcome};

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> u32 {
    call("cuInit").run(|driver| driver.initialize())
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> u32 {
    call("cuDriverGetVersion").run(|_| version.put(13000))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> u32 {
    call("cuDeviceGetCount").run(|driver| count.put(driver.devices as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) -> u32 {
    call("cuDeviceGet").run(|driver| {
        driver.device(ordinal)?;
        device.put(ordinal)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> u32 {
    call("cuDeviceGetName").run(|driver| {
        driver.device(device)?;
        let text = c"streampool stand-in".to_bytes_with_nul();
        if name.is_null() || (len as usize) < text.len() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: sound because the caller gives room for `len` bytes, as the header demands, and the
        // text is no longer.
        unsafe { name.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        Ok(())
    })
}

fn uuid(device: c_int) -> [u8; 16] {
    let mut uuid = *b"streampool     0";
    uuid[15] = device as u8;
    uuid
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(out: Out<[u8; 16]>, device: c_int) -> u32 {
    call("cuDeviceGetUuid").run(|driver| {
        driver.device(device)?;
        out.put(uuid(device))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, device: c_int) -> u32 {
    call("cuDeviceGetUuid_v2").run(|driver| {
        driver.device(device)?;
        out.put(uuid(device))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) -> u32 {
    call("cuDeviceTotalMem_v2").run(|driver| {
        driver.device(device)?;
        bytes.put(driver.memory.total())
    })
}

/// The attributes that allocators ask for; all others are 0.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_uint, device: c_int) -> u32 {
    call("cuDeviceGetAttribute").run(|driver| {
        driver.device(device)?;
        value.put(match attribute {
            16 => 132,                                     // multiprocessors
            75 => 9,                                       // compute capability
            41 => 1,                                       // unified addressing
            102 => c_int::from(driver.has_virtual_memory), // virtual memory management
            115 => c_int::from(driver.has_pools),          // memory pools
            _ => 0,
        })
    })
}

/// Every device can reach every other, but not itself, as the real driver has it.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) -> u32 {
    call("cuDeviceCanAccessPeer").run(|driver| {
        let different = driver.device(device)? != driver.device(peer)?;
        can.put(c_int::from(different))
    })
}

fn text_of(code: u32, out: Out<*const c_char>, long: bool) -> Outcome {
    match Code(code).texts() {
        Some((name, text)) => out.put(if long { text } else { name }.as_ptr()),
        None => {
            out.put(ptr::null())?;
            Err(Code::INVALID_VALUE)
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: u32, out: Out<*const c_char>) -> u32 {
    call("cuGetErrorName").run(|_| text_of(code, out, false))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: u32, out: Out<*const c_char>) -> u32 {
    call("cuGetErrorString").run(|_| text_of(code, out, true))
}

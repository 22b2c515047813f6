//! Modules, launches, graphs. A kernel of any name is found, and does nothing.

use std::ffi::{c_uint, c_void};

use super::{Out, Text};
use crate::call::call;
use crate::code::{Code, Outcome};
use crate::state::Driver;
use crate::stream::Op;

fn load(driver: &mut Driver, module: Out<usize>) -> Outcome {
    driver.current()?;
    let handle = driver.object();
    driver.functions.insert(handle);
    module.put(handle)
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoad(module: Out<usize>, _file: Text) -> u32 {
    call("cuModuleLoad").run(|driver| load(driver, module))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: Out<usize>, _image: *const c_void) -> u32 {
    call("cuModuleLoadData").run(|driver| load(driver, module))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: usize) -> u32 {
    call("cuModuleUnload").run(|driver| {
        driver.current()?;
        if driver.functions.remove(&module) { Ok(()) } else { Err(Code::INVALID_HANDLE) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: Out<usize>, module: usize, name: Text) -> u32 {
    call("cuModuleGetFunction").run(|driver| {
        if !driver.functions.contains(&module) {
            return Err(Code::INVALID_HANDLE);
        }
        if name.read()?.is_empty() {
            return Err(Code::NOT_FOUND);
        }
        let handle = driver.object();
        driver.functions.insert(handle);
        function.put(handle)
    })
}

fn launch(driver: &mut Driver, function: usize, stream: usize) -> Outcome {
    let id = driver.stream(stream)?;
    if !driver.functions.contains(&function) {
        return Err(Code::INVALID_HANDLE);
    }
    driver.submit(id, Op::Kernel)
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: usize,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared_bytes: c_uint,
    stream: usize,
    _params: *const *const c_void,
    _extra: *const *const c_void,
) -> u32 {
    call("cuLaunchKernel").on(stream).run(|driver| launch(driver, function, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchCooperativeKernel(
    function: usize,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared_bytes: c_uint,
    stream: usize,
    _params: *const *const c_void,
) -> u32 {
    call("cuLaunchCooperativeKernel").on(stream).run(|driver| launch(driver, function, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(exec: Out<usize>, graph: usize, _flags: u64) -> u32 {
    call("cuGraphInstantiateWithFlags").run(|driver| {
        let ops = driver.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?.clone();
        let handle = driver.object();
        driver.graphs.insert(handle, ops);
        exec.put(handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphUpload(exec: usize, stream: usize) -> u32 {
    call("cuGraphUpload").on(stream).run(|driver| {
        driver.stream(stream)?;
        if driver.graphs.contains_key(&exec) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(exec: usize, stream: usize) -> u32 {
    call("cuGraphLaunch").on(stream).run(|driver| {
        let id = driver.stream(stream)?;
        for op in driver.graphs.get(&exec).ok_or(Code::INVALID_VALUE)?.clone() {
            driver.submit(id, op)?;
        }
        Ok(())
    })
}

fn destroy(driver: &mut Driver, graph: usize) -> Outcome {
    driver.graphs.remove(&graph).map(|_| ()).ok_or(Code::INVALID_VALUE)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(exec: usize) -> u32 {
    call("cuGraphExecDestroy").run(|driver| destroy(driver, exec))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: usize) -> u32 {
    call("cuGraphDestroy").run(|driver| destroy(driver, graph))
}

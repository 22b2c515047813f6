//! Kernel launches with pooled memory, on the stand-in for the driver (`standin/`): the arguments are the
//! addresses, and the home stream waits for what it must.

#![cfg(target_os = "linux")]

#[path = "../../tests/common/effects.rs"]
mod effects;
#[path = "../../tests/common/pooled.rs"]
mod pooled;
#[path = "../../tests/common/standin.rs"]
mod standin;

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, LaunchArgs, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;

use effects::{Effect, effects, handle};
use pooled::Pooled;
use standin::standin;
use sys::CUresult as Code;

fn kernel(context: &Arc<CudaContext>) -> CudaFunction {
    let module = context.load_module(Ptx::from_src("// a kernel")).unwrap();
    module.load_function("kernel").unwrap()
}

/// The 8-byte arguments that the driver is given.
fn arguments(launch: &LaunchArgs<'_>) -> Vec<u64> {
    // cudarc does not show them otherwise.
    let text = format!("{launch:?}");
    let (_, list) = text.split_once("args: [").expect("arguments");
    let (list, _) = list.split_once(']').expect("the end of the arguments");
    let places = list.split(", ").filter_map(|place| place.strip_prefix("0x"));
    let read = |place: &str| {
        let place = usize::from_str_radix(place, 16).expect("a place in hexadecimal");
        // SAFETY: sound because these are the places of 8-byte arguments, as the driver reads them, and
        // the launch borrows what is there.
        unsafe { std::ptr::with_exposed_provenance::<u64>(place).read() }
    };
    places.map(read).collect()
}

#[test]
fn the_arguments_are_the_addresses() {
    standin().run(|standin| {
        let Pooled { context, pool, stream, home } = Pooled::new();
        let kernel = kernel(&context);
        let input = home.clone_htod(&[1.0f32; 256]).unwrap();
        let mut output = home.alloc_zeros::<f64>(256).unwrap();
        let empty = home.alloc_zeros::<u8>(0).unwrap();
        let (from, to) = (input.address(), output.address());
        let part = input.slice(8..16);
        let (left, mut right) = output.split_at_mut(128);
        standin.reset();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&input).arg(&part).arg(&left).arg(&mut right).arg(&empty).arg(&7u64);
        assert_eq!(arguments(&launch), [from, from + 32, to, to + 1024, 0, 7]);
        assert_eq!(standin.calls(), 0, "an argument at home costs nothing");
        // SAFETY: sound because the stand-in's kernels do nothing.
        unsafe { launch.launch(LaunchConfig::for_num_elems(256)).unwrap() };
        assert_eq!(effects(standin), [Effect::Call("cuLaunchKernel".into(), handle(&stream))]);
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&mut output);
        assert_eq!(arguments(&launch), [to]);
        assert!(pool.take_error().is_none());
    });
}

#[test]
fn a_launch_at_home_comes_after_what_other_streams_did() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let Pooled { context, stream, home, .. } = &pooled;
        let ((copies, _copies), kernel) = (pooled.another(), kernel(context));
        let (own, others) = (handle(stream), handle(&copies));
        let mut slice = home.alloc_zeros::<u8>(64).unwrap();
        let address = slice.address();
        copies.memcpy_htod(&[1; 64], &mut slice).unwrap();
        standin.reset();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&mut slice);
        assert_eq!(arguments(&launch), [address]);
        // SAFETY: sound because the stand-in's kernels do nothing.
        unsafe { launch.launch(LaunchConfig::for_num_elems(64)).unwrap() };
        let launched = Effect::Call("cuLaunchKernel".into(), own);
        let waits = [Effect::Record(others), Effect::Wait(own, others)];
        assert_eq!(effects(standin), [&waits[..], &[launched]].concat());
    });
}

#[test]
fn a_launch_elsewhere_comes_after_home_by_use_on() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let Pooled { context, stream, home, .. } = &pooled;
        let ((other, registered), kernel) = (pooled.another(), kernel(context));
        let (own, others) = (handle(stream), handle(&other));
        let slice = home.alloc_zeros::<u8>(1 << 20).unwrap();
        let address = slice.address();
        standin.hold(other.cu_stream());
        standin.reset();
        slice.use_on(&registered).unwrap();
        assert_eq!(effects(standin), [Effect::Record(own), Effect::Wait(others, own)]);
        // SAFETY: sound because the stand-in's kernels do nothing.
        unsafe {
            other
                .launch_builder(&kernel)
                .arg(&slice)
                .launch(LaunchConfig::for_num_elems(64))
                .unwrap()
        };
        drop(slice);
        standin.reset();
        let next = home.alloc(1 << 20).unwrap();
        let waits = standin.count("cuStreamWaitEvent");
        assert!(next.device_ptr() != address || waits > 0, "taken over while the kernel runs");
        standin.release(other.cu_stream());
    });
}

#[test]
fn an_argument_that_cannot_be_ordered_is_0() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let ((_other, registered), kernel) = (pooled.another(), kernel(&pooled.context));
        let slice = pooled.home.alloc_zeros::<u8>(64).unwrap();
        slice.use_on(&registered).unwrap();
        let (view, mut launch) = (slice.slice(4..), pooled.stream.launch_builder(&kernel));
        standin.fail("cuEventRecord", 0, 4, Code::CUDA_ERROR_UNKNOWN);
        launch.arg(&slice).arg(&view);
        assert_eq!(arguments(&launch), [0, 0]);
        assert_eq!(pooled.pool.stats().stray_errors, 2);
        assert!(pooled.pool.take_error().is_some());
    });
}

//! The program in `examples/ntt` on the CUDA backend, on the stand-in for the driver (`standin/`): the
//! calls that it makes, and that it tells when the numbers are wrong. Kernels do nothing there.

#![cfg(all(target_os = "linux", feature = "sim"))]

#[path = "../examples/ntt/main.rs"]
#[allow(dead_code, reason = "the program's `main` is not run, and not on the simulated device")]
mod ntt;
#[path = "common/standin.rs"]
mod standin;

use cudarc::driver::{CudaContext, result, sys};
use ntt::common::cli::BackendName;
use ntt::driver_pool::DriverPool;
use ntt::measure::Measured;
use ntt::multiply;
use ntt::options::Options;
use standin::{Standin, standin};

fn small(check: bool) -> Options {
    let backend = BackendName::Cuda;
    Options { n: 1024, limbs: 7, streams: 3, rounds: 2, check, backend, ..Options::default() }
}

/// On the pool, and on cudarc's own allocation without and with its events.
fn measured(options: &Options, raised: bool) -> Vec<Measured> {
    let measured = multiply(options).expect("no error");
    let names: Vec<_> = measured.iter().map(|own| own.allocator.name).collect();
    let with_raised = ["cudarc untracked, threshold raised", "cudarc, threshold raised"];
    let with_raised = if raised { &with_raised[..] } else { &[] };
    assert_eq!(names, [&["streampool"], with_raised, &["cudarc untracked", "cudarc"]].concat());
    measured
}

/// Each allocation of a run is the target of a launch or of an upload.
fn check_calls(standin: &Standin, own: &Measured, runs: u64) {
    // The first batch, and for each of four layers a polynomial, a limb less each time.
    let uploads = 2 * 7 + (7 + 6 + 5 + 4);
    assert_eq!(standin.count("cuLaunchKernel"), (own.allocations - uploads) * runs);
    // Two machines of each allocator and one to warm up have uploaded the factors of 7 limbs.
    assert_eq!(standin.count("cuMemcpyHtoDAsync_v2"), uploads * runs + 11 * 14);
}

#[test]
fn the_pool_serves_the_program_without_calls_for_memory() {
    standin().run(|standin| {
        let measured = measured(&small(false), true);
        let (pooled, own) = (&measured[0], &measured[4]);
        assert_eq!((&pooled.wrong, &own.wrong), (&None, &None), "nothing was checked");
        assert!(own.allocator.meaning.contains("by cuMemAllocAsync,"), "{}", own.allocator.meaning);
        let calls = pooled.calls.expect("the pool's calls are counted");
        assert_eq!((calls.synchronizes, calls.mapping_calls), (4, 0), "of a warm run");
        // Two machines of each have run: once cold and twice warm to be checked, and once, twice and
        // thrice for the time; one of cudarc's has warmed up.
        let (of_pool, of_cudarc) = (3 + 6, 4 * (3 + 6) + 1);
        check_calls(standin, own, of_pool + of_cudarc);
        let allocations = own.allocations * of_cudarc + 9 * 14;
        assert_eq!(standin.count("cuMemAllocAsync"), allocations);
        assert_eq!(standin.count("cuMemFreeAsync"), allocations);
    });
}

/// cudarc allocates from whichever pool of the driver's is the device's: each run begins with its own.
#[test]
fn the_raised_threshold_is_that_of_a_pool_of_its_own() {
    standin().run(|standin| {
        measured(&small(false), true);
        let count = |name: &str| standin.count(name);
        // Two machines of each of two allocators.
        let of_raised = ["cuMemPoolCreate", "cuMemPoolSetAttribute", "cuMemPoolDestroy"];
        assert_eq!(of_raised.map(count), [4; 3]);
        // Nine runs of four allocators and one, and when a machine is made.
        assert_eq!(count("cuDeviceSetMemPool"), 4 * 9 + 1 + 9);
        let context = CudaContext::new(0).expect("the stand-in has one");
        let device = context.cu_device();
        // SAFETY: sound because the device was opened.
        let current = || unsafe { result::device::get_mem_pool(device) }.expect("a pool");
        let plain = DriverPool::of_device(device).expect("no error");
        let put_back = current();
        let raised = DriverPool::raised(device).expect("no error");
        raised.make_current().expect("no error");
        let of_raised = current();
        plain.make_current().expect("no error");
        assert_eq!(current(), put_back, "the raised pool was left to the device");
        let threshold = |pool| {
            let mut threshold = 1u64;
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            let to = (&raw mut threshold).cast();
            // SAFETY: sound because the pool lives, and this attribute is a number of 64 bits.
            unsafe { result::mem_pool::get_attribute(pool, attribute, to) }.expect("no error");
            threshold
        };
        assert_eq!((threshold(of_raised), threshold(put_back)), (u64::MAX, 0));
    });
}

#[test]
fn a_device_without_stream_ordered_memory_is_told() {
    standin().with("STANDIN_NO_POOLS", 1).run(|standin| {
        let measured = measured(&small(false), false);
        let own = &measured[2];
        assert!(own.allocator.meaning.contains("by cuMemAlloc,"), "{}", own.allocator.meaning);
        assert_eq!(standin.count("cuMemAllocAsync"), 0);
    });
}

#[test]
fn wrong_numbers_are_told_with_the_kernel_that_makes_them() {
    standin().run(|_| {
        for own in measured(&small(true), true) {
            let words = own.failure().expect("kernels do nothing here");
            let parts =
                ["coefficients are wrong", "polynomial 0, limb 0", "kernel forward", "is right"];
            for part in parts {
                assert!(words.contains(part), "{part:?} is not in: {words}");
            }
        }
    });
}

//! The program in `examples/ntt` on the CUDA backend, on the stand-in for the driver (`standin/`): the
//! calls that it makes, and that it tells when the numbers are wrong. Kernels do nothing there.

#![cfg(all(target_os = "linux", feature = "sim"))]

#[path = "../examples/ntt/main.rs"]
#[allow(dead_code, reason = "the program's `main` is not run, and not on the simulated device")]
mod ntt;
#[path = "common/standin.rs"]
mod standin;

use ntt::common::cli::BackendName;
use ntt::measure::Measured;
use ntt::multiply;
use ntt::options::Options;
use standin::{Standin, standin};

fn small(check: bool) -> Options {
    let backend = BackendName::Cuda;
    Options { n: 1024, limbs: 7, streams: 3, rounds: 2, check, backend, ..Options::default() }
}

/// On the pool, and on cudarc's own allocation without and with its events.
fn measured(options: &Options) -> [Measured; 3] {
    let measured = multiply(options).expect("no error");
    let names: Vec<_> = measured.iter().map(|own| own.allocator.name).collect();
    assert_eq!(names, ["streampool", "cudarc untracked", "cudarc"]);
    measured.try_into().expect("three")
}

/// Each allocation of a run is the target of a launch or of an upload.
fn check_calls(standin: &Standin, own: &Measured, runs: u64) {
    // The first batch, and for each of four layers a polynomial, a limb less each time.
    let uploads = 2 * 7 + (7 + 6 + 5 + 4);
    assert_eq!(standin.count("cuLaunchKernel"), (own.allocations - uploads) * runs);
    // Six machines and one to warm up have uploaded the factors of 7 limbs.
    assert_eq!(standin.count("cuMemcpyHtoDAsync_v2"), uploads * runs + 7 * 14);
}

#[test]
fn the_pool_serves_the_program_without_calls_for_memory() {
    standin().run(|standin| {
        let [pooled, _, own] = measured(&small(false));
        assert_eq!((&pooled.wrong, &own.wrong), (&None, &None), "nothing was checked");
        assert!(own.allocator.meaning.contains("by cuMemAllocAsync,"), "{}", own.allocator.meaning);
        let calls = pooled.calls.expect("the pool's calls are counted");
        assert_eq!((calls.synchronizes, calls.mapping_calls), (4, 0), "of a warm run");
        // Two machines of each have run: once to be checked, and once, twice and thrice for the time; one
        // of cudarc's has warmed up.
        let (of_pool, of_cudarc) = (1 + 6, 2 * (1 + 6) + 1);
        check_calls(standin, &own, of_pool + of_cudarc);
        let allocations = own.allocations * of_cudarc + 5 * 14;
        assert_eq!(standin.count("cuMemAllocAsync"), allocations);
        assert_eq!(standin.count("cuMemFreeAsync"), allocations);
    });
}

#[test]
fn a_device_without_stream_ordered_memory_is_told() {
    standin().with("STANDIN_NO_POOLS", 1).run(|standin| {
        let [_, _, own] = measured(&small(false));
        assert!(own.allocator.meaning.contains("by cuMemAlloc,"), "{}", own.allocator.meaning);
        assert_eq!(standin.count("cuMemAllocAsync"), 0);
    });
}

#[test]
fn wrong_numbers_are_told_with_the_kernel_that_makes_them() {
    standin().run(|_| {
        for own in measured(&small(true)) {
            let words = own.failure().expect("kernels do nothing here");
            let parts =
                ["coefficients are wrong", "polynomial 0, limb 0", "kernel forward", "is right"];
            for part in parts {
                assert!(words.contains(part), "{part:?} is not in: {words}");
            }
        }
    });
}

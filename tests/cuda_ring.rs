//! The program in `examples/ring` on the CUDA backend, on the stand-in for the driver (`standin/`): the calls
//! that it makes on one device and on several, and that it tells when the numbers are wrong. Kernels do
//! nothing there.

#![cfg(all(target_os = "linux", feature = "sim"))]

#[path = "../examples/ring/main.rs"]
#[allow(dead_code, reason = "the program's `main` is not run, and not on the simulated devices")]
mod ring;
#[path = "common/standin.rs"]
mod standin;

use ring::chunk::{all_steps, count_wrong, first_word};
use ring::common::cli::BackendName;
use ring::exchange;
use ring::measure::Measured;
use ring::options::Options;
use standin::standin;

const STEPS: u64 = 4;

fn small(devices: Option<usize>) -> Options {
    let backend = BackendName::Cuda;
    Options {
        devices,
        steps: STEPS as usize,
        bytes: 1 << 16,
        rounds: 2,
        backend,
        ..Options::default()
    }
}

fn measured(devices: Option<usize>) -> [Measured; 3] {
    let measured = exchange(&small(devices)).expect("no error");
    let names: Vec<_> = measured.iter().map(|own| own.name).collect();
    assert_eq!(names, ["streampool copy", "streampool peer", "cudarc"]);
    measured.try_into().expect("three")
}

/// With kernels that do nothing the words are wrong, in every way, and that is said.
fn are_wrong(all: &[Measured]) {
    for own in all {
        assert!(own.wrong > 0 && own.failure().expect("it is told").contains("wrong words"));
    }
}

#[test]
fn as_many_places_as_there_are_gpus() {
    standin().with("STANDIN_DEVICES", 3).run(|standin| {
        let all = measured(None);
        assert!(all.iter().all(|own| (own.ranks, own.shared) == (3, false)));
        are_wrong(&all);
        // Three rounds, each of two ways: every hand-over is a copy from another device.
        assert_eq!(standin.count("cuMemcpyPeerAsync"), 2 * 3 * STEPS * 3);
        assert_eq!(standin.count("cuLaunchKernel"), 3 * 3 * STEPS * 3);
        let [copy, peer, cudarc] = all;
        for own in [&copy, &peer] {
            assert_eq!((own.calls.synchronizes, own.calls.mapping_calls), (0, 0), "{}", own.name);
            assert!(own.calls.stream_waits >= STEPS * 3);
        }
        assert_eq!(cudarc.calls.synchronizes, 2 * STEPS * 3);
    });
}

#[test]
fn places_share_a_gpu_where_there_are_not_enough_and_one_is_a_ring_too() {
    standin().run(|standin| {
        let all = measured(None);
        assert!(all.iter().all(|own| (own.ranks, own.shared) == (1, false)));
        let all = measured(Some(4));
        assert!(all.iter().all(|own| (own.ranks, own.shared) == (4, true)));
        are_wrong(&all);
        assert_eq!(standin.count("cuMemcpyPeerAsync"), 0, "all of it is one device's memory");
    });
}

#[test]
fn the_processor_computes_what_the_ring_is_compared_with() {
    let (ranks, steps, words) = (3, 5, 7);
    for origin in 0..ranks {
        // Step by step, as the kernel does it.
        let mut chunk: Vec<u32> = (0..words).map(|at| first_word(origin, at)).collect();
        for step in 0..steps {
            let addend = 1_013_904_223u32.wrapping_add(((origin + step) % ranks) as u32);
            chunk
                .iter_mut()
                .for_each(|word| *word = word.wrapping_mul(1_664_525).wrapping_add(addend));
        }
        assert_eq!(count_wrong(&chunk, origin, steps, ranks), 0);
        chunk[3] ^= 1;
        assert_eq!(count_wrong(&chunk, origin, steps, ranks), 1);
        assert_eq!(all_steps(origin, 0, ranks), (1, 0));
    }
}

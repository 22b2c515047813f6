//! H63 and H64: sizes and alignments. (H66 has a program of its own.)

use crate::common::{GIB, KIB, MIB, in_both_kinds};

#[test]
fn h63_zero_bytes_are_a_buffer_with_no_address_and_no_call() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let [a, b] = lab.streams();
        let (mut nothing, calls) = lab.calls_of(|| a.alloc(0).unwrap());
        assert_eq!((nothing.len(), nothing.capacity(), nothing.device_ptr()), (0, 0, 0));
        assert!(nothing.is_empty());
        assert_eq!((calls.driver_calls(), lab.stats().live), (0, 1));
        nothing.use_on(&b).unwrap();
        nothing.move_to(&b).unwrap();
        assert_eq!(nothing.stream(), b);
        drop(nothing);
        let scope = lab.pool.quiesce().unwrap();
        drop(a.alloc_aligned(0, 4096).unwrap());
        assert_eq!(scope.finish().freed, 0);
        assert_eq!((lab.stats().live, lab.stats().reserved), (0, 0));
    });
}

#[test]
fn h63_every_class_and_its_neighbours() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let a = lab.stream();
        for (bytes, block) in [(1, 256), (255, 256), (256, 256), (257, 512)] {
            let x = lab.hold(&a, bytes);
            assert_eq!((x.len() as u64, x.size()), (bytes, block));
            x.write(&a);
        }
        let mut largest = 0;
        while largest < MIB {
            // One more than a class's largest is the smallest of the next.
            let class = lab.hold(&a, largest + 1).size();
            for bytes in [class - 1, class, largest + 1] {
                let x = lab.hold(&a, bytes);
                assert_eq!((x.len() as u64, x.size()), (bytes, class));
                assert!(class <= 2048 || class * 8 <= bytes * 9 || bytes == class, "{bytes}");
                x.write(&a);
            }
            assert!(class > largest && class.is_multiple_of(256));
            largest = class;
        }
        assert_eq!(largest, MIB);
        for bytes in [MIB + 1, 3 * MIB - 1, 64 * MIB + 257, GIB - 1, 5 * GIB] {
            let x = lab.hold(&a, bytes);
            assert_eq!(x.size(), bytes.next_multiple_of(256), "exact above 1 MiB");
            x.write(&a);
        }
    });
}

#[test]
fn h63_the_largest_sizes_are_errors_and_never_wrap() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let a = lab.stream();
        let largest = 1_usize << 40;
        // The largest class is no device's memory: out of memory, with its numbers.
        for bytes in [largest - 1, largest] {
            let error = a.alloc(bytes).unwrap_err();
            assert!(error.is_out_of_memory() && !error.is_too_large(), "{error}");
            assert_eq!(error.shortage().unwrap().requested, largest as u64);
            assert!(a.alloc_aligned(bytes, 1 << 30).unwrap_err().is_out_of_memory());
        }
        let huge = [largest + 1, 1 << 41, 1 << 46, 1 << 62, 1 << 63, (1 << 63) + 1];
        for bytes in huge.into_iter().chain((0..=512).map(|below| usize::MAX - below)) {
            for align in [1, 256, 4096, 2 << 20, 1 << 30] {
                let (error, calls) = lab.calls_of(|| a.alloc_aligned(bytes, align).unwrap_err());
                assert!(error.is_too_large() && !error.is_out_of_memory(), "{bytes}: {error}");
                assert_eq!(calls.driver_calls(), 0);
            }
            assert!(a.alloc(bytes).unwrap_err().is_too_large());
        }
        assert!(lab.pool.reserve(u64::MAX).unwrap_err().is_out_of_memory());
        assert!(lab.pool.reserve(u64::MAX - 511).is_err());
        assert_eq!(lab.stats().in_use, 0);
        assert_eq!(lab.hold(&a, KIB).size(), KIB);
    });
}

#[test]
fn h63_a_limit_at_the_end_of_the_numbers_does_not_wrap() {
    in_both_kinds(|setup| {
        for limit in [u64::MAX, u64::MAX - 255, 1 << 63] {
            let lab = setup
                .lab_with(|builder| builder.limit(limit).floor(u64::MAX).soft_target(u64::MAX));
            let a = lab.stream();
            lab.hold(&a, MIB).write(&a);
            assert!(a.alloc(1 << 40).unwrap_err().is_out_of_memory());
        }
        for limit in [0, 1, 255, 256, 4096] {
            let lab = setup.lab_of(limit);
            let a = lab.stream();
            let error = a.alloc(MIB as usize).unwrap_err();
            assert!(error.is_over_limit(), "{error}");
            assert_eq!(lab.device.memory_peak(), 0);
        }
    });
}

#[test]
fn h64_alignments_up_to_a_gibibyte_are_honoured() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let a = lab.stream();
        let mut kept = Vec::new();
        for shift in (0..=21).chain([25, 30]) {
            let align = 1_usize << shift;
            for bytes in [1, 300, 4096, 100 << 10, (1 << 20) + 256] {
                let x = a.alloc_aligned(bytes, align).unwrap();
                let x = crate::common::Held::of(&lab.device, &a, x);
                assert_eq!(x.at() % (align as u64).max(256), 0, "{bytes} at {align}");
                x.write(&a);
                if shift % 2 == 0 {
                    kept.push(x);
                }
            }
        }
        let mut ranges: Vec<_> = kept.iter().map(|own| (own.at(), own.at() + own.size())).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|two| two[0].1 <= two[1].0), "two overlap");
        // Freed and wanted again with a coarser alignment: a hit must honour it too.
        drop(kept);
        for shift in [12, 16, 21] {
            let x = a.alloc_aligned(4096, 1 << shift).unwrap();
            assert_eq!(x.device_ptr() % (1 << shift), 0);
        }
    });
}

#[test]
fn h64_what_is_no_power_of_two_or_too_coarse_is_refused() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let a = lab.stream();
        for align in [0, 3, 5, 255, 257, 768, (1 << 21) + 1, 1 << 31, 1 << 63, usize::MAX] {
            for bytes in [0, 1, 4096, usize::MAX] {
                let (error, calls) = lab.calls_of(|| a.alloc_aligned(bytes, align).unwrap_err());
                assert!(error.is_invalid_argument(), "{align}: {error}");
                assert_eq!(calls.driver_calls(), 0);
            }
        }
        assert_eq!(lab.stats().reserved, 0);
    });
}

#[test]
fn h64_an_alignment_costs_no_more_than_itself_within_a_limit() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(4 * MIB);
        let a = lab.stream();
        let x = a.alloc_aligned(2 << 20, 1 << 20).unwrap();
        assert_eq!(x.device_ptr() % MIB, 0);
        drop(x);
        let x = a.alloc_aligned(2 << 20, 2 << 20).unwrap();
        assert_eq!(x.device_ptr() % (2 * MIB), 0);
    });
}

//! Memory: the device's account, segments, virtual memory, peers, and what may not be touched.
#![cfg(not(loom))]

use streampool::backend::{Backend, ErrorKind};
use streampool::sim::{
    Hazard, HazardKind, Kernel, Schedule, SimConfig, SimDevice, SimErrorCode as Code, SimGranule,
};

const GRANULE: u64 = 2 << 20;

fn small(memory_bytes: u64) -> SimDevice {
    SimDevice::new(SimConfig { memory_bytes, ..SimConfig::default() })
}

fn kinds(device: &SimDevice) -> Vec<HazardKind> {
    device.take_hazards().iter().map(Hazard::kind).collect()
}

/// A granule, mapped and accessible.
fn mapped(device: &SimDevice, granules: u64) -> (u64, SimGranule) {
    let bytes = granules * GRANULE;
    let range = device.reserve_range(bytes).unwrap();
    let granule = device.create_granule(bytes).unwrap();
    // SAFETY: The range is reserved and empty, and the granule of its size.
    unsafe {
        device.map(range, bytes, &granule).unwrap();
        device.set_access(range, bytes, &[]).unwrap();
    }
    (range, granule)
}

#[test]
fn the_account_counts_segments_and_granules_and_runs_out() {
    let device = small(10 << 20);
    let segment = device.alloc_segment(3 << 20).unwrap();
    let granule = device.create_granule(2 * GRANULE).unwrap();
    assert_eq!(device.memory_in_use(), 7 << 20);
    let info = device.memory_info().unwrap();
    assert_eq!((info.free, info.total), (3 << 20, 10 << 20));
    let error = device.alloc_segment((3 << 20) + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(device.create_granule(2 * GRANULE).unwrap_err().kind(), ErrorKind::OutOfMemory);
    device.alloc_segment(3 << 20).unwrap();
    assert_eq!(device.memory_peak(), 10 << 20);
    // SAFETY: Allocated with this size and unused; the granule is mapped nowhere.
    unsafe {
        device.free_segment(segment, 3 << 20).unwrap();
        device.destroy_granule(granule).unwrap();
    }
    assert_eq!((device.memory_in_use(), device.memory_peak()), (3 << 20, 10 << 20));
    device.reset_memory_peak();
    assert_eq!(device.memory_peak(), 3 << 20);
    assert_eq!(device.live_granules(), 0);
}

#[test]
fn addresses_are_aligned_apart_and_come_back_at_once() {
    let device = small(1 << 30);
    let segments: Vec<u64> =
        [1, 255, 256, 257, 4096].iter().map(|&n| device.alloc_segment(n).unwrap()).collect();
    for pair in segments.windows(2) {
        assert!(pair[0].is_multiple_of(256) && pair[0] < pair[1], "{segments:x?}");
    }
    // Neighbours touch: memory that is no segment's own must not be taken for it.
    assert_eq!(segments[3] + 512, segments[4]);
    // SAFETY: Allocated with this size and unused.
    unsafe { device.free_segment(segments[2], 256).unwrap() };
    assert_eq!(device.alloc_segment(200).unwrap(), segments[2]);
    // Holes that meet are one hole, in whichever order they were made.
    for order in [[0, 1], [1, 0]] {
        let pair = [0, 1].map(|_| device.alloc_segment(256).unwrap());
        for index in order {
            // SAFETY: Allocated with this size and unused.
            unsafe { device.free_segment(pair[index], 256).unwrap() };
        }
        let both = device.alloc_segment(512).unwrap();
        assert_eq!(both, pair[0]);
        // SAFETY: Allocated with this size and unused.
        unsafe { device.free_segment(both, 512).unwrap() };
    }
    let range = device.reserve_range(GRANULE).unwrap();
    assert!(range.is_multiple_of(GRANULE));
    assert_eq!(device.alloc_segment(0).unwrap_err().code(), Code::InvalidValue);
    assert_eq!(device.alloc_segment(u64::MAX).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(device.reserve_range(1 << 50).unwrap_err().kind(), ErrorKind::OutOfMemory);
}

#[test]
fn a_segment_is_given_back_once_and_whole() {
    let device = small(1 << 30);
    let segment = device.alloc_segment(4096).unwrap();
    for (address, bytes) in [(segment, 4095), (segment + 256, 3840), (segment, 8192)] {
        // SAFETY: None of the simulated device's calls is unsound; this one is meant to fail.
        let error = unsafe { device.free_segment(address, bytes).unwrap_err() };
        assert_eq!(error.code(), Code::InvalidValue);
        assert_eq!(kinds(&device), [HazardKind::Misuse]);
    }
    assert_eq!(device.memory_in_use(), 4096);
    // SAFETY: Allocated with this size and unused.
    unsafe { device.free_segment(segment, 4096).unwrap() };
    // SAFETY: As above: it is meant to fail.
    unsafe { device.free_segment(segment, 4096).unwrap_err() };
    assert_eq!(kinds(&device), [HazardKind::Misuse]);
}

#[test]
fn granules_are_mapped_and_unmapped_only_whole_and_inside_a_range() {
    let device = small(1 << 30);
    let (range, granule) = mapped(&device, 2);
    assert_eq!(device.mapped_bytes(), 2 * GRANULE);
    let other = device.create_granule(GRANULE).unwrap();
    let empty = device.reserve_range(2 * GRANULE).unwrap();
    let segment = device.alloc_segment(GRANULE).unwrap();
    // SAFETY: Meant to fail, and the simulated device has no memory to break.
    unsafe {
        // Over a mapping; outside the ranges; not the granule's size; unaligned.
        device.map(range + GRANULE, GRANULE, &other).unwrap_err();
        device.map(empty + 2 * GRANULE, GRANULE, &other).unwrap_err();
        device.map(empty, 2 * GRANULE, &other).unwrap_err();
        device.map(range + 256, GRANULE, &other).unwrap_err();
        device.unmap(range, GRANULE).unwrap_err();
        device.unmap(range + GRANULE, GRANULE).unwrap_err();
        device.unmap(segment, GRANULE).unwrap_err();
        device.set_access(range, GRANULE, &[]).unwrap_err();
        device.release_range(range, 2 * GRANULE).unwrap_err();
    }
    assert_eq!(kinds(&device), [HazardKind::Misuse; 9]);
    // SAFETY: Meant to fail: it is mapped.
    let (granule, error) = unsafe { device.destroy_granule(granule).unwrap_err() };
    assert_eq!((error.code(), device.live_granules()), (Code::InvalidValue, 2));
    assert_eq!(kinds(&device), [HazardKind::Misuse]);
    // SAFETY: Mapped as one, and unused; then mapped nowhere; then empty.
    unsafe {
        device.unmap(range, 2 * GRANULE).unwrap();
        device.destroy_granule(granule).unwrap();
        device.destroy_granule(other).unwrap();
        device.release_range(range, 2 * GRANULE).unwrap();
        device.free_segment(segment, GRANULE).unwrap();
    }
    assert_eq!((device.mapped_bytes(), device.memory_in_use()), (0, 0));
    assert_eq!(kinds(&device), []);
}

#[test]
fn granules_side_by_side_are_unmapped_in_one_call() {
    let device = small(1 << 30);
    let range = device.reserve_range(4 * GRANULE).unwrap();
    let granules: Vec<_> = (0..4).map(|_| device.create_granule(GRANULE).unwrap()).collect();
    // SAFETY: The range is reserved and empty, and the granules of the size; unused.
    unsafe {
        for (granule, address) in granules.iter().zip((range..).step_by(GRANULE as usize)) {
            device.map(address, GRANULE, granule).unwrap();
        }
        device.set_access(range, 4 * GRANULE, &[]).unwrap();
        device.unmap(range + GRANULE, 2 * GRANULE).unwrap();
        device.unmap(range, 4 * GRANULE).unwrap_err();
    }
    assert_eq!(device.mapped_bytes(), 2 * GRANULE);
    assert_eq!(kinds(&device), [HazardKind::Misuse]);
}

#[test]
fn a_device_without_virtual_memory_says_so() {
    let device = SimDevice::new(SimConfig { granularity: None, ..SimConfig::default() });
    assert_eq!(device.granularity(), None);
    assert_eq!(device.reserve_range(GRANULE).unwrap_err().code(), Code::NotSupported);
    assert_eq!(device.create_granule(GRANULE).unwrap_err().code(), Code::NotSupported);
    let coarse = SimDevice::new(SimConfig { granularity: Some(4096), ..SimConfig::default() });
    assert_eq!(coarse.granularity(), Some(4096));
    assert_eq!(coarse.create_granule(4097).unwrap_err().code(), Code::InvalidValue);
    coarse.create_granule(8192).unwrap();
}

#[test]
fn touching_what_is_not_mapped_is_a_hazard_and_the_context_is_lost() {
    let device = small(1 << 30);
    let stream = device.create_stream();
    let segment = device.alloc_segment(512).unwrap();
    device.launch(&stream, Kernel::new().writes(segment + 256, 512)).unwrap();
    let hazards = device.take_hazards();
    assert_eq!(hazards[0].kind(), HazardKind::Unmapped);
    assert_eq!((hazards[0].address(), hazards[0].bytes()), (segment + 512, 256));
    assert!(hazards[0].to_string().contains("operation 1 on stream 1 writes"), "{}", hazards[0]);
    let error = device.synchronize_context().unwrap_err();
    assert_eq!((error.code(), error.kind()), (Code::IllegalAddress, ErrorKind::DeviceLost));
    assert_eq!(device.create_event().unwrap_err().code(), Code::IllegalAddress);
}

#[test]
fn touching_a_mapping_before_its_access_is_set_is_a_hazard() {
    let device = small(1 << 30);
    let stream = device.create_stream();
    let range = device.reserve_range(GRANULE).unwrap();
    let granule = device.create_granule(GRANULE).unwrap();
    // SAFETY: The range is reserved and empty, and the granule of its size.
    unsafe { device.map(range, GRANULE, &granule).unwrap() };
    device.launch(&stream, Kernel::new().reads(range, 64)).unwrap();
    assert_eq!(kinds(&device), [HazardKind::NoAccess]);
    assert_eq!(device.synchronize_context().unwrap_err().code(), Code::IllegalAddress);
}

#[test]
fn taking_memory_away_waits_for_nothing_and_needs_completion_on_the_hosts_evidence() {
    for seen in [false, true] {
        for write in [false, true] {
            let device = small(1 << 30);
            let stream = device.create_stream();
            let (range, _granule) = mapped(&device, 1);
            let segment = device.alloc_segment(512).unwrap();
            for address in [range + 1024, segment] {
                let kernel = Kernel::new();
                let kernel =
                    if write { kernel.writes(address, 64) } else { kernel.reads(address, 64) };
                device.launch(&stream, kernel).unwrap();
            }
            if seen {
                device.synchronize_context().unwrap();
            } else {
                // All has executed; but the host has not looked.
                device.run();
            }
            // SAFETY: Whole, and the device has finished; the host may not know.
            unsafe {
                device.unmap(range, GRANULE).unwrap();
                device.free_segment(segment, 512).unwrap();
            }
            if seen {
                assert_eq!(kinds(&device), []);
                continue;
            }
            let hazards = device.take_hazards();
            let places: Vec<_> =
                hazards.iter().map(|h| (h.kind(), h.address(), h.bytes())).collect();
            let kind = HazardKind::UnmappedInUse;
            assert_eq!(places, [(kind, range + 1024, 64), (kind, segment, 64)]);
            let text = hazards[0].to_string();
            assert!(text.contains("host has not seen operation 1 on stream 1 finish"), "{text}");
            assert!(text.contains("is taken away"), "{text}");
        }
    }
}

#[test]
fn a_kernel_that_runs_into_an_unmapped_address_loses_the_context() {
    let device = small(1 << 30);
    let stream = device.create_stream();
    let (range, _granule) = mapped(&device, 1);
    let gate = device.gate();
    device.launch(&stream, Kernel::new().writes(range, 64).after(&gate)).unwrap();
    // SAFETY: Whole; that it is in use is the point, and nothing but the simulation can break.
    unsafe { device.unmap(range, GRANULE).unwrap() };
    assert_eq!(kinds(&device), [HazardKind::UnmappedInUse]);
    device.memory_info().unwrap();
    gate.open();
    device.run();
    assert_eq!(device.memory_info().unwrap_err().code(), Code::IllegalAddress);
}

#[test]
fn taking_memory_away_from_its_owner_is_a_hazard() {
    let device = small(1 << 30);
    let stream = device.create_stream();
    let segment = device.alloc_segment(512).unwrap();
    device.note_handed_out(&stream, segment + 256, 256);
    // SAFETY: Allocated with this size and never used.
    unsafe { device.free_segment(segment, 512).unwrap() };
    let hazards = device.take_hazards();
    assert_eq!(hazards.len(), 1);
    assert_eq!(hazards[0].kind(), HazardKind::UnmappedInUse);
    assert!(hazards[0].missing().contains("owner 1"), "{}", hazards[0]);
    // The next owner of the address has nothing to do with it.
    assert_eq!(device.alloc_segment(512).unwrap(), segment);
    device.note_handed_out(&stream, segment, 512);
    assert_eq!(kinds(&device), []);

    let (range, granule) = mapped(&device, 1);
    device.note_handed_out(&stream, range, 64);
    // SAFETY: Whole and never used; the range is then empty again.
    unsafe {
        device.unmap(range, GRANULE).unwrap();
        assert_eq!(kinds(&device), [HazardKind::UnmappedInUse]);
        device.map(range, GRANULE, &granule).unwrap();
    }
    device.note_handed_out(&stream, range, 64);
    assert_eq!(kinds(&device), []);
}

#[test]
fn bytes_stay_with_their_granule_and_not_with_the_address() {
    let device = small(1 << 30);
    let stream = device.create_stream();
    let (range, granule) = mapped(&device, 1);
    device.launch(&stream, Kernel::new().writes(range + 100, 8).stamp(77)).unwrap();
    device.synchronize_context().unwrap();
    let new = device.reserve_range(GRANULE).unwrap();
    // SAFETY: Whole, finished; the new range is reserved and empty.
    unsafe {
        device.unmap(range, GRANULE).unwrap();
        assert_eq!(device.read_byte(range + 100), None);
        device.map(new, GRANULE, &granule).unwrap();
        device.set_access(new, GRANULE, &[]).unwrap();
    }
    let byte = streampool::sim::stamp_byte(77);
    assert_eq!(device.read(new + 98, 4), Some(vec![0, 0, byte, byte]));
    assert_eq!(device.read_stamp(new + 107), Some(77));
    assert_eq!(device.read_stamp(new + 108), None);
    let (other, _) = mapped(&device, 1);
    assert_eq!(device.read_byte(other + 100), Some(0), "new memory is not the old one's");
}

/// A device with one granule mapped at two addresses, and both.
fn aliased() -> (SimDevice, u64, u64) {
    let device = small(1 << 30);
    let (range, granule) = mapped(&device, 1);
    let other = device.reserve_range(GRANULE).unwrap();
    // SAFETY: the new range is reserved and empty, and the granule of its size.
    unsafe {
        device.map(other, GRANULE, &granule).unwrap();
        device.set_access(other, GRANULE, &[]).unwrap();
    }
    (device, range, other)
}

#[test]
fn uses_of_one_granule_through_two_mappings_meet() {
    let (device, range, other) = aliased();
    let [a, b] = [device.create_stream(), device.create_stream()];
    device.launch(&a, Kernel::new().writes(range + 64, 64).stamp(5)).unwrap();
    device.launch(&b, Kernel::new().reads(other + 100, 8)).unwrap();
    let hazards = device.take_hazards();
    assert_eq!(hazards.len(), 1);
    assert_eq!((hazards[0].kind(), hazards[0].address()), (HazardKind::Race, other + 100));
    device.run();
    assert_eq!(device.read_stamp(other + 64), Some(5));
}

#[test]
fn an_unmapping_waits_for_what_came_through_its_own_mapping() {
    // A later write through the other mapping stands for the first use, but does not end it; it may
    // cover more than the first, or less.
    for through_own in [false, true] {
        for (address, bytes) in [(64, 64), (0, 256), (96, 8)] {
            for first_reads in [false, true] {
                let (device, range, other) = aliased();
                let stream = device.create_stream();
                let at = if through_own { range } else { other };
                let kernel = Kernel::new();
                let first = if first_reads {
                    kernel.reads(at + 64, 64)
                } else {
                    kernel.writes(at + 64, 64)
                };
                device.launch(&stream, first).unwrap();
                device.launch(&stream, Kernel::new().writes(other + address, bytes)).unwrap();
                // SAFETY: whole; nothing but the simulation can break.
                unsafe { device.unmap(range, GRANULE).unwrap() };
                let expected: &[_] = if through_own { &[HazardKind::UnmappedInUse] } else { &[] };
                let found = kinds(&device);
                let found = if found.is_empty() { &found[..] } else { &found[..1] };
                assert_eq!(found, expected, "{through_own} {address} {bytes} {first_reads}");
                device.synchronize_context().ok();
                // SAFETY: as above.
                unsafe { device.unmap(other, GRANULE).unwrap() };
            }
        }
    }
}

#[test]
fn a_use_through_another_mapping_is_remembered_once() {
    let (device, range, other) = aliased();
    let stream = device.create_stream();
    let write = |address, bytes| {
        device.launch(&stream, Kernel::new().writes(address, bytes)).unwrap();
    };
    write(range, 256);
    // Cut and made whole again: with every part's memory of it kept, this would take 2^64 entries.
    for _ in 0..64 {
        write(other, 128);
        write(other, 256);
    }
    // SAFETY: whole; nothing but the simulation can break.
    unsafe { device.unmap(range, GRANULE).unwrap() };
    assert_eq!(kinds(&device), [HazardKind::UnmappedInUse]);
}

#[test]
fn memory_handed_out_by_two_addresses_is_handed_out_twice() {
    let (device, range, other) = aliased();
    let stream = device.create_stream();
    device.note_handed_out(&stream, range + 1024, 512);
    device.note_handed_out(&stream, other, 1024);
    assert_eq!(kinds(&device), []);
    device.note_handed_out(&stream, other + 1280, 1024);
    let hazards = device.take_hazards();
    assert_eq!(hazards.len(), 1);
    let found = (hazards[0].kind(), hazards[0].address(), hazards[0].bytes());
    assert_eq!(found, (HazardKind::Overlap, range + 1280, 256));
    // Given back by the one address, it may go out by the other.
    device.note_given_back(range + 1024, 512);
    device.note_given_back(other + 1280, 1024);
    device.note_handed_out(&stream, other + 1024, 2048);
    assert_eq!(kinds(&device), []);
}

#[test]
fn a_write_of_gigabytes_costs_no_gigabytes() {
    let device = SimDevice::new(1);
    let stream = device.create_stream();
    let bytes = 100 << 30;
    let segment = device.alloc_segment(bytes).unwrap();
    device.launch(&stream, Kernel::new().writes(segment, bytes).stamp(1)).unwrap();
    device.launch(&stream, Kernel::new().writes(segment + (50 << 30), 1).stamp(2)).unwrap();
    device.launch(&stream, Kernel::new().expects(segment, 50 << 30, 1)).unwrap();
    device.run();
    assert_eq!(device.read_stamp(segment + (50 << 30)), Some(2));
    assert_eq!(device.read_stamp(segment + (50 << 30) + 1), Some(1));
    assert_eq!(kinds(&device), []);
}

#[test]
fn a_device_touches_anothers_memory_only_with_access() {
    let devices = SimDevice::several(1, 3);
    let streams: Vec<_> = devices.iter().map(SimDevice::create_stream).collect();
    let segment = devices[0].alloc_segment(64).unwrap();
    let (range, _granule) = mapped(&devices[0], 1);
    let touch = |device: usize, address: u64| {
        devices[device].launch(&streams[device], Kernel::new().reads(address, 64)).unwrap();
        kinds(&devices[0])
    };
    assert_eq!(touch(0, segment), []);
    assert_eq!(touch(0, range), []);
    devices[0].allow_peer(&devices[1], true).unwrap();
    assert_eq!(touch(1, segment), []);
    assert_eq!(touch(1, range), [HazardKind::NoAccess]);
    assert_eq!(touch(2, segment), [HazardKind::NoAccess]);
    let peers = SimDevice::several(1, 2);
    assert_eq!(devices[0].allow_peer(&peers[1], true).unwrap_err().code(), Code::InvalidValue);

    let again = SimDevice::several(1, 2);
    let stream = again[1].create_stream();
    let (range, _granule) = mapped(&again[0], 1);
    // SAFETY: Whole and mapped.
    unsafe { again[0].set_access(range, GRANULE, &[&again[1]]).unwrap() };
    again[1].launch(&stream, Kernel::new().writes(range, 64)).unwrap();
    again[1].synchronize_context().unwrap();
    assert_eq!(kinds(&again[0]), []);
    // Access that is taken away is missing when the kernel runs, as unmapped memory would be.
    let gate = again[0].gate();
    again[1].launch(&stream, Kernel::new().writes(range, 64).after(&gate)).unwrap();
    // SAFETY: Whole and mapped.
    unsafe { again[0].set_access(range, GRANULE, &[]).unwrap() };
    gate.open();
    assert_eq!(again[1].synchronize_context().unwrap_err().code(), Code::IllegalAddress);
}

#[test]
fn a_synchronize_of_one_device_does_not_wait_for_another() {
    let devices = SimDevice::several(1, 2);
    let stream = devices[1].create_stream();
    let (range, _granule) = mapped(&devices[0], 1);
    // SAFETY: Whole and mapped.
    unsafe { devices[0].set_access(range, GRANULE, &[&devices[1]]).unwrap() };
    devices[1].launch(&stream, Kernel::new().writes(range, 64).taking(50_000_000)).unwrap();
    let start = devices[0].now();
    devices[0].synchronize_context().unwrap();
    assert!(devices[0].now() - start < 10_000, "it takes no time");
    // SAFETY: Whole; that it is in use is the point.
    unsafe { devices[0].unmap(range, GRANULE).unwrap() };
    assert_eq!(kinds(&devices[0]), [HazardKind::UnmappedInUse]);
    // The other device faults, and only that one is lost.
    devices[1].run();
    assert_eq!(devices[1].memory_info().unwrap_err().code(), Code::IllegalAddress);
    devices[0].memory_info().unwrap();
}

#[test]
fn a_synchronize_covers_what_its_device_waited_for_on_another() {
    for schedule in [Schedule::Timed, Schedule::Lazy, Schedule::Random] {
        let devices = SimDevice::several(SimConfig { schedule, ..SimConfig::default() }, 2);
        let (a, other) = (devices[0].create_stream(), devices[1].create_stream());
        let segment = devices[0].alloc_segment(64).unwrap();
        devices[0].allow_peer(&devices[1], true).unwrap();
        devices[1].launch(&other, Kernel::new().writes(segment, 64).taking(50_000_000)).unwrap();
        let event = devices[1].create_event().unwrap();
        devices[1].record(&event, &other).unwrap();
        devices[1].wait(&a, &event).unwrap();
        devices[0].synchronize_context().unwrap();
        assert!(devices[0].now() >= 50_000_000);
        // SAFETY: Allocated with this size, and finished.
        unsafe { devices[0].free_segment(segment, 64).unwrap() };
        assert_eq!(kinds(&devices[0]), []);
    }
}

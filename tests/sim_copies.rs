//! Copies on the simulated device: what they carry, what they need, and how they count as uses.

use streampool::backend::{Backend, ErrorKind};
use streampool::sim::{
    CaptureMode, HazardKind, Kernel, Schedule, SimConfig, SimDevice, SimErrorCode as Code,
    stamp_byte,
};

const SCHEDULES: [Schedule; 3] = [Schedule::Timed, Schedule::Lazy, Schedule::Random];

fn devices(schedule: Schedule) -> [SimDevice; 2] {
    let config = SimConfig { schedule, ..SimConfig::default() };
    SimDevice::several(config, 2).try_into().unwrap()
}

fn kinds(device: &SimDevice) -> Vec<HazardKind> {
    device.take_hazards().iter().map(|hazard| hazard.kind()).collect()
}

#[test]
fn a_copy_carries_what_was_written_last_wherever_it_begins() {
    for schedule in SCHEDULES {
        let [device, _] = devices(schedule);
        let stream = device.create_stream();
        let (from, to) = (device.alloc_segment(1000).unwrap(), device.alloc_segment(1000).unwrap());
        let launch = |kernel| device.launch(&stream, kernel).unwrap();
        launch(Kernel::new().writes(to, 1000).stamp(1));
        launch(Kernel::new().writes(from + 100, 100).stamp(2));
        launch(Kernel::new().writes(from + 200, 300).stamp(3));
        // From what was never written, over both stamps, into what was never written again.
        launch(Kernel::new().copies(to + 150, from + 50, 500));
        for (at, bytes, stamp) in [(0, 150, 1), (200, 100, 2), (300, 300, 3), (650, 350, 1)] {
            launch(Kernel::new().expects(to + at, bytes, stamp));
        }
        device.synchronize_context().unwrap();
        assert_eq!(kinds(&device), []);
        let bytes = [150, 199, 200, 299, 300, 599, 600, 649].map(|at| device.read_byte(to + at));
        let [two, three] = [2, 3].map(|stamp| Some(stamp_byte(stamp)));
        let never = Some(0);
        assert_eq!(bytes, [never, never, two, two, three, three, never, never]);
        // A later write of the source is another matter.
        launch(Kernel::new().writes(from, 1000).stamp(4));
        launch(Kernel::new().expects(to + 300, 300, 3));
        device.synchronize_context().unwrap();
        assert_eq!(kinds(&device), []);
    }
}

#[test]
fn a_kernel_that_copies_needs_access_and_the_drivers_copy_does_not() {
    for schedule in SCHEDULES {
        let [zero, one] = devices(schedule);
        let (a, b) = (zero.create_stream(), one.create_stream());
        let (from, to) = (zero.alloc_segment(64).unwrap(), one.alloc_segment(64).unwrap());
        zero.launch(&a, Kernel::new().writes(from, 64).stamp(5)).unwrap();
        zero.synchronize_context().unwrap();
        // SAFETY: Both were allocated with this size, and what was written has finished.
        unsafe { one.copy(&b, to, &zero, from, 64) }.unwrap();
        one.launch(&b, Kernel::new().expects(to, 64, 5)).unwrap();
        one.synchronize_context().unwrap();
        assert_eq!(kinds(&zero), []);
        assert_eq!((one.counts().copies, zero.counts().copies), (1, 0));
        one.launch(&b, Kernel::new().copies(to, from, 64)).unwrap();
        assert_eq!(kinds(&zero), [HazardKind::NoAccess]);
    }
}

#[test]
fn a_copy_reads_its_source_and_writes_its_destination() {
    let [zero, one] = devices(Schedule::Lazy);
    let (a, b) = (zero.create_stream(), one.create_stream());
    let (from, to) = (zero.alloc_segment(64).unwrap(), one.alloc_segment(64).unwrap());
    // SAFETY: Both were allocated with this size; that nothing is ordered is the point.
    let copy = || unsafe { one.copy(&b, to, &zero, from, 64) }.unwrap();
    copy();
    zero.launch(&a, Kernel::new().reads(from, 64)).unwrap();
    assert_eq!(kinds(&zero), [], "two reads");
    zero.launch(&a, Kernel::new().writes(from, 64)).unwrap();
    assert_eq!(kinds(&zero), [HazardKind::Race]);
    copy();
    assert_eq!(kinds(&zero), [HazardKind::Race]);
    let c = one.create_stream();
    one.launch(&c, Kernel::new().reads(to, 64)).unwrap();
    assert_eq!(kinds(&zero), [HazardKind::Race]);
}

#[test]
fn a_copy_that_executes_after_its_memory_is_gone_loses_the_device() {
    let [zero, one] = devices(Schedule::Lazy);
    let b = one.create_stream();
    let (from, to) = (zero.alloc_segment(64).unwrap(), one.alloc_segment(64).unwrap());
    // SAFETY: Both were allocated with this size.
    unsafe { one.copy(&b, to, &zero, from, 64) }.unwrap();
    // SAFETY: Allocated with this size; that it is in use is the point.
    unsafe { zero.free_segment(from, 64) }.unwrap();
    assert_eq!(kinds(&zero), [HazardKind::UnmappedInUse]);
    assert_eq!(one.synchronize_context().unwrap_err().code(), Code::IllegalAddress);
}

#[test]
fn a_copy_stays_out_of_captures_and_a_kernel_that_copies_goes_into_them() {
    let [zero, one] = devices(Schedule::Timed);
    let b = one.create_stream();
    let (from, to) = (one.alloc_segment(64).unwrap(), one.alloc_segment(64).unwrap());
    one.launch(&b, Kernel::new().writes(from, 64).stamp(1)).unwrap();
    one.begin_capture(&b, CaptureMode::Global).unwrap();
    // SAFETY: Both were allocated with this size.
    let refused = unsafe { one.copy(&b, to, &one, from, 64) }.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Capture);
    one.launch(&b, Kernel::new().copies(to, from, 64)).unwrap();
    let graph = one.end_capture(&b).expect("it is whole");
    assert_eq!(graph.len(), 1);
    for stamp in [2, 3] {
        one.launch(&b, Kernel::new().writes(from, 64).stamp(stamp)).unwrap();
        one.launch_graph(&graph, &b).unwrap();
        one.launch(&b, Kernel::new().expects(to, 64, stamp)).unwrap();
    }
    // A stream of another device is none of its own.
    let a = zero.create_stream();
    // SAFETY: As above.
    let refused = unsafe { one.copy(&a, to, &one, from, 64) }.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidHandle);
    one.synchronize_context().unwrap();
    assert_eq!(kinds(&one), []);
}

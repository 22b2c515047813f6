//! Known races are reported, of the right kind and with both sides; known-good programs are not.
#![cfg(not(loom))]

use streampool::backend::Backend;
use streampool::sim::{Hazard, HazardKind, Kernel, Schedule, SimConfig, SimDevice, SimStream};

const GRANULE: u64 = 2 << 20;

struct Scene {
    device: SimDevice,
    a: SimStream,
    b: SimStream,
    c: SimStream,
    x: u64,
}

/// Streams 1, 2 and 3, and 1024 bytes.
fn scene() -> Scene {
    let device = SimDevice::new(1);
    let (a, b, c) = (device.create_stream(), device.create_stream(), device.create_stream());
    let x = device.alloc_segment(1024).unwrap();
    Scene { device, a, b, c, x }
}

impl Scene {
    fn write(&self, stream: &SimStream, offset: u64, bytes: u64) {
        self.device.launch(stream, Kernel::new().writes(self.x + offset, bytes)).unwrap();
    }

    fn read(&self, stream: &SimStream, offset: u64, bytes: u64) {
        self.device.launch(stream, Kernel::new().reads(self.x + offset, bytes)).unwrap();
    }

    /// `later` waits for all that is on `earlier` now.
    fn order(&self, earlier: &SimStream, later: &SimStream) {
        let event = self.device.create_event().unwrap();
        self.device.record(&event, earlier).unwrap();
        self.device.wait(later, &event).unwrap();
        self.device.destroy_event(event);
    }

    fn kinds(&self) -> Vec<HazardKind> {
        self.device.take_hazards().iter().map(Hazard::kind).collect()
    }

    /// The only hazard.
    fn hazard(&self) -> Hazard {
        let mut hazards = self.device.take_hazards();
        assert_eq!(hazards.len(), 1, "{hazards:#?}");
        hazards.remove(0)
    }
}

fn assert_says(hazard: &Hazard, parts: &[&str]) {
    let text = hazard.to_string();
    for part in parts {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

#[test]
fn two_unordered_writes_race_where_they_overlap() {
    let s = scene();
    s.write(&s.a, 0, 512);
    s.write(&s.b, 256, 512);
    let hazard = s.hazard();
    assert_eq!(hazard.kind(), HazardKind::Race);
    assert!(!hazard.kind().is_pools_fault());
    assert_eq!((hazard.address(), hazard.bytes()), (s.x + 256, 256));
    assert_eq!(hazard.operations(), (Some(1), Some(2)));
    assert_says(
        &hazard,
        &[
            "earlier: operation 1 on stream 1 writes",
            "later: operation 2 on stream 2 writes",
            "stream 2 never waited for an event recorded on stream 1 at or after operation 1",
        ],
    );
}

#[test]
fn the_missing_edge_tells_how_far_the_order_reaches() {
    let s = scene();
    s.write(&s.a, 0, 64);
    s.order(&s.a, &s.b);
    s.write(&s.a, 0, 64);
    s.read(&s.b, 0, 64);
    let hazard = s.hazard();
    assert_eq!(hazard.operations(), (Some(4), Some(5)));
    assert!(hazard.missing().contains("at or after operation 4"), "{}", hazard.missing());
    assert!(hazard.missing().contains("after stream 1 up to operation 2"), "{}", hazard.missing());
    // The history of the earlier side has its first write too.
    assert_says(&hazard, &["    operation 1 on stream 1 writes"]);
    assert_eq!(hazard.to_string().matches("operation 4 on stream 1 writes").count(), 1);
}

#[test]
fn reads_do_not_conflict_with_reads_and_do_with_writes() {
    let s = scene();
    s.write(&s.a, 0, 64);
    s.order(&s.a, &s.b);
    s.order(&s.a, &s.c);
    s.read(&s.b, 0, 64);
    s.read(&s.c, 0, 64);
    s.read(&s.a, 0, 64);
    assert_eq!(s.kinds(), []);
    // A write must come after every read, not only the last.
    s.order(&s.c, &s.a);
    s.write(&s.a, 0, 64);
    assert_says(&s.hazard(), &["on stream 2 reads", "on stream 1 writes"]);
}

#[test]
fn a_read_is_reported_against_an_unordered_write() {
    let s = scene();
    s.read(&s.a, 0, 64);
    s.write(&s.b, 0, 64);
    assert_says(&s.hazard(), &["on stream 1 reads", "on stream 2 writes"]);
    s.read(&s.c, 0, 64);
    assert_says(&s.hazard(), &["on stream 2 writes", "on stream 3 reads"]);
}

#[test]
fn what_was_reported_once_is_not_reported_again() {
    let s = scene();
    s.read(&s.a, 0, 64);
    s.write(&s.b, 0, 64);
    assert_eq!(s.kinds(), [HazardKind::Race]);
    // The write stands for what came before it, in order or not.
    s.write(&s.b, 0, 64);
    s.order(&s.b, &s.c);
    s.write(&s.c, 0, 64);
    assert_eq!(s.kinds(), []);
}

#[test]
fn what_is_known_follows_bytes_through_splits_and_joins() {
    let s = scene();
    s.write(&s.a, 0, 512);
    s.write(&s.b, 512, 512);
    s.order(&s.a, &s.c);
    // The lower half may be used in parts; a byte of the upper half may not.
    s.write(&s.c, 0, 100);
    s.write(&s.c, 100, 412);
    assert_eq!(s.kinds(), []);
    s.write(&s.c, 256, 257);
    let hazard = s.hazard();
    assert_eq!((hazard.address(), hazard.bytes()), (s.x + 512, 1));
    s.order(&s.b, &s.c);
    s.write(&s.c, 0, 1024);
    assert_eq!(s.kinds(), []);
}

#[test]
fn one_pair_of_uses_is_one_hazard_however_the_bytes_are_cut() {
    let s = scene();
    for part in 0..8 {
        s.write(&s.a, part * 128, 128);
    }
    s.write(&s.a, 0, 1024);
    s.write(&s.b, 0, 512);
    s.write(&s.b, 512, 512);
    s.write(&s.c, 0, 1024);
    let pairs: Vec<_> = s.device.hazards().iter().map(Hazard::operations).collect();
    let pair = |i, j| (Some(i), Some(j));
    assert_eq!(pairs, [pair(9, 10), pair(9, 11), pair(10, 12), pair(11, 12)]);

    // One write, cut in three by reads of its middle.
    let s = scene();
    s.write(&s.a, 0, 1024);
    s.read(&s.a, 256, 256);
    s.device.launch(&s.a, Kernel::new()).unwrap();
    s.read(&s.b, 0, 1024);
    let hazard = s.hazard();
    assert_eq!((hazard.operations(), hazard.bytes()), (pair(1, 4), 1024));
}

#[test]
fn two_mappings_of_one_granule_are_the_same_bytes() {
    let s = scene();
    let device = &s.device;
    let granule = device.create_granule(GRANULE).unwrap();
    let range = device.reserve_range(2 * GRANULE).unwrap();
    for address in [range, range + GRANULE] {
        // SAFETY: The range is reserved and empty there, and the granule of the size.
        unsafe {
            device.map(address, GRANULE, &granule).unwrap();
            device.set_access(address, GRANULE, &[]).unwrap();
        }
    }
    device.launch(&s.a, Kernel::new().writes(range + 64, 64).stamp(3)).unwrap();
    device.launch(&s.b, Kernel::new().writes(range + GRANULE, 128)).unwrap();
    let hazard = s.hazard();
    assert_eq!((hazard.kind(), hazard.bytes()), (HazardKind::Race, 64));
    assert_eq!(hazard.address(), range + GRANULE + 64);
}

#[test]
fn a_hand_out_must_be_ordered_after_every_use_by_earlier_owners() {
    for waits in [false, true] {
        let s = scene();
        s.device.note_handed_out(&s.a, s.x, 1024);
        s.write(&s.a, 0, 1024);
        s.device.note_given_back(s.x, 1024);
        if waits {
            s.order(&s.a, &s.b);
        }
        s.device.note_handed_out(&s.b, s.x, 512);
        if waits {
            s.write(&s.b, 0, 512);
            assert_eq!(s.kinds(), []);
            continue;
        }
        let hazard = s.hazard();
        assert_eq!(hazard.kind(), HazardKind::Reuse);
        assert!(hazard.kind().is_pools_fault());
        assert_says(
            &hazard,
            &[
                "earlier: operation 1 on stream 1 writes",
                "(owner 1)",
                "is handed out to stream 1 (owner 1)",
                "owner 1 gives",
                "later: after operation 1",
                "is handed out to stream 2 (owner 2)",
                "stream 2 never waited for an event recorded on stream 1",
            ],
        );
        s.write(&s.b, 0, 512);
        let hazard = s.hazard();
        assert_eq!(hazard.kind(), HazardKind::Reuse);
        assert_says(&hazard, &["operation 2 on stream 2 writes", "(owner 2)"]);
    }
}

#[test]
fn reads_by_earlier_owners_count_too() {
    let s = scene();
    s.device.note_handed_out(&s.a, s.x, 1024);
    s.order(&s.a, &s.c);
    s.device.note_use_on(&s.c, s.x);
    s.read(&s.c, 0, 1024);
    s.device.note_given_back(s.x, 1024);
    s.device.note_handed_out(&s.a, s.x, 1024);
    assert_says(&s.hazard(), &["on stream 3 reads", "handed out to stream 1 (owner 2)"]);
}

#[test]
fn a_stream_that_an_owner_has_not_named_is_the_programs_fault() {
    let s = scene();
    s.device.note_handed_out(&s.a, s.x, 1024);
    s.write(&s.a, 0, 1024);
    s.device.note_given_back(s.x, 1024);
    s.order(&s.a, &s.b);
    s.device.note_handed_out(&s.b, s.x, 1024);
    s.write(&s.c, 0, 64);
    assert_eq!(s.kinds(), [HazardKind::Race]);
    // The same owner on two streams, unordered.
    s.write(&s.b, 0, 64);
    assert_eq!(s.kinds(), [HazardKind::Race]);
}

#[test]
fn a_use_after_the_end_is_the_programs_fault_also_to_the_next_owner() {
    let s = scene();
    s.device.note_handed_out(&s.a, s.x, 1024);
    s.write(&s.a, 0, 1024);
    s.device.note_given_back(s.x, 1024);
    s.write(&s.b, 0, 1024);
    assert_eq!(s.kinds(), [HazardKind::Lifetime, HazardKind::Race]);
    s.device.note_handed_out(&s.a, s.x, 1024);
    assert_eq!(s.kinds(), [HazardKind::Race]);
}

#[test]
#[should_panic(expected = "2 hazards, the first of them:\nrace at")]
fn asserting_that_there_is_no_hazard_tells_what_there_is() {
    let s = scene();
    s.device.assert_no_hazards();
    s.write(&s.a, 0, 64);
    s.write(&s.b, 0, 64);
    s.write(&s.c, 0, 64);
    s.device.assert_no_hazards();
}

#[test]
fn a_stream_that_an_owner_names_must_be_ordered_after_home() {
    let s = scene();
    s.device.note_handed_out(&s.a, s.x, 1024);
    s.write(&s.a, 0, 1024);
    s.order(&s.a, &s.b);
    s.device.note_use_on(&s.b, s.x + 8);
    s.write(&s.b, 0, 1024);
    assert_eq!(s.kinds(), []);
    s.device.note_use_on(&s.c, s.x);
    assert_says(
        &s.hazard(),
        &["names stream 3", "stream 3 never waited", "handed out to stream 1"],
    );
}

#[test]
fn what_reaches_an_earlier_owners_use_from_a_ready_stream_is_the_pools_fault() {
    for named in [false, true] {
        let s = scene();
        s.device.note_handed_out(&s.a, s.x, 1024);
        s.write(&s.a, 0, 1024);
        s.device.note_given_back(s.x, 1024);
        s.device.launch(&s.b, Kernel::new()).unwrap();
        s.device.note_handed_out(&s.b, s.x, 1024);
        assert_eq!(s.kinds(), [HazardKind::Reuse], "b was not ordered after a");
        if named {
            s.device.note_use_on(&s.c, s.x);
            assert_eq!(s.kinds(), [HazardKind::Reuse], "c was not ordered after b");
        } else {
            s.order(&s.b, &s.c);
        }
        s.read(&s.c, 0, 64);
        assert_eq!(s.kinds(), [HazardKind::Reuse]);
    }
}

#[test]
fn a_move_changes_home() {
    let s = scene();
    s.device.note_handed_out(&s.a, s.x, 1024);
    s.write(&s.a, 0, 1024);
    s.order(&s.a, &s.b);
    s.device.note_moved_to(&s.b, s.x);
    s.write(&s.b, 0, 1024);
    assert_eq!(s.kinds(), []);
    // What counts is the new home, not the old one.
    s.order(&s.a, &s.c);
    s.device.note_use_on(&s.c, s.x);
    assert_eq!(s.kinds(), [HazardKind::Reuse]);
    s.order(&s.b, &s.c);
    s.device.note_use_on(&s.c, s.x);
    assert_eq!(s.kinds(), []);
}

#[test]
fn handing_out_what_is_held_is_an_overlap() {
    let s = scene();
    s.device.note_handed_out(&s.a, s.x, 512);
    s.device.note_handed_out(&s.a, s.x + 256, 512);
    let hazard = s.hazard();
    assert_eq!(hazard.kind(), HazardKind::Overlap);
    assert_eq!((hazard.address(), hazard.bytes()), (s.x + 256, 256));
    assert_says(&hazard, &["(owner 1)", "(owner 2)", "the end of the hand-out to owner 1"]);
}

#[test]
fn using_or_giving_back_what_nobody_holds_is_a_lifetime_hazard() {
    let s = scene();
    s.write(&s.a, 0, 512);
    assert_eq!(s.kinds(), [], "no notes, no owners");
    s.device.note_handed_out(&s.a, s.x, 512);
    s.write(&s.a, 0, 512);
    s.device.note_given_back(s.x, 512);
    assert_eq!(s.kinds(), []);
    s.write(&s.a, 128, 128);
    let hazard = s.hazard();
    assert_eq!((hazard.kind(), hazard.bytes()), (HazardKind::Lifetime, 128));
    assert_says(&hazard, &["owner 1 gives", "later: operation 3 on stream 1 writes"]);
    s.device.note_given_back(s.x, 256);
    assert_eq!(s.kinds(), [HazardKind::Lifetime]);
}

#[test]
fn parts_of_a_hand_out_may_end_on_their_own() {
    let s = scene();
    s.device.note_handed_out(&s.a, s.x, 512);
    s.device.note_given_back(s.x, 256);
    s.write(&s.a, 256, 256);
    s.device.note_handed_out(&s.a, s.x, 256);
    s.write(&s.a, 0, 512);
    assert_eq!(s.kinds(), []);
    s.device.note_given_back(s.x, 512);
    assert_eq!(s.kinds(), []);
}

#[test]
fn a_missing_wait_corrupts_data_when_the_write_is_frozen() {
    for waits in [false, true] {
        let config = SimConfig { schedule: Schedule::Frozen(1), ..SimConfig::default() };
        let device = SimDevice::new(config);
        let (a, b) = (device.create_stream(), device.create_stream());
        let x = device.alloc_segment(1024).unwrap();
        let event = device.create_event().unwrap();
        device.launch(&a, Kernel::new().writes(x, 1024).stamp(1)).unwrap();
        device.record(&event, &a).unwrap();
        if waits {
            device.wait(&b, &event).unwrap();
        }
        device.launch(&b, Kernel::new().writes(x, 1024).stamp(2)).unwrap();
        device.synchronize_context().unwrap();
        device.launch(&b, Kernel::new().expects(x, 1024, 2)).unwrap();
        device.run();
        let hazards = device.hazards();
        let kinds: Vec<_> = hazards.iter().map(Hazard::kind).collect();
        if waits {
            assert_eq!(kinds, []);
        } else {
            assert_eq!(kinds, [HazardKind::Race, HazardKind::Corruption]);
            assert_says(
                &hazards[1],
                &["operation 1 on stream 1 writes", "reads", "stamp 2, where stamp 1 is"],
            );
        }
    }
}

#[test]
fn what_was_never_written_is_not_what_was_expected() {
    let s = scene();
    s.device.launch(&s.a, Kernel::new().writes(s.x, 64).stamp(9)).unwrap();
    s.device.launch(&s.a, Kernel::new().expects(s.x, 96, 9)).unwrap();
    s.device.run();
    let hazard = s.hazard();
    assert_eq!((hazard.address(), hazard.bytes()), (s.x + 64, 32));
    assert_says(&hazard, &["stamp 9, where nothing has been written"]);
}

#[test]
fn without_checks_nothing_is_reported() {
    let device = SimDevice::new(SimConfig { check: false, ..SimConfig::default() });
    let (a, b) = (device.create_stream(), device.create_stream());
    let x = device.alloc_segment(64).unwrap();
    device.note_handed_out(&a, x, 64);
    device.note_handed_out(&b, x, 64);
    for stream in [&a, &b] {
        device.launch(stream, Kernel::new().writes(x, 128)).unwrap();
    }
    device.synchronize_context().unwrap();
    assert_eq!(device.hazard_count(), 0);
}

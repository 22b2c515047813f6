//! Known races are reported, with both sides; known-good programs are not.

use streampool::backend::Backend;
use streampool::sim::{Hazard, HazardKind, Kernel, Schedule, SimConfig, SimDevice};

fn kinds(device: &SimDevice) -> Vec<HazardKind> {
    device.hazards().iter().map(Hazard::kind).collect()
}

#[test]
fn two_unordered_writes_race() {
    let device = SimDevice::new(1);
    let (a, b) = (device.create_stream(), device.create_stream());
    let x = device.alloc_segment(1024).unwrap();
    device.launch(&a, Kernel::new().writes(x, 512)).unwrap();
    device.launch(&b, Kernel::new().writes(x + 256, 512)).unwrap();
    let hazards = device.hazards();
    assert_eq!(hazards.len(), 1);
    assert_eq!(hazards[0].kind(), HazardKind::Race);
    assert_eq!((hazards[0].address(), hazards[0].bytes()), (x + 256, 256));
    assert_eq!(hazards[0].operations(), (Some(1), Some(2)));
    let text = hazards[0].to_string();
    assert!(text.contains("operation 1 on stream 1 writes"), "{text}");
    assert!(text.contains("operation 2 on stream 2 writes"), "{text}");
    let edge = "stream 2 never waited for an event recorded on stream 1 at or after operation 1";
    assert!(text.contains(edge), "{text}");
}

#[test]
fn a_wait_orders_and_so_does_its_transitive_closure() {
    let device = SimDevice::new(1);
    let streams: Vec<_> = (0..3).map(|_| device.create_stream()).collect();
    let x = device.alloc_segment(1024).unwrap();
    let event = device.create_event().unwrap();
    device.launch(&streams[0], Kernel::new().writes(x, 1024)).unwrap();
    for pair in streams.windows(2) {
        device.record(&event, &pair[0]).unwrap();
        device.wait(&pair[1], &event).unwrap();
    }
    device.launch(&streams[2], Kernel::new().writes(x, 1024)).unwrap();
    assert_eq!(kinds(&device), []);
}

#[test]
fn a_missing_wait_corrupts_data_when_frozen() {
    let config = SimConfig { schedule: Schedule::Frozen(1), ..SimConfig::default() };
    let device = SimDevice::new(config);
    let (a, b) = (device.create_stream(), device.create_stream());
    let x = device.alloc_segment(1024).unwrap();
    device.launch(&a, Kernel::new().writes(x, 1024).stamp(1)).unwrap();
    device.launch(&b, Kernel::new().writes(x, 1024).stamp(2)).unwrap();
    device.synchronize_context().unwrap();
    device.launch(&b, Kernel::new().expects(x, 1024, 2)).unwrap();
    device.run();
    assert_eq!(kinds(&device), [HazardKind::Race, HazardKind::Corruption]);
}

#[test]
fn a_later_owner_is_ordered_after_an_earlier_one() {
    for waits in [false, true] {
        let device = SimDevice::new(1);
        let (a, b) = (device.create_stream(), device.create_stream());
        let x = device.alloc_segment(1024).unwrap();
        device.note_handed_out(&a, x, 1024);
        device.launch(&a, Kernel::new().writes(x, 1024)).unwrap();
        device.note_given_back(x, 1024);
        let event = device.create_event().unwrap();
        device.record(&event, &a).unwrap();
        if waits {
            device.wait(&b, &event).unwrap();
        }
        device.note_handed_out(&b, x, 512);
        device.launch(&b, Kernel::new().writes(x, 512)).unwrap();
        let expected: &[HazardKind] =
            if waits { &[] } else { &[HazardKind::Reuse, HazardKind::Reuse] };
        assert_eq!(kinds(&device), expected);
    }
}

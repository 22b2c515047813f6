//! The simulated device inside a model checker: threads switch at its calls, and only there.
#![cfg(loom)]

use std::sync::atomic::{AtomicU64, Ordering};

use loom::thread;
use streampool::backend::Backend;
use streampool::sim::{Kernel, SimDevice};

#[test]
fn a_model_explores_both_orders_of_two_calls() {
    static ORDERED: AtomicU64 = AtomicU64::new(0);
    static RACED: AtomicU64 = AtomicU64::new(0);
    loom::model(|| {
        let device = SimDevice::new(1);
        let (a, b) = (device.create_stream(), device.create_stream());
        let x = device.alloc_segment(64).unwrap();
        let event = std::sync::Arc::new(device.create_event().unwrap());
        device.launch(&a, Kernel::new().writes(x, 64)).unwrap();
        let recorder = {
            let (device, event) = (device.clone(), event.clone());
            thread::spawn(move || device.record(&event, &a).unwrap())
        };
        device.wait(&b, &event).unwrap();
        device.launch(&b, Kernel::new().writes(x, 64)).unwrap();
        recorder.join().unwrap();
        let raced = device.hazard_count() > 0;
        if raced { &RACED } else { &ORDERED }.fetch_add(1, Ordering::Relaxed);
    });
    let (ordered, raced) = (ORDERED.load(Ordering::Relaxed), RACED.load(Ordering::Relaxed));
    assert!(ordered > 0 && raced > 0, "ordered {ordered} times, raced {raced}");
    assert!(ordered + raced < 20, "a call is one point, not many: {ordered} + {raced}");
}

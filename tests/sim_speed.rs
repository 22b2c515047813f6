//! What the simulated device itself costs in real time. Machines differ, and so does their load: the
//! figures are printed, not asserted (`cargo test --test sim_speed -- --nocapture`).
#![cfg(not(loom))]

use std::time::Instant;

use streampool::backend::Backend;
use streampool::sim::{Kernel, SimDevice, SimEvent, SimStream};

const STREAMS: usize = 40;
const ROUNDS: usize = 2000;

/// Streams that are ordered after each other, so that every clock has an entry for every stream.
fn entangled() -> (SimDevice, Vec<SimStream>, Vec<SimEvent>, u64) {
    let device = SimDevice::new(1);
    let streams: Vec<_> = (0..STREAMS).map(|_| device.create_stream()).collect();
    let events: Vec<_> = streams.iter().map(|_| device.create_event().unwrap()).collect();
    let memory = device.alloc_segment((STREAMS as u64) << 20).unwrap();
    for _ in 0..2 {
        for (stream, event) in streams.iter().zip(&events) {
            device.launch(stream, Kernel::new()).unwrap();
            device.record(event, stream).unwrap();
            for other in &streams {
                device.wait(other, event).unwrap();
            }
        }
    }
    (device, streams, events, memory)
}

fn time(name: &str, calls: usize, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    let ns = start.elapsed().as_nanos() as f64 / calls as f64;
    println!("{name:40} {ns:8.0} ns");
}

#[test]
fn calls_with_forty_entangled_streams() {
    let (device, streams, events, memory) = entangled();
    let calls = ROUNDS * STREAMS;
    let each = |f: &dyn Fn(usize)| (0..calls).for_each(|i| f(i % STREAMS));
    time("launch, one range, its own", calls, || {
        each(&|i| {
            let kernel = Kernel::new().writes(memory + ((i as u64) << 20), 512 << 10);
            device.launch(&streams[i], kernel).unwrap();
        });
    });
    device.synchronize_context().unwrap();
    time("record", calls, || each(&|i| device.record(&events[i], &streams[i]).unwrap()));
    time("wait, another stream's event", calls, || {
        each(&|i| device.wait(&streams[i], &events[(i + 7) % STREAMS]).unwrap());
    });
    time("record and wait, in turn", 2 * calls, || {
        each(&|i| {
            device.record(&events[i], &streams[i]).unwrap();
            device.wait(&streams[(i + 1) % STREAMS], &events[i]).unwrap();
        });
    });
    time("query, done", calls, || each(&|i| assert!(device.query(&events[i]).unwrap())));
    time("synchronize context, idle", calls, || each(&|_| device.synchronize_context().unwrap()));
    time("launch, record, query", 3 * calls, || {
        each(&|i| {
            let kernel = Kernel::new().writes(memory + ((i as u64) << 20), 512 << 10);
            device.launch(&streams[i], kernel).unwrap();
            device.record(&events[i], &streams[i]).unwrap();
            device.query(&events[i]).unwrap();
        });
    });
    time("create and destroy event", 2 * calls, || {
        each(&|_| device.destroy_event(device.create_event().unwrap()));
    });
    assert_eq!(device.hazard_count(), 0);
}

/// 4816 buffers of 512 KiB on 37 streams, launched on, handed out and given back, layer by layer.
#[test]
fn a_large_clear_layer_by_layer() {
    const BUFFERS: usize = 4816;
    const BYTES: u64 = 512 << 10;
    let device = SimDevice::new(1);
    let streams: Vec<_> = (0..37).map(|_| device.create_stream()).collect();
    let memory = device.alloc_segment(BUFFERS as u64 * BYTES).unwrap();
    let each = |f: &dyn Fn(&SimStream, u64)| {
        for i in 0..BUFFERS {
            f(&streams[i % 37], memory + i as u64 * BYTES);
        }
    };
    for layer in 0..4 {
        println!("layer {layer}");
        time("  hand out", BUFFERS, || {
            each(&|stream, at| device.note_handed_out(stream, at, BYTES))
        });
        time("  launch, one range", BUFFERS, || {
            each(&|stream, at| device.launch(stream, Kernel::new().writes(at, BYTES)).unwrap());
        });
        time("  give back", BUFFERS, || each(&|_, at| device.note_given_back(at, BYTES)));
        time("  synchronize, with all to execute", BUFFERS, || {
            device.synchronize_context().unwrap()
        });
    }
    device.assert_no_hazards();
}

#[test]
fn short_lived_streams_cost_the_same_for_ever() {
    const BATCH: usize = 2500;
    let device = SimDevice::new(1);
    let main = device.create_stream();
    let memory = device.alloc_segment(1 << 20).unwrap();
    let mut last = None;
    let mut batch = || {
        for _ in 0..BATCH {
            let stream = device.create_stream();
            let event = device.create_event().unwrap();
            device.wait(&stream, last.as_ref().unwrap_or(&event)).unwrap();
            device.launch(&stream, Kernel::new().writes(memory, 4096)).unwrap();
            device.record(&event, &stream).unwrap();
            device.wait(&main, &event).unwrap();
            drop(stream);
            if let Some(old) = last.replace(event) {
                device.query(&old).unwrap();
                device.destroy_event(old);
            }
        }
    };
    for _ in 0..8 {
        time("short-lived stream", BATCH, &mut batch);
    }
    assert_eq!(device.hazard_count(), 0);
    assert_eq!(device.live_streams(), 1);
}

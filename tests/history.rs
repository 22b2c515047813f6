//! Histories: what is noted, by whom, in which order; and the formats that other programs read.
#![cfg(all(feature = "sim", not(loom)))]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use streampool::backend::Backend;
use streampool::history::{Action, History};
use streampool::sim::{Kernel, Schedule, SimConfig, SimDevice};
use streampool::{Buffer, PoolBuilder, PoolStream, Reuse, StreamPool};

type Pool = StreamPool<SimDevice>;
type Stream = PoolStream<SimDevice>;

const MIB: u64 = 1 << 20;

/// A device on which nothing finishes before a synchronize needs it.
fn lazy() -> SimDevice {
    SimDevice::new(SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() })
}

fn builder(device: &SimDevice) -> PoolBuilder<SimDevice> {
    StreamPool::builder(device.clone()).history(1000)
}

fn stream(pool: &Pool, device: &SimDevice) -> Stream {
    pool.stream(device.create_stream()).unwrap()
}

fn use_it(device: &SimDevice, stream: &Stream, buffer: &Buffer<SimDevice>) {
    let kernel = Kernel::new().writes(buffer.device_ptr(), buffer.capacity() as u64);
    device.launch(stream.raw(), kernel).unwrap();
}

/// The number that a history calls a stream by.
fn number(history: &History, device: &SimDevice, stream: &Stream) -> u64 {
    let handle = device.identify(stream.raw()).unwrap().handle;
    history.streams.iter().find(|own| own.handle == handle).expect("it is registered").number
}

fn of_stream(history: &History, number: u64) -> Vec<Action> {
    let own = history.events.iter().filter(|event| event.stream == Some(number));
    own.map(|event| event.action).collect()
}

/// Two streams; the second takes what the first has freed, with a wait, and later without one.
fn stealing(device: &SimDevice) -> (Pool, [Stream; 2]) {
    let pool = builder(device).limit(4 * MIB).floor(0).reuse(Reuse::Memory).build().unwrap();
    let [a, b] = [stream(&pool, device), stream(&pool, device)];
    for _ in 0..2 {
        let buffer = a.alloc(4 * MIB as usize - 100).unwrap();
        use_it(device, &a, &buffer);
    }
    let stolen = b.alloc(4 * MIB as usize).unwrap();
    use_it(device, &b, &stolen);
    (pool, [a, b])
}

#[test]
fn each_stream_tells_what_happened_on_it() {
    let device = lazy();
    let (pool, [a, b]) = stealing(&device);
    let calls = device.counts();
    let history = pool.history();
    assert_eq!(device.counts(), calls, "a history makes no driver call");
    assert!(history.events.is_sorted_by_key(|event| event.time_ns));
    assert_eq!(history.lost, 0);
    let [on_a, on_b] = [&a, &b].map(|stream| number(&history, &device, stream));
    let Some(Action::Allocate { address, .. }) = of_stream(&history, on_a).get(1).copied() else {
        panic!("{history:?}");
    };
    let (bytes, requested) = (4 * MIB, 4 * MIB - 100);
    let grow = Action::Grow { reserved: 4 * MIB, remapped: 0, revived: 0 };
    let allocate = |requested, hit| Action::Allocate { address, bytes, requested, hit, tag: None };
    let free = |requested| Action::Free { address, bytes, requested, tag: None };
    assert_eq!(
        of_stream(&history, on_a),
        [
            grow,
            allocate(requested, false),
            free(requested),
            allocate(requested, true),
            free(requested)
        ]
    );
    assert_eq!(
        of_stream(&history, on_b),
        [
            Action::Wait { on: on_a },
            Action::Steal { address, bytes, from: on_a, waited: true },
            allocate(bytes, false),
            free(bytes)
        ]
    );
    assert_eq!(device.hazards().len(), 0, "{}", device.hazards()[0]);
}

#[test]
fn a_block_that_is_in_order_already_is_stolen_with_no_wait() {
    let device = lazy();
    let pool = builder(&device).limit(4 * MIB).floor(0).build().unwrap();
    let [a, b] = [stream(&pool, &device), stream(&pool, &device)];
    let buffer = a.alloc(4 * MIB as usize).unwrap();
    use_it(&device, &a, &buffer);
    drop(buffer);
    b.wait_for(&a).unwrap();
    // The block comes to where others find it.
    pool.trim(0).unwrap();
    let taken = b.alloc(4 * MIB as usize).unwrap();
    let history = pool.history();
    let [on_a, on_b] = [&a, &b].map(|stream| number(&history, &device, stream));
    let (address, bytes) = (taken.device_ptr(), 4 * MIB);
    assert_eq!(
        of_stream(&history, on_b),
        [
            Action::Wait { on: on_a },
            Action::Steal { address, bytes, from: on_a, waited: false },
            Action::Allocate { address, bytes, requested: bytes, hit: false, tag: None }
        ]
    );
}

#[test]
fn the_pool_tells_of_its_scopes_and_of_what_went_back() {
    let device = lazy();
    let pool = builder(&device).build().unwrap();
    let own = stream(&pool, &device);
    let buffers = [own.alloc(3 << 20).unwrap(), own.alloc(256).unwrap()];
    let scope = pool.quiesce().unwrap();
    drop(buffers);
    let report = scope.finish();
    assert_eq!(report.freed, 2);
    pool.synchronize().unwrap();
    let given = pool.trim(0).unwrap();
    let history = pool.history();
    let actions: Vec<Action> = (history.events.iter())
        .filter(|event| event.stream.is_none())
        .map(|event| event.action)
        .collect();
    let [Action::ScopeBegin { scope }, ended, Action::Trim { bytes }] = actions[..] else {
        panic!("{actions:?}");
    };
    let (freed, clean, deferred) = (2, report.clean, report.deferred);
    let end = Action::ScopeEnd { scope, freed, bytes: (3 << 20) + 256, clean, deferred };
    assert_eq!((ended, bytes), (end, given));
}

#[test]
fn nothing_is_kept_unless_it_is_asked_for() {
    let device = lazy();
    let pool = StreamPool::new(device.clone());
    let own = stream(&pool, &device);
    drop(own.alloc(1000).unwrap());
    assert_eq!(pool.history(), History::default());
    assert!(pool.snapshot().blocks().all(|block| block.requested.is_none()));
}

#[test]
fn a_ring_keeps_the_latest_events() {
    let device = lazy();
    let pool = StreamPool::builder(device.clone()).history(8).build().unwrap();
    let own = stream(&pool, &device);
    for _ in 0..50 {
        drop(own.alloc(1000).unwrap());
    }
    let kept = own.alloc(1001).unwrap();
    let history = pool.history();
    // One growth, and 101 allocations and frees.
    assert_eq!(history.events.len() as u64 + history.lost, 102);
    assert_eq!(history.events.len(), 8);
    let (address, bytes, requested) = (kept.device_ptr(), 1024, 1001);
    let last = history.events.last().unwrap().action;
    assert_eq!(last, Action::Allocate { address, bytes, requested, hit: true, tag: None });
    let snapshot = pool.snapshot();
    assert_eq!(snapshot.block_at(address).unwrap().requested, Some(1001));
    // Hits and frees are counted as always.
    assert_eq!((pool.stats().hits, pool.stats().frees, pool.stats().live), (50, 50, 1));
}

#[test]
fn what_a_stream_did_is_kept_when_it_has_left() {
    let device = lazy();
    let pool = builder(&device).build().unwrap();
    let own = stream(&pool, &device);
    drop(own.alloc(1000).unwrap());
    let before = pool.history();
    let number = number(&before, &device, &own);
    own.retire().unwrap();
    let after = pool.history();
    assert_eq!(of_stream(&after, number), of_stream(&before, number));
    assert_eq!(of_stream(&after, number).len(), 3);
    assert!(after.streams.is_empty());
}

#[test]
fn busy_threads_tell_every_allocation_and_free_in_order() {
    let device = SimDevice::new(5);
    let pool = StreamPool::builder(device.clone()).history(100_000).build().unwrap();
    std::thread::scope(|threads| {
        for thread in 0..3_usize {
            let (pool, device) = (&pool, &device);
            threads.spawn(move || {
                let own = stream(pool, device);
                let mut kept = Vec::new();
                for round in 0..400 {
                    kept.push(own.alloc(256 << ((round * 5 + thread) % 13)).unwrap());
                    if kept.len() > 9 {
                        kept.swap_remove(round % 9);
                    }
                }
            });
        }
    });
    let history = pool.history();
    assert_eq!(history.lost, 0);
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let mut allocated = 0;
    for event in &history.events {
        match event.action {
            Action::Allocate { address, bytes, .. } => {
                allocated += 1;
                let below = live.range(..address + bytes).next_back();
                assert!(below.is_none_or(|(at, size)| at + size <= address), "{event:?}");
                live.insert(address, bytes);
            }
            Action::Free { address, bytes, .. } => {
                assert_eq!(live.remove(&address), Some(bytes), "{event:?}");
            }
            _ => {}
        }
    }
    assert!(live.is_empty());
    let stats = pool.stats();
    assert_eq!(allocated, stats.hits + stats.misses);
}

#[test]
fn a_trace_has_a_lane_for_each_stream_and_an_arrow_for_each_wait() {
    let device = lazy();
    let (pool, [a, b]) = stealing(&device);
    let _ = pool.quiesce().unwrap().finish();
    let history = pool.history();
    let [on_a, on_b] = [&a, &b].map(|stream| number(&history, &device, stream));
    let trace: serde_json::Value = serde_json::from_str(&history.to_perfetto()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |phase: &str| {
        let own = events.iter().filter(|event| event["ph"] == phase);
        own.cloned().collect::<Vec<serde_json::Value>>()
    };
    let lanes: Vec<u64> = of("M").iter().map(|lane| lane["tid"].as_u64().unwrap()).collect();
    assert_eq!(lanes, [0, on_a, on_b]);
    let [start, finish] = [of("s"), of("f")];
    assert_eq!((start.len(), finish.len()), (1, 1));
    assert_eq!((&start[0]["tid"], &finish[0]["tid"]), (&on_a.into(), &on_b.into()));
    assert_eq!(start[0]["id"], finish[0]["id"]);
    assert_eq!((of("b").len(), of("e").len()), (1, 1));
    let in_use: Vec<u64> =
        of("C").iter().map(|own| own["args"]["bytes"].as_u64().unwrap()).collect();
    assert_eq!(in_use, [0, 4 * MIB, 0, 4 * MIB, 0, 4 * MIB, 0]);
    let names: Vec<serde_json::Value> = of("i").iter().map(|own| own["name"].clone()).collect();
    assert!(names.contains(&"steal (with a wait)".into()), "{names:?}");
}

#[test]
fn the_viewer_can_play_back_what_led_to_a_snapshot() {
    let device = lazy();
    let pool = StreamPool::builder(device.clone()).history(60).build().unwrap();
    let own = [stream(&pool, &device), stream(&pool, &device)];
    let mut kept = Vec::new();
    for round in 0..120_usize {
        kept.push(own[round % 2].alloc((round * 37 % 50) * 100_000 + 1).unwrap());
        if kept.len() > 12 {
            kept.swap_remove(round % 12);
        }
        if round % 40 == 39 {
            // Addresses that have been in use lose their memory.
            kept.truncate(6);
            pool.synchronize().unwrap();
            pool.trim(0).unwrap();
        }
    }
    let pickle = pool.snapshot().to_pickle_with(&pool.history());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("history.pickle");
    std::fs::write(&path, pickle).expect("the target folder can be written");
    let there = Command::new("python3").arg("--version").output();
    if !there.is_ok_and(|output| output.status.success()) {
        println!("NOT CHECKED: no python3 here, so that nothing has read the pickle");
        return;
    }
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts/open-snapshot.py");
    let output = Command::new("python3").arg(script).arg(path).output().expect("python3 is there");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    for wanted in [" alloc", " free_requested", " free_completed", " segment_unmap"] {
        assert!(told.contains(wanted), "{told}");
    }
    assert!(told.contains("played back"), "{told}");
}

#[test]
fn a_history_of_too_many_events_is_refused_and_asks_for_no_memory() {
    let build = |events| StreamPool::builder(SimDevice::new(1)).history(events).build();
    for events in [(1 << 24) + 1, usize::MAX] {
        let error = build(events).expect_err("more than 2^24 events of each stream");
        assert!(error.is_invalid_argument() && error.to_string().contains("2^24"), "{error}");
    }
    assert!(build(1 << 10).is_ok());
}

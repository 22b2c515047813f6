//! Snapshots: every byte is told once, with who has it; and the formats that other programs read.
#![cfg(all(feature = "sim", not(loom)))]

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use streampool::backend::Backend;
use streampool::sim::{Kernel, Schedule, SimConfig, SimDevice};
use streampool::snapshot::{BlockState, Snapshot};
use streampool::{Buffer, Growth, PoolStream, StreamPool};

type Pool = StreamPool<SimDevice>;
type Stream = PoolStream<SimDevice>;

const STATES: [BlockState; 6] = [
    BlockState::InUse,
    BlockState::Listed,
    BlockState::Clean,
    BlockState::Pending,
    BlockState::InTransit,
    BlockState::Quarantined,
];

/// A device on which nothing finishes before a synchronize needs it.
fn lazy() -> SimDevice {
    SimDevice::new(SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() })
}

fn stream(pool: &Pool, device: &SimDevice) -> Stream {
    pool.stream(device.create_stream()).unwrap()
}

fn use_it(device: &SimDevice, stream: &Stream, buffer: &Buffer<SimDevice>) {
    let kernel = Kernel::new().writes(buffer.device_ptr(), buffer.capacity() as u64);
    device.launch(stream.raw(), kernel).unwrap();
}

/// Blocks lie side by side and fill their segments, and no byte is in two of them.
fn check_shape(snapshot: &Snapshot) {
    let mut end = 0;
    for segment in &snapshot.segments {
        assert!(segment.address >= end, "segments overlap at {:#x}", segment.address);
        end = segment.address;
        for block in &segment.blocks {
            assert_eq!(block.address, end, "a gap in a segment");
            assert!(block.bytes > 0);
            end += block.bytes;
        }
        assert_eq!(end - segment.address, segment.bytes);
    }
}

/// The account of the pool, which nobody else uses now, says the same.
fn check_sums(pool: &Pool, snapshot: &Snapshot) {
    check_shape(snapshot);
    let stats = pool.stats();
    let bytes = STATES.map(|state| snapshot.bytes_of(state));
    assert_eq!(bytes.iter().sum::<u64>() + snapshot.parked, stats.reserved);
    let [in_use, listed, clean, pending, in_transit, quarantined] = bytes;
    assert_eq!(in_use, stats.in_use);
    assert_eq!(listed, stats.on_lists);
    assert_eq!(
        clean + pending + snapshot.parked,
        stats.free_clean + stats.free_pending - stats.on_lists
    );
    assert_eq!((in_transit, quarantined), (0, stats.quarantined));
}

/// A buffer in each state that a program can bring about.
fn in_each_state(pool: &Pool, device: &SimDevice) -> (Vec<Buffer<SimDevice>>, [u64; 4]) {
    let [a, b] = [stream(pool, device), stream(pool, device)];
    let clean = a.alloc(5 << 20).unwrap();
    let clean_at = clean.device_ptr();
    use_it(device, &a, &clean);
    drop(clean);
    let kept = a.alloc(1000).unwrap();
    let keeps_apart = a.alloc(2000).unwrap();
    a.synchronize().unwrap();
    let shared = a.alloc(3 << 20).unwrap();
    let shared_at = shared.device_ptr();
    use_it(device, &a, &shared);
    shared.use_on(&b).unwrap();
    use_it(device, &b, &shared);
    drop(shared);
    // Streams must stay registered to be told.
    let handles = [a.alloc(256).unwrap(), b.alloc(256).unwrap()];
    let mut moved = a.alloc(3000).unwrap();
    moved.move_to(&b).unwrap();
    let moved_at = moved.device_ptr();
    let listed = b.alloc(4096).unwrap();
    let listed_at = listed.device_ptr();
    use_it(device, &b, &listed);
    drop(listed);
    let buffers = [kept, keeps_apart, moved].into_iter().chain(handles).collect();
    (buffers, [clean_at, shared_at, listed_at, moved_at])
}

#[test]
fn each_block_is_told_with_who_has_it() {
    for growth in [Growth::Virtual, Growth::Segments] {
        let device = lazy();
        let pool = StreamPool::builder(device.clone()).growth(growth).build().unwrap();
        let (buffers, [_, shared, listed, moved]) = in_each_state(&pool, &device);
        let calls = device.counts();
        let snapshot = pool.snapshot();
        assert_eq!(device.counts(), calls, "a snapshot makes no driver call");
        check_sums(&pool, &snapshot);
        let [a, b] = [snapshot.streams[0].number, snapshot.streams[1].number];
        let told = |address| {
            let block = snapshot.block_at(address).expect("the pool has this address");
            (block.state, block.home, block.waits_for.clone())
        };
        for buffer in &buffers {
            let handle = device.identify(buffer.stream().raw()).unwrap().handle;
            let own = snapshot.streams.iter().find(|own| own.handle == handle);
            let number = own.expect("the buffer's stream is told").number;
            assert_eq!(told(buffer.device_ptr()), (BlockState::InUse, Some(number), vec![]));
            assert_eq!(
                snapshot.block_at(buffer.device_ptr()).unwrap().bytes,
                buffer.capacity() as u64
            );
        }
        assert_eq!(told(moved), (BlockState::InUse, Some(b), vec![]));
        assert_eq!(told(listed), (BlockState::Listed, Some(b), vec![b]));
        assert_eq!(told(shared), (BlockState::Pending, None, vec![a, b]));
        assert!(snapshot.bytes_of(BlockState::Clean) > 0);
        assert!(snapshot.segments.iter().all(|own| own.plain == (growth == Growth::Segments)));
        // What has finished is clean, whoever looks.
        pool.synchronize().unwrap();
        let block = pool.snapshot().block_at(shared).cloned().unwrap();
        assert_eq!((block.state, block.waits_for), (BlockState::Clean, vec![]));
        drop(buffers);
    }
}

#[test]
fn an_empty_pool_and_a_closed_one_have_no_segment() {
    let device = lazy();
    let pool = StreamPool::new(device.clone());
    assert_eq!(pool.snapshot(), Snapshot::default());
    let stream = stream(&pool, &device);
    drop(stream.alloc(1 << 20).unwrap());
    assert_eq!(pool.snapshot().streams.len(), 1);
    drop(stream);
    pool.close().unwrap();
    assert_eq!(pool.snapshot(), Snapshot::default());
}

#[test]
fn holes_and_parked_memory_are_told_as_such() {
    let device = lazy();
    let pool = StreamPool::new(device.clone());
    let stream = stream(&pool, &device);
    let buffers: Vec<_> = (0..8).map(|_| stream.alloc(16 << 20).unwrap()).collect();
    let kept: Vec<_> = buffers.into_iter().step_by(2).collect();
    pool.synchronize().unwrap();
    pool.trim(0).unwrap();
    let snapshot = pool.snapshot();
    check_sums(&pool, &snapshot);
    assert!(snapshot.segments.len() > 1, "a hole divides a range: {snapshot:?}");
    let large = stream.alloc(40 << 20).unwrap();
    check_sums(&pool, &pool.snapshot());
    drop((kept, large));
}

#[test]
fn snapshots_beside_busy_threads_tell_each_byte_once() {
    let device = SimDevice::new(3);
    let pool = StreamPool::new(device.clone());
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for thread in 0..2_usize {
            let (pool, device, stop) = (&pool, &device, &stop);
            threads.spawn(move || {
                let own = [stream(pool, device), stream(pool, device)];
                let mut kept = Vec::new();
                for round in 0_usize.. {
                    if stop.load(Ordering::Relaxed) && round > 100 {
                        break;
                    }
                    let bytes = 256 << ((round * 7 + thread) % 14);
                    let mut buffer = own[round % 2].alloc(bytes).unwrap();
                    if round % 5 == 0 {
                        buffer.move_to(&own[1 - round % 2]).unwrap();
                    }
                    kept.push(buffer);
                    if kept.len() > 40 {
                        kept.swap_remove(round % 40);
                    }
                }
            });
        }
        for _ in 0..200 {
            let snapshot = pool.snapshot();
            check_shape(&snapshot);
            for block in snapshot.blocks() {
                let out = matches!(block.state, BlockState::InUse | BlockState::Listed);
                assert_eq!(block.home.is_some(), out, "{block:?}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    check_sums(&pool, &pool.snapshot());
}

#[test]
fn a_large_pool_is_copied_whole() {
    const BLOCKS: usize = 20_000;
    let device = SimDevice::new(1);
    let pool = StreamPool::new(device.clone());
    let stream = stream(&pool, &device);
    let mut buffers: Vec<_> = (0..BLOCKS).map(|_| stream.alloc(2048).unwrap()).collect();
    buffers.truncate(BLOCKS / 2);
    let start = Instant::now();
    let snapshot = pool.snapshot();
    let made = start.elapsed();
    let start = Instant::now();
    let pickle = snapshot.to_pickle();
    println!(
        "{BLOCKS} blocks: snapshot {made:?}, pickle {:?} ({} KiB)",
        start.elapsed(),
        pickle.len() >> 10
    );
    check_sums(&pool, &snapshot);
    let count = |state| snapshot.blocks().filter(|block| block.state == state).count();
    assert_eq!([BlockState::InUse, BlockState::Listed].map(count), [BLOCKS / 2; 2]);
}

/// Where Python is, it reads what is written, by its own pickle module.
fn python() -> Option<Command> {
    let there = Command::new("python3").arg("--version").output();
    if there.is_ok_and(|output| output.status.success()) {
        return Some(Command::new("python3"));
    }
    println!("NOT CHECKED: no python3 here, so that nothing has read the pickle");
    None
}

fn write_file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).expect("the target folder can be written");
    path
}

#[test]
fn python_reads_the_pickle() {
    let device = lazy();
    let pool = StreamPool::new(device.clone());
    let (buffers, [_, shared, listed, _]) = in_each_state(&pool, &device);
    let snapshot = pool.snapshot();
    let path = write_file("snapshot.pickle", &snapshot.to_pickle());
    let Some(mut python) = python() else { return };
    let program = format!(
        "import json, pickle\n\
         with open({path:?}, 'rb') as file: data = pickle.load(file)\n\
         blocks = {{b['address']: b for s in data['segments'] for b in s['blocks']}}\n\
         print(json.dumps([sorted(data), len(blocks), blocks[{shared}], blocks[{listed}],\n\
             data['segments'][0]['segment_pool_id'], data['device_traces'],\n\
             sum(s['total_size'] for s in data['segments'])]))"
    );
    let output = python.arg("-c").arg(program).output().expect("python3 is there");
    let read: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let of = |address| snapshot.block_at(address).unwrap();
    assert_eq!(
        read[0],
        serde_json::json!([
            "allocator_settings",
            "device_traces",
            "external_annotations",
            "segments"
        ])
    );
    assert_eq!(read[1], snapshot.blocks().count());
    assert_eq!(read[2]["state"], "active_pending_free");
    assert_eq!(read[2]["size"], of(shared).bytes);
    let words = read[2]["frames"][0]["name"].as_str().unwrap();
    assert!(words.starts_with("free, pending, after stream "), "{words}");
    assert_eq!(read[3]["state"], "inactive");
    assert_eq!(read[4], serde_json::json!([0, 0]));
    assert_eq!(read[5], serde_json::json!([[]]));
    assert_eq!(read[6], snapshot.segments.iter().map(|own| own.bytes).sum::<u64>());
    drop(buffers);
}

#[test]
fn the_script_reads_a_snapshot() {
    let device = lazy();
    let pool = StreamPool::new(device.clone());
    let (buffers, _) = in_each_state(&pool, &device);
    let path = write_file("script.pickle", &pool.snapshot().to_pickle());
    let Some(mut python) = python() else { return };
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts/open-snapshot.py");
    let output = python.arg(script).arg(path).output().expect("python3 is there");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("active_allocated: 5 blocks"), "{told}");
    drop(buffers);
}

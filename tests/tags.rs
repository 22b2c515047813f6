//! Tags: what buffers are for, wherever it is shown; never that of another buffer, and never lost while it lives.
#![cfg(all(feature = "sim", not(loom)))]

use std::path::PathBuf;
use std::process::Command;

use streampool::history::Action;
use streampool::sim::SimDevice;
use streampool::snapshot::BlockState;
use streampool::{Buffer, PoolStream, StreamPool, Tag};

type Pool = StreamPool<SimDevice>;
type Stream = PoolStream<SimDevice>;

/// A pool that keeps so many events for each stream, and a stream of it.
fn pool_with(events: usize) -> (SimDevice, Pool, Stream) {
    let device = SimDevice::new(1);
    let pool = StreamPool::builder(device.clone()).history(events).build().unwrap();
    let stream = pool.stream(device.create_stream()).unwrap();
    (device, pool, stream)
}

/// What a buffer says of itself, and a snapshot of it: the same.
#[track_caller]
fn tag_of(pool: &Pool, buffer: &Buffer<SimDevice>) -> Option<Tag> {
    let snapshot = pool.snapshot();
    let block = snapshot.block_at(buffer.device_ptr()).expect("it lives");
    assert_eq!(block.state, BlockState::InUse);
    assert_eq!(block.tag, buffer.tag());
    block.tag
}

#[test]
fn misses_and_hits_take_the_tag_of_their_thread() {
    let (_, pool, stream) = pool_with(100);
    let [a, b] = ["of a", "of b"].map(Tag::new);
    for _ in 0..2 {
        let own = [(4096, Some(a)), (8192, Some(b)), (3 << 20, None)].map(|(bytes, tag)| {
            let buffer = match tag {
                Some(tag) => tag.within(|| stream.alloc(bytes)),
                None => stream.alloc(bytes),
            };
            (buffer.unwrap(), tag)
        });
        own.iter().for_each(|(buffer, tag)| assert_eq!(tag_of(&pool, buffer), *tag));
        let told = pool.snapshot().in_use_by_tag();
        assert_eq!(told, [(None, 3 << 20), (Some(b), 8192), (Some(a), 4096)]);
    }
    assert_eq!((pool.stats().hits, pool.stats().misses), (3, 3));
    assert!(a.within(|| stream.alloc_hit(4096)).is_some_and(|hit| hit.tag() == Some(a)));
    assert!(pool.snapshot().blocks().all(|block| block.tag.is_none()), "all are freed");
}

#[test]
fn an_address_that_is_used_again_has_no_former_tag() {
    let (_, pool, stream) = pool_with(100);
    let tag = Tag::new("of the first");
    let first = tag.within(|| stream.alloc(4096)).unwrap();
    let address = first.device_ptr();
    drop(first);
    let second = stream.alloc(4096).unwrap();
    assert_eq!((second.device_ptr(), tag_of(&pool, &second)), (address, None));
    drop(second);
    // By the heap, in pieces, as well.
    pool.synchronize().unwrap();
    pool.trim(u64::MAX).unwrap();
    let third = stream.alloc(256).unwrap();
    assert_eq!(tag_of(&pool, &third), None);
    let events = pool.history().events;
    let tags = events.iter().filter_map(|event| match event.action {
        Action::Allocate { tag, .. } | Action::Free { tag, .. } => Some(tag),
        _ => None,
    });
    let told = tags.collect::<Vec<Option<Tag>>>();
    assert_eq!(told, [Some(tag), Some(tag), None, None, None]);
}

#[test]
fn a_tag_goes_with_its_buffer() {
    let (device, pool, stream) = pool_with(100);
    let other = pool.stream(device.create_stream()).unwrap();
    let tag = Tag::new("goes with its buffer");
    let mut buffer = tag.within(|| stream.alloc(4096)).unwrap();
    buffer.use_on(&other).unwrap();
    buffer.move_to(&other).unwrap();
    assert_eq!(tag_of(&pool, &buffer), Some(tag));
    // Another thread, on which another tag counts, and an opaque pointer.
    let buffer = std::thread::scope(|threads| {
        let there = threads.spawn(|| {
            let _entered = Tag::new("of that thread").enter();
            assert_eq!(tag_of(&pool, &buffer), Some(tag));
            // SAFETY: the pointer is that of this buffer, and taken back once.
            unsafe { Buffer::<SimDevice>::from_raw(buffer.into_raw()) }
        });
        there.join().unwrap()
    });
    assert_eq!(tag_of(&pool, &buffer), Some(tag));
    drop(stream);
    drop(buffer);
    assert!(pool.snapshot().blocks().all(|block| block.tag.is_none()));
}

#[test]
fn a_ring_that_has_forgotten_the_allocation_keeps_the_tag() {
    let (_, pool, stream) = pool_with(1);
    let weights = Tag::new("weights");
    let kept = weights.within(|| stream.alloc(1 << 20)).unwrap();
    for _ in 0..50 {
        drop(stream.alloc(4096).unwrap());
    }
    let history = pool.history();
    assert!(history.events.iter().all(|event| !matches!(
        event.action,
        Action::Allocate { address, .. } if address == kept.device_ptr()
    )));
    assert_eq!(tag_of(&pool, &kept), Some(weights));
}

#[test]
fn a_tag_can_be_set_later() {
    let (_, pool, stream) = pool_with(100);
    let [first, second] = ["at first", "as it turned out"].map(Tag::new);
    let [buffer, plain] =
        [first.within(|| stream.alloc(4096)), stream.alloc(256)].map(|own| own.unwrap());
    buffer.set_tag(second);
    plain.set_tag(first);
    assert_eq!([&buffer, &plain].map(|own| tag_of(&pool, own)), [Some(second), Some(first)]);
    let empty = stream.alloc(0).unwrap();
    empty.set_tag(first);
    assert_eq!(empty.tag(), None);
    let address = buffer.device_ptr();
    drop((buffer, plain, empty));
    let history = pool.history();
    let of_it = history.events.iter().filter_map(|event| match event.action {
        Action::Allocate { address: own, tag, .. } | Action::Free { address: own, tag, .. } => {
            Some((own, tag))
        }
        Action::SetTag { address: own, tag } => Some((own, Some(tag))),
        _ => None,
    });
    let of_it = of_it.filter(|own| own.0 == address).map(|own| own.1);
    assert_eq!(of_it.collect::<Vec<_>>(), [Some(first), Some(second), Some(second)]);
}

#[test]
fn without_a_history_there_are_no_tags() {
    let (_, pool, stream) = pool_with(0);
    let tag = Tag::new("of nobody");
    let buffer = tag.within(|| stream.alloc(4096)).unwrap();
    buffer.set_tag(tag);
    assert_eq!(tag_of(&pool, &buffer), None);
    assert_eq!(pool.history().events, []);
}

/// Each thread's buffers have its own tags or none, whatever the others do with the same memory.
#[test]
fn busy_threads_keep_their_tags_apart() {
    let (device, pool, _) = pool_with(100);
    std::thread::scope(|threads| {
        for thread in 0..3_usize {
            let (pool, device) = (&pool, &device);
            threads.spawn(move || {
                let own = pool.stream(device.create_stream()).unwrap();
                let tags = [0, 1].map(|at| Tag::new(&format!("busy {thread}, {at}")));
                let mut kept: Vec<(Buffer<SimDevice>, Option<Tag>)> = Vec::new();
                for round in 0..800 {
                    let tag = tags.get(round % 3).copied();
                    let entered = tag.map(Tag::enter);
                    let buffer = own.alloc(256 << ((round * 7 + thread) % 14)).unwrap();
                    drop(entered);
                    kept.push((buffer, tag));
                    if kept.len() > 20 {
                        kept.swap_remove(round % 20);
                    }
                    if round % 40 == 0 {
                        let snapshot = pool.snapshot();
                        for (buffer, tag) in &kept {
                            let block = snapshot.block_at(buffer.device_ptr()).unwrap();
                            assert_eq!((block.tag, buffer.tag()), (*tag, *tag));
                        }
                    }
                }
            });
        }
    });
    assert_eq!(pool.snapshot().in_use_by_tag(), [], "all are freed");
}

/// Letters that a format could trip over.
const HOSTILE: &str = "\"layer\\3\"\n\t\u{1}→ é";

#[test]
fn a_trace_has_a_graph_for_each_tag() {
    let (_, pool, stream) = pool_with(100);
    let [a, b] = [HOSTILE, "b"].map(Tag::new);
    let first = a.within(|| stream.alloc(4096)).unwrap();
    let second = stream.alloc(8192).unwrap();
    second.set_tag(a);
    drop(first);
    second.set_tag(b);
    drop(second);
    let trace: serde_json::Value = serde_json::from_str(&pool.history().to_perfetto()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let graph = |name: &str| {
        let points = events.iter().filter(|event| event["ph"] == "C" && event["name"] == name);
        points.map(|own| own["args"]["bytes"].as_u64().unwrap()).collect::<Vec<u64>>()
    };
    assert_eq!(graph("in use"), [0, 4096, 12288, 8192, 0]);
    assert_eq!(graph(&format!("in use: {HOSTILE}")), [4096, 12288, 8192, 0]);
    assert_eq!(graph("in use: b"), [8192, 0]);
    let told = |name: &str| {
        let own = events.iter().filter(|event| event["name"] == name);
        own.map(|event| event["args"]["tag"].as_str()).collect::<Vec<Option<&str>>>()
    };
    assert_eq!(told("allocate (miss)"), [Some(HOSTILE), None]);
    assert_eq!(told("set tag"), [Some(HOSTILE), Some("b")]);
    assert_eq!(told("free"), [Some(HOSTILE), Some("b")]);
}

/// A graph begins with the buffers that are older than the history, with the tags that it can know.
#[test]
fn a_graph_begins_with_what_was_in_use() {
    let (_, pool, stream) = pool_with(4);
    let [a, b] = ["graph a", "graph b"].map(Tag::new);
    let [first, second] = [4096, 8192].map(|bytes| a.within(|| stream.alloc(bytes)).unwrap());
    for _ in 0..5 {
        drop(stream.alloc(256).unwrap());
    }
    // What follows fills the ring.
    drop(first);
    second.set_tag(b);
    drop(second);
    drop(stream.alloc_hit(8192).unwrap());
    let trace: serde_json::Value = serde_json::from_str(&pool.history().to_perfetto()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let graph = |name: &str| {
        let points = events.iter().filter(|event| event["ph"] == "C" && event["name"] == name);
        points.map(|own| own["args"]["bytes"].as_u64().unwrap()).collect::<Vec<u64>>()
    };
    // Of the four events kept, the first is the second buffer's new tag.
    assert_eq!(graph("in use"), [8192, 0, 8192, 0]);
    assert_eq!(graph("in use: graph b"), [8192, 0]);
    assert_eq!(graph("in use: graph a"), [] as [u64; 0]);
}

#[test]
fn python_reads_tags_from_the_pickle() {
    let (_, pool, stream) = pool_with(100);
    let [live, gone] = [HOSTILE, "gone"].map(Tag::new);
    let kept = live.within(|| stream.alloc(5000)).unwrap();
    drop(gone.within(|| stream.alloc(3 << 20)).unwrap());
    let plain = stream.alloc(256).unwrap();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("tags.pickle");
    std::fs::write(&path, pool.snapshot().to_pickle_with(&pool.history())).unwrap();
    let program = format!(
        "import json, pickle\n\
         with open({path:?}, 'rb') as file: data = pickle.load(file)\n\
         blocks = {{b['address']: b for s in data['segments'] for b in s['blocks']}}\n\
         print(json.dumps([blocks[{}], blocks[{}], data['device_traces'][0]]))",
        kept.device_ptr(),
        plain.device_ptr()
    );
    let python = Command::new("python3").arg("-c").arg(program).output();
    let Ok(output) = python else {
        println!("NOT CHECKED: no python3 here, so that nothing has read the pickle");
        return;
    };
    let read: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(read[0]["user_metadata"], HOSTILE);
    let frame = serde_json::json!({"filename": "tag", "line": 0, "name": HOSTILE});
    assert_eq!(read[0]["frames"][0], frame);
    assert!(read[0]["frames"][1]["name"].as_str().unwrap().starts_with("in use, home stream"));
    assert_eq!(read[1].get("user_metadata"), None);
    assert_eq!(read[1]["frames"].as_array().unwrap().len(), 1);
    let events = read[2].as_array().unwrap();
    let told = |action: &str| {
        let own = events.iter().filter(|event| event["action"] == action);
        own.map(|event| event["user_metadata"].as_str()).collect::<Vec<Option<&str>>>()
    };
    assert_eq!(told("alloc"), [Some(HOSTILE), Some("gone"), None]);
    assert_eq!(told("free_requested"), [Some("gone")]);
    assert_eq!(told("free_completed"), [Some("gone")]);
    assert_eq!(events[0]["frames"][0], frame);
    drop((kept, plain));
}

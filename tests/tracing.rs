//! What a pool tells the subscribers of the crate `tracing`: each event with its fields, where it is due and
//! nowhere else; and what a subscriber that panics leaves behind.
#![cfg(all(feature = "sim", not(loom)))]

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use streampool::sim::{Kernel, Schedule, SimConfig, SimDevice};
use streampool::{PoolBuilder, PoolStream, StreamPool};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Level, Metadata, Subscriber};

const MIB: u64 = 1 << 20;

type Stream = PoolStream<SimDevice>;

#[derive(Clone, Debug, PartialEq)]
struct Heard {
    level: Level,
    name: &'static str,
    fields: BTreeMap<&'static str, String>,
}

impl Heard {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    fn number(&self, name: &str) -> u64 {
        self.field(name).parse().expect("a number")
    }
}

impl Visit for Heard {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

/// Keeps what it hears, whatever the level, and panics at an event of one name.
#[derive(Clone, Default)]
struct Collector {
    heard: Arc<Mutex<Vec<Heard>>>,
    panics_at: Option<&'static str>,
}

impl Collector {
    fn take(&self) -> Vec<Heard> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }

    /// What was heard: exactly this one event, of this name.
    #[track_caller]
    fn one(&self, name: &str) -> Heard {
        let mut heard = self.take();
        assert!(heard.len() == 1 && heard[0].name == name, "not one {name}: {heard:?}");
        heard.remove(0)
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "streampool"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        panic!("a pool has no spans")
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let (level, name) = (*metadata.level(), metadata.name());
        let mut heard = Heard { level, name, fields: BTreeMap::new() };
        event.record(&mut heard);
        self.heard.lock().unwrap().push(heard);
        assert!(self.panics_at != Some(name), "the subscriber cannot bear a {name}");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A pool on a device where nothing finishes before somebody waits, with two streams.
fn scene(
    options: impl FnOnce(PoolBuilder<SimDevice>) -> PoolBuilder<SimDevice>,
) -> (SimDevice, StreamPool<SimDevice>, [Stream; 2]) {
    let device = SimDevice::new(SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() });
    let pool = options(StreamPool::builder(device.clone())).build().unwrap();
    let streams = [(); 2].map(|()| pool.stream(device.create_stream()).unwrap());
    (device, pool, streams)
}

/// The number by which events tell a stream.
fn number(pool: &StreamPool<SimDevice>, stream: &Stream) -> u64 {
    let kept = stream.alloc(256).unwrap();
    let snapshot = pool.snapshot();
    let mut blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let own = blocks.find(|block| block.address == kept.device_ptr()).expect("it lives");
    own.home.expect("it has a home")
}

#[test]
fn growth_is_told_with_what_the_pool_has_then() {
    let (_, pool, [a, _]) = scene(|builder| builder.floor(0));
    let of_a = number(&pool, &a);
    let collector = Collector::default();
    with_default(collector.clone(), || {
        let kept = a.alloc(8 * MIB as usize).unwrap();
        let heard = collector.one("grow");
        assert_eq!(heard.level, Level::DEBUG);
        assert_eq!((heard.number("stream"), heard.number("requested")), (of_a, 8 * MIB));
        let stats = pool.stats();
        assert_eq!(heard.number("reserved"), stats.reserved);
        assert_eq!((heard.number("remapped"), heard.number("revived")), (0, 0));
        pool.reserve(stats.reserved + 64 * MIB).unwrap();
        let heard = collector.one("grow");
        assert_eq!(heard.number("reserved"), pool.stats().reserved);
        assert!(!heard.fields.contains_key("stream"), "{heard:?}");
        pool.reserve(MIB).unwrap();
        drop(kept);
        assert_eq!(collector.take(), []);
    });
}

#[test]
fn a_steal_is_told_when_the_stream_has_to_wait() {
    let (device, pool, [a, b]) = scene(|builder| builder.limit(4 * MIB));
    let (of_a, of_b) = (number(&pool, &a), number(&pool, &b));
    let collector = Collector::default();
    let used = |stream: &Stream| {
        let buffer = stream.alloc(4 * MIB as usize).unwrap();
        let kernel = Kernel::new().writes(buffer.device_ptr(), 4 * MIB).taking(1 << 30);
        device.launch(stream.raw(), kernel).unwrap();
        drop(buffer);
    };
    used(&a);
    with_default(collector.clone(), || {
        used(&b);
        let heard = collector.one("steal");
        assert_eq!(heard.level, Level::DEBUG);
        assert_eq!((heard.number("from"), heard.number("stream")), (of_a, of_b));
        assert_eq!((heard.number("bytes"), heard.field("late")), (4 * MIB, "true"));
        b.mark().unwrap();
        used(&a);
        let heard = collector.one("steal");
        assert_eq!((heard.number("from"), heard.number("stream")), (of_b, of_a));
        assert_eq!(heard.field("late"), "false");
        // Ordered after it already: nobody waits.
        b.wait_for(&a).unwrap();
        used(&b);
        assert_eq!(collector.take(), []);
    });
    assert_eq!(device.hazards().len(), 0);
}

#[test]
fn memory_that_goes_back_is_told_by_whichever_call_gives_it() {
    let (_, pool, [a, b]) = scene(|builder| builder);
    let collector = Collector::default();
    with_default(collector.clone(), || {
        let kept = a.alloc(64 * MIB as usize).unwrap();
        drop(a.alloc(64 * MIB as usize).unwrap());
        a.synchronize().unwrap();
        let before = pool.stats().reserved;
        collector.take();
        let bytes = pool.trim(0).unwrap();
        let heard = collector.one("trim");
        assert_eq!(heard.level, Level::DEBUG);
        assert_eq!((heard.number("bytes"), heard.number("reserved")), (bytes, before - bytes));
        assert_eq!(pool.trim(0).unwrap(), 0);
        assert_eq!(collector.take(), []);
        // The end of a pool by hand, and of one that is left behind.
        drop(kept);
        drop((a, b));
        pool.close().unwrap();
        assert_eq!(collector.one("trim").number("reserved"), 0);
        let (_, left, streams) = scene(|builder| builder);
        left.reserve(MIB).unwrap();
        collector.take();
        drop(streams);
        drop(left);
        assert_eq!(collector.one("trim").number("reserved"), 0);
    });
}

#[test]
fn out_of_memory_is_told_with_the_numbers_of_the_error() {
    let (_, _pool, [a, _b]) = scene(|builder| builder.limit(8 * MIB));
    let collector = Collector::default();
    with_default(collector.clone(), || {
        let kept = a.alloc(6 * MIB as usize).unwrap();
        collector.take();
        let error = a.alloc(4 * MIB as usize).unwrap_err();
        let shortage = error.shortage().unwrap();
        let heard = collector.take();
        let heard = heard.last().expect("it is told");
        assert_eq!((heard.name, heard.level), ("out_of_memory", Level::WARN));
        let told =
            ["requested", "in_use", "free", "largest_free", "reserved", "limit", "device_free"]
                .map(|name| heard.number(name));
        let of_error = [
            shortage.requested,
            shortage.in_use,
            shortage.free,
            shortage.largest_free,
            shortage.reserved,
            shortage.limit.unwrap(),
            shortage.device_free.unwrap(),
        ];
        assert_eq!((told, heard.field("over_limit")), (of_error, "true"));
        drop(kept);
    });
}

#[test]
fn a_pool_whose_last_handle_goes_before_its_buffers_is_told() {
    let (_, pool, [a, b]) = scene(|builder| builder);
    let buffer = a.alloc(6 * MIB as usize).unwrap();
    let stats = pool.stats();
    let collector = Collector::default();
    with_default(collector.clone(), || {
        drop((a, b));
        assert_eq!(collector.take(), []);
        drop(pool);
        let heard = collector.one("leak");
        assert_eq!(heard.level, Level::WARN);
        let told = ["live", "in_use", "reserved"].map(|name| heard.number(name));
        assert_eq!(told, [1, stats.in_use, stats.reserved]);
        // A handle of the ended pool comes and goes.
        drop(buffer.stream());
        drop(buffer);
        assert_eq!(collector.take(), []);
    });
}

#[test]
fn hits_and_frees_are_not_told() {
    let (_, pool, [a, _b]) = scene(|builder| builder);
    drop(a.alloc(4096).unwrap());
    let collector = Collector::default();
    with_default(collector.clone(), || {
        for _ in 0..1000 {
            drop(a.alloc(4096).unwrap());
        }
        assert_eq!((pool.stats().hits, collector.take()), (1000, vec![]));
        // It does hear.
        drop(a.alloc(1 << 30).unwrap());
        collector.one("grow");
    });
}

#[test]
fn what_a_subscriber_panics_at_is_not_lost() {
    let (_, pool, [a, b]) = scene(|builder| builder);
    let with_panic = |name, run: &dyn Fn()| {
        let collector = Collector { panics_at: Some(name), ..Collector::default() };
        let caught = catch_unwind(AssertUnwindSafe(|| with_default(collector.clone(), run)));
        assert_eq!(collector.take().last().map(|heard| heard.name), Some(name));
        caught.is_err()
    };
    assert!(with_panic("grow", &|| drop(a.alloc(4 * MIB as usize))));
    let stats = pool.stats();
    assert_eq!((stats.live, stats.in_use, stats.in_transit), (0, 0, 0));
    assert_eq!(stats.free_clean + stats.free_pending, stats.reserved);
    let hit = a.alloc_hit(4 * MIB as usize).expect("the block went back to its stream");
    drop(hit);
    a.synchronize().unwrap();
    assert!(with_panic("trim", &|| drop(pool.trim(0))));
    assert_eq!(pool.stats().reserved, 0);
    // A drop does not unwind.
    let buffer = a.alloc(4096).unwrap();
    let handles = Mutex::new(Some((a, b, pool)));
    assert!(!with_panic("leak", &|| drop(handles.lock().unwrap().take())));
    drop(buffer);
}

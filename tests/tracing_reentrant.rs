//! A subscriber of the whole process that calls the pool back at every event: nothing is told with a lock of
//! the pool held, and what the subscriber brings about is not told to it again.
#![cfg(all(feature = "sim", not(loom)))]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use streampool::sim::{Kernel, Schedule, SimConfig, SimDevice};
use streampool::{PoolStream, StreamPool};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const MIB: usize = 1 << 20;

/// How long the test may stand still before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(120);

type Scene = (StreamPool<SimDevice>, PoolStream<SimDevice>);

static SCENE: Mutex<Option<Scene>> = Mutex::new(None);
static HEARD: OnceLock<Mutex<Vec<&'static str>>> = OnceLock::new();
static SERVED: AtomicU64 = AtomicU64::new(0);

struct Caller;

impl Subscriber for Caller {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "streampool"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        HEARD.get_or_init(Mutex::default).lock().unwrap().push(event.metadata().name());
        let scene = SCENE.lock().unwrap().clone();
        let Some((pool, stream)) = scene else { return };
        let size = 7 * MIB + SERVED.fetch_add(1, Ordering::Relaxed) as usize * 4096;
        // Each of a new size: a miss, and a growth where there is room.
        drop((pool.stats(), pool.snapshot(), stream.alloc(size)));
        drop((pool.trim(0), pool.synchronize()));
        drop(pool.release(stream.alloc(4096)));
        // With the subscriber's own handles there is something in use.
        drop(pool.close());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn heard() -> Vec<&'static str> {
    std::mem::take(&mut HEARD.get_or_init(Mutex::default).lock().unwrap())
}

fn program() {
    let device = SimDevice::new(SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() });
    let pool = StreamPool::builder(device.clone()).limit(64 * MIB as u64).build().unwrap();
    let [a, b] = [(); 2].map(|()| pool.stream(device.create_stream()).unwrap());
    let keeper = pool.stream(device.create_stream()).unwrap();
    // A live buffer, so that closing is refused.
    let kept = keeper.alloc(256).unwrap();
    assert_eq!(heard(), ["grow"]);
    *SCENE.lock().unwrap() = Some((pool.clone(), keeper.clone()));
    let buffer = a.alloc(40 * MIB).unwrap();
    assert_eq!(heard(), ["grow"]);
    device.launch(a.raw(), Kernel::new().writes(buffer.device_ptr(), 40 << 20)).unwrap();
    drop(buffer);
    let stolen = b.alloc(40 * MIB).unwrap();
    assert_eq!(heard(), ["steal"]);
    assert!(a.alloc(40 * MIB).unwrap_err().is_out_of_memory());
    assert!(heard().contains(&"out_of_memory"));
    drop(stolen);
    b.synchronize().unwrap();
    assert!(pool.trim(0).unwrap() > 0);
    assert_eq!(heard(), ["trim"]);
    *SCENE.lock().unwrap() = None;
    // The end of another pool tells while this one is called back.
    let (other_device, other) = {
        let device = SimDevice::new(2);
        (device.clone(), StreamPool::new(device))
    };
    let stream = other.stream(other_device.create_stream()).unwrap();
    let left = stream.alloc(4096).unwrap();
    heard();
    *SCENE.lock().unwrap() = Some((pool.clone(), keeper.clone()));
    drop((stream, other));
    assert_eq!(heard(), ["leak"]);
    drop((left, kept));
    // The subscriber closes the pool that is just being closed.
    pool.close().expect("nothing is in use");
    assert_eq!(heard(), ["trim"]);
    assert_eq!(device.hazards().len(), 0);
}

#[test]
fn a_subscriber_may_call_the_pool() {
    tracing::subscriber::set_global_default(Caller).expect("there is no other");
    let (done, wait) = mpsc::channel();
    let program = thread::spawn(move || {
        program();
        done.send(()).expect("the test waits");
    });
    let ended = wait.recv_timeout(PATIENCE);
    assert!(!matches!(ended, Err(mpsc::RecvTimeoutError::Timeout)), "a deadlock");
    program.join().expect("the program has not failed");
    assert!(SERVED.load(Ordering::Relaxed) > 4, "the subscriber was not called");
}

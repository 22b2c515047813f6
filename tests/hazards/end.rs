//! H59 and S7: how a pool ends.

use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use streampool::sim::{Call, CallCounts, FaultPlan, PausePoint, Schedule, SimConfig, SimDevice};
use streampool::{Buffer, Growth, StreamPool};

use crate::common::{BLOCK, LONG, Setup, Stream, in_both_kinds, lazy_device};

/// Everything of a device's is back.
fn is_clear(device: &SimDevice) -> bool {
    let counts = device.counts();
    device.memory_in_use() == 0
        && device.live_granules() == 0
        && device.live_events() == 0
        && device.live_streams() == 0
        && counts.range_reserves <= counts.range_releases
}

/// Calls another pool until the ended pools of a device have given all back. Other threads' calls may
/// have one of them in their hands just now, so that one call need not be enough.
fn cleared_by_another_pool(setup: Setup, device: &SimDevice) -> bool {
    let other = setup.lab();
    let stream = other.stream();
    (0..200).any(|_| {
        // Plain segments go back only in a call that may block.
        stream.synchronize().unwrap();
        is_clear(device) || {
            thread::sleep(Duration::from_millis(10));
            false
        }
    })
}

#[test]
fn h59_buffers_outlive_the_handles_and_go_back_with_a_later_call_of_any_pool() {
    in_both_kinds(|setup| {
        let device = SimDevice::new(1);
        let lab = setup.lab_on(device.clone(), |builder| builder).unwatched();
        let a = lab.stream();
        let (x, y) = (lab.hold(&a, BLOCK), lab.hold(&a, BLOCK));
        x.write_long(&a);
        drop(y);
        drop((a, lab));
        // Still usable: it is memory, and its stream lives.
        let a = x.stream();
        x.write(&a);
        assert_eq!(a.pool().stats().live, 1);
        drop(a);
        assert!(device.memory_in_use() >= BLOCK);
        let before = device.counts();
        drop(x);
        assert_eq!(device.counts(), before, "the last drop made a driver call");
        device.run();
        assert!(cleared_by_another_pool(setup, &device), "{:?}", device.counts());
        assert!(device.hazards().is_empty(), "{:?}", device.hazards());
    });
}

#[test]
fn s7_the_last_handle_gives_back_what_has_completed_at_once() {
    in_both_kinds(|setup| {
        let device = SimDevice::new(1);
        let lab = setup.lab_on(device.clone(), |builder| builder).unwatched();
        let a = lab.stream();
        lab.hold(&a, BLOCK).write(&a);
        device.run();
        drop((a, lab));
        assert_eq!(device.counts().synchronizes(), 0, "it does not wait");
        // Nor does the driver for it, as it might before it takes a plain segment.
        let plain = setup.growth == Growth::Segments;
        assert!(if plain { device.memory_in_use() > 0 } else { is_clear(&device) });
        assert!(!plain || cleared_by_another_pool(setup, &device), "{:?}", device.counts());
    });
}

#[test]
fn s7_what_has_not_completed_stays_until_it_has() {
    in_both_kinds(|setup| {
        let device = lazy_device();
        let lab = setup.lab_on(device.clone(), |builder| builder).unwatched();
        let [a, b] = lab.streams();
        lab.hold(&a, BLOCK).write_long(&a);
        let x = lab.hold(&b, BLOCK);
        x.share(&a);
        x.write_long(&a);
        drop((a, b, x, lab));
        assert!(device.memory_in_use() > 0, "given back under a kernel");
        assert_eq!(device.counts().synchronizes(), 0, "it waited");
        device.run();
        assert!(cleared_by_another_pool(setup, &device), "{:?}", device.counts());
        assert!(device.hazards().is_empty(), "{:?}", device.hazards());
    });
}

#[test]
fn s7_close_is_refused_while_buffers_live_and_changes_nothing() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_with(|builder| builder);
        let [a, b] = lab.streams();
        let (x, nothing) = (lab.hold(&a, BLOCK), a.alloc(0).unwrap());
        x.write_long(&a);
        drop(lab.hold(&a, BLOCK));
        let (error, calls) = lab.calls_of(|| lab.pool.close().unwrap_err());
        assert!(error.is_in_use() && error.to_string().contains("2 live buffers"), "{error}");
        assert_eq!(calls, CallCounts::default());
        // It goes on, hits and misses.
        let hits = lab.stats().hits;
        drop(lab.hold(&a, BLOCK));
        assert_eq!(lab.stats().hits, hits + 1);
        lab.hold(&b, 3 * BLOCK).write(&b);
        drop(nothing);
        assert!(lab.pool.close().unwrap_err().is_in_use());
        drop(x);
        let ((), calls) = lab.calls_of(|| lab.pool.close().unwrap());
        assert!(calls.event_synchronizes >= 1, "it is the one end that waits");
        assert_eq!(calls.context_synchronizes, 0, "for the pool's own events");
        assert_eq!((lab.device.memory_in_use(), lab.device.live_events()), (0, 0));
        for error in [
            lab.try_hold(&a, BLOCK).unwrap_err(),
            a.alloc(0).unwrap_err(),
            a.mark().unwrap_err(),
            lab.pool.quiesce().err().unwrap(),
            lab.pool.reserve(1).unwrap_err(),
            lab.pool.stream(lab.device.create_stream()).unwrap_err(),
        ] {
            assert!(error.is_closed(), "{error}");
        }
        lab.pool.close().unwrap();
        drop((a, b));
        let device = lab.device.clone();
        drop(lab);
        assert!(is_clear(&device), "{:?}", device.counts());
    });
}

#[test]
fn s7_a_close_that_the_driver_refuses_is_finished_later() {
    in_both_kinds(|setup| {
        let verbs: &[Call] = match setup.growth {
            Growth::Segments => &[Call::SynchronizeEvent, Call::Record, Call::FreeSegment],
            _ => &[Call::SynchronizeEvent, Call::Record, Call::Unmap, Call::ReleaseRange],
        };
        for verb in verbs {
            let device = SimDevice::new(1);
            let lab = setup.lab_on(device.clone(), |builder| builder).unwatched();
            let a = lab.stream();
            lab.hold(&a, BLOCK).write(&a);
            device.inject(FaultPlan::new(*verb));
            let closed = lab.pool.close();
            let told = closed.is_err() || lab.pool.take_error().is_some();
            assert!(told, "{verb}: the error is nowhere");
            assert!(lab.try_hold(&a, BLOCK).unwrap_err().is_closed());
            device.run();
            drop((a, lab));
            assert!(is_clear(&device) || cleared_by_another_pool(setup, &device), "{verb}");
            assert!(device.hazards().is_empty());
        }
    });
}

#[test]
fn s7_a_pool_left_while_a_stream_is_dropped_on_other_threads_ends_once() {
    in_both_kinds(|setup| {
        let device = SimDevice::new(1);
        let lab = setup.lab_on(device.clone(), |builder| builder).unwatched();
        let streams: Vec<Stream> = (0..8).map(|_| lab.stream()).collect();
        let held: Vec<_> = streams.iter().map(|stream| lab.hold(stream, BLOCK)).collect();
        held.iter().zip(&streams).for_each(|(own, stream)| own.write(stream));
        device.run();
        drop(lab);
        thread::scope(|scope| {
            for (own, stream) in held.into_iter().zip(streams) {
                scope.spawn(move || drop((stream, own)));
            }
        });
        assert!(is_clear(&device) || cleared_by_another_pool(setup, &device));
        assert!(device.hazards().is_empty());
    });
}

#[test]
fn s7_a_lost_device_lets_its_streams_go() {
    in_both_kinds(|setup| {
        let device = SimDevice::new(1);
        let lab = setup.lab_on(device.clone(), |builder| builder).unwatched();
        let a = lab.stream();
        let x = lab.hold(&a, BLOCK);
        device
            .inject(FaultPlan::new(Call::Record).kind(streampool::backend::ErrorKind::DeviceLost));
        assert!(a.mark().unwrap_err().is_device_lost());
        drop(x);
        drop((a, lab));
        let other = setup.lab();
        let stream = other.stream();
        let gone = (0..200).any(|_| {
            stream.mark().unwrap();
            device.live_streams() == 0 || {
                thread::sleep(Duration::from_millis(10));
                false
            }
        });
        assert!(gone, "{} streams stay", device.live_streams());
    });
}

/// What a program leaves behind at its exit.
struct Kept {
    _pool: StreamPool<SimDevice>,
    _stream: Stream,
    _buffers: Vec<Buffer<SimDevice>>,
}

const CHILD: &str = "STREAMPOOL_TEST_EXITS";

#[test]
fn h59_a_process_may_exit_with_live_buffers() {
    thread_local! {
        static LOCAL: std::cell::RefCell<Option<Kept>> = const { std::cell::RefCell::new(None) };
    }
    static STATIC: OnceLock<Kept> = OnceLock::new();
    let Ok(way) = std::env::var(CHILD) else {
        for way in ["exit", "return", "panic"] {
            let program = std::env::current_exe().unwrap();
            let test = "end::h59_a_process_may_exit_with_live_buffers";
            let child = Command::new(program)
                .args(["--exact", test, "--test-threads=1"])
                .env(CHILD, way)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&child.stderr).into_owned()
                + &String::from_utf8_lossy(&child.stdout);
            let code = if way == "panic" { 101 } else { 0 };
            assert_eq!(child.status.code(), Some(code), "{way}: {text}");
        }
        return;
    };
    for growth in [Growth::Virtual, Growth::Segments] {
        let keep = || {
            let device = lazy_device();
            let pool = StreamPool::builder(device.clone()).growth(growth).build().unwrap();
            let stream = pool.stream(device.create_stream()).unwrap();
            let buffers = (0..4).map(|_| stream.alloc(1 << 20).unwrap()).collect();
            Kept { _pool: pool, _stream: stream, _buffers: buffers }
        };
        let _ = STATIC.set(keep());
        LOCAL.with(|local| *local.borrow_mut() = Some(keep()));
        // An ended pool, too, that nobody polls any more.
        let Kept { _buffers, .. } = keep();
        drop(_buffers);
    }
    match way.as_str() {
        "exit" => std::process::exit(0),
        "panic" => panic!("on purpose"),
        _ => {}
    }
}

#[test]
fn s7_close_waits_for_streams_of_other_pools() {
    in_both_kinds(|setup| {
        let config = SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() };
        let [zero, one]: [SimDevice; 2] = SimDevice::several(config, 2).try_into().unwrap();
        let one = setup.lab_on(one, |builder| builder);
        let zero = setup.lab_on(zero, |builder| builder.peers([&one.pool]));
        let (a, c) = (zero.stream(), one.stream());
        let share = || {
            let x = zero.hold(&a, BLOCK);
            x.write(&a);
            x.use_on(&c).unwrap();
            zero.device.note_use_on(c.raw(), x.at());
            one.device.launch(c.raw(), x.writes().taking(LONG)).unwrap();
        };
        share();
        zero.pool.close().unwrap();
        assert_eq!(zero.device.memory_in_use(), 0, "{:?}", zero.stats());
    });
}

#[test]
fn s7_close_does_not_say_that_all_is_given_back_when_it_is_not() {
    in_both_kinds(|setup| {
        let verbs: &[Call] = match setup.growth {
            Growth::Segments => &[Call::FreeSegment],
            _ => &[Call::Unmap, Call::DestroyGranule, Call::ReleaseRange],
        };
        for verb in verbs {
            let lab = setup.lab().unwatched();
            let a = lab.stream();
            lab.hold(&a, BLOCK).write(&a);
            lab.device.inject(FaultPlan::new(*verb));
            let error = lab.pool.close().expect_err("not all is given back");
            assert!(!error.is_in_use(), "{error}");
            // Its handles live, and whoever calls any pool finishes it.
            let other = setup.lab();
            let stream = other.stream();
            let counts = || lab.device.counts();
            let done = (0..200).any(|_| {
                stream.synchronize().unwrap();
                let back = lab.device.memory_in_use() == 0 && lab.device.live_events() == 0;
                // One that failed counts too.
                let failed = u64::from(*verb == Call::ReleaseRange);
                back && counts().range_reserves + failed <= counts().range_releases || {
                    thread::sleep(Duration::from_millis(10));
                    false
                }
            });
            assert!(done, "{verb}: {:?}", lab.stats());
            lab.pool.close().unwrap();
        }
    });
}

#[test]
fn s7_close_is_refused_while_a_miss_is_under_way() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let a = lab.stream();
        let verb = match setup.growth {
            Growth::Segments => Call::AllocSegment,
            _ => Call::CreateGranule,
        };
        let pause = lab.device.pause(verb, PausePoint::Before);
        thread::scope(|scope| {
            let missing = scope.spawn(|| lab.hold(&a, BLOCK));
            pause.wait_reached();
            let error = lab.pool.close().expect_err("a buffer is about to be handed out");
            assert!(error.is_in_use() && error.to_string().contains("1 calls"), "{error}");
            pause.resume();
            missing.join().unwrap().write(&a);
        });
        lab.hold(&a, BLOCK).write(&a);
        lab.pool.close().unwrap();
        assert!(lab.try_hold(&a, BLOCK).unwrap_err().is_closed());
        assert!(lab.pool.close().is_ok());
    });
}

//! H40 to H45, and the rules about streams: handles that come and go, other pools and devices.

use std::thread;

use streampool::backend::Backend;
use streampool::sim::{
    Call, CaptureMode, FaultPlan, HazardKind, Kernel, PausePoint, Schedule, SimConfig, SimDevice,
};

use crate::common::{BLOCK, GIB, Held, LONG, Lab, MIB, Setup, Stream, in_both_kinds, launch};

#[test]
fn h40_a_new_stream_with_an_old_handle_waits_for_the_old_ones_work() {
    in_both_kinds(|setup| {
        for by_hand in [false, true] {
            let lab = setup.lazy_lab_of(BLOCK);
            let [a, other] = lab.streams();
            let handle = a.raw().handle();
            let x = lab.hold(&a, BLOCK);
            x.write_long(&a);
            drop(x);
            if by_hand {
                a.retire().unwrap();
            } else {
                drop(a);
                other.mark().unwrap();
            }
            let b = lab.stream();
            assert_eq!(b.raw().handle(), handle, "the handle is not the old one: nothing shown");
            let (y, calls) = lab.calls_of(|| lab.hold(&b, BLOCK));
            assert_eq!(
                (calls.stream_waits, calls.event_records),
                (1, 0),
                "its last epoch is closed"
            );
            y.write(&b);
        }
    });
}

#[test]
fn h40_registered_again_while_it_leaves_it_gets_a_new_timeline() {
    in_both_kinds(|setup| {
        for point in [PausePoint::Before, PausePoint::After] {
            let lab = setup.lazy_lab_of(BLOCK);
            let raw = lab.device.create_stream();
            let a = lab.pool.stream(raw.clone()).unwrap();
            let x = lab.hold(&a, BLOCK);
            x.write_long(&a);
            drop(x);
            let pause = lab.device.pause(Call::Record, point);
            thread::scope(|scope| {
                let leaving = scope.spawn(|| a.retire().unwrap());
                pause.wait_reached();
                // The old registration is marked: this is another.
                let again = lab.pool.stream(raw.clone()).unwrap();
                pause.resume();
                leaving.join().unwrap();
                let y = lab.hold(&again, BLOCK);
                y.write(&again);
                drop(y);
                let c = lab.stream();
                lab.hold(&c, BLOCK).write(&c);
            });
            assert_eq!(lab.pool.stream(raw.clone()).unwrap().raw(), &raw);
        }
    });
}

#[test]
fn h41_the_last_handle_goes_while_its_buffers_live() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(2 * BLOCK);
        let [a, b, c] = lab.streams();
        let (x, y) = (lab.hold(&a, BLOCK), lab.hold(&b, BLOCK));
        x.write_long(&a);
        // a is named by a buffer of b, too.
        y.share(&a);
        y.write_long(&a);
        let before = lab.device.live_streams();
        drop(a);
        c.mark().unwrap();
        assert_eq!(lab.device.live_streams(), before, "a left under its buffers");
        // Its handle can be had again through the buffer, and goes again.
        let a = x.stream();
        x.write_long(&a);
        drop(a);
        drop(x);
        c.mark().unwrap();
        assert_eq!(lab.device.live_streams(), before, "a left under a use_on set");
        drop(y);
        c.mark().unwrap();
        assert_eq!((lab.device.live_streams(), lab.stats().streams), (before - 1, 2));
        let [z, w] = [lab.hold(&c, BLOCK), lab.hold(&c, BLOCK)];
        z.write(&c);
        w.write(&c);
    });
}

#[test]
fn h41_the_last_handle_goes_while_another_thread_closes_its_epoch() {
    in_both_kinds(|setup| {
        for verb in [Call::Record, Call::Query] {
            for point in [PausePoint::Before, PausePoint::After] {
                let lab = setup.lazy_lab_of(2 * BLOCK);
                let [a, b, c] = lab.streams();
                let (x, y) = (lab.hold(&a, BLOCK), lab.hold(&a, BLOCK));
                x.write_long(&a);
                drop(x);
                let pause = lab.device.pause(verb, point);
                thread::scope(|scope| {
                    let closing = scope.spawn(|| {
                        let x = lab.hold(&b, BLOCK);
                        x.write(&b);
                    });
                    pause.wait_reached();
                    y.write_long(&a);
                    drop((a, y));
                    c.mark().unwrap();
                    assert_eq!(lab.stats().streams, 3, "a left during a call about it");
                    pause.resume();
                    closing.join().unwrap();
                });
                c.mark().unwrap();
                assert_eq!(lab.stats().streams, 2);
                let both = [lab.hold(&c, BLOCK), lab.hold(&c, BLOCK)];
                both.iter().for_each(|own| own.write(&c));
            }
        }
    });
}

#[test]
fn h41_a_stream_that_a_scope_has_noted_leaves_before_the_scope_ends() {
    in_both_kinds(|setup| {
        for busy in [false, true] {
            let lab = setup.lab_of(BLOCK);
            let [a, b] = lab.streams();
            let x = lab.hold(&a, BLOCK);
            x.write(&a);
            let scope = lab.pool.quiesce().unwrap();
            if busy {
                x.write_long(&a);
            }
            drop((x, a));
            b.mark().unwrap();
            assert_eq!(lab.stats().streams, 1, "a has not left");
            let report = scope.finish();
            assert_eq!((report.freed, report.deferred), (1, u64::from(busy)));
            let (y, calls) = lab.calls_of(|| lab.hold(&b, BLOCK));
            y.write(&b);
            assert_eq!(calls.stream_waits, u64::from(busy));
        }
    });
}

#[test]
fn h41_the_last_handle_goes_while_a_steal_from_it_is_under_way_and_fails() {
    in_both_kinds(|setup| {
        for (verb, point) in [
            (Call::Wait, PausePoint::Before),
            (Call::Wait, PausePoint::After),
            (Call::Record, PausePoint::Before),
            (Call::Query, PausePoint::Before),
        ] {
            let lab = setup.lazy_lab_of(BLOCK);
            let [a, b, c] = lab.streams();
            let x = lab.hold(&a, BLOCK);
            x.write_long(&a);
            drop(x);
            let pause = lab.device.pause(verb, point);
            lab.device.inject(FaultPlan::new(verb).late());
            thread::scope(|scope| {
                let stealing = scope.spawn(|| {
                    let y = lab.hold(&b, BLOCK);
                    y.write(&b);
                });
                pause.wait_reached();
                drop(a);
                // A call that may block, and makes none of the calls that are to fail itself.
                lab.pool.reserve(0).unwrap();
                assert_eq!(lab.stats().streams, if verb == Call::Wait { 2 } else { 3 });
                pause.resume();
                stealing.join().unwrap();
            });
            assert_eq!(lab.device.injected_count(), 1, "{verb}");
            let z = lab.hold(&c, BLOCK);
            z.write(&c);
            c.mark().unwrap();
            assert_eq!(lab.stats().streams, 2, "{verb}");
        }
    });
}

#[test]
fn h42_twenty_thousand_streams_leave_nothing_behind() {
    in_both_kinds(|setup| {
        const STREAMS: usize = 20_000;
        const WINDOW: usize = 1000;
        let lab = setup.lab();
        let mut windows = Vec::new();
        for _ in 0..STREAMS / WINDOW {
            let ((), calls) = lab.calls_of(|| {
                for _ in 0..WINDOW {
                    let stream = lab.stream();
                    let x = lab.hold(&stream, BLOCK);
                    x.launch(&stream, x.writes().taking(20_000));
                }
            });
            let stats = lab.stats();
            assert!(lab.device.live_events() <= 64, "{} events", lab.device.live_events());
            assert!(stats.streams <= 2 && lab.device.live_streams() <= 2, "{stats:?}");
            assert!(stats.reserved <= 16 * BLOCK, "{stats:?}");
            windows.push(calls.driver_calls());
        }
        let (first, last) = (windows[1], windows[STREAMS / WINDOW - 1]);
        assert!(first.abs_diff(last) <= first / 20, "calls a pair have changed: {windows:?}");
        assert!(last <= 16 * WINDOW as u64, "{last} calls for {WINDOW} pairs");
        assert_eq!(lab.device.counts().synchronizes(), 0);
    });
}

#[test]
fn h42_many_streams_dropped_at_once_leave_over_a_few_calls() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_with(|builder| builder);
        let b = lab.stream();
        let streams: Vec<Stream> = (0..1000).map(|_| lab.stream()).collect();
        for stream in &streams {
            lab.hold(stream, 64 << 10).write(stream);
        }
        drop(streams);
        for calls in 1.. {
            b.mark().unwrap();
            if lab.stats().streams == 1 {
                assert!(calls <= 20, "{calls} calls");
                break;
            }
        }
        lab.pool.synchronize().unwrap();
        for _ in 0..4 {
            b.synchronize().unwrap();
        }
        assert_eq!(lab.device.live_streams(), 1);
        // What is left of events is idle, to be recorded anew.
        let ((), calls) = lab.calls_of(|| b.mark().unwrap());
        assert_eq!(calls.event_creates, 0);
    });
}

#[test]
fn h43_the_per_thread_stream_is_refused_and_says_why_and_the_legacy_one_works() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(BLOCK);
        let error = lab.pool.stream(lab.device.per_thread_stream()).unwrap_err();
        assert!(error.is_wrong_stream() && error.to_string().contains("per-thread"), "{error}");
        assert!(error.to_string().contains("another stream on each thread"), "{error}");
        let legacy = lab.pool.stream(lab.device.legacy_stream()).unwrap();
        let b = lab.stream();
        for _ in 0..3 {
            let x = lab.hold(&legacy, BLOCK);
            x.write_long(&legacy);
            drop(x);
            let y = lab.hold(&b, BLOCK);
            y.write_long(&b);
        }
        assert!(lab.device.counts().stream_waits >= 5);
        assert_eq!(lab.pool.stream(lab.device.legacy_stream()).unwrap(), legacy);
    });
}

#[test]
fn h44_a_stream_of_another_device_or_machine_is_refused() {
    in_both_kinds(|setup| {
        let [zero, one]: [SimDevice; 2] = SimDevice::several(1, 2).try_into().unwrap();
        let lab = setup.lab_on(zero, |builder| builder);
        for stream in [one.create_stream(), one.legacy_stream(), SimDevice::new(1).create_stream()]
        {
            let error = lab.pool.stream(stream).unwrap_err();
            assert!(error.is_wrong_stream() && error.to_string().contains("context"), "{error}");
        }
        assert_eq!((lab.stats().streams, one.live_streams()), (0, 0), "a refused stream is let go");
    });
}

#[test]
fn h45_the_legacy_streams_implicit_barrier_does_not_count_but_use_on_does() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(BLOCK);
        let legacy = lab.pool.stream(lab.device.legacy_stream()).unwrap();
        let blocking = lab.pool.stream(lab.device.create_blocking_stream()).unwrap();
        let [a, b] = lab.streams();
        for home in [&a, &blocking] {
            let x = lab.hold(home, BLOCK);
            x.write(home);
            x.share(&legacy);
            x.write_long(&legacy);
            drop(x);
            let y = lab.hold(&b, BLOCK);
            y.write(&b);
            lab.no_hazard();
        }
        // Without a name it is the program's breach: the barrier orders nothing against a.
        let x = lab.hold(&a, BLOCK);
        x.write(&a);
        x.write_long(&legacy);
        drop(x);
        let y = lab.hold(&b, BLOCK);
        y.write(&b);
        let hazards = lab.device.take_hazards();
        assert!(hazards.iter().any(|hazard| hazard.kind() == HazardKind::Race), "{hazards:?}");
    });
}

#[test]
fn h45_while_a_blocking_stream_captures_the_legacy_stream_counts_as_capturing() {
    in_both_kinds(|setup| {
        for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
            let lab = setup.lab_of(2 * BLOCK);
            let legacy = lab.pool.stream(lab.device.legacy_stream()).unwrap();
            let blocking = lab.device.create_blocking_stream();
            let b = lab.stream();
            let x = lab.hold(&legacy, BLOCK);
            x.write(&legacy);
            lab.device.begin_capture(&blocking, mode).unwrap();
            launch(&lab.device, &blocking, Kernel::new());
            assert!(legacy.mark().unwrap_err().is_capture());
            assert!(x.use_on(&b).unwrap_err().is_capture());
            assert!(lab.try_hold(&legacy, MIB).unwrap_err().is_capture());
            drop(x);
            drop(lab.hold(&b, BLOCK));
            drop(lab.pool.quiesce().unwrap());
            lab.pool.trim(0).unwrap();
            let graph = lab.device.end_capture(&blocking).expect("the capture is broken");
            assert_eq!(graph.len(), 1);
            let y = lab.hold(&b, 2 * BLOCK);
            y.write(&b);
        }
    });
}

#[test]
fn s1_retire_gives_the_handle_back_while_anything_counts_on_the_stream() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let [a, b] = lab.streams();
        let twin = a.clone();
        let error = a.retire().expect_err("another handle is there");
        assert!(error.error().is_in_use(), "{error}");
        let a = error.into_stream();
        drop(twin);
        let x = lab.hold(&a, BLOCK);
        let error = a.retire().expect_err("a buffer lives");
        assert!(error.error().is_in_use() && error.to_string().contains("1 buffers"), "{error}");
        let a = error.into_stream();
        drop(x);
        let y = lab.hold(&b, BLOCK);
        y.share(&a);
        let error = a.retire().expect_err("a buffer of another stream names it");
        let a = error.into_stream();
        y.write(&a);
        drop(y);
        lab.device.inject(FaultPlan::new(Call::Record));
        let error = a.retire().expect_err("the record fails");
        assert!(!error.error().is_in_use());
        let a = error.into_stream();
        // It is as it was: it serves, and can be registered again as the same.
        let z = lab.hold(&a, BLOCK);
        z.write(&a);
        assert_eq!(lab.pool.stream(a.raw().clone()).unwrap(), a);
        drop(z);
        a.retire().unwrap();
        assert_eq!((lab.stats().streams, lab.device.live_streams()), (1, 1));
        lab.hold(&b, 2 * BLOCK).write(&b);
    });
}

#[test]
fn s2_registering_twice_gives_the_same_stream_and_each_pool_its_own() {
    in_both_kinds(|setup| {
        let device = SimDevice::new(1);
        let one = setup.lab_on(device.clone(), |builder| builder).unwatched();
        let two = setup.lab_on(device.clone(), |builder| builder).unwatched();
        let raw = device.create_stream();
        let a = one.pool.stream(raw.clone()).unwrap();
        let again = one.pool.stream(raw.clone()).unwrap();
        assert_eq!((&a, one.stats().streams), (&again, 1));
        // It stays as it was registered first.
        let recording = one.pool.stream_record_on_free(raw.clone()).unwrap();
        let ((), calls) = one.calls_of(|| drop(recording.alloc(0).unwrap()));
        assert_eq!((recording == a, calls.event_records), (true, 0));
        let other = two.pool.stream(raw.clone()).unwrap();
        assert_ne!(a, other);
        assert_eq!(two.stats().streams, 1);
        // All handles of one registration are one: dropping one of them is not the end.
        drop(again);
        drop(recording);
        drop(one.hold(&a, BLOCK));
        assert_eq!(one.stats().streams, 1);
        assert_eq!(a.pool().stats().streams, 1);
    });
}

#[test]
fn s2_two_pools_of_one_device_may_share_a_buffer() {
    in_both_kinds(|setup| {
        let config = SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() };
        let device = SimDevice::new(config);
        let one = setup.lab_on(device.clone(), |builder| builder.limit(BLOCK)).unwatched();
        let two = setup.lab_on(device.clone(), |builder| builder).unwatched();
        let ([a, b], c) = (one.streams(), two.stream());
        let mut x = one.hold(&a, BLOCK);
        x.write(&a);
        x.share(&c);
        x.write_long(&c);
        assert!(x.move_to(&c).unwrap_err().is_wrong_stream(), "home is a stream of its own pool");
        drop(x);
        let y = one.hold(&b, BLOCK);
        y.write(&b);
        one.no_hazard();
        // The other pool's stream leaves with a use pending.
        y.share(&c);
        y.write_long(&c);
        drop((y, c));
        two.pool.reserve(1).unwrap();
        assert_eq!(two.stats().streams, 0);
        one.hold(&a, BLOCK).write(&a);
        one.no_hazard();
    });
}

/// Two devices of one machine, the pool of the first giving access to the second, or not.
fn pair(setup: Setup, peers: bool) -> (Lab, Lab) {
    let config = SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() };
    let [zero, one]: [SimDevice; 2] = SimDevice::several(config, 2).try_into().unwrap();
    let one = setup.lab_on(one, |builder| builder);
    let zero = setup.lab_on(zero, |builder| {
        let builder = builder.limit(BLOCK);
        if peers { builder.peers([&one.pool]) } else { builder }
    });
    (zero, one)
}

#[test]
fn s4_without_peers_a_stream_of_another_device_is_refused() {
    in_both_kinds(|setup| {
        let (zero, one) = pair(setup, false);
        let (a, c) = (zero.stream(), one.stream());
        let mut x = zero.hold(&a, BLOCK);
        let (error, calls) = zero.calls_of(|| x.use_on(&c).unwrap_err());
        assert!(error.is_wrong_stream() && error.to_string().contains("peers"), "{error}");
        assert_eq!((calls.event_records, one.device.counts().stream_waits), (0, 0));
        assert!(x.move_to(&c).unwrap_err().is_wrong_stream());
        drop(c);
        one.pool.reserve(0).unwrap();
        assert_eq!(one.stats().streams, 0, "it was named all the same");
        x.write(&a);
    });
}

#[test]
fn s4_with_peers_the_other_devices_uses_come_before_the_next_owner() {
    in_both_kinds(|setup| {
        let (zero, one) = pair(setup, true);
        let ([a, b], [c, d]) = (zero.streams(), one.streams());
        let use_far = |home: &Stream, far: &Stream| {
            let x: Held = zero.hold(home, BLOCK);
            x.write(home);
            x.use_on(far).unwrap();
            zero.device.note_use_on(far.raw(), x.at());
            one.device.launch(far.raw(), x.writes().taking(LONG)).unwrap();
            x
        };
        drop(use_far(&a, &c));
        drop(use_far(&b, &d));
        let last = use_far(&a, &d);
        // The other device's streams leave when nothing names them, and the memory can still be had.
        drop((c, d));
        one.pool.reserve(0).unwrap();
        assert_eq!(one.stats().streams, 1, "d is named");
        drop(last);
        one.pool.reserve(0).unwrap();
        assert_eq!(one.stats().streams, 0);
        let x = zero.hold(&b, BLOCK);
        x.write(&b);
        drop(x);
        assert!(zero.try_hold(&a, GIB).unwrap_err().is_out_of_memory());
        assert_eq!(zero.device.counts().event_records, zero.stats().calls.event_records);
        assert_ne!(zero.device.context_id(), one.device.context_id());
    });
}

//! H50, H51, H53, H54: captures of others, which no call of a pool may break or be drawn into.

use std::error::Error as _;
use std::thread;

use streampool::Error;
use streampool::backend::ErrorKind;
use streampool::sim::{Call, CaptureMode, FaultPlan, Kernel, PausePoint, SimDevice};

use crate::common::{BLOCK, Held, KIB, Lab, MIB, Random, Setup, Stream, in_both_kinds, launch};

const MODES: [CaptureMode; 3] =
    [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

/// Runs `act` on this thread or on another.
fn on_a_thread<R: Send>(another: bool, act: impl FnOnce() -> R + Send) -> R {
    if another { thread::scope(|scope| scope.spawn(act).join().unwrap()) } else { act() }
}

/// Begins a capture on a stream and puts a kernel into it.
fn begin(lab: &Lab, stream: &Stream, mode: CaptureMode) {
    lab.device.begin_capture(stream.raw(), mode).unwrap();
    launch(&lab.device, stream.raw(), Kernel::new());
}

/// The capture is whole, with its one kernel.
#[track_caller]
fn end_whole(lab: &Lab, stream: &Stream) {
    let graph = lab.device.end_capture(stream.raw()).expect("the capture is broken");
    assert_eq!(graph.len(), 1, "something was drawn into the capture");
}

#[test]
fn h50_what_a_freed_before_its_capture_is_not_stolen_by_a_record_on_a() {
    in_both_kinds(|setup| {
        for mode in MODES {
            for another in [false, true] {
                for limit in [BLOCK, 2 * BLOCK] {
                    let lab = setup.lazy_lab_of(limit);
                    let [a, b] = lab.streams();
                    let x = lab.hold(&a, BLOCK);
                    x.write_long(&a);
                    let at = x.at();
                    drop(x);
                    begin(&lab, &a, mode);
                    let (y, calls) = lab.calls_of(|| {
                        on_a_thread(another, || lab.try_hold(&b, BLOCK).inspect(|y| y.write(&b)))
                    });
                    assert_eq!((calls.stream_waits, calls.context_synchronizes), (0, 0));
                    if limit == BLOCK {
                        let error = y.expect_err("x cannot be had while a captures");
                        assert!(error.is_out_of_memory(), "{error}");
                    } else {
                        assert_ne!(y.expect("there is room").at(), at);
                        assert_eq!(calls.event_records, 0);
                    }
                    // b has not been drawn in.
                    launch(&lab.device, b.raw(), Kernel::new());
                    end_whole(&lab, &a);
                    let z = lab.hold(&b, limit);
                    z.write(&b);
                }
            }
        }
    });
}

#[test]
fn h50_marked_before_the_capture_it_can_be_had_during_it() {
    in_both_kinds(|setup| {
        for mode in MODES {
            for another in [false, true] {
                let lab = setup.lazy_lab_of(BLOCK);
                let [a, b] = lab.streams();
                let x = lab.hold(&a, BLOCK);
                x.write_long(&a);
                drop(x);
                a.mark().unwrap();
                begin(&lab, &a, mode);
                let (y, calls) = lab.calls_of(|| on_a_thread(another, || lab.hold(&b, BLOCK)));
                y.write(&b);
                assert_eq!((calls.event_records, calls.stream_waits), (0, 1));
                end_whole(&lab, &a);
            }
        }
    });
}

#[test]
fn h50_a_capture_that_begins_during_the_record_throws_the_event_away() {
    in_both_kinds(|setup| {
        for mode in MODES {
            for point in [PausePoint::Before, PausePoint::After] {
                let lab = setup.lazy_lab_of(BLOCK);
                let [a, b] = lab.streams();
                let x = lab.hold(&a, BLOCK);
                x.write_long(&a);
                drop(x);
                let pause = lab.device.pause(Call::Record, point);
                thread::scope(|scope| {
                    let miss = scope.spawn(|| lab.try_hold(&b, BLOCK));
                    pause.wait_reached();
                    begin(&lab, &a, mode);
                    pause.resume();
                    // Recorded before the capture or inside it, nobody can tell: not used.
                    assert!(miss.join().unwrap().unwrap_err().is_out_of_memory());
                });
                end_whole(&lab, &a);
                lab.hold(&b, BLOCK).write(&b);
            }
        }
    });
}

#[test]
fn h51_another_threads_allocations_leave_a_capture_whole() {
    in_both_kinds(|setup| {
        for mode in MODES {
            for another in [false, true] {
                let lab = setup.lab_of(32 * MIB);
                let [a, b, c] = lab.streams();
                let of_a: Vec<Held> = (0..4).map(|_| lab.hold(&a, MIB)).collect();
                of_a.iter().for_each(|own| own.write_long(&a));
                drop(of_a);
                begin(&lab, &a, mode);
                on_a_thread(another, || {
                    let random = &mut Random(7);
                    let mut held: Vec<(Held, Stream)> = Vec::new();
                    for _ in 0..400 {
                        let stream = if random.below(2) == 0 { &b } else { &c };
                        let bytes = [256, 64 * KIB, MIB, 5 * MIB, 12 * MIB][random.below(5)];
                        match random.below(6) {
                            0..3 => {
                                if let Ok(own) = lab.try_hold(stream, bytes) {
                                    own.write(stream);
                                    held.push((own, stream.clone()));
                                }
                            }
                            3 => {
                                if let Some((own, home)) = held.last_mut() {
                                    own.share(stream);
                                    own.read(stream);
                                    home.wait_for(stream).unwrap();
                                }
                            }
                            _ => {
                                let n = random.below(held.len() + 1);
                                if n < held.len() {
                                    held.swap_remove(n);
                                }
                            }
                        }
                    }
                    drop(held);
                    lab.pool.trim(0).unwrap();
                });
                let stats = lab.stats();
                assert!(stats.hits > 0 && stats.growths > 1 && stats.ladders > 0, "{stats:?}");
                end_whole(&lab, &a);
            }
        }
    });
}

#[test]
fn h53_quiesce_release_trim_queries_and_the_ladder_leave_a_capture_whole() {
    in_both_kinds(|setup| {
        for mode in MODES {
            for another in [false, true] {
                for foreign in [false, true] {
                    let options = |builder: streampool::PoolBuilder<_>| {
                        builder.limit(6 * BLOCK).foreign_captures(foreign)
                    };
                    let lab = setup.lab_with(options);
                    let [a, b, c] = lab.streams();
                    let hold = |stream: &Stream| lab.hold(stream, BLOCK);
                    let (x, y, z) = (hold(&a), hold(&b), hold(&c));
                    x.write_long(&a);
                    y.write_long(&b);
                    z.write_long(&c);
                    drop((x, y));
                    // A stream that the pool does not know captures instead, where it may.
                    let unknown = lab.device.create_stream();
                    let capturing = if foreign { &unknown } else { a.raw() };
                    lab.device.begin_capture(capturing, mode).unwrap();
                    launch(&lab.device, capturing, Kernel::new());
                    on_a_thread(another, || {
                        let scope = lab.pool.quiesce().unwrap();
                        // b's is clean; a's is, unless a captures.
                        let clean = lab.stats();
                        drop(z);
                        let report = scope.finish();
                        assert_eq!((report.freed, report.clean), (1, 1));
                        assert_eq!(clean.free_clean + clean.free_pending, 2 * BLOCK);
                        let w = hold(&c);
                        w.write(&c);
                        assert_eq!(lab.pool.release(w).unwrap().freed, 1);
                        lab.pool.synchronize().unwrap();
                        b.synchronize().unwrap();
                        // All that is not a's goes back.
                        let kept = if foreign { 0 } else { BLOCK };
                        assert_eq!(lab.pool.trim(0).unwrap(), 3 * BLOCK - kept);
                        let large = lab.try_hold(&b, 7 * BLOCK).unwrap_err();
                        assert!(large.is_over_limit(), "{large}");
                        let most = lab.hold(&b, 5 * BLOCK);
                        most.write(&b);
                        drop(most);
                        let _ = lab.stats();
                        lab.pool.reserve(6 * BLOCK).unwrap();
                    });
                    assert_eq!(lab.device.counts().context_synchronizes, 0);
                    let graph = lab.device.end_capture(capturing).expect("the capture is broken");
                    assert_eq!(graph.len(), 1);
                    drop(lab.pool.quiesce().unwrap());
                    let (all, calls) = lab.calls_of(|| lab.hold(&b, 6 * BLOCK));
                    all.write(&b);
                    assert_eq!((calls.stream_waits, calls.event_queries), (0, 0));
                }
            }
        }
    });
}

#[test]
fn h53_the_ladder_serves_what_the_other_streams_have() {
    in_both_kinds(|setup| {
        for mode in MODES {
            for another in [false, true] {
                let lab = setup.lazy_lab_of(4 * BLOCK);
                let [a, b, c] = lab.streams();
                let of_a = lab.hold(&a, BLOCK);
                of_a.write_long(&a);
                let of_b: Vec<Held> = (0..3).map(|_| lab.hold(&b, BLOCK)).collect();
                of_b.iter().for_each(|own| own.write_long(&b));
                drop((of_a, of_b));
                begin(&lab, &a, mode);
                // Three blocks of b, in pieces: they must be clean before they can become one.
                let whole = on_a_thread(another, || lab.hold(&c, 3 * BLOCK));
                whole.write(&c);
                end_whole(&lab, &a);
            }
        }
    });
}

#[test]
fn h54_after_a_broken_capture_the_pool_goes_on() {
    in_both_kinds(|setup| {
        for mode in MODES {
            let lab = setup.lazy_lab_of(2 * BLOCK);
            let [a, b] = lab.streams();
            let (x, y) = (lab.hold(&a, BLOCK), lab.hold(&a, BLOCK));
            x.write_long(&a);
            drop(x);
            begin(&lab, &a, mode);
            lab.device.user_stream_query(a.raw()).expect_err("it breaks the capture");
            // It is broken and not over.
            assert!(lab.try_hold(&a, MIB).unwrap_err().is_capture());
            assert!(a.mark().unwrap_err().is_capture());
            assert!(lab.try_hold(&b, BLOCK).unwrap_err().is_out_of_memory());
            lab.device.end_capture(a.raw()).expect_err("the user has broken it");
            a.mark().unwrap();
            y.write_long(&a);
            drop(y);
            let z = lab.hold(&b, BLOCK);
            z.write(&b);
            drop(z);
            let z = lab.hold(&a, BLOCK);
            z.write(&a);
            drop(z);
            drop(lab.pool.quiesce().unwrap());
            lab.hold(&b, 2 * BLOCK).write(&b);
        }
    });
}

#[test]
fn h54_a_capture_that_ends_with_its_stream_frees_the_stream() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(BLOCK);
        let [a, b] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        x.write_long(&a);
        drop(x);
        begin(&lab, &a, CaptureMode::Relaxed);
        let error = a.retire().expect_err("it captures");
        assert!(error.error().is_capture());
        let a = error.into_stream();
        let handle = a.raw().clone();
        drop(a);
        // It cannot leave while it captures, and nothing is lost by that.
        b.mark().unwrap();
        assert!(lab.try_hold(&b, BLOCK).unwrap_err().is_out_of_memory());
        assert_eq!(lab.stats().streams, 2);
        lab.device.end_capture(&handle).unwrap();
        lab.hold(&b, BLOCK).write(&b);
        assert_eq!(lab.stats().streams, 1);
    });
}

/// Whether the look says that the process exits, or says nothing that can be understood.
fn look_that_fails(setup: Setup, kind: ErrorKind, is_right: fn(&Error) -> bool) {
    let lab = setup.lazy_lab_of(2 * BLOCK);
    let [a, b] = lab.streams();
    let x = lab.hold(&b, BLOCK);
    let fail = || lab.device.inject(FaultPlan::new(Call::IsCapturing).kind(kind));
    let calls: [&dyn Fn() -> Option<Error>; 5] = [
        &|| lab.try_hold(&a, BLOCK).err(),
        &|| a.mark().err(),
        &|| x.use_on(&a).err(),
        &|| b.synchronize().err(),
        &|| lab.pool.synchronize_context().err(),
    ];
    for call in calls {
        fail();
        let error = call().expect("the look has failed");
        assert!(is_right(&error), "{error:?}");
    }
    // The pool goes on.
    assert_eq!(lab.device.injected_count(), 5);
    lab.hold(&a, BLOCK).write(&a);
}

#[test]
fn s5_a_look_that_fails_counts_as_capturing_unless_the_process_exits() {
    in_both_kinds(|setup| {
        look_that_fails(setup, ErrorKind::Other, |error| {
            error.is_capture() && !error.is_exiting() && error.source().is_some()
        });
        look_that_fails(setup, ErrorKind::Exiting, |error| {
            error.is_exiting() && !error.is_capture() && error.to_string().contains("exiting")
        });
    });
}

#[test]
fn s5_naming_a_capturing_stream_is_a_typed_error_and_changes_nothing() {
    in_both_kinds(|setup| {
        for mode in MODES {
            let lab = setup.lazy_lab_of(2 * BLOCK);
            let [a, b] = lab.streams();
            let mut x = lab.hold(&b, BLOCK);
            let mut y = lab.hold(&a, BLOCK);
            x.write(&b);
            begin(&lab, &a, mode);
            let ((), calls) = lab.calls_of(|| {
                for error in [
                    x.use_on(&a).unwrap_err(),
                    x.move_to(&a).unwrap_err(),
                    y.use_on(&b).unwrap_err(),
                    y.move_to(&b).unwrap_err(),
                    a.wait_for(&b).unwrap_err(),
                    b.wait_for(&a).unwrap_err(),
                    a.mark().unwrap_err(),
                    a.synchronize().unwrap_err(),
                    lab.try_hold(&a, MIB).unwrap_err(),
                ] {
                    assert!(error.is_capture(), "{error}");
                    assert!(error.to_string().contains("captur"), "{error}");
                }
            });
            assert_eq!((calls.event_records, calls.stream_waits), (0, 0));
            assert_eq!((x.stream(), y.stream()), (b.clone(), a.clone()));
            end_whole(&lab, &a);
            assert_eq!(lab.stats().live, 2);
            x.share(&a);
            x.write(&a);
            drop((x, y));
            lab.hold(&b, BLOCK).write(&b);
        }
    });
}

#[test]
fn s5_no_pool_call_changes_the_threads_capture_mode() {
    in_both_kinds(|setup| {
        for mode in MODES {
            let before = SimDevice::exchange_capture_mode(mode);
            let lab = setup.lab();
            let a = lab.stream();
            lab.hold(&a, BLOCK).write(&a);
            drop(lab.pool.quiesce().unwrap());
            lab.pool.trim(0).unwrap();
            assert_eq!(SimDevice::exchange_capture_mode(before), mode);
        }
    });
}

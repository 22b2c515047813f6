//! H30 to H39: the quiescent scope.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use streampool::backend::ErrorKind;
use streampool::sim::{Call, CallCounts, FaultPlan, SimDevice};
use streampool::{QuiescentReport, QuiescentScope};

use crate::common::{BLOCK, Held, Lab, Stream, in_both_kinds};

fn counted(report: QuiescentReport) -> (u64, u64, u64) {
    (report.freed, report.clean, report.deferred)
}

#[test]
fn h30_a_buffer_allocated_launched_on_and_freed_inside_keeps_its_order() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(2 * BLOCK);
        lab.pool.reserve(2 * BLOCK).unwrap();
        let [a, b] = lab.streams();
        let scope = lab.pool.quiesce().unwrap();
        let x = lab.hold(&a, BLOCK);
        x.write_long(&a);
        drop(x);
        let quiet = lab.hold(&b, BLOCK);
        drop(quiet);
        let report = scope.finish();
        assert_eq!(counted(report), (2, 1, 1), "what was launched inside is not over");
        assert_eq!(report.bytes, 2 * BLOCK);
        let y = lab.hold(&b, 2 * BLOCK);
        y.write(&b);
        assert_eq!(lab.device.counts().synchronizes(), 1);
        assert_eq!(lab.device.counts().stream_waits, 1);
    });
}

#[test]
fn h31_used_again_after_the_synchronize_and_freed_inside_it_keeps_its_order() {
    in_both_kinds(|setup| {
        for by_another_thread in [false, true] {
            let lab = setup.lab_of(BLOCK);
            let [a, b] = lab.streams();
            let x = lab.hold(&a, BLOCK);
            x.write(&a);
            let scope = lab.pool.quiesce().unwrap();
            if by_another_thread {
                thread::scope(|scope| scope.spawn(|| x.write_long(&a)).join().unwrap());
            } else {
                x.write_long(&a);
            }
            drop(x);
            assert_eq!(counted(scope.finish()), (1, 0, 1));
            let y = lab.hold(&b, BLOCK);
            y.write(&b);
            assert_eq!(lab.device.counts().stream_waits, 1);
        }
    });
}

#[test]
fn h31_used_on_another_stream_inside_it_is_deferred_for_that_stream() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(2 * BLOCK);
        let [a, b, c] = lab.streams();
        let (x, idle) = (lab.hold(&a, BLOCK), lab.hold(&a, BLOCK));
        let scope = lab.pool.quiesce().unwrap();
        x.share(&b);
        x.write_long(&b);
        drop((x, idle));
        let (report, calls) = lab.calls_of(|| scope.finish());
        assert_eq!(counted(report), (2, 1, 1));
        // One for the context, which is not idle, and one a stream.
        let records = (calls.context_records, calls.event_records, calls.event_queries);
        assert_eq!(records, (1, 2, 3));
        lab.hold(&c, 2 * BLOCK).write(&c);
    });
}

#[test]
fn h32_frees_of_other_threads_are_as_ever() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(2 * BLOCK);
        lab.pool.reserve(2 * BLOCK).unwrap();
        let [a, b] = lab.streams();
        let recorded = lab.pool.stream_record_on_free(lab.device.create_stream()).unwrap();
        let (x, y) = (lab.hold(&a, BLOCK), lab.hold(&recorded, BLOCK));
        let scope = lab.pool.quiesce().unwrap();
        let ((), calls) = lab.calls_of(|| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    x.write_long(&a);
                    y.write_long(&recorded);
                    drop((x, y));
                });
            });
        });
        assert_eq!(calls.event_records, 1, "the other thread's free on its stream is recorded");
        assert_eq!(counted(scope.finish()), (0, 0, 0));
        let z = lab.hold(&b, 2 * BLOCK);
        z.write(&b);
        assert_eq!(lab.device.counts().stream_waits, 2);
    });
}

#[test]
fn h32_a_buffer_that_another_thread_launched_on_and_sent_is_ordered() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(BLOCK);
        let [a, b] = lab.streams();
        let scope = lab.pool.quiesce().unwrap();
        let (send, receive) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let x = lab.hold(&a, BLOCK);
                x.write_long(&a);
                send.send(x).unwrap();
            });
        });
        drop(receive.recv().unwrap());
        assert_eq!(counted(scope.finish()), (1, 0, 1));
        lab.hold(&b, BLOCK).write(&b);
    });
}

#[test]
fn h33_nested_scopes_end_in_any_order() {
    in_both_kinds(|setup| {
        for inner_first in [true, false] {
            let lab = setup.lab_of(4 * BLOCK);
            let [a, b] = lab.streams();
            let r = lab.pool.stream_record_on_free(lab.device.create_stream()).unwrap();
            let [x, y, z, w] = [(); 4].map(|()| lab.hold(&r, BLOCK));
            let outer = lab.pool.quiesce().unwrap();
            drop(x);
            let inner = lab.pool.quiesce().unwrap();
            assert_eq!(lab.device.counts().synchronizes(), 2, "each entry synchronizes");
            y.write_long(&r);
            drop(y);
            let (ends, calls) = lab.calls_of(|| {
                if inner_first {
                    let inner = counted(inner.finish());
                    drop(z);
                    (counted(outer.finish()), inner)
                } else {
                    let outer = counted(outer.finish());
                    drop(z);
                    (outer, counted(inner.finish()))
                }
            });
            let (outer, inner) = ends;
            assert_eq!((outer.0, inner.0), if inner_first { (2, 1) } else { (1, 2) });
            assert_eq!(calls.event_records, 2, "one a stream and scope, none a buffer");
            // After both the stream records its frees again.
            let ((), calls) = lab.calls_of(|| drop(w));
            assert_eq!(calls.event_records, 1, "the depth did not come down to 0");
            lab.hold(&b, 4 * BLOCK).write(&b);
            lab.hold(&a, BLOCK).write(&a);
        }
    });
}

#[test]
fn h33_a_panic_inside_ends_the_scope() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(2 * BLOCK);
        let b = lab.stream();
        let r = lab.pool.stream_record_on_free(lab.device.create_stream()).unwrap();
        let (x, y) = (lab.hold(&r, BLOCK), lab.hold(&r, BLOCK));
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let _scope = lab.pool.quiesce().unwrap();
            x.write_long(&r);
            let _x = x;
            panic!("on purpose");
        }));
        assert!(ended.is_err());
        let ((), calls) = lab.calls_of(|| drop(y));
        assert_eq!(calls.event_records, 1, "the scope is still open");
        lab.hold(&b, 2 * BLOCK).write(&b);
    });
}

#[test]
fn h33_a_leaked_scope_costs_precision_and_no_byte() {
    in_both_kinds(|setup| {
        for thread_ends in [false, true] {
            let lab = setup.lab_of(2 * BLOCK);
            let [a, b] = lab.streams();
            let (x, y) = (lab.hold(&a, BLOCK), lab.hold(&b, BLOCK));
            let leak = || {
                std::mem::forget(lab.pool.quiesce().unwrap());
                x.write_long(&a);
                drop(x);
            };
            if thread_ends {
                thread::scope(|scope| scope.spawn(leak).join().unwrap());
            } else {
                leak();
            }
            drop(y);
            let z = lab.hold(&b, 2 * BLOCK);
            z.write(&b);
            drop(z);
            // Another scope on the same thread still reports what is freed in it.
            let z = lab.hold(&b, 2 * BLOCK);
            assert_eq!(counted(lab.pool.release(z).unwrap()), (1, 1, 0));
        }
    });
}

#[test]
fn h33_a_scope_open_when_its_thread_ends_is_ended_by_the_thread() {
    in_both_kinds(|setup| {
        thread_local! {
            static OPEN: std::cell::RefCell<Option<QuiescentScope<SimDevice>>> =
                const { std::cell::RefCell::new(None) };
        }
        let lab = setup.lab_of(BLOCK);
        let [a, b] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                OPEN.with(|open| *open.borrow_mut() = Some(lab.pool.quiesce().unwrap()));
                x.write_long(&a);
                drop(x);
            });
            worker.join().unwrap();
        });
        lab.hold(&b, BLOCK).write(&b);
    });
}

#[test]
fn h33_two_pools_at_once_do_not_excuse_each_other() {
    in_both_kinds(|setup| {
        let device = SimDevice::new(1);
        let one = setup.lab_on(device.clone(), |builder| builder.limit(BLOCK)).unwatched();
        let two = setup.lab_on(device.clone(), |builder| builder.limit(BLOCK)).unwatched();
        let a = one.pool.stream_record_on_free(device.create_stream()).unwrap();
        let b = two.pool.stream_record_on_free(device.create_stream()).unwrap();
        let (x, y) = (one.hold(&a, BLOCK), two.hold(&b, BLOCK));
        let of_one = one.pool.quiesce().unwrap();
        // A free into the other pool is as ever.
        let ((), calls) = one.calls_of(|| drop(y));
        assert_eq!(calls.event_records, 1);
        let y = two.hold(&b, BLOCK);
        let of_two = two.pool.quiesce().unwrap();
        let ((), calls) = one.calls_of(|| drop((x, y)));
        assert_eq!(calls, CallCounts::default());
        assert_eq!(counted(of_one.finish()), (1, 1, 0));
        assert_eq!(counted(of_two.finish()), (1, 1, 0));
        let (c, d) = (one.stream(), two.stream());
        let (x, y) = (one.hold(&c, BLOCK), two.hold(&d, BLOCK));
        x.write(&c);
        y.write(&d);
        one.no_hazard();
    });
}

#[test]
fn h33_the_pool_handle_may_go_before_its_scope() {
    in_both_kinds(|setup| {
        let device = SimDevice::new(1);
        let lab = setup.lab_on(device.clone(), |builder| builder).unwatched();
        let a = lab.stream();
        let x = lab.hold(&a, BLOCK);
        x.write(&a);
        let scope = lab.pool.quiesce().unwrap();
        drop(a);
        drop(lab);
        drop(x);
        // Any pool's call retires the stream from now on, and one may just be doing so on another thread.
        assert_eq!(counted(scope.finish()), (1, 1, 0));
        assert!(device.hazards().is_empty());
        // What is left goes back with a later call of any pool.
        let other = setup.lab();
        for _ in 0..100 {
            other.pool.synchronize().unwrap();
            if device.memory_in_use() == 0 && device.live_streams() == 0 {
                return;
            }
            thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("{} bytes and {} streams stay", device.memory_in_use(), device.live_streams());
    });
}

#[test]
fn h33_release_with_a_failing_synchronize_drops_in_the_ordinary_way() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(2 * BLOCK);
        let [a, b] = lab.streams();
        let held = [lab.hold(&a, BLOCK), lab.hold(&a, BLOCK)];
        held.iter().for_each(|own| own.write_long(&a));
        lab.device.inject(FaultPlan::new(Call::SynchronizeContext));
        let error = lab.pool.release(held).expect_err("the synchronize fails");
        assert!(!error.is_device_lost() && !error.is_out_of_memory());
        assert_eq!((lab.stats().in_use, lab.frees()), (0, 2));
        assert_eq!(lab.stats().free_clean, 0, "nothing was seen to finish");
        let (y, calls) = lab.calls_of(|| lab.hold(&b, 2 * BLOCK));
        y.write(&b);
        assert!(calls.stream_waits + calls.synchronizes() >= 1);
    });
}

/// A machine of two devices that share their memory, each with a pool.
fn two_devices(setup: crate::common::Setup) -> (Lab, Lab) {
    let config = streampool::sim::SimConfig {
        schedule: streampool::sim::Schedule::Lazy,
        ..streampool::sim::SimConfig::default()
    };
    let [zero, one]: [SimDevice; 2] = SimDevice::several(config, 2).try_into().unwrap();
    let one = setup.lab_on(one, |builder| builder.limit(BLOCK));
    let zero = setup.lab_on(zero, |builder| builder.limit(BLOCK).peers([&one.pool]));
    (zero, one)
}

#[test]
fn h34_a_scope_on_one_device_excuses_nothing_of_another() {
    in_both_kinds(|setup| {
        let (zero, one) = two_devices(setup);
        let [a, b] = zero.streams();
        let [c, d] = one.streams();
        // A buffer of device 1, freed in a scope of device 0.
        let y = one.hold(&c, BLOCK);
        y.write_long(&c);
        let scope = zero.pool.quiesce().unwrap();
        drop(y);
        assert_eq!(counted(scope.finish()), (0, 0, 0));
        let y = one.hold(&d, BLOCK);
        y.write(&d);
        drop(y);
        // A buffer of device 0 that a stream of device 1 uses.
        let x = zero.hold(&a, BLOCK);
        x.write(&a);
        x.use_on(&c).unwrap();
        zero.device.note_use_on(c.raw(), x.at());
        one.device.launch(c.raw(), x.writes().taking(1 << 30)).unwrap();
        let scope = zero.pool.quiesce().unwrap();
        drop(x);
        assert_eq!(counted(scope.finish()), (1, 0, 1));
        let x = zero.hold(&b, BLOCK);
        x.write(&b);
        drop(x);
        zero.no_hazard();
        // A trim must not take from it what it still uses.
        let x = zero.hold(&b, BLOCK);
        x.write(&b);
        x.use_on(&d).unwrap();
        zero.device.note_use_on(d.raw(), x.at());
        one.device.launch(d.raw(), x.writes().taking(1 << 30)).unwrap();
        assert_eq!(counted(zero.pool.release(x).unwrap()), (1, 0, 1));
        assert_eq!(zero.pool.trim(0).unwrap(), 0);
        one.let_run();
        assert_eq!(zero.pool.trim(0).unwrap(), BLOCK);
    });
}

#[test]
fn h35_what_a_scope_holds_is_served_to_others() {
    in_both_kinds(|setup| {
        for forgets in [false, true] {
            let lab = setup.lab_of(4 * BLOCK);
            let a = lab.stream();
            let held: Vec<Held> = (0..4).map(|_| lab.hold(&a, BLOCK)).collect();
            held.iter().for_each(|own| own.write(&a));
            let (freed, wait_freed) = mpsc::channel();
            let (wake, sleep) = mpsc::channel::<()>();
            thread::scope(|scope| {
                let lab = &lab;
                scope.spawn(move || {
                    let scope = lab.pool.quiesce().unwrap();
                    drop(held);
                    if forgets {
                        std::mem::forget(scope);
                        freed.send(()).unwrap();
                    } else {
                        freed.send(()).unwrap();
                        sleep.recv().unwrap();
                        assert_eq!(counted(scope.finish()).0, 4);
                    }
                });
                wait_freed.recv().unwrap();
                let b = lab.stream();
                let one = lab.hold(&b, BLOCK);
                one.write(&b);
                let all = lab.hold(&b, 3 * BLOCK);
                all.write(&b);
                let _ = wake.send(());
            });
        }
    });
}

#[test]
fn h36_a_failing_synchronize_opens_no_scope_and_cleans_nothing() {
    in_both_kinds(|setup| {
        for kind in [ErrorKind::Other, ErrorKind::OutOfMemory] {
            let lab = setup.lab_of(BLOCK);
            let b = lab.stream();
            let r = lab.pool.stream_record_on_free(lab.device.create_stream()).unwrap();
            let x = lab.hold(&r, BLOCK);
            x.write_long(&r);
            drop(x);
            lab.device.inject(FaultPlan::new(Call::SynchronizeContext).kind(kind));
            lab.pool.quiesce().expect_err("the synchronize fails");
            assert_eq!((lab.stats().free_clean, lab.stats().free_pending), (0, BLOCK));
            // No scope is open: a free is recorded.
            let x = lab.hold(&r, BLOCK);
            let ((), calls) = lab.calls_of(|| drop(x));
            assert_eq!(calls.event_records, 1);
            lab.hold(&b, BLOCK).write(&b);
        }
    });
}

#[test]
fn h36_one_stream_of_many_fails() {
    in_both_kinds(|setup| {
        for nth in 1..=3_u64 {
            let options = |builder: streampool::PoolBuilder<_>| {
                builder.limit(3 * BLOCK).foreign_captures(true)
            };
            let lab = setup.lab_with(options);
            let streams: [Stream; 3] = lab.streams();
            for stream in &streams {
                lab.hold(stream, BLOCK).write_long(stream);
            }
            lab.device.inject(FaultPlan::new(Call::SynchronizeEvent).nth(nth));
            lab.pool.quiesce().expect_err("a synchronize fails");
            assert_eq!(lab.device.counts().context_synchronizes, 0);
            // Only those that were seen to finish may be taken with no wait.
            let taker = lab.stream();
            let (all, calls) = lab.calls_of(|| [(); 3].map(|()| lab.hold(&taker, BLOCK)));
            all.iter().for_each(|own| own.write(&taker));
            assert_eq!(calls.stream_waits, 3 - (nth - 1), "the {nth}th failed");
        }
    });
}

#[test]
fn h36_a_sticky_error_comes_back_and_nothing_is_handed_out() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(BLOCK);
        let [a, b] = lab.streams();
        lab.hold(&a, BLOCK).write(&a);
        lab.device.inject(FaultPlan::new(Call::SynchronizeContext).kind(ErrorKind::DeviceLost));
        assert!(lab.pool.quiesce().expect_err("the device is lost").is_device_lost());
        assert!(lab.try_hold(&b, BLOCK).unwrap_err().is_device_lost());
        assert!(lab.try_hold(&a, BLOCK).unwrap_err().is_device_lost());
        assert!(lab.pool.quiesce().expect_err("the device is lost").is_device_lost());
    });
}

#[test]
fn h37_what_was_freed_before_needs_no_wait_on_any_stream() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(4 * BLOCK);
        let [a, b, c] = lab.streams();
        let held: Vec<Held> = (0..4).map(|n| lab.hold([&a, &b][n % 2], BLOCK)).collect();
        held[0].write(&a);
        held[1].write(&b);
        held[2].share(&b);
        held[2].read_long(&b);
        drop(held);
        let scope = lab.pool.quiesce().unwrap();
        drop(scope);
        let (all, calls) = lab.calls_of(|| {
            let [x, y, z] = [&a, &b, &c].map(|stream| lab.hold(stream, BLOCK));
            [x, y, z]
        });
        let (whole, whole_calls) = lab.calls_of(|| lab.hold(&c, BLOCK));
        for calls in [calls, whole_calls] {
            assert_eq!(calls.stream_waits + calls.event_records + calls.event_queries, 0);
            assert_eq!(calls.synchronizes() + calls.mapping_calls(), 0);
        }
        all.iter().zip([&a, &b, &c]).for_each(|(own, stream)| own.write(stream));
        whole.write(&c);
    });
}

#[test]
fn h37_so_is_what_was_freed_inside_with_nothing_launched() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(16 * BLOCK);
        let streams: [Stream; 4] = lab.streams();
        let held: Vec<Held> = (0..16).map(|n| lab.hold(&streams[n % 4], BLOCK)).collect();
        held.iter().enumerate().for_each(|(n, own)| own.write_long(&streams[n % 4]));
        let (report, calls) = lab.calls_of(|| lab.pool.release(held).unwrap());
        assert_eq!(counted(report), (16, 16, 0));
        assert_eq!((calls.context_synchronizes, calls.event_synchronizes), (1, 0));
        let records = (calls.context_records, calls.event_records, calls.event_queries);
        assert_eq!(records, (1, 0, 1), "one for all");
        let taker = lab.stream();
        let (all, calls) =
            lab.calls_of(|| (0..16).map(|_| lab.hold(&taker, BLOCK)).collect::<Vec<_>>());
        assert_eq!((calls.stream_waits, calls.event_records, calls.mapping_calls()), (0, 0, 0));
        all.iter().for_each(|own| own.write(&taker));
    });
}

#[test]
fn h38_an_empty_scope_is_one_synchronize() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let (report, calls) = lab.calls_of(|| lab.pool.quiesce().unwrap().finish());
        assert_eq!(counted(report), (0, 0, 0));
        assert_eq!(calls, {
            let mut one = CallCounts::default();
            one.context_synchronizes = 1;
            one
        });
        let [a, _b] = lab.streams();
        lab.hold(&a, BLOCK).write(&a);
        let (report, calls) = lab.calls_of(|| lab.pool.quiesce().unwrap().finish());
        assert_eq!(counted(report), (0, 0, 0));
        // Whether a stream captures must be asked of each before the context is synchronized.
        assert_eq!((calls.driver_calls(), calls.capture_queries), (3, 2));
        assert_eq!(calls.context_synchronizes, 1);
    });
}

/// Whether a type is `Send`, decided by which of two implementations the compiler can name.
macro_rules! is_send {
    ($type:ty) => {{
        #[allow(dead_code, reason = "not chosen for a type that is `Send`")]
        trait Fallback {
            const IS: bool = false;
        }
        impl<T> Fallback for T {}
        struct Probe<T>(std::marker::PhantomData<T>);
        #[allow(dead_code, reason = "chosen only for a type that is `Send`")]
        impl<T: Send> Probe<T> {
            const IS: bool = true;
        }
        <Probe<$type>>::IS
    }};
}

#[test]
fn h39_a_scope_belongs_to_its_thread() {
    // The twins that may be sent show that the probe can tell.
    const { assert!(is_send!(streampool::StreamPool<SimDevice>)) };
    const { assert!(is_send!(streampool::Buffer<SimDevice>)) };
    const { assert!(!is_send!(QuiescentScope<SimDevice>)) };
    const { assert!(!is_send!(&QuiescentScope<SimDevice>)) };

    // That a future which holds it across an await cannot be sent either is a documentation test of
    // `QuiescentScope`, beside its twin that can.
}

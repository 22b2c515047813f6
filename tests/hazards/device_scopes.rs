//! S4: scopes on several devices. Every test runs on machines with one, two and eight devices.

use streampool::sim::{Call, FaultPlan, SimDevice};
use streampool::{QuiescentReport, StreamPool};

use crate::common::{BLOCK, Held, Lab, Stream};
use crate::devices::{Machine, on_every_machine};

fn counted(report: &QuiescentReport) -> (u64, u64, u64) {
    (report.freed, report.clean, report.deferred)
}

#[test]
fn s4_h34_at_a_scopes_end_what_any_device_still_writes_is_deferred() {
    on_every_machine(|setup, number| {
        let machine = Machine::timed(setup, number, |builder| builder.limit(BLOCK));
        let home = machine.home();
        let [a, b] = home.streams();
        let far = machine.far_streams();
        // Launched before the scopes: quiesce_all waits for every device.
        let x = machine.written_by(&a, &far);
        let scopes = StreamPool::quiesce_all(&machine.pools()).unwrap();
        drop(x);
        let reports = scopes.finish();
        assert_eq!(counted(&reports[0]), (1, 1, 0));
        assert!(reports[1..].iter().all(|report| counted(report) == (0, 0, 0)));
        let (y, calls) = home.calls_of(|| home.hold(&b, BLOCK));
        assert_eq!(calls.driver_calls() - calls.capture_queries, 0, "it was clean");
        drop(y);
        // Launched inside.
        let scopes = StreamPool::quiesce_all(&machine.pools()).unwrap();
        drop(machine.written_by(&a, &far));
        assert_eq!(counted(&scopes.finish()[0]), (1, 0, 1));
        home.hold(&b, BLOCK).write(&b);
        // A scope of the first device alone has waited for none of the others.
        let x = machine.written_by(&a, &far);
        let scope = home.pool.quiesce().unwrap();
        drop(x);
        assert_eq!(scope.finish().deferred, u64::from(number > 1));
        home.hold(&b, BLOCK).write(&b);
    });
}

#[test]
fn s4_h34_what_was_freed_before_is_clean_once_every_device_was_waited_for() {
    on_every_machine(|setup, number| {
        let machine = Machine::of_one_block(setup, number);
        let home = machine.home();
        let a = home.stream();
        drop(machine.written_by(&a, &machine.far_streams()));
        assert_eq!(home.stats().free_clean, 0);
        let scopes = StreamPool::quiesce_all(&machine.pools()).unwrap();
        // Asked at the end of the scopes that were open: no other call has settled it.
        assert!(scopes.finish().iter().all(|report| counted(report) == (0, 0, 0)));
        assert_eq!(home.pool.trim(0).unwrap(), BLOCK);
    });
}

#[test]
fn s4_h34_a_scope_of_one_device_excuses_no_free_of_another() {
    on_every_machine(|setup, number| {
        let machine = Machine::timed(setup, number, |builder| builder);
        let recording: Vec<Stream> = (machine.labs.iter())
            .map(|lab| lab.pool.stream_record_on_free(lab.device.create_stream()).unwrap())
            .collect();
        for open in 0..number {
            let held: Vec<Held> =
                machine.labs.iter().zip(&recording).map(|(lab, s)| lab.hold(s, BLOCK)).collect();
            let scope = machine.labs[open].pool.quiesce().unwrap();
            for ((at, lab), buffer) in machine.labs.iter().enumerate().zip(held) {
                let ((), calls) = lab.calls_of(|| drop(buffer));
                assert_eq!(calls.event_records, u64::from(at != open), "{at}, scope of {open}");
            }
            assert_eq!(counted(&scope.finish()), (1, 1, 0));
        }
    });
}

#[test]
fn s4_h36_when_one_device_cannot_be_waited_for_no_scope_is_open() {
    on_every_machine(|setup, number| {
        for failing in 0..number {
            let machine = Machine::new(setup, number, |builder| builder);
            let recording: Vec<Stream> = (machine.labs.iter())
                .map(|lab| lab.pool.stream_record_on_free(lab.device.create_stream()).unwrap())
                .collect();
            let held: Vec<Held> =
                machine.labs.iter().zip(&recording).map(|(lab, s)| lab.hold(s, BLOCK)).collect();
            held.iter().zip(&recording).for_each(|(own, stream)| own.write_long(stream));
            machine.labs[failing].device.inject(FaultPlan::new(Call::SynchronizeContext));
            StreamPool::quiesce_all(&machine.pools()).expect_err("one of them fails");
            for (at, (lab, buffer)) in machine.labs.iter().zip(held).enumerate() {
                let ((), calls) = lab.calls_of(|| drop(buffer));
                assert_eq!(calls.event_records, 1, "a scope is open on {at}, {failing} failed");
            }
            // The others were seen to finish what they had; the one that failed was not.
            let stats = machine.labs[failing].stats();
            assert_eq!((stats.free_clean, stats.free_pending), (0, BLOCK), "{stats:?}");
            // And they can be opened, and count from nothing.
            let reports = StreamPool::quiesce_all(&machine.pools()).unwrap().finish();
            assert!(reports.iter().all(|report| counted(report) == (0, 0, 0)), "{reports:?}");
        }
    });
}

#[test]
fn s4_h33_scopes_of_several_devices_nest_and_end_by_a_drop_or_a_panic() {
    on_every_machine(|setup, number| {
        let machine = Machine::timed(setup, number, |builder| builder);
        let streams: Vec<Stream> = machine.labs.iter().map(Lab::stream).collect();
        let hold_all = || -> Vec<Held> {
            machine.labs.iter().zip(&streams).map(|(lab, s)| lab.hold(s, BLOCK)).collect()
        };
        let (before, inside) = (hold_all(), hold_all());
        let outer = StreamPool::quiesce_all(&machine.pools()).unwrap();
        let inner = StreamPool::quiesce_all(&machine.pools()).unwrap();
        drop(inside);
        // A free counts for the innermost scope of its pool, also after a scope of all was dropped.
        drop(inner);
        drop(before);
        assert!(outer.finish().iter().all(|report| counted(report) == (1, 1, 0)));
        let held = hold_all();
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _scopes = StreamPool::quiesce_all(&machine.pools()).unwrap();
            let _held = held;
            std::panic::resume_unwind(Box::new("inside the scopes"));
        }));
        unwound.unwrap_err();
        // None is open any more: a stream that records at each free does so.
        for lab in &machine.labs {
            let raw = lab.device.create_stream();
            let buffer = lab.hold(&lab.pool.stream_record_on_free(raw).unwrap(), BLOCK);
            let ((), calls) = lab.calls_of(|| drop(buffer));
            assert_eq!(calls.event_records, 1, "a panic has left a scope open");
        }
        // The same pool named twice has two scopes, one within the other.
        let x = machine.home().hold(&streams[0], BLOCK);
        let pool = &machine.home().pool;
        let twice = StreamPool::quiesce_all(&[pool, pool]).unwrap();
        drop(x);
        let reports = twice.finish();
        assert_eq!([counted(&reports[0]), counted(&reports[1])], [(0, 0, 0), (1, 1, 0)]);
        assert!(StreamPool::<SimDevice>::quiesce_all(&[]).unwrap().finish().is_empty());
    });
}

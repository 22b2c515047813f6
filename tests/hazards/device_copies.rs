//! S4: copies of buffers to other devices, on machines with one, two and eight devices.

use streampool::backend::ErrorKind;
use streampool::sim::{Call, CallFilter, CaptureMode, FaultPlan, Kernel, Schedule, SimConfig};
use streampool::sim::{HazardKind, SimDevice};

use crate::common::{BLOCK, Held, LONG, Lab, Stream, launch};
use crate::devices::{Machine, on_every_machine};

/// A copy whose owner tells the oracle all that it does.
fn copy(to: &Lab, x: &Held, stream: &Stream) -> Held {
    let copy = x.copy_to(stream).expect("it can be copied");
    assert_eq!(copy.len(), x.len());
    Held::of(&to.device, stream, copy)
}

/// That the copy holds what was written with this stamp, when all has finished.
#[track_caller]
fn holds(lab: &Lab, copy: &Held, stream: &Stream, stamp: u64) {
    launch(&lab.device, stream.raw(), Kernel::new().expects(copy.at(), copy.size(), stamp));
    stream.synchronize().unwrap();
    lab.no_hazard();
}

#[test]
fn s4_a_copy_comes_after_all_that_the_originals_streams_have_queued() {
    on_every_machine(|setup, number| {
        let machine = Machine::new(setup, number, |builder| builder.limit(4 * BLOCK));
        let home = machine.home();
        let a = home.stream();
        let far = machine.far_streams();
        for ((lab, stream), stamp) in machine.others().iter().zip(&far).zip(10..) {
            let x = home.hold(&a, BLOCK);
            x.launch(&a, x.writes().stamp(1).taking(LONG));
            // A named stream of another device writes last.
            let writer = &far[(stamp as usize + 1) % far.len()];
            x.share(writer);
            let other = &machine.others()[(stamp as usize + 1) % far.len()];
            launch(&other.device, writer.raw(), x.writes().stamp(stamp).taking(LONG));
            let y = copy(lab, &x, stream);
            drop(x);
            holds(lab, &y, stream, stamp);
            assert_eq!(lab.stats().calls.transfers, 1);
        }
    });
}

#[test]
fn s4_the_originals_next_owner_comes_after_the_copy() {
    on_every_machine(|setup, number| {
        let machine = Machine::new(setup, number, |builder| builder.limit(2 * BLOCK));
        let home = machine.home();
        let [a, b] = home.streams();
        // On one device the copy takes the other block of its pool.
        for (lab, stream) in machine.others().iter().zip(machine.far_streams()) {
            let x = home.hold(&a, BLOCK);
            x.launch(&a, x.writes().stamp(1));
            // The copy is late, because its stream is.
            launch(&lab.device, stream.raw(), Kernel::new().taking(LONG));
            let y = copy(lab, &x, &stream);
            drop(x);
            let z = home.hold(&b, BLOCK);
            z.launch(&b, z.writes().stamp(2));
            holds(lab, &y, &stream, 1);
            drop(y);
            drop(z);
            assert!(home.pool.trim(0).is_ok());
        }
    });
}

#[test]
fn s4_contents_go_round_all_devices_with_no_access_and_no_synchronize() {
    on_every_machine(|setup, number| {
        let devices = SimDevice::several(SimConfig::default(), number);
        let labs: Vec<Lab> = (devices.iter())
            .map(|device| setup.lab_on(device.clone(), |builder| builder.limit(2 * BLOCK)))
            .collect();
        let streams: Vec<[Stream; 2]> = labs.iter().map(Lab::streams).collect();
        let mut x = labs[0].hold(&streams[0][0], BLOCK);
        x.launch(&streams[0][0], x.writes().stamp(7));
        for step in 1..=2 * number {
            let at = step % number;
            let stream = &streams[at][step / number % 2];
            x = copy(&labs[at], &x, stream);
        }
        let synchronizes: u64 = labs.iter().map(|lab| lab.device.counts().synchronizes()).sum();
        assert_eq!(synchronizes, 0);
        let copies: u64 = labs.iter().map(|lab| lab.device.counts().copies).sum();
        assert_eq!(copies, 2 * number as u64);
        holds(&labs[0], &x, &streams[0][0].clone(), 7);
    });
}

#[test]
fn s4_a_copy_to_a_stream_of_the_same_pool_and_of_nothing() {
    on_every_machine(|setup, number| {
        let machine = Machine::new(setup, number, |builder| builder);
        let home = machine.home();
        let [a, b] = home.streams();
        let x = home.hold(&a, BLOCK - 300);
        x.launch(&a, x.writes().stamp(3));
        let (y, calls) = home.calls_of(|| x.copy_to(&a).unwrap());
        assert_eq!((calls.event_records, calls.stream_waits, calls.copies), (0, 0, 1));
        assert_eq!((y.len(), y.capacity()), (x.len(), x.capacity()));
        let z = copy(home, &x, &b);
        drop((x, y));
        // All of the block, not only what was asked for.
        launch(&home.device, b.raw(), Kernel::new().expects(z.at(), z.size(), 3));
        for stream in machine.far_streams() {
            let (empty, calls) = home.calls_of(|| a.alloc(0).unwrap().copy_to(&stream).unwrap());
            assert!(empty.is_empty() && calls.driver_calls() == 0);
        }
    });
}

#[test]
fn s4_a_copy_that_fails_leaves_all_as_it_was_or_more_careful() {
    on_every_machine(|setup, number| {
        for kind in [ErrorKind::Other, ErrorKind::OutOfMemory, ErrorKind::Capture] {
            for nth in 1..12 {
                let machine = Machine::new(setup, number, |builder| builder.limit(4 * BLOCK));
                let home = machine.home();
                let a = home.stream();
                let last = machine.labs.last().unwrap();
                let far = last.stream();
                let x = home.hold(&a, BLOCK);
                x.launch(&a, x.writes().stamp(5).taking(LONG));
                for lab in &machine.labs {
                    let filter = CallFilter::only(Call::Copy)
                        .or(Call::Record)
                        .or(Call::Wait)
                        .or(Call::CreateEvent)
                        .or(Call::IsCapturing)
                        .or(Call::CreateGranule)
                        .or(Call::AllocSegment);
                    lab.device.inject(FaultPlan::new(filter).nth(nth).kind(kind));
                }
                let tried = x.copy_to(&far);
                machine.labs.iter().for_each(|lab| lab.device.clear_faults());
                let held = tried.is_ok().then(|| Held::of(&last.device, &far, tried.unwrap()));
                let again = copy(last, &x, &far);
                drop((x, held));
                holds(last, &again, &far, 5);
                drop(again);
                for lab in &machine.labs {
                    lab.pool.synchronize().unwrap();
                    let stream = lab.stream();
                    lab.hold(&stream, 4 * BLOCK).write(&stream);
                }
            }
        }
    });
}

#[test]
fn s4_h51_a_copy_is_not_drawn_into_a_capture() {
    on_every_machine(|setup, number| {
        let machine = Machine::new(setup, number, |builder| builder);
        let home = machine.home();
        let a = home.stream();
        let last = machine.labs.last().unwrap();
        let far = last.stream();
        let x = home.hold(&a, BLOCK);
        x.launch(&a, x.writes().stamp(1));
        // A hit looks at nothing: the copy must.
        drop(copy(last, &x, &far));
        for (lab, stream) in [(last, &far), (home, &a)] {
            lab.device.begin_capture(stream.raw(), CaptureMode::Global).unwrap();
            assert!(x.copy_to(&far).unwrap_err().is_capture());
            let graph = lab.device.end_capture(stream.raw()).expect("the capture is whole");
            assert!(graph.is_empty());
        }
        let y = copy(last, &x, &far);
        holds(last, &y, &far, 1);
    });
}

#[test]
fn s4_pools_close_in_any_order_after_copies() {
    on_every_machine(|setup, number| {
        for home_first in [true, false] {
            let machine = Machine::new(setup, number, |builder| builder);
            let a = machine.home().stream();
            let x = machine.home().hold(&a, BLOCK);
            x.launch(&a, x.writes().taking(LONG));
            let copies: Vec<Held> = (machine.others().iter().zip(machine.far_streams()))
                .map(|(lab, stream)| copy(lab, &x, &stream))
                .collect();
            drop((x, copies));
            let order: Vec<&Lab> = match home_first {
                true => machine.labs.iter().collect(),
                false => machine.labs.iter().rev().collect(),
            };
            for lab in order {
                lab.pool.close().unwrap();
                assert_eq!(lab.device.memory_in_use(), 0);
            }
        }
    });
}

/// What a program may not do is told as its own fault: the oracle sees the copies of pools as well.
#[test]
fn a_write_to_the_original_that_nothing_orders_after_the_copy_is_the_programs() {
    let config = SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() };
    let [zero, one] = SimDevice::several(config, 2).try_into().unwrap();
    let setup = crate::common::Setup { growth: streampool::Growth::Virtual };
    let (near, far) = (setup.lab_on(zero, |builder| builder), setup.lab_on(one, |builder| builder));
    let (a, b) = (near.stream(), far.stream());
    let x = near.hold(&a, BLOCK);
    x.write(&a);
    let y = copy(&far, &x, &b);
    x.write(&a);
    let kinds: Vec<_> = near.device.take_hazards().iter().map(|hazard| hazard.kind()).collect();
    assert_eq!(kinds, [HazardKind::Race]);
    drop((x, y));
}

//! S4: what stays of a device that is lost, on machines with one, two and eight devices.

use std::thread;
use std::time::Duration;

use streampool::backend::Backend;

use crate::common::BLOCK;
use crate::device_errors::{goes_on, is_over, lose, near_and_far, written_late};
use crate::devices::{Machine, on_every_machine};

#[test]
fn s4_h58_what_a_lost_device_has_used_is_told_of_as_long_as_it_is_waited_for() {
    on_every_machine(|setup, number| {
        for marked in [false, true] {
            let mut machine = Machine::new(setup, number, |builder| builder.limit(2 * BLOCK));
            let Some([a, c]) = near_and_far(&machine) else { return };
            let [near, .., far] = &machine.labs[..] else { unreachable!() };
            let b = near.stream();
            drop(written_late(near, &a, (far, &c)));
            if marked {
                c.mark().unwrap();
            }
            lose(&far.device);
            assert!(near.pool.synchronize().unwrap_err().is_device_lost());
            assert!(near.pool.synchronize().unwrap_err().is_device_lost());
            // Its pool goes, and its streams with it.
            drop(c);
            is_over(machine.labs.pop().unwrap());
            let near = machine.home();
            for _ in 0..3 {
                assert!(near.pool.synchronize().unwrap_err().is_device_lost());
            }
            // Who can do without that block hears nothing of it.
            goes_on(near);
            let refused = near.try_hold(&b, 2 * BLOCK).unwrap_err();
            assert!(refused.is_out_of_memory(), "{refused}");
            assert_eq!(near.stats().reserved, BLOCK);
            assert!(near.pool.close().unwrap_err().is_device_lost());
            assert!(near.pool.close().unwrap_err().is_device_lost());
        }
    });
}

#[test]
fn s4_h58_a_pool_that_is_gone_and_waits_for_a_lost_device_alone_rests() {
    on_every_machine(|setup, number| {
        for with_stream in [false, true] {
            let mut machine = Machine::new(setup, number, |builder| builder.limit(2 * BLOCK));
            let Some([a, c]) = near_and_far(&machine) else { return };
            let [near, .., far] = &machine.labs[..] else { unreachable!() };
            let clean = near.hold(&a, BLOCK);
            drop(written_late(near, &a, (far, &c)));
            drop(clean);
            let device = near.device.clone();
            lose(&far.device);
            a.synchronize().unwrap();
            drop(a);
            drop(machine.labs.swap_remove(0).unwatched());
            let c = with_stream.then_some(c);
            if !with_stream {
                // It has taken the place of the first.
                is_over(machine.labs.swap_remove(0));
            }
            let another = setup.lab();
            let calls = || {
                let far =
                    machine.labs.first().filter(|_| with_stream).map(|lab| lab.device.counts());
                (device.counts().driver_calls(), far.map(|counts| counts.driver_calls()))
            };
            let poll = || {
                // Its own streams finish.
                device.run();
                another.pool.synchronize().unwrap();
                thread::sleep(Duration::from_millis(1));
            };
            // Other tests' threads may have it in hand, and their pools may be looked after first.
            let rests = (0..50).any(|_| {
                let before = calls();
                (0..20).for_each(|_| poll());
                calls() == before
            });
            assert!(rests, "a pool that can give nothing back is asked again and again");
            // What could go back has gone.
            assert_eq!((device.memory_in_use(), device.live_streams()), (BLOCK, 0));
            drop(c);
            machine.labs.drain(..).for_each(|lab| drop(lab.unwatched()));
        }
    });
}

#[test]
fn s4_h58_a_pool_grows_though_a_device_is_lost_that_may_use_its_memory() {
    on_every_machine(|setup, number| {
        for known in [false, true] {
            let mut machine = Machine::new(setup, number, |builder| builder.limit(4 * BLOCK));
            let Some([a, c]) = near_and_far(&machine) else { return };
            let [near, .., far] = &machine.labs[..] else { unreachable!() };
            let x = near.hold(&a, BLOCK);
            lose(&far.device);
            if known {
                assert!(c.mark().unwrap_err().is_device_lost());
            }
            let y = near.try_hold(&a, BLOCK).expect("a lost device keeps another from its memory");
            y.write(&a);
            // Those that are well may use it.
            if let [_, other, _, ..] = &machine.labs[..] {
                let d = other.stream();
                y.share(&d);
                crate::common::launch(&other.device, d.raw(), y.writes());
            }
            goes_on(near);
            drop((x, y, a, c));
            drop(machine.labs.pop().unwrap().unwatched());
        }
    });
}

#[test]
fn s4_h58_a_pool_that_is_gone_waits_for_those_that_are_well() {
    on_every_machine(|setup, number| {
        if number < 3 {
            return;
        }
        let mut machine = Machine::new(setup, number, |builder| builder);
        let (a, mut far) = (machine.home().stream(), machine.far_streams());
        let x = machine.written_by(&a, &far);
        a.synchronize().unwrap();
        drop((x, a));
        // What it did is seen to finish before its device is lost.
        let c = far.pop().unwrap();
        c.synchronize().unwrap();
        lose(&machine.labs.last().unwrap().device);
        assert!(c.mark().unwrap_err().is_device_lost());
        let device = machine.home().device.clone();
        drop(machine.labs.remove(0).unwatched());
        let another = setup.lab();
        let gone = || {
            // Its own streams finish.
            device.synchronize_context().unwrap();
            (0..200).any(|_| {
                another.pool.synchronize().unwrap();
                thread::sleep(Duration::from_millis(1));
                device.memory_in_use() == 0
            })
        };
        // The others have not finished yet.
        assert!(!gone());
        far.iter().for_each(|stream| stream.synchronize().unwrap());
        assert!(gone(), "memory that nothing uses any more is kept");
        drop((far, c));
        drop(machine.labs.pop().unwrap().unwatched());
    });
}

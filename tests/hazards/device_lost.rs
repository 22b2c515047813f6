//! S4: what stays of a device that is lost, on machines with one, two and eight devices.

use std::thread;
use std::time::Duration;

use crate::common::BLOCK;
use crate::device_errors::{goes_on, is_over, lose, near_and_far, written_late};
use crate::devices::{Machine, on_every_machine};

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

//! S4: what fails on one of several devices, and what is just leaving there, on machines with one, two and
//! eight devices.

use std::sync::{Arc, Mutex};
use std::thread;

use streampool::backend::{Backend, ErrorKind};
use streampool::sim::{Call, FaultPlan, Pause, PausePoint, SimDevice};
use streampool::{DevicePools, StreamPool};

use crate::common::{BLOCK, Held, LONG, Lab, Stream, launch};
use crate::devices::{Machine, on_every_machine};

/// The device is lost, and nobody has been told yet.
pub(crate) fn lose(device: &SimDevice) {
    device.inject(FaultPlan::new(Call::MemoryInfo).kind(ErrorKind::DeviceLost));
    device.memory_info().expect_err("it is lost");
}

/// Runs `act` on a thread of its own, and `between` while it is held before its first such call to a device.
pub(crate) fn held_at<R: Send>(
    (device, call): (&SimDevice, Call),
    act: impl FnOnce() -> R + Send,
    between: impl FnOnce(),
) -> R {
    thread::scope(|scope| {
        let pause = device.pause(call, PausePoint::Before);
        let acting = scope.spawn(act);
        pause.wait_reached();
        between();
        pause.resume();
        acting.join().unwrap()
    })
}

/// The pool serves, and nobody has told it of a lost device.
pub(crate) fn goes_on(lab: &Lab) {
    let stream = lab.stream();
    stream.mark().unwrap();
    drop(lab.pool.quiesce().unwrap());
    lab.hold(&stream, BLOCK).write(&stream);
    lab.pool.trim(0).unwrap();
}

/// The pool is closed by the loss of its device.
pub(crate) fn is_over(lab: Lab) {
    assert!(lab.pool.trim(0).unwrap_err().is_device_lost());
    drop(lab.unwatched());
}

/// A machine of several devices whose first pool may have two blocks, with a stream on the first device and
/// one on the last.
pub(crate) fn near_and_far(machine: &Machine) -> Option<[Stream; 2]> {
    let [near, .., far] = &machine.labs[..] else { return None };
    Some([near.stream(), far.stream()])
}

#[test]
fn s4_h58_a_wait_on_a_device_that_is_lost_closes_no_other() {
    on_every_machine(|setup, number| {
        let mut machine = Machine::new(setup, number, |builder| builder.limit(2 * BLOCK));
        let Some([a, c]) = near_and_far(&machine) else { return };
        let [near, .., far] = &machine.labs[..] else { unreachable!() };
        let x = near.hold(&a, BLOCK);
        x.write(&a);
        let at_record = (&near.device, Call::Record);
        let named = held_at(at_record, || x.use_on(&c), || lose(&far.device));
        assert!(named.unwrap_err().is_device_lost());
        drop(x);
        goes_on(near);
        drop((a, c));
        is_over(machine.labs.pop().unwrap());
    });
}

#[test]
fn s4_h58_a_steal_whose_own_device_is_lost_closes_no_other() {
    on_every_machine(|setup, number| {
        let mut machine = Machine::of_one_block(setup, number);
        let Some([a, c]) = near_and_far(&machine) else { return };
        let [near, .., far] = &machine.labs[..] else { unreachable!() };
        let b = near.stream();
        drop(written_late(near, &a, (far, &c)));
        let stolen = held_at(
            (&far.device, Call::Wait),
            || near.try_hold(&b, BLOCK).map(drop),
            || lose(&near.device),
        );
        assert!(stolen.unwrap_err().is_device_lost());
        goes_on(far);
        drop((a, b, c));
        is_over(machine.labs.swap_remove(0));
    });
}

#[test]
fn s4_h58_what_a_lost_device_has_used_is_neither_lost_nor_handed_out() {
    on_every_machine(|setup, number| {
        let mut machine = Machine::new(setup, number, |builder| builder.limit(2 * BLOCK));
        let Some([a, c]) = near_and_far(&machine) else { return };
        let [near, .., far] = &machine.labs[..] else { unreachable!() };
        let b = near.stream();
        let kept = near.hold(&a, BLOCK);
        drop(written_late(near, &a, (far, &c)));
        let stolen = held_at(
            (&far.device, Call::Wait),
            || near.try_hold(&b, BLOCK).map(drop),
            || lose(&far.device),
        );
        assert!(stolen.unwrap_err().is_out_of_memory());
        drop(kept);
        assert!(near.pool.synchronize().unwrap_err().is_device_lost());
        // Nobody can say any more when it has finished there. The rest of the pool is as ever.
        near.pool.trim(u64::MAX).unwrap();
        let stats = near.stats();
        assert_eq!((stats.free_clean, stats.free_pending + stats.quarantined), (BLOCK, BLOCK));
        goes_on(near);
        assert!(near.pool.synchronize().unwrap_err().is_device_lost());
        assert_eq!(near.pool.trim(0).unwrap(), BLOCK);
        assert_eq!(near.stats().reserved, BLOCK);
        drop((a, b, c));
        is_over(machine.labs.pop().unwrap());
    });
}

#[test]
fn s4_h58_a_copy_from_a_device_that_is_lost_closes_no_other() {
    on_every_machine(|setup, number| {
        let mut machine = Machine::new(setup, number, |builder| builder.limit(2 * BLOCK));
        let Some([a, c]) = near_and_far(&machine) else { return };
        let [near, .., far] = &machine.labs[..] else { unreachable!() };
        let x = near.hold(&a, BLOCK);
        let at_copy = (&far.device, Call::Copy);
        let copied = held_at(at_copy, || x.copy_to(&c).map(drop), || lose(&near.device));
        assert!(copied.unwrap_err().is_device_lost());
        drop(x);
        goes_on(far);
        drop((a, c));
        is_over(machine.labs.swap_remove(0));
    });
}

#[test]
fn s4_h58_a_peer_that_is_lost_keeps_no_device_from_having_a_pool() {
    on_every_machine(|setup, number| {
        let devices = SimDevice::several(1, number);
        let growth = setup.growth;
        let pools = DevicePools::configured(devices.clone(), move |builder| builder.growth(growth));
        let lost = &devices[number - 1];
        lose(lost);
        let refused = StreamPool::builder(devices[0].clone()).peer_devices([lost.clone()]).build();
        assert_eq!(refused.is_err_and(|error| error.is_device_lost()), number > 1);
        if number > 1 {
            let pool = pools.pool(0).unwrap();
            let stream = pool.stream(devices[0].create_stream()).unwrap();
            drop(stream.alloc(BLOCK as usize).unwrap());
        }
        assert!(pools.pool(number - 1).is_ok_and(|pool| pool.reserve(1).is_err()) || number > 1);
    });
}

/// A buffer that home has written, and then a stream of another device, for a long time.
pub(crate) fn written_late(home: &Lab, a: &Stream, (far, c): (&Lab, &Stream)) -> Held {
    let x = home.hold(a, BLOCK);
    x.write(a);
    x.share(c);
    launch(&far.device, c.raw(), x.writes().taking(LONG));
    x
}

/// How a pool that can do nothing by itself about a block is asked for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Synchronize,
    Trim,
    Miss,
    Close,
    Abandon,
}

#[test]
fn s4_m3_what_is_quarantined_for_a_stream_of_another_pool_that_has_left_comes_back() {
    use Asked::{Abandon, Close, Miss, Synchronize, Trim};
    on_every_machine(|setup, number| {
        for asked in [Synchronize, Trim, Miss, Close, Abandon] {
            let mut machine = Machine::of_one_block(setup, number);
            let [a, b] = machine.home().streams();
            let far = machine.labs.last().unwrap();
            let c = far.stream();
            drop(written_late(machine.home(), &a, (far, &c)));
            c.retire().unwrap();
            let home = machine.labs.remove(0);
            let far = machine.labs.last().unwrap_or(&home);
            a.synchronize().unwrap();
            far.device.inject(FaultPlan::new(Call::Query));
            assert_eq!(home.pool.trim(0).unwrap(), 0);
            assert_eq!(home.stats().quarantined, BLOCK, "{:?}", home.stats());
            if asked != Synchronize {
                home.let_run();
            }
            let device = home.device.clone();
            match asked {
                Synchronize => home.pool.synchronize().unwrap(),
                Trim => assert_eq!(home.pool.trim(0).unwrap(), BLOCK),
                Miss => drop(home.hold(&b, BLOCK)),
                Close => home.pool.close().unwrap(),
                Abandon => {}
            }
            if asked == Abandon {
                drop((a, b, home.unwatched()));
                // Another test's thread may have it in hand.
                let another = setup.lab();
                let gone = || device.memory_in_use() == 0;
                let done = (0..2000).any(|_| {
                    another.pool.synchronize().unwrap();
                    thread::sleep(std::time::Duration::from_millis(u64::from(!gone())));
                    gone()
                });
                assert!(done, "a pool that is gone keeps memory");
            } else {
                let _ = home.pool.trim(u64::MAX);
                assert_eq!(home.stats().quarantined, 0, "{:?}", home.stats());
            }
        }
    });
}

#[test]
fn s4_h36_a_device_that_fails_keeps_no_other_from_being_waited_for() {
    on_every_machine(|setup, number| {
        let machine = Machine::new(setup, number, |builder| builder.limit(16 * BLOCK));
        let home = machine.home();
        let a = home.stream();
        // Two of each device.
        let far: Vec<(&Lab, Stream)> = machine
            .others()
            .iter()
            .chain(machine.others())
            .map(|lab| (lab, lab.stream()))
            .collect();
        let used = |(lab, c): &(&'_ Lab, Stream)| written_late(home, &a, (lab, c));
        drop(far.iter().map(used).collect::<Vec<Held>>());
        if number == 1 {
            return;
        }
        machine.others()[0].device.inject(FaultPlan::new(Call::SynchronizeEvent));
        home.pool.synchronize().expect_err("one of them fails");
        home.pool.trim(u64::MAX).unwrap();
        let stats = home.stats();
        assert_eq!((stats.free_clean, stats.free_pending), (BLOCK * (far.len() as u64 - 1), BLOCK));
        home.pool.synchronize().unwrap();
        home.pool.trim(u64::MAX).unwrap();
        assert_eq!(home.stats().free_clean, BLOCK * far.len() as u64);
        // Nor does its own device.
        drop(far.iter().map(used).collect::<Vec<Held>>());
        home.device.inject(FaultPlan::new(Call::SynchronizeContext));
        home.pool.synchronize().expect_err("home fails");
        a.synchronize().unwrap();
        home.pool.trim(u64::MAX).unwrap();
        assert_eq!(home.stats().free_clean, BLOCK * far.len() as u64);
    });
}

#[test]
fn s4_h03_a_block_that_every_device_has_finished_with_is_asked_for_and_taken() {
    on_every_machine(|setup, number| {
        let machine = Machine::of_one_block(setup, number);
        let [a, b] = machine.home().streams();
        let far = machine.far_streams();
        drop(machine.written_by(&a, &far));
        far.iter().chain([&a]).for_each(|stream| stream.mark().unwrap());
        machine.home().let_run();
        machine.home().hold(&b, BLOCK).write(&b);
        let stats = machine.home().stats();
        assert_eq!((stats.asked, stats.gathered), (1, 0), "{stats:?}");
    });
}

/// All that a stream of another pool was used for has finished, but the stream is just leaving on another
/// thread, so that nobody else can record on it.
#[test]
fn s4_h55_what_a_leaving_stream_of_another_pool_holds_is_waited_for() {
    on_every_machine(|setup, number| {
        for by_hand in [true, false] {
            let held: Arc<Mutex<Option<Pause>>> = Arc::default();
            let hook = Arc::clone(&held);
            let machine = Machine::timed(setup, number, move |builder| {
                let hook = Arc::clone(&hook);
                builder.limit(BLOCK).late_waits(false).on_pressure(move |_| {
                    hook.lock().unwrap().take().unwrap().resume();
                })
            });
            let (home, far) = (machine.home(), machine.labs.last().unwrap());
            let [a, b] = home.streams();
            let [c, d] = far.streams();
            drop(written_late(home, &a, (far, &c)));
            home.let_run();
            let pause = far.device.pause(Call::Record, PausePoint::Before);
            thread::scope(|scope| {
                let leaving = scope.spawn(|| {
                    if by_hand {
                        c.retire().unwrap();
                    } else {
                        drop(c);
                        // Whatever may block.
                        d.mark().unwrap();
                    }
                });
                pause.wait_reached();
                *held.lock().unwrap() = Some(pause);
                let y = home.try_hold(&b, BLOCK);
                leaving.join().unwrap();
                y.expect("a false out of memory").write(&b);
            });
        }
    });
}

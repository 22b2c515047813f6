//! S4: streams that are leaving their pool while another pool waits for them, on machines with one, two and
//! eight devices.

use std::thread;
use std::time::Duration;

use streampool::sim::{Call, CaptureMode, FaultPlan, Kernel, PausePoint};
use streampool::{Error, Stats};

use crate::common::{BLOCK, Lab, Stream, interleave, launch};
use crate::device_errors::{held_at, near_and_far, written_late};
use crate::devices::{Machine, on_every_machine};

/// What blocks until all that a pool's memory waits for has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocking {
    Synchronize,
    Close,
}

use Blocking::{Close, Synchronize};

impl Blocking {
    fn call(self, lab: &Lab) -> Result<(), Error> {
        match self {
            Synchronize => lab.pool.synchronize(),
            Close => lab.pool.close(),
        }
    }
}

/// Until it is over, or so long that it waits for something.
fn wait_a_while<T>(thread: &thread::ScopedJoinHandle<'_, T>) {
    for _ in 0..100 {
        if thread.is_finished() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Nothing of what is free waits for anything.
fn all_is_clean(lab: &Lab) {
    let _ = lab.pool.trim(u64::MAX);
    let stats = lab.stats();
    assert_eq!((stats.free_pending, stats.quarantined), (0, 0), "{stats:?}");
}

#[test]
fn s4_h36_a_synchronize_ends_though_others_go_on_freeing_what_was_used_elsewhere() {
    /// More than the calls that one synchronize makes.
    const FREES: usize = 40;
    on_every_machine(|setup, number| {
        let machine = Machine::new(setup, number, |builder| builder);
        let Some([a, c]) = near_and_far(&machine) else { return };
        let [near, .., far] = &machine.labs[..] else { unreachable!() };
        drop(written_late(near, &a, (far, &c)));
        let synchronize = || near.pool.synchronize().unwrap();
        let ((), held) = interleave(&far.device, PausePoint::Before, synchronize, |at| {
            if at < FREES {
                drop(written_late(near, &a, (far, &c)));
            }
        });
        assert!((1..FREES / 2).contains(&held), "it was met at {held} calls");
        near.pool.synchronize().unwrap();
        all_is_clean(near);
    });
}

#[test]
fn s4_h36_a_stream_that_is_just_leaving_is_waited_for() {
    on_every_machine(|setup, number| {
        for foreign_captures in [false, true] {
            for (by_hand, blocking) in
                [(true, Synchronize), (false, Synchronize), (true, Close), (false, Close)]
            {
                if number == 1 && blocking == Close {
                    // The leave is a call of this pool's own.
                    continue;
                }
                let machine = Machine::new(setup, number, |builder| {
                    builder.foreign_captures(foreign_captures)
                });
                let (home, far) = (machine.home(), machine.labs.last().unwrap());
                let a = home.stream();
                let [c, d] = far.streams();
                drop(written_late(home, &a, (far, &c)));
                let pause = far.device.pause(Call::Record, PausePoint::Before);
                thread::scope(|scope| {
                    let leaving = scope.spawn(|| leave(c, &d, by_hand));
                    pause.wait_reached();
                    let waiting = scope.spawn(|| blocking.call(home));
                    wait_a_while(&waiting);
                    pause.resume();
                    leaving.join().unwrap();
                    waiting.join().unwrap().unwrap();
                });
                all_is_clean(home);
            }
        }
    });
}

/// Lets a stream leave.
fn leave(c: Stream, d: &Stream, by_hand: bool) {
    if by_hand {
        c.retire().unwrap();
    } else {
        drop(c);
        // Whatever may block.
        d.mark().unwrap();
    }
}

#[test]
fn s4_h53_a_close_says_that_a_stream_captures_which_could_not_leave() {
    on_every_machine(|setup, number| {
        let machine = Machine::new(setup, number, |builder| builder);
        let (home, far) = (machine.home(), machine.labs.last().unwrap());
        let a = home.stream();
        let [c, d] = far.streams();
        let raw = c.raw().clone();
        drop(written_late(home, &a, (far, &c)));
        far.device.begin_capture(&raw, CaptureMode::Relaxed).unwrap();
        leave(c, &d, false);
        home.pool.synchronize().unwrap();
        let error = home.pool.close().unwrap_err();
        assert!(error.is_capture(), "{error}");
        far.device.end_capture(&raw).expect("the capture is whole");
        home.pool.close().unwrap();
        assert_eq!(home.device.memory_in_use(), 0);
    });
}

#[test]
fn h53_a_synchronize_leaves_a_stream_out_that_is_refused_its_leave_since_it_captures() {
    on_every_machine(|setup, number| {
        let machine = Machine::new(setup, number, |builder| builder);
        let home = machine.home();
        let [a, b] = home.streams();
        let raw = a.raw().clone();
        drop(home.hold(&a, BLOCK));
        drop(home.hold(&b, BLOCK));
        home.device.begin_capture(&raw, CaptureMode::Relaxed).unwrap();
        let pause = home.device.pause(Call::IsCapturing, PausePoint::Before);
        thread::scope(|scope| {
            let leaving = scope.spawn(|| a.retire());
            pause.wait_reached();
            let waiting = scope.spawn(|| home.pool.synchronize());
            wait_a_while(&waiting);
            pause.resume();
            assert!(leaving.join().unwrap().unwrap_err().error().is_capture());
            waiting.join().unwrap().unwrap();
        });
        home.device.end_capture(&raw).expect("the capture is whole");
    });
}

#[test]
fn s4_s1_a_stream_that_two_threads_let_go_leaves_once() {
    on_every_machine(|setup, number| {
        let machine = Machine::new(setup, number, |builder| builder);
        let Some([a, c]) = near_and_far(&machine) else { return };
        let [near, .., far] = &machine.labs[..] else { unreachable!() };
        let d = far.stream();
        // A miss and a hit.
        drop(far.hold(&c, BLOCK));
        drop(far.hold(&c, BLOCK));
        drop(written_late(near, &a, (far, &c)));
        let before = far.stats();
        drop(c);
        // The last count that goes is another pool's, for the second time.
        near.pool.synchronize().unwrap();
        let mark = || d.mark().unwrap();
        held_at((&far.device, Call::Record), mark, mark);
        let stats = far.stats();
        let counted = |stats: &Stats| (stats.hits, stats.misses);
        assert_eq!((stats.streams, counted(&stats)), (1, counted(&before)));
        // Nobody counts as leaving for ever: a verdict would wait for that.
        assert!(far.try_hold(&d, u64::MAX / 4).is_err());
        all_is_clean(near);
    });
}

#[test]
fn s4_h59_a_pool_closes_though_another_one_is_letting_its_stream_go() {
    on_every_machine(|setup, number| {
        for fails in [false, true] {
            let machine = Machine::new(setup, number, |builder| builder);
            let Some([a, c]) = near_and_far(&machine) else { return };
            let [near, .., far] = &machine.labs[..] else { unreachable!() };
            let d = far.stream();
            let raw = c.raw().clone();
            drop(far.hold(&c, BLOCK));
            drop(written_late(near, &a, (far, &c)));
            far.device.begin_capture(&raw, CaptureMode::Relaxed).unwrap();
            leave(c, &d, false);
            far.device.end_capture(&raw).expect("the capture is whole");
            drop(raw);
            let pause = far.device.pause(Call::Record, PausePoint::Before);
            thread::scope(|scope| {
                let helping = scope.spawn(|| near.pool.synchronize());
                pause.wait_reached();
                if fails {
                    far.device.inject(FaultPlan::new(Call::Record));
                }
                let closing = scope.spawn(|| far.pool.close());
                wait_a_while(&closing);
                pause.resume();
                assert_eq!(helping.join().unwrap().is_err(), fails);
                closing.join().unwrap().unwrap();
            });
            assert_eq!((far.device.memory_in_use(), far.device.live_streams()), (0, 1));
            near.pool.synchronize().unwrap();
            all_is_clean(near);
            launch(&far.device, d.raw(), Kernel::new());
        }
    });
}

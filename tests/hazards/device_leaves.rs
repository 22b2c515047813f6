//! S4: streams that are leaving their pool while another pool waits for them, on machines with one, two and
//! eight devices.

use std::thread;
use std::time::Duration;

use streampool::Error;
use streampool::sim::{Call, CaptureMode, PausePoint};

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
        let counted = |stats: &streampool::Stats| (stats.hits, stats.misses);
        assert_eq!((stats.streams, counted(&stats)), (1, counted(&before)));
        // Nobody counts as leaving for ever: a verdict would wait for that.
        assert!(far.try_hold(&d, u64::MAX / 4).is_err());
        all_is_clean(near);
    });
}

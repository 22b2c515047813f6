//! The beginning and the end of a scope, held at each of their driver calls while others act.

use std::cell::RefCell;
use std::thread;

use crate::common::{BLOCK, Held, Lab, Setup, Stream, in_both_kinds, interleave, lazy_device};
use streampool::QuiescentScope;
use streampool::sim::{CaptureMode, PausePoint, SimConfig, SimDevice};

/// What another thread does at each call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    FreeWithWork,
    Steal,
    ShareAndFree,
    Retire,
    Scope,
    Trim,
    CaptureAndEnd,
    Register,
}

const ACTS: [Act; 8] = [
    Act::FreeWithWork,
    Act::Steal,
    Act::ShareAndFree,
    Act::Retire,
    Act::Scope,
    Act::Trim,
    Act::CaptureAndEnd,
    Act::Register,
];

struct Other<'a> {
    lab: &'a Lab,
    streams: Vec<Stream>,
    kept: Vec<Held>,
    spare: Vec<Stream>,
}

impl Other<'_> {
    fn act(&mut self, act: Act, round: usize) {
        let lab = self.lab;
        let [a, b] = [round % 3, (round + 1) % 3].map(|at| self.streams[at].clone());
        match act {
            Act::FreeWithWork => {
                let x = lab.hold(&a, BLOCK);
                x.write_long(&a);
                drop(x);
            }
            Act::Steal => {
                let x = lab.hold(&b, BLOCK);
                x.write(&b);
                self.kept.push(x);
                if self.kept.len() > 3 {
                    self.kept.remove(0);
                }
            }
            Act::ShareAndFree => {
                let x = lab.hold(&a, BLOCK);
                x.write(&a);
                x.share(&b);
                x.read_long(&b);
                drop(x);
            }
            Act::Retire => {
                if let Some(stream) = self.spare.pop() {
                    let x = lab.hold(&stream, BLOCK);
                    x.write_long(&stream);
                    drop(x);
                    let _ = stream.retire();
                }
            }
            Act::Scope => {
                let x = lab.hold(&a, BLOCK);
                let scope = lab.pool.quiesce().unwrap();
                x.write_long(&a);
                drop(x);
                let report = scope.finish();
                assert_eq!((report.freed, report.clean), (1, 0), "the kernel runs for a second");
            }
            Act::Trim => {
                let _ = lab.pool.trim(0);
            }
            Act::CaptureAndEnd => {
                // Over before the held call goes on.
                let stranger = lab.device.create_stream();
                lab.device.begin_capture(&stranger, CaptureMode::Global).unwrap();
                lab.device.end_capture(&stranger).unwrap();
            }
            Act::Register => self.spare.push(lab.stream()),
        }
    }
}

fn run(setup: Setup, act: Act, point: PausePoint, context_events: bool, busy: bool, lazy: bool) {
    let config = SimConfig { context_events, ..SimConfig::default() };
    let device = if lazy { lazy_device() } else { SimDevice::new(config) };
    let lab = setup.lab_on(device, |builder| builder.limit(24 * BLOCK).floor(0));
    let streams: [Stream; 3] = lab.streams();
    let spare = (0..4).map(|_| lab.stream()).collect();
    let held: Vec<Held> = (0..9)
        .map(|at| {
            let held = lab.hold(&streams[at % 3], BLOCK);
            held.write(&streams[at % 3]);
            if at % 2 == 0 {
                held.share(&streams[(at + 1) % 3]);
                held.read(&streams[(at + 1) % 3]);
            }
            held
        })
        .collect();
    let mut other = Other { lab: &lab, streams: streams.to_vec(), kept: Vec::new(), spare };
    let (report, calls) = interleave(
        &lab.device,
        point,
        || {
            let scope = lab.pool.quiesce().unwrap();
            if busy {
                held[0].write_long(&streams[0]);
            }
            drop(held);
            scope.finish()
        },
        |round| other.act(act, round),
    );
    assert!(calls >= 3, "{calls}");
    assert_eq!(report.freed, 9);
    assert_eq!(report.clean + report.deferred, 9);
    // Another scope's synchronize waits for it, and so does giving a segment back.
    let frees_segments = act == Act::Trim && setup.growth == streampool::Growth::Segments;
    if busy && act != Act::Scope && !frees_segments {
        assert!(report.deferred >= 1);
    }
    drop(other);
    let last = lab.stream();
    let all = lab.hold(&last, 20 * BLOCK);
    all.write(&last);
}

#[test]
fn whatever_others_do_at_each_call_of_a_scope_order_holds() {
    in_both_kinds(|setup| {
        for act in ACTS {
            for point in [PausePoint::Before, PausePoint::After] {
                for bits in 0..8 {
                    let (events, busy, lazy) = (bits & 1 == 0, bits & 2 == 0, bits & 4 == 0);
                    eprintln!("{act:?} {point:?} events {events} busy {busy} lazy {lazy}");
                    run(setup, act, point, events, busy, lazy);
                }
            }
        }
    });
}

/// Both destroyed at the end of the thread: before and after the thread's list of scopes.
#[derive(Default)]
struct Kept {
    held: Vec<Held>,
    scope: Option<QuiescentScope<SimDevice>>,
}

thread_local! {
    static BEFORE: RefCell<Kept> = RefCell::default();
    static AFTER: RefCell<Kept> = RefCell::default();
}

#[test]
fn buffers_and_scopes_that_end_with_their_thread_in_any_order() {
    in_both_kinds(|setup| {
        for bits in 0..32 {
            let lab = setup.lab_of(8 * BLOCK);
            let [a, b] = lab.streams();
            let r = lab.pool.stream_record_on_free(lab.device.create_stream()).unwrap();
            thread::scope(|threads| {
                // Joined by hand: the end of the block does not wait for destructors.
                let worker = threads.spawn(|| {
                    let touch = || BEFORE.with(|_| AFTER.with(|_| ()));
                    if bits & 1 == 0 {
                        touch();
                    }
                    let outer = lab.pool.quiesce().unwrap();
                    let inner = lab.pool.quiesce().unwrap();
                    touch();
                    let [x, y, z] = [&a, &b, &r].map(|stream| {
                        let held = lab.hold(stream, BLOCK);
                        held.write_long(stream);
                        held
                    });
                    let place = |bit: i32, put: &mut dyn FnMut(&mut Kept)| {
                        let kept = if bits & bit == 0 { &BEFORE } else { &AFTER };
                        kept.with(|kept| put(&mut kept.borrow_mut()));
                    };
                    let (mut x, mut outer) = (Some(x), Some(outer));
                    let mut rest = vec![y, z];
                    let mut inner = Some(inner);
                    place(2, &mut |kept| kept.held.extend(x.take()));
                    place(4, &mut |kept| kept.held.append(&mut rest));
                    place(8, &mut |kept| kept.scope = outer.take());
                    if bits & 16 == 0 {
                        std::mem::forget(inner.take());
                    }
                    drop(inner);
                });
                worker.join().unwrap();
            });
            let c = lab.stream();
            lab.hold(&c, 8 * BLOCK).write(&c);
            let x = lab.hold(&c, BLOCK);
            let report = lab.pool.release(x).unwrap();
            assert_eq!((report.freed, report.clean), (1, 1));
        }
    });
}

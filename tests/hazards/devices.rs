//! S4: several devices, each with a pool, which use each other's memory. Every test runs on machines with
//! one, two and eight devices; on one device "the others" are other streams of it.

use std::thread;

use streampool::sim::{Call, CaptureMode, FaultPlan, Kernel, Schedule, SimConfig, SimDevice};
use streampool::{Growth, PoolBuilder, StreamPool};

use crate::common::{BLOCK, Held, LONG, Lab, Setup, Stream, in_both_kinds, launch};

/// How many devices the machines have.
const NUMBERS: [usize; 3] = [1, 2, 8];

type Builder = PoolBuilder<SimDevice>;

/// Devices, each with a pool whose memory all of them may use.
pub(crate) struct Machine {
    pub(crate) labs: Vec<Lab>,
}

/// Runs a test on each number of devices, and in both kinds of growth.
pub(crate) fn on_every_machine(test: impl Fn(Setup, usize)) {
    in_both_kinds(|setup| {
        for number in NUMBERS {
            eprintln!("devices: {number}");
            test(setup, number);
        }
    });
}

impl Machine {
    /// Nothing finishes before somebody synchronizes.
    pub(crate) fn new(
        setup: Setup,
        number: usize,
        options: impl Fn(Builder) -> Builder,
    ) -> Machine {
        Machine::scheduled(Schedule::Lazy, setup, number, options)
    }

    /// What takes long finishes when somebody synchronizes, anything else soon.
    pub(crate) fn timed(
        setup: Setup,
        number: usize,
        options: impl Fn(Builder) -> Builder,
    ) -> Machine {
        Machine::scheduled(Schedule::Timed, setup, number, options)
    }

    fn scheduled(
        schedule: Schedule,
        setup: Setup,
        number: usize,
        options: impl Fn(Builder) -> Builder,
    ) -> Machine {
        let config = SimConfig { schedule, ..SimConfig::default() };
        let devices = SimDevice::several(config, number);
        let mut labs: Vec<Lab> = Vec::new();
        for (at, device) in devices.iter().enumerate() {
            let lab = setup.lab_on(device.clone(), |builder| {
                let builder = builder.peers(labs.iter().map(|lab| &lab.pool));
                options(builder.peer_devices(devices[at + 1..].iter().cloned()))
            });
            labs.push(lab);
        }
        Machine { labs }
    }

    /// One block of memory for each pool.
    pub(crate) fn of_one_block(setup: Setup, number: usize) -> Machine {
        Machine::new(setup, number, |builder| builder.limit(BLOCK))
    }

    pub(crate) fn home(&self) -> &Lab {
        &self.labs[0]
    }

    pub(crate) fn pools(&self) -> Vec<&StreamPool<SimDevice>> {
        self.labs.iter().map(|lab| &lab.pool).collect()
    }

    /// The devices that are not the first; the first, where it is alone.
    pub(crate) fn others(&self) -> &[Lab] {
        if self.labs.len() == 1 { &self.labs } else { &self.labs[1..] }
    }

    /// A stream on each of the others.
    pub(crate) fn far_streams(&self) -> Vec<Stream> {
        self.others().iter().map(Lab::stream).collect()
    }

    /// A buffer of the first device of which each of these streams writes a part of its own, for a long time.
    pub(crate) fn written_by(&self, home: &Stream, far: &[Stream]) -> Held {
        let x = self.home().hold(home, BLOCK);
        x.write(home);
        let part = BLOCK / far.len() as u64;
        for (at, (lab, stream)) in self.others().iter().zip(far).enumerate() {
            x.share(stream);
            let kernel = Kernel::new().writes(x.at() + at as u64 * part, part).taking(LONG);
            launch(&lab.device, stream.raw(), kernel);
        }
        x
    }
}

#[test]
fn s4_h09_a_late_writer_of_any_device_comes_before_the_next_owner() {
    on_every_machine(|setup, number| {
        let machine = Machine::of_one_block(setup, number);
        let [a, b] = machine.home().streams();
        let far = machine.far_streams();
        drop(machine.written_by(&a, &far));
        // All of it at once, on another stream: after home and after each of the others.
        let (y, calls) = machine.home().calls_of(|| machine.home().hold(&b, BLOCK));
        y.write(&b);
        assert_eq!((calls.synchronizes(), calls.granule_creates + calls.segment_allocs), (0, 0));
        // Of the home stream itself the next owner waits for what it queued and for each of the others.
        drop(y);
        drop(machine.written_by(&a, &far));
        machine.home().hold(&a, BLOCK).write(&a);
        let stats = machine.home().stats();
        assert_eq!((stats.late_steals, stats.growths), (3, 1), "{stats:?}");
    });
}

#[test]
fn s4_h60_trim_leaves_what_any_device_may_still_write() {
    on_every_machine(|setup, number| {
        let machine = Machine::of_one_block(setup, number);
        let home = machine.home();
        let a = home.stream();
        let far = machine.far_streams();
        drop(machine.written_by(&a, &far));
        // The device's own evidence is not enough, until the last of the others has finished.
        a.synchronize().unwrap();
        if number > 1 {
            drop(home.pool.quiesce().unwrap());
        }
        for stream in &far {
            assert_eq!(home.pool.trim(0).unwrap(), 0, "{:?}", home.stats());
            stream.synchronize().unwrap();
        }
        assert_eq!(home.pool.trim(0).unwrap(), BLOCK);
    });
}

/// Eight blocks of which every second one is kept; what lies between is written by the others, late.
fn in_pieces_of_others(machine: &Machine, a: &Stream, far: &[Stream]) -> Vec<Held> {
    let mut blocks: Vec<Held> = (0..8).map(|_| machine.home().hold(a, BLOCK)).collect();
    let kept = (0..4).map(|n| blocks.remove(n)).collect();
    for (at, block) in blocks.into_iter().enumerate() {
        let (lab, stream) = (&machine.others()[at % far.len()], &far[at % far.len()]);
        block.share(stream);
        launch(&lab.device, stream.raw(), block.writes().taking(LONG));
    }
    kept
}

#[test]
fn s4_m4_nothing_is_mapped_elsewhere_that_any_device_may_still_write() {
    for number in NUMBERS {
        let setup = Setup { growth: Growth::Virtual };
        // With room, new memory is taken; without, the host waits for all of them.
        for (room, moved) in [(16, 0), (8, 6)] {
            let machine = Machine::new(setup, number, |builder| {
                builder.limit(room * BLOCK).soft_target(16 * BLOCK)
            });
            let home = machine.home();
            let [a, b] = home.streams();
            let far = machine.far_streams();
            let kept = in_pieces_of_others(&machine, &a, &far);
            if number > 1 {
                drop(home.pool.quiesce().unwrap());
            }
            let large = home.hold(&b, 4 * BLOCK);
            assert_eq!(home.stats().remapped, moved, "{:?}", home.stats());
            large.write(&b);
            // By their new addresses the others may use them too.
            for (lab, stream) in machine.others().iter().zip(&far) {
                large.share(stream);
                launch(&lab.device, stream.raw(), large.reads());
            }
            drop(large);
            drop(kept);
        }
    }
}

#[test]
fn s4_s7_close_waits_for_every_device_and_in_any_order() {
    on_every_machine(|setup, number| {
        for home_first in [true, false] {
            let machine = Machine::of_one_block(setup, number);
            let a = machine.home().stream();
            let far = machine.far_streams();
            let x = machine.written_by(&a, &far);
            drop(x);
            let close = |lab: &Lab| {
                lab.pool.close().unwrap();
                assert_eq!(lab.device.memory_in_use(), 0, "{:?}", lab.stats());
                // Mapped nowhere, and with nothing that may still be touched.
                lab.no_hazard();
            };
            if home_first {
                machine.labs.iter().for_each(close);
            } else {
                machine.labs.iter().rev().for_each(close);
            }
        }
    });
}

#[test]
fn s4_s7_a_buffer_outlives_the_pools_of_the_devices_that_use_it() {
    on_every_machine(|setup, number| {
        if number == 1 {
            return;
        }
        for by_close in [true, false] {
            let config = SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() };
            let devices = SimDevice::several(config, number);
            let others = devices[1..].iter().cloned();
            let home = setup
                .lab_on(devices[0].clone(), |builder| builder.limit(BLOCK).peer_devices(others));
            let [a, b] = home.streams();
            let x = home.hold(&a, BLOCK);
            x.write(&a);
            let part = BLOCK / (number as u64 - 1);
            for (at, device) in devices[1..].iter().enumerate() {
                let pool =
                    StreamPool::builder(device.clone()).growth(setup.growth).build().unwrap();
                let stream = pool.stream(device.create_stream()).unwrap();
                x.share(&stream);
                let kernel = Kernel::new().writes(x.at() + at as u64 * part, part).taking(LONG);
                launch(device, stream.raw(), kernel);
                if by_close {
                    pool.close().unwrap();
                }
                // All handles go: what is left of the pool is what x names.
            }
            drop(x);
            // Any pool's call lets the other pools' streams leave, on other tests' threads too: whoever is
            // leaving is waited for.
            let held = home.hold(&b, BLOCK);
            held.write(&b);
            drop(held);
            home.pool.synchronize().unwrap();
            assert_eq!(home.pool.trim(0).unwrap(), BLOCK);
            // Whoever calls any pool lets their streams go, which nothing uses any more. Other tests' threads
            // may have one of them in hand.
            let gone = || devices[1..].iter().all(|device| device.live_streams() == 0);
            let done = (0..2000).any(|_| {
                home.pool.reserve(0).unwrap();
                thread::sleep(std::time::Duration::from_millis(u64::from(!gone())));
                gone()
            });
            assert!(done, "streams of pools that are gone are left");
        }
    });
}

#[test]
fn s4_h51_a_capture_on_one_device_survives_all_that_the_others_do() {
    const MODES: [CaptureMode; 3] =
        [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
    on_every_machine(|setup, number| {
        for mode in MODES {
            for another in [false, true] {
                let machine = Machine::new(setup, number, |builder| builder.limit(2 * BLOCK));
                let home = machine.home();
                let (a, b) = (home.stream(), home.stream());
                let far = machine.far_streams();
                // Of every other device a buffer that the stream has used which is about to capture.
                let used: Vec<Held> = (machine.others().iter().zip(&far))
                    .map(|(lab, stream)| {
                        let y = lab.hold(stream, BLOCK);
                        y.share(&a);
                        launch(&home.device, a.raw(), y.writes().taking(LONG));
                        y
                    })
                    .collect();
                home.device.begin_capture(a.raw(), mode).unwrap();
                launch(&home.device, a.raw(), Kernel::new());
                let act = || everything_else(&machine, &a, &b, &far, used);
                if another {
                    thread::scope(|scope| scope.spawn(act).join().unwrap());
                } else {
                    act();
                }
                let graph = home.device.end_capture(a.raw()).expect("the capture is broken");
                assert_eq!(graph.len(), 1, "something was drawn into the capture");
                for lab in &machine.labs {
                    assert!(lab.pool.take_error().is_none());
                    let stream = lab.stream();
                    lab.hold(&stream, 2 * BLOCK).write(&stream);
                }
            }
        }
    });
}

/// What the other devices do while `a` captures.
fn everything_else(machine: &Machine, a: &Stream, b: &Stream, far: &[Stream], used: Vec<Held>) {
    // Naming the stream that captures is refused where it is seen, and changes nothing.
    for buffer in &used {
        assert!(buffer.use_on(a).unwrap_err().is_capture());
    }
    let at: Vec<u64> = used.iter().map(Held::at).collect();
    // What it has used cannot be handed out while it captures: nobody can ask when it has finished.
    drop(used);
    for ((lab, stream), at) in machine.others().iter().zip(far).zip(at) {
        let y = lab.hold(stream, BLOCK);
        assert_ne!(y.at(), at);
        y.write(stream);
        y.share(b);
        launch(&machine.home().device, b.raw(), y.writes());
        assert_eq!(lab.pool.trim(0).unwrap(), 0);
        assert!(lab.try_hold(stream, BLOCK).unwrap_err().is_out_of_memory());
    }
    let x = machine.written_by(b, far);
    let scopes = StreamPool::quiesce_all(&machine.pools()).unwrap();
    drop(x);
    scopes.finish();
    for (lab, stream) in machine.others().iter().zip(far) {
        lab.pool.synchronize().unwrap();
        stream.synchronize().unwrap();
        b.wait_for(stream).unwrap();
        stream.wait_for(b).unwrap();
        lab.pool.trim(0).unwrap();
        lab.hold(&lab.stream(), BLOCK);
    }
}

#[test]
fn s4_h44_every_event_is_of_the_context_of_the_stream_that_it_is_recorded_on() {
    on_every_machine(|setup, number| {
        let machine = Machine::new(setup, number, |builder| builder.limit(BLOCK).floor(0));
        let streams: Vec<[Stream; 2]> = machine.labs.iter().map(Lab::streams).collect();
        // Each device's memory goes round all devices: named, written, freed in a scope of one of them or
        // none, stolen, and waited for by the host.
        for (lab, [a, b]) in machine.labs.iter().zip(&streams) {
            for (at, [c, _]) in streams.iter().enumerate() {
                let x = lab.hold(a, BLOCK);
                x.write(a);
                x.share(c);
                launch(&machine.labs[at].device, c.raw(), x.writes().taking(LONG));
                let scope = (at % 2 == 0).then(|| machine.labs[at].pool.quiesce().unwrap());
                drop(x);
                drop(scope);
                let y = lab.hold(b, BLOCK);
                y.write(b);
                c.wait_for(b).unwrap();
                b.wait_for(c).unwrap();
            }
            lab.pool.synchronize().unwrap();
        }
        for lab in &machine.labs {
            let stats = lab.stats();
            assert_eq!(stats.stray_errors, 0, "{:?}", lab.pool.take_error());
            // Nobody has recorded another's events, so that each has no more than its own calls needed.
            assert_eq!(
                lab.device.live_events(),
                stats.calls.event_creates - stats.calls.event_destroys
            );
        }
        machine.labs.iter().for_each(|lab| lab.pool.close().unwrap());
        // A stream of another device is no stream of a pool's own.
        for (lab, own) in machine.labs.iter().zip(0..) {
            for (other, at) in machine.labs.iter().zip(0..) {
                let fresh = StreamPool::new(lab.device.clone());
                let registered = fresh.stream(other.device.create_stream());
                assert_eq!(registered.is_ok(), own == at);
                assert!(own == at || registered.unwrap_err().is_wrong_stream());
            }
        }
    });
}

#[test]
fn s4_access_is_given_one_way_and_refused_with_what_to_do() {
    on_every_machine(|setup, number| {
        let devices = SimDevice::several(1, number);
        let labs: Vec<Lab> =
            devices.iter().map(|device| setup.lab_on(device.clone(), |builder| builder)).collect();
        let earlier = devices.iter().cloned();
        let open = setup.lab_on(devices[0].clone(), |builder| builder.peer_devices(earlier));
        let own = open.stream();
        let x = open.hold(&own, BLOCK);
        for (at, lab) in labs.iter().enumerate() {
            let far = lab.stream();
            x.share(&far);
            launch(&lab.device, far.raw(), x.reads());
            // Not the other way; two pools of one device need no access.
            let y = lab.hold(&far, BLOCK);
            match y.use_on(&own) {
                Ok(()) => assert_eq!(at, 0),
                Err(error) => {
                    assert!(at > 0 && error.is_no_peer_access() && error.is_wrong_stream());
                    assert!(error.to_string().contains("peer_devices(..)"), "{error}");
                }
            }
        }
        // A device that cannot have access is an error, and no pool.
        devices[0].inject(FaultPlan::new(Call::AllowPeer));
        let refused =
            StreamPool::builder(devices[0].clone()).peers(labs.iter().map(|l| &l.pool)).build();
        assert_eq!(refused.is_err(), number > 1);
        drop(x);
        // Two pools share the first device, whose account is of both.
        drop((open.unwatched(), labs.into_iter().map(Lab::unwatched).collect::<Vec<_>>()));
    });
}

#[test]
fn s4_h53_a_stream_that_could_not_leave_its_pool_is_waited_for_when_its_capture_has_ended() {
    on_every_machine(|setup, number| {
        let machine = Machine::of_one_block(setup, number);
        let home = machine.home();
        let a = home.stream();
        let x = machine.written_by(&a, &machine.far_streams());
        let far = machine.labs.last().unwrap();
        let c = far.stream();
        x.share(&c);
        drop(x);
        let raw = c.raw().clone();
        far.device.begin_capture(&raw, CaptureMode::Relaxed).unwrap();
        drop(c);
        // It is to leave, which its pool finds that it cannot, and is not called again.
        far.pool.reserve(0).unwrap();
        far.device.end_capture(&raw).expect("the capture is whole");
        home.pool.synchronize().unwrap();
        assert_eq!(home.pool.trim(0).unwrap(), BLOCK, "{:?}", home.stats());
        home.pool.close().unwrap();
    });
}

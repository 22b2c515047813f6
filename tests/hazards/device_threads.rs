//! S4: a thread for each device, all at once, on machines with one, two and eight devices.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use streampool::StreamPool;
use streampool::sim::Kernel;

use crate::common::{BLOCK, Held, Lab, Random, Stream, launch};
use crate::devices::{Machine, on_every_machine};

const ROUNDS: usize = 150;
/// How often a thread asks for memory that others have.
const PATIENCE: usize = 100_000;

/// A buffer of another device, with what it is stamped with.
type Parcel = (Held, u64);

/// One device's thread.
struct Worker<'a> {
    machine: &'a Machine,
    lab: &'a Lab,
    streams: [Stream; 2],
    random: Random,
    before: Receiver<Parcel>,
    after: Sender<Parcel>,
}

impl Worker<'_> {
    fn work(mut self) {
        for round in 0..ROUNDS {
            self.send(round as u64);
            self.receive_all();
            self.look_after(round);
        }
        // The next device's thread hears that nothing more will come.
        self.after = channel().0;
        while let Ok(parcel) = self.before.recv() {
            self.receive(parcel);
        }
    }

    fn stream(&mut self) -> Stream {
        self.streams[self.random.below(2)].clone()
    }

    /// Writes a new buffer, and sends it on. Where all memory is with the next device, takes what has come from
    /// the one before until some is free: so nobody waits for ever.
    fn send(&mut self, stamp: u64) {
        let stream = self.stream();
        for _ in 0..PATIENCE {
            if let Ok(x) = self.lab.try_hold(&stream, BLOCK / 2) {
                x.launch(&stream, x.writes().stamp(stamp).taking(50_000));
                // Where the thread has ended it comes back with the error, and is freed here.
                let _ = self.after.send((x, stamp));
                return;
            }
            self.receive_all();
            thread::yield_now();
        }
        panic!("no memory comes back from the next device");
    }

    fn receive_all(&mut self) {
        while let Ok(parcel) = self.before.try_recv() {
            self.receive(parcel);
        }
    }

    /// Reads what another device has written: where it is, and as a copy.
    fn receive(&mut self, (x, stamp): Parcel) {
        let stream = self.stream();
        // With no note of it: home's own thread may have put more there before the oracle could hear of it.
        x.use_on(&stream).unwrap();
        let device = self.lab.device.clone();
        let expects = |at, bytes| Kernel::new().expects(at, bytes, stamp).taking(20_000);
        launch(&device, stream.raw(), expects(x.at(), x.size()));
        let stream = self.stream();
        if let Ok(copy) = x.copy_to(&stream) {
            let copy = Held::of(&device, &stream, copy);
            launch(&device, stream.raw(), expects(copy.at(), copy.size()));
        }
    }

    /// What synchronizes, or gives memory back, beside the others.
    fn look_after(&mut self, round: usize) {
        match self.random.below(12) {
            0 => drop(self.lab.pool.trim(BLOCK).unwrap()),
            1 => self.lab.pool.synchronize().unwrap(),
            2 => {
                let scopes = StreamPool::quiesce_all(&self.machine.pools()).unwrap();
                self.send(round as u64);
                scopes.finish();
            }
            3 => {
                // A stream that comes and goes, named by another device's buffer.
                let fresh = self.lab.stream();
                if let Ok((x, _)) = self.before.try_recv() {
                    x.use_on(&fresh).unwrap();
                    launch(&self.lab.device, fresh.raw(), x.reads());
                }
            }
            _ => {}
        }
    }
}

#[test]
fn s4_h20_threads_of_all_devices_at_once_lose_no_dependency_and_no_byte() {
    on_every_machine(|setup, number| {
        let machine = Machine::timed(setup, number, |builder| builder.limit(4 * BLOCK));
        thread::scope(|scope| {
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..number).map(|_| channel()).unzip();
            let mut senders: Vec<_> = senders.into_iter().map(Some).collect();
            for (at, (lab, before)) in machine.labs.iter().zip(receivers).enumerate() {
                let after = senders[(at + 1) % number].take().expect("each has one before it");
                let random = Random(at as u64 + 1);
                let (machine, streams) = (&machine, lab.streams());
                scope.spawn(move || {
                    Worker { machine, lab, streams, random, before, after }.work();
                });
            }
        });
        let frees: u64 = machine.labs.iter().map(Lab::frees).sum();
        assert!(frees >= (ROUNDS * number) as u64, "only {frees} buffers were freed");
        for lab in &machine.labs {
            assert!(lab.pool.take_error().is_none());
            lab.pool.close().unwrap();
        }
        let all_closed = |lab: &Lab| lab.device.memory_in_use() == 0;
        assert!(machine.labs.iter().all(all_closed));
    });
}

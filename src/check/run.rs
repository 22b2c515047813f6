//! Executing programs: on one thread, on several in lock step, with an operation frozen, with a driver
//! call failing.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use super::coverage::Coverage;
use super::program::{Program, Step, plan};
use super::world::{Check, Local, World, ensure};
use crate::backend::{Backend, ErrorKind};
use crate::sim::{CallFilter, Schedule, SimDevice};
use crate::sync::host::{Condvar, Mutex, MutexGuard};
use crate::{Error, StreamPool};

/// A program that the pool, or its use of the driver, did not get right.
#[derive(Clone)]
pub struct Failure {
    /// The program.
    pub program: Box<Program>,
    /// The step after which it was seen; the number of steps, if at the end.
    pub step: usize,
    /// What was wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at step {}: {}\nin the program\n{}", self.step, self.what, self.program)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

/// A driver call that fails: the `nth` of a program, counted from 1.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Which call.
    pub nth: u64,
    /// With what kind of error.
    pub kind: ErrorKind,
    /// Whether every later call fails too.
    pub forever: bool,
    /// Whether the error is that of earlier work, and the call takes effect all the same.
    pub late: bool,
}

/// Runs a program on one thread.
///
/// # Errors
///
/// What went wrong, with the program.
pub fn run(program: &Program) -> Result<Coverage, Failure> {
    run_with(program, None)
}

/// Runs a program with one operation of the device frozen: it executes only when a synchronize needs
/// it, so that whatever is not ordered after it overtakes it, and the stamps show that.
///
/// # Errors
///
/// As for [`run`].
pub fn frozen(program: &Program, operation: u64) -> Result<Coverage, Failure> {
    let mut program = program.clone();
    program.setup.schedule = Schedule::Frozen(operation);
    run(&program)
}

/// Runs a program with one driver call of its first device failing. With no error injected, in the
/// coverage, the program makes fewer calls than that.
///
/// # Errors
///
/// As for [`run`].
pub fn fail_call(program: &Program, fault: Fault) -> Result<Coverage, Failure> {
    let mut program = program.clone();
    program.setup.faults = false;
    run_with(&program, Some(fault))
}

/// Runs one random program for each seed.
///
/// # Errors
///
/// The first failure.
pub fn quick(seeds: Range<u64>) -> Result<Coverage, Failure> {
    let mut reached = Coverage::default();
    for seed in seeds {
        reached += run(&Program::random(seed, length(seed)))?;
    }
    Ok(reached)
}

/// Runs one random program for each seed on this many threads in lock step.
///
/// # Errors
///
/// The first failure.
pub fn quick_on_threads(seeds: Range<u64>, threads: usize) -> Result<Coverage, Failure> {
    let mut reached = Coverage::default();
    for seed in seeds {
        reached += lock_step(&Program::random(seed, length(seed)), threads)?;
    }
    Ok(reached)
}

/// How many calls the end of a program makes for pools that others have to finish.
const PATIENCE: u32 = 10_000;

/// Short programs fail in ways that are easy to read; long ones get further.
fn length(seed: u64) -> usize {
    [20, 40, 60, 120][seed as usize % 4]
}

fn run_with(program: &Program, fault: Option<Fault>) -> Result<Coverage, Failure> {
    let mut world = World::new(program.setup, 1);
    let mut local = Local::default();
    if let Some(fault) = fault {
        world.arm(fault);
    }
    let mut at = 0;
    let result = guarded(|| {
        for step in &program.steps {
            world.step(&mut local, *step)?;
            at += 1;
        }
        world.tear_down()?;
        world.end_scopes(&mut local)?;
        world.finish()
    });
    if let Err(what) = result {
        // What is left of a pool that has failed may hold its locks.
        std::mem::forget((world, local));
        return Err(Failure { program: Box::new(program.clone()), step: at, what });
    }
    let coverage = world.coverage;
    let devices = world.into_devices();
    drop(local);
    match guarded(|| all_gone(&devices)) {
        Ok(()) => Ok(coverage),
        Err(what) => Err(Failure { program: Box::new(program.clone()), step: at, what }),
    }
}

/// Turns a panic into a message.
fn guarded(check: impl FnOnce() -> Check) -> Check {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

/// What one thread of a program does next.
#[derive(Clone, Copy)]
enum Command {
    Step(Step),
    EndScopes,
}

/// Runs a program on several threads that take turns: each operation is made by the thread that it
/// names, and the next begins when it has ended.
///
/// # Errors
///
/// As for [`run`].
pub fn lock_step(program: &Program, threads: usize) -> Result<Coverage, Failure> {
    let stage = Stage {
        world: Mutex::new(World::new(program.setup, threads)),
        turn: Mutex::default(),
        changed: Condvar::new(),
    };
    let mut at = 0;
    let result = thread::scope(|scope| {
        for number in 0..threads {
            let stage = &stage;
            scope.spawn(move || stage.play(number));
        }
        let result = (|| {
            for step in &program.steps {
                stage.order(usize::from(step.thread) % threads, Command::Step(*step))?;
                at += 1;
            }
            guarded(|| locked(&stage.world).tear_down())?;
            for number in 0..threads {
                stage.order(number, Command::EndScopes)?;
            }
            guarded(|| locked(&stage.world).finish())
        })();
        locked(&stage.turn).over = true;
        stage.changed.notify_all();
        result
    });
    let world = stage.world.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let result = match result {
        Ok(()) => {
            let coverage = world.coverage;
            let devices = world.into_devices();
            guarded(|| all_gone(&devices)).map(|()| coverage)
        }
        Err(what) => {
            std::mem::forget(world);
            Err(what)
        }
    };
    result.map_err(|what| Failure { program: Box::new(program.clone()), step: at, what })
}

/// What the threads of a program share: one acts at a time.
struct Stage {
    world: Mutex<World>,
    turn: Mutex<Turn>,
    changed: Condvar,
}

#[derive(Default)]
struct Turn {
    /// Whose turn it is, and what to do.
    next: Option<(usize, Command)>,
    answer: Option<Check>,
    over: bool,
}

impl Stage {
    /// Lets one thread act, and waits until it has.
    fn order(&self, number: usize, command: Command) -> Check {
        let mut turn = locked(&self.turn);
        turn.next = Some((number, command));
        self.changed.notify_all();
        loop {
            if let Some(answer) = turn.answer.take() {
                return answer;
            }
            turn = self.wait(turn);
        }
    }

    /// What a thread does until the program is over.
    fn play(&self, number: usize) {
        let mut local = Local::default();
        let mut failed = false;
        let mut turn = locked(&self.turn);
        loop {
            match turn.next {
                Some((own, command)) if own == number => {
                    turn.next = None;
                    drop(turn);
                    let answer = guarded(|| match command {
                        Command::Step(step) => locked(&self.world).step(&mut local, step),
                        Command::EndScopes => locked(&self.world).end_scopes(&mut local),
                    });
                    failed |= answer.is_err();
                    turn = locked(&self.turn);
                    turn.answer = Some(answer);
                    self.changed.notify_all();
                }
                _ if turn.over => break,
                _ => turn = self.wait(turn),
            }
        }
        drop(turn);
        if failed {
            std::mem::forget(local);
        }
    }

    fn wait<'a>(&'a self, turn: MutexGuard<'a, Turn>) -> MutexGuard<'a, Turn> {
        self.changed.wait(turn).unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl World {
    fn arm(&mut self, fault: Fault) {
        let Fault { nth, kind, forever, late } = fault;
        self.fault_armed = true;
        self.sides[0].device.inject(plan(nth, kind, CallFilter::any(), forever, late));
    }

    /// The program has ended: no more faults, no capture, no buffer.
    fn tear_down(&mut self) -> Check {
        self.coverage.injected +=
            self.sides.iter().map(|side| side.device.injected_count()).sum::<u64>();
        self.clear_faults();
        while !self.captures.is_empty() {
            self.end_capture_at(0)?;
        }
        while let Some(live) = self.live.pop() {
            self.given_back(&live);
            drop(live);
        }
        self.check()
    }

    /// Ends the scopes of one thread: in the order in which they were opened, or the other way round.
    /// The leaked ones stay as they are.
    fn end_scopes(&mut self, local: &mut Local) -> Check {
        let mut at = 0;
        while at < local.scopes.len() {
            let last = local.scopes.len() - 1;
            let next = if self.setup.seed.is_multiple_of(2) { at } else { last - at };
            if local.scopes[next].scope.is_none() {
                at += 1;
                continue;
            }
            // Frees that tear down has made on another thread are not this scope's.
            self.end_in_order(local, next, false)?;
        }
        self.check()
    }

    /// Everything can be had again.
    fn finish(&mut self) -> Check {
        for pool in 0..self.sides.len() {
            let own = self.sides[pool].pool.clone();
            match own.synchronize() {
                Err(error) if error.is_device_lost() => {
                    ensure!(self.is_relaxed(), "the device was lost: {error}");
                    self.coverage.lost_devices += 1;
                    continue;
                }
                // What a lost device was to use is never seen to finish.
                result if self.any_lost() => {
                    had(result, "synchronize")?;
                    continue;
                }
                result => had(result, "synchronize")?,
            }
            had(own.trim(0).map(drop), "trim")?;
            let (stats, device) = (own.stats(), &self.sides[pool].device);
            let (memory, granules) = (device.memory_in_use(), device.live_granules());
            ensure!(
                stats.reserved == 0 && memory == 0 && granules == 0,
                "{memory} bytes in {granules} granules do not go back: {stats:?}"
            );
            self.coverage.emptied += 1;
            self.slots.retain(|slot| slot.pool != pool);
            self.create(pool, false).map_err(|error| format!("no new stream: {error}"))?;
            let whole = self.setup.limit as usize;
            let handle = &self.slots.last().expect("just created").handle;
            drop(handle.alloc(whole).map_err(|error| format!("the limit is not served: {error}"))?);
            self.check_closed(pool)?;
        }
        self.coverage.device_operations = self.sides[0].device.operations();
        let records = self.sides.iter().map(|side| side.device.counts().context_records);
        self.coverage.context_records = records.sum();
        self.check_hazards()
    }

    fn any_lost(&self) -> bool {
        self.sides.iter().any(|side| is_lost(&side.device))
    }

    /// Drops the streams and the pools; the devices are left.
    fn into_devices(self) -> Vec<SimDevice> {
        let World { sides, slots, live, captures, .. } = self;
        drop((slots, live, captures));
        let (devices, pools): (Vec<SimDevice>, Vec<StreamPool<SimDevice>>) =
            sides.into_iter().map(|side| (side.device, side.pool)).unzip();
        drop(pools);
        devices
    }
}

fn had(result: Result<(), Error>, what: &str) -> Check {
    result.map_err(|error| format!("{what} fails after everything was cleared: {error}"))
}

fn is_lost(device: &SimDevice) -> bool {
    device.memory_info().is_err()
}

/// Nothing of a pool survives its handles.
fn all_gone(devices: &[SimDevice]) -> Check {
    // A pool that was closed while another's buffers named its streams is finished by whoever calls a pool
    // next, and just now that may be another thread of this process.
    for _ in 0..PATIENCE {
        let lost = devices.iter().any(is_lost);
        let left = |device: &SimDevice| device.live_events() + device.live_streams() > 0;
        if lost || !devices.iter().any(left) {
            break;
        }
        had(StreamPool::new(devices[0].clone()).reserve(0), "a call of another pool")?;
        thread::yield_now();
    }
    for device in devices {
        let lost = devices.iter().any(is_lost);
        let (events, streams) = (device.live_events(), device.live_streams());
        ensure!(lost || events == 0, "{events} events survive their pool");
        ensure!(lost || streams == 0, "{streams} streams survive their pool");
    }
    Ok(())
}

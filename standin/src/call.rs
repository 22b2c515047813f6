//! The way in and out of every driver function: pauses, injected failures, the log.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::MutexGuard;

use crate::code::{Code, Outcome};
use crate::os;
use crate::state::{Driver, lock, settle, wait};
use crate::stream::Mark;
use crate::thread;

/// What the driver remembers about the calls made, and what tests have planned for later ones.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) log: Vec<String>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) paused: BTreeSet<String>,
    /// How many threads stand still before each paused function.
    pub(crate) standing: BTreeMap<&'static str, u64>,
    trace: Option<File>,
}

/// A planned failure.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) name: String,
    /// How many calls succeed before it.
    pub(crate) skip: u64,
    /// How many calls it then fails.
    pub(crate) times: u64,
    pub(crate) code: Code,
}

impl Calls {
    pub(crate) fn from_environment() -> Calls {
        let trace = env::var_os("STANDIN_TRACE")
            .and_then(|path| OpenOptions::new().create(true).append(true).open(path).ok());
        Calls {
            log: Vec::new(),
            counts: BTreeMap::new(),
            failures: Vec::new(),
            paused: BTreeSet::new(),
            standing: BTreeMap::new(),
            trace,
        }
    }

    fn injected(&mut self, name: &str) -> Outcome {
        let planned = self.failures.iter_mut().find(|failure| failure.name == name);
        let Some(failure) = planned else { return Ok(()) };
        if failure.skip > 0 {
            failure.skip -= 1;
            return Ok(());
        }
        let code = failure.code;
        failure.times -= 1;
        self.failures.retain(|failure| failure.times > 0);
        Err(code)
    }

    fn trace(&mut self, line: &str) {
        if let Some(file) = &mut self.trace {
            // A trace that cannot be written must not change what the driver does.
            let _ = writeln!(file, "{line}");
        }
    }
}

/// One call, under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    name: &'static str,
    stream: usize,
    event: usize,
}

/// A call of the function with this name.
pub(crate) fn call(name: &'static str) -> Call {
    Call { name, stream: 0, event: 0 }
}

impl Call {
    /// The stream that it names, for the log.
    pub(crate) fn on(self, stream: usize) -> Call {
        Call { stream, ..self }
    }

    /// The event that it names, for the log.
    pub(crate) fn with(self, event: usize) -> Call {
        Call { event, ..self }
    }

    /// Makes the call.
    pub(crate) fn run(self, function: impl FnOnce(&mut Driver) -> Outcome) -> u32 {
        let mut driver = self.begin();
        let outcome = driver.admit(self.name).and_then(|()| function(&mut driver));
        self.end(driver, outcome)
    }

    /// Makes a call that blocks until the places which `function` returns have been passed, and then
    /// returns the error that sticks to the context, if there is one by then.
    pub(crate) fn block(
        self,
        function: impl FnOnce(&mut Driver) -> Outcome<(usize, Vec<Mark>)>,
    ) -> u32 {
        let mut driver = self.begin();
        let mut outcome = driver.admit(self.name);
        if outcome.is_ok() {
            match function(&mut driver) {
                Err(code) => outcome = Err(code),
                Ok((context, marks)) => {
                    settle(driver);
                    driver = lock();
                    while !marks.iter().all(|mark| driver.streams.has_passed(*mark)) {
                        driver = wait(driver);
                    }
                    outcome = driver.healthy(context);
                }
            }
        }
        self.end(driver, outcome)
    }

    fn begin(self) -> MutexGuard<'static, Driver> {
        let mut driver = lock();
        *driver.calls.counts.entry(self.name).or_default() += 1;
        if driver.calls.paused.contains(self.name) {
            *driver.calls.standing.entry(self.name).or_default() += 1;
            settle(driver);
            driver = lock();
            while driver.calls.paused.contains(self.name) {
                driver = wait(driver);
            }
            if let Some(standing) = driver.calls.standing.get_mut(self.name) {
                *standing -= 1;
            }
        }
        driver
    }

    fn end(self, mut driver: MutexGuard<'static, Driver>, outcome: Outcome) -> u32 {
        let code = outcome.err().map_or(0, |code| code.0);
        let (thread, context, mode) = (thread::number(), thread::context(), thread::mode());
        let Call { name, stream, event } = self;
        let line = format!("{name} {thread} {context} {mode} {stream} {event} {code}");
        driver.calls.trace(&line);
        driver.calls.log.push(line);
        settle(driver);
        code
    }
}

impl Driver {
    fn admit(&mut self, name: &'static str) -> Outcome {
        if self.gone {
            return Err(Code::DEINITIALIZED);
        }
        if !self.initialized && name != "cuInit" {
            return Err(Code::NOT_INITIALIZED);
        }
        self.calls.injected(name)
    }

    pub(crate) fn initialize(&mut self) -> Outcome {
        if self.devices == 0 {
            return Err(Code::NO_DEVICE);
        }
        if !self.initialized {
            self.initialized = true;
            os::at_exit(shut_down);
        }
        Ok(())
    }
}

/// The driver's own exit hook, registered when it was initialized.
extern "C" fn shut_down() {
    let mut driver = lock();
    driver.gone = true;
    driver.calls.trace("exit");
    settle(driver);
}

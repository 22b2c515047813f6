//! Runs a test body in a child process that has the stand-in as its CUDA driver.
//!
//! A process of its own for each test, because the stand-in's log, its devices and the end of the
//! process are the process's, and because the loader reads `LD_LIBRARY_PATH` only at the start. The
//! child is this same test program: all its tests run again there, and the one call of
//! [`Child::run`] that the parent names by its place in the source runs its body; the others return at
//! once.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::env;
use std::ffi::{CString, c_char};
use std::fs;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, id};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys;

/// Names the call of [`Child::run`] whose body a child runs.
const PLACE: &str = "STANDIN_TEST_PLACE";
/// What a child prints when it has come to that place.
const REACHED: &str = "the stand-in test has begun";
/// How long a child may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The child process of a test.
#[must_use]
pub(crate) struct Child {
    driver: bool,
    environment: Vec<(&'static str, String)>,
}

/// A child with the stand-in as its driver.
pub(crate) fn standin() -> Child {
    Child { driver: true, environment: Vec::new() }
}

/// A child with no folder on its library path, and so with no driver, unless the machine has one.
pub(crate) fn no_driver() -> Child {
    Child { driver: false, environment: Vec::new() }
}

impl Child {
    /// Sets a variable of the child's environment (`standin/README.md` lists those that matter).
    pub(crate) fn with(mut self, name: &'static str, value: impl ToString) -> Child {
        self.environment.push((name, value.to_string()));
        self
    }

    /// Runs the body in the child. Panics if it fails, does not return in time, or is not reached.
    #[track_caller]
    pub(crate) fn run(self, body: impl FnOnce(&Standin)) {
        let place = Location::caller().to_string();
        match env::var(PLACE) {
            Ok(wanted) if wanted == place => {
                println!("{REACHED}");
                body(&Standin(()));
            }
            Ok(_) => {}
            Err(_) => self.spawn(&place),
        }
    }

    fn spawn(self, place: &str) {
        let scratch = Scratch::new();
        let output = fs::File::create(scratch.0.join("output")).expect("an output file");
        let mut command = Command::new(env::current_exe().expect("this program's path"));
        // On one thread, so that the body runs on the main one and nothing runs beside it.
        command.args(["--nocapture", "--test-threads=1"]).env(PLACE, place);
        command.stdin(Stdio::null());
        command.stdout(output.try_clone().expect("a second handle")).stderr(output);
        match self.driver {
            true => command.env("LD_LIBRARY_PATH", library_folder()),
            false => command.env_remove("LD_LIBRARY_PATH"),
        };
        command.envs(self.environment);
        let mut child = command.spawn().expect("the child starts");
        let begun = Instant::now();
        let status = loop {
            match child.try_wait().expect("the child's status") {
                Some(status) => break Some(status),
                None if begun.elapsed() > PATIENCE => {
                    child.kill().expect("the child can be ended");
                    child.wait().expect("the child ends");
                    break None;
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        let output = fs::read(scratch.0.join("output")).expect("the child's output");
        let output = String::from_utf8_lossy(&output);
        let Some(status) = status else { panic!("the child at {place} hangs:\n{output}") };
        assert!(output.contains(REACHED), "the child never came to {place}:\n{output}");
        assert!(status.success(), "the child at {place} failed, {status}:\n{output}");
    }
}

/// A folder of this test's own, removed in the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    /// Makes a new folder among the build's temporary files.
    pub(crate) fn new() -> Scratch {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", id()));
        fs::create_dir_all(&folder).expect("a scratch folder");
        Scratch(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays behind lies in the target folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Builds the stand-in, once, and returns a folder that has it under the driver's name.
fn library_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let built = build();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("standin");
        fs::create_dir_all(&folder).expect("a folder for the library");
        // Under another name first: another test program may be loading the old one.
        let copy = folder.join(format!("copy-{}", id()));
        fs::copy(built, &copy).expect("a copy of the library");
        fs::rename(&copy, folder.join("libcuda.so")).expect("the library in its place");
        folder
    })
}

fn build() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target folder");
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--offline", "--package", "streampool-standin-cuda"]);
    command.args(["--message-format", "json-render-diagnostics", "--target-dir"]).arg(target);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit());
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "the stand-in does not build");
    let messages = String::from_utf8(output.stdout).expect("cargo speaks UTF-8");
    let mut words = messages.split('"');
    let library = words.rfind(|word| word.ends_with("streampool_standin_cuda.so"));
    library.expect("cargo names the library").into()
}

/// One line of the stand-in's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) name: String,
    pub(crate) thread: u64,
    pub(crate) context: usize,
    pub(crate) mode: u32,
    pub(crate) stream: usize,
    pub(crate) event: usize,
    pub(crate) code: u32,
}

/// The stand-in in this process, which cudarc has loaded as its driver.
pub(crate) struct Standin(());

impl Standin {
    /// The stand-in, for code that is not handed it. The first use panics without one.
    pub(crate) fn get() -> Standin {
        Standin(())
    }

    fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: sound because the library is the stand-in, and each caller below gives the type
        // that its documentation does.
        let symbol = unsafe { sys::culib().get::<F>(name.as_bytes()) };
        *symbol.unwrap_or_else(|error| panic!("not the stand-in: {error}"))
    }

    /// Driver calls begun since the last reset.
    pub(crate) fn calls(&self) -> u64 {
        self.function::<extern "C" fn() -> u64>("standin_calls")()
    }

    /// Calls of one driver function begun since the last reset.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let name = c_string(name);
        self.function::<extern "C" fn(*const c_char) -> u64>("standin_count")(name.as_ptr())
    }

    /// Forgets the log and the counts.
    pub(crate) fn reset(&self) {
        self.function::<extern "C" fn()>("standin_reset")();
    }

    /// Takes the log out.
    pub(crate) fn log(&self) -> Vec<Logged> {
        let take = self.function::<extern "C" fn(*mut u8, usize) -> usize>("standin_log_take");
        let mut buffer = vec![0; 1 << 22];
        let length = take(buffer.as_mut_ptr(), buffer.len());
        assert!(length <= buffer.len(), "a log of {length} bytes");
        let text = std::str::from_utf8(&buffer[..length]).expect("a log in ASCII");
        text.lines().map(parse).collect()
    }

    /// The names of the calls in the log, in order; takes the log out.
    pub(crate) fn names(&self) -> Vec<String> {
        self.log().into_iter().map(|logged| logged.name).collect()
    }

    /// Makes `times` calls of a function fail, after `skip` further ones.
    pub(crate) fn fail(&self, name: &str, skip: u64, times: u64, code: sys::CUresult) {
        let fail = self.function::<extern "C" fn(*const c_char, u64, u64, u32)>("standin_fail");
        fail(c_string(name).as_ptr(), skip, times, code as u32);
    }

    /// Makes an error stick to a context; success takes it away.
    pub(crate) fn stick(&self, context: sys::CUcontext, code: sys::CUresult) {
        let stick = self.function::<extern "C" fn(usize, u32)>("standin_stick");
        stick(context.addr(), code as u32);
    }

    /// Keeps a stream from running.
    pub(crate) fn hold(&self, stream: sys::CUstream) {
        self.function::<extern "C" fn(usize)>("standin_hold")(stream.addr());
    }

    /// Lets a stream run again.
    pub(crate) fn release(&self, stream: sys::CUstream) {
        self.function::<extern "C" fn(usize)>("standin_release")(stream.addr());
    }

    /// Makes all calls of a function stand still before they do anything.
    pub(crate) fn pause(&self, name: &str) {
        let pause = self.function::<extern "C" fn(*const c_char)>("standin_pause");
        pause(c_string(name).as_ptr());
    }

    /// Ends a pause.
    pub(crate) fn resume(&self, name: &str) {
        let resume = self.function::<extern "C" fn(*const c_char)>("standin_resume");
        resume(c_string(name).as_ptr());
    }

    /// Waits until a thread stands still before a paused function.
    pub(crate) fn wait_until_standing(&self, name: &str) {
        let standing = self.function::<extern "C" fn(*const c_char) -> u64>("standin_standing");
        let name = c_string(name);
        while standing(name.as_ptr()) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The calling thread's current context, or 0, without a driver call.
    pub(crate) fn current_context(&self) -> usize {
        self.function::<extern "C" fn() -> usize>("standin_current_context")()
    }

    /// The calling thread's capture mode (0 global, 1 thread-local, 2 relaxed), without a driver call.
    pub(crate) fn capture_mode(&self) -> u32 {
        self.function::<extern "C" fn() -> u32>("standin_capture_mode")()
    }
}

fn c_string(text: &str) -> CString {
    CString::new(text).expect("a name without NUL")
}

fn parse(line: &str) -> Logged {
    let mut words = line.split(' ');
    let name = words.next().expect("a name").to_owned();
    let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
    Logged {
        name,
        thread: number() as u64,
        context: number(),
        mode: number() as u32,
        stream: number(),
        event: number(),
        code: number() as u32,
    }
}

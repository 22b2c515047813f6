//! Programs in C, C++ and Python against the library, on the stand-in for the driver (`standin/`): each in a
//! process of its own. Where a compiler or an interpreter is missing, that is said, and `STREAMPOOL_CAPI_ALL`
//! in the environment makes it a failure.

#![cfg(target_os = "linux")]

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// How long a program may run, in seconds, by `timeout`.
const PATIENCE: &str = "120";

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What the tests run against: built once.
struct Built {
    /// Has `libstreampool.so` and `libstreampool.a`.
    libraries: PathBuf,
    /// Has the stand-in as `libcuda.so` and `libcuda.so.1`.
    driver: PathBuf,
}

fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["build", "--offline", "--package", "streampool-capi"]);
        command.args(["--package", "streampool-standin-cuda"]);
        command.args(["--message-format", "json-render-diagnostics", "--target-dir"]);
        command.arg(scratch.parent().expect("a target folder"));
        if !cfg!(debug_assertions) {
            command.arg("--release");
        }
        let output = command.current_dir(here()).stderr(Stdio::inherit()).output();
        let output = output.expect("cargo runs");
        assert!(output.status.success(), "the libraries do not build");
        let messages = String::from_utf8(output.stdout).expect("cargo speaks UTF-8");
        let file = |ending: &str| {
            let found = messages.split('"').rfind(|word| word.ends_with(ending));
            PathBuf::from(found.unwrap_or_else(|| panic!("cargo names no {ending}")))
        };
        let driver = scratch.join("capi-driver");
        let _ = fs::remove_dir_all(&driver);
        fs::create_dir_all(&driver).expect("a folder for the driver");
        fs::copy(file("/libstreampool_standin_cuda.so"), driver.join("libcuda.so"))
            .expect("a copy");
        symlink("libcuda.so", driver.join("libcuda.so.1")).expect("a second name");
        let shared = file("/libstreampool.so");
        let libraries = shared.parent().expect("a folder").to_owned();
        assert!(libraries.join("libstreampool.a").exists());
        Built { libraries, driver }
    })
}

/// Whether a tool is there. Loud when it is not.
fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").stdout(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        assert!(env::var_os("STREAMPOOL_CAPI_ALL").is_none(), "there is no {tool}");
        eprintln!("NOT TESTED: there is no {tool} on this machine");
    }
    found
}

/// Compiles a program; `false` where there is no compiler.
fn compile(source: &str, program: &Path, link: &[&str]) -> bool {
    let (compiler, standard) = match source.ends_with(".c") {
        true => ("cc", "-std=c99"),
        false => ("c++", "-std=c++17"),
    };
    if !has(compiler) {
        return false;
    }
    let libraries = built().libraries.to_str().expect("a path in UTF-8");
    let mut command = Command::new(compiler);
    command.args([standard, "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-Iinclude", "-Itests"]);
    command.args([source, "-o"]).arg(program).args(link);
    command.args([&format!("-L{libraries}"), &format!("-Wl,-rpath,{libraries}")]);
    let status = command.args(["-ldl", "-lpthread"]).current_dir(here()).status();
    assert!(status.expect("the compiler runs").success(), "{source} does not compile");
    true
}

const DYNAMIC: &[&str] = &["-lstreampool"];

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("capi-{name}"))
}

/// Runs a program on two devices of 1 GiB.
fn run(program: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg(PATIENCE).arg(program).args(arguments).stdin(Stdio::null());
    command.env("LD_LIBRARY_PATH", &built().driver);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("STANDIN_DEVICES", "2").env("STANDIN_MEMORY", "1073741824");
    command.output().expect("the program starts")
}

/// Checks that a program has said `name: well`, and nothing went wrong.
fn check(name: &str, output: &Output) {
    let (said, erred) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {}\n{said}{erred}", output.status);
    assert!(said.contains(&format!("{name}: well")), "{name} said:\n{said}{erred}");
    print!("{said}");
}

#[test]
fn every_function_and_error_from_c() {
    let path = program("interface");
    if !compile("tests/interface.c", &path, DYNAMIC) {
        return;
    }
    let parts = run(&path, &[]).stdout;
    let parts: Vec<_> =
        String::from_utf8(parts).expect("names").lines().map(str::to_owned).collect();
    assert!(parts.len() >= 13, "parts: {parts:?}");
    for part in &parts {
        // Without the stand-in, for which there must be no driver in the system either.
        if part == "no_driver" {
            let output = Command::new(&path).arg(part).env_remove("LD_LIBRARY_PATH").output();
            let output = output.expect("the program starts");
            match Path::new("/dev/nvidiactl").exists() {
                true => eprintln!("NOT TESTED: no_driver, on a machine with a driver"),
                false => check(part, &output),
            }
            continue;
        }
        check(part, &run(&path, &[part]));
    }
    let exit = run(&path, &["exiting"]);
    assert!(String::from_utf8_lossy(&exit.stdout).contains("at exit: well"));
}

#[test]
fn the_static_library_links() {
    let path = program("interface-static");
    let library = built().libraries.join("libstreampool.a");
    let library = library.to_str().expect("a path in UTF-8");
    if compile("tests/interface.c", &path, &[library, "-lgcc_s", "-lutil", "-lrt", "-lm"]) {
        for part in ["about", "buffers"] {
            check(part, &run(&path, &[part]));
        }
    }
}

#[test]
fn threads_from_c() {
    let path = program("threads");
    if compile("tests/threads.c", &path, DYNAMIC) {
        let pairs = if cfg!(debug_assertions) { "10000" } else { "2000000" };
        check("threads", &run(&path, &[pairs]));
    }
}

#[test]
fn torchs_functions_throw_in_cpp() {
    let path = program("torch");
    if compile("tests/torch.cpp", &path, DYNAMIC) {
        check("torch", &run(&path, &[]));
    }
}

#[test]
fn the_first_program() {
    let path = program("first");
    if !compile("examples/first.c", &path, DYNAMIC) {
        return;
    }
    let snapshot = program("first.pickle");
    let output = run(&path, &[snapshot.to_str().expect("a path in UTF-8")]);
    check("first", &output);
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 allocations, 2 MiB reserved"));
    let bytes = fs::read(snapshot).expect("the program has written it");
    assert!(bytes.windows(11).any(|part| part == b"activations"), "the buffer has its tag");
}

#[test]
fn the_cpp_example() {
    let path = program("rmm_style");
    if compile("examples/rmm_style.cpp", &path, DYNAMIC) {
        check("rmm_style", &run(&path, &[]));
    }
}

#[test]
fn the_python_bindings() {
    if !has("python3") {
        return;
    }
    let library = built().libraries.join("libstreampool.so");
    let script = here().join("tests/bindings.py");
    let script = script.to_str().expect("a path in UTF-8");
    let library = library.to_str().expect("a path in UTF-8");
    check("bindings", &run(Path::new("python3"), &[script, "--lib", library]));
    // The programs for real clients compile, and say what they miss.
    for example in ["pytorch_gpt.py", "cupy_arrays.py"] {
        let script = here().join("examples").join(example);
        let script = script.to_str().expect("a path in UTF-8");
        let help = run(Path::new("python3"), &[script, "--help"]);
        assert!(help.status.success(), "{}", String::from_utf8_lossy(&help.stderr));
        let missing = run(Path::new("python3"), &[script, "--lib", "/nowhere/libstreampool.so"]);
        assert_eq!(missing.status.code(), Some(2), "{example} must say that it cannot run");
        assert!(String::from_utf8_lossy(&missing.stdout).contains("NOTHING WAS RUN"));
    }
}

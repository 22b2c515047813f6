//! The end of the process: calls inside the driver return first, and then there are none.

use std::ffi::c_int;
use std::fs;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use streampool::cuda::Event;

use super::*;
use crate::standin::Scratch;

unsafe extern "C" {
    fn atexit(hook: extern "C" fn()) -> c_int;
}

/// What the exit hooks below work with.
static AT_EXIT: OnceLock<(CudaBackend, Arc<CudaStream>, Event)> = OnceLock::new();

/// Runs when the backend's hook has run: every verb is refused, and the driver hears nothing of it.
extern "C" fn verbs_are_refused() {
    let standin = Standin::get();
    standin.reset();
    let (backend, stream, event) = AT_EXIT.get().expect("a backend");
    let answers = [
        backend.query(event).map(|_| ()),
        backend.record(event, stream),
        backend.wait(stream, event),
        backend.synchronize_event(event),
        backend.synchronize_context(),
        backend.create_event().map(|_| ()),
        backend.alloc_segment(MIB).map(|_| ()),
        backend.create_granule(2 * MIB).map(|_| ()),
        backend.is_capturing(stream).map(|_| ()),
        backend.identify(stream).map(|_| ()),
        backend.memory_info().map(|_| ()),
        CudaBackend::open(0).map(|_| ()),
        CudaBackend::new(backend.context()).map(|_| ()),
    ];
    backend.release_stream(Arc::clone(stream));
    let exiting = |error: &CudaError| error.kind() == ErrorKind::Exiting;
    let refused = answers.iter().all(|answer| answer.as_ref().is_err_and(exiting));
    let texts: Vec<_> = answers.iter().map(|answer| format!("{answer:?}")).collect();
    if !refused || standin.calls() != 0 {
        eprintln!("{} calls after exit: {texts:?}", standin.calls());
        process::abort();
    }
    println!("refused");
}

#[test]
fn after_exit_has_begun_nothing_is_called() {
    standin().run(|_| {
        let context = CudaContext::new(0).unwrap();
        // Before the backend's hook, so that it runs after it.
        // SAFETY: sound because the hook is a function of this program.
        unsafe { atexit(verbs_are_refused) };
        let backend = CudaBackend::new(&context).unwrap();
        let (stream, event) = (context.new_stream().unwrap(), backend.create_event().unwrap());
        drop(context);
        assert!(AT_EXIT.set((backend, stream, event)).is_ok());
        process::exit(0);
    });
}

#[test]
fn exit_waits_for_a_call_that_is_inside_the_driver() {
    let scratch = Scratch::new();
    let trace = scratch.0.join("trace");
    standin().with("STANDIN_TRACE", trace.display()).run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let event = backend.create_event().unwrap();
        standin.hold(stream.cu_stream());
        backend.record(&event, &stream).unwrap();
        let handle = stream.cu_stream().addr();
        let (backend, _, event) = AT_EXIT.get_or_init(|| (backend, stream, event));
        thread::spawn(|| backend.synchronize_event(event));
        // Nothing says that a thread is inside the call; this is long for getting there.
        thread::sleep(Duration::from_millis(100));
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            Standin::get().release(ptr::without_provenance_mut(handle));
        });
        process::exit(0);
    });
    if let Ok(trace) = fs::read_to_string(trace) {
        let lines: Vec<&str> = trace.lines().collect();
        assert_eq!(lines.last(), Some(&"exit"), "nothing after the driver has gone: {lines:?}");
        assert!(lines.iter().any(|line| line.starts_with("cuEventSynchronize")), "{lines:?}");
    }
}

#[test]
fn exit_does_not_wait_for_ever() {
    let begun = Instant::now();
    standin().run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let event = backend.create_event().unwrap();
        standin.hold(stream.cu_stream());
        backend.record(&event, &stream).unwrap();
        let (backend, _, event) = AT_EXIT.get_or_init(|| (backend, stream, event));
        thread::spawn(|| backend.synchronize_event(event));
        thread::sleep(Duration::from_millis(100));
        process::exit(0);
    });
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn exit_under_load_is_clean() {
    static STARTED: AtomicU64 = AtomicU64::new(0);
    static REFUSED: AtomicBool = AtomicBool::new(false);
    let scratch = Scratch::new();
    let trace = scratch.0.join("trace");
    standin().with("STANDIN_TRACE", trace.display()).run(|_| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let event = backend.create_event().unwrap();
        let (backend, stream, event) = AT_EXIT.get_or_init(|| (backend, stream, event));
        for _ in 0..4 {
            thread::spawn(|| {
                loop {
                    STARTED.fetch_add(1, Ordering::Relaxed);
                    let answers = [backend.record(event, stream), backend.query(event).map(|_| ())];
                    for error in answers.into_iter().filter_map(Result::err) {
                        assert_eq!(error.kind(), ErrorKind::Exiting);
                        REFUSED.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
        while STARTED.load(Ordering::Relaxed) < 200 {
            thread::yield_now();
        }
        assert!(!REFUSED.load(Ordering::Relaxed));
        process::exit(0);
    });
    if let Ok(trace) = fs::read_to_string(trace) {
        assert_eq!(trace.lines().last(), Some("exit"), "a call after the driver has gone");
    }
}

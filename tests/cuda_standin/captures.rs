//! Captures in progress: no verb breaks one, and errors that come of one are told from others.

use super::*;

#[test]
fn the_capture_mode_is_exchanged_there_and_back() {
    standin().run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let modes =
            [Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL];
        for mode in modes {
            exchange_mode(mode);
            standin.reset();
            every_verb(&backend, &stream, &mut |verb| {
                assert_eq!(standin.capture_mode(), mode as u32, "{verb}");
            });
            let spared = ["cuEventQuery", "cuEventSynchronize", "cuMemAlloc_v2", "cuMemFree_v2"];
            let log = standin.log();
            let asked = log.iter().filter(|logged| spared.contains(&logged.name.as_str()));
            let relaxed = asked.filter(|logged| logged.mode == 2).count();
            assert_eq!(relaxed, spared.len());
        }
    });
}

#[test]
fn no_verb_breaks_a_capture_on_another_stream() {
    standin().run(|_| {
        let backend = CudaBackend::open(0).unwrap();
        for mode in MODES {
            verbs_during_capture(&backend, mode, false);
            verbs_during_capture(&backend, mode, true);
        }
    });
}

#[test]
fn a_context_synchronize_spares_captures_on_other_devices() {
    standin().with("STANDIN_DEVICES", 2).run(|_| {
        let (backend, other) = (CudaBackend::open(0).unwrap(), CudaBackend::open(1).unwrap());
        let captured = other.context().new_stream().unwrap();
        captured.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        backend.synchronize_context().unwrap();
        assert_eq!(other.synchronize_context().unwrap_err().kind(), ErrorKind::Capture);
        assert!(captured.end_capture(sys::CUgraphInstantiate_flags(0)).is_err());
    });
}

#[test]
fn capture_errors_have_their_kind() {
    standin().run(|_| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let legacy = backend.context().default_stream();
        let raw = result::stream::create(result::stream::StreamKind::Default).unwrap();
        // SAFETY: sound because the stream is live and of this context, and is never destroyed.
        let blocking = unsafe { backend.context().wrap_borrowed_stream(raw) };
        let event = backend.create_event().unwrap();
        assert!(!backend.is_capturing(&legacy).unwrap());
        stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        assert!(!backend.is_capturing(&legacy).unwrap(), "it does not mind non-blocking streams");
        backend.record(&event, &stream).unwrap();
        assert_eq!(backend.query(&event).unwrap_err().kind(), ErrorKind::Capture);
        assert!(backend.is_capturing(&stream).unwrap(), "a broken capture goes on until its end");
        assert!(stream.end_capture(sys::CUgraphInstantiate_flags(0)).is_err());
        assert_eq!(backend.query(&event).unwrap_err().kind(), ErrorKind::Other);
        blocking.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        assert!(backend.is_capturing(&legacy).unwrap());
        assert_eq!(backend.record(&event, &legacy).unwrap_err().kind(), ErrorKind::Capture);
    });
}

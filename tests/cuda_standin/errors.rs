//! What went wrong, and what a pool must do about it.

use super::*;

#[test]
fn a_sticky_error_is_told_from_the_rest() {
    standin().run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let event = backend.create_event().unwrap();
        let context = backend.context().cu_ctx();
        standin.stick(context, Code::CUDA_ERROR_LAUNCH_FAILED);
        let errors = [
            backend.query(&event).unwrap_err(),
            backend.record(&event, &stream).unwrap_err(),
            backend.wait(&stream, &event).unwrap_err(),
            backend.synchronize_event(&event).unwrap_err(),
            backend.synchronize_context().unwrap_err(),
            backend.alloc_segment(MIB).unwrap_err(),
            backend.is_capturing(&stream).unwrap_err(),
            backend.memory_info().unwrap_err(),
        ];
        for error in errors {
            assert_eq!(backend.error_kind(&error), ErrorKind::DeviceLost, "{error}");
            assert_eq!(error.code(), Some(719));
        }
        backend.destroy_event(event);
        backend.release_stream(stream);
        assert_eq!(standin.current_context(), context.addr());
    });
}

#[test]
fn every_code_of_the_driver_comes_through_with_its_kind() {
    standin().run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let event = backend.create_event().unwrap();
        for (code, kind) in [
            (Code::CUDA_ERROR_INVALID_VALUE, ErrorKind::Other),
            (Code::CUDA_ERROR_OUT_OF_MEMORY, ErrorKind::OutOfMemory),
            (Code::CUDA_ERROR_INVALID_HANDLE, ErrorKind::Other),
            (Code::CUDA_ERROR_ILLEGAL_ADDRESS, ErrorKind::DeviceLost),
            (Code::CUDA_ERROR_CONTEXT_IS_DESTROYED, ErrorKind::DeviceLost),
            (Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, ErrorKind::Capture),
            (Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, ErrorKind::Capture),
            (Code::CUDA_ERROR_UNKNOWN, ErrorKind::Other),
        ] {
            standin.fail("cuEventQuery", 0, 1, code);
            let error = backend.query(&event).unwrap_err();
            assert_eq!((error.kind(), error.code()), (kind, Some(code as u32)));
        }
        assert!(backend.query(&event).unwrap());
        standin.reset();
        standin.fail("cuEventQuery", 0, 1, Code::CUDA_ERROR_DEINITIALIZED);
        assert_eq!(backend.query(&event).unwrap_err().kind(), ErrorKind::Exiting);
        let error = backend.query(&event).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Exiting, None));
        assert_eq!(standin.count("cuEventQuery"), 1, "a driver that is going is left alone");
    });
}

#[test]
fn without_a_driver_there_is_an_error_and_no_panic() {
    no_driver().run(|_| {
        // SAFETY: sound because it only opens and closes the library.
        if unsafe { sys::is_culib_present() } {
            println!("this machine has a driver: nothing to see");
            return;
        }
        let error = CudaBackend::open(0).unwrap_err();
        assert!(error.is_no_driver());
        assert_eq!((error.kind(), error.code()), (ErrorKind::Other, None));
        assert!(error.to_string().contains("no CUDA driver"));
    });
}

#[test]
fn without_a_device_there_is_an_error() {
    standin().with("STANDIN_DEVICES", 0).run(|_| {
        let error = CudaBackend::open(0).unwrap_err();
        assert_eq!((error.call(), error.code()), ("cuInit", Some(100)));
    });
}

//! The calling thread: its current context, its capture mode, and the errors that the program has left
//! for itself, are as they were after every verb.

use super::*;

/// The calls that only prepare the thread, and may be made in any context.
fn prepares(logged: &Logged) -> bool {
    let names = ["cuCtxGetCurrent", "cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"];
    names.contains(&logged.name.as_str())
}

#[test]
fn the_current_context_is_left_as_found() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let own = CudaContext::new(0).unwrap();
        let other = CudaContext::new(1).unwrap();
        let backend = CudaBackend::new(&own).unwrap();
        let stream = own.new_stream().unwrap();
        for found in [ptr::null_mut(), other.cu_ctx(), own.cu_ctx()] {
            set_current(found);
            standin.reset();
            every_verb(&backend, &stream, &mut |verb| {
                assert_eq!(standin.current_context(), found.addr(), "{verb}");
            });
            backend.synchronize_context().unwrap();
            assert_eq!(standin.current_context(), found.addr());
            for logged in standin.log().iter().filter(|logged| !prepares(logged)) {
                assert_eq!(logged.context, own.cu_ctx().addr(), "{logged:?}");
            }
        }
    });
}

#[test]
fn opening_and_dropping_a_backend_leave_the_context_as_found() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let backend = CudaBackend::open(1).unwrap();
        assert_eq!(standin.current_context(), 0);
        assert_eq!(CudaBackend::open(7).unwrap_err().code(), Some(101));
        standin.reset();
        standin.fail("cuMemGetAllocationGranularity", 0, 1, Code::CUDA_ERROR_UNKNOWN);
        assert_eq!(CudaBackend::open(0).unwrap_err().call(), "cuMemGetAllocationGranularity");
        assert_eq!(standin.count("cuDevicePrimaryCtxRelease_v2"), 1);
        assert_eq!(standin.current_context(), 0);
        drop(backend);
        assert_eq!(standin.current_context(), 0);
        let other = CudaContext::new(0).unwrap();
        let backend = CudaBackend::open(1).unwrap();
        let stream = backend.context().new_stream().unwrap();
        other.bind_to_thread().unwrap();
        standin.reset();
        backend.release_stream(stream);
        assert_eq!(standin.count("cuStreamDestroy_v2"), 1);
        drop(backend);
        assert_eq!(standin.count("cuDevicePrimaryCtxRelease_v2"), 1);
        assert_eq!(standin.current_context(), other.cu_ctx().addr());
    });
}

#[test]
fn a_verb_that_cannot_prepare_the_thread_leaves_it_alone() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let other = CudaContext::new(1).unwrap();
        let event = backend.create_event().unwrap();
        for function in ["cuCtxGetCurrent", "cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"]
        {
            standin.reset();
            standin.fail(function, 0, 1, Code::CUDA_ERROR_UNKNOWN);
            let error = backend.query(&event).unwrap_err();
            assert_eq!((error.call(), error.kind()), (function, ErrorKind::Other));
            assert_eq!(standin.count("cuEventQuery"), 0);
            assert_eq!(standin.current_context(), other.cu_ctx().addr());
            assert_eq!(standin.capture_mode(), 0);
        }
        assert!(backend.query(&event).unwrap());
    });
}

#[test]
fn each_verb_is_one_call_and_what_prepares_it() {
    standin().run(|standin| {
        let own = CudaContext::new(0).unwrap();
        let backend = CudaBackend::new(&own).unwrap();
        let stream = own.new_stream().unwrap();
        let event = backend.create_event().unwrap();
        standin.reset();
        backend.record(&event, &stream).unwrap();
        assert_eq!(standin.names(), ["cuCtxGetCurrent", "cuEventRecord"]);
        backend.wait(&stream, &event).unwrap();
        assert_eq!(standin.names(), ["cuCtxGetCurrent", "cuStreamWaitEvent"]);
        backend.query(&event).unwrap();
        let exchange = "cuThreadExchangeStreamCaptureMode";
        assert_eq!(standin.names(), ["cuCtxGetCurrent", exchange, "cuEventQuery", exchange]);
        set_current(ptr::null_mut());
        standin.reset();
        backend.record(&event, &stream).unwrap();
        let set = "cuCtxSetCurrent";
        assert_eq!(standin.names(), ["cuCtxGetCurrent", set, "cuEventRecord", set]);
        backend.error_kind(&CudaBackend::open(9).unwrap_err());
        standin.reset();
        let _ = (backend.context_id(), backend.granularity(), format!("{backend:?}"));
        assert_eq!(standin.calls(), 0);
    });
}

#[test]
fn errors_of_the_program_are_neither_consumed_nor_reported() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let own = CudaContext::new(0).unwrap();
        let backend = CudaBackend::new(&own).unwrap();
        let (stream, doomed) = (own.new_stream().unwrap(), own.new_stream().unwrap());
        let other = CudaContext::new(1).unwrap();
        let parked = DriverError(Code::CUDA_ERROR_NOT_FOUND);
        own.record_err(Err::<(), _>(parked));
        every_verb(&backend, &stream, &mut |_| {});
        backend.synchronize_context().unwrap();
        drop(CudaBackend::new(&own).unwrap());
        standin.reset();
        backend.release_stream(doomed);
        let log = standin.log();
        let destroyed = log.iter().find(|logged| logged.name == "cuStreamDestroy_v2").unwrap();
        assert_eq!((destroyed.context, destroyed.code), (own.cu_ctx().addr(), 0));
        assert_eq!(standin.current_context(), other.cu_ctx().addr());
        assert_eq!(own.check_err(), Err(parked), "still there for its owner");
        assert_eq!(own.check_err(), Ok(()), "and nothing else");
    });
}

//! Streams, events and contexts: which is which, and what waits for what.

use super::*;

#[test]
fn streams_and_contexts_are_told_apart() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let own = CudaContext::new(0).unwrap();
        let (first, second) = (CudaBackend::new(&own).unwrap(), CudaBackend::open(0).unwrap());
        let other = CudaBackend::open(1).unwrap();
        assert_eq!(first.context_id(), second.context_id());
        assert_ne!(first.context_id(), other.context_id());
        let raw = result::stream::create(result::stream::StreamKind::Default).unwrap();
        // SAFETY: sound because the stream is live and of this context, and is never destroyed.
        let blocking = unsafe { own.wrap_borrowed_stream(raw) };
        // SAFETY: sound because the legacy stream always lives.
        let explicit = unsafe { own.wrap_borrowed_stream(ptr::without_provenance_mut(1)) };
        let kind = |stream: &Arc<CudaStream>| first.identify(stream).unwrap().kind;
        assert_eq!(kind(&own.new_stream().unwrap()), StreamKind::NonBlocking);
        assert_eq!(kind(&blocking), StreamKind::Blocking);
        assert_eq!(kind(&own.default_stream()), StreamKind::Legacy);
        assert_eq!(kind(&explicit), StreamKind::Legacy);
        assert_eq!(kind(&own.per_thread_stream()), StreamKind::PerThread);
        let foreign = other.context().new_stream().unwrap();
        let identity = first.identify(&foreign).unwrap();
        assert_eq!(identity.context, other.context_id());
        assert_eq!(identity.handle, foreign.cu_stream().addr() as u64);
        // The primary context is given back, and comes again with the same handle.
        let (handle, number) = (own.cu_ctx(), first.context_id());
        assert_eq!(first.identify(&blocking).unwrap().context, number);
        drop((first, second, blocking, explicit, own));
        assert_eq!(standin.count("cuDevicePrimaryCtxRelease_v2"), 2);
        let again = CudaBackend::open(0).unwrap();
        assert_eq!(again.context().cu_ctx(), handle);
        assert_ne!(again.context_id(), number);
    });
}

#[test]
fn the_legacy_stream_of_another_device_is_found_in_its_own_context() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let (backend, other) = (CudaBackend::open(0).unwrap(), CudaBackend::open(1).unwrap());
        let stream = backend.context().new_stream().unwrap();
        let (event, after) = (backend.create_event().unwrap(), other.create_event().unwrap());
        standin.hold(stream.cu_stream());
        backend.record(&event, &stream).unwrap();
        let legacy = other.context().default_stream();
        backend.wait(&legacy, &event).unwrap();
        other.record(&after, &legacy).unwrap();
        assert!(!other.query(&after).unwrap());
        assert!(!backend.is_capturing(&legacy).unwrap());
        standin.release(stream.cu_stream());
        assert!(other.query(&after).unwrap());
    });
}

#[test]
fn events_are_asked_and_waited_for() {
    standin().run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let stream = backend.context().new_stream().unwrap();
        let event = backend.create_event().unwrap();
        assert!(backend.query(&event).unwrap(), "never recorded counts as complete");
        standin.hold(stream.cu_stream());
        backend.record(&event, &stream).unwrap();
        assert!(!backend.query(&event).unwrap());
        thread::scope(|scope| {
            let waiting = [
                scope.spawn(|| backend.synchronize_event(&event)),
                scope.spawn(|| backend.synchronize_context()),
            ];
            thread::sleep(Duration::from_millis(20));
            assert!(waiting.iter().all(|thread| !thread.is_finished()));
            standin.release(stream.cu_stream());
            for thread in waiting {
                thread.join().unwrap().unwrap();
            }
        });
        assert!(backend.query(&event).unwrap());
    });
}

#[test]
fn a_current_context_is_found_again_whoever_made_it() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        // SAFETY: sound because the context made below outlives its backend.
        let current = || unsafe { CudaBackend::of_current_context() };
        assert_eq!(current().unwrap_err().call(), "cuCtxGetCurrent");
        let primary = CudaContext::new(1).unwrap();
        let (own, found) = (CudaBackend::new(&primary).unwrap(), current().unwrap());
        assert_eq!(found.context_id(), own.context_id());
        assert_eq!(standin.current_context(), primary.cu_ctx().addr());
        // The device's primary context is not made only to be compared.
        let mut made = ptr::null_mut();
        // SAFETY: sound because the pointer is to a local of the right type.
        let code = unsafe { sys::cuCtxCreate_v4(&mut made, ptr::null_mut(), 0, 0) };
        assert_eq!(code, Code::CUDA_SUCCESS);
        standin.reset();
        let backend = current().unwrap();
        assert_eq!(standin.count("cuDevicePrimaryCtxRetain"), 0);
        assert_eq!(backend.context().cu_ctx(), made);
        // Beside a primary context too it is found, and stays its owner's.
        let beside = CudaBackend::open(0).unwrap();
        let second = current().unwrap();
        assert_eq!(second.context_id(), backend.context_id());
        assert_ne!(second.context_id(), beside.context_id());
        drop((backend, second));
        assert_eq!(standin.count("cuCtxDestroy_v2"), 0);
        assert_eq!(standin.current_context(), made.addr());
    });
}

#[test]
fn a_borrowed_stream_is_its_owners() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let (backend, other) = (CudaBackend::open(0).unwrap(), CudaBackend::open(1).unwrap());
        let stream = backend.context().new_stream().unwrap();
        let foreign = other.context().new_stream().unwrap();
        // SAFETY: sound because the streams live to the end of this body.
        let borrow = |handle| unsafe { backend.borrow_stream(handle) };
        let borrowed = borrow(stream.cu_stream()).unwrap().unwrap();
        assert_eq!(backend.identify(&borrowed), backend.identify(&stream));
        assert!(borrow(foreign.cu_stream()).unwrap().is_none());
        let legacy = borrow(ptr::null_mut()).unwrap().unwrap();
        assert_eq!(backend.identify(&legacy).unwrap().kind, StreamKind::Legacy);
        let per_thread = borrow(ptr::without_provenance_mut(2)).unwrap().unwrap();
        assert_eq!(backend.identify(&per_thread).unwrap().kind, StreamKind::PerThread);
        drop((borrowed, legacy, per_thread));
        assert_eq!(standin.count("cuStreamDestroy_v2"), 0);
        stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        let error = borrow(stream.cu_stream()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Capture);
    });
}

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

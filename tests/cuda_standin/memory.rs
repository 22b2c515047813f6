//! Segments, granules, and what other devices may do with them.

use super::*;

#[test]
fn granules_keep_their_bytes_wherever_they_are_mapped() {
    standin().run(|standin| {
        let backend = CudaBackend::open(0).unwrap();
        let before = backend.memory_info().unwrap();
        move_a_granule(&backend);
        assert_eq!(backend.memory_info().unwrap(), before);
        let granule = backend.create_granule(2 * MIB).unwrap();
        standin.fail("cuMemRelease", 0, 1, Code::CUDA_ERROR_UNKNOWN);
        // SAFETY: sound because the granule was just made and is mapped nowhere.
        let (granule, error) = unsafe { backend.destroy_granule(granule) }.unwrap_err();
        assert_eq!(error.call(), "cuMemRelease");
        // SAFETY: as above; it still exists.
        unsafe { backend.destroy_granule(granule) }.unwrap();
        assert_eq!(backend.memory_info().unwrap(), before);
    });
}

#[test]
fn a_granule_may_be_mapped_at_several_addresses_at_once() {
    standin().run(|_| {
        let backend = CudaBackend::open(0).unwrap();
        let size = backend.granularity().unwrap();
        let range = backend.reserve_range(2 * size).unwrap();
        let granule = backend.create_granule(size).unwrap();
        let places = [range, range + size];
        // SAFETY: sound because range and granule were just made, and each part is mapped once.
        unsafe {
            places.iter().for_each(|at| backend.map(*at, size, &granule).unwrap());
            // Each place has an access of its own.
            backend.set_access(range + size, size, &[]).unwrap();
        }
        assert_eq!(fill_and_read(&backend, range + size, Some(4)), [4; 4]);
        // SAFETY: as above.
        unsafe { backend.set_access(range, size, &[]).unwrap() };
        assert_eq!(fill_and_read(&backend, range, None), [4; 4]);
        assert_eq!(fill_and_read(&backend, range, Some(5)), [5; 4]);
        // SAFETY: sound because the copies have returned.
        unsafe { backend.unmap(range, size).unwrap() };
        assert_eq!(fill_and_read(&backend, range + size, None), [5; 4], "it is mapped here still");
        // SAFETY: as above; then nothing is mapped any more.
        unsafe {
            backend.unmap(range + size, size).unwrap();
            backend.destroy_granule(granule).unwrap();
            backend.release_range(range, 2 * size).unwrap();
        }
    });
}

#[test]
fn memory_runs_out_with_its_own_kind() {
    standin().with("STANDIN_MEMORY", 64 * MIB).run(|_| {
        let backend = CudaBackend::open(0).unwrap();
        let kind = |error: CudaError| error.kind();
        assert_eq!(backend.alloc_segment(65 * MIB).map_err(kind), Err(ErrorKind::OutOfMemory));
        assert_eq!(backend.alloc_segment(u64::MAX).map_err(kind), Err(ErrorKind::OutOfMemory));
        let granule = backend.create_granule(66 * MIB);
        assert_eq!(granule.unwrap_err().kind(), ErrorKind::OutOfMemory);
        let segment = backend.alloc_segment(60 * MIB).unwrap();
        assert_eq!(segment % 256, 0);
        assert_eq!(fill_and_read(&backend, segment + 60 * MIB - 4, Some(3)), [3; 4]);
        assert_eq!(backend.alloc_segment(8 * MIB).map_err(kind), Err(ErrorKind::OutOfMemory));
        // SAFETY: sound because the segment was made above, and the copies have returned.
        unsafe { backend.free_segment(segment, 60 * MIB).unwrap() };
        // SAFETY: not sound on a device; the stand-in looks it up and refuses.
        let again = unsafe { backend.free_segment(segment, 60 * MIB) };
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Other);
    });
}

#[test]
fn virtual_memory_is_used_where_the_device_has_it_and_the_program_wants_it() {
    standin().run(|_| {
        let backend = CudaBackend::open(0).unwrap();
        assert_eq!(backend.granularity(), Some(2 * MIB));
        assert_eq!(backend.with_plain_segments().granularity(), None);
    });
    standin().with("STANDIN_NO_VIRTUAL_MEMORY", 1).run(|_| {
        assert_eq!(CudaBackend::open(0).unwrap().granularity(), None);
    });
}

#[test]
fn peers_share_granules_by_access_and_segments_by_context() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let (own, peer) = (CudaBackend::open(0).unwrap(), CudaBackend::open(1).unwrap());
        own.allow_peer(&peer, false).unwrap();
        assert_eq!(standin.count("cuCtxEnablePeerAccess"), 0, "granules need none");
        let size = own.granularity().unwrap();
        let range = own.reserve_range(size).unwrap();
        let granule = own.create_granule(size).unwrap();
        // SAFETY: sound because range and granule were just made, and are never given back.
        unsafe {
            own.map(range, size, &granule).unwrap();
            own.set_access(range, size, &[&peer, &own, &peer]).unwrap();
        }
        assert_eq!(fill_and_read(&peer, range, Some(4)), [4; 4]);

        let own = own.with_plain_segments();
        let segment = own.alloc_segment(MIB).unwrap();
        own.allow_peer(&peer, true).unwrap();
        own.allow_peer(&peer, true).unwrap();
        let enabled = standin.log();
        let enabled = enabled.iter().filter(|logged| logged.name == "cuCtxEnablePeerAccess");
        let enabled: Vec<_> = enabled.map(|logged| (logged.context, logged.code)).collect();
        let current = peer.context().cu_ctx().addr();
        assert_eq!(enabled, [(current, 0), (current, 704)], "the peer gains, and twice is fine");
        assert_eq!(fill_and_read(&peer, segment, Some(5)), [5; 4]);
        assert_eq!(standin.current_context(), current);
    });
}

#[test]
fn a_copy_between_devices_needs_no_access() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let (own, peer) = (CudaBackend::open(0).unwrap(), CudaBackend::open(1).unwrap());
        let stream = own.context().new_stream().unwrap();
        let size = own.granularity().unwrap();
        // Each can be reached by its own device alone.
        let place = |backend: &CudaBackend| {
            let range = backend.reserve_range(size).unwrap();
            let granule = backend.create_granule(size).unwrap();
            // SAFETY: sound because range and granule were just made, and are never given back.
            unsafe {
                backend.map(range, size, &granule).unwrap();
                backend.set_access(range, size, &[]).unwrap();
            }
            range
        };
        let (to, from) = (place(&own), place(&peer));
        fill_and_read(&peer, from, Some(6));
        set_current(ptr::null_mut());
        standin.reset();
        // SAFETY: sound because both ranges are mapped, and the fill has returned.
        unsafe { own.copy(&stream, to, &peer, from, size) }.unwrap();
        let log = standin.log();
        let copy = log.iter().find(|logged| logged.name == "cuMemcpyPeerAsync").unwrap();
        let (context, handle) = (own.context().cu_ctx().addr(), stream.cu_stream().addr());
        assert_eq!((copy.context, copy.stream, copy.code), (context, handle, 0));
        // In relaxed mode: whether it could break a capture elsewhere is not known.
        assert_eq!((copy.mode, standin.capture_mode()), (2, 0));
        assert_eq!(standin.current_context(), 0);
        assert_eq!(fill_and_read(&own, to, None), [6; 4]);
        // Within a context it is an ordinary copy, and on a stream that captures it is none.
        standin.reset();
        // SAFETY: as above; the copies have returned.
        unsafe { own.copy(&stream, to, &own, to + size / 2, size / 2) }.unwrap();
        assert_eq!(standin.count("cuMemcpyDtoDAsync_v2"), 1);
        stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        // SAFETY: as above.
        let refused = unsafe { own.copy(&stream, to, &peer, from, size) }.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Capture);
        stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap();
        assert_eq!(standin.count("cuMemcpyPeerAsync"), 0);
    });
}

//! Streams that are not registered.

use super::*;

#[test]
fn the_host_waits_before_a_strangers_use() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let (other, registered) = pooled.another();
        let stranger = pooled.stranger();
        let slice = pooled.home.clone_htod(&[4u8; 64]).unwrap();
        slice.use_on(&registered).unwrap();
        standin.reset();
        assert_eq!(stranger.clone_dtoh(&slice).unwrap(), [4; 64]);
        let (own, others) = (handle(&pooled.stream), handle(&other));
        assert_eq!(
            effects(standin),
            [
                Effect::Record(own),
                Effect::Synchronize(own),
                Effect::Record(others),
                Effect::Synchronize(others),
                Effect::Call("cuMemcpyDtoHAsync_v2".into(), handle(&stranger))
            ]
        );
    });
}

#[test]
fn the_memory_of_a_strangers_pending_use_is_not_taken_over() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let Pooled { pool, home, .. } = &pooled;
        let stranger = pooled.stranger();
        let slice = home.alloc_zeros::<u8>(1 << 20).unwrap();
        let (address, mut target) = (slice.address(), pooled.stream.alloc_zeros(1 << 20).unwrap());
        standin.hold(stranger.cu_stream());
        stranger.memcpy_dtod(&slice, &mut target).unwrap();
        standin.reset();
        drop(slice);
        assert_eq!(standin.calls(), 0);
        // Neither at home nor elsewhere, whatever is asked meanwhile, also once the stream is gone.
        let handle = stranger.cu_stream();
        drop(stranger);
        let (_, elsewhere) = pooled.another();
        home.synchronize().unwrap();
        for taker in [home, &elsewhere] {
            for bytes in [1 << 20, 256 << 10] {
                let taken = taker.alloc(bytes).unwrap().device_ptr();
                assert!(
                    !(address..address + (1 << 20)).contains(&taken),
                    "taken over by {taker:?}"
                );
            }
        }
        assert_eq!(pool.trim(0).unwrap() % (1 << 20), 0);
        let pending = pool.stats().free_pending;
        assert!(pending >= 1 << 20, "{pending} bytes pending");
        // A synchronize of the context settles it, and only that.
        standin.release(handle);
        pool.synchronize().unwrap();
        standin.reset();
        let taken: Vec<_> = (0..8).map(|_| elsewhere.alloc(1 << 20).unwrap()).collect();
        assert!(taken.iter().any(|buffer| buffer.device_ptr() == address), "{address:#x} is lost");
        assert_eq!(standin.count("cuStreamWaitEvent"), 0);
        assert!(pool.take_error().is_none());
    });
}

#[test]
fn a_use_after_a_strangers_write_comes_after_it() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let stranger = pooled.stranger();
        let mut slice = pooled.home.alloc_zeros::<u8>(64).unwrap();
        stranger.memcpy_htod(&[6u8; 64], &mut slice).unwrap();
        standin.reset();
        assert_eq!(read_on(&slice, &pooled.stream), slice.address());
        assert_eq!(effects(standin), [Effect::SynchronizeContext]);
        // That has settled it.
        assert_eq!(read_on(&slice, &pooled.stream), slice.address());
        assert_eq!(effects(standin), []);
        // Reads do not disturb each other; a write comes after them.
        assert_ne!(read_on(&slice, &stranger), 0);
        standin.reset();
        assert_eq!(read_on(&slice, &pooled.stream), slice.address());
        assert_eq!(effects(standin), []);
        assert_eq!(write_on(&mut slice, &pooled.stream), slice.address());
        assert_eq!(effects(standin), [Effect::SynchronizeContext]);
        assert_eq!(slice.to_vec().unwrap(), [6; 64]);
        // Nothing is left of it when the memory is freed.
        let address = slice.address();
        drop(slice);
        pooled.home.alloc(2 << 20).unwrap();
        assert_eq!(pooled.home.alloc(64).unwrap().device_ptr(), address);
    });
}

#[test]
fn views_beside_each_other_keep_what_a_stranger_did() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let stranger = pooled.stranger();
        let mut slice = pooled.home.alloc_zeros::<u8>(64).unwrap();
        let (mut left, mut right) = slice.split_at_mut(32);
        {
            let _pending = left.device_ptr_mut(&stranger);
            // This synchronizes, but what is asked for above may not have been submitted yet.
            write_on(&mut right, &pooled.stream);
        }
        standin.reset();
        assert_eq!(read_on(&slice, &pooled.stream), slice.address());
        assert_eq!(effects(standin), [Effect::SynchronizeContext]);
    });
}

#[test]
fn a_capture_is_not_broken_for_a_stranger() {
    standin().run(|_| {
        let pooled = Pooled::new();
        let (captured, _captured) = pooled.another();
        let stranger = pooled.stranger();
        let mut slice = pooled.home.alloc_zeros::<u8>(64).unwrap();
        captured.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        assert_ne!(write_on(&mut slice, &stranger), 0, "the host can wait for home");
        assert_eq!(read_on(&slice, &pooled.stream), 0, "nothing can wait for the stranger");
        assert!(pooled.pool.take_error().unwrap().is_capture());
        captured.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap();
        assert_eq!(read_on(&slice, &pooled.stream), slice.address());
    });
}

#[test]
fn the_default_stream_registers_itself() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let legacy = pooled.context.default_stream();
        let slice = pooled.home.clone_htod(&[8u8; 64]).unwrap();
        assert_eq!(pooled.pool.stats().streams, 1);
        standin.reset();
        assert_eq!(legacy.clone_dtoh(&slice).unwrap(), [8; 64]);
        let own = handle(&pooled.stream);
        assert_eq!(effects(standin)[..2], [Effect::Record(own), Effect::Wait(0, own)]);
        assert_eq!(pooled.pool.stats().streams, 2);
        assert_eq!(read_on(&slice, &pooled.stream), slice.address());
        assert_eq!(effects(standin), [Effect::Record(0), Effect::Wait(own, 0)]);
        // It goes again when nothing uses it.
        drop(slice);
        pooled.home.mark().unwrap();
        assert_eq!(pooled.pool.stats().streams, 1);
    });
}

#[test]
fn the_per_thread_stream_is_a_stranger() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let per_thread = pooled.context.per_thread_stream();
        let mut slice = pooled.home.alloc_zeros::<u8>(64).unwrap();
        per_thread.memcpy_htod(&[1u8; 64], &mut slice).unwrap();
        standin.reset();
        assert_eq!(slice.to_vec().unwrap(), [1; 64]);
        assert_eq!(standin.count("cuCtxSynchronize"), 1);
        assert!(pooled.pool.take_error().is_none());
    });
}

#[test]
fn a_retired_stream_is_a_stranger() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let (stream, registered) = pooled.another();
        let slice = pooled.home.alloc_zeros::<u8>(64).unwrap();
        registered.retire().unwrap();
        standin.reset();
        assert_eq!(read_on(&slice, &stream), slice.address());
        let own = handle(&pooled.stream);
        assert_eq!(effects(standin), [Effect::Record(own), Effect::Synchronize(own)]);
    });
}

#[test]
fn a_scope_defers_what_a_stranger_used_and_the_next_one_frees_it() {
    standin().run(|_| {
        let pooled = Pooled::new();
        let stranger = pooled.stranger();
        let slice = pooled.home.alloc_zeros::<u8>(64).unwrap();
        assert_ne!(read_on(&slice, &stranger), 0);
        let report = pooled.pool.release(slice).unwrap();
        assert_eq!((report.freed, report.clean, report.deferred), (1, 0, 1));
        assert!(pooled.pool.stats().free_pending > 0);
        let _ = pooled.pool.quiesce().unwrap().finish();
        pooled.home.alloc(64).unwrap();
        assert_eq!(pooled.pool.stats().free_pending, pooled.pool.stats().on_lists);
    });
}

#[test]
fn closing_waits_for_strangers() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let stranger = pooled.stranger();
        let slice = pooled.home.alloc_zeros::<u8>(64).unwrap();
        assert_ne!(read_on(&slice, &stranger), 0);
        drop(slice);
        standin.reset();
        pooled.pool.close().unwrap();
        assert_eq!(standin.count("cuCtxSynchronize"), 1);
        assert_eq!(pooled.pool.stats().reserved, 0);
    });
}

#[test]
fn running_out_of_memory_brings_back_what_strangers_used() {
    standin().run(|_| {
        let limit = 64 << 20;
        let pooled =
            Pooled::with(|backend| CudaPool::builder(backend).limit(limit).build().unwrap());
        let stranger = pooled.stranger();
        for _ in 0..3 {
            let slice = pooled.home.alloc_zeros::<u8>(40 << 20).unwrap();
            assert_ne!(read_on(&slice, &stranger), 0);
        }
        assert!(pooled.pool.take_error().is_none());
    });
}

//! What happens when a stream cannot be made to wait, and what a slice leaves of the thread's state.

use super::*;

#[test]
fn when_a_wait_fails_the_host_waits() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let (other, _other) = pooled.another();
        let own = handle(&pooled.stream);
        let slice = pooled.home.alloc_zeros::<u8>(64).unwrap();
        standin.reset();
        standin.fail("cuStreamWaitEvent", 0, 1, Code::CUDA_ERROR_UNKNOWN);
        assert_eq!(read_on(&slice, &other), slice.address());
        assert_eq!(effects(standin).last(), Some(&Effect::Synchronize(own)));
        assert!(pooled.pool.take_error().is_none());
        // It is one of the slice's streams all the same.
        assert_eq!(read_on(&slice, &pooled.stream), slice.address());
        let waits = [Effect::Record(handle(&other)), Effect::Wait(own, handle(&other))];
        assert_eq!(effects(standin), waits);
    });
}

#[test]
fn when_that_fails_too_the_address_is_0() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let (other, _other) = pooled.another();
        let mut slice = pooled.home.alloc_zeros::<u8>(64).unwrap();
        for (function, times) in [("cuEventRecord", 2), ("cuStreamWaitEvent", 1)] {
            standin.fail(function, 0, times, Code::CUDA_ERROR_UNKNOWN);
            if function == "cuStreamWaitEvent" {
                standin.fail("cuEventSynchronize", 0, 1, Code::CUDA_ERROR_UNKNOWN);
            }
            assert_eq!(write_on(&mut slice, &other), 0, "{function}");
            let error = pooled.pool.take_error().unwrap();
            assert!(!error.is_device_lost() && !error.is_capture(), "{error}");
            // The next one is not kept from it.
            assert_eq!(write_on(&mut slice, &other), slice.address());
            assert!(pooled.pool.take_error().is_none());
        }
        assert_eq!(other.clone_dtoh(&slice).unwrap(), [0; 64]);
    });
}

#[test]
fn an_operation_at_address_0_fails() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let (other, _other) = pooled.another();
        let slice = pooled.home.alloc_zeros::<u8>(64).unwrap();
        standin.fail("cuEventRecord", 0, 2, Code::CUDA_ERROR_UNKNOWN);
        standin.reset();
        let mut host = [1u8; 64];
        let _ = other.memcpy_dtoh(&slice, &mut host);
        assert_eq!(host, [1; 64], "nothing was copied");
        assert!(pooled.pool.take_error().is_some());
    });
}

#[test]
fn a_lost_device_gives_no_address_elsewhere() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let (other, _other) = pooled.another();
        let slice = pooled.home.alloc_zeros::<u8>(64).unwrap();
        standin.stick(pooled.context.cu_ctx(), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(read_on(&slice, &other), 0);
        assert!(pooled.pool.take_error().unwrap().is_device_lost());
        drop(slice);
        assert!(pooled.home.alloc_zeros::<u8>(64).unwrap_err().is_device_lost());
    });
}

#[test]
fn a_fill_that_fails_gives_its_memory_back() {
    standin().run(|standin| {
        let Pooled { pool, home, .. } = Pooled::new();
        standin.fail("cuMemsetD8Async", 0, 1, Code::CUDA_ERROR_UNKNOWN);
        assert!(home.alloc_zeros::<u8>(64).is_err());
        standin.fail("cuMemcpyHtoDAsync_v2", 0, 1, Code::CUDA_ERROR_UNKNOWN);
        assert!(home.clone_htod(&[1u8; 64]).is_err());
        assert_eq!((pool.stats().in_use, pool.stats().live), (0, 0));
    });
}

#[test]
fn a_copy_to_the_host_has_ended_when_it_returns() {
    standin().run(|standin| {
        let Pooled { home, .. } = Pooled::new();
        let slice = home.clone_htod(&[3u8; 64]).unwrap();
        standin.reset();
        standin.fail("cuEventRecord", 0, 1, Code::CUDA_ERROR_UNKNOWN);
        assert_eq!(slice.to_vec().unwrap(), [3; 64]);
        assert_eq!(standin.count("cuStreamSynchronize"), 1);
    });
}

#[test]
fn the_threads_state_is_left_as_found() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let pooled = Pooled::new();
        let (other_stream, other) = pooled.another();
        let stranger = pooled.stranger();
        let elsewhere = cudarc::driver::CudaContext::new(1).unwrap();
        let parked = DriverError(Code::CUDA_ERROR_NOT_FOUND);
        for found in [std::ptr::null_mut(), elsewhere.cu_ctx(), pooled.context.cu_ctx()] {
            // SAFETY: sound because the context is alive, or null.
            unsafe { result::ctx::set_current(found).unwrap() };
            pooled.context.record_err(Err::<(), _>(parked));
            let check = |what: &str| assert_eq!(standin.current_context(), found.addr(), "{what}");
            let mut slice = pooled.home.alloc_zeros::<u8>(64).unwrap();
            check("alloc_zeros");
            slice.copy_from_host(&[1; 64]).unwrap();
            check("copy_from_host");
            let copy = pooled.home.clone_htod(&[2u8; 64]).unwrap();
            check("clone_htod");
            slice.use_on(&other).unwrap();
            check("use_on");
            assert_ne!(read_on(&slice, &other_stream), 0);
            assert_ne!(read_on(&slice, &pooled.context.default_stream()), 0);
            check("device_ptr");
            assert_ne!(write_on(&mut slice, &stranger), 0);
            assert_eq!(slice.to_vec().unwrap(), [1; 64]);
            check("to_vec, after a stranger");
            drop(slice.try_clone().unwrap());
            check("try_clone");
            // SAFETY: sound because nothing is submitted.
            let len = unsafe { slice.with_cuda_slice(|lent| lent.len()).unwrap() };
            assert_eq!(len, 64);
            check("with_cuda_slice");
            drop((slice, copy));
            check("drop");
            assert_eq!(pooled.context.check_err(), Err(parked), "still there for its owner");
            assert_eq!(pooled.context.check_err(), Ok(()), "and nothing else");
        }
        assert!(pooled.pool.take_error().is_none());
    });
}

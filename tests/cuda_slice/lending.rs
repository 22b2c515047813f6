//! `CudaSlice`s lent to libraries that insist on one.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What frees memory.
const FREES: [&str; 3] = ["cuMemFree_v2", "cuMemFreeAsync", "cuMemUnmap"];

#[test]
fn a_lent_slice_is_the_memory_and_is_never_freed() {
    standin().run(|standin| {
        let Pooled { pool, stream, home, .. } = Pooled::new();
        let mut slice = home.clone_htod(&[1u8, 2, 3]).unwrap();
        let address = slice.address();
        standin.reset();
        // SAFETY: sound because the copy is made on the home stream.
        let host = unsafe {
            slice.with_cuda_slice(|lent| {
                assert_eq!(lent.device_ptr(&stream).0, address);
                stream.clone_dtoh(lent).unwrap()
            })
        };
        assert_eq!(host.unwrap(), [1, 2, 3]);
        // SAFETY: sound because the copy is made on the home stream, and the slice stays in place.
        unsafe {
            slice.with_cuda_slice_mut(|lent| stream.memcpy_htod(&[9u8], lent).unwrap()).unwrap();
        }
        assert_eq!(slice.to_vec().unwrap(), [9, 2, 3]);
        assert_eq!(standin.count("cuEventDestroy_v2"), 4);
        assert!(FREES.iter().all(|name| standin.count(name) == 0));
        assert!(pool.take_error().is_none());
    });
}

#[test]
fn a_panic_in_the_closure_frees_nothing_either() {
    standin().run(|standin| {
        let Pooled { context, stream, home, .. } = Pooled::new();
        let handles = Arc::strong_count(&stream);
        let slice = home.clone_htod(&[1u8, 2, 3]).unwrap();
        let parked = DriverError(Code::CUDA_ERROR_NOT_FOUND);
        context.record_err(Err::<(), _>(parked));
        standin.reset();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: sound because nothing is submitted.
            unsafe { slice.with_cuda_slice(|_| panic!("in the library")).unwrap() }
        }));
        assert!(caught.is_err());
        assert!(FREES.iter().all(|name| standin.count(name) == 0));
        assert_eq!(standin.count("cuEventDestroy_v2"), standin.count("cuEventCreate"));
        assert_eq!(Arc::strong_count(&stream), handles);
        assert_eq!(context.check_err(), Err(parked));
        assert_eq!(slice.to_vec().unwrap(), [1, 2, 3]);
    });
}

#[test]
fn home_waits_for_the_others_before_a_slice_is_lent() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let (other, registered) = pooled.another();
        let slice = pooled.home.clone_htod(&[1u8, 2, 3]).unwrap();
        slice.use_on(&registered).unwrap();
        standin.reset();
        // SAFETY: sound because nothing is submitted.
        unsafe { slice.with_cuda_slice(|_| ()).unwrap() };
        let (own, others) = (handle(&pooled.stream), handle(&other));
        assert_eq!(effects(standin)[..2], [Effect::Record(others), Effect::Wait(own, others)]);
        // Where that cannot be, the closure does not run.
        standin.fail("cuEventRecord", 0, 2, Code::CUDA_ERROR_UNKNOWN);
        // SAFETY: sound because nothing is submitted.
        let lent = unsafe { slice.with_cuda_slice(|_| panic!("it ran")) };
        lent.unwrap_err();
    });
}

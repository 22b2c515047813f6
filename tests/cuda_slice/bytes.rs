//! What slices hold: fills, copies by the slice itself and by cudarc, views, sizes.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn values_come_back_by_the_slices_own_copies() {
    standin().run(|_| {
        let Pooled { pool, home, .. } = Pooled::new();
        let zeros = home.alloc_zeros::<u32>(1000).unwrap();
        assert_eq!(zeros.to_vec().unwrap(), [0; 1000]);
        let values: Vec<f64> = (0..1000).map(f64::from).collect();
        let mut slice = home.clone_htod(&values).unwrap();
        assert_eq!((slice.len(), slice.num_bytes(), slice.is_empty()), (1000, 8000, false));
        assert_eq!(slice.to_vec().unwrap(), values);
        slice.slice_mut(10..13).copy_from_host(&[-1.0, -2.0, -3.0]).unwrap();
        let mut part = [0.0; 5];
        slice.slice(9..=13).copy_to_host(&mut part).unwrap();
        assert_eq!(part, [9.0, -1.0, -2.0, -3.0, 13.0]);
        let clone = slice.try_clone().unwrap();
        slice.copy_from_host(&vec![7.0; 1000]).unwrap();
        assert_eq!(clone.slice(9..14).to_vec().unwrap(), part);
        assert_ne!(clone.address(), slice.address());
        assert_eq!(clone.pool_stream(), home);
        assert!(pool.take_error().is_none());
    });
}

#[test]
fn cudarcs_own_copies_take_slices_and_views() {
    standin().run(|_| {
        let Pooled { pool, stream, home, .. } = Pooled::new();
        let mut slice = home.clone_htod(&[1u16, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [1, 2, 3, 4, 5, 6]);
        stream.memcpy_htod(&[9u16, 8], &mut slice).unwrap();
        stream.memset_zeros(&mut slice.slice_mut(2..4)).unwrap();
        let mut host = vec![0u16; 6];
        stream.memcpy_dtoh(&slice, &mut host).unwrap();
        assert_eq!(host, [9, 8, 0, 0, 5, 6]);
        #[allow(deprecated)]
        let host = stream.memcpy_dtov(&slice.slice(4..)).unwrap();
        assert_eq!(host, [5, 6]);
        let mut other = home.alloc_zeros::<u16>(6).unwrap();
        stream.memcpy_dtod(&slice.slice(..2), &mut other.slice_mut(3..5)).unwrap();
        let (mut left, mut right) = other.split_at_mut(3);
        stream.memcpy_dtod(&right.slice(..2), &mut left.slice_mut(1..)).unwrap();
        stream.memset_zeros(&mut right).unwrap();
        assert_eq!(stream.clone_dtoh(&other).unwrap(), [0, 9, 8, 0, 0, 0]);
        // From and to what cudarc allocated.
        let theirs = stream.clone_dtod(&other).unwrap();
        stream.memcpy_dtod(&theirs.slice(1..3), &mut slice).unwrap();
        assert_eq!(slice.slice(..2).to_vec().unwrap(), [9, 8]);
        assert!(pool.take_error().is_none());
    });
}

#[test]
fn nothing_is_a_valid_slice() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Nothing;
    // SAFETY: sound because there are no bytes to be represented.
    unsafe impl cudarc::driver::DeviceRepr for Nothing {}
    standin().run(|standin| {
        let Pooled { stream, home, .. } = Pooled::new();
        standin.reset();
        let mut none = home.alloc_zeros::<u64>(0).unwrap();
        assert_eq!((none.len(), none.address()), (0, 0));
        assert!(none.to_vec().unwrap().is_empty());
        assert!(none.try_clone().unwrap().is_empty());
        none.copy_from_host(&[]).unwrap();
        assert!(home.clone_htod::<u64>(&[]).unwrap().slice(..).is_empty());
        // Elements without bytes are elements.
        let unit = home.clone_htod(&[Nothing; 5]).unwrap();
        assert_eq!((unit.len(), unit.num_bytes(), unit.address()), (5, 0, 0));
        assert_eq!(unit.slice(1..3).to_vec().unwrap(), [Nothing; 2]);
        // SAFETY: sound because nothing is read.
        let many = unsafe { home.alloc_slice::<Nothing>(usize::MAX).unwrap() };
        assert_eq!(many.split_at(7).1.len(), usize::MAX - 7);
        assert_eq!(standin.names(), Vec::<String>::new());
        assert_eq!(read_on::<u8>(&home.alloc_zeros::<u8>(0).unwrap(), &stream), 0);
    });
}

#[test]
fn sizes_that_wrap_are_too_large() {
    standin().run(|standin| {
        let Pooled { home, .. } = Pooled::new();
        standin.reset();
        for len in [usize::MAX, usize::MAX / 8 + 1, usize::MAX / 8, 1 << 61, (1 << 61) - 1] {
            let error = home.alloc_zeros::<u64>(len).unwrap_err();
            assert!(error.is_too_large(), "{len}: {error}");
            // SAFETY: sound because nothing is read.
            let error = unsafe { home.alloc_slice::<[u64; 4]>(len).unwrap_err() };
            assert!(error.is_too_large(), "{len}: {error}");
        }
        assert_eq!(standin.calls(), 0);
    });
}

#[test]
fn elements_are_aligned() {
    #[derive(Clone, Copy)]
    #[repr(align(4096))]
    struct Page;
    // SAFETY: sound because it is plain bytes.
    unsafe impl cudarc::driver::ValidAsZeroBits for Page {}
    standin().run(|_| {
        let Pooled { home, .. } = Pooled::new();
        let _odd = home.alloc(300).unwrap();
        for len in [1, 3, 2] {
            let pages = home.alloc_zeros::<[Page; 1]>(len).unwrap();
            assert_eq!(pages.address() % 4096, 0);
        }
    });
}

#[test]
fn views_stay_within_their_slice() {
    standin().run(|_| {
        let Pooled { home, .. } = Pooled::new();
        let mut slice = home.clone_htod(&[0u8, 1, 2, 3]).unwrap();
        assert!(slice.try_slice(..5).is_none() && slice.try_slice_mut(5..).is_none());
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = 3..2;
        assert!(slice.try_slice(reversed).is_none() && slice.try_slice(..=usize::MAX).is_none());
        assert!(slice.try_slice(4..).unwrap().is_empty());
        let view = slice.slice(1..);
        assert!(view.try_slice(..4).is_none());
        assert_eq!(view.slice(1..).slice(..1).to_vec().unwrap(), [2]);
        assert_eq!(DeviceSlice::len(&view), 3);
        let mut view = slice.slice_mut(1..);
        assert!(view.try_slice_mut(..4).is_none() && view.try_slice(2..4).is_none());
        view.slice_mut(1..2).copy_from_host(&[9]).unwrap();
        assert_eq!(view.as_view().to_vec().unwrap(), [1, 9, 3]);
        let (left, right) = view.split_at_mut(3);
        assert_eq!((left.len(), right.len()), (3, 0));
        let panics = |run: &dyn Fn() -> usize| catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        let panic = panics(&|| slice.slice(2..5).len());
        let text = panic.downcast_ref::<String>().unwrap();
        assert_eq!(text, "a range reaches beyond the 4 elements of a slice");
        panics(&|| slice.split_at(5).0.len());
    });
}

#[test]
fn a_slice_is_a_buffer_with_a_type() {
    standin().run(|standin| {
        let Pooled { home, .. } = Pooled::new();
        let slice = home.clone_htod(&[1u32, 2]).unwrap();
        standin.reset();
        let buffer = slice.into_buffer();
        assert_eq!(buffer.len(), 8);
        // SAFETY: sound because any bytes are bytes.
        let bytes = unsafe { PooledSlice::<u8>::from_buffer(buffer, 5) };
        assert_eq!(standin.calls(), 0);
        assert_eq!(bytes.to_vec().unwrap(), [1, 0, 0, 0, 2]);
        let short = bytes.into_buffer();
        // SAFETY: sound because it panics.
        let panic = catch_unwind(AssertUnwindSafe(|| unsafe {
            PooledSlice::<u32>::from_buffer(short, 3).len()
        }));
        let text = panic.unwrap_err().downcast_ref::<String>().unwrap().clone();
        assert_eq!(text, "3 elements of 4 bytes do not fit 8 bytes");
    });
}

//! Which stream waits for which, when cudarc asks for an address.

use super::*;

#[test]
fn at_home_alone_nothing_is_called() {
    standin().run(|standin| {
        let Pooled { stream, home, .. } = Pooled::new();
        let mut slice = home.alloc_zeros::<u8>(100).unwrap();
        standin.reset();
        assert_eq!(read_on(&slice, &stream), slice.address());
        assert_eq!(write_on(&mut slice, &stream), slice.address());
        assert_eq!(read_on(&slice.slice(10..), &stream), slice.address() + 10);
        assert_eq!(write_on(&mut slice.slice_mut(10..), &stream), slice.address() + 10);
        drop(slice);
        // SAFETY: sound because nothing is read.
        let again = unsafe { home.alloc_slice::<u64>(12).unwrap() };
        assert_eq!(again.stream(), &stream);
        assert_eq!(standin.calls(), 0);
    });
}

/// A tag asks for nothing, and stays when others have used the slice.
#[test]
fn a_slice_keeps_its_tag() {
    standin().run(|standin| {
        let with_history = |backend| CudaPool::builder(backend).history(100).build().unwrap();
        let pooled = Pooled::with(with_history);
        let [weights, saved] = ["weights", "saved"].map(Tag::new);
        let mut slice = weights.within(|| pooled.home.alloc_zeros::<u8>(100)).unwrap();
        let plain = pooled.home.alloc_zeros::<u8>(100).unwrap();
        standin.reset();
        assert_eq!((slice.tag(), plain.tag()), (Some(weights), None));
        assert_eq!(write_on(&mut slice, &pooled.stream), slice.address());
        slice.set_tag(saved);
        assert_eq!(read_on(&slice, &pooled.stream), slice.address());
        assert_eq!(standin.calls(), 0);
        let (stranger, registered) = pooled.another();
        slice.use_on(&registered).unwrap();
        write_on(&mut slice, &stranger);
        write_on(&mut slice, &pooled.context.new_stream().unwrap());
        assert_eq!(slice.tag(), Some(saved));
        let snapshot = pooled.pool.snapshot();
        assert_eq!(snapshot.block_at(slice.address()).unwrap().tag, Some(saved));
        drop(slice);
        assert!(pooled.pool.snapshot().blocks().all(|block| block.tag.is_none()));
    });
}

#[test]
fn a_copy_elsewhere_waits_for_home_and_is_waited_for() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let Pooled { pool, stream, home, .. } = &pooled;
        let (other, _other) = pooled.another();
        let (own, others) = (handle(stream), handle(&other));
        let mut slice = home.alloc_zeros::<u8>(1 << 20).unwrap();
        let address = slice.address();
        standin.reset();
        standin.hold(other.cu_stream());
        other.memcpy_htod(&[5; 3], &mut slice).unwrap();
        assert_eq!(
            effects(standin),
            [
                Effect::Record(own),
                Effect::Wait(others, own),
                Effect::Call("cuMemcpyHtoDAsync_v2".into(), others)
            ]
        );
        // A read at home waits for that stream, each time: what it has been given since is not known.
        for _ in 0..2 {
            assert_eq!(read_on(&slice, stream), address);
            assert_eq!(effects(standin), [Effect::Record(others), Effect::Wait(own, others)]);
        }
        drop(slice);
        assert_eq!(effects(standin), []);
        // The next owner comes after both.
        let next = home.alloc(1 << 20).unwrap();
        let waited = effects(standin);
        assert!(
            next.device_ptr() != address || waited.contains(&Effect::Wait(own, others)),
            "taken over with no wait: {waited:?}"
        );
        standin.release(other.cu_stream());
        assert!(pool.take_error().is_none());
    });
}

#[test]
fn the_memory_of_a_pending_copy_elsewhere_is_not_taken_over() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let (other, _other) = pooled.another();
        let slice = pooled.home.alloc_zeros::<u8>(1 << 20).unwrap();
        let address = slice.address();
        standin.hold(other.cu_stream());
        let mut copy = pooled.home.alloc_zeros::<u8>(1 << 20).unwrap();
        other.memcpy_dtod(&slice, &mut copy).unwrap();
        drop((slice, copy));
        standin.reset();
        let next = pooled.home.alloc(1 << 20).unwrap();
        let waits = standin.count("cuStreamWaitEvent");
        assert!(next.device_ptr() != address || waits > 0, "taken over while the copy is pending");
        standin.release(other.cu_stream());
    });
}

#[test]
fn a_third_stream_waits_for_home_and_for_the_second() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let Pooled { stream, home, .. } = &pooled;
        let ((second, _second), (third, third_registered)) = (pooled.another(), pooled.another());
        let (one, two, three) = (handle(stream), handle(&second), handle(&third));
        let mut slice = home.alloc_zeros::<u8>(64).unwrap();
        assert_eq!(write_on(&mut slice, &second), slice.address());
        standin.reset();
        assert_eq!(write_on(&mut slice.slice_mut(5..9), &third), slice.address() + 5);
        assert_eq!(
            effects(standin),
            [
                Effect::Record(one),
                Effect::Wait(three, one),
                Effect::Record(two),
                Effect::Wait(three, two)
            ]
        );
        // Moved, the set stays: the new home waits for the second stream.
        slice.move_to(&third_registered).unwrap();
        standin.reset();
        assert_eq!(read_on(&slice, &third), slice.address());
        assert_eq!(effects(standin), [Effect::Record(two), Effect::Wait(three, two)]);
    });
}

#[test]
fn the_slices_own_copies_wait_for_the_others() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let Pooled { stream, home, .. } = &pooled;
        let (other, registered) = pooled.another();
        let (own, others) = (handle(stream), handle(&other));
        let mut slice = home.clone_htod(&[1u8, 2]).unwrap();
        slice.use_on(&registered).unwrap();
        let waits = [Effect::Record(others), Effect::Wait(own, others)];
        let call = |name: &str| Effect::Call(name.into(), own);
        standin.reset();
        let _clone = slice.try_clone().unwrap();
        assert_eq!(effects(standin), [&waits[..], &[call("cuMemcpyDtoDAsync_v2")]].concat());
        slice.copy_from_host(&[3, 4]).unwrap();
        assert_eq!(effects(standin), [&waits[..], &[call("cuMemcpyHtoDAsync_v2")]].concat());
        assert_eq!(slice.to_vec().unwrap(), [3, 4]);
        let end = [call("cuMemcpyDtoHAsync_v2"), Effect::Record(own), Effect::Synchronize(own)];
        assert_eq!(effects(standin), [&waits[..], &end].concat());
    });
}

#[test]
fn a_capturing_stream_is_not_disturbed() {
    standin().run(|standin| {
        let pooled = Pooled::new();
        let Pooled { pool, stream, home, .. } = &pooled;
        let (other, registered) = pooled.another();
        let (own, others) = (handle(stream), handle(&other));
        let slice = home.alloc_zeros::<u8>(64).unwrap();
        slice.use_on(&registered).unwrap();
        for mode in [Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, Mode::CU_STREAM_CAPTURE_MODE_RELAXED] {
            // At home: the host waits for the other stream, since the capture must not.
            stream.begin_capture(mode).unwrap();
            standin.reset();
            assert_eq!(read_on(&slice, stream), slice.address());
            assert_eq!(effects(standin), [Effect::Record(others), Effect::Synchronize(others)]);
            assert!(slice.to_vec().unwrap_err().is_capture());
            assert!(slice.try_clone().unwrap_err().is_capture());
            assert!(home.alloc_zeros::<u8>(64).unwrap_err().is_capture());
            stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap();
            // On the other: the host waits for home.
            other.begin_capture(mode).unwrap();
            standin.reset();
            assert_eq!(read_on(&slice, &other), slice.address());
            assert_eq!(effects(standin), [Effect::Record(own), Effect::Synchronize(own)]);
            other.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap();
        }
        assert!(pool.take_error().is_none());
    });
}

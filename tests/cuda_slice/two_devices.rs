//! Streams of another device.

use super::*;
use cudarc::driver::CudaContext;
use streampool::Growth;
use streampool::cuda::CudaPools;

use super::standin::Standin;

#[test]
fn a_stream_of_a_peer_is_found_and_any_other_refused() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let far = CudaContext::new(1).unwrap();
        let far_pool = CudaPool::new(CudaBackend::new(&far).unwrap());
        let (known, unknown) = (far.new_stream().unwrap(), far.new_stream().unwrap());
        let _known = far_pool.stream(Arc::clone(&known)).unwrap();
        let pooled =
            Pooled::with(|backend| CudaPool::builder(backend).peers([&far_pool]).build().unwrap());
        let slice = pooled.home.clone_htod(&[7u8; 64]).unwrap();
        standin.reset();
        assert_eq!(read_on(&slice, &known), slice.address());
        let (own, fars) = (handle(&pooled.stream), handle(&known));
        assert_eq!(effects(standin), [Effect::Record(own), Effect::Wait(fars, own)]);
        assert_eq!(read_on(&slice, &pooled.stream), slice.address());
        assert_eq!(effects(standin), [Effect::Record(fars), Effect::Wait(own, fars)]);
        assert!(pooled.pool.take_error().is_none());
        // A synchronize of this context would not wait for it.
        assert_eq!(read_on(&slice, &unknown), 0);
        assert!(pooled.pool.take_error().unwrap().is_wrong_stream());
    });
}

#[test]
fn a_stream_without_access_is_refused() {
    standin().with("STANDIN_DEVICES", 2).run(|_| {
        let pooled = Pooled::new();
        let far = CudaContext::new(1).unwrap();
        let far_pool = CudaPool::new(CudaBackend::new(&far).unwrap());
        let stream = far.new_stream().unwrap();
        let registered = far_pool.stream(Arc::clone(&stream)).unwrap();
        let slice = pooled.home.clone_htod(&[7u8; 64]).unwrap();
        assert_eq!(read_on(&slice, &stream), 0);
        assert!(pooled.pool.take_error().unwrap().is_wrong_stream());
        assert!(slice.use_on(&registered).unwrap_err().is_wrong_stream());
    });
}

#[test]
fn a_slice_is_copied_to_another_device_in_order_and_with_no_access() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let pooled =
            Pooled::with(|backend| CudaPool::builder(backend).limit(2 << 20).build().unwrap());
        let far = CudaContext::new(1).unwrap();
        let far_pool = CudaPool::new(CudaBackend::new(&far).unwrap());
        let stream = far.new_stream().unwrap();
        let registered = far_pool.stream(Arc::clone(&stream)).unwrap();
        let (second, other) = pooled.another();
        // All that the first pool may have.
        let values: Vec<u32> = (0..1 << 19).collect();
        let slice = pooled.home.clone_htod(&values).unwrap();
        slice.use_on(&other).unwrap();
        // A block on the other device, so that the copy makes only its own calls.
        drop(registered.alloc_zeros::<u32>(values.len()).unwrap());
        standin.reset();
        let copy = slice.copy_to(&registered).unwrap();
        let [own, named, fars] = [&pooled.stream, &second, &stream].map(|stream| handle(stream));
        let copied = Effect::Call("cuMemcpyPeerAsync".to_owned(), fars);
        let waits = [
            Effect::Record(own),
            Effect::Wait(fars, own),
            Effect::Record(named),
            Effect::Wait(fars, named),
            copied,
        ];
        assert_eq!(effects(standin), waits);
        assert_eq!(copy.to_vec().unwrap(), values);
        assert_eq!((copy.len(), copy.pool_stream() == registered), (values.len(), true));
        // The next owner comes after a copy that is late: here home itself.
        standin.hold(stream.cu_stream());
        let late = slice.copy_to(&registered).unwrap();
        drop(slice);
        standin.reset();
        let _next = pooled.home.alloc_zeros::<u8>(2 << 20).unwrap();
        let all = effects(standin);
        assert!(all.contains(&Effect::Wait(own, fars)), "{all:?}");
        standin.release(stream.cu_stream());
        assert_eq!(late.to_vec().unwrap(), values);
        assert!(pooled.pool.take_error().is_none() && far_pool.take_error().is_none());
    });
}

#[test]
fn pools_of_all_devices_know_each_others_streams_and_may_use_each_others_memory() {
    standin().with("STANDIN_DEVICES", 3).run(|standin| {
        // They stay, so that the one that is current does.
        let _contexts: Vec<_> = (0..3).map(|at| CudaContext::new(at).unwrap()).collect();
        for growth in [Growth::Virtual, Growth::Segments] {
            use_each_others_memory(standin, growth);
        }
    });
}

fn use_each_others_memory(standin: &Standin, growth: Growth) {
    let current = standin.current_context();
    let pools = CudaPools::configured(CudaBackend::open_all().unwrap(), move |builder| {
        builder.growth(growth)
    });
    assert_eq!((pools.len(), standin.current_context()), (3, current));
    let contexts: Vec<_> = (0..3).map(|at| CudaContext::new(at).unwrap()).collect();
    let streams: Vec<_> = contexts.iter().map(|own| own.new_stream().unwrap()).collect();
    let homes: Vec<_> = (streams.iter().enumerate())
        .map(|(at, stream)| pools.pool(at).unwrap().stream(Arc::clone(stream)).unwrap())
        .collect();
    for (at, home) in homes.iter().enumerate() {
        let slice = home.clone_htod(&[at as u8; 64]).unwrap();
        for (other, context) in streams.iter().zip(&contexts) {
            assert_eq!(read_on(&slice, other), slice.address());
            // The device itself may touch it: a fill there is a kernel of that device.
            // SAFETY: sound because the context is alive, the slice lives, and the stream waits for what
            // was before.
            unsafe {
                result::ctx::set_current(context.cu_ctx()).unwrap();
                result::memset_d8_async(slice.address(), 9, 64, other.cu_stream()).unwrap();
            }
            other.synchronize().unwrap();
        }
        assert_eq!(slice.to_vec().unwrap(), [9; 64]);
        assert!(pools.pool(at).unwrap().take_error().is_none());
    }
    let scopes = pools.quiesce().unwrap();
    assert_eq!(scopes.finish().len(), 3);
    drop(homes);
    pools.close().unwrap();
}

#[test]
fn a_device_that_is_lost_ends_no_other_devices_pool() {
    standin().with("STANDIN_DEVICES", 2).run(|standin| {
        let pooled = Pooled::new();
        let far = CudaContext::new(1).unwrap();
        let far_pool = CudaPool::new(CudaBackend::new(&far).unwrap());
        let (stream, registered) =
            (far.new_stream().unwrap(), far_pool.stream(far.new_stream().unwrap()));
        let pools = CudaPools::new(CudaBackend::open_all().unwrap());
        standin.stick(far.cu_ctx(), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
        // Which stream it is, its own context is asked.
        assert!(pooled.pool.stream(stream).unwrap_err().is_device_lost());
        // Access is given in the context that gains it.
        let backend = CudaBackend::new(pooled.stream.context()).unwrap();
        let builder = CudaPool::builder(backend).growth(Growth::Segments).peers([&far_pool]);
        assert!(builder.build().unwrap_err().is_device_lost());
        let alone = pools.pool(0).unwrap().stream(pooled.stream.clone()).unwrap();
        for home in [&pooled.home, &alone] {
            assert_eq!(home.clone_htod(&[7u8; 64]).unwrap().to_vec().unwrap(), [7; 64]);
        }
        let of_the_lost = pools.pool(1).and_then(|pool| pool.reserve(1));
        assert!(of_the_lost.unwrap_err().is_device_lost());
        assert!(registered.unwrap().mark().unwrap_err().is_device_lost());
    });
}

//! Streams of another device.

use super::*;
use cudarc::driver::CudaContext;

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

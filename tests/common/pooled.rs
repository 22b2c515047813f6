//! A pool on the first CUDA device: a real one, or the stand-in's.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use streampool::PoolStream;
use streampool::cuda::{CudaBackend, CudaPool};

/// A context, a pool of it, and one stream that is registered.
pub(crate) struct Pooled {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) pool: CudaPool,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) home: PoolStream<CudaBackend>,
}

impl Pooled {
    pub(crate) fn new() -> Pooled {
        Pooled::with(CudaPool::new)
    }

    pub(crate) fn with(make: impl FnOnce(CudaBackend) -> CudaPool) -> Pooled {
        let context = CudaContext::new(0).unwrap();
        let pool = make(CudaBackend::new(&context).unwrap());
        let stream = context.new_stream().unwrap();
        let home = pool.stream(Arc::clone(&stream)).unwrap();
        Pooled { context, pool, stream, home }
    }

    /// One more stream, registered.
    pub(crate) fn another(&self) -> (Arc<CudaStream>, PoolStream<CudaBackend>) {
        let stream = self.context.new_stream().unwrap();
        let registered = self.pool.stream(Arc::clone(&stream)).unwrap();
        (stream, registered)
    }

    /// One more stream, which the pool does not know.
    pub(crate) fn stranger(&self) -> Arc<CudaStream> {
        self.context.new_stream().unwrap()
    }
}

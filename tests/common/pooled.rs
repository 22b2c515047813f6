//! A pool on the stand-in's first device, and what its log says of ordering.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use streampool::PoolStream;
use streampool::cuda::{CudaBackend, CudaPool};

use crate::standin::{Logged, Standin};

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

/// A call that orders work or moves it: what remains of a log without the calls that only look or
/// prepare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// An event was recorded on this stream.
    Record(usize),
    /// This stream was made to wait for the event that was last recorded on the other.
    Wait(usize, usize),
    /// The host waited for the event that was last recorded on this stream.
    Synchronize(usize),
    /// The host waited for the context.
    SynchronizeContext,
    /// Another call, on this stream.
    Call(String, usize),
}

/// Takes the log out, and says what it did.
pub(crate) fn effects(standin: &Standin) -> Vec<Effect> {
    let mut recorded = std::collections::BTreeMap::new();
    let mut all = Vec::new();
    for Logged { name, stream, event, code, .. } in standin.log() {
        let source = recorded.get(&event).copied().unwrap_or(0);
        match name.as_str() {
            "cuCtxGetCurrent"
            | "cuCtxSetCurrent"
            | "cuThreadExchangeStreamCaptureMode"
            | "cuStreamIsCapturing"
            | "cuEventCreate"
            | "cuEventDestroy_v2"
            | "cuEventQuery" => {}
            _ if code != 0 => all.push(Effect::Call(format!("{name}: {code}"), stream)),
            "cuEventRecord" => {
                recorded.insert(event, stream);
                all.push(Effect::Record(stream));
            }
            "cuStreamWaitEvent" => all.push(Effect::Wait(stream, source)),
            "cuEventSynchronize" => all.push(Effect::Synchronize(source)),
            "cuCtxSynchronize" => all.push(Effect::SynchronizeContext),
            _ => all.push(Effect::Call(name, stream)),
        }
    }
    all
}

/// A stream's handle, as the log has it.
pub(crate) fn handle(stream: &CudaStream) -> usize {
    stream.cu_stream().addr()
}

//! What the stand-in's log says of ordering.

use cudarc::driver::CudaStream;

use super::standin::{Logged, Standin};

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

//! The simulated device as a [`Backend`].

use super::counts::Call;
use super::device::SimDevice;
use super::error::{SimError, SimErrorCode as Code};
use super::handles::{SimEvent, SimGranule, SimStream};
use super::kernel::Kernel;
use super::state::{By, State};
use crate::backend::{Backend, ErrorKind, MemoryInfo, StreamIdentity};

/// The verbs of a pool run with the thread relaxed: they break no capture of another stream.
fn relaxed(_: &mut State) -> Result<(), Code> {
    Ok(())
}

// SAFETY: addresses come from one `AddressSpace` for all devices of the machine, which gives a range
// out only while nobody has it, so live ranges do not overlap. Streams execute in order and a wait
// executes only after the record that it names (`Engine::start_head`), so record and wait have CUDA's
// meaning; a query is true, and a synchronize returns `Ok`, only when the record has executed, which
// is after all that was on its stream. No safe code dereferences these addresses: there is no memory
// behind them but the simulation's own.
unsafe impl Backend for SimDevice {
    type Stream = SimStream;
    type Event = SimEvent;
    type Granule = SimGranule;
    type Error = SimError;

    fn error_kind(&self, error: &SimError) -> ErrorKind {
        error.kind()
    }

    fn context_id(&self) -> u64 {
        self.context_id
    }

    fn identify(&self, stream: &SimStream) -> Result<StreamIdentity, SimError> {
        let (context, handle, kind) = (stream.context_id(), stream.handle(), stream.kind());
        Ok(StreamIdentity { context, handle, kind })
    }

    fn is_capturing(&self, stream: &SimStream) -> Result<bool, SimError> {
        self.call(Call::IsCapturing, |state| {
            let stream = self.timeline(state, stream)?;
            Ok(state.captures.any() && state.is_capturing(stream))
        })
    }

    fn release_stream(&self, stream: SimStream) {
        // It cannot fail, also on a lost device: only the count, the time and the pauses matter.
        let _ = self.call(Call::ReleaseStream, |_| Ok(()));
        drop(stream);
    }

    fn memory_info(&self) -> Result<MemoryInfo, SimError> {
        self.call(Call::MemoryInfo, |state| {
            let account = &state.memory.accounts[self.context];
            Ok(MemoryInfo { free: account.total - account.in_use, total: account.total })
        })
    }

    fn granularity(&self) -> Option<u64> {
        self.granularity
    }

    fn alloc_segment(&self, bytes: u64) -> Result<u64, SimError> {
        self.call(Call::AllocSegment, |state| state.alloc_segment(self.context, bytes))
    }

    unsafe fn free_segment(&self, address: u64, bytes: u64) -> Result<(), SimError> {
        self.call(Call::FreeSegment, |state| state.free_segment(self.context, address, bytes))
    }

    fn reserve_range(&self, bytes: u64) -> Result<u64, SimError> {
        self.call(Call::ReserveRange, |state| state.memory.reserve(bytes))
    }

    unsafe fn release_range(&self, address: u64, bytes: u64) -> Result<(), SimError> {
        self.call(Call::ReleaseRange, |state| {
            let released = state.memory.release(address, bytes);
            state.checked(released, "release of a range that is not reserved, or not empty")
        })
    }

    fn create_granule(&self, bytes: u64) -> Result<SimGranule, SimError> {
        self.call(Call::CreateGranule, |state| {
            let index = state.memory.create_granule(self.context, bytes)?;
            state.engine.now += state.costs.sized(Call::CreateGranule, bytes);
            Ok(SimGranule { machine: self.machine.id, index, bytes })
        })
    }

    unsafe fn destroy_granule(&self, granule: SimGranule) -> Result<(), (SimGranule, SimError)> {
        self.call(Call::DestroyGranule, |state| {
            let index = self.granule(&granule)?;
            state.destroy_granule(index, granule.bytes)
        })
        .map_err(|error| (granule, error))
    }

    unsafe fn map(&self, address: u64, bytes: u64, granule: &SimGranule) -> Result<(), SimError> {
        self.call(Call::Map, |state| {
            let index = self.granule(granule)?;
            let mapped = state.memory.map(address, bytes, index);
            state.engine.now += state.costs.sized(Call::Map, bytes);
            state.checked(mapped, "map outside a reserved range, over a mapping, or not whole")
        })
    }

    unsafe fn set_access(
        &self,
        address: u64,
        bytes: u64,
        peers: &[&SimDevice],
    ) -> Result<(), SimError> {
        self.call(Call::SetAccess, |state| {
            let mut devices = 1 << self.context;
            for peer in peers {
                let peer = self.peer(peer)?;
                state.is_well(peer)?;
                devices |= 1 << peer;
            }
            state.set_access(address, bytes, devices)
        })
    }

    unsafe fn unmap(&self, address: u64, bytes: u64) -> Result<(), SimError> {
        self.call(Call::Unmap, |state| state.unmap(self.context, address, bytes))
    }

    fn allow_peer(&self, peer: &SimDevice, segments: bool) -> Result<(), SimError> {
        self.call(Call::AllowPeer, |state| {
            let peer = self.peer(peer)?;
            state.is_well(peer)?;
            if segments {
                state.memory.allow_peer(self.context, peer);
            }
            Ok(())
        })
    }

    unsafe fn copy(
        &self,
        stream: &SimStream,
        to: u64,
        source: &SimDevice,
        from: u64,
        bytes: u64,
    ) -> Result<(), SimError> {
        self.call(Call::Copy, |state| {
            let stream = self.own_timeline(state, stream)?;
            let source = self.peer(source)?;
            state.is_well(source)?;
            if state.is_capturing(stream) {
                return Err(Code::CaptureUnsupported);
            }
            let mut copy = Kernel::copy_between((to, self.context), (from, source), bytes);
            state.launch(stream, &mut copy)
        })
    }

    fn create_event(&self) -> Result<SimEvent, SimError> {
        self.call(Call::CreateEvent, |state| {
            state.contexts[self.context].events += 1;
            let index = state.events.create(self.context);
            Ok(SimEvent { machine: self.machine.id, index })
        })
    }

    fn destroy_event(&self, event: SimEvent) {
        // On a lost device the call fails, and the event goes with the context.
        let _ = self.call(Call::DestroyEvent, |_| Ok(()));
        if event.machine == self.machine.id {
            self.machine.lock().destroy_event(event.index);
        }
    }

    fn record(&self, event: &SimEvent, stream: &SimStream) -> Result<(), SimError> {
        self.call(Call::Record, |state| {
            let stream = self.timeline(state, stream)?;
            state.record(self.event(event)?, stream)
        })
    }

    fn record_context(&self, event: &SimEvent) -> Result<bool, SimError> {
        if !self.context_events {
            return Ok(false);
        }
        self.call(Call::RecordContext, |state| {
            state.record_context(self.event(event)?, self.context)
        })?;
        Ok(true)
    }

    fn wait(&self, stream: &SimStream, event: &SimEvent) -> Result<(), SimError> {
        self.call(Call::Wait, |state| {
            let timeline = self.timeline(state, stream)?;
            state.is_well(stream.context())?;
            state.wait(timeline, self.event(event)?)
        })
    }

    fn query(&self, event: &SimEvent) -> Result<bool, SimError> {
        let index = self.event(event).map_err(|code| SimError::new(code, Call::Query))?;
        self.machine.query(self.context, By::Pool, index, relaxed)
    }

    fn synchronize_event(&self, event: &SimEvent) -> Result<(), SimError> {
        let index =
            self.event(event).map_err(|code| SimError::new(code, Call::SynchronizeEvent))?;
        self.machine.synchronize_event(self.context, By::Pool, index, relaxed)
    }

    fn synchronize_context(&self) -> Result<(), SimError> {
        self.machine.synchronize_context(self.context)
    }
}

impl SimDevice {
    /// The timeline of a stream of this machine.
    #[inline]
    pub(super) fn timeline(
        &self,
        state: &mut State,
        stream: &SimStream,
    ) -> Result<super::clock::TimelineId, Code> {
        if !stream.is_of(&self.machine) {
            return Err(Code::InvalidHandle);
        }
        Ok(stream.timeline(state))
    }

    #[inline]
    pub(super) fn event(&self, event: &SimEvent) -> Result<usize, Code> {
        if event.machine == self.machine.id { Ok(event.index) } else { Err(Code::InvalidHandle) }
    }

    fn granule(&self, granule: &SimGranule) -> Result<usize, Code> {
        if granule.machine == self.machine.id {
            Ok(granule.index)
        } else {
            Err(Code::InvalidHandle)
        }
    }

    fn peer(&self, peer: &SimDevice) -> Result<usize, Code> {
        let same_machine = peer.machine.id == self.machine.id;
        if same_machine { Ok(peer.context) } else { Err(Code::InvalidValue) }
    }
}

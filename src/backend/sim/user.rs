//! What the host program does beside its pool: captures, calls that are not relaxed, and the state
//! of its threads.
#![forbid(unsafe_code)]

use super::capture::{CaptureMode, SimGraph};
use super::counts::Call;
use super::device::SimDevice;
use super::error::{SimError, SimErrorCode as Code};
use super::handles::{SimEvent, SimStream};
use super::state::{By, State};
use super::thread;

/// A potentially unsafe call, by a thread in the mode that it has chosen.
fn unsafe_call(state: &mut State) -> Result<(), Code> {
    state.captures.check_unsafe_call()
}

/// # Captures
impl SimDevice {
    /// Begins a capture: what is put on the stream from here on goes into a graph.
    ///
    /// # Errors
    ///
    /// For the legacy stream, a stream of another device, or one that captures already.
    pub fn begin_capture(&self, stream: &SimStream, mode: CaptureMode) -> Result<(), SimError> {
        self.program(Call::IsCapturing, |state| {
            let stream = self.own_timeline(state, stream)?;
            state.begin_capture(stream, mode)
        })
    }

    /// Ends the capture that was begun on the stream.
    ///
    /// # Errors
    ///
    /// If something has broken the capture or a stream that it drew in was not joined again (it ends
    /// all the same); if it was begun on another stream, or by another thread and not in relaxed
    /// mode (it goes on).
    pub fn end_capture(&self, stream: &SimStream) -> Result<SimGraph, SimError> {
        self.program(Call::IsCapturing, |state| {
            let stream = self.own_timeline(state, stream)?;
            state.end_capture(stream)
        })
    }

    /// Launches a graph on a stream. Its kernels' uses happen there and then.
    ///
    /// # Errors
    ///
    /// As for [`launch`](Self::launch).
    pub fn launch_graph(&self, graph: &SimGraph, stream: &SimStream) -> Result<(), SimError> {
        self.call(Call::Launch, |state| {
            let stream = self.own_timeline(state, stream)?;
            state.launch_graph(graph, stream)
        })
    }

    /// Sets which potentially unsafe calls the calling thread may make while a stream captures, on
    /// any machine, and returns what it was (CUDA: `cuThreadExchangeStreamCaptureMode`). Threads
    /// begin with [`CaptureMode::Global`].
    pub fn exchange_capture_mode(mode: CaptureMode) -> CaptureMode {
        thread::exchange_capture_mode(mode)
    }
}

/// # The program's own calls
///
/// The verbs of [`Backend`](crate::backend::Backend) are those of a careful library: they break no
/// capture of another stream. These are what any other code calls: with the thread in the mode that
/// [`exchange_capture_mode`](SimDevice::exchange_capture_mode) has set. They are not counted.
impl SimDevice {
    /// Whether all on the stream has finished.
    ///
    /// # Errors
    ///
    /// Capture errors, which break the capture, and the device's own.
    pub fn user_stream_query(&self, stream: &SimStream) -> Result<bool, SimError> {
        self.program(Call::Query, |state| {
            let stream = self.timeline(state, stream)?;
            state.break_capture_on(stream)?;
            unsafe_call(state)?;
            let (timeline, op, clock) = state.target_of_stream(stream);
            let finished = state.engine.has_executed(timeline, op);
            if finished {
                state.learn(timeline, op, &clock);
            }
            Ok(finished)
        })
    }

    /// Blocks until all on the stream has finished.
    ///
    /// # Errors
    ///
    /// As for [`user_stream_query`](Self::user_stream_query).
    pub fn user_stream_synchronize(&self, stream: &SimStream) -> Result<(), SimError> {
        self.machine.synchronize(self.context, (Call::SynchronizeEvent, By::Program), |state| {
            let stream = self.timeline(state, stream)?;
            state.break_capture_on(stream)?;
            unsafe_call(state)?;
            Ok(vec![state.target_of_stream(stream)])
        })
    }

    /// Queries an event, as [`Backend::query`](crate::backend::Backend::query) but not relaxed.
    ///
    /// # Errors
    ///
    /// As for [`user_stream_query`](Self::user_stream_query).
    pub fn user_event_query(&self, event: &SimEvent) -> Result<bool, SimError> {
        let index = self.event(event).map_err(|code| SimError::new(code, Call::Query))?;
        self.machine.query(self.context, By::Program, index, unsafe_call)
    }

    /// Waits for an event, as
    /// [`Backend::synchronize_event`](crate::backend::Backend::synchronize_event) but not relaxed.
    ///
    /// # Errors
    ///
    /// As for [`user_stream_query`](Self::user_stream_query).
    pub fn user_event_synchronize(&self, event: &SimEvent) -> Result<(), SimError> {
        let call = Call::SynchronizeEvent;
        let index = self.event(event).map_err(|code| SimError::new(code, call))?;
        self.machine.synchronize_event(self.context, By::Program, index, unsafe_call)
    }

    /// Takes memory (CUDA: `cuMemAlloc`).
    ///
    /// # Errors
    ///
    /// Out of memory; capture errors, which break the capture; the device's own.
    pub fn user_alloc(&self, bytes: u64) -> Result<u64, SimError> {
        self.program(Call::AllocSegment, |state| {
            unsafe_call(state)?;
            state.alloc_segment(self.context, bytes)
        })
    }

    /// Gives memory back (CUDA: `cuMemFree`).
    ///
    /// # Errors
    ///
    /// Capture errors, which break the capture; the device's own.
    pub fn user_free(&self, address: u64, bytes: u64) -> Result<(), SimError> {
        self.program(Call::FreeSegment, |state| {
            unsafe_call(state)?;
            state.free_segment(self.context, address, bytes)
        })
    }

    /// The stream's number for the driver (CUDA: `cuStreamGetId`).
    ///
    /// # Errors
    ///
    /// For a stream that captures, whose capture does not survive it.
    pub fn user_stream_id(&self, stream: &SimStream) -> Result<u64, SimError> {
        self.program(Call::IsCapturing, |state| {
            let stream = self.timeline(state, stream)?;
            state.break_capture_on(stream)?;
            Ok(u64::from(stream.0))
        })
    }

    /// Records an event on the whole context (CUDA: `cuCtxRecordEvent`). No capture of the context
    /// survives it.
    ///
    /// # Errors
    ///
    /// While a stream of the context captures.
    pub fn user_context_record(&self, event: &SimEvent) -> Result<(), SimError> {
        self.program(Call::RecordContext, |state| {
            state.record_context(self.event(event)?, self.context)
        })
    }

    fn program<R>(
        &self,
        call: Call,
        effect: impl FnOnce(&mut State) -> Result<R, Code>,
    ) -> Result<R, SimError> {
        self.machine.call(self.context, (call, By::Program), effect)
    }
}

/// # What a thread carries
///
/// A real thread has a current context, and may have an error that other code has left pending. No
/// verb of the simulated device touches either; these let a test see that nobody else does.
impl SimDevice {
    /// Leaves an error pending on the calling thread, or none, and returns what was.
    pub fn park_error(error: Option<super::SimErrorCode>) -> Option<super::SimErrorCode> {
        thread::park_error(error)
    }

    /// The error that is pending on the calling thread.
    pub fn pending_error() -> Option<super::SimErrorCode> {
        thread::parked_error()
    }

    /// The [`context_id`](crate::backend::Backend::context_id) of the calling thread's current
    /// context.
    pub fn current_context() -> Option<u64> {
        thread::current_context()
    }

    /// Makes a context current on the calling thread, or none.
    pub fn set_current_context(context: Option<u64>) {
        thread::set_current_context(context);
    }
}

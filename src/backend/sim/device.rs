//! The handle of a simulated device: what tests do with it beside what pools do.
#![forbid(unsafe_code)]

use super::config::SimConfig;
use super::counts::{Call, CallCounts};
use super::error::{SimError, SimErrorCode as Code};
use super::faults::{CallFilter, FaultPlan};
use super::handles::SimStream;
use super::hazard::Hazard;
use super::kernel::{Gate, Kernel, stamp_byte};
use super::pause::{Pause, PausePoint};
use super::state::{By, Machine, State};
use crate::backend::StreamKind;
use crate::sync::Arc;

/// A simulated device. Clones are the same device.
///
/// See the [module](super) for what it means.
#[derive(Clone, Debug)]
pub struct SimDevice {
    pub(super) machine: Arc<Machine>,
    pub(super) context: usize,
    pub(super) context_id: u64,
    pub(super) granularity: Option<u64>,
    pub(super) context_events: bool,
}

impl SimDevice {
    /// A machine with one device. A number is a configuration: that seed, and all else default.
    ///
    /// # Panics
    ///
    /// If the granularity is not a power of two of at least 256.
    pub fn new(config: impl Into<SimConfig>) -> SimDevice {
        SimDevice::several(config, 1).remove(0)
    }

    /// A machine with `n` devices, each as configured: one oracle, one virtual clock, one address
    /// space. Waits may cross devices. A device touches another's memory only where it has access.
    ///
    /// # Panics
    ///
    /// If `n` is 0 or above 64, or the granularity is not a power of two of at least 256.
    pub fn several(config: impl Into<SimConfig>, n: usize) -> Vec<SimDevice> {
        let config = config.into();
        let (granularity, context_events) = (config.granularity, config.context_events);
        let machine = Arc::new(Machine::new(config, n));
        let ids: Vec<u64> = machine.lock().contexts.iter().map(|context| context.id).collect();
        let device = |(context, context_id)| SimDevice {
            machine: Arc::clone(&machine),
            context,
            context_id,
            granularity,
            context_events,
        };
        ids.into_iter().enumerate().map(device).collect()
    }

    /// A new non-blocking stream. Its raw handle is that of the stream destroyed last, if any.
    pub fn create_stream(&self) -> SimStream {
        SimStream::create(&self.machine, self.context, StreamKind::NonBlocking)
    }

    /// A new blocking stream: one that the legacy stream waits for, and that waits for it.
    pub fn create_blocking_stream(&self) -> SimStream {
        SimStream::create(&self.machine, self.context, StreamKind::Blocking)
    }

    /// The legacy default stream.
    pub fn legacy_stream(&self) -> SimStream {
        SimStream::default_stream(&self.machine, self.context, StreamKind::Legacy)
    }

    /// The per-thread default stream: on each thread that uses the handle it is another stream.
    pub fn per_thread_stream(&self) -> SimStream {
        SimStream::default_stream(&self.machine, self.context, StreamKind::PerThread)
    }

    /// Puts a kernel on a stream (or, while the stream captures, into its graph).
    ///
    /// # Errors
    ///
    /// [`InvalidHandle`](Code::InvalidHandle) for a stream of another device;
    /// [`NotSupported`](Code::NotSupported) for a host function in a capture; capture errors; sticky
    /// and injected ones. A kernel that touches what it must not is a hazard, not an error: the
    /// context is lost when it executes.
    pub fn launch(&self, stream: &SimStream, mut kernel: Kernel) -> Result<(), SimError> {
        self.call(Call::Launch, |state| {
            let stream = self.own_timeline(state, stream)?;
            state.launch(stream, &mut kernel)
        })
    }

    /// Executes everything that can execute, on all devices, and lets the virtual clock reach its
    /// end. The host learns nothing by that. What stands behind a closed gate stays, and so does an
    /// operation frozen by [`Schedule::Frozen`](super::Schedule::Frozen).
    pub fn run(&self) {
        while self.step() {}
    }

    /// Executes one operation, the next on the schedule, and returns whether there was one.
    pub fn step(&self) -> bool {
        let mut state = self.machine.lock();
        let Some(next) = state.engine.due(u64::MAX) else { return false };
        drop(self.machine.execute(state, next));
        true
    }

    /// Lets this much virtual time pass, in nanoseconds, and executes what is over by then.
    pub fn advance(&self, ns: u64) {
        let mut state = self.machine.lock();
        state.engine.now += ns;
        drop(self.machine.settle(state));
    }

    /// The virtual clock, in nanoseconds since the machine was made.
    pub fn now(&self) -> u64 {
        self.machine.lock().engine.now
    }

    /// How many operations have been submitted on the whole machine: the number of the last one.
    /// Launches, records and waits are operations, and so are the legacy stream's implicit waits.
    pub fn operations(&self) -> u64 {
        self.machine.lock().engine.submitted
    }

    /// A new closed gate.
    pub fn gate(&self) -> Gate {
        let mut state = self.machine.lock();
        state.engine.gates.push(Default::default());
        let id = state.engine.gates.len() - 1;
        drop(state);
        Gate { machine: Arc::clone(&self.machine), id }
    }

    /// All hazards of the machine since they were last taken, in the order in which they were found.
    /// At most 10 000 are kept; [`hazard_count`](Self::hazard_count) counts on.
    pub fn hazards(&self) -> Vec<Hazard> {
        self.machine.lock().oracle.hazards.clone()
    }

    /// The same, and forgets them.
    pub fn take_hazards(&self) -> Vec<Hazard> {
        let mut state = self.machine.lock();
        state.oracle.found = 0;
        std::mem::take(&mut state.oracle.hazards)
    }

    /// Asserts that no hazard has been found since they were last taken.
    ///
    /// # Panics
    ///
    /// If one has, with all that is known of the first few.
    #[track_caller]
    pub fn assert_no_hazards(&self) {
        const SHOWN: usize = 3;
        let state = self.machine.lock();
        let (count, hazards) = (state.oracle.found, state.oracle.hazards.iter().take(SHOWN));
        let texts: Vec<String> = hazards.map(Hazard::to_string).collect();
        drop(state);
        assert!(count == 0, "{count} hazards, the first of them:\n{}", texts.join("\n"));
    }

    /// How many hazards there were since they were last taken, kept or not. One pair of uses may
    /// count several times, once for each range of bytes.
    pub fn hazard_count(&self) -> u64 {
        self.machine.lock().oracle.found
    }

    /// How often each call was made to this device since it was made.
    pub fn counts(&self) -> CallCounts {
        self.with_context(|context| context.counts)
    }

    /// Physical memory taken now from this device, in bytes: segments and granules.
    pub fn memory_in_use(&self) -> u64 {
        self.machine.lock().memory.accounts[self.context].in_use
    }

    /// The most that was taken since the start or the last reset, in bytes.
    pub fn memory_peak(&self) -> u64 {
        self.machine.lock().memory.accounts[self.context].peak
    }

    /// Makes the peak what is taken now.
    pub fn reset_memory_peak(&self) {
        let account = &mut self.machine.lock().memory.accounts[self.context];
        account.peak = account.in_use;
    }

    /// Bytes of this device's granules that are mapped (twice, if mapped twice).
    pub fn mapped_bytes(&self) -> u64 {
        self.machine.lock().memory.accounts[self.context].mapped
    }

    /// Granules of this device that exist.
    pub fn live_granules(&self) -> u64 {
        self.machine.lock().memory.accounts[self.context].granules
    }

    /// Events of this device that exist.
    pub fn live_events(&self) -> u64 {
        self.with_context(|context| context.events)
    }

    /// Streams of this device that exist, the default streams not counted.
    pub fn live_streams(&self) -> u64 {
        self.with_context(|context| context.streams)
    }

    /// Makes calls to this device fail.
    pub fn inject(&self, plan: FaultPlan) {
        self.with_context(|context| context.faults.inject(plan));
    }

    /// Drops all plans. A device that is lost stays lost.
    pub fn clear_faults(&self) {
        self.with_context(|context| context.faults.clear());
    }

    /// How many errors have been injected into this device's calls.
    pub fn injected_count(&self) -> u64 {
        self.with_context(|context| context.faults.injected)
    }

    /// Holds the next matching call to this device, on whichever thread makes it.
    pub fn pause(&self, filter: impl Into<CallFilter>, point: PausePoint) -> Pause {
        let patience = self.machine.patience;
        self.with_context(|context| context.pauses.arm(filter.into(), point, patience))
    }

    /// Notes that an owner now holds these bytes, with this stream as its home: call it when a pool
    /// has handed them out. The oracle checks that the stream is ordered after every earlier use of
    /// them, and from now on tells the pool's faults from the program's. A note is no driver call.
    ///
    /// ```
    /// use streampool::backend::Backend;
    /// use streampool::sim::{HazardKind, Kernel, SimDevice};
    ///
    /// let device = SimDevice::new(1);
    /// let (a, b) = (device.create_stream(), device.create_stream());
    /// let memory = device.alloc_segment(4096)?;
    /// device.note_handed_out(&a, memory, 4096);
    /// device.launch(&a, Kernel::new().writes(memory, 4096))?;
    /// device.note_given_back(memory, 4096);
    /// // A pool that forgets to make b wait:
    /// device.note_handed_out(&b, memory, 4096);
    /// assert_eq!(device.hazards()[0].kind(), HazardKind::Reuse);
    /// # Ok::<(), streampool::sim::SimError>(())
    /// ```
    pub fn note_handed_out(&self, stream: &SimStream, address: u64, bytes: u64) {
        self.note(|state| {
            let stream = stream.timeline(state);
            state.note_handed_out(stream, address, bytes);
        });
    }

    /// Notes that the owner of the bytes at this address has named another stream, which must now be
    /// ordered after all that is on the home stream.
    pub fn note_use_on(&self, stream: &SimStream, address: u64) {
        self.note(|state| {
            let stream = stream.timeline(state);
            state.note_use_on(stream, address, false);
        });
    }

    /// Notes that the owner of the bytes at this address has made another stream its home, which
    /// must now be ordered after all that is on the old one.
    pub fn note_moved_to(&self, stream: &SimStream, address: u64) {
        self.note(|state| {
            let stream = stream.timeline(state);
            state.note_use_on(stream, address, true);
        });
    }

    /// Notes that the owner of these bytes holds them no more: call it right before they go back to
    /// the pool, which may hand them to another thread at once.
    pub fn note_given_back(&self, address: u64, bytes: u64) {
        self.note(|state| state.note_given_back(address, bytes));
    }

    /// The byte at this address, as the operations executed so far have left it. `None` where
    /// nothing is mapped; 0 where nothing has been written.
    pub fn read_byte(&self, address: u64) -> Option<u8> {
        let state = self.machine.lock();
        let piece = state.memory.piece_at(self.context, address, 1)?;
        let stamp = state.oracle.contents.at(piece.physical).map(|(_, written)| written.stamp);
        Some(stamp.map_or(0, stamp_byte))
    }

    /// The [stamp](Kernel::stamp) of the kernel that last wrote the byte at this address, of those
    /// that have executed.
    pub fn read_stamp(&self, address: u64) -> Option<u64> {
        let state = self.machine.lock();
        let piece = state.memory.piece_at(self.context, address, 1)?;
        state.oracle.contents.at(piece.physical).map(|(_, written)| written.stamp)
    }

    /// These bytes, as the operations executed so far have left them; `None` if any is not mapped.
    pub fn read(&self, address: u64, bytes: usize) -> Option<Vec<u8>> {
        (address..).take(bytes).map(|address| self.read_byte(address)).collect()
    }

    fn with_context<R>(&self, f: impl FnOnce(&mut super::state::Context) -> R) -> R {
        f(&mut self.machine.lock().contexts[self.context])
    }

    fn note(&self, f: impl FnOnce(&mut State)) {
        let mut state = self.machine.lock();
        if state.check {
            f(&mut state);
        }
    }

    #[inline]
    pub(super) fn call<R>(
        &self,
        call: Call,
        effect: impl FnOnce(&mut State) -> Result<R, Code>,
    ) -> Result<R, SimError> {
        self.machine.call(self.context, (call, By::Pool), effect)
    }

    /// The timeline of a stream of this device.
    pub(super) fn own_timeline(
        &self,
        state: &mut State,
        stream: &SimStream,
    ) -> Result<super::clock::TimelineId, Code> {
        if stream.context() != self.context {
            return Err(Code::InvalidHandle);
        }
        self.timeline(state, stream)
    }
}

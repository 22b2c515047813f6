//! How a simulated device behaves: its size, its schedule, what its calls cost.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::counts::Call;

/// What a simulated device is like.
///
/// ```
/// use streampool::sim::{Schedule, SimConfig, SimDevice};
///
/// let device = SimDevice::new(SimConfig { schedule: Schedule::Lazy, ..SimConfig::default() });
/// let same_but_for_the_seed = SimDevice::new(7);
/// ```
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Where chance starts (only [`Schedule::Random`] uses any).
    pub seed: u64,
    /// The device's memory in bytes. It is sparse: only what is written costs the host anything.
    pub memory_bytes: u64,
    /// The unit of virtual memory in bytes, a power of two of at least 256; `None` for a device
    /// without virtual memory.
    pub granularity: Option<u64>,
    /// Whether an event can be recorded on the whole context (CUDA: since 12.5).
    pub context_events: bool,
    /// In which order operations execute.
    pub schedule: Schedule,
    /// What calls cost in virtual time.
    pub costs: Costs,
    /// Whether to keep clocks, look for hazards and keep the bytes that kernels write. Without, the
    /// device only counts calls and keeps time.
    pub check: bool,
    /// How long, in real time, a host thread waits for work that stands behind a closed
    /// [`Gate`](super::Gate) before its call fails with [`Stuck`](super::SimErrorCode::Stuck), and
    /// how long a [`Pause`](super::Pause) holds or waits for a thread.
    pub patience: Duration,
}

impl Default for SimConfig {
    /// An H200: 141 GiB, granules of 2 MiB, and the measured costs, on the virtual clock.
    fn default() -> Self {
        SimConfig {
            seed: 0,
            memory_bytes: 141 << 30,
            granularity: Some(2 << 20),
            context_events: true,
            schedule: Schedule::Timed,
            costs: Costs::default(),
            check: true,
            patience: Duration::from_secs(10),
        }
    }
}

impl From<u64> for SimConfig {
    /// The default with this seed.
    fn from(seed: u64) -> Self {
        SimConfig { seed, ..SimConfig::default() }
    }
}

/// In which order operations of different streams execute. In every schedule a stream's operations
/// execute in order, after what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// By the virtual clock: an operation starts when its stream, its waits and its gates allow, and
    /// takes its duration. Host calls advance the clock by their cost.
    #[default]
    Timed,
    /// By chance: each host call executes a random number of operations, taken at random.
    Random,
    /// Nothing executes until a synchronize needs it, or [`run`](super::SimDevice::run) or
    /// [`step`](super::SimDevice::step) is called: queries find nothing finished.
    Lazy,
    /// All executes at once, except the operation of this number (and what is ordered after it),
    /// which executes only when a synchronize needs it. Operation *j* overtakes a frozen *i* if and
    /// only if it is not ordered after it; so one run for each *i* is a complete adversary.
    ///
    /// Operations are numbered from 1 across the machine, launches, records and waits alike; see
    /// [`operations`](super::SimDevice::operations).
    Frozen(u64),
}

/// What calls cost, in nanoseconds of virtual time. The default is what they took on an H200 with
/// driver 580, one thread, idle device; launches and what was not measured are estimates.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Create an event.
    pub create_event: u64,
    /// Destroy an event.
    pub destroy_event: u64,
    /// Record an event.
    pub record: u64,
    /// Record an event on the whole context.
    pub record_context: u64,
    /// Make a stream wait.
    pub wait: u64,
    /// Query an event that has finished.
    pub query_finished: u64,
    /// Query an event that has not.
    pub query_pending: u64,
    /// Synchronize, when there is nothing to wait for; waiting comes on top.
    pub synchronize: u64,
    /// Ask whether a stream captures.
    pub is_capturing: u64,
    /// Launch a kernel, or submit a copy.
    pub launch: u64,
    /// Memory information.
    pub memory_info: u64,
    /// Reserve or release a range of addresses.
    pub range: u64,
    /// Allow a peer.
    pub allow_peer: u64,
    /// Take a plain segment.
    pub alloc_segment: SizeCost,
    /// Give a plain segment back.
    pub free_segment: SizeCost,
    /// Whether giving a plain segment back waits for all that runs on the device, as `cuMemFree`
    /// did (on the virtual clock only: to the oracle it is never a synchronize).
    pub free_segment_waits: bool,
    /// Create a granule.
    pub create_granule: SizeCost,
    /// Destroy a granule.
    pub destroy_granule: SizeCost,
    /// Map.
    pub map: SizeCost,
    /// Set access.
    pub set_access: SizeCost,
    /// Unmap.
    pub unmap: SizeCost,
}

impl Costs {
    /// All calls take no time.
    pub fn free() -> Self {
        Costs {
            create_event: 0,
            destroy_event: 0,
            record: 0,
            record_context: 0,
            wait: 0,
            query_finished: 0,
            query_pending: 0,
            synchronize: 0,
            is_capturing: 0,
            launch: 0,
            memory_info: 0,
            range: 0,
            allow_peer: 0,
            alloc_segment: SizeCost::FREE,
            free_segment: SizeCost::FREE,
            free_segment_waits: false,
            create_granule: SizeCost::FREE,
            destroy_granule: SizeCost::FREE,
            map: SizeCost::FREE,
            set_access: SizeCost::FREE,
            unmap: SizeCost::FREE,
        }
    }

    /// What the call costs before it is known how it ends or how many bytes it is about.
    pub(super) fn base(&self, call: Call) -> u64 {
        match call {
            Call::CreateEvent => self.create_event,
            Call::DestroyEvent => self.destroy_event,
            Call::Record => self.record,
            Call::RecordContext => self.record_context,
            Call::Wait => self.wait,
            Call::Query => self.query_pending,
            Call::SynchronizeEvent | Call::SynchronizeContext => self.synchronize,
            Call::IsCapturing => self.is_capturing,
            Call::Launch | Call::Copy => self.launch,
            Call::MemoryInfo => self.memory_info,
            Call::ReserveRange | Call::ReleaseRange => self.range,
            Call::AllowPeer => self.allow_peer,
            _ => 0,
        }
    }

    /// What the call costs for this many bytes, beside its base.
    pub(super) fn sized(&self, call: Call, bytes: u64) -> u64 {
        match call {
            Call::AllocSegment => self.alloc_segment.of(bytes),
            Call::FreeSegment => self.free_segment.of(bytes),
            Call::CreateGranule => self.create_granule.of(bytes),
            Call::DestroyGranule => self.destroy_granule.of(bytes),
            Call::Map => self.map.of(bytes),
            Call::SetAccess => self.set_access.of(bytes),
            Call::Unmap => self.unmap.of(bytes),
            _ => 0,
        }
    }
}

impl Default for Costs {
    fn default() -> Self {
        Costs {
            create_event: 85,
            destroy_event: 84,
            record: 165,
            record_context: 811,
            wait: 137,
            query_finished: 152,
            query_pending: 130,
            synchronize: 500,
            is_capturing: 35,
            launch: 2000,
            memory_info: 10_000,
            range: 11_000,
            allow_peer: 50_000,
            alloc_segment: SizeCost::us([52, 61, 98, 301]),
            free_segment: SizeCost::us([44, 64, 312, 2515]),
            free_segment_waits: true,
            create_granule: SizeCost::us([13, 14, 21, 499]),
            destroy_granule: SizeCost::us([15, 31, 279, 2597]),
            map: SizeCost::us([1, 2, 2, 3]),
            set_access: SizeCost::us([32, 32, 64, 187]),
            unmap: SizeCost::us([20, 21, 29, 65]),
        }
    }
}

/// A cost that grows with the size: nanoseconds at 2, 32, 512 and 4096 MiB, and straight lines
/// between; the last line goes on, and anything smaller costs what 2 MiB do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeCost {
    /// Nanoseconds at 2, 32, 512 and 4096 MiB; none is less than the one before.
    pub at: [u64; 4],
}

impl SizeCost {
    /// No cost at any size.
    pub const FREE: SizeCost = SizeCost { at: [0; 4] };

    const SIZES: [u64; 4] = [2 << 20, 32 << 20, 512 << 20, 4096 << 20];

    fn us(at: [u64; 4]) -> Self {
        SizeCost { at: at.map(|us| us * 1000) }
    }

    /// The cost of this many bytes, in nanoseconds.
    pub fn of(&self, bytes: u64) -> u64 {
        let upper = Self::SIZES.iter().position(|&size| bytes <= size).unwrap_or(3).max(1);
        let (x0, x1) = (Self::SIZES[upper - 1], Self::SIZES[upper]);
        let (y0, y1) = (self.at[upper - 1], self.at[upper]);
        let along = u128::from(bytes.saturating_sub(x0));
        y0 + (u128::from(y1 - y0) * along / u128::from(x1 - x0)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_cost_meets_its_points_and_goes_on() {
        let cost = SizeCost { at: [10, 40, 520, 4104] };
        let mib = |n: u64| cost.of(n << 20);
        assert_eq!([mib(0), mib(2), mib(32), mib(512), mib(4096)], [10, 10, 40, 520, 4104]);
        assert_eq!(mib(17), 25);
        assert_eq!(mib(4096 + 3584), 4104 + 3584);
        assert_eq!(SizeCost::FREE.of(u64::MAX), 0);
    }
}

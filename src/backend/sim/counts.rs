//! Which calls were made, and how often.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::ops::Sub;

/// Declares the calls once: the enumeration, its names, and the struct of counters.
macro_rules! calls {
    ($($(#[doc = $doc:literal])+ $call:ident, $count:ident, $name:literal;)+) => {
        /// A call to the device.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Call {
            $($(#[doc = $doc])+ $call,)+
        }

        impl Call {
            /// Every call.
            pub const ALL: &[Call] = &[$(Call::$call,)+];

            /// What the call is called in messages.
            pub fn name(self) -> &'static str {
                match self { $(Call::$call => $name,)+ }
            }
        }

        /// How often each call was made to one device, failed calls included.
        ///
        /// The difference of two counts is what happened between them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct CallCounts {
            $($(#[doc = $doc])+ pub $count: u64,)+
        }

        impl CallCounts {
            /// How often this call was made.
            pub fn of(&self, call: Call) -> u64 {
                match call { $(Call::$call => self.$count,)+ }
            }

            fn count_mut(&mut self, call: Call) -> &mut u64 {
                match call { $(Call::$call => &mut self.$count,)+ }
            }

            pub(super) fn add(&mut self, call: Call) {
                *self.count_mut(call) += 1;
            }
        }

        impl Sub for CallCounts {
            type Output = CallCounts;

            fn sub(self, earlier: CallCounts) -> CallCounts {
                CallCounts { $($count: self.$count - earlier.$count,)+ }
            }
        }
    };
}

calls! {
    /// Create an event.
    CreateEvent, event_creates, "create event";
    /// Destroy an event.
    DestroyEvent, event_destroys, "destroy event";
    /// Record an event on a stream.
    Record, event_records, "record event";
    /// Record an event on the whole context.
    RecordContext, context_records, "record event on the context";
    /// Make a stream wait for an event.
    Wait, stream_waits, "stream wait event";
    /// Ask whether an event has finished.
    Query, event_queries, "query event";
    /// Wait on the host for an event.
    SynchronizeEvent, event_synchronizes, "synchronize event";
    /// Wait on the host for the whole context.
    SynchronizeContext, context_synchronizes, "synchronize context";
    /// Ask whether a stream captures.
    IsCapturing, capture_queries, "is stream capturing";
    /// Let a handle of a stream go.
    ReleaseStream, stream_releases, "release stream";
    /// Ask for free and total memory.
    MemoryInfo, memory_infos, "memory info";
    /// Take a plain segment.
    AllocSegment, segment_allocs, "allocate segment";
    /// Give a plain segment back.
    FreeSegment, segment_frees, "free segment";
    /// Reserve a range of addresses.
    ReserveRange, range_reserves, "reserve range";
    /// Release a range of addresses.
    ReleaseRange, range_releases, "release range";
    /// Create a granule.
    CreateGranule, granule_creates, "create granule";
    /// Destroy a granule.
    DestroyGranule, granule_destroys, "destroy granule";
    /// Map a granule.
    Map, maps, "map";
    /// Set the access of mapped granules.
    SetAccess, set_accesses, "set access";
    /// Unmap granules.
    Unmap, unmaps, "unmap";
    /// Let a peer device use this one's memory.
    AllowPeer, peer_allows, "allow peer";
    /// Copy memory, within a device or from another one.
    Copy, copies, "copy";
    /// Launch a kernel (or a graph): the user's call, which no pool makes.
    Launch, launches, "launch";
}

impl Call {
    /// Whether a model checker should consider switching threads here: the order of such calls on
    /// different threads decides what is ordered, or which memory exists.
    pub(super) fn is_ordering(self) -> bool {
        matches!(
            self,
            Call::Launch
                | Call::Copy
                | Call::Record
                | Call::RecordContext
                | Call::Wait
                | Call::Query
                | Call::SynchronizeEvent
                | Call::SynchronizeContext
                | Call::FreeSegment
                | Call::Map
                | Call::Unmap
        )
    }

    /// Whether there is no more to the call than its effect when nothing else is going on.
    #[inline]
    pub(super) fn is_uneventful(self) -> bool {
        matches!(self, Call::Record | Call::Wait | Call::Query | Call::IsCapturing) && !cfg!(loom)
    }

    pub(super) fn bit(self) -> u64 {
        1 << self as u64
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

thread_local! {
    static BY_THIS_THREAD: [Cell<u64>; Call::ALL.len()] =
        const { [const { Cell::new(0) }; Call::ALL.len()] };
}

/// Notes that this thread makes a call.
#[inline]
pub(super) fn note_call(call: Call) {
    BY_THIS_THREAD.with(|calls| calls[call as usize].set(calls[call as usize].get() + 1));
}

impl CallCounts {
    /// How often the calling thread has made each call, to whichever simulated devices, failed calls included.
    ///
    /// What one operation of a pool has called is the difference of this: between two readings of
    /// [`SimDevice::counts`](super::SimDevice::counts) other threads call too, also to finish pools that were
    /// left behind, which any call of any pool may do.
    ///
    /// ```
    /// use streampool::StreamPool;
    /// use streampool::sim::{CallCounts, SimDevice};
    ///
    /// # fn main() -> Result<(), streampool::Error> {
    /// let device = SimDevice::new(1);
    /// let pool = StreamPool::new(device.clone());
    /// let stream = pool.stream(device.create_stream())?;
    /// drop(stream.alloc(1 << 20)?);
    ///
    /// let before = CallCounts::of_this_thread();
    /// drop(stream.alloc(1 << 20)?);
    /// assert_eq!((CallCounts::of_this_thread() - before).driver_calls(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn of_this_thread() -> CallCounts {
        let mut counts = CallCounts::default();
        BY_THIS_THREAD.with(|calls| {
            for call in Call::ALL {
                *counts.count_mut(*call) = calls[*call as usize].get();
            }
        });
        counts
    }

    /// Calls that block the host until the device has finished something.
    pub fn synchronizes(&self) -> u64 {
        self.event_synchronizes + self.context_synchronizes
    }

    /// Calls that give memory, take it back, or map it.
    pub fn mapping_calls(&self) -> u64 {
        self.segment_allocs
            + self.segment_frees
            + self.granule_creates
            + self.granule_destroys
            + self.maps
            + self.set_accesses
            + self.unmaps
            + self.range_reserves
            + self.range_releases
    }

    /// All calls but launches.
    pub fn driver_calls(&self) -> u64 {
        Call::ALL.iter().map(|&call| self.of(call)).sum::<u64>() - self.launches
    }
}

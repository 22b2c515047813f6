//! Which states a program has reached: a generator that never steals proves nothing about stealing.

use std::ops::AddAssign;

macro_rules! coverage {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How often each interesting state was reached.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Coverage {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Coverage {
            /// Every state by name.
            pub fn states(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// The names of the states that were never reached.
            pub fn missed(&self) -> Vec<&'static str> {
                self.states().into_iter().filter(|state| state.1 == 0).map(|state| state.0).collect()
            }
        }

        impl AddAssign for Coverage {
            fn add_assign(&mut self, other: Coverage) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

coverage! {
    /// Operations that were put on the device: launches, records, waits.
    device_operations,
    /// Operations that did something.
    operations,
    /// Kernels that used a buffer.
    kernels,
    /// Of them, those on a stream that `use_on` had named.
    kernels_elsewhere,
    /// Allocations by the stream's own list.
    hits,
    /// Allocations by a free block that needed no wait.
    covered,
    /// Allocations after asking whether work had finished.
    asked,
    /// Allocations after gathering every list.
    gathered,
    /// Allocations by a wait on an early epoch.
    early_steals,
    /// Allocations by a late wait.
    late_steals,
    /// Allocations by growth.
    growths,
    /// Free granules mapped at a further address.
    remapped,
    /// Free granules of use again where they still were mapped.
    revived,
    /// Allocations that climbed the out-of-memory ladder.
    ladders,
    /// Of them, those that were served.
    ladders_served,
    /// Allocations that ended out of memory.
    out_of_memory,
    /// Out of memory, and an identical retry that failed too.
    retries,
    /// Blocks that were a part of an earlier one.
    splits,
    /// Blocks that were made of several earlier ones.
    unions,
    /// Unions of blocks that different streams had freed, for a third stream.
    unions_for_a_third,
    /// Blocks handed to another stream than the one that freed them.
    crossings,
    /// Requests with an alignment above 256 bytes.
    aligned,
    /// Buffers of no bytes.
    empty,
    /// Buffers freed with another stream named.
    shared_frees,
    /// Buffers that changed their home.
    moves,
    /// Buffers of one device named on a stream of another.
    foreign_uses,
    /// Buffers copied to a stream of their own pool.
    copies,
    /// Buffers copied to a stream of another device.
    foreign_copies,
    /// Buffers named, or moved, where the pool must refuse.
    refusals,
    /// Frees that closed an epoch by themselves.
    recorded_frees,
    /// Frees in a scope of their pool and thread.
    frees_in_scope,
    /// Frees while a scope was open on another thread or of another pool, and none of their own.
    frees_beside_scope,
    /// Scopes that ended.
    scopes,
    /// Scopes opened within another.
    nested_scopes,
    /// Scopes that ended before one opened later.
    out_of_order_exits,
    /// Scopes ended by a panic.
    panics_in_scope,
    /// Scopes leaked.
    leaked_scopes,
    /// Buffers that a scope found finished.
    clean_at_scope_end,
    /// Buffers that a scope found unfinished.
    deferred_at_scope_end,
    /// Events recorded on a whole context.
    context_records,
    /// Values released by the one-call form.
    releases,
    /// Values released in scopes of all pools.
    releases_of_all,
    /// Streams created with the raw handle of an earlier one.
    reused_handles,
    /// Streams dropped while buffers or captures needed them.
    drops_in_use,
    /// Streams retired by hand.
    retirements,
    /// Retirements refused.
    refused_retirements,
    /// Captures begun.
    captures,
    /// Calls refused because a stream was capturing.
    refused_by_capture,
    /// Bytes given back by trims.
    trimmed_bytes,
    /// Pools closed.
    closes,
    /// Of them, those of a pool beside others.
    closes_beside_others,
    /// Closes refused because buffers lived.
    refused_closes,
    /// Errors injected into driver calls.
    injected,
    /// Operations that an injected error made fail.
    failed_operations,
    /// Errors that no `Result` could tell.
    stray_errors,
    /// Looks that found bytes quarantined.
    quarantines,
    /// Programs whose device was lost.
    lost_devices,
    /// Programs that ended with everything given back.
    emptied,
}

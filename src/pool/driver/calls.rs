//! How many driver calls are made, by verb.

use crate::sync::host;

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Calls {
            $(pub(crate) $name: host::AtomicU64,)*
        }

        /// How many driver calls a pool has made, by verb.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct DriverCalls {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Calls {
            pub(crate) fn read(&self) -> DriverCalls {
                DriverCalls { $($name: self.$name.load(host::Ordering::Relaxed),)* }
            }
        }

        impl DriverCalls {
            /// All of them.
            pub fn total(&self) -> u64 {
                0 $(+ self.$name)*
            }

            /// Those that were made, with their names as words, for a table.
            pub(crate) fn by_verb(&self) -> impl Iterator<Item = (String, u64)> + use<> {
                let all = [$((stringify!($name), self.$name),)*];
                let made = all.into_iter().filter(|(_, count)| *count > 0);
                made.map(|(name, count)| (format!("  {}", name.replace('_', " ")), count))
            }
        }
    };
}

calls! {
    /// Looks whether a stream captures.
    capture_queries,
    /// Events created.
    event_creates,
    /// Events destroyed.
    event_destroys,
    /// Events recorded.
    event_records,
    /// Streams made to wait for an event.
    stream_waits,
    /// Events asked whether they have finished.
    event_queries,
    /// Host waits for an event.
    event_synchronizes,
    /// Host waits for the whole context.
    context_synchronizes,
    /// Plain segments taken and given back, ranges reserved and released, granules created, mapped,
    /// made accessible, unmapped and destroyed.
    memory_calls,
    /// Fills and copies that the pool or a typed slice makes itself.
    transfers,
    /// Looks at the device's free memory.
    memory_infos,
}

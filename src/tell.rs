//! What the pool tells a subscriber of the crate `tracing` (feature `tracing`): the rare and slow things,
//! never a hit or a free.
//!
//! A subscriber is other people's code: it may allocate, call the pool back, wait for a lock of its own, or
//! panic. So nothing is told where it happens. It is put in a queue of the thread, and told where the call of
//! the pool that it happened in is over but for its return: no lock is held, and what the call returns is
//! whole. What the subscriber itself brings about by calling a pool is not told, or it would never end.
//!
//! Without the feature all of this is nothing.

use crate::error::Shortage;

/// Something that is told. Sizes are in bytes.
#[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "nobody reads it"))]
#[derive(Debug)]
pub(crate) enum Told {
    Grow {
        pool: u64,
        stream: Option<u64>,
        requested: u64,
        reserved: u64,
        remapped: u64,
        revived: u64,
    },
    Steal {
        pool: u64,
        stream: u64,
        from: u64,
        bytes: u64,
        late: bool,
    },
    Trim {
        pool: u64,
        bytes: u64,
        reserved: u64,
    },
    OutOfMemory {
        pool: u64,
        shortage: Shortage,
    },
    Leak {
        pool: u64,
        live: u64,
        in_use: u64,
        reserved: u64,
    },
}

/// How much a subscriber wants to hear to hear of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Usual,
    Warning,
}

#[cfg(not(feature = "tracing"))]
pub(crate) use silence::{at_drop, later, now};
#[cfg(feature = "tracing")]
pub(crate) use speech::{at_drop, later, now};

#[cfg(not(feature = "tracing"))]
mod silence {
    use super::{Kind, Told};

    #[inline(always)]
    pub(crate) fn later(_: Kind, _: impl FnOnce() -> Told) {}

    #[inline(always)]
    pub(crate) fn now() {}

    #[inline(always)]
    pub(crate) fn at_drop() {}
}

#[cfg(feature = "tracing")]
mod speech {
    use std::cell::{Cell, RefCell};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tracing::Level;
    use tracing::level_filters::LevelFilter;

    use super::{Kind, Told};
    use crate::sync::{assert_no_lock_held, pool_thread_local};

    pool_thread_local! {
        /// What this thread's call has to tell.
        static QUEUE: RefCell<Vec<Told>> = RefCell::new(Vec::new());
        /// A subscriber is being told something on this thread.
        static TELLING: Cell<bool> = Cell::new(false);
    }

    impl Kind {
        fn level(self) -> Level {
            match self {
                Kind::Usual => Level::DEBUG,
                Kind::Warning => Level::WARN,
            }
        }
    }

    /// Puts something in the queue, if any subscriber might want to hear of it.
    pub(crate) fn later(kind: Kind, told: impl FnOnce() -> Told) {
        // In a thread-local destructor there may be no queue any more.
        if kind.level() > LevelFilter::current() || TELLING.try_with(Cell::get).unwrap_or(true) {
            return;
        }
        let told = told();
        let _ = QUEUE.try_with(|queue| queue.borrow_mut().push(told));
    }

    /// Tells what is in the queue. To be called with no lock held, and with nothing in hand that a panic
    /// would lose.
    pub(crate) fn now() {
        let queue = QUEUE.try_with(|queue| std::mem::take(&mut *queue.borrow_mut()));
        let Ok(queue) = queue else { return };
        if queue.is_empty() {
            return;
        }
        assert_no_lock_held();
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                let _ = TELLING.try_with(|telling| telling.set(false));
            }
        }
        let _ = TELLING.try_with(|telling| telling.set(true));
        let _leave = Leave;
        queue.into_iter().for_each(tell);
    }

    /// The same in a drop, out of which a subscriber's panic does not come.
    pub(crate) fn at_drop() {
        // Whatever was on its way through the subscriber is the subscriber's.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(now)) {
            std::mem::forget(payload);
        }
    }

    /// The names of events and fields are stable: `guide::watching` has them.
    fn tell(told: Told) {
        macro_rules! event {
            ($level:ident, $name:literal, $words:literal, $($field:ident),*) => {
                tracing::event!(
                    name: $name, target: "streampool", Level::$level, $($field,)* $words
                )
            };
        }
        match told {
            Told::Grow { pool, stream, requested, reserved, remapped, revived } => {
                event!(
                    DEBUG,
                    "grow",
                    "a request was served by growth",
                    pool,
                    stream,
                    requested,
                    reserved,
                    remapped,
                    revived
                );
            }
            Told::Steal { pool, stream, from, bytes, late } => {
                event!(
                    DEBUG,
                    "steal",
                    "a stream waits for another one's memory",
                    pool,
                    stream,
                    from,
                    bytes,
                    late
                );
            }
            Told::Trim { pool, bytes, reserved } => {
                event!(DEBUG, "trim", "memory went back to the device", pool, bytes, reserved);
            }
            Told::OutOfMemory { pool, shortage } => {
                let requested = shortage.requested;
                let (in_use, free, largest_free) =
                    (shortage.in_use, shortage.free, shortage.largest_free);
                let (reserved, limit, over_limit) =
                    (shortage.reserved, shortage.limit, shortage.over_limit);
                let device_free = shortage.device_free;
                event!(
                    WARN,
                    "out_of_memory",
                    "a request cannot be served",
                    pool,
                    requested,
                    in_use,
                    free,
                    largest_free,
                    reserved,
                    limit,
                    over_limit,
                    device_free
                );
            }
            Told::Leak { pool, live, in_use, reserved } => {
                event!(
                    WARN,
                    "leak",
                    "a pool's last handle is gone, and buffers live",
                    pool,
                    live,
                    in_use,
                    reserved
                );
            }
        }
    }
}

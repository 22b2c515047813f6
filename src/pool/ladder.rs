//! Out of memory: what is tried before the error.

use super::PoolCore;
use super::foreign::Leaves;
use super::miss::{Mark, Miss};
use crate::backend::Backend;
use crate::config::Pressure;
use crate::error::{Error, Shortage};
use crate::fault::seeded;
use crate::heap::BlockId;
use crate::order::Moment;
use crate::pool_stream::core::StreamCore;
use crate::sync::{Arc, pause_thread, pool_thread_local};
use crate::tell::{self, Kind, Told};
use std::cell::Cell;

/// How often, and how long each time, a ladder waits for what other threads have in their hands.
const TRANSIT_LOOKS: u32 = 50;
const TRANSIT_PAUSE_MICROS: u64 = 200;

pool_thread_local! {
    /// Whether this thread is in an `on_pressure` hook.
    static IN_HOOK: Cell<bool> = Cell::new(false);
}

/// Every list is shut while this lives. The user's hook may panic: they must not stay so.
struct Shut<'a, B: Backend> {
    pool: &'a PoolCore<B>,
}

impl<B: Backend> Drop for Shut<'_, B> {
    fn drop(&mut self) {
        self.pool.open_lists();
    }
}

impl<B: Backend> PoolCore<B> {
    /// The ladder. Every list is shut while it lasts: otherwise a block can hop from list to list and
    /// never be seen.
    pub(super) fn climb(&self, miss: &mut Miss<'_, B>) -> Result<BlockId, Error> {
        self.steps.count_ladder();
        miss.desperate = true;
        // All of them have been tried when a ladder begins.
        self.steps_allowed().for_each(|step| miss.note_tried(step.name()));
        let found = {
            let streams = self.shut_lists();
            let _shut = Shut { pool: self };
            self.climb_shut(miss, &streams)?
        };
        found.ok_or_else(|| {
            let tried = std::mem::take(&mut miss.tried);
            self.shortage(miss.size.bytes, miss.over_limit, tried, miss.asked.error.take())
        })
    }

    fn climb_shut(
        &self,
        miss: &mut Miss<'_, B>,
        streams: &[Arc<StreamCore<B>>],
    ) -> Result<Option<BlockId>, Error> {
        if let Some(block) = self.search_all(miss, streams)? {
            return Ok(Some(block));
        }
        if self.config.late_waits {
            miss.note_tried("synchronizing");
            super::end::poll(true);
            match self.quiesce_all() {
                Ok(()) => {}
                Err(error) => miss.asked.meet(error),
            }
            if let Some(block) = self.search_all(miss, streams)? {
                return Ok(Some(block));
            }
        }
        if self.call_hook(miss) {
            miss.note_tried("the on_pressure hook");
            if let Some(block) = self.search_all(miss, streams)? {
                return Ok(Some(block));
            }
            if self.config.late_waits {
                match self.quiesce_all() {
                    Ok(()) => {}
                    Err(error) => miss.asked.meet(error),
                }
                if let Some(block) = self.search_all(miss, streams)? {
                    return Ok(Some(block));
                }
            }
        }
        self.search_returns(miss, streams)
    }

    /// Searches everything that can be had without blocking the host: what is clean or covered, what
    /// can be waited for, unions of both, and what the device gives when unused memory has gone back.
    fn search_all(
        &self,
        miss: &mut Miss<'_, B>,
        streams: &[Arc<StreamCore<B>>],
    ) -> Result<Option<BlockId>, Error> {
        {
            let mut central = self.central.lock();
            miss.seen = central.returns - miss.returned;
            miss.left = Leaves::by_now();
            for core in streams.iter().filter(|_| !seeded!(StaleRetry)) {
                central.drain(core, 0);
            }
        }
        miss.asked.ask_again();
        self.ask_everything(&mut miss.asked);
        if let Some(block) = self.take_steps(miss)? {
            return Ok(Some(block));
        }
        let moments: &[Moment] =
            if self.config.late_waits { &[Moment::Early, Moment::Probe] } else { &[Moment::Early] };
        for moment in moments {
            if let Some(block) = self.steal_union(miss, *moment) {
                return Ok(Some(block));
            }
        }
        miss.note_tried("giving unused memory back");
        match self.give_back_for(miss) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) => miss.asked.meet(error),
        }
        Ok(self.grow(miss, Mark::Limit))
    }

    /// Gives back what a growth for this request lacks, under the limit and on the device.
    fn give_back_for(&self, miss: &mut Miss<'_, B>) -> Result<u64, Error> {
        let (clean, free) = {
            let central = self.central.lock();
            (central.clean(), central.free())
        };
        // Without as much unused memory a growth would lack it still.
        if clean == 0 || free == 0 || !self.gives_back(self.config.late_waits) {
            return Ok(0);
        }
        let keep = match self.limit {
            Some(limit) if miss.over_limit => {
                limit.saturating_sub(self.growth_bytes(miss.size.bytes, miss.align))
            }
            _ => 0,
        };
        self.give_back_counted(keep, &mut miss.returned)
    }

    /// The verdict: nothing, unless something has come back since the last search began, which is then
    /// searched once more, or other threads have something in their hands, which may serve the request
    /// when it is back and is waited for, for a bounded time. A stream that is leaving its pool, this one or
    /// another, counts among that.
    fn search_returns(
        &self,
        miss: &mut Miss<'_, B>,
        streams: &[Arc<StreamCore<B>>],
    ) -> Result<Option<BlockId>, Error> {
        for _ in 0..TRANSIT_LOOKS {
            let (news, moves) = {
                let central = self.central.lock();
                let uses_others = !central.foreign.is_empty();
                let news = central.returns - miss.returned != miss.seen
                    || uses_others && miss.left.have_ended();
                let moves = central.is_in_motion() || uses_others && miss.left.were_under_way();
                (news, moves)
            };
            if news {
                if let Some(block) = self.search_all(miss, streams)? {
                    return Ok(Some(block));
                }
                continue;
            }
            if !moves {
                return Ok(None);
            }
            miss.note_tried("waiting for other threads");
            pause_thread(TRANSIT_PAUSE_MICROS);
            if let Some(block) = self.take_covered(miss) {
                return Ok(Some(block));
            }
        }
        self.search_all(miss, streams)
    }

    /// Calls the user's hook, unless this thread is in one. No lock is held.
    fn call_hook(&self, miss: &Miss<'_, B>) -> bool {
        let Some(hook) = &self.config.on_pressure else { return false };
        if IN_HOOK.with(Cell::get) {
            return false;
        }
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                IN_HOOK.with(|inside| inside.set(false));
            }
        }
        IN_HOOK.with(|inside| inside.set(true));
        let _leave = Leave;
        let stats = self.stats();
        hook(&Pressure {
            requested: miss.size.bytes,
            in_use: stats.in_use,
            reserved: stats.reserved,
        });
        true
    }

    /// The error, with the numbers.
    pub(super) fn shortage(
        &self,
        requested: u64,
        over_limit: bool,
        tried: Vec<&'static str>,
        source: Option<Error>,
    ) -> Error {
        let stats = self.stats();
        let memory = self.driver.memory_info().ok();
        let shortage = Shortage {
            requested,
            in_use: stats.in_use,
            free: stats.free_clean + stats.free_pending,
            largest_free: stats.largest_free,
            in_transit: stats.in_transit,
            quarantined: stats.quarantined,
            reserved: stats.reserved,
            limit: self.limit,
            over_limit,
            device_free: memory.map(|memory| memory.free),
            device_total: memory.map(|memory| memory.total),
            tried,
        };
        tell::later(Kind::Warning, || Told::OutOfMemory {
            pool: self.id.0,
            shortage: shortage.clone(),
        });
        Error::out_of_memory(shortage, source)
    }
}

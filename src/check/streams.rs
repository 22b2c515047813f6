//! The operations on streams and pools.

use super::program::{Op, plan};
use super::shadow::Uid;
use super::world::{Capturing, Check, Local, World, ensure};
use crate::Error;
use crate::sim::{CallCounts, CaptureMode};

impl World {
    pub(super) fn step_elsewhere(&mut self, local: &mut Local, op: Op) -> Result<bool, String> {
        match op {
            Op::Mark { stream } => self.mark(stream),
            Op::WaitFor { stream, other } => self.wait_for(stream, other),
            Op::Time { ns } => {
                self.sides[0].device.advance(ns);
                Ok(true)
            }
            Op::Run => {
                self.sides[0].device.run();
                Ok(true)
            }
            Op::Create { pool, record_on_free, again } => {
                self.create_or_find(pool, record_on_free, again)
            }
            Op::DropStream { stream } => self.drop_stream(stream),
            Op::Retire { stream } => self.retire(stream),
            Op::Quiesce { pool } => self.quiesce(local, pool),
            Op::EndScope { scope, exit } => self.end_scope(local, scope, exit),
            Op::Release { pool, buffer, count } => self.release(local, pool, buffer, count),
            Op::ReleaseOfAll { buffer, count } => self.release_of_all(local, buffer, count),
            Op::Synchronize { pool } => {
                let pool = self.side(pool);
                let result = self.sides[pool].pool.synchronize();
                self.settle(result, false, "synchronize")
            }
            Op::SynchronizeStream { stream } => {
                let Some(slot) = self.slot(stream) else { return Ok(false) };
                let capturing = self.is_capturing(self.slots[slot].uid);
                let result = self.slots[slot].handle.synchronize();
                self.settle(result, capturing, "synchronize a stream")
            }
            Op::Trim { pool, keep } => self.trim(pool, keep),
            Op::Reserve { pool, bytes } => self.reserve(pool, bytes),
            Op::BeginCapture { stream, foreign } => self.begin_capture(stream, foreign),
            Op::EndCapture { capture } => self.end_capture(capture),
            Op::Close { pool } => self.close(local, pool),
            Op::Fault { nth, kind, filter, forever, late } => {
                if !self.setup.faults {
                    return Ok(false);
                }
                if self.fault_armed {
                    self.clear_faults();
                } else {
                    self.fault_armed = true;
                    let side = &self.sides[nth as usize % self.sides.len()];
                    side.device.inject(plan(nth, kind, filter, forever, late));
                }
                Ok(true)
            }
            Op::Alloc { .. }
            | Op::Free { .. }
            | Op::Launch { .. }
            | Op::Busy { .. }
            | Op::UseOn { .. }
            | Op::MoveTo { .. }
            | Op::CopyTo { .. } => Ok(false),
        }
    }

    pub(super) fn clear_faults(&mut self) {
        self.sides.iter().for_each(|side| side.device.clear_faults());
        self.fault_armed = false;
    }

    pub(super) fn side(&self, pool: u8) -> usize {
        usize::from(pool) % self.sides.len()
    }

    /// An operation that must succeed, or fail because of a capture.
    fn settle(
        &mut self,
        result: Result<(), Error>,
        capturing: bool,
        what: &str,
    ) -> Result<bool, String> {
        match result {
            Ok(()) => ensure!(!capturing, "{what} succeeded on a capturing stream"),
            Err(error) => {
                self.coverage.refused_by_capture += u64::from(capturing);
                self.expect_error(&error, capturing && error.is_capture(), what)?;
            }
        }
        Ok(true)
    }

    fn mark(&mut self, stream: u8) -> Result<bool, String> {
        let Some(slot) = self.slot(stream) else { return Ok(false) };
        let capturing = self.is_capturing(self.slots[slot].uid);
        let result = self.slots[slot].handle.mark();
        self.settle(result, capturing, "mark")
    }

    fn wait_for(&mut self, stream: u8, other: u8) -> Result<bool, String> {
        let (Some(slot), Some(other)) = (self.slot(stream), self.slot(other)) else {
            return Ok(false);
        };
        let (later, earlier) = (self.slots[slot].uid, self.slots[other].uid);
        let capturing =
            later != earlier && (self.is_capturing(later) || self.is_capturing(earlier));
        let result = self.slots[slot].handle.wait_for(&self.slots[other].handle);
        if result.is_ok() {
            self.order.order(earlier, later);
        }
        self.settle(result, capturing, "wait_for")
    }

    fn create_or_find(
        &mut self,
        pool: u8,
        record_on_free: bool,
        again: bool,
    ) -> Result<bool, String> {
        if again {
            let Some(slot) = self.slot(pool) else { return Ok(false) };
            let slot = &self.slots[slot];
            let found = self.sides[slot.pool].pool.stream(slot.handle.raw().clone());
            match found {
                Ok(found) => ensure!(found == slot.handle, "registered twice, a stream is two"),
                Err(error) => self.expect_error(&error, false, "finding a stream")?,
            }
            return Ok(true);
        }
        let most = self.most_streams().max(6);
        if self.slots.len() >= most {
            self.slots.swap_remove(usize::from(pool) % most);
        }
        let pool = self.side(pool);
        if let Err(error) = self.create(pool, record_on_free) {
            self.expect_error(&error, false, "registering a stream")?;
        }
        Ok(true)
    }

    fn is_needed(&self, uid: Uid) -> bool {
        self.live.iter().any(|live| live.home == uid || live.named.contains(&uid))
    }

    fn drop_stream(&mut self, stream: u8) -> Result<bool, String> {
        let Some(slot) = self.slot(stream) else { return Ok(false) };
        let gone = self.slots.swap_remove(slot);
        let before = CallCounts::of_this_thread();
        let in_use = self.is_needed(gone.uid) || self.is_capturing(gone.uid);
        self.coverage.drops_in_use += u64::from(in_use);
        drop(gone);
        let made = (CallCounts::of_this_thread() - before).driver_calls();
        ensure!(made == 0, "dropping a stream's handle made {made} driver calls");
        Ok(true)
    }

    fn retire(&mut self, stream: u8) -> Result<bool, String> {
        let Some(slot) = self.slot(stream) else { return Ok(false) };
        let gone = self.slots.swap_remove(slot);
        let (uid, pool) = (gone.uid, gone.pool);
        let (needed, capturing) = (self.is_needed(uid), self.is_capturing(uid));
        match gone.handle.retire() {
            Ok(()) => {
                ensure!(!needed, "a stream was retired under a live buffer");
                ensure!(!capturing, "a capturing stream was retired");
                self.coverage.retirements += 1;
            }
            Err(refused) => {
                self.coverage.refused_retirements += 1;
                let error = refused.error().clone();
                let expected = needed && error.is_in_use() || capturing && error.is_capture();
                self.expect_error(&error, expected, "retire")?;
                let handle = refused.into_stream();
                self.slots.push(super::world::Slot { uid, pool, handle });
            }
        }
        Ok(true)
    }

    fn trim(&mut self, pool: u8, keep: u64) -> Result<bool, String> {
        let pool = self.side(pool);
        let before = self.sides[pool].pool.stats();
        match self.sides[pool].pool.trim(keep) {
            Ok(given) => {
                let after = self.sides[pool].pool.stats();
                ensure!(after.reserved >= after.in_use, "trim took what is in use: {after:?}");
                ensure!(
                    self.is_relaxed() || before.reserved - after.reserved == given,
                    "trim says that it gave {given} bytes: {before:?} {after:?}"
                );
                ensure!(
                    before.reserved > keep || given == 0,
                    "trim gave {given} bytes below {keep}"
                );
                self.coverage.trimmed_bytes += given;
            }
            Err(error) => self.expect_error(&error, false, "trim")?,
        }
        Ok(true)
    }

    fn reserve(&mut self, pool: u8, bytes: u64) -> Result<bool, String> {
        let pool = self.side(pool);
        match self.sides[pool].pool.reserve(bytes) {
            Ok(()) => {
                let stats = self.sides[pool].pool.stats();
                ensure!(stats.reserved >= bytes, "{bytes} bytes are not reserved: {stats:?}");
            }
            Err(error) => {
                // Whole granules may not reach the limit.
                let over = bytes + (2 << 20) > self.setup.limit;
                self.expect_error(&error, over && error.is_out_of_memory(), "reserve")?;
            }
        }
        Ok(true)
    }

    fn begin_capture(&mut self, stream: u8, foreign: bool) -> Result<bool, String> {
        let Some(slot) = self.slot(stream) else { return Ok(false) };
        let slot = &self.slots[slot];
        let foreign = foreign && self.setup.foreign_captures;
        let device = &self.sides[slot.pool].device;
        let raw = if foreign { device.create_stream() } else { slot.handle.raw().clone() };
        let uid = (!foreign).then_some(slot.uid);
        // In the stricter modes the thread that began a capture must end it.
        let mode = match self.captures.len() + usize::from(stream) {
            _ if self.threads > 1 => CaptureMode::Relaxed,
            0 => CaptureMode::Global,
            1 => CaptureMode::ThreadLocal,
            _ => CaptureMode::Relaxed,
        };
        if device.begin_capture(&raw, mode).is_ok() {
            self.coverage.captures += 1;
            self.captures.push(Capturing { uid, device: slot.pool, raw });
        }
        Ok(true)
    }

    fn end_capture(&mut self, capture: u8) -> Result<bool, String> {
        if self.captures.is_empty() {
            return Ok(false);
        }
        self.end_capture_at(usize::from(capture) % self.captures.len())?;
        Ok(true)
    }

    pub(super) fn end_capture_at(&mut self, at: usize) -> Check {
        let Capturing { device, raw, .. } = self.captures.swap_remove(at);
        let result = self.sides[device].device.end_capture(&raw);
        ensure!(result.is_ok() || self.is_relaxed(), "the pool has broken a capture: {result:?}");
        Ok(())
    }

    /// Closes a pool; if that succeeds, its device gets a new one.
    fn close(&mut self, local: &mut Local, pool: u8) -> Result<bool, String> {
        let pool = self.side(pool);
        if self.live.iter().any(|live| live.pool == pool) {
            match self.sides[pool].pool.close() {
                Ok(()) => return Err("a pool was closed under a live buffer".to_owned()),
                Err(error) => self.expect_error(&error, error.is_in_use(), "close")?,
            }
            self.coverage.refused_closes += 1;
            return Ok(true);
        }
        // A close that a capture or an error holds up leaves a pool that nobody can account for. One of
        // another device does so where that has used this one's memory.
        if self.fault_armed || self.is_relaxed() || !self.captures.is_empty() {
            return Ok(false);
        }
        self.check_closed(pool)?;
        local.scopes.retain(|scope| scope.scope.is_some() || scope.pool != pool);
        self.slots.retain(|slot| slot.pool != pool);
        let device = self.sides[pool].device.clone();
        let all: Vec<_> = self.sides.iter().map(|side| side.device.clone()).collect();
        let new = self.build(&device, &all);
        let side = &mut self.sides[pool];
        (side.pool, side.serial) = (new, self.serials);
        side.stats = Default::default();
        self.coverage.closes_beside_others += u64::from(self.sides.len() > 1);
        for _ in 0..self.most_streams() / self.sides.len() {
            self.create(pool, false).map_err(|error| error.to_string())?;
        }
        self.coverage.closes += 1;
        Ok(true)
    }

    /// Closes a pool that nothing needs, and looks whether anything is left.
    pub(super) fn check_closed(&mut self, pool: usize) -> Check {
        let side = &self.sides[pool];
        let result = side.pool.close();
        ensure!(result.is_ok(), "an empty pool cannot be closed: {result:?}");
        let (stats, memory) = (side.pool.stats(), side.device.memory_in_use());
        ensure!(stats.reserved == 0 && memory == 0, "{memory} bytes survive a close: {stats:?}");
        let granules = side.device.live_granules();
        ensure!(granules == 0, "{granules} granules survive a close");
        for slot in self.slots.iter().filter(|slot| slot.pool == pool) {
            let refused = slot.handle.alloc(256);
            let closed = refused.as_ref().is_err_and(Error::is_closed);
            ensure!(closed, "a closed pool allocates: {refused:?}");
        }
        Ok(())
    }
}

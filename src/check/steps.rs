//! The operations on buffers: allocate, use, name, move, free.

use super::program::{Op, Step};
use super::shadow::{Uid, largest_block};
use super::world::{Check, Live, Local, Scope, Slot, World, ensure};
use crate::sim::{CallCounts, Kernel, SimStream};
use crate::{Buffer, Error};

type Device = crate::sim::SimDevice;

impl World {
    /// Makes one operation, and checks all that must hold then.
    pub(super) fn step(&mut self, local: &mut Local, step: Step) -> Check {
        let did = match step.op {
            Op::Alloc { stream, len, align } => self.alloc(stream, len, align),
            Op::Free { buffer } => self.free(local, buffer),
            Op::Launch { buffer, on, writes, ns } => self.launch(buffer, on, writes, ns),
            Op::Busy { stream, ns } => self.busy(stream, ns),
            Op::UseOn { buffer, stream } => self.use_on(buffer, stream),
            Op::MoveTo { buffer, stream } => self.move_to(buffer, stream),
            Op::CopyTo { buffer, stream } => self.copy_to(local, buffer, stream),
            other => self.step_elsewhere(local, other),
        }?;
        self.coverage.operations += u64::from(did);
        self.check()
    }

    pub(super) fn slot(&self, stream: u8) -> Option<usize> {
        (!self.slots.is_empty()).then(|| usize::from(stream) % self.slots.len())
    }

    fn buffer(&self, buffer: u8) -> Option<usize> {
        (!self.live.is_empty()).then(|| usize::from(buffer) % self.live.len())
    }

    fn alloc(&mut self, stream: u8, len: usize, align: usize) -> Result<bool, String> {
        let Some(slot) = self.slot(stream) else { return Ok(false) };
        let Slot { uid, pool, ref handle } = self.slots[slot];
        let handle = handle.clone();
        let (hits, before) = (self.sides[pool].pool.stats().hits, CallCounts::of_this_thread());
        let ladders = self.sides[pool].pool.stats().ladders;
        let result = handle.alloc_aligned(len, align);
        let made = CallCounts::of_this_thread() - before;
        let stats = self.sides[pool].pool.stats();
        let climbed = stats.ladders > ladders;
        if stats.hits > hits || len == 0 {
            ensure!(made.driver_calls() == 0, "a hit made driver calls: {made:?}");
        }
        match result {
            Ok(buffer) => {
                self.coverage.ladders_served += u64::from(climbed);
                self.coverage.aligned += u64::from(align > 256);
                self.coverage.empty += u64::from(len == 0);
                self.handed_out(buffer, pool, uid, align as u64)?;
            }
            Err(error) if self.is_capturing(uid) => {
                self.coverage.refused_by_capture += 1;
                self.expect_error(
                    &error,
                    error.is_capture(),
                    "an allocation on a capturing stream",
                )?;
            }
            Err(error) => {
                self.expect_error(&error, error.is_out_of_memory(), "an allocation")?;
                if error.is_out_of_memory() {
                    self.out_of_memory(slot, len, align, &error)?;
                }
            }
        }
        Ok(true)
    }

    /// An allocation found no memory. Was there none?
    fn out_of_memory(&mut self, slot: usize, len: usize, align: usize, error: &Error) -> Check {
        let Slot { pool, ref handle, .. } = self.slots[slot];
        self.coverage.out_of_memory += 1;
        let in_use: u64 =
            self.live.iter().filter(|live| live.pool == pool).map(Live::capacity).sum();
        if let Some(shortage) = error.shortage() {
            ensure!(shortage.in_use == in_use, "{in_use} bytes are in use: {error}");
            ensure!(shortage.requested >= len as u64, "less was requested than {len}: {error}");
        }
        let settled = self.setup.late_waits && self.captures.is_empty() && !self.is_relaxed();
        if !settled {
            return Ok(());
        }
        // Everything has finished, and the pool has seen it: what is free is clean.
        let wanted = largest_block(len as u64) + align as u64 + (2 << 20);
        ensure!(
            in_use > 0 || wanted > self.setup.limit,
            "an empty pool does not serve {len} bytes: {error}"
        );
        let again = handle.alloc_aligned(len, align);
        ensure!(again.is_err(), "out of memory, and an identical retry was served: {error}");
        self.coverage.retries += 1;
        Ok(())
    }

    fn handed_out(&mut self, buffer: Buffer<Device>, pool: usize, home: Uid, align: u64) -> Check {
        let (address, len) = (buffer.device_ptr(), buffer.len() as u64);
        let capacity = buffer.capacity() as u64;
        let raw = buffer.stream().raw().clone();
        if len == 0 {
            ensure!(address == 0 && capacity == 0, "a buffer of no bytes has {buffer:?}");
        } else {
            ensure!(address % align.max(256) == 0, "{buffer:?} is not aligned to {align}");
            ensure!(
                (len..=largest_block(len)).contains(&capacity),
                "{buffer:?} has a capacity out of its bounds"
            );
            let lineage = self.sides[pool].ranges.take(address, capacity, home)?;
            self.coverage.splits += u64::from(lineage.split);
            self.coverage.unions += u64::from(lineage.union);
            self.coverage.unions_for_a_third += u64::from(lineage.for_a_third);
            self.coverage.crossings += u64::from(lineage.crossing);
            self.sides[pool].device.note_handed_out(&raw, address, capacity);
        }
        let (named, uses) = Default::default();
        self.live.push(Live { buffer, pool, home, named, uses, stamp: None });
        Ok(())
    }

    /// The program drops a buffer that it has taken out of `live`: everything but the drop itself.
    pub(super) fn given_back(&mut self, live: &Live) {
        self.coverage.shared_frees += u64::from(!live.named.is_empty());
        if live.capacity() == 0 {
            return;
        }
        let side = &mut self.sides[live.pool];
        side.device.note_given_back(live.address(), live.capacity());
        side.ranges.give_back(live.address(), live.capacity(), live.home);
    }

    /// Notes a free in the innermost scope of its pool on this thread, if one is open.
    pub(super) fn note_in_scope(&mut self, local: &mut Local, pool: usize, capacity: u64) -> bool {
        let serial = self.sides[pool].serial;
        let of_pool = |scope: &&mut Scope| scope.pool == pool && scope.serial == serial;
        let Some(scope) = local.scopes.iter_mut().rev().find(of_pool) else {
            self.coverage.frees_beside_scope += u64::from(self.open_scopes > 0);
            return false;
        };
        if capacity > 0 {
            scope.freed += 1;
            scope.bytes += capacity;
            self.coverage.frees_in_scope += 1;
        }
        true
    }

    fn free(&mut self, local: &mut Local, buffer: u8) -> Result<bool, String> {
        let Some(index) = self.buffer(buffer) else { return Ok(false) };
        let live = self.live.swap_remove(index);
        self.given_back(&live);
        let in_scope = self.note_in_scope(local, live.pool, live.capacity());
        let records = self.facts[live.home.0].record_on_free && !in_scope && live.capacity() > 0;
        let capturing = self.is_capturing(live.home);
        let before = CallCounts::of_this_thread();
        drop(live.buffer);
        let made = CallCounts::of_this_thread() - before;
        if !records {
            ensure!(made.driver_calls() == 0, "a free made driver calls: {made:?}");
        } else if !self.is_relaxed() {
            let wanted = u64::from(!capturing);
            let records = made.event_records;
            ensure!(records == wanted, "{records} records for a free that closes its epoch");
            self.coverage.recorded_frees += records;
        }
        Ok(true)
    }

    /// The streams that a buffer may be used on and that are at hand, its home first.
    fn streams_of(&self, live: &Live) -> Vec<(Uid, SimStream)> {
        let mut streams = vec![(live.home, live.buffer.stream().raw().clone())];
        for slot in &self.slots {
            let may_use = self.has_access(live.pool, slot.pool);
            if live.named.contains(&slot.uid) && slot.uid != live.home && may_use {
                streams.push((slot.uid, slot.handle.raw().clone()));
            }
        }
        streams
    }

    fn launch(&mut self, buffer: u8, on: u8, writes: bool, ns: u64) -> Result<bool, String> {
        let Some(index) = self.buffer(buffer) else { return Ok(false) };
        let live = &self.live[index];
        let streams = self.streams_of(live);
        let (uid, raw) = &streams[usize::from(on) % streams.len()];
        // What a graph uses is not the pool's to know.
        if live.capacity() == 0 || self.is_capturing(*uid) {
            return Ok(false);
        }
        let writes = writes && self.order.allows(&live.uses, *uid, true);
        if !writes && !self.order.allows(&live.uses, *uid, false) {
            return Ok(false);
        }
        let at = self.order.next_kernel();
        let (address, bytes) = (live.address(), live.capacity());
        let kernel = Kernel::new().taking(ns).stamp(at);
        let kernel = match (writes, live.stamp) {
            (true, Some(stamp)) => kernel.expects(address, bytes, stamp).writes(address, bytes),
            (true, None) => kernel.writes(address, bytes),
            (false, Some(stamp)) => kernel.expects(address, bytes, stamp),
            (false, None) => kernel.reads(address, bytes),
        };
        let device = &self.sides[self.pool_of(*uid)].device;
        let result = device.launch(raw, kernel);
        let elsewhere = *uid != live.home;
        let uid = *uid;
        match result {
            Ok(()) => {
                let live = &mut self.live[index];
                if writes {
                    live.uses.clear();
                    live.stamp = Some(at);
                }
                live.uses.push(super::shadow::Use { stream: uid, at, write: writes });
                self.coverage.kernels += 1;
                self.coverage.kernels_elsewhere += u64::from(elsewhere);
            }
            Err(error) => ensure!(self.is_relaxed(), "a launch failed: {error}"),
        }
        Ok(true)
    }

    fn busy(&mut self, stream: u8, ns: u64) -> Result<bool, String> {
        let Some(slot) = self.slot(stream) else { return Ok(false) };
        let slot = &self.slots[slot];
        let result =
            self.sides[slot.pool].device.launch(slot.handle.raw(), Kernel::new().taking(ns));
        ensure!(result.is_ok() || self.is_relaxed(), "a launch failed: {result:?}");
        Ok(true)
    }

    fn use_on(&mut self, buffer: u8, stream: u8) -> Result<bool, String> {
        let (Some(index), Some(slot)) = (self.buffer(buffer), self.slot(stream)) else {
            return Ok(false);
        };
        let other = &self.slots[slot];
        let (uid, raw) = (other.uid, other.handle.raw().clone());
        let live = &self.live[index];
        let (home, before) = (live.home, CallCounts::of_this_thread());
        let result = live.buffer.use_on(&other.handle);
        let nothing = home == uid || live.capacity() == 0;
        let capturing = self.is_capturing(home) || self.is_capturing(uid);
        let refused = !self.has_access(live.pool, other.pool);
        let foreign = other.pool != live.pool;
        if let Err(error) = result {
            let expected =
                !nothing && (refused && error.is_wrong_stream() || capturing && error.is_capture());
            self.coverage.refusals += u64::from(refused);
            self.coverage.refused_by_capture += u64::from(capturing);
            self.expect_error(&error, expected, "use_on")?;
            return Ok(true);
        }
        if nothing {
            return Ok(true);
        }
        ensure!(!refused && !capturing, "use_on a stream that must be refused");
        let made = CallCounts::of_this_thread() - before;
        ensure!(made.driver_calls() > 0, "use_on made no driver call");
        let address = live.address();
        self.sides[live.pool].device.note_use_on(&raw, address);
        self.order.order(home, uid);
        let live = &mut self.live[index];
        if !live.named.contains(&uid) {
            live.named.push(uid);
        }
        self.coverage.foreign_uses += u64::from(foreign);
        Ok(true)
    }

    fn move_to(&mut self, buffer: u8, stream: u8) -> Result<bool, String> {
        let (Some(index), Some(slot)) = (self.buffer(buffer), self.slot(stream)) else {
            return Ok(false);
        };
        let other = &self.slots[slot];
        let (uid, raw) = (other.uid, other.handle.raw().clone());
        let live = &mut self.live[index];
        let home = live.home;
        let result = live.buffer.move_to(&other.handle);
        let (pool, address, capacity) = (live.pool, live.address(), live.capacity());
        let refused = other.pool != pool;
        let capturing =
            capacity > 0 && (self.is_capturing(home) || self.is_capturing(uid)) && home != uid;
        if let Err(error) = result {
            let expected = refused && error.is_wrong_stream() || capturing && error.is_capture();
            self.coverage.refusals += u64::from(refused);
            self.coverage.refused_by_capture += u64::from(capturing);
            self.expect_error(&error, expected, "move_to")?;
            let live = &self.live[index];
            let stays = live.buffer.stream().raw().number() == self.number_of(live);
            ensure!(stays, "a failed move_to has changed the home");
            return Ok(true);
        }
        ensure!(!refused && !capturing, "move_to a stream that must be refused");
        if home == uid {
            return Ok(true);
        }
        if capacity > 0 {
            self.sides[pool].device.note_moved_to(&raw, address);
            self.order.order(home, uid);
        }
        self.live[index].home = uid;
        self.coverage.moves += 1;
        Ok(true)
    }

    /// How many buffers of a pool have been freed.
    fn frees(&self, pool: usize) -> u64 {
        let stats = self.sides[pool].pool.stats();
        stats.hits + stats.misses - stats.live
    }

    fn copy_to(&mut self, local: &mut Local, buffer: u8, stream: u8) -> Result<bool, String> {
        let (Some(index), Some(slot)) = (self.buffer(buffer), self.slot(stream)) else {
            return Ok(false);
        };
        let Slot { uid, pool, ref handle } = self.slots[slot];
        let (handle, live) = (handle.clone(), &self.live[index]);
        let (home, stamp, bytes) = (live.home, live.stamp, live.capacity());
        let earlier: Vec<Uid> = live.named.iter().copied().chain([home]).collect();
        let capturing =
            bytes > 0 && earlier.iter().chain([&uid]).any(|stream| self.is_capturing(*stream));
        let (foreign, frees) = (pool != live.pool, self.frees(pool));
        let copy = match live.buffer.copy_to(&handle) {
            Ok(copy) => copy,
            Err(error) => {
                self.coverage.refused_by_capture += u64::from(capturing);
                let expected = capturing && error.is_capture() || error.is_out_of_memory();
                // The driver has refused the copy itself, which was there by then.
                if self.frees(pool) > frees {
                    self.note_in_scope(local, pool, bytes);
                }
                self.expect_error(&error, expected, "copy_to")?;
                return Ok(true);
            }
        };
        ensure!(!capturing, "a copy of or to a capturing stream");
        ensure!(copy.len() == live.buffer.len(), "a copy of {:?} is {copy:?}", live.buffer);
        if bytes == 0 {
            self.handed_out(copy, pool, uid, 1)?;
            return Ok(true);
        }
        // The oracle is told nothing: the copy is a use that it sees, and the allocation for it may have put a
        // probe on the home stream since, which nothing waits for.
        earlier.into_iter().for_each(|stream| self.order.order(stream, uid));
        let at = self.order.next_kernel();
        let live = &mut self.live[index];
        live.uses.push(super::shadow::Use { stream: uid, at, write: false });
        if uid != home && !live.named.contains(&uid) {
            live.named.push(uid);
        }
        self.handed_out(copy, pool, uid, 1)?;
        let copy = self.live.last_mut().expect("just handed out");
        copy.uses.push(super::shadow::Use { stream: uid, at, write: true });
        copy.stamp = stamp;
        self.coverage.copies += u64::from(!foreign);
        self.coverage.foreign_copies += u64::from(foreign);
        Ok(true)
    }

    /// The device's number of a buffer's home, where a handle of it is at hand.
    fn number_of(&self, live: &Live) -> Option<u32> {
        let slot = self.slots.iter().find(|slot| slot.uid == live.home);
        let raw = slot
            .map_or_else(|| live.buffer.stream().raw().clone(), |slot| slot.handle.raw().clone());
        raw.number()
    }
}

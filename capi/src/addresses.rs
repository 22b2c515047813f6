//! Which buffer an address names: the buffers that C code holds, kept here by value.
//!
//! Split over locks by address. A buffer is in the table from its allocation to its free, except while a
//! call that may block works on it; then its address is in `busy`, and whoever else asks for it waits. No
//! driver call is made under a lock, and nothing but a table's growth allocates.

use std::mem::ManuallyDrop;
use std::thread;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use rust_pool::Buffer;
use rust_pool::cuda::CudaBackend;

use crate::table::{Keyed, Table, spread};

/// How many locks: as many as the high bits that choose one can tell apart.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 6;

/// How often a thread looks for a busy buffer: what keeps it busy is a driver call or two.
const LOOK_AGAIN: Duration = Duration::from_micros(20);

/// A buffer in a table. It is not freed when this is dropped (a pool is not dropped while it has some): so
/// it can be moved in registers, where nothing need be there to be freed by a panic.
#[derive(Debug)]
pub(crate) struct Kept(ManuallyDrop<Buffer<CudaBackend>>);

impl Kept {
    #[inline]
    pub(crate) fn new(buffer: Buffer<CudaBackend>) -> Kept {
        Kept(ManuallyDrop::new(buffer))
    }

    #[inline]
    pub(crate) fn into_buffer(self) -> Buffer<CudaBackend> {
        ManuallyDrop::into_inner(self.0)
    }

    /// 0 for no bytes.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.0.device_ptr()
    }
}

impl Keyed for Kept {
    #[inline]
    fn key(&self) -> u64 {
        self.address()
    }
}

// What a table costs for each live buffer: 32 bytes, and a third more that are empty at least.
const _: () = assert!(size_of::<Option<Kept>>() == 32);

/// The live buffers of one pool, by address.
#[derive(Debug)]
pub(crate) struct Addresses {
    shards: Box<[Shard; SHARDS]>,
}

type Shard = CachePadded<Mutex<State>>;

#[derive(Debug)]
struct State {
    table: Table<Kept>,
    /// The addresses of buffers that are out for a call. None in the usual case.
    busy: Vec<u64>,
}

/// What a look for a buffer finds.
enum Found {
    Here(Kept),
    Busy,
    Nowhere,
}

impl State {
    fn take(&mut self, address: u64) -> Found {
        match self.table.remove(address) {
            Some(buffer) => Found::Here(buffer),
            None if self.busy.contains(&address) => Found::Busy,
            None => Found::Nowhere,
        }
    }
}

impl Addresses {
    pub(crate) fn new() -> Addresses {
        let state = || State { table: Table::new(), busy: Vec::new() };
        let shards = std::array::from_fn(|_| CachePadded::new(Mutex::new(state())));
        Addresses { shards: Box::new(shards) }
    }

    #[inline]
    fn shard(&self, address: u64) -> &Shard {
        // The high bits: the low ones choose the slot.
        &self.shards[(spread(address) >> (u64::BITS - SHARD_BITS)) as usize]
    }

    /// Keeps a buffer, of more than no bytes.
    #[inline]
    pub(crate) fn insert(&self, buffer: Kept) {
        let old = self.shard(buffer.key()).lock().table.insert(buffer);
        debug_assert!(old.is_none(), "two live buffers have one address");
    }

    /// Takes the buffer of an address out.
    #[inline]
    pub(crate) fn remove(&self, address: u64) -> Option<Buffer<CudaBackend>> {
        let found = self.shard(address).lock().table.remove(address);
        match found {
            Some(kept) => Some(kept.into_buffer()),
            // It may be busy.
            None => self.wait_for(address, |_, kept| kept).map(Kept::into_buffer),
        }
    }

    /// Waits while a buffer is busy, and takes it, under the lock.
    #[cold]
    fn wait_for<R>(&self, address: u64, take: impl FnOnce(&mut State, Kept) -> R) -> Option<R> {
        loop {
            let mut state = self.shard(address).lock();
            match state.take(address) {
                Found::Here(buffer) => return Some(take(&mut state, buffer)),
                Found::Nowhere => return None,
                Found::Busy => {}
            }
            drop(state);
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Works on the buffer of an address, with no lock held; `None` if there is none.
    pub(crate) fn with<R>(
        &self,
        address: u64,
        work: impl FnOnce(&mut Buffer<CudaBackend>) -> R,
    ) -> Option<R> {
        let buffer = self.wait_for(address, |state, buffer| {
            state.busy.push(address);
            buffer
        })?;
        let mut out = Out { shard: self.shard(address), buffer: Some(buffer) };
        out.buffer.as_mut().map(|kept| work(&mut kept.0))
    }

    /// How large the buffer of an address is: what was asked for, and its block, in bytes.
    pub(crate) fn size(&self, address: u64) -> Option<(usize, usize)> {
        let size = |buffer: &Buffer<CudaBackend>| (buffer.len(), buffer.capacity());
        if let Some(buffer) = self.shard(address).lock().table.get(address) {
            return Some(size(&buffer.0));
        }
        // It may be busy.
        self.with(address, |buffer| size(buffer))
    }

    /// How many buffers live.
    pub(crate) fn len(&self) -> usize {
        let len = |shard: &Shard| {
            let state = shard.lock();
            state.table.len() + state.busy.len()
        };
        self.shards.iter().map(len).sum()
    }
}

/// A buffer that is out for a call. It goes back when this is dropped, also by a panic.
struct Out<'a> {
    shard: &'a Shard,
    buffer: Option<Kept>,
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let mut state = self.shard.lock();
        let address = buffer.key();
        state.busy.retain(|&busy| busy != address);
        state.table.insert(buffer);
    }
}

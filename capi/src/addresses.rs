//! Which buffer an address names: the buffers that C code holds, kept here by value.
//!
//! Split over locks by address. A buffer is in the table from its allocation to its free, except while a
//! call that may block works on it; then its address is in `busy`, and whoever else asks for it waits. No
//! driver call is made under a lock, and nothing but a table's growth allocates.

use crossbeam_utils::CachePadded;
use parking_lot::{Condvar, Mutex};
use rust_pool::Buffer;
use rust_pool::cuda::CudaBackend;

use crate::table::{Keyed, Table, spread};

/// A power of two.
const SHARDS: usize = 64;

impl Keyed for Buffer<CudaBackend> {
    #[inline]
    fn key(&self) -> u64 {
        self.device_ptr()
    }
}

// What a table costs for each live buffer: 32 bytes, and a third more that are empty at least.
const _: () = assert!(size_of::<Option<Buffer<CudaBackend>>>() == 32);

/// The live buffers of one pool, by address.
#[derive(Debug)]
pub(crate) struct Addresses {
    shards: Box<[CachePadded<Shard>]>,
}

#[derive(Debug)]
struct Shard {
    state: Mutex<State>,
    /// A buffer is no longer busy.
    returned: Condvar,
}

#[derive(Debug)]
struct State {
    table: Table<Buffer<CudaBackend>>,
    /// The addresses of buffers that are out for a call. None in the usual case.
    busy: Vec<u64>,
}

impl Addresses {
    pub(crate) fn new() -> Addresses {
        let state = || State { table: Table::new(), busy: Vec::new() };
        let shard = || Shard { state: Mutex::new(state()), returned: Condvar::new() };
        Addresses { shards: (0..SHARDS).map(|_| CachePadded::new(shard())).collect() }
    }

    #[inline]
    fn shard(&self, address: u64) -> &Shard {
        // The high bits: the low ones choose the slot.
        &self.shards[(spread(address) >> 58) as usize % SHARDS]
    }

    /// Keeps a buffer, of more than no bytes.
    #[inline]
    pub(crate) fn insert(&self, buffer: Buffer<CudaBackend>) {
        let old = self.shard(buffer.key()).state.lock().table.insert(buffer);
        assert!(old.is_none(), "two live buffers have one address");
    }

    /// Takes the buffer of an address out.
    #[inline]
    pub(crate) fn remove(&self, address: u64) -> Option<Buffer<CudaBackend>> {
        let shard = self.shard(address);
        let mut state = shard.state.lock();
        loop {
            if let Some(buffer) = state.table.remove(address) {
                return Some(buffer);
            }
            if !state.busy.contains(&address) {
                return None;
            }
            shard.returned.wait(&mut state);
        }
    }

    /// Works on the buffer of an address, with no lock held; `None` if there is none.
    pub(crate) fn with<R>(
        &self,
        address: u64,
        work: impl FnOnce(&mut Buffer<CudaBackend>) -> R,
    ) -> Option<R> {
        let shard = self.shard(address);
        let mut state = shard.state.lock();
        let buffer = loop {
            if let Some(buffer) = state.table.remove(address) {
                break buffer;
            }
            if !state.busy.contains(&address) {
                return None;
            }
            shard.returned.wait(&mut state);
        };
        state.busy.push(address);
        drop(state);
        let mut out = Out { shard, buffer: Some(buffer) };
        out.buffer.as_mut().map(work)
    }

    /// How large the buffer of an address is: what was asked for, and its block, in bytes.
    pub(crate) fn size(&self, address: u64) -> Option<(usize, usize)> {
        self.with(address, |buffer| (buffer.len(), buffer.capacity()))
    }

    /// How many buffers live.
    pub(crate) fn len(&self) -> usize {
        let len = |shard: &CachePadded<Shard>| {
            let state = shard.state.lock();
            state.table.len() + state.busy.len()
        };
        self.shards.iter().map(len).sum()
    }
}

/// A buffer that is out for a call. It goes back when this is dropped, also by a panic.
struct Out<'a> {
    shard: &'a Shard,
    buffer: Option<Buffer<CudaBackend>>,
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let mut state = self.shard.state.lock();
        let address = buffer.key();
        state.busy.retain(|&busy| busy != address);
        state.table.insert(buffer);
        drop(state);
        self.shard.returned.notify_all();
    }
}

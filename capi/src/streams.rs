//! Which registered stream a raw handle names.
//!
//! Split over locks by handle. Under such a lock a *hit* is served, which takes the stream's own lock and
//! makes no driver call; everything else is done with a clone of the stream and no lock held.

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use rust_pool::cuda::{CudaBackend, CudaPool};
use rust_pool::{Buffer, Error, PoolStream};

use crate::table::{Keyed, Table, spread};

type Stream = PoolStream<CudaBackend>;

/// How many locks: as many as the high bits that choose one can tell apart.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 6;

/// `CU_STREAM_LEGACY`, another handle of the stream that null names.
const LEGACY: u64 = 1;

/// A raw handle of a stream, as C code passes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(u64);

impl Handle {
    /// A handle, with one form for each stream.
    #[inline]
    pub(crate) fn of(raw: *mut std::ffi::c_void) -> Handle {
        let raw = raw.addr() as u64;
        Handle(if raw == LEGACY { 0 } else { raw })
    }
}

#[derive(Debug)]
struct Named {
    handle: Handle,
    stream: Stream,
}

impl Keyed for Named {
    #[inline]
    fn key(&self) -> u64 {
        self.handle.0
    }
}

type Shard = CachePadded<Mutex<Table<Named>>>;

/// The streams that one pool has seen.
#[derive(Debug)]
pub(crate) struct Streams {
    shards: Box<[Shard; SHARDS]>,
}

impl Streams {
    pub(crate) fn new() -> Streams {
        let shards = std::array::from_fn(|_| CachePadded::new(Mutex::new(Table::new())));
        Streams { shards: Box::new(shards) }
    }

    #[inline]
    fn shard(&self, handle: Handle) -> &Shard {
        &self.shards[(spread(handle.0) >> (u64::BITS - SHARD_BITS)) as usize]
    }

    /// Allocates from the stream's own list, if it is known and the list can serve.
    #[inline]
    pub(crate) fn hit(&self, handle: Handle, bytes: usize) -> Option<Buffer<CudaBackend>> {
        self.shard(handle).lock().get(handle.0)?.stream.alloc_hit(bytes)
    }

    /// The stream, registered if it was not.
    ///
    /// # Safety
    ///
    /// As for [`CudaPool::borrow_stream`].
    pub(crate) unsafe fn get(&self, pool: &CudaPool, handle: Handle) -> Result<Stream, Error> {
        if let Some(named) = self.shard(handle).lock().get(handle.0) {
            return Ok(named.stream.clone());
        }
        let raw = std::ptr::with_exposed_provenance_mut(handle.0 as usize);
        // SAFETY: the caller's promise is the pool's condition.
        let stream = unsafe { pool.borrow_stream(raw) }?;
        // Who registered it meanwhile has the same stream.
        let same = self.shard(handle).lock().insert(Named { handle, stream: stream.clone() });
        drop(same);
        Ok(stream)
    }

    /// Lets a stream leave the pool. One that the pool does not know has left already.
    pub(crate) fn retire(&self, handle: Handle) -> Result<(), Error> {
        let named = self.shard(handle).lock().remove(handle.0);
        named.map_or(Ok(()), |named| self.retire_named(named))
    }

    fn retire_named(&self, named: Named) -> Result<(), Error> {
        let handle = named.handle;
        named.stream.retire().map_err(|refused| {
            let error = refused.error().clone();
            let stream = refused.into_stream();
            let same = self.shard(handle).lock().insert(Named { handle, stream });
            drop(same);
            error
        })
    }

    /// Lets every stream leave. At the first that cannot, the rest stays.
    pub(crate) fn retire_all(&self) -> Result<(), Error> {
        for shard in self.shards.iter() {
            let mut all = shard.lock().drain().into_iter();
            while let Some(named) = all.next() {
                if let Err(error) = self.retire_named(named) {
                    let mut shard = shard.lock();
                    let same: Vec<_> = all.filter_map(|named| shard.insert(named)).collect();
                    drop(shard);
                    drop(same);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

//! The pool that a CKKS library had, before and after it changed how its pool is cleared: the baseline.
//!
//! One lock; one list per power of two, shared by all streams; one stream of the pool's own, through
//! which all memory passes. Every free makes that stream wait for the buffer's stream, and every
//! allocation makes the taker wait for it. The change: after one synchronize of the device, frees skip
//! the wait while a thread-local flag is set.

use std::cell::Cell;

use parking_lot::Mutex;
use streampool::Backend;

use super::common::cli::Outcome;

thread_local! {
    static SKIP_WAITS: Cell<bool> = const { Cell::new(false) };
}

/// What it takes from the device at once, in bytes.
const CHUNK: u64 = 1 << 30;

pub(crate) struct Baseline<B: Backend> {
    backend: B,
    streams: Vec<B::Stream>,
    state: Mutex<State<B>>,
}

struct State<B: Backend> {
    /// The stream through which all memory passes.
    pool_stream: B::Stream,
    /// Recorded and waited for at once, under the lock.
    event: Option<B::Event>,
    /// The free addresses, by the logarithm of the size.
    lists: Box<[Vec<u64>; 64]>,
    chunks: Vec<(u64, u64)>,
}

/// One buffer of the baseline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The index of its stream.
    pub(crate) stream: usize,
}

impl<B: Backend> Baseline<B> {
    /// A pool for these streams, with one more for its own use.
    pub(crate) fn new(
        backend: B,
        pool_stream: B::Stream,
        streams: Vec<B::Stream>,
    ) -> Outcome<Self> {
        let event = Some(backend.create_event()?);
        let lists = Box::new([const { Vec::new() }; 64]);
        let state = Mutex::new(State { pool_stream, event, lists, chunks: Vec::new() });
        Ok(Baseline { backend, streams, state })
    }

    /// How many streams there are.
    pub(crate) fn streams(&self) -> usize {
        self.streams.len()
    }

    pub(crate) fn stream(&self, index: usize) -> &B::Stream {
        &self.streams[index]
    }

    pub(crate) fn alloc(&self, bytes: u64, stream: usize) -> Outcome<Block> {
        let log = log_of(bytes);
        let mut state = self.state.lock();
        if state.lists[log].is_empty() {
            self.refill(&mut state, 1 << log)?;
        }
        state.order(&self.backend, None, Some(&self.streams[stream]))?;
        let address = state.lists[log].pop().expect("just refilled");
        Ok(Block { address, bytes, stream })
    }

    pub(crate) fn free(&self, block: Block) -> Outcome<()> {
        let mut state = self.state.lock();
        if !SKIP_WAITS.get() {
            state.order(&self.backend, Some(&self.streams[block.stream]), None)?;
        }
        state.lists[log_of(block.bytes)].push(block.address);
        Ok(())
    }

    /// Frees all of these, each in the ordinary way.
    pub(crate) fn clear(&self, blocks: &mut Vec<Block>) -> Outcome<()> {
        blocks.drain(..).try_for_each(|block| self.free(block))
    }

    /// The change: synchronizes the device, and runs `body`, whose frees on this thread skip the wait.
    pub(crate) fn with_flag(&self, body: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
        self.backend.synchronize_context()?;
        SKIP_WAITS.set(true);
        let outcome = body();
        SKIP_WAITS.set(false);
        outcome
    }

    fn refill(&self, state: &mut State<B>, size: u64) -> Outcome<()> {
        let bytes = CHUNK.max(size);
        let address = self.backend.alloc_segment(bytes)?;
        state.chunks.push((address, bytes));
        let pieces = (0..bytes / size).map(|index| address + index * size);
        state.lists[size.trailing_zeros() as usize].extend(pieces);
        Ok(())
    }
}

impl<B: Backend> State<B> {
    /// Orders one stream after another, where none is the pool's own.
    fn order(
        &self,
        backend: &B,
        first: Option<&B::Stream>,
        then: Option<&B::Stream>,
    ) -> Outcome<()> {
        let event = self.event.as_ref().expect("there until the drop");
        backend.record(event, first.unwrap_or(&self.pool_stream))?;
        Ok(backend.wait(then.unwrap_or(&self.pool_stream), event)?)
    }
}

impl<B: Backend> Drop for Baseline<B> {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if let Some(event) = state.event.take() {
            self.backend.destroy_event(event);
        }
        if self.backend.synchronize_context().is_err() {
            // What runs on the device is unknown: its memory is leaked.
            return;
        }
        for (address, bytes) in state.chunks.drain(..) {
            // SAFETY: the chunk came from `alloc_segment` with this size, is given back once, and its
            // last use has completed, because the synchronize has returned.
            let freed = unsafe { self.backend.free_segment(address, bytes) };
            // On an error the chunk is leaked; a drop cannot tell.
            drop(freed);
        }
    }
}

fn log_of(bytes: u64) -> usize {
    bytes.next_power_of_two().trailing_zeros() as usize
}

//! A snapshot: copies under the locks, and everything else outside of them.

use super::{PoolCore, StreamPool};
use crate::backend::Backend;
use crate::heap::{BlockCopy, MapCopy, State};
use crate::order::{Epoch, TimelineId};
use crate::pool_stream::core::StreamCore;
use crate::snapshot::{Block, BlockState, Segment, Snapshot, Stream};
use crate::sync::Arc;

/// What is copied under the locks.
#[derive(Default)]
struct Copies {
    map: MapCopy,
    /// What has completed, by the number of the timeline.
    completed: Vec<(TimelineId, Epoch)>,
    parked: u64,
    streams: Vec<Stream>,
    /// The addresses of the blocks on all lists, list by list.
    listed: Vec<u64>,
    /// Whose they are: a stream, and where in `listed` its blocks end.
    ends: Vec<(TimelineId, usize)>,
}

impl<B: Backend> StreamPool<B> {
    /// Every segment and every block of the pool, and who has it. Makes no driver call, and changes
    /// nothing.
    ///
    /// Each byte that the pool holds is told once, or is being taken from or given back to the device by
    /// another thread. While other threads are at work, all blocks but those of streams' lists are as they
    /// were at one moment; each list is as it was at a moment shortly after, and a block that was freed on
    /// a list or taken from it in between is told as one or the other. At rest the sums are those of
    /// [`stats`](Self::stats), except that what has finished without the pool having looked yet is told as
    /// clean here. The tag of a buffer, which a pool with a [`history`](crate::PoolBuilder::history) tells, is
    /// that of shortly after as well: where the buffer was freed meanwhile, of the one in its place.
    ///
    /// Misses, frees by the long way and registrations wait while the map is copied: measured, 35 ns for
    /// each block, most of it for the first touch of the copy's memory. Hits and frees of a stream wait
    /// while its own list is copied: 7 ns for each block of it; those of buffers with a [`Tag`](crate::Tag)
    /// while a sixteenth of all tags is copied. The rest, ten times that, is done with no lock held.
    pub fn snapshot(&self) -> Snapshot {
        let copies = self.core().copies();
        let time_ns = self.core().nanoseconds();
        let mut snapshot = copies.into_snapshot();
        snapshot.time_ns = time_ns;
        if let Some(tags) = self.core().live_tags() {
            snapshot.learn(&self.history(), &tags.copy());
        }
        snapshot
    }
}

impl<B: Backend> PoolCore<B> {
    fn copies(&self) -> Copies {
        let mut copies = Copies::default();
        let (size, timelines) = {
            let central = self.central.lock();
            (central.heap.count(), central.timelines.count())
        };
        copies.map.reserve(size);
        copies.completed.reserve(timelines + timelines / 8 + 8);
        self.with_streams(|streams| self.copy(streams, &mut copies));
        copies
    }

    fn copy(&self, streams: &[Arc<StreamCore<B>>], copies: &mut Copies) {
        let identity = |core: &Arc<StreamCore<B>>| {
            let own = core.identity;
            Stream::new(core.id.get(), own.handle, own.kind)
        };
        copies.streams.extend(streams.iter().map(identity));
        copies.ends.reserve(streams.len());
        let central = self.central.lock();
        central.heap.copy_to(&mut copies.map);
        copies.completed.extend(central.timelines.all_completed());
        copies.parked = central.pieces.parked_bytes();
        // With the heap's lock held no block moves between a list and the heap, nor between two streams.
        for core in streams {
            core.copy_list(&mut copies.listed);
            copies.ends.push((core.id, copies.listed.len()));
        }
    }
}

impl Copies {
    fn into_snapshot(mut self) -> Snapshot {
        let mut from = 0;
        let mut listed: Vec<(u64, TimelineId)> = Vec::with_capacity(self.listed.len());
        for (id, end) in &self.ends {
            listed.extend(self.listed[from..*end].iter().map(|address| (*address, *id)));
            from = *end;
        }
        listed.sort_unstable();
        let mut blocks = std::mem::take(&mut self.map.blocks);
        blocks.sort_unstable_by_key(|block| block.address);
        let mut blocks = blocks.into_iter().peekable();
        let mut segments: Vec<Segment> = Vec::new();
        for &(address, bytes, plain) in &self.map.segments {
            let mut open = false;
            while let Some(block) = blocks.next_if(|block| block.address < address + bytes) {
                if block.state == State::Hole {
                    open = false;
                    continue;
                }
                if !open {
                    let address = block.address;
                    segments.push(Segment { address, plain, ..Segment::default() });
                    open = true;
                }
                if let Some(segment) = segments.last_mut() {
                    segment.bytes += block.bytes;
                    segment.blocks.push(self.tell(&block, &listed));
                }
            }
        }
        Snapshot { segments, streams: self.streams, parked: self.parked, time_ns: None }
    }

    /// What a block's copy means.
    fn tell(&self, block: &BlockCopy, listed: &[(u64, TimelineId)]) -> Block {
        let on_list = || {
            let at = listed.binary_search_by_key(&block.address, |own| own.0).ok()?;
            Some(listed[at].1.get())
        };
        let mut waits_for: Vec<u64> = (self.map.points(block).iter())
            .filter(|point| point.epoch > self.completed(point.timeline))
            .map(|point| point.timeline.get())
            .collect();
        waits_for.sort_unstable();
        let (state, home) = match block.state {
            State::Out => match on_list() {
                Some(home) => {
                    waits_for.push(home);
                    (BlockState::Listed, Some(home))
                }
                None => (BlockState::InUse, Some(block.home.get())),
            },
            State::Free if waits_for.is_empty() => (BlockState::Clean, None),
            State::Free => (BlockState::Pending, None),
            State::Transit | State::Hole => (BlockState::InTransit, None),
            State::Quarantined => (BlockState::Quarantined, None),
        };
        let (address, bytes) = (block.address, block.bytes);
        Block { address, bytes, requested: None, tag: None, state, home, waits_for }
    }

    fn completed(&self, timeline: TimelineId) -> Epoch {
        match self.completed.binary_search_by_key(&timeline, |own| own.0) {
            Ok(at) => self.completed[at].1,
            // One that is not known is over.
            Err(_) => Epoch::MAX,
        }
    }
}

#[cfg(all(test, not(loom), feature = "sim"))]
mod tests {
    use std::time::Instant;

    use crate::StreamPool;
    use crate::sim::SimDevice;

    /// What the locks are held for, to be read with `--nocapture`.
    #[test]
    fn the_copies_hold_every_block() {
        const BLOCKS: usize = 50_000;
        let device = SimDevice::new(1);
        let pool = StreamPool::new(device.clone());
        let stream = pool.stream(device.create_stream()).expect("a stream");
        let mut buffers: Vec<_> = (0..BLOCKS).map(|_| stream.alloc(512).expect("memory")).collect();
        buffers.truncate(BLOCKS / 2);
        let core = pool.core();
        for _ in 0..3 {
            let start = Instant::now();
            let copies = core.copies();
            let all = start.elapsed();
            assert_eq!(copies.listed.len(), BLOCKS / 2);
            assert!(copies.map.blocks.len() >= BLOCKS);
            let mut again = super::Copies::default();
            again.map.reserve((BLOCKS, 8));
            again.listed.reserve(BLOCKS);
            let start = Instant::now();
            core.central.lock().heap.copy_to(&mut again.map);
            let map = start.elapsed();
            let start = Instant::now();
            stream.core.copy_list(&mut again.listed);
            let list = start.elapsed();
            println!("{BLOCKS} blocks: all {all:?}, the map {map:?}, the half on a list {list:?}");
        }
    }
}

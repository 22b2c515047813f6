//! What a pool's memory looks like: every segment, every block, and who has it.
//!
//! Made by [`StreamPool::snapshot`](crate::StreamPool::snapshot). It is plain data that names nothing of
//! the pool: it can be kept, compared and sent.

mod pickle;
mod torch;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::backend::StreamKind;
use crate::history::{Action, Event, History};
use crate::tag::Tag;

/// A pool's memory at one moment.
///
/// ```
/// # use streampool::{StreamPool, sim::SimDevice, snapshot::BlockState};
/// let device = SimDevice::new(1);
/// let pool = StreamPool::new(device.clone());
/// let stream = pool.stream(device.create_stream())?;
/// let buffer = stream.alloc(4096)?;
/// drop(stream.alloc(8192)?);
/// let snapshot = pool.snapshot();
/// assert_eq!(snapshot.bytes_of(BlockState::InUse), 4096);
/// assert_eq!(snapshot.bytes_of(BlockState::Listed), 8192);
/// assert_eq!(snapshot.block_at(buffer.device_ptr()).unwrap().home, Some(snapshot.streams[0].number));
/// # Ok::<(), streampool::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// Addresses in a row with memory behind them, by address.
    pub segments: Vec<Segment>,
    /// The registered streams, by number.
    pub streams: Vec<Stream>,
    /// Memory that is free and behind no address that is in use, in bytes.
    pub parked: u64,
    /// When it was taken, in nanoseconds since the pool was made, where the pool keeps a
    /// [`history`](crate::PoolBuilder::history): later events do not lead to it.
    pub time_ns: Option<u64>,
}

/// Addresses in a row with memory behind all of them: a plain segment, or a part of a reserved range
/// that holes or the range's ends bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Segment {
    /// The first byte's address on the device.
    pub address: u64,
    /// The size, in bytes.
    pub bytes: u64,
    /// It was taken from the device as one; otherwise it is mapped, piece by piece.
    pub plain: bool,
    /// What it consists of, by address, without a gap.
    pub blocks: Vec<Block>,
}

/// A part of a segment that one owner has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Block {
    /// The first byte's address on the device.
    pub address: u64,
    /// The size, in bytes.
    pub bytes: u64,
    /// What was asked for, in bytes, of a buffer that the pool's [`history`](crate::PoolBuilder::history)
    /// tells of.
    pub requested: Option<u64>,
    /// What a buffer is for, where somebody has said it, and the pool keeps a history: see [`Tag`].
    pub tag: Option<Tag>,
    /// Who has it.
    pub state: BlockState,
    /// The number of the stream whose buffer or list has it.
    pub home: Option<u64>,
    /// The numbers of the streams whose queued work it waits for; of a listed block, its home alone.
    pub waits_for: Vec<u64>,
}

/// Who has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum BlockState {
    /// A buffer.
    InUse,
    /// The list of the stream that freed it: that stream may have it at once.
    Listed,
    /// Nobody, and nothing that has used it is under way: any stream may have it at once.
    Clean,
    /// Nobody; work of the streams that it waits for may be under way.
    Pending,
    /// A thread that makes a driver call for it.
    InTransit,
    /// Nobody: out of reach until a synchronize succeeds.
    Quarantined,
}

/// A registered stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stream {
    /// The pool's own number of it, never used again.
    pub number: u64,
    /// The driver's handle, as in [`StreamIdentity`](crate::backend::StreamIdentity).
    pub handle: u64,
    /// The device's legacy default stream.
    pub legacy: bool,
}

impl Snapshot {
    /// All blocks, by address.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.segments.iter().flat_map(|segment| &segment.blocks)
    }

    /// The block that an address lies in.
    pub fn block_at(&self, address: u64) -> Option<&Block> {
        let above = self.segments.partition_point(|own| own.address <= address);
        let blocks = &self.segments[above.checked_sub(1)?].blocks;
        let above = blocks.partition_point(|own| own.address <= address);
        let block = &blocks[above.checked_sub(1)?];
        (address - block.address < block.bytes).then_some(block)
    }

    /// How much is in blocks of a state, in bytes.
    pub fn bytes_of(&self, state: BlockState) -> u64 {
        self.blocks().filter(|block| block.state == state).map(|block| block.bytes).sum()
    }

    /// How much is in buffers of each tag, and in those of none, in bytes: the most first. "Where is the
    /// memory?", in the program's own words.
    ///
    /// ```
    /// # use streampool::{StreamPool, Tag, sim::SimDevice};
    /// # let device = SimDevice::new(1);
    /// # let pool = StreamPool::builder(device.clone()).history(1000).build()?;
    /// # let stream = pool.stream(device.create_stream())?;
    /// let [weights, cache] = ["weights", "key-value cache"].map(Tag::new);
    /// let kept = weights.within(|| stream.alloc(4 << 20))?;
    /// let more = cache.within(|| [stream.alloc(3 << 20), stream.alloc(3 << 20)]);
    /// let scratch = stream.alloc(4096)?;
    /// let by_tag = pool.snapshot().in_use_by_tag();
    /// assert_eq!(by_tag, [(Some(cache), 6 << 20), (Some(weights), 4 << 20), (None, 4096)]);
    /// # Ok::<(), streampool::Error>(())
    /// ```
    pub fn in_use_by_tag(&self) -> Vec<(Option<Tag>, u64)> {
        let mut bytes: HashMap<Option<Tag>, u64> = HashMap::new();
        for block in self.blocks().filter(|block| block.state == BlockState::InUse) {
            *bytes.entry(block.tag).or_default() += block.bytes;
        }
        let mut bytes: Vec<(Option<Tag>, u64)> = bytes.into_iter().collect();
        bytes.sort_by_cached_key(|(tag, bytes)| (Reverse(*bytes), tag.map(Tag::text)));
        bytes
    }

    /// Whether an event came before it.
    pub(crate) fn comes_after(&self, event: &Event) -> bool {
        self.time_ns.is_none_or(|taken| event.time_ns <= taken)
    }

    /// Notes what was asked for of the buffers whose allocation a history tells, and what buffers are for.
    pub(crate) fn learn(&mut self, history: &History, tags: &BTreeMap<u64, Tag>) {
        let mut asked: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for event in &history.events {
            if let Action::Allocate { address, bytes, requested, .. } = event.action
                && self.comes_after(event)
            {
                asked.insert(address, (bytes, requested));
            }
        }
        for block in self.segments.iter_mut().flat_map(|segment| &mut segment.blocks) {
            let told = asked.get(&block.address).filter(|own| own.0 == block.bytes);
            if block.state == BlockState::InUse {
                block.requested = told.map(|own| own.1);
                block.tag = tags.get(&block.address).copied();
            }
        }
    }

    /// The registered stream of a number.
    pub fn stream(&self, number: u64) -> Option<&Stream> {
        let at = self.streams.binary_search_by_key(&number, |stream| stream.number).ok()?;
        Some(&self.streams[at])
    }
}

impl Stream {
    pub(crate) fn new(number: u64, handle: u64, kind: StreamKind) -> Stream {
        Stream { number, handle, legacy: kind == StreamKind::Legacy }
    }
}

impl fmt::Display for BlockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockState::InUse => "in use",
            BlockState::Listed => "on its stream's list",
            BlockState::Clean => "free, clean",
            BlockState::Pending => "free, pending",
            BlockState::InTransit => "in transit",
            BlockState::Quarantined => "quarantined",
        })
    }
}

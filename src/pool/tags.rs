//! The tags of live buffers.

use std::array;
use std::collections::BTreeMap;

use super::PoolCore;
use crate::backend::Backend;
use crate::sync::Mutex;
use crate::tag::Tag;

/// The tags of a pool's live buffers, by address: of those that have one. An entry is written before its buffer
/// is handed out or through the buffer itself, and taken out before its block can be had by anybody else; so
/// that an address whose buffer has no tag is not here, and the locks, which are innermost, order nothing.
#[derive(Debug)]
pub(super) struct LiveTags {
    shards: [Mutex<BTreeMap<u64, Tag>>; SHARDS],
}

const SHARDS: usize = 16;

impl LiveTags {
    pub(super) fn new() -> LiveTags {
        LiveTags { shards: array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, address: u64) -> &Mutex<BTreeMap<u64, Tag>> {
        // Addresses are multiples of 256. The multiplication has every bit of them count for the topmost four.
        let mixed = (address >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 60) as usize]
    }

    /// By address.
    pub(super) fn copy(&self) -> BTreeMap<u64, Tag> {
        let mut all = BTreeMap::new();
        for shard in &self.shards {
            all.extend(shard.lock().iter().map(|(address, tag)| (*address, *tag)));
        }
        all
    }
}

impl<B: Backend> PoolCore<B> {
    /// Notes what the buffer at an address is for.
    pub(crate) fn put_tag(&self, address: u64, tag: Tag) {
        if let Some(tags) = self.live_tags() {
            tags.shard(address).lock().insert(address, tag);
        }
    }

    pub(crate) fn tag_at(&self, address: u64) -> Option<Tag> {
        self.live_tags()?.shard(address).lock().get(&address).copied()
    }

    /// Forgets what a buffer was for that is being freed.
    pub(crate) fn take_tag(&self, address: u64) -> Option<Tag> {
        self.live_tags()?.shard(address).lock().remove(&address)
    }
}

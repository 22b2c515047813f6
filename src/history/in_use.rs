//! The bytes in use, of all buffers and of those of each tag, event by event.

use std::collections::{BTreeSet, HashMap};

use super::{Action, History};
use crate::tag::Tag;

/// What a graph is of: the buffers of one tag, or all.
pub(super) type Graph = Option<Tag>;
const ALL: Graph = None;

/// The bytes in use at one moment.
#[derive(Default)]
pub(super) struct InUse {
    bytes: HashMap<Graph, u64>,
    /// Buffers: their bytes, and what they are for.
    live: HashMap<u64, (u64, Option<Tag>)>,
}

impl InUse {
    /// What was in use before the first event, as far as it has been freed since.
    pub(super) fn before(history: &History) -> InUse {
        let (mut allocated, mut set_tags) = (BTreeSet::new(), BTreeSet::new());
        let mut before = InUse::default();
        for event in &history.events {
            match event.action {
                Action::Allocate { address, .. } => {
                    allocated.insert(address);
                }
                Action::SetTag { address, .. } if !allocated.contains(&address) => {
                    set_tags.insert(address);
                }
                Action::Free { address, bytes, tag, .. } if !allocated.remove(&address) => {
                    // Before it was given the tag that it has in the end, what it was for is not known.
                    let tag = tag.filter(|_| !set_tags.remove(&address));
                    before.add(address, bytes, tag);
                }
                _ => {}
            }
        }
        before
    }

    /// A buffer comes. What the events still have at its address has gone: its free was lost, or told on
    /// another stream's ring after this. Says of which tags the bytes have changed.
    fn add(&mut self, address: u64, bytes: u64, tag: Option<Tag>) -> Vec<Graph> {
        let former = self.live.insert(address, (bytes, tag));
        let mut changed = former.map(|(bytes, tag)| self.subtract(bytes, tag)).unwrap_or_default();
        for graph in graphs_of(tag) {
            *self.bytes.entry(graph).or_default() += bytes;
            if !changed.contains(&graph) {
                changed.push(graph);
            }
        }
        changed
    }

    /// The buffer at an address goes: what came is taken back, whatever its end says that it was for.
    fn remove(&mut self, address: u64, bytes: u64, tag: Option<Tag>) -> Vec<Graph> {
        let (bytes, tag) = self.live.remove(&address).unwrap_or((bytes, tag));
        self.subtract(bytes, tag)
    }

    fn subtract(&mut self, bytes: u64, tag: Option<Tag>) -> Vec<Graph> {
        for graph in graphs_of(tag) {
            let own = self.bytes.entry(graph).or_default();
            *own = own.saturating_sub(bytes);
        }
        graphs_of(tag).collect()
    }

    /// Goes on to what it is after an event, and says so of the graphs that this has changed.
    pub(super) fn follow(&mut self, action: &Action) -> Vec<(Graph, u64)> {
        let changed = match *action {
            Action::Allocate { address, bytes, tag, .. } => self.add(address, bytes, tag),
            Action::Free { address, bytes, tag, .. } => self.remove(address, bytes, tag),
            Action::SetTag { address, tag } => match self.live.get(&address) {
                Some(&(bytes, former)) if former != Some(tag) => {
                    let mut changed = self.add(address, bytes, Some(tag));
                    changed.retain(Option::is_some);
                    changed
                }
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        changed.into_iter().map(|graph| (graph, self.bytes[&graph])).collect()
    }

    /// All graphs: that of all bytes first.
    pub(super) fn graphs(&self) -> Vec<(Graph, u64)> {
        let mut graphs: Vec<(Graph, u64)> =
            self.bytes.iter().map(|(graph, bytes)| (*graph, *bytes)).collect();
        if !self.bytes.contains_key(&ALL) {
            graphs.push((ALL, 0));
        }
        graphs.sort_by_cached_key(|(tag, _)| tag.map(Tag::text));
        graphs
    }
}

/// The graphs that a buffer is in.
fn graphs_of(tag: Option<Tag>) -> impl Iterator<Item = Graph> {
    [ALL].into_iter().chain(tag.map(Some))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const AT: u64 = 1 << 40;

    fn allocate(bytes: u64, tag: Option<Tag>) -> Action {
        Action::Allocate { address: AT, bytes, requested: bytes, hit: false, tag }
    }

    fn free(bytes: u64, tag: Option<Tag>) -> Action {
        Action::Free { address: AT, bytes, requested: bytes, tag }
    }

    #[test]
    fn what_came_is_what_goes_whatever_the_free_says() {
        let [first, last] = ["in use: first", "in use: last"].map(Tag::new);
        let mut in_use = InUse::default();
        in_use.follow(&allocate(512, Some(first)));
        // The event that gave it its last tag is lost.
        assert_eq!(in_use.follow(&free(512, Some(last))), [(ALL, 0), (Some(first), 0)]);
    }

    #[test]
    fn a_buffer_whose_free_is_lost_goes_when_another_comes_in_its_place() {
        let tag = Tag::new("in use: in its place");
        let mut in_use = InUse::default();
        in_use.follow(&allocate(1024, Some(tag)));
        assert_eq!(in_use.follow(&allocate(512, None)), [(ALL, 512), (Some(tag), 0)]);
        assert_eq!(in_use.follow(&free(512, None)), [(ALL, 0)]);
    }

    #[test]
    fn a_new_tag_takes_the_bytes_of_the_former_along() {
        let [former, new] = ["in use: former", "in use: new"].map(Tag::new);
        let mut in_use = InUse::default();
        in_use.follow(&allocate(256, Some(former)));
        let mut changed = in_use.follow(&Action::SetTag { address: AT, tag: new });
        changed.sort_by_key(|(_, bytes)| *bytes);
        assert_eq!(changed, [(Some(former), 0), (Some(new), 256)]);
        assert!(in_use.follow(&Action::SetTag { address: AT, tag: new }).is_empty());
        assert_eq!(in_use.follow(&free(256, Some(new))), [(ALL, 0), (Some(new), 0)]);
    }
}

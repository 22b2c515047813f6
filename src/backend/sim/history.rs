//! A bounded log of what happened to memory, so that a report can tell both sides' stories.
#![forbid(unsafe_code)]

use std::fmt;

use super::clock::{OpNumber, TimelineId};

/// How many entries are kept, for the whole machine.
const KEPT: usize = 4096;

/// How many entries a report shows for each side.
const SHOWN: usize = 8;

/// What happened to a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Read,
    Write,
    HandedOut,
    Declared,
    GivenBack,
    Unmapped,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The operation; for what is none, the last operation that had been submitted.
    pub(super) op: OpNumber,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) timeline: TimelineId,
    /// Who held the memory: the number of a hand-out, 0 for nobody.
    pub(super) owner: u32,
    pub(super) what: What,
}

impl Entry {
    fn meets(&self, address: u64, bytes: u64) -> bool {
        self.address < address.saturating_add(bytes)
            && address < self.address.saturating_add(self.bytes)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { op, address, bytes, timeline: TimelineId(stream), owner, what } = *self;
        let range = Bytes(address, bytes);
        match what {
            What::Read => write!(f, "operation {op} on stream {stream} reads {range}"),
            What::Write => write!(f, "operation {op} on stream {stream} writes {range}"),
            What::HandedOut => {
                write!(
                    f,
                    "after operation {op}, {range} is handed out to stream {stream} (owner {owner})"
                )
            }
            What::Declared => {
                write!(f, "after operation {op}, owner {owner} names stream {stream} for {range}")
            }
            What::GivenBack => {
                write!(f, "after operation {op}, owner {owner} gives {range} back")
            }
            What::Unmapped => write!(f, "after operation {op}, {range} is taken away"),
        }
    }
}

/// A range of addresses in a message.
pub(super) struct Bytes(pub(super) u64, pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{}", self.0, self.1)
    }
}

/// The last [`KEPT`] entries.
#[derive(Debug, Default)]
pub(super) struct History {
    ring: Vec<Entry>,
    next: usize,
}

impl History {
    #[inline]
    pub(super) fn push(&mut self, entry: Entry) {
        if self.ring.len() < KEPT {
            self.ring.push(entry);
        } else {
            self.ring[self.next] = entry;
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// What is remembered of these bytes, as far as `wanted`, oldest first: the last few entries.
    pub(super) fn of(
        &self,
        address: u64,
        bytes: u64,
        wanted: impl Fn(&Entry) -> bool,
    ) -> Vec<Entry> {
        let split = if self.ring.len() < KEPT { 0 } else { self.next };
        let (newer, older) = self.ring.split_at(split);
        let mut entries: Vec<Entry> = (newer.iter().rev().chain(older.iter().rev()))
            .filter(|entry| entry.meets(address, bytes) && wanted(entry))
            .take(SHOWN)
            .copied()
            .collect();
        entries.reverse();
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(op: OpNumber, address: u64) -> Entry {
        let timeline = TimelineId(0);
        Entry { op, address, bytes: 16, timeline, owner: 0, what: What::Write }
    }

    #[test]
    fn the_newest_entries_of_the_range_come_in_order() {
        let mut history = History::default();
        for op in 1..=3 * KEPT as u64 + 5 {
            history.push(write(op, 16 * (op % 2)));
        }
        let last = 3 * KEPT as u64 + 5;
        let ops: Vec<_> = history.of(16 * (last % 2), 1, |_| true).iter().map(|e| e.op).collect();
        let expected: Vec<_> = (0..SHOWN as u64).rev().map(|back| last - 2 * back).collect();
        assert_eq!(ops, expected);
        assert!(history.of(64, 16, |_| true).is_empty());
        assert!(history.of(0, 64, |entry| entry.op < 3).is_empty(), "forgotten");
    }
}

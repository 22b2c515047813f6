//! A snapshot as PyTorch's memory viewer and its scripts read it.

use super::pickle::Pickler;
use super::{Block, BlockState, Segment, Snapshot};
use crate::history::trace::{Told, leading_to};
use crate::history::{Event, History};
use crate::tag::Tag;

impl Snapshot {
    /// The snapshot as a pickle of what `torch.cuda.memory._snapshot()` gives, for PyTorch's memory viewer
    /// (<https://pytorch.org/memory_viz>) and `torch.cuda._memory_viz`. Nothing of Python is needed to
    /// write it.
    ///
    /// The memory is told as that of device 0. A pool's segments belong to no stream, so that all are told
    /// as of stream 0; a block's last frame says its state and home. What several streams' work must be
    /// waited for is `active_pending_free`, as are blocks in transit and quarantined ones; all other free
    /// blocks are `inactive`.
    ///
    /// A [`Tag`] is the first frame, `tag:0:` and its text, which the viewer shows
    /// (but where the text has one of the words that it leaves frames out for, such as `_start`), and the
    /// `user_metadata`, which its versions since October 2025 show as well.
    pub fn to_pickle(&self) -> Vec<u8> {
        self.pickle(&[])
    }

    /// As [`to_pickle`](Self::to_pickle), with the events that led here, for the viewer's timelines. The
    /// history is to be taken right after the snapshot. Of its events those are told that fit together
    /// and with the snapshot, by the microsecond; addresses that have no memory behind them any more are
    /// told as unmapped after their last free, and growth is not told: segments are as they are in the end.
    pub fn to_pickle_with(&self, history: &History) -> Vec<u8> {
        self.pickle(&leading_to(history, self))
    }

    fn pickle(&self, events: &[(&Event, Told)]) -> Vec<u8> {
        let mut pickler = Pickler::new();
        pickler.dict(|own| {
            own.word("segments");
            own.list(&self.segments, |own, segment| self.segment(own, segment));
            own.word("device_traces");
            own.list([()], |own, ()| self.trace(own, events));
            own.word("allocator_settings");
            own.dict(|own| {
                own.word("expandable_segments");
                own.bool(self.segments.iter().any(|segment| !segment.plain));
            });
            own.word("external_annotations");
            own.list([], |own, ()| own.none());
        });
        pickler.finish()
    }

    /// The events of a device.
    fn trace(&self, pickler: &mut Pickler, events: &[(&Event, Told)]) {
        // The viewer takes the two halves of a free for one where they follow each other.
        let halves = events.iter().flat_map(|(event, told)| {
            let (actions, address, bytes, tag): (&[&'static str], u64, u64, Option<Tag>) =
                match *told {
                    Told::Allocate { address, requested, tag } => {
                        (&["alloc"], address, requested, tag)
                    }
                    Told::Free { address, requested, tag } => {
                        (&["free_requested", "free_completed"], address, requested, tag)
                    }
                    Told::Unmap { address, bytes } => (&["segment_unmap"], address, bytes, None),
                };
            actions.iter().map(move |action| (*action, *event, address, bytes, tag))
        });
        pickler.list(halves, |own, (action, event, address, bytes, tag)| {
            own.dict(|own| {
                own.word("action");
                own.word(action);
                let numbers = [
                    ("addr", address),
                    ("size", bytes),
                    ("stream", 0),
                    ("time_us", event.time_ns / 1000),
                ];
                for (name, number) in numbers {
                    own.word(name);
                    own.int(number);
                }
                let words = event.stream.map(|number| self.stream_words(number));
                said(own, tag, words);
            });
        });
    }

    fn segment(&self, pickler: &mut Pickler, segment: &Segment) {
        let sum = |of: &dyn Fn(&Block) -> u64| segment.blocks.iter().map(of).sum::<u64>();
        let active = |block: &Block| if state(block) == INACTIVE { 0 } else { block.bytes };
        let allocated = |block: &Block| if state(block) == ALLOCATED { block.bytes } else { 0 };
        let asked = |block: &Block| if state(block) == ALLOCATED { requested(block) } else { 0 };
        pickler.dict(|own| {
            let numbers = [
                ("device", 0),
                ("address", segment.address),
                ("total_size", segment.bytes),
                ("allocated_size", sum(&allocated)),
                ("active_size", sum(&active)),
                ("requested_size", sum(&asked)),
                ("stream", 0),
            ];
            for (name, number) in numbers {
                own.word(name);
                own.int(number);
            }
            own.word("segment_type");
            own.word("large");
            own.word("segment_pool_id");
            own.tuple(|own| [0, 0].iter().for_each(|number| own.int(*number)));
            own.word("is_expandable");
            own.bool(!segment.plain);
            own.word("frames");
            own.list([], |own, ()| own.none());
            own.word("blocks");
            own.list(&segment.blocks, |own, block| self.block(own, block));
        });
    }

    fn block(&self, pickler: &mut Pickler, block: &Block) {
        pickler.dict(|own| {
            let numbers = [
                ("address", block.address),
                ("size", block.bytes),
                ("requested_size", requested(block)),
            ];
            for (name, number) in numbers {
                own.word(name);
                own.int(number);
            }
            own.word("state");
            own.word(state(block));
            said(own, block.tag, Some(self.words(block)));
        });
    }

    /// What a person wants to know of a block.
    fn words(&self, block: &Block) -> String {
        let mut words = block.state.to_string();
        if let Some(home) = block.home {
            words += &format!(", home {}", self.stream_words(home));
        } else if !block.waits_for.is_empty() {
            let streams: Vec<String> =
                block.waits_for.iter().map(|number| self.stream_words(*number)).collect();
            words += &format!(", after {}", streams.join(", "));
        }
        words
    }

    fn stream_words(&self, number: u64) -> String {
        match self.stream(number) {
            Some(stream) => format!("stream {number} ({:#x})", stream.handle),
            None => format!("stream {number}"),
        }
    }
}

const ALLOCATED: &str = "active_allocated";
const PENDING: &str = "active_pending_free";
const INACTIVE: &str = "inactive";

fn state(block: &Block) -> &'static str {
    match block.state {
        BlockState::InUse => ALLOCATED,
        BlockState::InTransit | BlockState::Quarantined => PENDING,
        BlockState::Pending if block.waits_for.len() > 1 => PENDING,
        BlockState::Listed | BlockState::Clean | BlockState::Pending => INACTIVE,
    }
}

fn requested(block: &Block) -> u64 {
    block.requested.unwrap_or(block.bytes)
}

/// What the viewer shows of an event or a block.
fn said(pickler: &mut Pickler, tag: Option<Tag>, words: Option<String>) {
    let of_tag = tag.map(|tag| ("tag", tag.text().to_owned()));
    let of_pool = words.map(|words| ("streampool", words));
    pickler.word("frames");
    pickler.list(of_tag.into_iter().chain(of_pool), |own, (by, words)| frame(own, by, &words));
    if let Some(tag) = tag {
        pickler.word("user_metadata");
        pickler.text(tag.text());
    }
}

/// What the viewer shows where PyTorch has a line of a program.
fn frame(pickler: &mut Pickler, by: &'static str, words: &str) {
    pickler.dict(|own| {
        own.word("filename");
        own.word(by);
        own.word("line");
        own.int(0);
        own.word("name");
        own.text(words);
    });
}

//! What must hold, by the plainest means: vectors, searched from end to end.

/// A stream that a program has created. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uid(pub(super) usize);

/// A kernel's use of a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) stream: Uid,
    /// The number of the kernel.
    pub(super) at: u64,
    pub(super) write: bool,
}

/// What the *program* has ordered: by `use_on`, `move_to` and `wait_for`, not by what the pool waits
/// for on its own account.
#[derive(Debug, Default)]
pub(super) struct UserOrder {
    /// For each stream, up to which kernel of every other it is ordered after.
    clocks: Vec<Vec<u64>>,
    kernels: u64,
}

impl UserOrder {
    pub(super) fn add_stream(&mut self) -> Uid {
        self.clocks.push(Vec::new());
        Uid(self.clocks.len() - 1)
    }

    /// The number of the next kernel.
    pub(super) fn next_kernel(&mut self) -> u64 {
        self.kernels += 1;
        self.kernels
    }

    /// `later` now waits for all that is on `earlier`.
    pub(super) fn order(&mut self, earlier: Uid, later: Uid) {
        if earlier == later {
            return;
        }
        let mut joined = self.clocks[earlier.0].clone();
        joined.resize(joined.len().max(earlier.0 + 1), 0);
        joined[earlier.0] = self.kernels;
        let clock = &mut self.clocks[later.0];
        clock.resize(clock.len().max(joined.len()), 0);
        for (own, other) in clock.iter_mut().zip(joined) {
            *own = (*own).max(other);
        }
    }

    fn is_after(&self, stream: Uid, earlier: Use) -> bool {
        let reached = self.clocks[stream.0].get(earlier.stream.0).copied().unwrap_or(0);
        stream == earlier.stream || reached >= earlier.at
    }

    /// Whether a use on `stream` races with none of the uses before it.
    pub(super) fn allows(&self, uses: &[Use], stream: Uid, write: bool) -> bool {
        uses.iter().all(|earlier| !(write || earlier.write) || self.is_after(stream, *earlier))
    }
}

/// A range that was given back, by whom, and by which hand-out it had come.
#[derive(Clone, Copy, Debug)]
struct Freed {
    start: u64,
    end: u64,
    stream: Uid,
    hand_out: u64,
}

/// How a new hand-out lies to those before it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lineage {
    /// It is a part of an earlier one.
    pub(super) split: bool,
    /// It is made of several.
    pub(super) union: bool,
    /// Several streams had freed these, and none of them is its home.
    pub(super) for_a_third: bool,
    /// Another stream than its home had freed it.
    pub(super) crossing: bool,
}

/// Which addresses of one pool were handed out, and which given back.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    live: Vec<(u64, u64)>,
    freed: Vec<Freed>,
    hand_outs: u64,
}

impl Ranges {
    /// Notes a hand-out.
    pub(super) fn take(&mut self, start: u64, bytes: u64, home: Uid) -> Result<Lineage, String> {
        let end = start + bytes;
        let overlap = self.live.iter().find(|(from, to)| *from < end && start < *to);
        if let Some((from, to)) = overlap {
            return Err(format!("{start:#x}..{end:#x} overlaps {from:#x}..{to:#x}, which is live"));
        }
        self.live.push((start, end));
        let before = |freed: &Freed| freed.start < end && start < freed.end;
        let met: Vec<Freed> = self.freed.iter().copied().filter(before).collect();
        let mut rest = Vec::new();
        for freed in self.freed.drain(..) {
            if !before(&freed) {
                rest.push(freed);
                continue;
            }
            rest.extend((freed.start < start).then_some(Freed { end: start, ..freed }));
            rest.extend((end < freed.end).then_some(Freed { start: end, ..freed }));
        }
        self.freed = rest;
        let several = met.iter().any(|freed| freed.hand_out != met[0].hand_out);
        Ok(Lineage {
            split: met.iter().any(|freed| freed.start < start || end < freed.end),
            union: several,
            for_a_third: several
                && met.iter().any(|freed| freed.stream != met[0].stream)
                && met.iter().all(|freed| freed.stream != home),
            crossing: met.iter().any(|freed| freed.stream != home),
        })
    }

    /// Notes that a hand-out has ended.
    pub(super) fn give_back(&mut self, start: u64, bytes: u64, stream: Uid) {
        let end = start + bytes;
        self.live.retain(|own| *own != (start, end));
        self.hand_outs += 1;
        self.freed.push(Freed { start, end, stream, hand_out: self.hand_outs });
    }
}

/// The largest block that may serve a request (M2): up to 1 MiB an eighth more, and the grain; above,
/// exact to the grain.
pub(super) fn largest_block(len: u64) -> u64 {
    const GRAIN: u64 = 256;
    let exact = len.next_multiple_of(GRAIN);
    if len > 1 << 20 { exact } else { exact.max((len + len / 8).next_multiple_of(GRAIN)) }
}

//! What the oracle reports: two uses that nothing orders, and other breaches.
#![forbid(unsafe_code)]

use std::fmt;

use super::clock::{OpNumber, TimelineId};
use super::history::{Bytes, Entry, What};

/// What went wrong, and so whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum HazardKind {
    /// Two uses that conflict and that nothing orders, by the same owner (or with no owners noted),
    /// or by an owner on a stream that it neither has as its home, nor named, nor ordered after the
    /// hand-out: the program's fault.
    Race,
    /// A use by a later owner, or the hand-out itself, that is not ordered after a use by an earlier
    /// one: the pool's fault.
    Reuse,
    /// Handed out while somebody holds it: the pool's fault.
    Overlap,
    /// Used, or given back, while nobody holds it: the program's fault. Reported only for memory
    /// that has been handed out with
    /// [`note_handed_out`](super::SimDevice::note_handed_out) before.
    Lifetime,
    /// Unmapped or freed while somebody holds it, or while the host has not seen a use of it finish.
    UnmappedInUse,
    /// Used where no memory is mapped.
    Unmapped,
    /// Used by a device without access to it.
    NoAccess,
    /// An [`expects`](super::Kernel::expects) found other bytes.
    Corruption,
    /// A call that the driver's rules forbid: a handle that no longer exists, a granule that is
    /// still mapped, a call in a host function.
    Misuse,
}

impl HazardKind {
    /// Whether the pool is to blame, and not the program.
    pub fn is_pools_fault(self) -> bool {
        matches!(self, HazardKind::Reuse | HazardKind::Overlap | HazardKind::UnmappedInUse)
    }

    fn name(self) -> &'static str {
        match self {
            HazardKind::Race => "race",
            HazardKind::Reuse => "reuse not ordered after an earlier owner's use",
            HazardKind::Overlap => "handed out twice",
            HazardKind::Lifetime => "used while nobody holds it",
            HazardKind::UnmappedInUse => "taken away while in use",
            HazardKind::Unmapped => "use of unmapped memory",
            HazardKind::NoAccess => "use without access",
            HazardKind::Corruption => "corrupted data",
            HazardKind::Misuse => "misuse of the driver",
        }
    }
}

/// A breach that the oracle has found. Its [`Display`](fmt::Display) form tells both sides'
/// histories and what was missing between them.
#[derive(Clone, Debug)]
pub struct Hazard {
    pub(super) kind: HazardKind,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) earlier: Option<Side>,
    pub(super) later: Option<Side>,
    pub(super) missing: Missing,
}

impl Hazard {
    /// What went wrong.
    pub fn kind(&self) -> HazardKind {
        self.kind
    }

    /// Where, as the device addresses it (0 where no memory is concerned).
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes are concerned.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The numbers of the earlier and the later operation. A side that is no operation (a hand-out,
    /// an unmapping) has none.
    pub fn operations(&self) -> (Option<u64>, Option<u64>) {
        let op = |side: &Option<Side>| side.as_ref().and_then(Side::operation);
        (op(&self.earlier), op(&self.later))
    }

    /// What was missing, in words: for two uses, the edge that would have ordered them.
    pub fn missing(&self) -> String {
        self.missing.to_string()
    }

    /// Takes in the same breach at neighbouring bytes: one report for one pair of uses.
    pub(super) fn absorb(&mut self, next: &Hazard) -> bool {
        let sides = |hazard: &Hazard| (hazard.operations(), hazard.kind);
        let same = sides(self) == sides(next) && self.operations().1.is_some();
        let adjacent = self.address + self.bytes == next.address;
        if same && adjacent {
            self.bytes += next.bytes;
        }
        same && adjacent
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind.name())?;
        if self.bytes > 0 {
            write!(f, " at {}", Bytes(self.address, self.bytes))?;
        }
        for (name, side) in [("earlier", &self.earlier), ("later", &self.later)] {
            let Some(side) = side else { continue };
            write!(f, "\n  {name}: {}", side.entry)?;
            if side.entry.owner != 0 && side.operation().is_some() {
                write!(f, " (owner {})", side.entry.owner)?;
            }
            for entry in &side.history {
                write!(f, "\n    {entry}")?;
            }
        }
        write!(f, "\n  missing: {}", self.missing)
    }
}

/// One of the two that a hazard is between, and what is known of its past.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) entry: Entry,
    pub(super) history: Vec<Entry>,
}

impl Side {
    fn operation(&self) -> Option<OpNumber> {
        matches!(self.entry.what, What::Read | What::Write).then_some(self.entry.op)
    }
}

/// What would have made it right.
#[derive(Clone, Debug)]
pub(super) enum Missing {
    /// An edge from an operation to a stream, which is ordered after `reached` only.
    Edge { from: TimelineId, op: OpNumber, to: TimelineId, reached: OpNumber },
    /// The host's knowledge that an operation has finished.
    Completion { from: TimelineId, op: OpNumber },
    /// Something else, in words.
    Other(String),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Edge { from: TimelineId(from), op, to: TimelineId(to), reached } => {
                write!(
                    f,
                    "stream {to} never waited for an event recorded on stream {from} at or after \
                     operation {op}"
                )?;
                if *reached > 0 {
                    write!(f, " (it is ordered after stream {from} up to operation {reached})")?;
                }
                write!(f, ", and the host has not seen that operation finish")
            }
            Missing::Completion { from: TimelineId(from), op } => {
                write!(f, "the host has not seen operation {op} on stream {from} finish")
            }
            Missing::Other(words) => f.write_str(words),
        }
    }
}

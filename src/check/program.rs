//! Programs: plain vectors of operations, from bytes or by chance.

use std::fmt;

use crate::backend::ErrorKind;
use crate::config::{Growth, Reuse};
use crate::sim::{Call, CallFilter, FaultPlan, Schedule};

const MIB: u64 = 1 << 20;

/// The sizes that programs ask for, in bytes: few, so that blocks are used again; some equal to another
/// after rounding, some above 1 MiB and odd, some that fill most of a small pool.
const SIZES: [usize; 16] = [
    512 << 10,
    512 << 10,
    (512 << 10) - 100,
    1,
    4096,
    300_000,
    1 << 20,
    (1 << 20) + 1,
    2_762_244,
    2_762_240,
    4 << 20,
    (2 << 20) - 256,
    (6 << 20) + 512,
    9 << 20,
    0,
    512 << 10,
];

/// How long kernels take, in nanoseconds.
const DURATIONS: [u64; 6] = [0, 1_000, 20_000, 300_000, 5_000_000, 1_000_000_000];

/// What a program runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// How the pools grow.
    pub growth: Growth,
    /// What their misses prefer.
    pub reuse: Reuse,
    /// Whether late waits are allowed.
    pub late_waits: bool,
    /// Whether streams may capture that the pools do not know.
    pub foreign_captures: bool,
    /// Whether the devices can record an event on a whole context.
    pub context_events: bool,
    /// Which of the first streams are registered with `record_on_free`: one bit each.
    pub record_on_free: u8,
    /// Devices, and so pools: from 1 to 4. Each pool's memory can be used by the devices before its own.
    pub devices: usize,
    /// Whether it can be used by those after its own as well.
    pub mutual: bool,
    /// The most that each pool reserves, in bytes.
    pub limit: u64,
    /// Below this a miss grows, in bytes.
    pub floor: u64,
    /// The soft target in bytes, if it is not to follow the program.
    pub soft_target: Option<u64>,
    /// In which order the device executes.
    pub schedule: Schedule,
    /// Whether [`Op::Fault`] does anything.
    pub faults: bool,
    /// Where the device's chance starts.
    pub seed: u64,
}

impl Setup {
    /// How many bytes make a setup.
    pub const BYTES: usize = 8;

    /// The setup of these bytes; any are one.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Setup {
        let [growth, reuse, flags, record_on_free, limit, floor, schedule, seed] = bytes;
        Setup {
            growth: if growth.is_multiple_of(3) { Growth::Segments } else { Growth::Virtual },
            reuse: [Reuse::Balanced, Reuse::Memory, Reuse::Speed][usize::from(reuse % 3)],
            late_waits: flags & 7 != 7,
            foreign_captures: flags & 0x18 == 0x18,
            context_events: flags & 0x80 == 0,
            record_on_free: record_on_free & record_on_free >> 4,
            devices: match flags & 0x60 {
                0x60 => [2, 2, 3, 4][usize::from(limit >> 2) % 4],
                _ => 1,
            },
            mutual: limit & 0x10 != 0,
            limit: [12, 16, 20, 28][usize::from(limit % 4)] * MIB,
            floor: [0, 2, 4, 32][usize::from(floor % 4)] * MIB,
            soft_target: (floor & 0x10 != 0).then_some(8 * MIB),
            schedule: match schedule % 8 {
                0..=2 => Schedule::Timed,
                3 | 4 => Schedule::Random,
                5 | 6 => Schedule::Lazy,
                _ => Schedule::Frozen(u64::from(schedule / 8) + 1),
            },
            faults: growth & 0xC0 == 0xC0,
            seed: u64::from(seed),
        }
    }
}

/// How a scope ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By `finish`.
    Finish,
    /// By its drop.
    Drop,
    /// By a panic, during which a buffer is freed too.
    Panic,
    /// Never: it is leaked.
    Forget,
}

/// One operation. Numbers that name something are taken modulo what is live; an operation that has
/// nothing to work on does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are indices, sizes in bytes and times in nanoseconds")]
pub enum Op {
    Alloc { stream: u8, len: usize, align: usize },
    Free { buffer: u8 },
    Launch { buffer: u8, on: u8, writes: bool, ns: u64 },
    Busy { stream: u8, ns: u64 },
    UseOn { buffer: u8, stream: u8 },
    MoveTo { buffer: u8, stream: u8 },
    CopyTo { buffer: u8, stream: u8 },
    Mark { stream: u8 },
    WaitFor { stream: u8, other: u8 },
    Time { ns: u64 },
    Run,
    Create { pool: u8, record_on_free: bool, again: bool },
    DropStream { stream: u8 },
    Retire { stream: u8 },
    Quiesce { pool: u8 },
    EndScope { scope: u8, exit: Exit },
    Release { pool: u8, buffer: u8, count: u8 },
    ReleaseOfAll { buffer: u8, count: u8 },
    Synchronize { pool: u8 },
    SynchronizeStream { stream: u8 },
    Trim { pool: u8, keep: u64 },
    Reserve { pool: u8, bytes: u64 },
    BeginCapture { stream: u8, foreign: bool },
    EndCapture { capture: u8 },
    Close { pool: u8 },
    Fault { nth: u64, kind: ErrorKind, filter: CallFilter, forever: bool, late: bool },
}

/// One operation, and which thread makes it when there are several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Taken modulo the number of threads.
    pub thread: u8,
    /// What is done.
    pub op: Op,
}

impl Step {
    /// How many bytes make a step.
    pub const BYTES: usize = 5;

    /// The step of these bytes; any are one. How many of the 256 values of the second byte make which
    /// operation are its weights.
    pub fn from_bytes([thread, kind, a, b, c]: [u8; Self::BYTES]) -> Step {
        let ns = DURATIONS[usize::from(c / 2) % DURATIONS.len()];
        let op = match kind {
            0..58 => {
                let align = [1, 1, 1, 256, 4096, 1 << 20, 2 << 20, 1][usize::from(c / 32)];
                Op::Alloc { stream: a, len: SIZES[usize::from(b) % SIZES.len()], align }
            }
            58..102 => Op::Free { buffer: a },
            102..148 => Op::Launch { buffer: a, on: b, writes: c & 1 == 0, ns },
            148..151 => Op::Busy { stream: a, ns },
            151..154 | 172..174 => Op::CopyTo { buffer: a, stream: b },
            154..168 => Op::UseOn { buffer: a, stream: b },
            168..172 => Op::MoveTo { buffer: a, stream: b },
            174..182 => Op::Mark { stream: a },
            182..188 => Op::WaitFor { stream: a, other: b },
            188..196 => Op::Time { ns },
            196..200 => Op::Run,
            200..205 => Op::Create { pool: a, record_on_free: b & 3 == 0, again: c & 3 == 0 },
            205..209 => Op::DropStream { stream: a },
            209..213 => Op::Retire { stream: a },
            213..222 => Op::Quiesce { pool: a },
            222..231 => {
                let exits = [Exit::Finish, Exit::Finish, Exit::Drop, Exit::Panic, Exit::Forget];
                Op::EndScope { scope: a, exit: exits[usize::from(b) % exits.len()] }
            }
            231..234 => Op::Release { pool: a, buffer: b, count: c % 5 },
            234 => Op::ReleaseOfAll { buffer: b, count: c % 5 },
            235..237 => Op::Synchronize { pool: a },
            237..239 => Op::SynchronizeStream { stream: a },
            239..243 => Op::Trim { pool: a, keep: u64::from(b % 4) * 4 * MIB },
            243..245 => Op::Reserve { pool: a, bytes: u64::from(b % 8) * 4 * MIB },
            245..248 => Op::BeginCapture { stream: a, foreign: b & 1 == 1 },
            248..252 => Op::EndCapture { capture: a },
            252 => Op::Close { pool: a },
            253..=255 => fault(a, b, c),
        };
        Step { thread, op }
    }
}

fn fault(a: u8, b: u8, c: u8) -> Op {
    let kind = match b % 16 {
        0..5 => ErrorKind::Other,
        5..10 => ErrorKind::OutOfMemory,
        10..15 => ErrorKind::Capture,
        _ => ErrorKind::DeviceLost,
    };
    let filter = match c % 12 {
        0 => CallFilter::only(Call::Record),
        1 => CallFilter::only(Call::Wait),
        2 => CallFilter::only(Call::Query),
        3 => CallFilter::only(Call::SynchronizeContext).or(Call::SynchronizeEvent),
        4 => CallFilter::only(Call::Map).or(Call::SetAccess),
        5 => CallFilter::only(Call::CreateGranule).or(Call::AllocSegment),
        6 => CallFilter::only(Call::Unmap).or(Call::FreeSegment),
        7 => CallFilter::only(Call::DestroyGranule),
        _ => CallFilter::any(),
    };
    Op::Fault {
        nth: u64::from(a % 6) + 1,
        kind,
        filter,
        forever: a & 0x80 != 0,
        late: b & 0x80 != 0,
    }
}

/// The plan of a fault.
pub(super) fn plan(
    nth: u64,
    kind: ErrorKind,
    filter: CallFilter,
    forever: bool,
    late: bool,
) -> FaultPlan {
    let mut plan = FaultPlan::new(filter).nth(nth).kind(kind);
    if forever {
        plan = plan.from_then_on();
    }
    if late {
        plan = plan.late();
    }
    plan
}

/// A program: what it runs on, and its operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// What it runs on.
    pub setup: Setup,
    /// Its operations, in order.
    pub steps: Vec<Step>,
}

impl Program {
    /// The longest program that [`from_bytes`](Self::from_bytes) makes.
    pub const LONGEST: usize = 1000;

    /// The program of these bytes; any are one: [`Setup::BYTES`], zero where they are missing, then
    /// [`Step::BYTES`] for each operation.
    pub fn from_bytes(bytes: &[u8]) -> Program {
        let mut setup = [0; Setup::BYTES];
        let given = bytes.len().min(Setup::BYTES);
        setup[..given].copy_from_slice(&bytes[..given]);
        let steps = bytes[given..].as_chunks::<{ Step::BYTES }>().0;
        let steps = steps.iter().take(Self::LONGEST).map(|step| Step::from_bytes(*step));
        Program { setup: Setup::from_bytes(setup), steps: steps.collect() }
    }

    /// A program of `len` operations by chance; the same for the same seed.
    pub fn random(seed: u64, len: usize) -> Program {
        let mut chance = Chance(seed);
        let bytes: Vec<u8> =
            (0..Setup::BYTES + len * Step::BYTES).map(|_| (chance.next() >> 40) as u8).collect();
        let mut program = Program::from_bytes(&bytes);
        program.setup.seed = seed;
        program
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.setup)?;
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "{number:4}  thread {:3}  {:?}", step.thread, step.op)?;
        }
        Ok(())
    }
}

/// splitmix64.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

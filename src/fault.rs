//! Seeded faults: mistakes that a pool like this is easily written with, to see that the checks see them.
//!
//! One line of the pool asks `seeded!` for each. With the feature `faults` the environment variable
//! [`VARIABLE`] says which mistake a process makes, if any; without it the answer is the constant `false`
//! (see the crate's root), and nothing of a fault is compiled. A published package does not contain this
//! file, so that its builds cannot have the feature.

use std::cell::Cell;

use crate::sync::host::{AtomicUsize, OnceLock, Ordering};

/// The name of the environment variable that seeds a fault, by its name.
pub const VARIABLE: &str = "STREAMPOOL_FAULT";

macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident = $name:literal,)*) => {
        /// A mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Fault {
            $($(#[$doc])* $fault,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$fault,)*];

            /// Its name, which stays the same.
            pub fn name(self) -> &'static str {
                match self {
                    $(Fault::$fault => $name,)*
                }
            }
        }
    };
}

faults! {
    /// A stream is not made to wait.
    SkipWait = "skip the wait",
    /// An event is not recorded.
    SkipRecord = "skip the record",
    /// An epoch's event is published before its record.
    PublishEarly = "publish before the record",
    /// A record that failed is taken for one that did not.
    FailedRecordTaken = "a failed record taken for recorded",
    /// A wait that failed is taken for one that did not.
    FailedWaitTaken = "a failed wait taken for made",
    /// A stream counts as ordered before its wait has returned.
    FrontierBeforeWait = "ordered before the wait is made",
    /// What goes with an event is copied after the record instead of before.
    FrontierAfterRecord = "the frontier copied after the record",
    /// The stream that freed a block is made to wait, not the one that takes it.
    WaitOnOwner = "the wait put on the owner",
    /// A context is not synchronized.
    SkipSynchronize = "a scope without its synchronize",
    /// An event that was asked counts as finished.
    UnfinishedTaken = "unfinished taken for finished",
    /// Epochs complete that a synchronize of the context does not cover.
    CompletedPastSnapshot = "completed past the snapshot",
    /// A scope is open for every thread.
    GlobalFlag = "a global flag for a thread's",
    /// The end of an inner scope ends the outer ones.
    BoolForDepth = "a bool for a depth",
    /// A panic leaves its scope open.
    NotRestoredOnUnwinding = "not restored on unwinding",
    /// A scope of one pool is open for all.
    FlagOfEveryPool = "a flag for every pool",
    /// An event is recorded anew while somebody may wait for it.
    EventReusedEarly = "an event reused too early",
    /// A union has the free points of one part.
    JoinDropsStamps = "a union drops a part's stamps",
    /// Of two free points one is kept.
    SecondStampLost = "one of two stamps kept",
    /// Of two epochs of one timeline the earlier is kept.
    EarlierEpochKept = "the earlier of two epochs kept",
    /// The upper part of a block that is cut has no free points.
    SplitDropsStamps = "a split drops the stamps",
    /// Neighbours are joined although different events make them clean.
    EagerJoin = "an eager join over different events",
    /// A stream that has left the pool still owns its handle's number.
    DeadHandleKey = "streams keyed by dead handles",
    /// A stream leaves the pool under its buffers.
    RetiredUnderBuffers = "a stream retired under live buffers",
    /// The named stream does not wait for what home has queued.
    UseOnWithoutWait = "use_on makes nobody wait",
    /// A block that others have used goes to its stream's list.
    ListHitWithSecondStamp = "a list hit with a second stamp",
    /// A wait for what a miss has recorded itself, where only the program's moments may be waited for.
    LateWaitForProbe = "a late wait in place of a probe",
    /// Lists serve and take while a ladder searches.
    ListsOpenInLadder = "lists open in the ladder",
    /// The ladder does not search what has come back since.
    StaleRetry = "a retry on a stale list",
    /// Memory goes back, or gets behind other addresses, that is still used.
    TrimWithoutCompletion = "trim without completion",
    /// Memory that gets behind other addresses can be handed out by the old ones too.
    MovedStaysFree = "moved memory free at its old address",
    /// One piece of memory gets behind two addresses of one block.
    PieceTwice = "one piece at two addresses of a block",
    /// A place at which the devices have no access is of use again as it is.
    RevivedWithoutAccess = "a revived place without access",
    /// Other memory may get behind addresses that are just being unmapped.
    LeavingReused = "addresses reused while they are unmapped",
    /// Memory goes back to the device while another thread unmaps a place of it.
    GoneWhileUnmapped = "memory gone while a place is unmapped",
    /// A block whose steal fails is not given back.
    BlockLostOnError = "a block lost on an error",
    /// The heap is unlocked between finding a block and taking it.
    LockDropped = "unlocked between find and take",
    /// Lists serve a pool that is closing.
    HitsWhileClosing = "a closing flag without a second look",
    /// Streams are recorded on while they capture.
    RecordInCapture = "a free recorded into a capture",
    /// A stream of another context is registered.
    ForeignContext = "a stream of another context",
    /// A stream whose device has no access may use a block.
    NoAccessCheck = "a block of another context",
    /// Memory that only other devices may still use counts as clean when its own device is idle.
    OwnDeviceForAll = "one device's evidence for all",
    /// A fault of one device ends those that had to do with it.
    LostTogether = "one device's fault for all",
    /// What streams of other pools have done is not kept in mind.
    ForeignForgotten = "streams of other pools forgotten",
    /// A ladder does not wait for streams of other pools that are just leaving.
    ForeignLeavesUnseen = "leaving streams of other pools unseen",
    /// What the driver has refused to say once is not asked again.
    QuarantinedForGood = "quarantined for good",
    /// An event belongs to the pool that asks, not to the stream that it is recorded on.
    EventOfAnotherContext = "an event of another context",
    /// A scope that could not be opened leaves those open that were opened with it.
    ScopesLeftOpen = "scopes left open when one fails",
    /// Plain segments are not opened to other devices.
    SegmentsClosed = "plain segments closed to peers",
    /// A copy does not wait for what is queued on the original's streams.
    CopyTooEarly = "a copy that waits for nobody",
    /// The original's next owner does not wait for the copy.
    CopyNotNamed = "a copy that nobody waits for",
    /// The per-thread default stream is registered.
    PerThreadStream = "the per-thread stream as an ordinary one",
    /// A size too large for any device wraps round.
    RoundingWraps = "rounding that wraps",
    /// Who sees an epoch completed need not see what came before.
    WeakCompletion = "completion without release",
    /// Completions are counted before they can be seen.
    CountBeforeCompletion = "counted before completed",
    /// The stream's lock is unlocked without release.
    WeakUnlock = "unlock without release",
    /// A drop touches its stream after the unlock.
    TouchedAfterUnlock = "a drop touches its stream after the unlock",
}

impl Fault {
    /// Whether only a model sees it: threads that meet at the wrong moment are too rare outside of one,
    /// or a processor does what the memory model only allows to be different.
    pub fn needs_model(self) -> bool {
        matches!(
            self,
            Fault::FrontierAfterRecord
                | Fault::ListsOpenInLadder
                | Fault::LockDropped
                | Fault::WeakCompletion
                | Fault::CountBeforeCompletion
                | Fault::WeakUnlock
                | Fault::TouchedAfterUnlock
        )
    }
}

/// Whether this process makes a mistake.
pub(crate) fn is(fault: Fault) -> bool {
    static SEEDED: OnceLock<Option<Fault>> = OnceLock::new();
    *SEEDED.get_or_init(|| {
        let name = std::env::var(VARIABLE).ok()?;
        let fault = Fault::ALL.iter().find(|fault| fault.name() == name);
        Some(*fault.unwrap_or_else(|| panic!("there is no fault {name:?}")))
    }) == Some(fault)
}

/// Asks whether a mistake is to be made here.
macro_rules! seeded {
    ($fault:ident) => {
        $crate::fault::is($crate::fault::Fault::$fault)
    };
}
pub(crate) use seeded;

/// Scopes that are open on any thread: what [`Fault::GlobalFlag`] asks.
static OPEN_SCOPES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Those of this thread.
    static OWN_SCOPES: Cell<usize> = const { Cell::new(0) };
}

/// So many scopes are open on this thread now.
pub(crate) fn scopes_change(now: usize) {
    let before = OWN_SCOPES.replace(now);
    OPEN_SCOPES.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
}

/// Whether a scope is open on any thread.
pub(crate) fn any_scope() -> bool {
    OPEN_SCOPES.load(Ordering::Relaxed) != 0
}

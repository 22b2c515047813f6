//! Calls that fail on purpose.
#![forbid(unsafe_code)]

use super::counts::Call;
use super::error::SimErrorCode;
use crate::backend::ErrorKind;

/// Which calls a [`FaultPlan`] or a [`Pause`](super::Pause) is about.
///
/// ```
/// use streampool::sim::{Call, CallFilter};
///
/// let waits = CallFilter::only(Call::Wait);
/// let blocking = CallFilter::only(Call::SynchronizeEvent).or(Call::SynchronizeContext);
/// let whatever_a_pool_calls = CallFilter::any();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallFilter {
    calls: u64,
}

impl CallFilter {
    /// Every call but launches.
    pub fn any() -> Self {
        CallFilter { calls: !Call::Launch.bit() }
    }

    /// This call alone.
    pub fn only(call: Call) -> Self {
        CallFilter { calls: call.bit() }
    }

    /// This call too.
    pub fn or(self, call: Call) -> Self {
        CallFilter { calls: self.calls | call.bit() }
    }

    pub(super) fn matches(self, call: Call) -> bool {
        self.calls & call.bit() != 0
    }
}

impl From<Call> for CallFilter {
    fn from(call: Call) -> Self {
        CallFilter::only(call)
    }
}

/// A plan to make calls fail: the *n*-th call that a filter matches, once or from then on.
///
/// Calls that cannot return an error (to destroy an event, to release a stream) neither fail nor
/// count. An error of kind [`ErrorKind::DeviceLost`] is sticky: every later call of that device
/// fails too.
///
/// ```
/// use streampool::backend::{Backend, ErrorKind};
/// use streampool::sim::{Call, FaultPlan, SimDevice};
///
/// let device = SimDevice::new(1);
/// device.inject(FaultPlan::new(Call::CreateEvent).nth(2).kind(ErrorKind::OutOfMemory));
/// let first = device.create_event()?;
/// assert_eq!(device.create_event().unwrap_err().kind(), ErrorKind::OutOfMemory);
/// let third = device.create_event()?;
/// assert_eq!(device.injected_count(), 1);
/// # device.destroy_event(first);
/// # device.destroy_event(third);
/// # Ok::<(), streampool::sim::SimError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FaultPlan {
    filter: CallFilter,
    nth: u64,
    forever: bool,
    kind: ErrorKind,
    late: bool,
    seen: u64,
}

impl FaultPlan {
    /// The first matching call fails, once, with [`ErrorKind::Other`].
    pub fn new(filter: impl Into<CallFilter>) -> Self {
        let filter = filter.into();
        FaultPlan { filter, nth: 1, forever: false, kind: ErrorKind::Other, late: false, seen: 0 }
    }

    /// Not the first but the `nth` matching call, counted from 1 and from the injection on.
    pub fn nth(mut self, nth: u64) -> Self {
        self.nth = nth;
        self
    }

    /// That call and every later one that matches.
    pub fn from_then_on(mut self) -> Self {
        self.forever = true;
        self
    }

    /// With an error of this kind.
    pub fn kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// The error is not the call's own: it is that of earlier asynchronous work, which CUDA returns
    /// from whatever call comes next. A record, a wait or a launch has then had its effect all the
    /// same, and a synchronize has waited, though the host has learned nothing by it; any other call
    /// has done nothing.
    pub fn late(mut self) -> Self {
        self.late = true;
        self
    }
}

/// All plans, for one device.
#[derive(Debug, Default)]
pub(super) struct Faults {
    plans: Vec<FaultPlan>,
    pub(super) injected: u64,
}

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strike {
    /// In the place of the call's effect.
    Instead(SimErrorCode),
    /// After it.
    After(SimErrorCode),
}

impl Faults {
    pub(super) fn inject(&mut self, plan: FaultPlan) {
        self.plans.push(plan);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.plans.clear();
    }

    /// Counts a call in every plan, and says whether it fails.
    pub(super) fn strike(&mut self, call: Call) -> Option<Strike> {
        let cannot_fail = matches!(call, Call::DestroyEvent | Call::ReleaseStream);
        if self.plans.is_empty() || cannot_fail {
            return None;
        }
        let mut strike = None;
        for plan in self.plans.iter_mut().filter(|plan| plan.filter.matches(call)) {
            plan.seen += 1;
            let hit = plan.seen == plan.nth || (plan.forever && plan.seen > plan.nth);
            if hit && strike.is_none() {
                let code = SimErrorCode::of_kind(plan.kind);
                let after = plan.late && has_effect_all_the_same(call);
                strike = Some(if after { Strike::After(code) } else { Strike::Instead(code) });
            }
        }
        self.plans.retain(|plan| plan.forever || plan.seen < plan.nth);
        self.injected += u64::from(strike.is_some());
        strike
    }
}

fn has_effect_all_the_same(call: Call) -> bool {
    let marks = matches!(call, Call::Record | Call::RecordContext | Call::Wait | Call::Launch);
    marks || matches!(call, Call::SynchronizeEvent | Call::SynchronizeContext)
}

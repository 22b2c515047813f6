//! How much memory a pool may have, and in which steps it grows.

use super::PoolCore;
use super::central::Central;
use super::miss::Mark;
use crate::backend::Backend;
use crate::pool_stream::core::StreamCore;
use crate::sync::Arc;

/// The smallest and the largest unit that the pool grows by, where a request does not need more.
pub(super) const UNIT_MIN: u64 = 2 << 20;
const UNIT_MAX: u64 = 32 << 20;
/// The pool grows by a fraction of what it has, so that a large pool maps in few calls and a small one
/// wastes little.
const UNIT_FRACTION: u64 = 256;
/// The smallest and the largest granule that a growth is cut into.
const GRANULE_MIN: u64 = 2 << 20;
const GRANULE_MAX: u64 = 32 << 20;
/// A granule is a smaller fraction of the pool than a growth is: only a whole unused granule can get
/// behind other addresses, and a used byte anywhere in it keeps it where it is. A large request takes
/// larger ones, which are mapped in fewer calls.
const GRANULE_FRACTION: u64 = 1024;
const GRANULES_OF_REQUEST: u64 = 128;
/// The default soft target is this fraction above the most that has been in use. Up to there the pool grows
/// before it makes a stream wait for another, or goes on moving memory.
const SOFT_SLACK: u64 = 4;
/// A pool is far beyond its soft target with this fraction more.
const FAR_BEYOND: u64 = 5;
/// When this fraction of the pool has been mapped at further addresses since the most that is in use last
/// rose, the program goes round and meets no end of it: from then on new memory is taken up to the soft
/// target before lists are gathered and memory is moved, and in large steps, so that the moves end after few
/// calls. A recorded training step takes 1.012 times what it uses in its first round, and from the fourth on
/// 1.19 times, with no mapping call.
const CHURN: u64 = 4;
const CHURN_UNIT_FRACTION: u64 = 16;
impl<B: Backend> PoolCore<B> {
    /// Whether the floor is no reason to grow: the usual case, and no room needs to be looked for.
    pub(super) fn is_above_floor(&self) -> bool {
        let central = self.central.lock();
        central.reserved() >= self.config.floor && !central.churns()
    }

    /// Whether the pool has a fifth more than its soft target.
    pub(super) fn is_far_beyond_target(&self, bytes: u64) -> bool {
        let streams = self.streams();
        let central = self.central.lock();
        let target = self.cap(&central, &streams, (bytes, Mark::SoftTarget));
        central.reserved() >= target.saturating_add(target / FAR_BEYOND)
    }

    /// The most that may be reserved, by a mark.
    pub(super) fn cap(
        &self,
        central: &Central<B>,
        streams: &[Arc<StreamCore<B>>],
        (bytes, mark): (u64, Mark),
    ) -> u64 {
        let limit = self.limit.unwrap_or(u64::MAX);
        let floor = self.config.floor.min(limit);
        match mark {
            Mark::Floor if !central.churns() => floor,
            Mark::Limit => limit,
            Mark::Floor | Mark::SoftTarget => {
                let wanted = central.peak_in_use.max(central.in_use(streams) + bytes);
                let target = self.config.soft_target.unwrap_or(wanted + wanted / SOFT_SLACK);
                target.max(floor).min(limit)
            }
        }
    }
}

impl<B: Backend> Central<B> {
    /// Whether the pool moves the same memory round and round.
    pub(super) fn churns(&self) -> bool {
        self.churned > self.reserved() / CHURN
    }
}

/// What a pool that has reserved this much grows by at least: a fraction of it, as a power of two.
pub(super) fn unit(reserved: u64, granularity: u64) -> u64 {
    power_below(reserved / UNIT_FRACTION).clamp(UNIT_MIN, UNIT_MAX).max(granularity)
}

/// The same for a pool that churns, and the size of its granules.
pub(super) fn churn_unit(reserved: u64, granularity: u64) -> (u64, u64) {
    let unit = power_below(reserved / CHURN_UNIT_FRACTION).max(UNIT_MIN).max(granularity);
    (unit, unit.min(GRANULE_MAX).max(granularity))
}

/// The size of the granules that a pool that has reserved this much takes for a request.
pub(super) fn granule(reserved: u64, bytes: u64, granularity: u64) -> u64 {
    let wanted = (reserved / GRANULE_FRACTION).max(bytes / GRANULES_OF_REQUEST);
    power_below(wanted).clamp(GRANULE_MIN, GRANULE_MAX).max(granularity)
}

/// The largest power of two that is not above `number`, or 1.
fn power_below(number: u64) -> u64 {
    1 << (u64::BITS - 1 - number.max(1).leading_zeros())
}

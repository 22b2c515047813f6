//! Threads held inside a call, so that a test can let another thread in between.
#![forbid(unsafe_code)]

use std::fmt;
use std::time::{Duration, Instant};

use super::counts::Call;
use super::faults::CallFilter;
use crate::sync::Arc;
use crate::sync::host::{Condvar, Mutex, MutexGuard};

/// Where inside a call a thread is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausePoint {
    /// Before the call has had its effect.
    Before,
    /// After its effect, before it returns.
    After,
}

/// One call, on whichever thread makes it first, held until [`resume`](Self::resume).
///
/// While it is held, other threads' calls go on. Dropping a pause resumes. A thread is held for the
/// configured [`patience`](super::SimConfig::patience) at most, in real time.
///
/// ```
/// use streampool::backend::Backend;
/// use streampool::sim::{Call, PausePoint, SimDevice};
///
/// let device = SimDevice::new(1);
/// let pause = device.pause(Call::CreateEvent, PausePoint::Before);
/// std::thread::scope(|scope| {
///     scope.spawn(|| device.create_event().map(|event| device.destroy_event(event)));
///     pause.wait_reached();
///     assert_eq!(device.live_events(), 0);
///     pause.resume();
/// });
/// ```
pub struct Pause {
    inner: Arc<Inner>,
}

struct Inner {
    filter: CallFilter,
    point: PausePoint,
    patience: Duration,
    state: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waiting,
    Reached,
    Resumed,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn set(&self, progress: Progress) {
        *self.lock() = progress;
        self.changed.notify_all();
    }

    /// Waits, for the pause's patience at most, until `enough`.
    fn wait(&self, enough: impl Fn(Progress) -> bool) -> bool {
        let deadline = Instant::now() + self.patience;
        let mut progress = self.lock();
        while !enough(*progress) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            progress = match self.changed.wait_timeout(progress, left) {
                Ok((progress, _)) => progress,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        true
    }
}

impl Pause {
    /// Blocks until a thread is held here.
    ///
    /// # Panics
    ///
    /// If none is within the configured [`patience`](super::SimConfig::patience): the test would
    /// hang.
    pub fn wait_reached(&self) {
        let reached = self.inner.wait(|progress| progress != Progress::Waiting);
        assert!(reached, "no thread made the paused call within {:?}", self.inner.patience);
    }

    /// Whether a thread is, or was, held here.
    pub fn is_reached(&self) -> bool {
        *self.inner.lock() != Progress::Waiting
    }

    /// Lets the thread go on; if none has come yet, none will be held.
    pub fn resume(&self) {
        self.inner.set(Progress::Resumed);
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.resume();
    }
}

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pause")
            .field("filter", &self.inner.filter)
            .field("point", &self.inner.point)
            .field("reached", &self.is_reached())
            .finish()
    }
}

/// The pauses of one device that no thread has reached yet.
#[derive(Default)]
pub(super) struct Pauses {
    armed: Vec<Arc<Inner>>,
}

/// A pause that the calling thread has to take, once it holds no lock.
pub(super) struct Held(Arc<Inner>);

impl Held {
    pub(super) fn take(self) {
        self.0.wait(|progress| progress == Progress::Resumed);
    }
}

impl Pauses {
    pub(super) fn arm(
        &mut self,
        filter: CallFilter,
        point: PausePoint,
        patience: Duration,
    ) -> Pause {
        let state = Mutex::new(Progress::Waiting);
        let inner = Arc::new(Inner { filter, point, patience, state, changed: Condvar::new() });
        self.armed.push(Arc::clone(&inner));
        Pause { inner }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.armed.is_empty()
    }

    /// The pause that holds the thread here, if any.
    pub(super) fn reach(&mut self, call: Call, point: PausePoint) -> Option<Held> {
        self.armed.retain(|pause| *pause.lock() == Progress::Waiting);
        let at = self
            .armed
            .iter()
            .position(|pause| pause.point == point && pause.filter.matches(call))?;
        let pause = self.armed.remove(at);
        pause.set(Progress::Reached);
        Some(Held(pause))
    }
}

impl fmt::Debug for Pauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pauses").field("armed", &self.armed.len()).finish()
    }
}

//! Asking the driver whether freed blocks have become clean.

use super::PoolCore;
use super::foreign::Cover;
use crate::backend::Backend;
use crate::error::Error;
use crate::order::FreePoint;

/// What one call has asked of the driver, so that it does not ask twice.
#[derive(Default)]
pub(super) struct Asked {
    /// Free points that had not completed: of their timelines, nothing later has either.
    unfinished: Vec<FreePoint>,
    /// How many answers were that it has finished.
    pub(super) completed: u64,
    /// The last driver error that was met on the way, and that another way may make up for.
    pub(super) error: Option<Error>,
}

impl<B: Backend> PoolCore<B> {
    /// Asks for all that is pending.
    pub(super) fn ask_everything(&self, asked: &mut Asked) {
        // Again while something completes: a timeline's last epoch, not finished, must not hide those
        // before it, nor a block's first free point its others.
        loop {
            let (pending, quarantined) = {
                let mut central = self.central.lock();
                central.settle();
                (central.heap.pending(None), central.heap.quarantined())
            };
            let before = asked.completed;
            // Of a stream that has left nothing but its last event can be asked, and nobody else may ask it.
            for point in quarantined {
                self.ask_point(asked, point);
            }
            for (first, last) in pending {
                if self.ask_point(asked, first) && last > first.epoch {
                    self.ask_point(asked, FreePoint { epoch: last, ..first });
                }
            }
            if asked.completed == before {
                break;
            }
        }
    }

    /// Asks whether a free point has completed, closing a probe on its stream if nothing published
    /// covers it.
    pub(super) fn ask_point(&self, asked: &mut Asked, point: FreePoint) -> bool {
        let is_earlier =
            |own: &FreePoint| own.timeline == point.timeline && own.epoch <= point.epoch;
        if asked.unfinished.iter().any(is_earlier) {
            return false;
        }
        let timeline = self.central.lock().timelines.get(point.timeline).cloned();
        let Some(timeline) = timeline else { return true };
        if timeline.completed() >= point.epoch {
            return true;
        }
        let answer = match self.cover_or_close(&timeline, point.epoch) {
            Ok(Cover::Event(closed, _pin)) => self.ask(&timeline, &closed),
            Ok(Cover::Leaving | Cover::Over) => Ok(false),
            Err(error) => Err(error),
        };
        let finished = match answer {
            Ok(finished) => finished,
            Err(error) => {
                asked.meet(error);
                false
            }
        };
        if finished {
            asked.completed += 1;
        } else {
            asked.unfinished.push(point);
        }
        finished
    }
}

impl Asked {
    /// Keeps a driver error for the out-of-memory error that may follow. A capture is no error: the
    /// stream that captures is passed over.
    pub(super) fn meet(&mut self, error: Error) {
        if !error.is_capture() {
            self.error = Some(error);
        }
    }

    /// What was asked before may have finished by now: it may be asked again.
    pub(super) fn ask_again(&mut self) {
        self.unfinished.clear();
    }
}

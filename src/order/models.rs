//! Models of a timeline: who publishes, completes and looks at the same time.

use super::{Closed, Epoch, Moment, Timeline, completions};
use crate::sync::model::{Plain, Reached, Thread, check, spawn};
use crate::sync::{Arc, AtomicUsize, CallPoint, Ordering};

/// An event of the models, which counts how often it is recycled: when its last pin goes.
#[derive(Debug, Default)]
struct Event {
    recycled: Arc<AtomicUsize>,
}

impl Drop for Event {
    fn drop(&mut self) {
        self.recycled.fetch_add(1, Ordering::Relaxed);
    }
}

fn epoch(number: u64) -> Epoch {
    Epoch::from_u64(number)
}

fn closed(number: u64) -> Closed<Event> {
    let (event, frontier) = Default::default();
    Closed { epoch: epoch(number), event, frontier, moment: Moment::Early }
}

/// Who sees an epoch completed sees what the thread that saw it finish had done before.
#[test]
fn completed_hands_over() {
    let seen = Reached::default();
    let reached = seen.clone();
    check("completed hands over", move || {
        let timeline = Arc::new(Timeline::<Event>::new());
        let note = Arc::new(Plain::default());
        let completing = {
            let (timeline, note) = (Arc::clone(&timeline), Arc::clone(&note));
            spawn(move || {
                note.set(7);
                timeline.complete(epoch(1));
            })
        };
        if timeline.completed() >= epoch(1) {
            reached.mark(true);
            assert_eq!(note.get(), 7);
        }
        completing.join();
    });
    seen.assert("sees the epoch completed");
}

/// A timeline is over only for who sees all that its last epoch stands for.
#[test]
fn a_timeline_is_over_once() {
    let seen = Reached::default();
    let reached = seen.clone();
    check("a timeline is over", move || {
        let timeline = Arc::new(Timeline::<Event>::new());
        let note = Arc::new(Plain::default());
        timeline.complete(epoch(3));
        let retiring = {
            let (timeline, note) = (Arc::clone(&timeline), Arc::clone(&note));
            spawn(move || {
                note.set(7);
                timeline.retire(closed(3));
            })
        };
        if timeline.is_over() {
            reached.mark(true);
            assert_eq!(note.get(), 7);
        }
        retiring.join();
    });
    seen.assert("sees the timeline over");
}

/// The count of completions that was read before a look at `completed` is old when that look missed
/// one: whoever skips a look because the count is the same has missed nothing.
#[test]
fn an_unchanged_count_means_no_news() {
    let (missed, met) = (Reached::default(), Reached::default());
    let (miss, meet) = (missed.clone(), met.clone());
    check("the count of completions", move || {
        let timeline = Arc::new(Timeline::<Event>::new());
        completions();
        let completing = {
            let timeline = Arc::clone(&timeline);
            spawn(move || timeline.complete(epoch(1)))
        };
        let (count, seen) = (completions(), timeline.completed());
        completing.join();
        let stale = seen < epoch(1);
        miss.mark(stale);
        meet.mark(!stale);
        assert!(!stale || completions() != count, "the news is lost");
    });
    missed.assert("looks before the completion");
    met.assert("looks after the completion");
}

/// An event that is published after a later one has completed is not kept.
#[test]
fn a_late_publication_is_let_go() {
    check("publish against complete", || {
        let timeline = Arc::new(Timeline::new());
        let (first, second) = (closed(1), closed(2));
        let recycled = [&first, &second].map(|own| Arc::clone(&own.event.recycled));
        let publishing = {
            let timeline = Arc::clone(&timeline);
            spawn(move || timeline.publish(first))
        };
        timeline.publish(second);
        timeline.complete(epoch(2));
        publishing.join();
        assert!(timeline.oldest().is_none(), "a completed epoch is still published");
        for recycled in recycled {
            assert_eq!(recycled.load(Ordering::Relaxed), 1, "an event is lost");
        }
    });
}

/// Two threads close epochs and a third looks: it gets the first event that covers, and the list stays
/// in order.
#[test]
fn a_look_gets_the_first_event_that_covers() {
    let (none, first, second) = (Reached::default(), Reached::default(), Reached::default());
    let reached = [none.clone(), first.clone(), second.clone()];
    check("publish against cover", move || {
        let timeline = Arc::new(Timeline::new());
        let publish = |number| {
            let timeline = Arc::clone(&timeline);
            spawn(move || timeline.publish(closed(number)))
        };
        let publishing = [publish(1), publish(2)];
        let cover = timeline.cover(epoch(1)).map_or(0, |own| own.epoch.get());
        reached[cover as usize].mark(true);
        publishing.into_iter().map(Thread::join).for_each(drop);
        assert_eq!(timeline.cover(epoch(1)).map(|own| own.epoch), Some(epoch(1)));
        assert_eq!(timeline.cover(epoch(2)).map(|own| own.epoch), Some(epoch(2)));
        timeline.complete(epoch(2));
    });
    none.assert("nothing covers yet");
    first.assert("the first event is found");
    second.assert("the later event is found before the first is published");
}

/// An event is not recycled between its look-up and the call that uses it, whoever completes, refuses
/// or publishes meanwhile.
#[test]
fn an_event_is_pinned_from_look_up_to_use() {
    let overtaken = Reached::default();
    let reached = overtaken.clone();
    check("an event is pinned", move || {
        let timeline = Arc::new(Timeline::new());
        let driver = Arc::new(CallPoint::default());
        let event = closed(1);
        let recycled = Arc::clone(&event.event.recycled);
        timeline.publish(event);
        let completing = {
            let timeline = Arc::clone(&timeline);
            spawn(move || timeline.complete(epoch(1)))
        };
        if let Some(own) = timeline.cover(epoch(1)) {
            driver.reach();
            reached.mark(timeline.completed() >= epoch(1));
            let recycled = recycled.load(Ordering::Relaxed);
            assert_eq!(recycled, 0, "the event is recycled before its use");
            drop(own);
        }
        completing.join();
        assert_eq!(recycled.load(Ordering::Relaxed), 1, "the event is lost");
    });
    overtaken.assert("the epoch completes between look-up and use");
}

/// A driver refuses a stream's last event while the stream leaves: whichever comes first, the event is
/// still there, as the only evidence that there will be.
#[test]
fn the_last_event_survives_a_refusal() {
    let (refused, kept) = (Reached::default(), Reached::default());
    let (before, after) = (refused.clone(), kept.clone());
    check("refusal against retirement", move || {
        let timeline = Arc::new(Timeline::new());
        let last = closed(1);
        timeline.publish(last.clone());
        let refusing = {
            let (timeline, event) = (Arc::clone(&timeline), Arc::clone(&last.event));
            spawn(move || timeline.unpublish(&event))
        };
        timeline.retire(last);
        let taken_back = refusing.join();
        before.mark(taken_back);
        after.mark(!taken_back);
        assert!(
            timeline.cover(epoch(1)).is_some(),
            "nothing says any more when the last epoch ends"
        );
    });
    refused.assert("the refusal comes first");
    kept.assert("the retirement comes first");
}

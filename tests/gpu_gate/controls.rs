//! Do the gate and the checks see anything? The same steps without a pool, right and wrong.

use streampool::backend::Backend;

use crate::rig::{Lab, Rig};

/// Two streams stamp the same bytes, the first behind a gate, the second with or without a wait. Says
/// whether the second finished while the gate was closed, and how many words were wrong in the end.
fn stamp_twice<R: Rig>(rig: &R, wait: bool) -> (bool, u64) {
    let lab = Lab::with(rig, |builder| builder);
    let own = rig.backend();
    let [a, b] = lab.streams();
    let x = lab.alloc(&a);
    let gate = lab.close(&a);
    lab.stamp(&a, &x, 1);
    lab.is_free(&b, &gate);
    if wait {
        let event = own.create_event().unwrap();
        own.record(&event, a.raw()).unwrap();
        own.wait(b.raw(), &event).unwrap();
        own.destroy_event(event);
    }
    lab.stamp(&b, &x, 2);
    let finished = lab.finishes_soon(&b);
    drop(gate);
    lab.synchronize();
    lab.check(&b, &x, 2);
    (finished, rig.mismatches())
}

/// The negative control: with the wait removed, both checks fire.
pub(crate) fn without_a_wait_the_checks_fire<R: Rig>(rig: &R) {
    let (finished, wrong) = stamp_twice(rig, false);
    assert!(finished, "INCONCLUSIVE: an unrelated stamp did not finish");
    assert!(wrong > 0, "INCONCLUSIVE: what was overwritten was not seen");
}

pub(crate) fn with_a_wait_they_do_not<R: Rig>(rig: &R) {
    assert_eq!(stamp_twice(rig, true), (false, 0));
}

//! Free memory behind other addresses: only what has finished is moved, and moving it disturbs nothing.

use streampool::Growth;

use crate::rig::{BLOCK, Held, Lab, Rig, Stream};

/// A pool of virtual memory that may have eight blocks, has none yet, and waits for nobody.
fn lab_of_eight<R: Rig>(rig: &R) -> Lab<'_, R> {
    Lab::with(rig, |builder| builder.growth(Growth::Virtual).limit(8 * BLOCK).late_waits(false))
}

/// Eight blocks with granules of their own, each with a stamp: the even ones, and the odd ones.
fn eight<R: Rig>(lab: &Lab<'_, R>, stream: &Stream<R>) -> (Vec<Held<R>>, Vec<Held<R>>) {
    let blocks: Vec<Held<R>> = (0..8).map(|_| lab.alloc(stream)).collect();
    for (stamp, block) in (10..).zip(&blocks) {
        lab.stamp(stream, block, stamp);
    }
    let (mut even, mut odd) = (Vec::new(), Vec::new());
    for (n, block) in blocks.into_iter().enumerate() {
        if n % 2 == 0 { even.push(block) } else { odd.push(block) }
    }
    (even, odd)
}

/// Memory that a kernel behind a gate still uses stays where it is; when it has finished, it serves a
/// request by other addresses, and what lay between survives.
pub(crate) fn m4_only_what_has_finished_is_moved<R: Rig>(rig: &R) {
    let lab = lab_of_eight(rig);
    let [a, b] = lab.streams();
    let (even, odd) = eight(&lab, &a);
    lab.synchronize();
    let gate = lab.close(&a);
    lab.stamp(&a, &odd[0], 1);
    drop(odd);
    lab.is_free(&b, &gate);
    let taken = b.alloc(4 * BLOCK as usize);
    assert!(taken.is_err(), "FIRED: it has memory that is in use");
    drop(gate);
    a.synchronize().unwrap();
    let large = lab.alloc_of(&b, 4 * BLOCK);
    assert!(lab.pool.stats().remapped >= 6, "INCONCLUSIVE: nothing was moved");
    lab.stamp(&b, &large, 2);
    for (stamp, block) in (10..).step_by(2).zip(&even) {
        lab.holds(block, stamp);
    }
    lab.holds(&large, 2);
}

/// Old places of memory that is in use by its new addresses are unmapped while it is.
pub(crate) fn m4_an_old_place_is_unmapped_beside_running_work<R: Rig>(rig: &R) {
    let lab = lab_of_eight(rig);
    let [a, b] = lab.streams();
    let (even, odd) = eight(&lab, &a);
    drop(odd);
    a.synchronize().unwrap();
    let large = lab.alloc_of(&b, 4 * BLOCK);
    drop(even);
    a.synchronize().unwrap();
    // One kernel has begun, and the next has not, when the old addresses of what they use go.
    lab.stamp_slowly(&b, &large, 1, 5_000_000);
    let gate = lab.close(&b);
    lab.stamp(&b, &large, 2);
    lab.is_free(&a, &gate);
    let before = lab.pool.stats().calls.memory_calls;
    let second = lab.alloc_of(&a, 3 * BLOCK);
    // One unmapping, two mappings, one access.
    let made = lab.pool.stats().calls.memory_calls - before;
    assert_eq!(made, 4, "INCONCLUSIVE: nothing was unmapped");
    lab.stamp(&a, &second, 3);
    lab.finishes(&a, &gate);
    drop(gate);
    lab.holds(&large, 2);
    lab.holds(&second, 3);
}

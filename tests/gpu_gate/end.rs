//! Memory that goes back, and pools that end: H59, H60.

use std::thread;

use streampool::StreamPool;

use crate::rig::{BLOCK, Lab, Rig};

/// H59: the pool's handle goes first; the buffers are whole, and dropped on another thread.
pub(crate) fn h59_buffers_outlive_their_pool<R: Rig>(rig: &R) {
    let other = Lab::with(rig, |builder| builder);
    let pool = StreamPool::new(rig.backend());
    let [raw, second] = rig.independent();
    let (a, b) = (pool.stream(raw.clone()).unwrap(), pool.stream(second.clone()).unwrap());
    let (x, y) = (a.alloc(BLOCK as usize).unwrap(), b.alloc(BLOCK as usize).unwrap());
    let (at, own) = (x.device_ptr(), other.register(second));
    let gate = rig.close(&raw);
    rig.stamp(&raw, at, BLOCK, 1, 0);
    other.is_free(&own, &gate);
    drop((a, b, pool));
    rig.stamp(&raw, at, BLOCK, 2, 0);
    rig.check(&raw, at, BLOCK, 2);
    thread::scope(|scope| {
        scope.spawn(move || drop((x, y)));
    });
    // Calls of any pool look after the one that has ended; with the gate closed nothing goes back.
    drop(other.alloc(&own));
    other.waits(&other.register(raw), &gate);
    drop(gate);
    other.synchronize();
    other.no_mismatch();
    drop(other.alloc_of(&own, 2 * BLOCK));
}

/// H60: trim gives back what no kernel may touch, and nothing else.
pub(crate) fn h60_trim_leaves_what_is_in_flight<R: Rig>(rig: &R) {
    let lab = Lab::with(rig, |builder| builder.limit(2 * BLOCK));
    let [a, b] = lab.streams();
    // Each by a growth, so that each has granules of its own.
    let (x, y) = (lab.alloc(&a), lab.alloc(&b));
    let at = x.device_ptr();
    lab.stamp(&b, &y, 1);
    lab.runs_dry(&b);
    let gate = lab.close(&a);
    lab.stamp(&a, &x, 1);
    lab.is_free(&b, &gate);
    drop((x, y));
    let given = lab.pool.trim(0).unwrap();
    assert_eq!(given, BLOCK, "FIRED: the half that is in flight must stay, the other go");
    assert_eq!(lab.pool.stats().reserved, BLOCK);
    drop(gate);
    lab.synchronize();
    // It is whole, and goes back once.
    let x = lab.alloc(&a);
    assert_eq!(x.device_ptr(), at, "INCONCLUSIVE: it is another block");
    lab.holds(&x, 1);
    drop(x);
    lab.synchronize();
    assert_eq!((lab.pool.trim(0).unwrap(), lab.pool.trim(0).unwrap()), (BLOCK, 0));
    assert_eq!(lab.pool.stats().reserved, 0);
}

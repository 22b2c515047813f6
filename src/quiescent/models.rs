//! Models of the scope's flag: it belongs to one thread and one pool, and it counts.

use super::{QuiescentScope, ScopeId, innermost, is_open};
use crate::models::{Block, Stream, World, free, no_hazards};
use crate::pool::PoolCore;
use crate::sim::SimDevice;
use crate::sync::model::{check, spawn};
use crate::sync::{Arc, CallPoint};

fn open(core: &Arc<PoolCore<SimDevice>>) -> QuiescentScope<SimDevice> {
    QuiescentScope::open(Arc::clone(core), ScopeId::fresh())
}

/// A stream whose every free records an event, and a buffer of it.
fn recording(world: &World) -> (Stream, Block) {
    let raw = world.device.create_stream();
    let stream = world.pool.stream_record_on_free(raw).expect("a stream of this device");
    let block = world.used_block(&stream);
    (stream, block)
}

fn records(world: &World) -> u64 {
    world.core().driver.calls().event_records
}

/// One thread frees in its scope, another does not: the second's free records its event as ever, and
/// the first's report counts one buffer.
#[test]
fn the_flag_is_the_threads_own() {
    check("the flag is thread-local", || {
        let world = World::prompt(2);
        let ((a, mine), (b, other)) = (recording(&world), recording(&world));
        let before = records(&world);
        let turn = Arc::new(CallPoint::default());
        let freeing = {
            let (device, b, turn) = (world.device.clone(), b.clone(), Arc::clone(&turn));
            spawn(move || {
                turn.reach();
                assert!(!innermost().is_some(), "another thread's scope is open here");
                let before = b.core.state.lock().open;
                free(&device, other);
                assert!(b.core.state.lock().open > before, "a free has not closed its epoch");
            })
        };
        let core = world.core();
        let scope = open(&core);
        turn.reach();
        free(&world.device, mine);
        assert!(is_open(core.id));
        let report = scope.finish();
        drop(core);
        freeing.join();
        assert_eq!((report.freed, report.clean, report.deferred), (1, 1, 0));
        assert_eq!(records(&world) - before, 2, "one for each stream");
        assert!(!innermost().is_some());
        world.end([a, b]);
    });
}

/// One thread frees in its scope, another on the same stream without one: each is counted where it
/// belongs, in whichever order they come.
#[test]
fn frees_on_one_stream_are_told_apart() {
    check("frees on one stream are told apart", || {
        let world = World::prompt(2);
        let a = world.stream();
        let (mine, other) = (world.used_block(&a), world.used_block(&a));
        let freeing = {
            let device = world.device.clone();
            spawn(move || free(&device, other))
        };
        let scope = open(&world.core());
        free(&world.device, mine);
        let report = scope.finish();
        freeing.join();
        assert_eq!((report.freed, report.clean, report.deferred), (1, 1, 0));
        world.end([a]);
    });
}

/// Scopes nest, and end in any order: the flag is off when the last has ended, not the first.
#[test]
fn scopes_nest() {
    for (name, inner_first) in [("nested scopes", true), ("nested scopes, outer first", false)] {
        check(name, move || {
            let world = World::prompt(2);
            let ((a, mine), (b, other)) = (recording(&world), recording(&world));
            let turn = Arc::new(CallPoint::default());
            let freeing = {
                let (device, turn) = (world.device.clone(), Arc::clone(&turn));
                spawn(move || {
                    turn.reach();
                    assert!(!innermost().is_some(), "another thread's scope is open here");
                    free(&device, other);
                })
            };
            let core = world.core();
            let (outer, inner) = (open(&core), open(&core));
            turn.reach();
            let (first, last) = if inner_first { (inner, outer) } else { (outer, inner) };
            let first = first.finish();
            assert!(is_open(core.id), "the first scope to end ends them all");
            let before = a.core.state.lock().open;
            free(&world.device, mine);
            assert_eq!(a.core.state.lock().open, before, "a free in a scope has closed its epoch");
            let last = last.finish();
            assert_eq!((first.freed, last.freed), (0, 1));
            assert!(!innermost().is_some());
            drop(core);
            freeing.join();
            world.end([a, b]);
        });
    }
}

/// A scope of one pool does not excuse another pool's frees.
#[test]
fn the_flag_is_the_pools_own() {
    check("the flag is per pool", || {
        let (one, two) = (World::prompt(1), World::prompt(1));
        let ((a, of_one), (b, of_two)) = (recording(&one), recording(&two));
        let (core, other) = (one.core(), two.core());
        let turn = Arc::new(CallPoint::default());
        let opening = {
            let (core, other, turn) = (Arc::clone(&core), Arc::clone(&other), Arc::clone(&turn));
            spawn(move || {
                let scope = open(&other);
                turn.reach();
                assert!(is_open(other.id) && !is_open(core.id));
                drop(scope);
                turn.reach();
                assert!(!innermost().is_some());
            })
        };
        turn.reach();
        let scope = open(&core);
        turn.reach();
        assert!(!is_open(other.id), "the scope covers every pool");
        let before = b.core.state.lock().open;
        free(&two.device, of_two);
        assert!(b.core.state.lock().open > before, "a free has not closed its epoch");
        free(&one.device, of_one);
        assert_eq!(scope.finish().freed, 1);
        drop((core, other));
        opening.join();
        one.end([a]);
        two.end([b]);
    });
}

/// A thread ends with its scope forgotten: the flag ends with the thread, and another thread is served
/// what was freed in the scope.
#[test]
fn a_forgotten_scope_ends_with_its_thread() {
    check("a forgotten scope", || {
        let world = World::prompt(1);
        let (a, mine) = recording(&world);
        let core = world.core();
        let turn = Arc::new(CallPoint::default());
        let forgetting = {
            let (device, core, turn) = (world.device.clone(), Arc::clone(&core), Arc::clone(&turn));
            spawn(move || {
                let scope = open(&core);
                turn.reach();
                free(&device, mine);
                assert!(is_open(core.id));
                // What `forget` would leak is the scope's handle of the pool, which the model wants back.
                let mut scope = std::mem::ManuallyDrop::new(scope);
                scope.ended = true;
                // SAFETY: the scope is not used again, and its drop does nothing once it has ended.
                unsafe { std::mem::ManuallyDrop::drop(&mut scope) };
            })
        };
        turn.reach();
        assert!(!innermost().is_some(), "another thread's scope is open here");
        forgetting.join();
        assert!(!innermost().is_some(), "the flag outlives its thread");
        drop(core);
        let block = world.used_block(&a);
        free(&world.device, block);
        world.end([a]);
    });
}

/// A buffer whose kernel runs is freed in a scope while another thread looks for clean blocks: it never
/// finds one, and the report says that the buffer was deferred.
#[test]
fn a_scope_hands_out_nothing_that_runs() {
    check("a scope against a search", || {
        let world = World::new(1);
        let (a, b) = (world.stream(), world.stream());
        let block = world.used_block(&a);
        let core = world.core();
        let searching = {
            let (core, a, b) = (Arc::clone(&core), a.clone(), b.clone());
            spawn(move || crate::pool::models::searched(&core, &a, &b))
        };
        let scope = open(&core);
        free(&world.device, block);
        let report = scope.finish();
        assert_eq!((report.freed, report.clean, report.deferred), (1, 0, 1));
        assert!(!searching.join(), "a block that is in use counts as clean");
        assert!(!crate::pool::models::searched(&core, &a, &b));
        drop(core);
        no_hazards(&world.device);
        world.end([a, b]);
    });
}

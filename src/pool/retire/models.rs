//! Models of streams that leave while others need them.

use crate::config::Growth;
use crate::models::{BLOCK, World, free, no_hazards, write};
use crate::order::Moment;
use crate::pool::StreamPool;
use crate::pool::foreign::Leaves;
use crate::pool::models::{drain, hand_out, hit, miss};
use crate::pool::registry;
use crate::quiescent::{QuiescentScope, ScopeId};
use crate::sync::model::{Reached, check, spawn};
use crate::sync::{Arc, CallPoint};

/// A stream is retired by hand while another thread closes an epoch on it, to ask and to wait: either
/// the call is counted first and the retirement refused, or it is too late and finds the last event.
/// The block is ordered for who takes it then.
#[test]
fn retirement_against_close_epoch() {
    let (left, stayed) = (Reached::default(), Reached::default());
    let (leaves, stays) = (left.clone(), stayed.clone());
    check("retirement against close_epoch", move || {
        let world = World::new(1);
        let (a, b) = (world.stream(), world.stream());
        free(&world.device, world.used_block(&a));
        let id = a.core.id;
        drain(&world.core(), &a);
        let closing = {
            let core = world.core();
            spawn(move || {
                let pin = core.pin(id)?;
                let closed = core.close_epoch(&pin.core, Moment::Probe).expect("nothing fails");
                Some(closed.epoch)
            })
        };
        let core = world.core();
        let timeline = Arc::clone(&a.core.timeline);
        let retired = core.retire_by_hand(a).map_err(|(stream, error)| {
            assert!(error.is_in_use(), "{error}");
            stream
        });
        let closed = closing.join();
        assert!(closed.is_some() || retired.is_ok(), "nothing kept the stream from leaving");
        if let (Some(epoch), Some(last)) = (closed, timeline.last()) {
            assert!(epoch < last, "an epoch is closed on a stream that has left");
        }
        drop(timeline);
        leaves.mark(retired.is_ok());
        stays.mark(retired.is_err());
        let block = core.steal(&mut miss(&b), Moment::Probe).expect("the block is in the heap");
        let block = hand_out(&world.device, &core, &b, block);
        drop(core);
        no_hazards(&world.device);
        free(&world.device, block);
        world.end(retired.err().into_iter().chain([b]));
    });
    left.assert("the stream leaves");
    stayed.assert("the retirement is refused");
}

/// A stream is retired while a scope that has noted it ends: what it was used for has not finished, and
/// is never taken for finished.
#[test]
fn retirement_against_the_end_of_a_scope() {
    check("retirement against a scope's end", || {
        let world = World::new(1);
        let (a, b) = (world.stream(), world.stream());
        let id = ScopeId::fresh();
        let scope = QuiescentScope::open(world.core(), id);
        free(&world.device, world.used_block(&a));
        drain(&world.core(), &a);
        // The count of an `Arc` orders the last drop after the others; loom does not see it.
        let leaving = Arc::clone(&a.core);
        let ending = {
            let core = world.core();
            spawn(move || core.settle_scope(id, &[]))
        };
        let core = world.core();
        let retired = core.retire_by_hand(a).map_err(|(stream, _)| stream);
        let report = ending.join();
        let counts = (report.freed, report.clean, report.deferred);
        assert_eq!(counts, (1, 0, 1), "work that is under way counts as finished");
        drop(scope);
        drop(leaving);
        assert!(core.take_covered(&miss(&b)).is_none(), "a block that is in use counts as clean");
        drop(core);
        no_hazards(&world.device);
        world.end(retired.err().into_iter().chain([b]));
    });
}

/// A stream is retired while another thread synchronizes the device: after that, all that was freed
/// before is clean, on the leaving stream too.
#[test]
fn retirement_against_a_synchronize() {
    check("retirement against a synchronize", || {
        let world = World::new(1);
        let (a, b) = (world.stream(), world.stream());
        free(&world.device, world.used_block(&a));
        drain(&world.core(), &a);
        // The count of an `Arc` orders the last drop after the others; loom does not see it.
        let leaving = Arc::clone(&a.core);
        let retiring = {
            let core = world.core();
            spawn(move || core.retire_by_hand(a).map_err(|(_, error)| error).expect("no other use"))
        };
        let core = world.core();
        core.quiesce_streams(None).expect("nothing fails");
        let block = core.take_covered(&miss(&b)).expect("all that was freed is clean");
        let block = hand_out(&world.device, &core, &b, block);
        drop(core);
        retiring.join();
        drop(leaving);
        no_hazards(&world.device);
        free(&world.device, block);
        world.end([b]);
    });
}

/// R12: the last buffer of a stream without a handle is dropped while another thread retires what is
/// unused. Whoever frees the stream's core comes after the drop's last touch, also where an older note
/// leads there before the drop has left its own.
#[test]
fn the_last_drop_against_retirement() {
    let (freed, early) = (Reached::default(), Reached::default());
    let (frees, too_early) = (freed.clone(), early.clone());
    check("the last drop against retirement", move || {
        let world = World::new(1);
        let raw = world.device.create_stream();
        let a = world.register(&raw);
        let identity = a.core.identity;
        free(&world.device, world.used_block(&a));
        // The note of this is still there when the stream is in use again.
        drop(a);
        let (a, unneeded) = registry::register(&world.pool, raw, identity, false);
        drop(unneeded);
        let block = hit(&a).expect("it is on the list");
        write(&world.device, &a, &block);
        drop(a);
        let freeing = {
            let device = world.device.clone();
            spawn(move || free(&device, block))
        };
        world.core().tend();
        let gone = world.core().streams().is_empty();
        frees.mark(gone);
        too_early.mark(!gone);
        freeing.join();
        world.end([]);
    });
    freed.assert("the drop is followed by the retirement");
    early.assert("the retirement finds nothing yet");
}

/// R12: the same where a handle retires the stream by hand, and the drop takes the short way.
#[test]
fn the_last_drop_against_retirement_by_hand() {
    let (left, stayed) = (Reached::default(), Reached::default());
    let (leaves, stays) = (left.clone(), stayed.clone());
    check("the last drop against retirement by hand", move || {
        let world = World::new(1);
        let a = world.stream();
        let block = world.used_block(&a);
        let freeing = {
            let device = world.device.clone();
            spawn(move || free(&device, block))
        };
        let retired = world.core().retire_by_hand(a).map_err(|(stream, _)| stream);
        leaves.mark(retired.is_ok());
        stays.mark(retired.is_err());
        freeing.join();
        world.end(retired.err());
    });
    left.assert("the stream leaves");
    stayed.assert("the retirement is refused");
}

/// The same for a buffer that a second stream uses, whose last use this is as well.
#[test]
fn the_last_drop_of_a_shared_buffer_against_retirement() {
    let both = Reached::default();
    let reached = both.clone();
    check("the last drop of a shared buffer", move || {
        let world = World::new(1);
        let (a, c) = (world.stream(), world.stream());
        let block = world.used_block(&a);
        block.use_on(&c).expect("nothing fails");
        drop((a, c));
        let freeing = {
            let device = world.device.clone();
            spawn(move || free(&device, block))
        };
        world.core().tend();
        reached.mark(world.core().streams().is_empty());
        freeing.join();
        world.end([]);
    });
    both.assert("both streams have left by then");
}

/// A registration meets the mark of a retirement by hand: it gets the stream, which then stays, or a
/// new timeline; never one that is leaving.
#[test]
fn registration_against_retirement() {
    let (same, fresh) = (Reached::default(), Reached::default());
    let (kept, new) = (same.clone(), fresh.clone());
    check("registration against retirement", move || {
        let world = World::new(2);
        let raw = world.device.create_stream();
        let a = world.register(&raw);
        free(&world.device, world.used_block(&a));
        let id = a.core.id;
        let registering = {
            let (pool, raw) = (world.pool.clone(), raw.clone());
            let identity = a.core.identity;
            spawn(move || {
                let (stream, unneeded) = registry::register(&pool, raw, identity, false);
                drop(unneeded);
                assert!(stream.core.pin(), "a leaving stream is registered");
                stream.core.unpin();
                stream
            })
        };
        let retired = world.core().retire_by_hand(a).map_err(|(stream, _)| stream);
        let stream = registering.join();
        kept.mark(stream.core.id == id);
        new.mark(stream.core.id != id);
        assert_eq!(retired.is_ok(), stream.core.id != id, "the stream has left, or has a handle");
        let block = stream.alloc(BLOCK).expect("the stream is as good as any");
        write(&world.device, &stream, &block);
        no_hazards(&world.device);
        free(&world.device, block);
        drop(raw);
        world.end(retired.err().into_iter().chain([stream]));
    });
    same.assert("the registration finds the stream");
    fresh.assert("the registration makes a new timeline");
}

/// The same where the last handle's drop has left the retirement to whoever comes.
#[test]
fn registration_against_the_last_handle() {
    let (same, fresh) = (Reached::default(), Reached::default());
    let (kept, new) = (same.clone(), fresh.clone());
    check("registration against the last handle", move || {
        let world = World::new(2);
        let raw = world.device.create_stream();
        let a = world.register(&raw);
        let (id, identity) = (a.core.id, a.core.identity);
        // Stands for the count of the handle's `Arc`, which loom does not see.
        let count = Arc::new(CallPoint::default());
        let leaving = {
            let (core, count) = (world.core(), Arc::clone(&count));
            spawn(move || {
                count.reach();
                drop(a);
                core.retire_unused();
            })
        };
        count.reach();
        let (stream, unneeded) = registry::register(&world.pool, raw, identity, false);
        drop(unneeded);
        assert!(stream.core.pin(), "a leaving stream is registered");
        stream.core.unpin();
        leaving.join();
        kept.mark(stream.core.id == id);
        new.mark(stream.core.id != id);
        let block = world.used_block(&stream);
        free(&world.device, block);
        world.end([stream]);
    });
    same.assert("the registration finds the stream");
    fresh.assert("the registration makes a new timeline");
}

/// H55: a stream leaves its pool while another pool, which has a block that was used on it, searches for
/// memory. Either the search has the block, or it is told that a leave was under way, and the next one has it.
#[test]
fn a_leave_from_another_pool_is_seen() {
    let (found, refused) = (Reached::default(), Reached::default());
    let (has_it, is_told) = (found.clone(), refused.clone());
    check("a leave from another pool", move || {
        let world = World::new(1);
        let (a, b) = (world.stream(), world.stream());
        let other = StreamPool::builder(world.device.clone()).growth(Growth::Segments);
        let other = other.build().expect("the options are in range");
        let c = other.stream(world.device.create_stream()).expect("a stream of this device");
        let block = world.used_block(&a);
        block.use_on(&c).expect("nothing fails");
        free(&world.device, block);
        let leaving = {
            let core = Arc::clone(other.core());
            spawn(move || core.retire_by_hand(c).map_err(|(stream, _)| stream))
        };
        let core = world.core();
        let before = Leaves::by_now();
        let steal = || core.steal(&mut miss(&b), Moment::Probe);
        let first = steal();
        let told = before.have_ended() || before.were_under_way();
        assert!(first.is_some() || told, "a false out-of-memory");
        let retired = leaving.join();
        has_it.mark(first.is_some());
        is_told.mark(first.is_none());
        let block = first.or_else(steal).expect("the stream has left");
        let block = hand_out(&world.device, &core, &b, block);
        drop(core);
        no_hazards(&world.device);
        free(&world.device, block);
        drop(retired);
        other.close().expect("no buffer lives");
        drop(other);
        world.end([a, b]);
    });
    found.assert("the search has the block");
    refused.assert("the search is refused");
}

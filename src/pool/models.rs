//! Models of the pool: what its threads do to each other's blocks.

use super::miss::Miss;
use super::{BlockId, PoolCore};
use crate::heap::size_class::{self, GRAIN};
use crate::models::{BLOCK, Block, Stream, World, free, no_hazards, use_again, write};
use crate::order::Moment;
use crate::sim::SimDevice;
use crate::sync::Arc;
use crate::sync::model::{Reached, check, spawn};

type Core = Arc<PoolCore<SimDevice>>;

/// An allocation of one block that its stream's list has not served.
pub(super) fn miss(stream: &Stream) -> Miss<'_, SimDevice> {
    let size = size_class::round(BLOCK as u64).expect("a block is not too large");
    Miss::new(&stream.core, size, GRAIN)
}

/// A block of the stream's own list.
pub(super) fn hit(stream: &Stream) -> Option<Block> {
    let size = size_class::round(BLOCK as u64).expect("a block is not too large");
    stream.core.hit(size, GRAIN, BLOCK as u64)
}

/// Hands out a block in transit to the stream, which writes it at once.
pub(super) fn hand_out(world: &SimDevice, core: &Core, stream: &Stream, block: BlockId) -> Block {
    let block = core.hand_out(&miss(stream), block, BLOCK as u64);
    write(world, stream, &block);
    block
}

/// Moves a stream's list to the heap.
pub(super) fn drain(core: &Core, stream: &Stream) {
    core.central.lock().drain(&stream.core, 0);
}

/// One thread frees on A and takes from A's list again, while another misses on B, asks and steals.
/// The block is ordered when it is handed out, and handed out once.
#[test]
fn free_against_steal() {
    let (stolen, kept) = (Reached::default(), Reached::default());
    let (steals, hits) = (stolen.clone(), kept.clone());
    check("free against steal", move || {
        let world = World::new(2);
        let (a, b) = (world.stream(), world.stream());
        let block = world.used_block(&a);
        let address = block.device_ptr();
        let freeing = {
            let (device, a) = (world.device.clone(), a.clone());
            spawn(move || {
                free(&device, block);
                hit(&a).inspect(|block| write(&device, &a, block))
            })
        };
        let taken = b.alloc(BLOCK).expect("there is room for two");
        write(&world.device, &b, &taken);
        let again = freeing.join();
        if let Some(again) = &again {
            assert_ne!(again.device_ptr(), taken.device_ptr(), "a block has two owners");
        }
        steals.mark(taken.device_ptr() == address);
        hits.mark(again.is_some());
        no_hazards(&world.device);
        again.into_iter().chain([taken]).for_each(|block| free(&world.device, block));
        world.end([a, b]);
    });
    stolen.assert("the block is stolen");
    kept.assert("the block is taken from its list");
}

/// H23: two streams' threads want one clean block.
#[test]
fn two_threads_want_one_clean_block() {
    check("one clean block, two threads", || {
        let world = World::new(1);
        let (a, b) = (world.stream(), world.stream());
        free(&world.device, world.used_block(&a));
        drain(&world.core(), &a);
        world.pool.synchronize().expect("nothing fails");
        let want = |stream: &Stream| {
            let (core, device, stream) = (world.core(), world.device.clone(), stream.clone());
            move || {
                let block = core.take_covered(&miss(&stream))?;
                Some(hand_out(&device, &core, &stream, block))
            }
        };
        let other = spawn(want(&a));
        let own = want(&b)();
        let blocks = [own, other.join()];
        assert_eq!(blocks.iter().flatten().count(), 1, "one gets it");
        no_hazards(&world.device);
        blocks.into_iter().flatten().for_each(|block| free(&world.device, block));
        world.end([a, b]);
    });
}

/// H23 with a wait: two streams' threads steal one block that a third has freed and marked.
#[test]
fn two_threads_steal_one_block() {
    check("one marked block, two threads", || {
        let world = World::new(1);
        let (a, b, c) = (world.stream(), world.stream(), world.stream());
        free(&world.device, world.used_block(&a));
        drain(&world.core(), &a);
        a.mark().expect("nothing fails");
        let want = |stream: &Stream| {
            let (core, device, stream) = (world.core(), world.device.clone(), stream.clone());
            move || {
                let block = core.steal(&mut miss(&stream), Moment::Early)?;
                Some(hand_out(&device, &core, &stream, block))
            }
        };
        let other = spawn(want(&b));
        let own = want(&c)();
        let blocks = [own, other.join()];
        assert_eq!(blocks.iter().flatten().count(), 1, "one gets it");
        no_hazards(&world.device);
        blocks.into_iter().flatten().for_each(|block| free(&world.device, block));
        world.end([a, b, c]);
    });
}

/// One thread launches on A and frees there; another synchronizes the device and looks for clean
/// blocks: what was launched after the synchronize is not among them.
#[test]
fn free_against_synchronize() {
    let (clean, pending) = (Reached::default(), Reached::default());
    let (found, not_found) = (clean.clone(), pending.clone());
    check("free against synchronize", move || {
        let world = World::new(1);
        let (a, b) = (world.stream(), world.stream());
        let block = world.used_block(&a);
        let freeing = {
            let (device, a) = (world.device.clone(), a.clone());
            spawn(move || {
                use_again(&device, &a, &block);
                free(&device, block);
            })
        };
        let core = world.core();
        core.quiesce_streams(None).expect("nothing fails");
        drain(&core, &a);
        let block = core.take_covered(&miss(&b));
        found.mark(block.is_some());
        not_found.mark(block.is_none());
        let block = block.map(|block| hand_out(&world.device, &core, &b, block));
        drop(core);
        freeing.join();
        no_hazards(&world.device);
        block.into_iter().for_each(|block| free(&world.device, block));
        world.end([a, b]);
    });
    clean.assert("the block is clean");
    pending.assert("the block is not clean");
}

/// H21: an event is seen only once it has been recorded. One thread closes A's epoch; another steals
/// for B what A has freed.
#[test]
fn an_event_is_published_after_its_record() {
    let (early, late) = (Reached::default(), Reached::default());
    let (seen, unseen) = (early.clone(), late.clone());
    check("publish after the record", move || {
        let world = World::new(1);
        let (a, b) = (world.stream(), world.stream());
        free(&world.device, world.used_block(&a));
        drain(&world.core(), &a);
        let marking = {
            let (core, a) = (world.core(), a.clone());
            spawn(move || core.close_epoch(&a.core, Moment::Early).map(drop).expect("no failure"))
        };
        let core = world.core();
        let stolen = core.steal(&mut miss(&b), Moment::Early);
        let stolen = stolen.map(|block| hand_out(&world.device, &core, &b, block));
        drop(core);
        marking.join();
        seen.mark(stolen.is_some());
        unseen.mark(stolen.is_none());
        no_hazards(&world.device);
        stolen.into_iter().for_each(|block| free(&world.device, block));
        world.end([a, b]);
    });
    early.assert("the event is seen");
    late.assert("the event is not there yet");
}

/// R4: what a stream is ordered after is known only once it is. One thread makes B wait for A and takes
/// a block; another takes a second block for B, with no wait, if B has waited.
#[test]
fn a_frontier_rises_after_the_wait() {
    let (covered, uncovered) = (Reached::default(), Reached::default());
    let (had, had_not) = (covered.clone(), uncovered.clone());
    check("frontier after the wait", move || {
        let world = World::new(2);
        let (a, b) = (world.stream(), world.stream());
        let blocks = [world.used_block(&a), world.used_block(&a)];
        blocks.into_iter().for_each(|block| free(&world.device, block));
        drain(&world.core(), &a);
        a.mark().expect("nothing fails");
        let stealing = {
            let (core, device, b) = (world.core(), world.device.clone(), b.clone());
            spawn(move || {
                let block = core.steal(&mut miss(&b), Moment::Early).expect("one for each");
                hand_out(&device, &core, &b, block)
            })
        };
        let core = world.core();
        let second = core.take_covered(&miss(&b));
        let second = second.map(|block| hand_out(&world.device, &core, &b, block));
        drop(core);
        let first = stealing.join();
        had.mark(second.is_some());
        had_not.mark(second.is_none());
        no_hazards(&world.device);
        second.into_iter().chain([first]).for_each(|block| free(&world.device, block));
        world.end([a, b]);
    });
    covered.assert("the second block is covered");
    uncovered.assert("the second block is not covered yet");
}

/// R3, R6: the frontier that goes with an event is no more than what the event covers. One thread
/// closes B's epoch; another makes B wait for A; then C waits for B's event, and takes what A has freed
/// if that is covered.
#[test]
fn a_frontier_is_copied_before_the_record() {
    let (covered, uncovered) = (Reached::default(), Reached::default());
    let (had, had_not) = (covered.clone(), uncovered.clone());
    check("frontier before the record", move || {
        let world = World::new(1);
        let (a, b, c) = (world.stream(), world.stream(), world.stream());
        free(&world.device, world.used_block(&a));
        let core = world.core();
        drain(&core, &a);
        let of_a = core.close_epoch(&a.core, Moment::Early).expect("nothing fails");
        let closing = {
            let (core, b) = (world.core(), b.clone());
            spawn(move || core.close_epoch(&b.core, Moment::Early).expect("nothing fails"))
        };
        core.wait(&b.core, &a.core.timeline, &of_a).expect("nothing fails");
        let of_b = closing.join();
        core.wait(&c.core, &b.core.timeline, &of_b).expect("nothing fails");
        drop((of_a, of_b));
        let block = core.take_covered(&miss(&c));
        had.mark(block.is_some());
        had_not.mark(block.is_none());
        let block = block.map(|block| hand_out(&world.device, &core, &c, block));
        drop(core);
        no_hazards(&world.device);
        block.into_iter().for_each(|block| free(&world.device, block));
        world.end([a, b, c]);
    });
    covered.assert("the event covers the wait");
    uncovered.assert("the event does not cover the wait");
}

/// A close meets a free and a hit: it is refused while a buffer lives, and once it has succeeded no
/// stream hands anything out.
#[test]
fn close_against_free() {
    let (closed, refused) = (Reached::default(), Reached::default());
    let (succeeds, fails) = (closed.clone(), refused.clone());
    check("close against free", move || {
        let world = World::new(1);
        let a = world.stream();
        let block = world.used_block(&a);
        let freeing = {
            let (device, a) = (world.device.clone(), a.clone());
            spawn(move || {
                free(&device, block);
                hit(&a).inspect(|block| write(&device, &a, block))
            })
        };
        let closed = world.pool.close();
        let again = freeing.join();
        match &closed {
            Ok(()) => assert!(again.is_none(), "a closed pool has handed out a block"),
            Err(error) => assert!(error.is_in_use(), "{error}"),
        }
        succeeds.mark(closed.is_ok());
        fails.mark(closed.is_err());
        again.into_iter().for_each(|block| free(&world.device, block));
        if closed.is_err() {
            let block = a.alloc(BLOCK).expect("a close that is refused changes nothing");
            write(&world.device, &a, &block);
            free(&world.device, block);
        }
        world.end([a]);
    });
    closed.assert("the close succeeds");
    refused.assert("the close is refused");
}

/// The ladder's search sees a block that hops from list to list: B's buffer is freed and C's block taken
/// while every list is shut and searched. At every moment one of the two is free, so one is found.
#[test]
fn a_hopping_block_is_seen() {
    let (first, second) = (Reached::default(), Reached::default());
    let (hopped, stayed) = (first.clone(), second.clone());
    check("a hopping block", move || {
        let world = World::new(2);
        let (a, b, c) = (world.stream(), world.stream(), world.stream());
        let held = world.used_block(&b);
        free(&world.device, world.used_block(&c));
        let hopping = {
            let (device, c) = (world.device.clone(), c.clone());
            spawn(move || {
                free(&device, held);
                hit(&c).inspect(|block| write(&device, &c, block))
            })
        };
        let core = world.core();
        let streams = core.shut_lists();
        {
            let mut central = core.central.lock();
            for stream in streams.iter() {
                central.drain(stream, 0);
            }
        }
        let found = core.take_victim(&miss(&a), Moment::Probe, &[], false);
        core.open_lists();
        drop(streams);
        let taken = hopping.join();
        let (found, stamps) = found.expect("a false out-of-memory");
        let waited = core.wait_for_stamps(&miss(&a), &stamps, Moment::Probe);
        assert!(waited.is_ok(), "nothing fails");
        let found = hand_out(&world.device, &core, &a, found);
        drop(core);
        hopped.mark(taken.is_some());
        stayed.mark(taken.is_none());
        no_hazards(&world.device);
        taken.into_iter().chain([found]).for_each(|block| free(&world.device, block));
        world.end([a, b, c]);
    });
    first.assert("the hop succeeds");
    second.assert("the search takes both");
}

/// Whether `stream` finds a block with no wait once the list of `other` is in the heap.
pub(crate) fn searched(core: &Core, other: &Stream, stream: &Stream) -> bool {
    drain(core, other);
    core.take_covered(&miss(stream)).is_some()
}

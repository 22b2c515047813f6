//! What the pool takes from the host's allocator: nothing on a hit or on a free, whoever makes it, and a
//! bounded number of bytes for each block that it keeps account of.
//!
//! Each thread counts its own calls, so that the tests may run side by side.

#[path = "common/null_backend.rs"]
mod null_backend;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Barrier, Mutex};
use std::thread;

use null_backend::{Finish, NullBackend};
use streampool::snapshot::BlockState;
use streampool::{Buffer, PoolStream, StreamPool, Tag};

type Pool = StreamPool<NullBackend>;
type Stream = PoolStream<NullBackend>;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Sizes of bins of one size each, and of bins that hold several.
const SIZES: [usize; 10] =
    [1, 256, 4 * KIB, 100_000, 512 * KIB, MIB, MIB + 1, 5 * MIB + 256, 64 * MIB, 1 << 30];

/// What one thread has asked of the host's allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Calls {
    allocations: u64,
    frees: u64,
    /// Bytes allocated less bytes freed.
    live: i64,
}

thread_local! {
    /// Constant, and with no destructor: to touch it never allocates.
    static CALLS: Cell<Calls> = const { Cell::new(Calls { allocations: 0, frees: 0, live: 0 }) };
}

/// The system's allocator, counting.
struct Counting;

impl Counting {
    fn note(allocations: u64, frees: u64, bytes: i64) {
        let calls = CALLS.get();
        CALLS.set(Calls {
            allocations: calls.allocations + allocations,
            frees: calls.frees + frees,
            live: calls.live + bytes,
        });
    }
}

// SAFETY: sound because every call is the system allocator's own, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::note(1, 0, layout.size() as i64);
        // SAFETY: sound because the caller keeps the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Counting::note(0, 1, -(layout.size() as i64));
        // SAFETY: sound because the caller keeps the same contract.
        unsafe { System.dealloc(pointer, layout) };
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Counting::note(1, 1, size as i64 - layout.size() as i64);
        // SAFETY: sound because the caller keeps the same contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What this thread asks of the host's allocator while something runs.
fn calls_of(run: impl FnOnce()) -> Calls {
    let before = CALLS.get();
    run();
    let after = CALLS.get();
    Calls {
        allocations: after.allocations - before.allocations,
        frees: after.frees - before.frees,
        live: after.live - before.live,
    }
}

/// Runs something that must not touch the host's allocator.
#[track_caller]
fn untouched(what: &str, run: impl FnOnce()) {
    assert_eq!(calls_of(run), Calls::default(), "{what}");
}

fn pool_with(finish: Finish, streams: usize) -> (Pool, Vec<Stream>) {
    let backend = NullBackend::new(finish);
    let pool = StreamPool::new(backend.clone());
    let stream = |_| pool.stream(backend.create_stream()).unwrap();
    let streams = (0..streams).map(stream).collect();
    (pool, streams)
}

fn pairs(stream: &Stream, bytes: usize, count: usize) {
    (0..count).for_each(|_| drop(stream.alloc(bytes).unwrap()));
}

/// So many blocks of a size come to each stream's list. All are alive at once, since a miss may take what
/// is on lists; so this is to be called just before they are wanted.
fn warm(streams: &[Stream], bytes: usize, count: usize) {
    let all = streams.iter().flat_map(|stream| (0..count).map(|_| stream.alloc(bytes).unwrap()));
    drop(all.collect::<Vec<_>>());
}

/// The counter sees what the tests below say is not there.
#[test]
fn the_counter_counts() {
    let calls = calls_of(|| drop(std::hint::black_box(Box::new(7_u64))));
    assert_eq!(calls, Calls { allocations: 1, frees: 1, live: 0 });
    let mut kept = Vec::new();
    let calls = calls_of(|| kept.extend_from_slice(&[0_u8; 100]));
    assert_eq!(calls, Calls { allocations: 1, frees: 0, live: 100 });
    let calls = calls_of(|| kept.reserve_exact(400));
    assert_eq!(calls, Calls { allocations: 1, frees: 1, live: 400 });
}

#[test]
fn a_hit_and_a_free_on_one_thread() {
    for finish in [Finish::Always, Finish::Never] {
        let (pool, streams) = pool_with(finish, 8);
        for bytes in SIZES {
            warm(&streams, bytes, 1);
            let before = pool.stats();
            untouched("one stream", || pairs(&streams[0], bytes, 2000));
            untouched("several streams", || {
                (0..2000).for_each(|at| pairs(&streams[at % 8], bytes, 1));
            });
            untouched("by `alloc_hit`", || {
                (0..2000).for_each(|_| drop(streams[0].alloc_hit(bytes).unwrap()));
            });
            let after = pool.stats();
            assert_eq!((after.hits - before.hits, after.misses - before.misses), (6000, 0));
        }
    }
}

/// A pool that keeps no history has nothing to do with tags.
#[test]
fn a_hit_and_a_free_within_a_tag() {
    let (pool, streams) = pool_with(Finish::Always, 1);
    let tag = Tag::new("within a tag");
    // The thread's room for the tags that it has entered is made at the first.
    tag.within(|| ());
    for bytes in SIZES {
        warm(&streams, bytes, 1);
        let misses = pool.stats().misses;
        untouched("within a tag", || tag.within(|| pairs(&streams[0], bytes, 2000)));
        untouched("a tag set later", || {
            let buffer = streams[0].alloc(bytes).unwrap();
            buffer.set_tag(tag);
        });
        assert_eq!(pool.stats().misses, misses);
    }
}

#[test]
fn a_hit_and_a_free_in_a_scope_and_in_a_scope_within() {
    for finish in [Finish::Always, Finish::Never] {
        let (pool, streams) = pool_with(finish, 8);
        let (other_pool, _) = pool_with(finish, 1);
        let turn = |bytes, count| (0..count).for_each(|at| pairs(&streams[at % 8], bytes, 1));
        for bytes in SIZES {
            warm(&streams, bytes, 1);
            let misses = pool.stats().misses;
            let scope = pool.quiesce().unwrap();
            untouched("in a scope", || turn(bytes, 2000));
            let strange = other_pool.quiesce().unwrap();
            // Here and below: a stream puts an account aside when the turn of another begins.
            turn(bytes, 8);
            untouched("in a scope of another pool", || turn(bytes, 2000));
            drop(strange);
            let inner = pool.quiesce().unwrap();
            turn(bytes, 8);
            untouched("in a scope within", || turn(bytes, 2000));
            assert_eq!(inner.finish().freed, 2008);
            turn(bytes, 8);
            untouched("in the outer scope again", || turn(bytes, 2000));
            assert_eq!(scope.finish().freed, 6016);
            assert_eq!(pool.stats().misses, misses);
        }
    }
}

/// Thousands that are alive together, and all freed: room for them is made when they first come.
#[test]
fn many_hits_and_many_frees() {
    const BUFFERS: usize = 4816;
    let (pool, streams) = pool_with(Finish::Never, 37);
    let mut buffers = Vec::with_capacity(BUFFERS);
    let fill = |bytes: usize, within: &mut Vec<Buffer<NullBackend>>| {
        (0..BUFFERS).for_each(|at| within.push(streams[at % 37].alloc(bytes).unwrap()));
    };
    for bytes in [256, 512 * KIB, 3 * MIB] {
        fill(bytes, &mut buffers);
        buffers.clear();
        let before = pool.stats().misses;
        untouched("many hits", || fill(bytes, &mut buffers));
        untouched("many frees", || buffers.clear());
        untouched("many hits again", || fill(bytes, &mut buffers));
        // In another order than they came.
        untouched("many frees in disorder", || {
            while !buffers.is_empty() {
                drop(buffers.swap_remove(buffers.len() * 2 / 3));
            }
        });
        fill(bytes, &mut buffers);
        let scope = pool.quiesce().unwrap();
        untouched("many frees in a scope", || buffers.clear());
        assert_eq!(scope.finish().freed, BUFFERS as u64);
        assert_eq!(pool.stats().misses, before);
    }
}

/// What each thread asked of the host's allocator. Told at the end: a thread that panicked would leave the
/// others at a barrier.
fn on_threads(count: usize, work: impl Fn(usize) -> Calls + Sync) -> Vec<Calls> {
    let work = &work;
    thread::scope(|scope| {
        let running: Vec<_> = (0..count).map(|at| scope.spawn(move || work(at))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn hits_and_frees_on_several_threads() {
    const THREADS: usize = 4;
    let (pool, streams) = pool_with(Finish::Never, THREADS);
    for bytes in SIZES {
        // At worst one stream serves all threads at once.
        warm(&streams, bytes, THREADS);
        let before = pool.stats();
        let start = Barrier::new(THREADS);
        let calls = on_threads(THREADS, |at| {
            let scope = pool.quiesce().unwrap();
            start.wait();
            let calls = calls_of(|| pairs(&streams[at], bytes, 1000));
            drop(scope);
            // A stream that several scopes free on in turns keeps an account for each, which takes memory when
            // their turns begin.
            start.wait();
            let more = calls_of(|| {
                pairs(&streams[at], bytes, 1000);
                pairs(&streams[0], bytes, 1000);
            });
            Calls {
                allocations: calls.allocations + more.allocations,
                frees: calls.frees + more.frees,
                live: calls.live + more.live,
            }
        });
        assert_eq!(calls, [Calls::default(); THREADS], "{bytes} bytes");
        let after = pool.stats();
        assert_eq!((after.hits - before.hits, after.misses - before.misses), (12_000, 0));
    }
}

#[test]
fn a_hit_on_one_thread_and_its_free_on_another() {
    const BUFFERS: usize = 100;
    let (pool, streams) = pool_with(Finish::Never, 2);
    for bytes in SIZES {
        warm(&streams, bytes, BUFFERS);
        let before = pool.stats();
        let shelf = Mutex::new(Vec::with_capacity(BUFFERS));
        let turn = Barrier::new(2);
        let calls = on_threads(2, |at| {
            // A thread's first wait may make what the lock or the barrier needs.
            turn.wait();
            let filled = calls_of(|| {
                let mut shelf = shelf.lock().unwrap();
                (0..BUFFERS * (1 - at)).for_each(|at| {
                    shelf.push(streams[at % 2].alloc(bytes).unwrap());
                });
            });
            turn.wait();
            if at == 0 { filled } else { calls_of(|| shelf.lock().unwrap().clear()) }
        });
        assert_eq!(calls, [Calls::default(); 2], "{bytes} bytes");
        let after = pool.stats();
        assert_eq!((after.hits - before.hits, after.frees - before.frees), (100, 100));
    }
}

/// How many blocks the bookkeeping is measured with.
const BLOCKS: usize = 100_000;

/// The sizes that it is measured with, and the most bytes for a live buffer and for a free block of them.
///
/// A live buffer has its block in the heap's map (64 bytes) and its place on its stream's list (16 bytes, of large
/// ones 4 more for the size), and what is counted is capacity, which grows by an eighth and a quarter. What is
/// more is of blocks with several granules of 2 MiB behind them, whose account is in the figure. A free block
/// in the heap is besides on a shelf (16 bytes, and what rows are not full), while its stream keeps the place on
/// the list.
struct Case {
    name: &'static str,
    size: fn(usize) -> usize,
    live: f64,
    free: f64,
}

const CASES: [Case; 3] = [
    Case { name: "small", size: |_| 512, live: 90.0, free: 118.0 },
    // Every size class up to 2 MiB, and sizes in between.
    Case { name: "mixed", size: |at| 1 + at * 7919 % (2 * MIB), live: 110.0, free: 143.0 },
    Case { name: "large", size: |_| 3 * MIB, live: 130.0, free: 158.0 },
];

/// Runs something that has the pool keep account of blocks, as many as it says, and gives the bytes on the
/// host for each.
fn bytes_each(run: impl FnOnce() -> usize) -> f64 {
    let mut blocks = 0;
    let live = calls_of(|| blocks = run()).live;
    live as f64 / blocks as f64
}

/// Checks all cases, and says all figures that are beyond their bounds.
#[track_caller]
fn within_bounds(what: &str, figures: impl Iterator<Item = (&'static str, f64, f64)>) {
    let mut beyond = Vec::new();
    for (name, each, bound) in figures {
        println!("{what}, {name}: {each:.1} bytes of at most {bound}");
        if each > bound {
            beyond.push(format!("{name}: {each:.1} bytes, not {bound}"));
        }
    }
    assert!(beyond.is_empty(), "{what}: {beyond:?}");
}

#[test]
fn bookkeeping_of_live_buffers() {
    let measure = |case: &Case| {
        let (pool, streams) = pool_with(Finish::Never, 1);
        let mut buffers = Vec::with_capacity(BLOCKS);
        let each = bytes_each(|| {
            (0..BLOCKS).for_each(|at| buffers.push(streams[0].alloc((case.size)(at)).unwrap()));
            BLOCKS
        });
        assert_eq!(pool.stats().live, BLOCKS as u64);
        (case.name, each, case.live)
    };
    within_bounds("a live buffer", CASES.iter().map(measure));
}

/// Neighbours of different streams are not joined while work may be under way.
#[test]
fn bookkeeping_of_free_blocks_in_the_heap() {
    let measure = |case: &Case| {
        let (pool, streams) = pool_with(Finish::Never, 2);
        let mut buffers = Vec::with_capacity(BLOCKS);
        let mut pending = 0;
        let each = bytes_each(|| {
            for at in 0..BLOCKS {
                buffers.push(streams[at % 2].alloc((case.size)(at)).unwrap());
            }
            buffers.clear();
            // From the lists to the heap; nothing goes back to the device.
            pool.trim(u64::MAX).unwrap();
            let snapshot = pool.snapshot();
            let free = snapshot.blocks().filter(|block| block.state == BlockState::Pending);
            pending = free.count();
            pending
        });
        assert_eq!((pool.stats().live, pool.stats().on_lists), (0, 0));
        assert!(pending >= BLOCKS * 9 / 10, "{}: {pending} blocks are left", case.name);
        (case.name, each, case.free)
    };
    within_bounds("a free block", CASES.iter().map(measure));
}

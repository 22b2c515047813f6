//! M1 to M5 and the pressure hook: what a pool takes, keeps, gives back and says about it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use streampool::sim::{CallCounts, SimConfig, SimDevice};
use streampool::{Growth, PoolBuilder, Pressure, Reuse, StreamPool};

use crate::common::{BLOCK, GIB, Held, KIB, MIB, Pool, Random, Stream, in_both_kinds};

#[test]
fn m3_what_any_stream_or_thread_freed_is_had_by_every_other() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(8 * BLOCK);
        let streams: [Stream; 4] = lab.streams();
        for taker in 0..4 {
            thread::scope(|scope| {
                for (n, stream) in streams.iter().enumerate() {
                    let lab = &lab;
                    scope.spawn(move || {
                        let own = [lab.hold(stream, BLOCK), lab.hold(stream, BLOCK / 2)];
                        own.iter().for_each(|own| own.write(stream));
                        drop(own);
                        n
                    });
                }
            });
            let whole = lab.hold(&streams[taker], 8 * BLOCK);
            whole.write(&streams[taker]);
        }
        assert!(lab.stats().peak_reserved <= 8 * BLOCK);
    });
}

#[test]
fn m4_granules_go_back_to_the_device_from_the_middle_and_the_addresses_with_the_pool() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let a = lab.stream();
        let mut blocks: Vec<Held> = (0..6).map(|_| lab.hold(&a, BLOCK)).collect();
        let kept = [blocks.remove(4), blocks.remove(1)];
        drop(blocks);
        assert_eq!(lab.pool.trim(0).unwrap(), 4 * BLOCK);
        let virtually = setup.growth == Growth::Virtual;
        assert_eq!(lab.stats().granules, lab.device.live_granules());
        assert_eq!(lab.device.mapped_bytes(), if virtually { 2 * BLOCK } else { 0 });
        // The holes take a larger block than any of them.
        let large = lab.hold(&a, 5 * BLOCK);
        large.write(&a);
        kept.iter().for_each(|own| own.write(&a));
        drop((kept, large, a));
        lab.pool.close().unwrap();
        let counts = lab.device.counts();
        assert_eq!(counts.range_reserves, counts.range_releases);
        assert_eq!(counts.event_creates, counts.event_destroys);
        assert_eq!((lab.device.live_granules(), lab.device.live_events()), (0, 0));
    });
}

#[test]
fn m4_a_device_without_virtual_memory_grows_by_segments() {
    let config = SimConfig { granularity: None, ..SimConfig::default() };
    let device = SimDevice::new(config);
    let pool = StreamPool::new(device.clone());
    let stream = pool.stream(device.create_stream()).unwrap();
    let x = stream.alloc(5 << 20).unwrap();
    assert_eq!((device.counts().segment_allocs, device.counts().granule_creates), (1, 0));
    drop(x);
    assert_eq!(pool.trim(0).unwrap(), device.memory_peak());
    assert_eq!(device.memory_in_use(), 0);
}

#[test]
fn m5_the_account_holds_after_every_step() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(64 * MIB);
        let streams: [Stream; 3] = lab.streams();
        let random = &mut Random(5);
        let mut held: Vec<Held> = Vec::new();
        let (mut in_use, mut count) = (0, 0);
        for _ in 0..600 {
            let stream = &streams[random.below(3)];
            match random.below(9) {
                0..4 => {
                    let bytes = [1, 300, 70 * KIB, MIB, 3 * MIB, 9 * MIB][random.below(6)];
                    if let Ok(own) = lab.try_hold(stream, bytes) {
                        own.write(stream);
                        in_use += own.size();
                        count += 1;
                        held.push(own);
                    }
                }
                4..7 => {
                    let at = random.below(held.len() + 1);
                    if at < held.len() {
                        in_use -= held.swap_remove(at).size();
                        count -= 1;
                    }
                }
                7 => {
                    lab.pool.trim([0, 16 * MIB][random.below(2)]).unwrap();
                }
                _ => {
                    if let Some(own) = held.last_mut() {
                        own.rehome(stream);
                        own.write(stream);
                    }
                }
            }
            let stats = lab.stats();
            assert_eq!((stats.in_use, stats.live), (in_use, count));
            assert!(stats.on_lists <= stats.free_pending);
            assert!(stats.reserved <= 64 * MIB && stats.peak_reserved <= 64 * MIB);
            assert_eq!(stats.peak_reserved, lab.device.memory_peak());
            lab.accounts_match();
        }
        assert_eq!(
            lab.stats().calls.total(),
            lab.device.counts().driver_calls() - lab.device.counts().stream_releases
        );
    });
}

#[test]
fn m5_peaks_are_those_of_the_device_and_of_the_program_and_begin_anew() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let a = lab.stream();
        let held: Vec<Held> = (0..10).map(|_| lab.hold(&a, BLOCK)).collect();
        drop(held);
        let stats = lab.stats();
        assert_eq!((stats.in_use, stats.peak_reserved), (0, 10 * BLOCK));
        assert_eq!(stats.peak_in_use, 10 * BLOCK);
        lab.pool.trim(0).unwrap();
        assert_eq!(lab.stats().peak_reserved, 10 * BLOCK, "a peak does not fall");
        lab.pool.reset_peak();
        assert_eq!((lab.stats().peak_reserved, lab.stats().peak_in_use), (0, 0));
        lab.device.reset_memory_peak();
        drop([lab.hold(&a, BLOCK), lab.hold(&a, BLOCK)]);
        assert_eq!(lab.stats().peak_reserved, lab.device.memory_peak());
        assert_eq!(lab.stats().peak_in_use, 2 * BLOCK);
        // What hits have reached is seen when it is asked for.
        lab.pool.reset_peak();
        let held = [lab.hold(&a, BLOCK), lab.hold(&a, BLOCK)];
        assert_eq!(lab.stats().in_use, 2 * BLOCK);
        drop(held);
        assert_eq!(lab.stats().peak_in_use, 2 * BLOCK);
    });
}

#[test]
fn m5_a_request_that_fails_was_never_in_use() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(2 * BLOCK);
        let a = lab.stream();
        let x = lab.hold(&a, BLOCK);
        assert!(lab.try_hold(&a, GIB).unwrap_err().is_out_of_memory());
        assert_eq!(lab.stats().peak_in_use, BLOCK);
        drop(x);
        assert!(lab.stats().peak_in_use <= lab.stats().peak_reserved);
    });
}

#[test]
fn m5_no_growth_crosses_the_limit() {
    in_both_kinds(|setup| {
        for limit in [3 * MIB, 6 * MIB + 512 * KIB, 33 * MIB] {
            let lab = setup.lab_of(limit);
            let a = lab.stream();
            let mut held = Vec::new();
            let error = loop {
                match lab.try_hold(&a, 512 * KIB) {
                    Ok(own) => held.push(own),
                    Err(error) => break error,
                }
            };
            assert!(error.is_over_limit(), "{error}");
            assert!(lab.device.memory_peak() <= limit);
            // A limit that is no multiple of the granule costs less than one granule.
            let used: u64 = held.iter().map(|own| own.size()).sum();
            assert!(used + 3 * MIB > limit, "{used} of {limit}");
            let over = lab.pool.reserve(limit + 1).unwrap_err();
            assert!(over.is_over_limit(), "{over}");
        }
        let lab = setup.lab_with(|builder| builder.limit_fraction(0.5));
        assert!(lab.pool.reserve(80 * GIB).unwrap_err().is_over_limit());
        assert!(lab.device.memory_peak() <= 141 * GIB / 2);
        for fraction in [0.0, -1.0, 1.5, f64::NAN] {
            let built = StreamPool::builder(lab.device.clone()).limit_fraction(fraction).build();
            assert!(built.is_err_and(|error| error.is_invalid_argument()), "{fraction}");
        }
    });
}

/// Frees a block under work on a and allocates one on b, with this many bytes reserved; says whether
/// b's was a growth.
fn grows_at(
    setup: crate::common::Setup,
    reserved: u64,
    options: impl FnOnce(PoolBuilder<SimDevice>) -> PoolBuilder<SimDevice>,
) -> bool {
    let lab = setup.lazy_lab_with(options);
    let [a, b] = lab.streams();
    let held: Vec<Held> = (0..reserved / BLOCK).map(|_| lab.hold(&a, BLOCK)).collect();
    held.iter().for_each(|own| own.write_long(&a));
    lab.pool.reset_peak();
    drop(held);
    lab.pool.reset_peak();
    let before = lab.stats().reserved;
    let x = lab.hold(&b, BLOCK);
    x.write(&b);
    lab.stats().reserved > before
}

#[test]
fn m5_floor_soft_target_and_policy_say_when_to_grow() {
    in_both_kinds(|setup| {
        // Below the floor it grows; above, it takes what waits.
        assert!(grows_at(setup, 3 * BLOCK, |builder| builder.floor(4 * BLOCK)));
        assert!(!grows_at(setup, 4 * BLOCK, |builder| builder.floor(4 * BLOCK)));
        assert!(!grows_at(setup, 2 * BLOCK, |builder| builder.floor(0)));
        // Up to the soft target it grows rather than waits late.
        assert!(grows_at(setup, 4 * BLOCK, |builder| builder.floor(0).soft_target(5 * BLOCK)));
        assert!(!grows_at(setup, 5 * BLOCK, |builder| builder.floor(0).soft_target(5 * BLOCK)));
        // Reuse before growth, and growth before reuse.
        assert!(!grows_at(setup, BLOCK, |builder| builder.reuse(Reuse::Memory)));
        assert!(grows_at(setup, 64 * BLOCK, |builder| builder.reuse(Reuse::Speed)));
        assert!(!grows_at(setup, 4 * BLOCK, |builder| builder
            .reuse(Reuse::Speed)
            .limit(4 * BLOCK)));
    });
}

#[test]
fn m5_by_default_the_soft_target_follows_what_is_in_use() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_with(|builder| builder.floor(0));
        let [a, b] = lab.streams();
        // 64 blocks in use at once; then a quarter above that, 16 blocks, may be had by growth.
        let held: Vec<Held> = (0..64).map(|_| lab.hold(&a, BLOCK)).collect();
        held.iter().for_each(|own| own.write_long(&a));
        drop(held);
        let taken: Vec<Held> = (0..32).map(|_| lab.hold(&b, BLOCK)).collect();
        taken.iter().for_each(|own| own.write(&b));
        let grown = lab.stats().reserved - 64 * BLOCK;
        assert!((8 * BLOCK..=17 * BLOCK).contains(&grown), "grew by {grown}");
        assert!(lab.stats().late_steals >= 1, "{:?}", lab.stats());
    });
}

#[test]
fn m5_reserve_takes_once_and_then_allocations_take_nothing() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let a = lab.stream();
        lab.pool.reserve(64 * MIB).unwrap();
        let reserved = lab.stats();
        assert!(reserved.reserved >= 64 * MIB && reserved.reserved < 66 * MIB);
        assert_eq!(reserved.free_clean, reserved.reserved);
        let (held, calls) = lab.calls_of(|| {
            lab.pool.reserve(64 * MIB).unwrap();
            lab.pool.reserve(1).unwrap();
            (0..16).map(|_| lab.hold(&a, BLOCK)).collect::<Vec<_>>()
        });
        held.iter().for_each(|own| own.write(&a));
        assert_eq!(calls.mapping_calls(), 0);
        // In use counts: nothing is missing up to what there is.
        let ((), calls) = lab.calls_of(|| lab.pool.reserve(64 * MIB).unwrap());
        assert_eq!(calls.mapping_calls(), 0);
        drop(held);
        // Large reservations come in pieces that can go back one by one.
        lab.pool.reserve(3 * GIB).unwrap();
        a.synchronize().unwrap();
        assert_eq!(lab.pool.trim(GIB).unwrap() + lab.stats().reserved, 3 * GIB);
        let left = lab.stats().reserved;
        assert!(left <= GIB && left > GIB / 2, "{left} bytes are left");
    });
}

#[test]
fn m5_what_was_reserved_serves_small_buffers_and_large_ones() {
    in_both_kinds(|setup| {
        for floor in [0, GIB] {
            let lab = setup.lab_with(|builder| builder.floor(floor));
            let a = lab.stream();
            lab.pool.reserve(600 * MIB).unwrap();
            let reserved = lab.stats().reserved;
            let fill = |small: u64, large: u64| {
                let small = (0..small).map(|_| MIB / 2);
                let sizes = small.chain((0..large).map(|_| 4 * MIB));
                let held: Vec<_> = sizes.map(|bytes| lab.hold(&a, bytes)).collect();
                held.iter().for_each(|own| own.write(&a));
            };
            let (_, calls) = lab.calls_of(|| fill(300, 60));
            // A piece or two get behind the addresses of small blocks.
            assert_eq!(calls.granule_creates + calls.segment_allocs, 0, "{calls:?}");
            assert!(calls.maps <= 2, "{calls:?}");
            a.synchronize().unwrap();
            let (_, calls) = lab.calls_of(|| fill(300, 60));
            assert_eq!(calls.mapping_calls(), 0, "{calls:?}");
            a.synchronize().unwrap();
            // And back.
            fill(20, 120);
            assert_eq!(lab.stats().reserved, reserved, "floor {floor}");
        }
    });
}

#[test]
fn m5_trim_keeps_what_it_is_told_to() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let a = lab.stream();
        drop((0..8).map(|_| lab.hold(&a, BLOCK)).collect::<Vec<_>>());
        assert_eq!(lab.pool.trim(u64::MAX).unwrap(), 0);
        assert_eq!(lab.pool.trim(8 * BLOCK).unwrap(), 0);
        assert_eq!(lab.pool.trim(5 * BLOCK).unwrap(), 3 * BLOCK);
        let kept = lab.hold(&a, BLOCK);
        assert_eq!(lab.pool.trim(0).unwrap(), 4 * BLOCK);
        assert_eq!((lab.stats().reserved, lab.stats().in_use), (BLOCK, BLOCK));
        kept.write(&a);
    });
}

#[test]
fn the_hook_is_called_with_no_lock_held_and_what_it_frees_is_served() {
    in_both_kinds(|setup| {
        let shelf: Arc<Mutex<Vec<Held>>> = Arc::default();
        let pool: Arc<OnceLock<Pool>> = Arc::default();
        let seen: Arc<Mutex<Vec<Pressure>>> = Arc::default();
        let hook = {
            let (shelf, pool, seen) = (Arc::clone(&shelf), Arc::clone(&pool), Arc::clone(&seen));
            move |pressure: &Pressure| {
                seen.lock().unwrap().push(*pressure);
                let pool = pool.get().unwrap();
                // Everything that takes a lock, on this thread and on another.
                let look = || {
                    let _ = pool.stats();
                    drop(pool.quiesce().unwrap());
                    pool.trim(u64::MAX).unwrap();
                };
                look();
                thread::scope(|scope| scope.spawn(look).join().unwrap());
                shelf.lock().unwrap().pop();
            }
        };
        let lab = setup.lab_with(|builder| builder.limit(2 * BLOCK).on_pressure(hook));
        let a = lab.stream();
        pool.set(lab.pool.clone()).ok();
        let x = lab.hold(&a, BLOCK);
        x.write_long(&a);
        shelf.lock().unwrap().push(x);
        let y = lab.hold(&a, BLOCK);
        let b = lab.stream();
        let z = lab.hold(&b, BLOCK);
        z.write(&b);
        let seen = seen.lock().unwrap().clone();
        assert_eq!(seen.len(), 1);
        assert_eq!(
            (seen[0].requested, seen[0].in_use, seen[0].reserved),
            (BLOCK, 2 * BLOCK, 2 * BLOCK)
        );
        drop(y);
        // The hook holds a handle of its own pool: a cycle, which this test takes apart.
        drop(z);
        shelf.lock().unwrap().clear();
    });
}

#[test]
fn the_hook_may_allocate_and_is_not_called_from_within_itself() {
    in_both_kinds(|setup| {
        let calls = Arc::new(AtomicU64::new(0));
        let stream: Arc<OnceLock<Stream>> = Arc::default();
        let hook = {
            let (calls, stream) = (Arc::clone(&calls), Arc::clone(&stream));
            move |_: &Pressure| {
                calls.fetch_add(1, Ordering::Relaxed);
                let stream = stream.get().unwrap();
                // One that can be served, and one that cannot.
                drop(stream.alloc(MIB as usize).unwrap());
                assert!(stream.alloc(3 * BLOCK as usize).unwrap_err().is_out_of_memory());
            }
        };
        let lab = setup.lab_with(|builder| builder.limit(2 * BLOCK).on_pressure(hook));
        let a = lab.stream();
        stream.set(a.clone()).ok();
        let x = lab.hold(&a, BLOCK);
        for n in 1..=2 {
            let error = lab.try_hold(&a, 2 * BLOCK).unwrap_err();
            assert!(error.is_out_of_memory());
            assert!(error.shortage().unwrap().tried.contains(&"the on_pressure hook"));
            assert_eq!(calls.load(Ordering::Relaxed), n);
        }
        x.write(&a);
        drop(x);
        let hits = lab.stats().hits;
        drop(lab.hold(&a, BLOCK));
        drop(lab.hold(&a, BLOCK));
        assert!(lab.stats().hits > hits, "the lists are still shut");
    });
}

#[test]
fn after_a_panic_in_the_hook_the_lists_are_open_and_nothing_is_lost() {
    in_both_kinds(|setup| {
        let hook = |_: &Pressure| panic!("on purpose");
        let lab = setup.lab_with(|builder| builder.limit(2 * BLOCK).on_pressure(hook));
        let a = lab.stream();
        let x = lab.hold(&a, BLOCK);
        let panics = || catch_unwind(AssertUnwindSafe(|| lab.try_hold(&a, 2 * BLOCK))).is_err();
        assert!(panics());
        drop(x);
        let hits = lab.stats().hits;
        let ((), calls) = lab.calls_of(|| {
            for _ in 0..3 {
                drop(lab.hold(&a, BLOCK));
            }
        });
        assert!(lab.stats().hits >= hits + 2, "the lists are still shut: {calls:?}");
        // The next miss calls it again: it is not taken for being inside.
        let x = lab.hold(&a, BLOCK);
        assert!(panics());
        drop(x);
        assert_eq!(lab.hold(&a, 2 * BLOCK).size(), 2 * BLOCK);
        let b = lab.stream();
        let ((), calls) = lab.calls_of(|| drop(lab.hold(&b, 256)));
        assert_ne!(calls, CallCounts::default());
    });
}

/// M5: the peak of one stream is exact, also where every allocation in between was a hit.
#[test]
fn m5_the_peak_in_use_of_a_stream_is_exact() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let [a, b] = lab.streams();
        for live in [3, 1, 2] {
            drop((0..live).map(|_| lab.hold(&a, BLOCK)).collect::<Vec<_>>());
        }
        let other = lab.hold(&b, 2 * BLOCK);
        assert_eq!((a.stats().peak_in_use, a.stats().in_use, a.stats().hits), (3 * BLOCK, 0, 3));
        lab.pool.reset_peak();
        drop([lab.hold(&a, BLOCK), lab.hold(&a, BLOCK)]);
        assert_eq!((a.stats().peak_in_use, a.stats().live), (2 * BLOCK, 0));
        assert_eq!((b.stats().peak_in_use, b.stats().live), (2 * BLOCK, 1));
        drop(other);
    });
}

#[test]
fn below_the_floor_a_device_without_memory_is_not_asked_again_and_again() {
    // Another program has the rest of the device; all that is wanted was freed, and has finished.
    let config = SimConfig { memory_bytes: 4 * BLOCK, ..SimConfig::default() };
    let lab = crate::common::Setup { growth: Growth::Virtual }
        .lab_on(SimDevice::new(config), |builder| builder);
    let [a, b] = lab.streams();
    drop((0..4).map(|_| lab.hold(&a, BLOCK)).collect::<Vec<_>>());
    let ((), calls) = lab.calls_of(|| {
        for round in 0..50 {
            let stream = if round % 2 == 0 { &b } else { &a };
            drop((0..4).map(|_| lab.hold(stream, BLOCK)).collect::<Vec<_>>());
        }
    });
    assert!(calls.granule_creates <= 8, "{calls:?}");
}

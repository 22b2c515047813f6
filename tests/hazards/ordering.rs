//! H01 to H19: who comes after whom.

use streampool::backend::ErrorKind;
use streampool::sim::{Call, CallCounts, FaultPlan, Kernel};
use streampool::{Growth, Reuse};

use crate::common::{BLOCK, GIB, Held, KIB, LONG, Lab, MIB, Setup, Stream, in_both_kinds, launch};

#[test]
fn h01_freed_and_allocated_on_one_stream_comes_back_with_no_driver_call() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let a = lab.stream();
        let x = lab.hold(&a, BLOCK);
        x.write_long(&a);
        let at = x.at();
        let (again, calls) = lab.calls_of(|| {
            drop(x);
            lab.hold(&a, BLOCK)
        });
        assert_eq!((again.at(), calls), (at, CallCounts::default()));
        assert_eq!((lab.stats().hits, lab.frees()), (1, 1));
        again.write(&a);
    });
}

#[test]
fn h02_freed_on_a_then_allocated_on_b_waits_or_is_another_block() {
    in_both_kinds(|setup| {
        // No room: b gets x, behind a wait for an event recorded after the free.
        let lab = setup.lab_of(BLOCK);
        let [a, b] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        x.write_long(&a);
        let at = x.at();
        drop(x);
        let (y, calls) = lab.calls_of(|| lab.hold(&b, BLOCK));
        assert_eq!(y.at(), at);
        assert_eq!((calls.event_records, calls.stream_waits, calls.synchronizes()), (1, 1, 0));
        y.write(&b);
        lab.device.advance(LONG / 2);
        assert!(!lab.is_idle(&b), "b does not wait for a");

        // Room: b gets other memory and waits for nothing.
        let lab = setup.lab();
        let [a, b] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        x.write_long(&a);
        let at = x.at();
        drop(x);
        let (y, calls) = lab.calls_of(|| lab.hold(&b, BLOCK));
        assert_ne!(y.at(), at);
        assert_eq!((calls.stream_waits, calls.synchronizes()), (0, 0));
        y.write(&b);
    });
}

#[test]
fn h03_once_a_has_finished_b_takes_x_with_no_wait() {
    in_both_kinds(|setup| {
        for told in [true, false] {
            let lab = setup.lab_of(BLOCK);
            let [a, b] = lab.streams();
            let x = lab.hold(&a, BLOCK);
            x.write_long(&a);
            let at = x.at();
            drop(x);
            if told {
                a.synchronize().unwrap();
            } else {
                lab.let_run();
            }
            let (y, calls) = lab.calls_of(|| lab.hold(&b, BLOCK));
            y.write(&b);
            assert_eq!((y.at(), calls.stream_waits, calls.synchronizes()), (at, 0, 0));
            let asked = u64::from(!told);
            assert_eq!((calls.event_records, calls.event_queries), (asked, asked));
            let stats = lab.stats();
            assert_eq!((stats.covered + stats.asked, stats.growths), (1, 1));
        }
    });
}

/// What FIDESlib's pull request 40 clears between two layers.
fn fill_37_streams(lab: &Lab) -> (Vec<Stream>, Vec<Held>) {
    let streams: Vec<Stream> = (0..37).map(|_| lab.stream()).collect();
    let buffers: Vec<Held> = (0..4816).map(|n| lab.hold(&streams[n % 37], 512 * KIB)).collect();
    for (n, buffer) in buffers.iter().enumerate() {
        buffer.write(&streams[n % 37]);
    }
    (streams, buffers)
}

#[test]
fn h04_4816_frees_make_no_call_and_crossing_costs_a_record_a_stream() {
    in_both_kinds(|setup| {
        for lazy in [false, true] {
            let none = |builder| builder;
            let lab = if lazy { setup.lazy_lab_with(none) } else { setup.lab_with(none) };
            let (streams, buffers) = fill_37_streams(&lab);
            let ((), calls) = lab.calls_of(|| drop(buffers));
            assert_eq!(calls, CallCounts::default(), "a free made a driver call");

            let others: Vec<Stream> = (0..37).map(|_| lab.stream()).collect();
            let (crossed, calls) = lab.calls_of(|| {
                let cross = |stream| lab.hold(stream, 512 * KIB);
                others.iter().map(cross).collect::<Vec<_>>()
            });
            for (buffer, stream) in crossed.iter().zip(&others) {
                buffer.write(stream);
            }
            assert!(calls.event_records <= 37, "{calls:?}");
            assert!(calls.stream_waits <= 37, "{calls:?}");
            assert_eq!(calls.synchronizes(), 0);
            drop(crossed);

            // And back on their own streams: nothing but the lists.
            let ((), calls) = lab.calls_of(|| {
                for stream in &streams {
                    drop(lab.hold(stream, 512 * KIB));
                }
            });
            assert!(calls.event_records <= 37, "{calls:?}");
        }
    });
}

#[test]
fn h04_allocated_again_on_their_own_streams_they_make_no_call() {
    in_both_kinds(|setup| {
        let lab = setup.lab();
        let (streams, buffers) = fill_37_streams(&lab);
        let (again, calls) = lab.calls_of(|| {
            drop(buffers);
            let again = |n: usize| lab.hold(&streams[n % 37], 512 * KIB);
            (0..4816).map(again).collect::<Vec<_>>()
        });
        assert_eq!(calls, CallCounts::default());
        assert_eq!((again.len() as u64, lab.stats().hits), (4816, 4816));
    });
}

/// Frees x on a, then puts a kernel of a second on a, then allocates on b; says whether b's next
/// operation has finished after 10 ms, and whether b has x.
fn h05(lab: &Lab, a: &Stream, after_free: impl FnOnce(&Stream)) -> (bool, bool) {
    let b = lab.stream();
    let x = lab.hold(a, BLOCK);
    // Not over when b asks, and over soon.
    x.launch(a, x.writes().taking(1_000_000));
    let at = x.at();
    drop(x);
    after_free(a);
    launch(&lab.device, a.raw(), Kernel::new().taking(LONG));
    let y = lab.hold(&b, BLOCK);
    y.write(&b);
    lab.device.advance(10_000_000);
    (lab.is_idle(&b), y.at() == at)
}

#[test]
fn h05_a_kernel_after_the_free_is_waited_for_only_without_mark_record_or_room() {
    in_both_kinds(|setup| {
        let lab = setup.lab_of(BLOCK);
        assert_eq!(h05(&lab, &lab.stream(), |_| {}), (false, true), "right, if late");
        assert_eq!((lab.stats().late_steals, lab.stats().early_steals), (1, 0));

        let lab = setup.lab_of(BLOCK);
        assert_eq!(h05(&lab, &lab.stream(), |a| a.mark().unwrap()), (true, true), "mark");
        assert_eq!((lab.stats().late_steals, lab.stats().early_steals), (0, 1));

        let lab = setup.lab_of(BLOCK);
        let a = lab.pool.stream_record_on_free(lab.device.create_stream()).unwrap();
        assert_eq!(h05(&lab, &a, |_| {}), (true, true), "record_on_free");
        assert_eq!((lab.stats().late_steals, lab.stats().early_steals), (0, 1));

        let lab = setup.lab();
        assert_eq!(h05(&lab, &lab.stream(), |_| {}), (true, false), "room to grow");
        assert_eq!(lab.device.counts().stream_waits, 0);
    });
}

#[test]
fn h07_what_b_took_from_a_and_freed_reaches_c_ordered_after_a() {
    in_both_kinds(|setup| {
        for used_by_b in [false, true] {
            // Eight blocks, so that lists are drained and blocks merge on the way.
            let lab = setup.lazy_lab_of(8 * BLOCK);
            lab.pool.reserve(8 * BLOCK).unwrap();
            let [a, b, c] = lab.streams();
            let blocks: Vec<Held> = (0..8).map(|_| lab.hold(&a, BLOCK)).collect();
            blocks.iter().for_each(|own| own.write_long(&a));
            drop(blocks);
            let taken: Vec<Held> = (0..8).map(|_| lab.hold(&b, BLOCK)).collect();
            if used_by_b {
                taken.iter().for_each(|own| own.write(&b));
            }
            drop(taken);
            // Back and forth on b, whole and in other sizes.
            drop(lab.hold(&b, BLOCK));
            drop(lab.hold(&b, 3 * BLOCK));
            let at_last: Vec<Held> = (0..8).map(|_| lab.hold(&c, BLOCK)).collect();
            at_last.iter().for_each(|own| own.write(&c));
            lab.no_hazard();
            assert!(lab.stats().late_steals >= 2, "nothing crossed: {:?}", lab.stats());
            assert_eq!(lab.device.counts().synchronizes(), 0);
        }
    });
}

#[test]
fn h09_every_stream_that_used_it_comes_before_the_next_owner() {
    in_both_kinds(|setup| {
        for taker in 0..4 {
            for both in [false, true] {
                let lab = setup.lazy_lab_of(BLOCK);
                let [a, b, c, d] = lab.streams();
                let x = lab.hold(&a, BLOCK);
                x.write_long(&a);
                x.share(&b);
                x.read_long(&b);
                if both {
                    x.share(&c);
                    x.read_long(&c);
                }
                drop(x);
                let taker = [&a, &b, &c, &d][taker];
                let y = lab.hold(taker, BLOCK);
                y.write(taker);
            }
        }
    });
}

#[test]
fn h09_a_use_after_use_on_again_counts_too() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(BLOCK);
        let [a, b, c] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        x.write(&a);
        x.share(&b);
        x.read(&b);
        c.wait_for(&b).unwrap();
        // c is ordered after b's first read, and not after this one.
        x.share(&b);
        x.read_long(&b);
        drop(x);
        lab.hold(&c, BLOCK).write(&c);
    });
}

#[test]
fn h10_a_stolen_block_used_elsewhere_only_keeps_its_earlier_owner() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(BLOCK);
        let [a, b, c, d] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        x.write_long(&a);
        drop(x);
        let y = lab.hold(&b, BLOCK);
        assert_eq!(lab.device.counts().stream_waits, 1, "b steals with a wait");
        y.share(&c);
        y.write(&c);
        drop(y);
        lab.hold(&d, BLOCK).write(&d);
    });
}

#[test]
fn h10_move_to_orders_what_was_launched_since_the_last_wait() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(BLOCK);
        let [a, b, c] = lab.streams();
        let mut x = lab.hold(&a, BLOCK);
        b.wait_for(&a).unwrap();
        x.write_long(&a);
        let ((), calls) = lab.calls_of(|| x.rehome(&b));
        assert_eq!((calls.event_records, calls.stream_waits), (1, 1));
        assert_eq!(x.stream(), b);
        x.write(&b);
        x.share(&c);
        x.read_long(&c);
        // The set moves with the buffer.
        x.rehome(&a);
        x.read(&a);
        drop(x);
        let y = lab.hold(&a, BLOCK);
        y.write(&a);
        assert_eq!(lab.stats().hits, 0, "a took a block with a second stamp for its own");
    });
}

#[test]
fn h10_use_on_makes_the_other_stream_wait_for_home_as_it_is_now() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(BLOCK);
        let [a, b] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        for _ in 0..3 {
            x.write(&a);
            let ((), calls) = lab.calls_of(|| x.share(&b));
            assert_eq!((calls.event_records, calls.stream_waits), (1, 1));
            x.read(&b);
            a.wait_for(&b).unwrap();
        }
        let ((), calls) = lab.calls_of(|| x.share(&a));
        assert_eq!((calls.event_records, calls.stream_waits), (0, 0), "home needs nothing");
    });
}

#[test]
fn h11_the_owner_of_a_union_comes_after_both_parts() {
    in_both_kinds(|setup| {
        for swapped in [false, true] {
            let lab = setup.lazy_lab_of(2 * BLOCK);
            let [a, b, c] = lab.streams();
            // Two neighbours, cut out of one piece.
            drop(lab.hold(&c, 2 * BLOCK));
            let (first, second) = if swapped { (&b, &a) } else { (&a, &b) };
            let (x, y) = (lab.hold(first, BLOCK), lab.hold(second, BLOCK));
            assert_eq!(x.at().abs_diff(y.at()), BLOCK, "the two are no neighbours");
            x.write_long(first);
            y.write_long(second);
            drop((x, y));
            let (whole, calls) = lab.calls_of(|| lab.hold(&c, 2 * BLOCK));
            whole.write(&c);
            assert_eq!((calls.stream_waits, calls.mapping_calls()), (2, 0));
        }
    });
}

#[test]
fn h12_home_itself_waits_for_a_pending_use_elsewhere() {
    in_both_kinds(|setup| {
        let lab = setup.lab_with(|builder| builder.floor(2 * BLOCK));
        let [a, c] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        x.write(&a);
        x.share(&c);
        x.read_long(&c);
        let at = x.at();
        drop(x);
        let y = lab.hold(&a, BLOCK);
        assert_ne!(y.at(), at, "there was room, and c is not over");
        assert_eq!(lab.stats().hits, 0);
        y.write(&a);
        // When c is over it is a's again, with no wait.
        lab.let_run();
        let (z, calls) = lab.calls_of(|| lab.hold(&a, BLOCK));
        z.write(&a);
        assert_eq!((z.at(), calls.stream_waits), (at, 0));
    });
}

#[test]
fn h13_the_second_steal_of_one_epoch_makes_no_wait() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(3 * BLOCK);
        let [a, b, c] = lab.streams();
        let blocks: [Held; 3] = std::array::from_fn(|_| lab.hold(&a, BLOCK));
        blocks.iter().for_each(|own| own.write_long(&a));
        drop(blocks);
        let (x, calls) = lab.calls_of(|| lab.hold(&b, BLOCK));
        assert_eq!((calls.event_records, calls.stream_waits), (1, 1));
        let (y, calls) = lab.calls_of(|| lab.hold(&b, BLOCK));
        assert_eq!((calls.event_records, calls.stream_waits), (0, 0));
        x.write(&b);
        y.write(&b);
        // By transitivity c needs nothing of a either, once it waits for b.
        c.wait_for(&b).unwrap();
        let (z, calls) = lab.calls_of(|| lab.hold(&c, BLOCK));
        assert_eq!((calls.event_records, calls.stream_waits), (0, 0));
        z.write(&c);
    });
}

#[test]
fn h13_of_two_free_points_only_the_one_that_is_not_covered_is_waited_for() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(BLOCK);
        let [a, b, c] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        x.write_long(&a);
        x.share(&c);
        x.read_long(&c);
        drop(x);
        b.wait_for(&a).unwrap();
        let (y, calls) = lab.calls_of(|| lab.hold(&b, BLOCK));
        y.write(&b);
        assert_eq!((calls.event_records, calls.stream_waits), (1, 1));
    });
}

#[test]
fn h14_an_event_whose_query_or_wait_failed_is_thrown_away() {
    in_both_kinds(|setup| {
        for verb in [Call::Query, Call::Wait] {
            let lab = setup.lazy_lab_of(BLOCK);
            let [a, b] = lab.streams();
            let x = lab.hold(&a, BLOCK);
            x.write_long(&a);
            drop(x);
            lab.device.inject(FaultPlan::new(verb));
            let y = lab.hold(&b, BLOCK);
            y.write(&b);
            // The epoch counts as not closed: another event was recorded for it.
            let again = lab.device.counts();
            assert_eq!((lab.device.injected_count(), again.event_records), (1, 2), "{verb}");
            b.mark().unwrap();
            assert_eq!(lab.device.counts().event_destroys, 1, "{verb}: it is used again");
        }
    });
}

#[test]
fn h14_a_failed_record_is_no_dependency_met() {
    in_both_kinds(|setup| {
        for late in [false, true] {
            for kind in [ErrorKind::Other, ErrorKind::OutOfMemory] {
                let lab = setup.lazy_lab_of(BLOCK);
                let [a, b] = lab.streams();
                let x = lab.hold(&a, BLOCK);
                x.write_long(&a);
                drop(x);
                let plan = FaultPlan::new(Call::Record).kind(kind);
                lab.device.inject(if late { plan.late() } else { plan });
                let (y, calls) = lab.calls_of(|| lab.hold(&b, BLOCK));
                y.write(&b);
                assert_eq!(lab.device.injected_count(), 1);
                assert_eq!((calls.event_records, calls.stream_waits), (2, 1));
            }
        }
    });
}

#[test]
fn h14_with_every_record_failing_only_a_synchronize_makes_it_clean() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(BLOCK);
        let [a, b] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        x.write_long(&a);
        drop(x);
        lab.device.inject(FaultPlan::new(Call::Record).from_then_on());
        let (y, calls) = lab.calls_of(|| lab.hold(&b, BLOCK));
        y.write(&b);
        assert_eq!(
            (calls.stream_waits, calls.event_queries),
            (0, 0),
            "an unrecorded event counted"
        );
        assert_eq!(calls.context_synchronizes, 1);
        let error = a.mark().expect_err("every record fails");
        assert!(!error.is_capture() && !error.is_out_of_memory() && !error.is_device_lost());
    });
}

#[test]
fn h14_a_failed_wait_leaves_no_trace_in_what_b_is_ordered_after() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_of(BLOCK);
        let [a, b] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        x.write_long(&a);
        lab.device.inject(FaultPlan::new(Call::Wait));
        x.use_on(&b).expect_err("the wait fails");
        drop(x);
        // b is not ordered after a, and is not in the set: only a's work is waited for.
        let (y, calls) = lab.calls_of(|| lab.hold(&b, BLOCK));
        assert_eq!(calls.stream_waits, 1);
        y.write(&b);
    });
}

#[test]
fn h15_a_copy_on_another_stream_comes_before_the_next_owner_at_home() {
    in_both_kinds(|setup| {
        for limit in [BLOCK, 4 * BLOCK] {
            let lab = setup.lazy_lab_of(limit);
            let [a, b] = lab.streams();
            let x = lab.hold(&a, BLOCK);
            x.share(&b);
            x.write_long(&b);
            drop(x);
            let y = lab.hold(&a, BLOCK);
            y.write(&a);
        }
    });
}

#[test]
fn h16_beside_a_stalled_stream_others_reuse_all_of_their_own() {
    const PIECE: u64 = 4 * MIB;
    in_both_kinds(|setup| {
        let lab =
            setup.lab_with(|builder| builder.late_waits(false).limit(32 * PIECE).floor(30 * PIECE));
        let [a, b, c] = lab.streams();
        lab.pool.reserve(30 * PIECE).unwrap();
        // a's blocks lie between b's: a, b, b, a, b, b, … in pieces of which the halves are no small blocks.
        let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
        for n in 0..30 {
            if n % 3 == 0 {
                of_a.push(lab.hold(&a, PIECE));
            } else {
                of_b.push(lab.hold(&b, PIECE));
            }
        }
        let gate = lab.device.gate();
        launch(&lab.device, a.raw(), Kernel::new().after(&gate));
        of_a.iter().for_each(|own| own.write(&a));
        of_b.iter().for_each(|own| own.write(&b));
        drop((of_a, of_b));
        // The pool looks at everything: all lists are drained and neighbours may join.
        lab.pool.trim(32 * PIECE).unwrap();
        let reserved = lab.stats().reserved;
        for round in 0..50 {
            let (mine, calls) = lab.calls_of(|| {
                // Whole, in halves, and two side by side.
                let sizes = [8 * MIB, PIECE, 2 * MIB, 8 * MIB, 2 * MIB, PIECE, 8 * MIB];
                sizes.map(|bytes| lab.hold(&b, bytes))
            });
            mine.iter().for_each(|own| own.write(&b));
            assert_eq!(calls.stream_waits + calls.synchronizes(), 0, "round {round}");
            drop(mine);
            if round % 2 == 0 {
                lab.hold(&c, PIECE).write(&c);
            }
        }
        assert_eq!(lab.stats().reserved, reserved, "the others grew");
        let all = lab.try_hold(&c, 31 * PIECE).expect_err("a's blocks are not to be had");
        assert!(all.is_out_of_memory());
        gate.open();
        lab.let_run();
        if setup.growth == Growth::Segments {
            // The driver may wait for whatever runs before it takes a segment: without late waits only the
            // program gives any back.
            lab.pool.trim(0).unwrap();
        }
        assert_eq!(lab.hold(&c, 30 * PIECE).size(), 30 * PIECE);
    });
}

#[test]
fn h17_a_pipeline_holds_its_depth_and_no_more() {
    in_both_kinds(|setup| {
        for depth in [1_u64, 3] {
            for moves in [false, true] {
                let lab = setup.lazy_lab_with(|builder| builder.floor(0));
                let [a, b] = lab.streams();
                let mut under_way = std::collections::VecDeque::new();
                for _ in 0..300 {
                    let mut x = lab.hold(&a, BLOCK);
                    x.write(&a);
                    if moves {
                        x.rehome(&b)
                    } else {
                        x.share(&b)
                    }
                    x.read(&b);
                    under_way.push_back(x);
                    if under_way.len() as u64 > depth {
                        under_way.pop_front();
                    }
                }
                drop(under_way);
                let stats = lab.stats();
                assert!(stats.peak_reserved <= (depth + 2) * BLOCK, "{stats:?}");
                assert_eq!(lab.device.counts().synchronizes(), 0);
                assert!(stats.late_steals > 100, "nothing was waited for: {stats:?}");
            }
        }
    });
}

#[test]
fn h18_a_hundred_short_lived_streams_share_one_gibibyte() {
    in_both_kinds(|setup| {
        for lazy in [false, true] {
            let none = |builder| builder;
            let lab = if lazy { setup.lazy_lab_with(none) } else { setup.lab_with(none) };
            for _ in 0..100 {
                let stream = lab.stream();
                let x = lab.hold(&stream, GIB);
                x.write_long(&stream);
            }
            assert!(lab.stats().peak_reserved <= GIB + GIB / 8, "{:?}", lab.stats());
            assert_eq!(lab.device.counts().synchronizes(), 0);
        }
    });
}

#[test]
fn h18_kept_streams_share_it_as_well() {
    in_both_kinds(|setup| {
        let lab = setup.lazy_lab_with(|builder| builder);
        let streams: Vec<Stream> = (0..100).map(|_| lab.stream()).collect();
        for stream in &streams {
            lab.hold(stream, GIB).write_long(stream);
        }
        assert!(lab.stats().peak_reserved <= GIB + GIB / 8, "{:?}", lab.stats());
    });
}

/// H19: what happens between the free of x and b's allocation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    Nothing,
    /// Another stream's miss probes a before the flag's wait.
    ProbedBefore,
    /// Another stream's miss probes a after the flag's wait.
    ProbedAfter,
    /// The neighbour of x is freed after the flag's wait.
    NeighbourAfter,
    /// Both.
    NeighbourAndProbe,
}

const BETWEEN: [Between; 5] = [
    Between::Nothing,
    Between::ProbedBefore,
    Between::ProbedAfter,
    Between::NeighbourAfter,
    Between::NeighbourAndProbe,
];

/// Frees x on a (and marks it, or not), lets a's later work wait for a flag, lets c's misses of `probe`
/// bytes probe a, allocates on b, uses it, synchronizes b, and only then sets the flag. Says what b
/// got, and where x was.
fn h19(
    lab: &Lab,
    mark: bool,
    probe: u64,
    between: Between,
) -> Result<(u64, u64), streampool::Error> {
    let [a, b, c] = lab.streams();
    // One piece, cut in two.
    drop(lab.hold(&a, 2 * BLOCK));
    let (x, y) = (lab.hold(&a, BLOCK), lab.hold(&a, BLOCK));
    x.launch(&a, x.writes().taking(1_000_000));
    y.launch(&a, y.writes().taking(1_000_000));
    let at = x.at();
    let mut y = Some(y);
    let neighbour_later = matches!(between, Between::NeighbourAfter | Between::NeighbourAndProbe);
    if !neighbour_later {
        y = None;
    }
    drop(x);
    let probe = || drop(lab.try_hold(&c, probe));
    if between == Between::ProbedBefore {
        probe();
    }
    if mark {
        a.mark().unwrap();
    }
    let gate = lab.device.gate();
    launch(&lab.device, a.raw(), Kernel::new().after(&gate));
    drop(y);
    if matches!(between, Between::ProbedAfter | Between::NeighbourAndProbe) {
        probe();
    }
    if !mark {
        // What was queued before the flag's wait is over.
        lab.device.advance(10_000_000);
    }
    let got = lab.try_hold(&b, BLOCK).map(|z| {
        z.write(&b);
        // The flag is not set: whoever waits for a hangs here.
        b.synchronize().expect("b waits for the flag");
        (z.at(), at)
    });
    assert!(!gate.is_open());
    gate.open();
    got
}

#[test]
fn h19_by_growth_b_ends_though_a_waits_for_the_host() {
    in_both_kinds(|setup| {
        for between in BETWEEN {
            let lab = setup.lab_with(|builder| builder.floor(0).soft_target(8 * BLOCK));
            let (got, x) = h19(&lab, false, BLOCK, between).expect("there is room");
            let stats = lab.stats();
            if between == Between::ProbedBefore {
                assert_eq!((got, stats.asked), (x, 1), "x is over, and an event says so");
            } else {
                assert_ne!(got, x, "{between:?}");
            }
            assert_eq!(stats.late_steals, 0, "{between:?}");
        }
    });
}

#[test]
fn h19_by_a_mark_b_ends_though_a_waits_for_the_host() {
    in_both_kinds(|setup| {
        for between in BETWEEN {
            // No growth can serve it, so that only the mark does. c wants more than there is: its
            // ladder asks for everything, and fails.
            let options = |builder: streampool::PoolBuilder<_>| {
                builder.limit(2 * BLOCK).late_waits(between == Between::Nothing)
            };
            let lab = setup.lab_with(options);
            let (got, x) = h19(&lab, true, 3 * BLOCK, between)
                .unwrap_or_else(|error| panic!("{between:?}: {error}"));
            if matches!(between, Between::NeighbourAfter | Between::NeighbourAndProbe) {
                assert_eq!(got, x, "{between:?}: only x was freed before the flag's wait");
            }
            let stats = lab.stats();
            assert_eq!((stats.early_steals, stats.late_steals), (1, 0), "{between:?}");
        }
    });
}

#[test]
fn h19_without_late_waits_it_is_a_clean_out_of_memory_error() {
    in_both_kinds(|setup| {
        for reuse in [Reuse::Balanced, Reuse::Memory, Reuse::Speed] {
            for between in BETWEEN {
                let options = |builder: streampool::PoolBuilder<_>| {
                    builder.limit(2 * BLOCK).late_waits(false).reuse(reuse)
                };
                let lab = setup.lab_with(options);
                match h19(&lab, false, 3 * BLOCK, between) {
                    // A probe from before the flag's wait has finished by the time that b asks.
                    Ok(_) => assert_eq!(between, Between::ProbedBefore),
                    Err(error) => {
                        assert_ne!(between, Between::ProbedBefore);
                        assert!(error.is_out_of_memory() && error.is_over_limit(), "{error}");
                        assert_eq!(error.shortage().unwrap().free, 2 * BLOCK);
                    }
                }
                assert_eq!(lab.device.counts().stream_waits, 0);
                // Once the flag is set all goes on.
                lab.let_run();
                let d = lab.stream();
                lab.hold(&d, 2 * BLOCK).write(&d);
            }
        }
    });
}

#[test]
fn h19_the_ladder_itself_does_not_block_without_late_waits() {
    in_both_kinds(|setup: Setup| {
        let lab = setup.lab_with(|builder| builder.limit(BLOCK).late_waits(false));
        let [a, b] = lab.streams();
        let x = lab.hold(&a, BLOCK);
        x.write(&a);
        let gate = lab.device.gate();
        launch(&lab.device, a.raw(), Kernel::new().after(&gate));
        drop(x);
        let (error, calls) = lab.calls_of(|| lab.try_hold(&b, BLOCK).expect_err("x is not over"));
        assert!(error.is_out_of_memory());
        assert_eq!(calls.synchronizes() + calls.stream_waits, 0);
        gate.open();
    });
}

/// Blocks that lie side by side and that several streams have freed serve another stream in one piece, with
/// waits on the device and none of the host, before the pool grows beyond its soft target.
#[test]
fn h16_a_late_steal_takes_neighbours_of_several_streams_together() {
    for (late_waits, waits) in [(true, 3), (false, 0)] {
        let setup = Setup { growth: Growth::Virtual };
        let lab = setup.lazy_lab_with(|builder| {
            builder.floor(0).soft_target(4 * BLOCK).late_waits(late_waits)
        });
        let [a, b, c, taker]: [Stream; 4] = lab.streams();
        let kept = lab.hold(&taker, BLOCK);
        let held = [lab.hold(&a, BLOCK), lab.hold(&b, BLOCK), lab.hold(&c, BLOCK)];
        for (own, stream) in held.iter().zip([&a, &b, &c]) {
            own.write_long(stream);
        }
        drop(held);
        let (union, calls) = lab.calls_of(|| lab.hold(&taker, 3 * BLOCK));
        assert_eq!((calls.stream_waits, calls.synchronizes()), (waits, 0), "{late_waits}");
        assert_eq!(lab.stats().reserved, if late_waits { 4 * BLOCK } else { 7 * BLOCK });
        union.write(&taker);
        drop(kept);
    }
}

/// The policy for the least memory waits on the host rather than grow beyond the soft target, once what is
/// free could make up the request: here it lies in pieces, which are moved when they are clean.
#[test]
fn m5_the_memory_policy_synchronizes_rather_than_grow_beyond_the_soft_target() {
    for (reuse, synchronizes, reserved) in [(Reuse::Memory, 1, 8), (Reuse::Balanced, 0, 12)] {
        let setup = Setup { growth: Growth::Virtual };
        let lab =
            setup.lazy_lab_with(|builder| builder.floor(0).soft_target(8 * BLOCK).reuse(reuse));
        let [a, b] = lab.streams();
        let mut blocks: Vec<Held> = (0..8).map(|_| lab.hold(&a, BLOCK)).collect();
        blocks.iter().for_each(|own| own.write_long(&a));
        let kept: Vec<Held> = (0..4).map(|n| blocks.remove(n)).collect();
        drop(blocks);
        let (large, calls) = lab.calls_of(|| lab.hold(&b, 4 * BLOCK));
        assert_eq!(calls.context_synchronizes, synchronizes, "{reuse:?}");
        assert_eq!(lab.stats().synchronized, synchronizes);
        assert!(lab.stats().reserved <= reserved * BLOCK, "{:?}", lab.stats());
        large.write(&b);
        if reuse == Reuse::Balanced {
            // Half as much again as the target is far beyond it: here this policy waits as well.
            lab.hold(&b, 4 * BLOCK).write(&b);
            assert_eq!(lab.stats().synchronized, 1);
            assert_eq!(lab.stats().reserved, 12 * BLOCK);
        }
        kept.iter().for_each(|own| own.read(&a));
    }
}

//! Gate tests: on a real device a missing dependency is proven, not hoped for.
//!
//! A gate holds up one stream: everything behind it waits for a word that the host writes. Behind it a
//! kernel uses a block; the block is freed and taken by another stream, which uses it too. What of that
//! finishes while the gate is closed has not waited. The controls: an unrelated kernel on the other stream
//! does finish meanwhile (or the test says INCONCLUSIVE and fails), and with the wait removed the checks do
//! fire (`controls`, and the table of `faults`). A watchdog opens a gate that a test has forgotten.
//!
//! Each test is written once and run on two devices: a real one (`gpu::…`, ignored unless asked for) and the
//! simulated one (`simulated::…`), on which the tests themselves are tested. On a machine with a GPU:
//!
//! ```console
//! $ CUDA_DEVICE_MAX_CONNECTIONS=32 cargo test --features cuda,faults --test gpu_gate -- \
//!       --include-ignored --test-threads=1 --nocapture
//! ```
//!
//! Those of two devices run on `gpu_pair::…` and `simulated_pair::…`; on a machine with one GPU they say SKIPPED.
//!
//! The variable gives the driver more queues of the hardware, so that fewer streams hold each other up.

#![cfg(target_os = "linux")]

#[path = "../common/card.rs"]
mod card;

mod captures;
mod controls;
mod cuda_gate;
mod cuda_rig;
mod end;
mod exit;
#[cfg(feature = "faults")]
mod faults;
mod ordering;
mod pairs;
mod remap;
mod rig;
mod scopes;
mod sim_rig;
mod streams;

macro_rules! gate_tests {
    ($($file:ident::$test:ident,)*) => {
        mod gpu {
            $(
                #[test]
                #[ignore = "needs a CUDA device"]
                fn $test() {
                    crate::$file::$test(crate::cuda_rig::Gpu::open());
                }
            )*
        }

        mod simulated {
            $(
                #[test]
                fn $test() {
                    crate::$file::$test(&crate::sim_rig::Sim::open());
                }
            )*
        }
    };
}

gate_tests! {
    controls::without_a_wait_the_checks_fire,
    controls::with_a_wait_they_do_not,
    ordering::h01_one_stream_takes_it_back_with_no_call,
    ordering::h02_another_stream_waits,
    ordering::h02_with_room_nobody_waits,
    ordering::h02_an_event_is_not_used_twice,
    ordering::h03_what_has_finished_is_taken_with_no_wait,
    ordering::h04_frees_make_no_call,
    ordering::h09_every_user_comes_before_the_next_owner,
    ordering::h10_use_on_and_move_to_make_the_other_stream_wait,
    ordering::h11_the_owner_of_a_union_comes_after_both_parts,
    ordering::h11_of_two_epochs_the_later_counts,
    ordering::both_parts_of_a_split_wait,
    ordering::h15_home_waits_for_a_copy_elsewhere,
    ordering::h16_a_stalled_neighbour_holds_nothing_up,
    ordering::h17_a_pipeline_stays_within_its_depth,
    ordering::h19_a_probe_is_not_waited_for,
    streams::h21_an_event_is_seen_only_once_recorded,
    streams::h25_a_thread_without_a_context_is_left_without,
    streams::h40_a_reused_handle_is_another_stream,
    streams::h40_a_handle_that_comes_back_later_is_another_stream,
    streams::h43_the_legacy_stream_waits_and_is_waited_for,
    streams::h43_the_per_thread_stream_is_refused,
    scopes::a_scope_begins_when_the_gate_opens,
    scopes::h30_what_a_scope_launches_is_waited_for,
    scopes::h31_what_is_used_after_the_synchronize_is_waited_for,
    scopes::h31_another_thread_takes_it_while_the_scope_is_open,
    scopes::h37_what_was_freed_before_a_scope_is_clean,
    captures::h50_what_a_capturing_stream_freed_is_left_alone,
    captures::h51_other_threads_go_on_during_a_capture,
    captures::h53_what_synchronizes_spares_the_capture,
    end::h59_buffers_outlive_their_pool,
    end::h60_trim_leaves_what_is_in_flight,
    remap::m4_only_what_has_finished_is_moved,
    remap::m4_an_old_place_is_unmapped_beside_running_work,
}

macro_rules! pair_tests {
    ($($file:ident::$test:ident,)*) => {
        mod gpu_pair {
            $(
                #[test]
                #[ignore = "needs two CUDA devices"]
                fn $test() {
                    if let Some([near, far]) = crate::cuda_rig::Gpu::open_pair() {
                        crate::$file::$test(near, far);
                    }
                }
            )*
        }

        mod simulated_pair {
            $(
                #[test]
                fn $test() {
                    let [near, far] = crate::sim_rig::Sim::open_pair();
                    crate::$file::$test(&near, &far);
                }
            )*
        }
    };
}

pair_tests! {
    pairs::without_a_wait_the_checks_fire_across_devices,
    pairs::a_synchronize_of_one_device_does_not_wait_for_the_other,
    pairs::s4_h09_the_next_owner_waits_for_a_late_writer_of_the_other_device,
    pairs::s4_h10_the_other_device_waits_for_what_home_has_queued,
    pairs::s4_h60_trim_leaves_what_the_other_device_still_writes,
    pairs::s4_m4_nothing_is_moved_that_the_other_device_still_writes,
    pairs::s4_h34_a_scope_of_both_begins_when_the_other_devices_gate_opens,
    pairs::s4_h34_what_the_other_device_still_writes_is_deferred,
    pairs::a_context_is_not_done_while_a_stream_waits_for_the_other_device,
    pairs::s4_h34_a_scope_begins_when_what_a_stream_only_waits_for_is_done,
    pairs::s4_h34_what_a_stream_only_waits_for_is_deferred,
    pairs::s4_s7_close_waits_for_the_other_device,
    pairs::s4_a_copy_waits_for_the_original,
    pairs::s4_the_originals_next_owner_waits_for_the_copy,
    pairs::s4_h51_a_capture_survives_what_the_other_device_does,
}

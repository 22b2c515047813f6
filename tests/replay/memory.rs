//! How much memory programs of several kinds take, over what they have alive at most.

use super::made_up::{alternating_phases, graph_network, growing_batch, inference_server};
use super::replay::common::device::{Device, Sim};
use super::replay::options::{Kernels, Limit, Options};
use super::replay::replay;
use super::replay::report::Replayed;
use super::replay::trace::Trace;

/// What was taken at most in a cold pass, and in the warm one behind it, over the live bytes.
#[derive(Debug)]
struct Taken {
    cold: f64,
    warm: f64,
}

fn taken(trace: &Trace, options: &Options) -> Taken {
    let device = Sim::new(options.purpose());
    let replayed = replay(options, trace, &device).expect("no error");
    assert_eq!(replayed.hazards, Some(0), "{:?}", replayed.first_hazard);
    let both = device.memory_peak() as f64 / trace.peak_live_bytes as f64;
    let taken = Taken { cold: replayed.taken_over_live(), warm: both };
    tell(trace, options, &replayed, &taken);
    taken
}

/// One line, for `--nocapture`.
fn tell(trace: &Trace, options: &Options, replayed: &Replayed, taken: &Taken) {
    let mut line = format!(
        "{:<18} {:>5} operations, live {:>5} MiB, kernels {:<4} {:<8} {:?}:",
        trace.name,
        trace.operations.len(),
        trace.peak_live_bytes >> 20,
        options.kernels.as_str(),
        options.reuse_name(),
        options.limit,
    );
    let passes = [("cold", taken.cold, &replayed.cold), ("warm", taken.warm, &replayed.warm)];
    for (name, ratio, pass) in passes {
        let [before, after] = &pass.stats;
        line += &format!(
            " {name} {ratio:.3} (growths {}, remapped {}, revived {}, early {}, late {}, ladders {}, synchronizes {})",
            after.growths - before.growths,
            after.remapped - before.remapped,
            after.revived - before.revived,
            after.early_steals - before.early_steals,
            after.late_steals - before.late_steals,
            after.ladders - before.ladders,
            pass.calls.synchronizes,
        );
    }
    println!("{line}");
}

#[test]
fn look() {
    for trace in [
        super::shipped(),
        inference_server(),
        graph_network(),
        growing_batch(),
        alternating_phases(),
    ] {
        for reuse in [streampool::Reuse::Balanced, streampool::Reuse::Memory] {
            for kernels in [Kernels::None, Kernels::Use] {
                for limit in [Limit::None, Limit::OverLive(1.03)] {
                    let options = Options { kernels, limit, reuse, ..Options::default() };
                    let device = Sim::new(options.purpose());
                    match replay(&options, &trace, &device) {
                        Ok(replayed) => {
                            let both = device.memory_peak() as f64 / trace.peak_live_bytes as f64;
                            let taken = Taken { cold: replayed.taken_over_live(), warm: both };
                            tell(&trace, &options, &replayed, &taken);
                        }
                        Err(e) => println!("{} {kernels:?} {limit:?}: {e}", trace.name),
                    }
                }
            }
        }
    }
}

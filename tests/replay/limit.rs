//! A hard limit just above the program's own peak.

use super::replay::common::device::Sim;
use super::replay::options::{Kernels, Limit, Options};
use super::replay::replay;
use super::{parse, shipped};

const RATIO: f64 = 1.03;

fn under_the_limit(kernels: Kernels) {
    let options = Options { kernels, limit: Limit::OverLive(RATIO), ..Options::default() };
    let trace = shipped();
    let device = Sim::new(options.purpose());
    let replayed = replay(&options, &trace, &device).expect("the trace fits");
    assert_eq!(replayed.hazards, Some(0), "{:?}", replayed.first_hazard);
    assert_eq!(replayed.limit_bytes, Some(714_357_637));
    let (cold, warm) = (replayed.taken_over_live(), replayed.taken_over_live_warm());
    assert!(1.0 <= cold && cold <= warm && warm <= RATIO, "{cold}, warm {warm}");
}

#[test]
fn the_shipped_trace_fits_closely() {
    under_the_limit(Kernels::None);
}

/// Here what has been freed is in use still when it is wanted: the pool waits rather than fails.
#[test]
fn the_shipped_trace_fits_closely_with_kernels_in_flight() {
    under_the_limit(Kernels::Use);
}

#[test]
fn a_limit_is_in_bytes_or_over_the_live_bytes() {
    assert_eq!(parse(&["--limit", "80M"]).expect("right").limit, Limit::Bytes(80 << 20));
    let options = parse(&["--limit-over-live", "1.5"]).expect("right");
    assert_eq!(options.limit.bytes(1000), Some(1500));
    assert_eq!(parse(&[]).expect("right").limit.bytes(1000), None);
    for wrong in ["0.99", "inf", "NaN", "-1", "much"] {
        let error = parse(&["--limit-over-live", wrong]).expect_err(wrong);
        assert!(error.contains("at least 1"), "{wrong}: {error}");
    }
    let error = parse(&["--limit", "80M", "--limit-over-live", "1.03"]).expect_err("two limits");
    assert!(error.contains("one limit is wanted"), "{error}");
}

//! How the measurements are told.

use serde_json::json;

use super::common::cli::BackendName;
use super::common::device::Counts;
use super::common::table::Table;
use super::measure::Measured;
use super::options::Options;

/// One JSON object a line.
pub(crate) fn json(options: &Options, measured: &[Measured]) -> String {
    let line = |own: &Measured| {
        let calls = own.calls;
        let object = json!({
            "allocator": own.allocator.name,
            "memory_from": own.allocator.meaning,
            "backend": options.backend.as_str(),
            "clock": clock(options),
            "n": options.n,
            "limbs": options.limbs,
            "streams": options.streams,
            "layers": options.layers,
            "batch": options.batch,
            "rounds": options.rounds,
            "products": products(options),
            "limb_products": limb_products(options),
            "wrong": own.wrong.as_ref().map(|wrong| wrong.count),
            "compared": own.wrong.as_ref().map(|wrong| wrong.compared),
            "seconds": own.seconds,
            "products_per_s": products(options) as f64 / own.seconds,
            "speed_over_last": own.speed,
            "allocator_share": own.allocator_share,
            "allocations": own.allocations,
            "live_peak_bytes": own.live_peak_bytes,
            "device_peak_bytes": own.device_peak_bytes,
            "taken_over_live": own.taken_over_live(),
            "warm_device_peak_bytes": own.warm_device_peak_bytes,
            "warm_taken_over_live": own.warm_taken_over_live(),
            "event_records": calls.map(|calls| calls.event_records),
            "stream_waits": calls.map(|calls| calls.stream_waits),
            "event_queries": calls.map(|calls| calls.event_queries),
            "synchronizes": calls.map(|calls| calls.synchronizes),
            "memory_calls": calls.map(|calls| calls.mapping_calls),
            "hazards": own.hazards,
        });
        format!("{object}\n")
    };
    measured.iter().map(line).collect()
}

/// Whose time it is.
fn clock(options: &Options) -> &'static str {
    match options.backend {
        BackendName::Sim => "virtual",
        #[cfg(feature = "cuda")]
        BackendName::Cuda => "host",
    }
}

/// Polynomials that are multiplied in a run.
fn products(options: &Options) -> usize {
    options.batch * options.layers
}

/// The same, limb by limb.
fn limb_products(options: &Options) -> usize {
    let limbs = (0..options.layers).map(|layer| options.limbs - layer);
    options.batch * limbs.sum::<usize>()
}

/// The tables and what they mean.
pub(crate) fn table(options: &Options, measured: &[Measured]) -> String {
    let Options { n, limbs, streams, layers, batch, rounds, backend, .. } = options;
    let mut text = format!(
        "{layers} layers on backend `{}`. Each multiplies {batch} polynomials of {n} coefficients and up \
         to {limbs} limbs of\n{} KiB, on {streams} streams: {} products, limb by limb {}. Every step \
         writes into a new buffer:\n{} allocations a run.\n\n",
        backend.as_str(),
        n * size_of::<u64>() / 1024,
        products(options),
        limb_products(options),
        measured[0].allocations,
    );
    let or_dash = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
    let mut memory = Table::new(&[
        "allocator",
        "wrong|coefficients",
        "hazards|found",
        "most bytes|live",
        "taken,|cold",
        "over|live",
        "taken,|warm",
        "over|live",
    ]);
    let last = measured[measured.len() - 1].allocator.name;
    let mut time = Table::new(&[
        "allocator",
        "products|a second",
        &format!("times|{last}"),
        "of the time|in the allocator",
        "event|records",
        "stream|waits",
        "event|queries",
        "synchro-|nizes",
        "memory|calls",
    ]);
    for own in measured {
        let calls = |of: fn(&Counts) -> u64| or_dash(own.calls.as_ref().map(of));
        memory.row(vec![
            own.allocator.name.to_owned(),
            or_dash(own.wrong.as_ref().map(|wrong| wrong.count)),
            or_dash(own.hazards),
            mib(own.live_peak_bytes),
            mib(own.device_peak_bytes),
            format!("{:.2}", own.taken_over_live()),
            mib(own.warm_device_peak_bytes),
            format!("{:.2}", own.warm_taken_over_live()),
        ]);
        time.row(vec![
            own.allocator.name.to_owned(),
            format!("{:.0}", products(options) as f64 / own.seconds),
            format!("{:.2}", own.speed),
            format!("{:.1} %", 100.0 * own.allocator_share),
            calls(|calls| calls.event_records),
            calls(|calls| calls.stream_waits),
            calls(|calls| calls.event_queries),
            calls(|calls| calls.synchronizes),
            calls(|calls| calls.mapping_calls),
        ]);
    }
    text += &format!(
        "All runs; the memory that is taken in a cold run, the allocator's first, and at most in two warm \
         ones\nafter it:\n\n{memory}\n"
    );
    text += &format!("Further warm runs ({rounds} of each allocator, in turn; medians):\n\n{time}");
    text += notes(options);
    for own in measured {
        text += &format!("  {:<34} {}\n", own.allocator.name, own.allocator.meaning);
    }
    text
}

fn notes(options: &Options) -> &'static str {
    match options.backend {
        BackendName::Sim => {
            "
Driver calls are the allocator's own, of one run. The time is that of the simulated device: driver calls
cost what they cost on an H200, and what the host does between them costs nothing; only a GPU tells
how fast the program is. A hazard is a use of memory that nothing orders after an earlier one.

"
        }
        #[cfg(feature = "cuda")]
        BackendName::Cuda => {
            "
Driver calls are the allocator's own, of one run; cudarc's cannot be counted from outside, and its events
at each use count as the program's time, not the allocator's. Memory is by the driver's account
(cuMemGetInfo), looked at where the program holds the most.

"
        }
    }
}

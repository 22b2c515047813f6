//! How a replay is told.

use serde_json::{Value, json};

use super::common::table::Table;
use super::curves::Curves;
use super::export::Exported;
use super::options::Options;
use super::pass::Pass;

/// What replaying one trace has cost.
pub(crate) struct Replayed {
    pub(crate) trace: String,
    pub(crate) operations: usize,
    pub(crate) streams: usize,
    pub(crate) peak_live_bytes: u64,
    /// The most that the pool was allowed to take.
    pub(crate) limit_bytes: Option<u64>,
    /// The most that was taken from the device in the cold pass, by the device's own account.
    pub(crate) device_peak_bytes: u64,
    /// The same in both passes.
    pub(crate) device_peak_bytes_warm: u64,
    pub(crate) cold: Pass,
    pub(crate) warm: Pass,
    pub(crate) hazards: Option<u64>,
    pub(crate) first_hazard: Option<String>,
    /// How the memory went, where it is to be drawn.
    pub(crate) exported: Option<Exported>,
    pub(crate) curves: Option<Curves>,
}

impl Replayed {
    pub(crate) fn taken_over_live(&self) -> f64 {
        self.device_peak_bytes as f64 / self.peak_live_bytes as f64
    }

    pub(crate) fn taken_over_live_warm(&self) -> f64 {
        self.device_peak_bytes_warm as f64 / self.peak_live_bytes as f64
    }
}

/// One object. Numbers of calls are those of the cold pass.
pub(crate) fn json(options: &Options, own: &Replayed) -> Value {
    let calls = own.cold.calls;
    json!({
        "trace": own.trace,
        "backend": options.backend.as_str(),
        "kernels": options.kernels.as_str(),
        "reuse": options.reuse_name(),
        "limit_bytes": own.limit_bytes,
        "operations": own.operations,
        "streams": own.streams,
        "peak_live_bytes": own.peak_live_bytes,
        "device_peak_bytes": own.device_peak_bytes,
        "taken_over_live": own.taken_over_live(),
        "warm_taken_over_live": own.taken_over_live_warm(),
        "cold_ns_per_op": own.cold.ns_per_op,
        "warm_ns_per_op": own.warm.ns_per_op,
        "mapping_calls": calls.mapping_calls,
        "event_records": calls.event_records,
        "stream_waits": calls.stream_waits,
        "event_queries": calls.event_queries,
        "synchronizes": calls.synchronizes,
        "hazards": own.hazards,
    })
}

/// What a person wants to know.
pub(crate) fn text(options: &Options, own: &Replayed) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut text = format!(
        "{}: {} operations on {} streams, backend `{}`, kernels: {}\n\
         memory taken from the device {:.1} MiB, {:.3} times the peak of live bytes ({:.1} MiB)\n",
        own.trace,
        own.operations,
        own.streams,
        options.backend.as_str(),
        options.kernels.as_str(),
        mib(own.device_peak_bytes),
        own.taken_over_live(),
        mib(own.peak_live_bytes),
    );
    if own.device_peak_bytes_warm > own.device_peak_bytes {
        text += &format!(
            "in the warm pass {:.1} MiB, {:.3} times\n",
            mib(own.device_peak_bytes_warm),
            own.taken_over_live_warm(),
        );
    }
    if let Some(limit) = own.limit_bytes {
        text += &format!("the pool's limit: {:.1} MiB\n", mib(limit));
    }
    text += &match own.hazards {
        None => "this device cannot tell hazards\n\n".to_owned(),
        Some(count) => format!("hazards (uses that nothing orders): {count}\n\n"),
    };
    for line in own.first_hazard.iter().flat_map(|first| first.lines()) {
        text += &format!("  | {line}\n");
    }
    text += &calls(&[("cold pass", &own.cold), ("warm pass", &own.warm)]).to_string();
    text.push('\n');
    text += &served(&[("cold pass", &own.cold), ("warm pass", &own.warm)]).to_string();
    text.push('\n');
    text
}

fn calls(passes: &[(&str, &Pass)]) -> Table {
    let mut table = Table::new(&[
        "driver calls",
        "mapping",
        "event|records",
        "stream|waits",
        "event|queries",
        "synchro-|nizes",
        "host time in|the pool",
    ]);
    for (name, pass) in passes {
        let calls = pass.calls;
        let mut row = vec![(*name).to_owned()];
        row.extend([calls.mapping_calls, calls.event_records].map(|count| count.to_string()));
        row.extend([calls.stream_waits, calls.event_queries].map(|count| count.to_string()));
        row.push(calls.synchronizes.to_string());
        row.push(format!("{:.0} ns/op", pass.ns_per_op));
        table.row(row);
    }
    table
}

/// How the allocations were served.
fn served(passes: &[(&str, &Pass)]) -> Table {
    let mut table = Table::new(&[
        "allocations served by",
        "the stream's|own list",
        "a free block|in order",
        "asking what|has finished",
        "gathering|all lists",
        "an early|wait",
        "a late|wait",
        "growth",
        "the last|resorts",
    ]);
    for (name, pass) in passes {
        let [before, after] = &pass.stats;
        let counts = [
            after.hits - before.hits,
            after.covered - before.covered,
            after.asked - before.asked,
            after.gathered - before.gathered,
            after.early_steals - before.early_steals,
            after.late_steals - before.late_steals,
            after.growths - before.growths,
            after.ladders - before.ladders,
        ];
        let mut row = vec![(*name).to_owned()];
        row.extend(counts.map(|count| count.to_string()));
        table.row(row);
    }
    table
}

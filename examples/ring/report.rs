//! How the measurements are told.

use serde_json::json;

use super::common::table::Table;
use super::measure::Measured;
use super::options::Options;

const NOTES: &str = "
Driver calls are those of one warm round, over all devices. A hazard is a use of memory that nothing orders
after an earlier one. Memory is the most that one device has given.
";

/// One JSON object a line.
pub(crate) fn json(options: &Options, measured: &[Measured]) -> String {
    let line = |own: &Measured| {
        let object = json!({
            "allocator": own.name,
            "backend": options.backend.as_str(),
            "devices": own.ranks,
            "shared": own.shared,
            "steps": options.steps,
            "bytes": options.bytes,
            "step_us": own.step_us,
            "event_records": own.calls.event_records,
            "stream_waits": own.calls.stream_waits,
            "synchronizes": own.calls.synchronizes,
            "mapping_calls": own.calls.mapping_calls,
            "memory_peak": own.memory_peak,
            "wrong": own.wrong,
            "hazards": own.hazards,
        });
        format!("{object}\n")
    };
    measured.iter().map(line).collect()
}

/// The table and what it shows.
pub(crate) fn table(options: &Options, measured: &[Measured]) -> String {
    let Options { steps, bytes, backend, .. } = options;
    let mut text = format!(
        "{steps} steps of a ring on backend `{}`, with chunks of {bytes} bytes.\n",
        backend.as_str()
    );
    if let Some(first) = measured.first() {
        text += &match first.shared {
            true => format!(
                "{} places share fewer GPUs: much is handed over within one.\n",
                first.ranks
            ),
            false => format!("{} devices.\n", first.ranks),
        };
    }
    text += "\n";
    let mut table = Table::new(&[
        "way",
        "time|a step",
        "event|records",
        "stream|waits",
        "synchro-|nizes",
        "memory|calls",
        "memory|MiB",
        "words|wrong",
        "hazards|found",
    ]);
    let or_dash = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    for own in measured {
        table.row(vec![
            own.name.to_owned(),
            format!("{:.1} us", own.step_us),
            own.calls.event_records.to_string(),
            own.calls.stream_waits.to_string(),
            own.calls.synchronizes.to_string(),
            own.calls.mapping_calls.to_string(),
            or_dash(own.memory_peak.map(|bytes| bytes >> 20)),
            own.wrong.to_string(),
            or_dash(own.hazards),
        ]);
    }
    text + &table.to_string() + NOTES
}

//! How the measurements are told.

use serde_json::json;

use super::common::table::Table;
use super::measure::Measured;
use super::modes::Mode;
use super::options::{BUFFER_BYTES, Options};

const NOTES: &str = "
Driver calls are the most that any clear made. The host time is taken in a second run, on a device
that does not look for hazards. A hazard is a use of memory that nothing orders after an earlier one.

";

/// One JSON object a line.
pub(crate) fn json(options: &Options, measured: &[Measured]) -> String {
    let line = |own: &Measured| {
        let object = json!({
            "mode": own.mode.name(),
            "backend": options.backend.as_str(),
            "layers": options.layers,
            "buffers": options.buffers,
            "streams": options.streams,
            "event_records": own.calls.event_records,
            "stream_waits": own.calls.stream_waits,
            "event_queries": own.calls.event_queries,
            "synchronizes": own.calls.synchronizes,
            "clear_ms": own.clear_ms,
            "hazards": own.hazards,
        });
        format!("{object}\n")
    };
    measured.iter().map(line).collect()
}

/// The table and what its rows mean.
pub(crate) fn table(options: &Options, measured: &[Measured]) -> String {
    let Options { layers, buffers, streams, backend, .. } = options;
    let mut text = format!(
        "{layers} layers on backend `{}`. Each allocates {buffers} buffers of {} KiB on {streams} \
         streams, runs a\nkernel on each, waits for the device, and clears them all. Of the clear \
         alone:\n\n",
        backend.as_str(),
        BUFFER_BYTES >> 10
    );
    let mut table = Table::new(&[
        "mode",
        "event|records",
        "stream|waits",
        "event|queries",
        "synchro-|nizes",
        "host time|(median)",
        "hazards|found",
    ]);
    for own in measured {
        table.row(vec![
            own.mode.name().to_owned(),
            own.calls.event_records.to_string(),
            own.calls.stream_waits.to_string(),
            own.calls.event_queries.to_string(),
            own.calls.synchronizes.to_string(),
            format!("{:.3} ms", own.clear_ms),
            own.hazards.map_or("-".to_owned(), |hazards| hazards.to_string()),
        ]);
    }
    text += &table.to_string();
    text += NOTES;
    for mode in Mode::ALL {
        text += &format!("  {:<14} {}\n", mode.name(), mode.meaning());
    }
    text
}

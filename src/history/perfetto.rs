//! A history as a trace that Perfetto and Chrome open: <https://ui.perfetto.dev>, `chrome://tracing`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use super::in_use::{Graph, InUse};
use super::{Action, Event, History};
use crate::tag::Tag;

/// How long a lane shows something that takes no time of its own, in nanoseconds: an arrow needs something
/// at its ends.
const SHOWN_NS: u64 = 200;
/// The lane of the pool's own events. No stream has this number.
const POOL: u64 = 0;

impl History {
    /// The history as JSON of Chrome's trace format: a lane for each stream and one for the pool, an arrow
    /// for each wait, a graph of the bytes in use, one more for each [`Tag`], and the scopes as
    /// spans. Times are those of the host: when a wait was queued, not when the device came to it.
    ///
    /// Of buffers that are older than the history's beginning only the free is known: the graphs begin
    /// with them in use.
    pub fn to_perfetto(&self) -> String {
        let text = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
        let mut trace = Trace { text };
        self.lanes(&mut trace);
        let mut in_use = InUse::before(self);
        let begin = self.events.first().map_or(0, |event| event.time_ns);
        for (graph, bytes) in in_use.graphs() {
            trace.counter(begin, graph, bytes);
        }
        for (number, event) in self.events.iter().enumerate() {
            trace.event(event, number);
            for (graph, bytes) in in_use.follow(&event.action) {
                trace.counter(event.time_ns, graph, bytes);
            }
        }
        trace.text.push_str("\n]}\n");
        trace.text
    }

    fn lanes(&self, trace: &mut Trace) {
        let handles: BTreeMap<u64, u64> =
            self.streams.iter().map(|stream| (stream.number, stream.handle)).collect();
        let waited_for = self.events.iter().filter_map(|event| match event.action {
            Action::Wait { on } => Some(on),
            _ => None,
        });
        let lanes = self.events.iter().filter_map(|event| event.stream);
        trace.lane(POOL, "pool");
        for lane in lanes.chain(waited_for).collect::<BTreeSet<u64>>() {
            match handles.get(&lane) {
                Some(handle) => trace.lane(lane, &format!("stream {lane} ({handle:#x})")),
                None => trace.lane(lane, &format!("stream {lane}")),
            }
        }
    }
}

/// The JSON, as far as it is written. But for tags all texts are the crate's own, and need no escapes.
struct Trace {
    text: String,
}

impl Trace {
    fn put(&mut self, object: fmt::Arguments<'_>) {
        let comma = if self.text.ends_with('[') { "" } else { "," };
        write!(self.text, "{comma}\n{{\"pid\":1,{object}}}").expect("a text can be written to");
    }

    fn lane(&mut self, lane: u64, name: &str) {
        self.put(format_args!(
            "\"ph\":\"M\",\"tid\":{lane},\"name\":\"thread_name\",\"args\":{{\"name\":\"{name}\"}}"
        ));
    }

    /// A point of the graph of a tag, or of that of all bytes.
    fn counter(&mut self, time_ns: u64, graph: Graph, in_use: u64) {
        let time = Micros(time_ns);
        let tag = OfTag(": ", graph, "");
        self.put(format_args!(
            "\"ph\":\"C\",\"ts\":{time},\"name\":\"in use{tag}\",\"args\":{{\"bytes\":{in_use}}}"
        ));
    }

    /// Something at one moment.
    fn instant(&mut self, event: &Event, name: &str, args: fmt::Arguments<'_>) {
        let (lane, time) = (event.stream.unwrap_or(POOL), Micros(event.time_ns));
        self.put(format_args!(
            "\"ph\":\"i\",\"s\":\"t\",\"tid\":{lane},\"ts\":{time},\"name\":\"{name}\",\
             \"args\":{{{args}}}"
        ));
    }

    fn event(&mut self, event: &Event, number: usize) {
        match event.action {
            Action::Allocate { address, bytes, requested, hit, tag } => {
                let name = if hit { "allocate (hit)" } else { "allocate (miss)" };
                self.of_buffer(event, name, [address, bytes, requested], tag);
            }
            Action::Free { address, bytes, requested, tag } => {
                self.of_buffer(event, "free", [address, bytes, requested], tag);
            }
            Action::SetTag { address, tag } => {
                let tag = OfTag(",\"tag\":\"", Some(tag), "\"");
                let args = format_args!("\"address\":\"{address:#x}\"{tag}");
                self.instant(event, "set tag", args);
            }
            Action::Steal { address, bytes, from, waited } => {
                let name = if waited { "steal (with a wait)" } else { "steal (in order)" };
                let args = format_args!(
                    "\"address\":\"{address:#x}\",\"bytes\":{bytes},\"from_stream\":{from}"
                );
                self.instant(event, name, args);
            }
            Action::Wait { on } => self.wait(event, on, number),
            Action::Grow { reserved, remapped, revived } => {
                let args = format_args!(
                    "\"reserved\":{reserved},\"remapped\":{remapped},\"revived\":{revived}"
                );
                self.instant(event, "grow", args);
            }
            Action::Trim { bytes } => {
                self.instant(event, "trim", format_args!("\"bytes\":{bytes}"));
            }
            Action::ScopeBegin { scope } => self.scope(event, scope, 'b', format_args!("")),
            Action::ScopeEnd { scope, freed, bytes, clean, deferred } => {
                let args = format_args!(
                    "\"freed\":{freed},\"bytes\":{bytes},\"clean\":{clean},\"deferred\":{deferred}"
                );
                self.scope(event, scope, 'e', args);
            }
        }
    }

    fn of_buffer(
        &mut self,
        event: &Event,
        name: &str,
        [address, bytes, requested]: [u64; 3],
        tag: Option<Tag>,
    ) {
        let tag = OfTag(",\"tag\":\"", tag, "\"");
        let args = format_args!(
            "\"address\":\"{address:#x}\",\"bytes\":{bytes},\"requested\":{requested}{tag}"
        );
        self.instant(event, name, args);
    }

    /// Scopes overlap as they like: they are spans beside the lanes.
    fn scope(&mut self, event: &Event, scope: u64, phase: char, args: fmt::Arguments<'_>) {
        let time = Micros(event.time_ns);
        self.put(format_args!(
            "\"ph\":\"{phase}\",\"cat\":\"scope\",\"id\":{scope},\"tid\":{POOL},\"ts\":{time},\
             \"name\":\"quiescent scope\",\"args\":{{{args}}}"
        ));
    }

    /// A short bar on both lanes, and an arrow from one to the other.
    fn wait(&mut self, event: &Event, on: u64, number: usize) {
        let taker = event.stream.unwrap_or(POOL);
        let from = event.time_ns.saturating_sub(SHOWN_NS);
        let (from, to, shown) = (Micros(from), Micros(event.time_ns), Micros(SHOWN_NS));
        self.put(format_args!(
            "\"ph\":\"X\",\"tid\":{on},\"ts\":{from},\"dur\":{shown},\"name\":\"waited for\",\
             \"args\":{{\"by_stream\":{taker}}}"
        ));
        self.put(format_args!(
            "\"ph\":\"X\",\"tid\":{taker},\"ts\":{to},\"dur\":{shown},\"name\":\"wait\",\
             \"args\":{{\"on_stream\":{on}}}"
        ));
        for (phase, lane, time) in [('s', on, from), ('f', taker, to)] {
            self.put(format_args!(
                "\"ph\":\"{phase}\",\"bp\":\"e\",\"cat\":\"wait\",\"id\":{number},\"tid\":{lane},\
                 \"ts\":{time},\"name\":\"wait\""
            ));
        }
    }
}

/// A time in the format's unit, to the nanosecond.
#[derive(Clone, Copy)]
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// A tag as part of a JSON text, between two others; without a tag nothing at all.
struct OfTag(&'static str, Option<Tag>, &'static str);

impl fmt::Display for OfTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OfTag(before, Some(tag), after) = self else { return Ok(()) };
        f.write_str(before)?;
        for letter in tag.text().chars() {
            match letter {
                '"' | '\\' => write!(f, "\\{letter}")?,
                '\0'..' ' => write!(f, "\\u{:04x}", u32::from(letter))?,
                _ => f.write_char(letter)?,
            }
        }
        f.write_str(after)
    }
}

//! A history as a trace that Perfetto and Chrome open: <https://ui.perfetto.dev>, `chrome://tracing`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use super::{Action, Event, History};

/// How long a lane shows something that takes no time of its own, in nanoseconds: an arrow needs something
/// at its ends.
const SHOWN_NS: u64 = 200;
/// The lane of the pool's own events. No stream has this number.
const POOL: u64 = 0;

impl History {
    /// The history as JSON of Chrome's trace format: a lane for each stream and one for the pool, an arrow
    /// for each wait, a graph of the bytes in use, and the scopes as spans. Times are those of the host:
    /// when a wait was queued, not when the device came to it.
    ///
    /// Of buffers that are older than the history's beginning only the free is known: the graph begins
    /// with them in use.
    pub fn to_perfetto(&self) -> String {
        let text = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
        let mut trace = Trace { text };
        self.lanes(&mut trace);
        let mut in_use = self.in_use_before();
        trace.counter(self.events.first().map_or(0, |event| event.time_ns), in_use);
        for (number, event) in self.events.iter().enumerate() {
            trace.event(event, number);
            match event.action {
                Action::Allocate { bytes, .. } => in_use += bytes,
                Action::Free { bytes, .. } => in_use = in_use.saturating_sub(bytes),
                _ => continue,
            }
            trace.counter(event.time_ns, in_use);
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

    /// The bytes of buffers that were in use before the first event, as far as they have been freed since.
    fn in_use_before(&self) -> u64 {
        let mut allocated = BTreeSet::new();
        let mut before = 0;
        for event in &self.events {
            match event.action {
                Action::Allocate { address, .. } => {
                    allocated.insert(address);
                }
                Action::Free { address, bytes, .. } if !allocated.remove(&address) => {
                    before += bytes;
                }
                _ => {}
            }
        }
        before
    }
}

/// The JSON, as far as it is written. All texts are the crate's own, and need no escapes.
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

    fn counter(&mut self, time_ns: u64, in_use: u64) {
        let time = Micros(time_ns);
        self.put(format_args!(
            "\"ph\":\"C\",\"ts\":{time},\"name\":\"in use\",\"args\":{{\"bytes\":{in_use}}}"
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
            Action::Allocate { address, bytes, requested, hit } => {
                let name = if hit { "allocate (hit)" } else { "allocate (miss)" };
                let args = format_args!(
                    "\"address\":\"{address:#x}\",\"bytes\":{bytes},\"requested\":{requested}"
                );
                self.instant(event, name, args);
            }
            Action::Free { address, bytes, requested } => {
                let args = format_args!(
                    "\"address\":\"{address:#x}\",\"bytes\":{bytes},\"requested\":{requested}"
                );
                self.instant(event, "free", args);
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

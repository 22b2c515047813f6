//! What PyTorch has recorded, as a trace: the events of `torch.cuda.memory._snapshot()`, pickled.
//!
//! A program frees at `free_requested`; `free_completed`, which may come much later, is the allocator's own
//! affair. What is freed, or lives in the end, with no event of its allocation was there before the record
//! began, and is allocated first of all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use serde_pickle::{DeOptions, HashableValue, Value};

use super::common::cli::Outcome;
use super::trace::{Builder, Trace};

type Dict = BTreeMap<HashableValue, Value>;

/// What a pickle of protocol 2 or later begins with, and no text.
const PROTO: u8 = 0x80;

/// Whether a file is meant to be a pickle.
pub(crate) fn is_pickle(bytes: &[u8]) -> bool {
    bytes.first() == Some(&PROTO)
}

/// What is wrong with a snapshot, and with which.
#[derive(Debug)]
pub(crate) struct BadSnapshot {
    pub(crate) file: String,
    pub(crate) flaw: Flaw,
}

#[derive(Debug)]
pub(crate) enum Flaw {
    /// It cannot be read as a pickle.
    Pickle(serde_pickle::Error),
    /// The pickle is of something else.
    Shape(String),
    /// No device has an event.
    NoEvent,
    /// A trace is of one device, and these have events.
    Devices(Vec<usize>),
    /// An event is not what it should be.
    Event { device: usize, event: usize, what: String },
    /// A block of the memory's last state is not.
    Block { segment: usize, block: usize, what: String },
}

impl fmt::Display for BadSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file)?;
        match &self.flaw {
            Flaw::Pickle(error) => write!(f, "this is no pickle, or a part of one ({error})"),
            Flaw::Shape(what) => write!(f, "this is no snapshot of PyTorch's memory: {what}"),
            Flaw::NoEvent => f.write_str(
                "a snapshot with no event: call torch.cuda.memory._record_memory_history() first",
            ),
            Flaw::Devices(devices) => {
                write!(f, "devices {devices:?} have events, and a trace is of one device")
            }
            Flaw::Event { device, event, what } => {
                write!(f, "device {device}, event {event}: {what}")
            }
            Flaw::Block { segment, block, what } => {
                write!(f, "segment {segment}, block {block}: {what}")
            }
        }
    }
}

impl std::error::Error for BadSnapshot {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.flaw {
            Flaw::Pickle(error) => Some(error),
            _ => None,
        }
    }
}

/// Reads a pickled snapshot as a trace. `file` is what errors call it.
pub(crate) fn read(name: &str, file: &str, bytes: &[u8]) -> Outcome<Trace> {
    trace(name, bytes).map_err(|flaw| BadSnapshot { file: file.to_owned(), flaw }.into())
}

/// An allocation or a free of the program's.
#[derive(Clone, Copy, Debug)]
struct Act {
    /// Its place among the device's events.
    event: usize,
    frees: bool,
    address: u64,
    bytes: u64,
    /// The driver's handle.
    stream: u64,
}

fn trace(name: &str, bytes: &[u8]) -> Result<Trace, Flaw> {
    // An object of a class that is not known here is not what is looked for.
    let options = DeOptions::new().replace_unresolved_globals();
    let snapshot = serde_pickle::value_from_slice(bytes, options).map_err(Flaw::Pickle)?;
    let snapshot = dict(&snapshot).map_err(Flaw::Shape)?;
    let traces = list(snapshot, "device_traces").map_err(Flaw::Shape)?;
    let devices: Vec<usize> = (0..traces.len())
        .filter(|&at| !matches!(&traces[at], Value::List(own) if own.is_empty()))
        .collect();
    let device = match devices[..] {
        [] => return Err(Flaw::NoEvent),
        [device] => device,
        _ => return Err(Flaw::Devices(devices)),
    };
    let Value::List(events) = &traces[device] else {
        return Err(Flaw::Shape(format!("the trace of device {device} is no list")));
    };
    let mut acts = Vec::new();
    for (event, fields) in events.iter().enumerate() {
        let wrong = |what| Flaw::Event { device, event, what };
        acts.extend(act(event, fields).map_err(wrong)?);
    }
    if acts.is_empty() {
        return Err(Flaw::NoEvent);
    }
    let mut streams = Streams::default();
    let mut builder = Builder::default();
    for own in older(snapshot, device, &acts)? {
        let stream = streams.number(own.stream).map_err(Flaw::Shape)?;
        builder.allocate(own.address, own.bytes, stream).map_err(Flaw::Shape)?;
    }
    for own in acts {
        let wrong = |what| Flaw::Event { device, event: own.event, what };
        let done = match own.frees {
            true => builder.free(own.address, own.bytes),
            false => streams
                .number(own.stream)
                .and_then(|stream| builder.allocate(own.address, own.bytes, stream)),
        };
        done.map_err(wrong)?;
    }
    Ok(builder.finish(name))
}

/// What an event says that the program has done, if anything.
fn act(event: usize, fields: &Value) -> Result<Option<Act>, String> {
    let fields = dict(fields)?;
    let frees = match text(fields, "action")? {
        "alloc" => false,
        "free_requested" => true,
        // The allocator's own: segments, completed frees, and what later versions add.
        _ => return Ok(None),
    };
    let (address, bytes) = (number(fields, "addr")?, number(fields, "size")?);
    Ok(Some(Act { event, frees, address, bytes, stream: number(fields, "stream")? }))
}

/// What was there before the first event: what is freed first and allocated later if at all, and what lives in
/// the end though no event tells of it.
fn older(snapshot: &Dict, device: usize, acts: &[Act]) -> Result<Vec<Act>, Flaw> {
    let mut seen = BTreeSet::new();
    let first = acts.iter().filter(|own| seen.insert(own.address) && own.frees);
    let mut older: Vec<Act> = first.copied().collect();
    let segments = match snapshot.get(&key("segments")) {
        Some(_) => list(snapshot, "segments").map_err(Flaw::Shape)?,
        None => &[],
    };
    for (segment, fields) in segments.iter().enumerate() {
        let shape = |what| Flaw::Shape(format!("segment {segment}: {what}"));
        let fields = dict(fields).map_err(shape)?;
        if number(fields, "device").map_err(shape)? != device as u64 {
            continue;
        }
        let stream = number(fields, "stream").map_err(shape)?;
        for (block, fields) in list(fields, "blocks").map_err(shape)?.iter().enumerate() {
            let wrong = |what| Flaw::Block { segment, block, what };
            let fields = dict(fields).map_err(wrong)?;
            if text(fields, "state").map_err(wrong)? != "active_allocated" {
                continue;
            }
            let address = number(fields, "address").map_err(wrong)?;
            if seen.insert(address) {
                let bytes = number(fields, "requested_size").map_err(wrong)?;
                older.push(Act { event: 0, frees: false, address, bytes, stream });
            }
        }
    }
    Ok(older)
}

/// Streams by the driver's handles, numbered as they come.
#[derive(Default)]
struct Streams {
    numbers: HashMap<u64, usize>,
}

impl Streams {
    fn number(&mut self, handle: u64) -> Result<usize, String> {
        let next = self.numbers.len();
        let number = *self.numbers.entry(handle).or_insert(next);
        // As many as a trace's lines can name.
        let most = usize::from(u16::MAX);
        if number <= most { Ok(number) } else { Err(format!("more than {most} streams")) }
    }
}

fn key(name: &str) -> HashableValue {
    HashableValue::String(name.to_owned())
}

fn dict(value: &Value) -> Result<&Dict, String> {
    match value {
        Value::Dict(dict) => Ok(dict),
        other => Err(format!("{} where a dict is wanted", kind(other))),
    }
}

fn field<'a>(dict: &'a Dict, name: &str) -> Result<&'a Value, String> {
    dict.get(&key(name)).ok_or_else(|| format!("there is no `{name}`"))
}

fn list<'a>(dict: &'a Dict, name: &str) -> Result<&'a [Value], String> {
    match field(dict, name)? {
        Value::List(list) => Ok(list),
        other => Err(format!("`{name}` is {} where a list is wanted", kind(other))),
    }
}

fn text<'a>(dict: &'a Dict, name: &str) -> Result<&'a str, String> {
    match field(dict, name)? {
        Value::String(text) => Ok(text),
        other => Err(format!("`{name}` is {} where a str is wanted", kind(other))),
    }
}

/// A number of 64 bits without a sign.
fn number(dict: &Dict, name: &str) -> Result<u64, String> {
    let value = field(dict, name)?;
    let number = match value {
        Value::I64(number) => u64::try_from(*number).ok(),
        Value::Int(number) => u64::try_from(number).ok(),
        other => return Err(format!("`{name}` is {} where an int is wanted", kind(other))),
    };
    number.ok_or_else(|| format!("`{name}` is {value}, which is not within 64 bits without a sign"))
}

/// What Python calls it.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::None => "None",
        Value::Bool(_) => "a bool",
        Value::I64(_) | Value::Int(_) => "an int",
        Value::F64(_) => "a float",
        Value::Bytes(_) => "bytes",
        Value::String(_) => "a str",
        Value::List(_) => "a list",
        Value::Tuple(_) => "a tuple",
        Value::Set(_) | Value::FrozenSet(_) => "a set",
        Value::Dict(_) => "a dict",
    }
}

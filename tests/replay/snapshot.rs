//! What PyTorch has recorded, read as a trace. `snapshot.py` makes the file.

use std::fs;
use std::path::{Path, PathBuf};

use serde_pickle::{DeOptions, SerOptions, Value};

use super::replay::common::cli::{Failure, Outcome};
use super::replay::common::device::Sim;
use super::replay::options::Options;
use super::replay::snapshot::{BadSnapshot, Flaw, read};
use super::replay::trace::{Operation, Trace};
use super::replay::{replay, run};
use super::{parse, shipped_file};

const MIB: usize = 1 << 20;

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replay/snapshot.pickle")
}

fn bytes() -> Vec<u8> {
    fs::read(file()).expect("the repository has it")
}

fn flaw(outcome: Outcome<Trace>) -> Flaw {
    let Err(Failure::Run(error)) = outcome else { panic!("not refused") };
    let error = error.downcast::<BadSnapshot>().expect("a snapshot's own error");
    assert_eq!(error.file, "s.pickle");
    assert!(error.to_string().starts_with("s.pickle: "), "{error}");
    error.flaw
}

#[test]
fn the_events_of_the_program_are_the_trace() {
    let trace = Trace::read(&file()).expect("it can be read");
    let allocate = |slot, bytes, stream| Operation::Allocate { slot, bytes, stream };
    let free = |slot| Operation::Free { slot };
    let expected = [
        // What was there before: the cache, which is freed, and the weights, which no event tells of.
        allocate(0, 12 * MIB - 8, 0),
        allocate(1, 20 * MIB - 4000, 0),
        allocate(2, 10 * MIB - 100, 0),
        allocate(3, 3 * MIB, 1),
        free(0),
        // When it is asked for, and not when it is complete.
        free(2),
        allocate(2, 16 * MIB, 0),
        allocate(0, 8 * MIB, 0),
        free(3),
        allocate(3, MIB, 1),
        free(2),
    ];
    assert_eq!((trace.name.as_str(), trace.operations.as_slice()), ("snapshot", &expected[..]));
    assert_eq!((trace.streams, trace.slots), (2, 4));
    let peak = (20 * MIB - 4000) + 16 * MIB + 8 * MIB + 3 * MIB;
    assert_eq!(trace.peak_live_bytes, peak as u64);
    let options = Options::default();
    let replayed = replay(&options, &trace, &Sim::new(options.purpose())).expect("no error");
    assert_eq!(replayed.hazards, Some(0));
}

/// The pool's own snapshots have the events of its history: those of the warm pass, at whose end the
/// buffers are still there that the trace leaves.
#[test]
fn the_pools_own_snapshots_are_read_back() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("read-back.pickle");
    let arguments = ["--kernels", "none", "--snapshot", path.to_str().expect("UTF-8")];
    let mut options = parse(&arguments).expect("right");
    let (trace, packed) = (Trace::read(&shipped_file()).expect("shipped"), shipped_file());
    for source in [packed, file()] {
        options.files = vec![source.clone()];
        run(Some(options.clone())).expect("no error");
        let source = Trace::read(&source).expect("readable");
        let back = Trace::read(&path).expect("what was written can be read");
        let live = |trace: &Trace| {
            let count = |frees| {
                trace
                    .operations
                    .iter()
                    .filter(|own| matches!(own, Operation::Free { .. }) == frees)
                    .count()
            };
            count(false) - count(true)
        };
        assert_eq!(live(&back), live(&source), "what lives in the end");
        // Both passes, and between them the end of the first.
        assert!(back.operations.len() >= 2 * source.operations.len());
        assert_eq!(back.peak_live_bytes, source.peak_live_bytes);
    }
    assert!(trace.operations.len() > 6000);
}

#[test]
fn a_gzipped_snapshot_is_unpacked() {
    use std::io::Write as _;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packed.pickle.gz");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&bytes()).expect("memory");
    fs::write(&path, packed.finish().expect("memory")).expect("a file");
    let packed = Trace::read(&path).expect("it can be read");
    assert_eq!(packed.operations, Trace::read(&file()).expect("it can be read").operations);
}

#[test]
fn a_part_of_a_file_is_told_and_breaks_nothing() {
    let bytes = bytes();
    for length in 1..bytes.len() {
        let told = flaw(read("s", "s.pickle", &bytes[..length]));
        assert!(matches!(told, Flaw::Pickle(_)), "{length}: {told:?}");
    }
    // Whatever a damaged byte does, it is no panic.
    let mut told = 0;
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        told += usize::from(read("s", "s.pickle", &damaged).is_err());
    }
    assert!(told > bytes.len() / 10, "{told} of {} were told", bytes.len());
}

type Dict = std::collections::BTreeMap<serde_pickle::HashableValue, Value>;

fn key(name: &str) -> serde_pickle::HashableValue {
    serde_pickle::HashableValue::String(name.to_owned())
}

fn dict(value: &mut Value) -> &mut Dict {
    let Value::Dict(dict) = value else { panic!("not a dict: {value}") };
    dict
}

fn field<'a>(value: &'a mut Value, name: &str) -> &'a mut Value {
    dict(value).get_mut(&key(name)).unwrap_or_else(|| panic!("no {name}"))
}

fn item(value: &mut Value, at: usize) -> &mut Value {
    let Value::List(list) = value else { panic!("not a list: {value}") };
    &mut list[at]
}

/// What is wrong with the snapshot when something in it is changed.
fn changed(change: impl FnOnce(&mut Value)) -> Flaw {
    let options = DeOptions::new();
    let mut snapshot = serde_pickle::value_from_slice(&bytes(), options).expect("a pickle");
    change(&mut snapshot);
    let bytes = serde_pickle::value_to_vec(&snapshot, SerOptions::new()).expect("memory");
    flaw(read("s", "s.pickle", &bytes))
}

/// An event of the first device: 1 and 3 are allocations, 5 is the end of a free, 12 and 15 are frees.
fn event(snapshot: &mut Value, at: usize) -> &mut Value {
    item(item(field(snapshot, "device_traces"), 0), at)
}

#[test]
fn what_is_wrong_is_told_by_its_place() {
    let words = |flaw: Flaw| match flaw {
        Flaw::Event { device, event, what } => (device, event, what),
        other => panic!("{other:?}"),
    };
    type Case<'a> = (&'a dyn Fn(&mut Value), usize, &'a str);
    let cases: [Case; 8] = [
        (&|own| drop(dict(event(own, 1)).remove(&key("addr"))), 1, "there is no `addr`"),
        (&|own| drop(dict(event(own, 5)).remove(&key("action"))), 5, "there is no `action`"),
        (
            &|own| *field(event(own, 3), "size") = Value::I64(-1),
            3,
            "`size` is -1, which is not within",
        ),
        (
            &|own| *field(event(own, 3), "stream") = Value::F64(0.5),
            3,
            "`stream` is a float where an int",
        ),
        (&|own| *field(event(own, 3), "action") = Value::None, 3, "`action` is None where a str"),
        (&|own| *event(own, 12) = Value::Tuple(vec![]), 12, "a tuple where a dict is wanted"),
        (
            &|own| *field(event(own, 15), "size") = Value::I64(7),
            15,
            "as 7 bytes, and was allocated as",
        ),
        (
            &|own| {
                let address = field(event(own, 1), "addr").clone();
                *field(event(own, 3), "addr") = address;
            },
            3,
            "is allocated while it is live",
        ),
    ];
    for (change, at, wanted) in cases {
        let (device, event, what) = words(changed(change));
        assert_eq!((device, event), (0, at), "{what}");
        assert!(what.contains(wanted), "{wanted:?} is not in: {what}");
    }
    let in_block = changed(|own| {
        let blocks = field(item(field(own, "segments"), 0), "blocks");
        *field(item(blocks, 0), "requested_size") = Value::None;
    });
    assert!(matches!(in_block, Flaw::Block { segment: 0, block: 0, .. }), "{in_block:?}");
}

#[test]
fn what_is_no_trace_of_one_device_is_told() {
    let shape = |flaw: Flaw, wanted: &str| match flaw {
        Flaw::Shape(what) => assert!(what.contains(wanted), "{wanted:?} is not in: {what}"),
        other => panic!("{other:?}"),
    };
    shape(changed(|own| *own = Value::List(vec![])), "a list where a dict is wanted");
    shape(changed(|own| drop(dict(own).remove(&key("device_traces")))), "no `device_traces`");
    shape(changed(|own| *field(own, "device_traces") = Value::I64(3)), "an int where a list");
    shape(changed(|own| *item(field(own, "device_traces"), 0) = Value::None), "is no list");
    shape(
        changed(|own| drop(dict(item(field(own, "segments"), 2)).remove(&key("stream")))),
        "segment 2: there is no `stream`",
    );
    let empty = changed(|own| *item(field(own, "device_traces"), 0) = Value::List(vec![]));
    assert!(matches!(empty, Flaw::NoEvent), "{empty:?}");
    let two = changed(|own| {
        let traces = field(own, "device_traces");
        *item(traces, 1) = item(traces, 0).clone();
    });
    assert!(matches!(&two, Flaw::Devices(devices) if *devices == [0, 1]), "{two:?}");
}

//! The program in `examples/ring`, run in small form on simulated devices: what it counts, and what it says to
//! wrong input. Times are not looked at.
#![cfg(all(feature = "sim", not(loom)))]

#[path = "../examples/ring/main.rs"]
#[allow(dead_code, reason = "the program's `main` is not run")]
mod ring;

use ring::exchange;
use ring::measure::Measured;
use ring::options::Options;
use ring::report;

fn small(devices: usize) -> Options {
    Options { devices: Some(devices), steps: 6, bytes: 4 << 20, rounds: 2, ..Options::default() }
}

fn measured(devices: usize) -> [Measured; 3] {
    let measured = exchange(&small(devices)).expect("no error");
    let names: Vec<_> = measured.iter().map(|own| own.name).collect();
    assert_eq!(names, ["streampool copy", "streampool peer", "driver"]);
    measured.try_into().expect("three")
}

#[test]
fn a_ring_of_any_size_is_right_and_makes_no_more_calls_than_it_needs() {
    for devices in [1, 2, 3, 8] {
        let all = measured(devices);
        for own in &all {
            assert_eq!((own.wrong, own.hazards, own.failure()), (0, Some(0), None), "{}", own.name);
            assert_eq!((own.ranks, own.shared), (devices, false));
        }
        let [copy, peer, driver] = all;
        // An event and a wait for each time that a buffer is handed to another device; a copy goes by way of
        // a stream on which it comes in, also where there is one device.
        let handed = 6 * devices as u64;
        let peers = if devices == 1 { 0 } else { handed };
        // (The last is moved there only after the round.)
        let both = 2 * handed - devices as u64;
        for (own, least, most) in [(&copy, both, 2 * both), (&peer, peers, 2 * peers)] {
            assert_eq!((own.calls.synchronizes, own.calls.mapping_calls), (0, 0), "{}", own.name);
            assert!(own.calls.stream_waits >= least, "{:?}", own.calls);
            assert!(own.calls.event_records <= most, "{:?}", own.calls);
        }
        // Before a buffer is handed over, and before it is freed.
        assert!(driver.calls.synchronizes >= 12 * devices as u64, "{:?}", driver.calls);
        let peak = |own: &Measured| own.memory_peak.expect("the devices tell") >> 20;
        assert!(peak(&copy) <= 40 && peak(&peer) <= 24, "{} and {}", peak(&copy), peak(&peer));
    }
}

#[test]
fn a_line_of_json_has_the_fields_that_scripts_read() {
    let options = small(2);
    let json = report::json(&options, &exchange(&options).expect("no error"));
    assert_eq!(json.lines().count(), 3);
    let fields = [
        "allocator",
        "backend",
        "devices",
        "shared",
        "steps",
        "bytes",
        "step_us",
        "event_records",
        "stream_waits",
        "synchronizes",
        "mapping_calls",
        "memory_peak",
        "wrong",
        "hazards",
    ];
    for line in json.lines() {
        let object: serde_json::Value = serde_json::from_str(line).expect("an object");
        let names: Vec<&String> = object.as_object().expect("an object").keys().collect();
        assert_eq!(names, fields);
        assert_eq!((&object["devices"], &object["steps"]), (&2.into(), &6.into()));
    }
    let table = report::table(&options, &exchange(&options).expect("no error"));
    assert!(table.contains("2 devices.") && table.contains("streampool peer"), "{table}");
}

#[test]
fn a_wrong_command_line_is_told() {
    let parse = |arguments: &[&str]| {
        let arguments = std::iter::once("ring").chain(arguments.iter().copied());
        Options::parse(lexopt::Parser::from_iter(arguments))
    };
    let words = |arguments| parse(arguments).expect_err("wrong").to_string();
    assert!(words(&["--devices", "65"]).contains("at most 64"));
    assert!(words(&["--devices", "0"]).contains("at least 1"));
    assert!(words(&["--bytes", "6"]).contains("whole words"));
    assert!(words(&["--backend", "tpu"]).contains("this program runs on: sim"));
    let parsed = parse(&["--devices", "5", "--bytes", "1M", "--json"]).unwrap().unwrap();
    assert_eq!((parsed.devices, parsed.bytes, parsed.json), (Some(5), 1 << 20, true));
    assert!(parse(&["--help"]).expect("help is no error").is_none());
}

//! The programs in `examples/`, run in small form: what they count, and what they say to wrong input.
//!
//! Times are not looked at: only counts are the same on every machine.
#![cfg(all(feature = "sim", not(loom)))]
#![allow(clippy::duplicate_mod, reason = "each example has the common files as its own modules")]

#[path = "../examples/clear_pool/main.rs"]
#[allow(dead_code, reason = "the program's `main` is not run")]
mod clear_pool;
#[path = "../examples/replay/main.rs"]
#[allow(dead_code, reason = "the program's `main` is not run")]
mod replay;

mod clearing {
    use super::clear_pool::common::device::{Purpose, Sim};
    use super::clear_pool::measure::{Measured, measure};
    use super::clear_pool::modes::Mode;
    use super::clear_pool::options::Options;
    use super::clear_pool::{demo, report};

    /// The real buffers and streams, and a few layers.
    fn options() -> Options {
        Options { layers: 3, ..Options::default() }
    }

    fn measured() -> Vec<Measured> {
        measure(&options(), |purpose| Ok(Sim::new(purpose))).expect("no error")
    }

    #[test]
    fn each_mode_makes_the_driver_calls_that_it_must() {
        let measured = measured();
        let of = |mode| {
            let own = measured.iter().find(|own| own.mode == mode).expect("every mode has run");
            assert_eq!(own.hazards, Some(0), "{}", mode.name());
            let calls = own.calls;
            (calls.event_records, calls.stream_waits, calls.event_queries, calls.synchronizes)
        };
        assert_eq!(of(Mode::PairPerFree), (4816, 4816, 0, 0));
        assert_eq!(of(Mode::Flag), (0, 0, 0, 1));
        assert_eq!(of(Mode::Lazy), (0, 0, 0, 0));
        for mode in [Mode::Scope, Mode::Release] {
            assert_eq!(of(mode), (1, 0, 1, 1), "{}", mode.name());
        }
    }

    #[test]
    fn the_flag_is_unsafe_and_the_scope_is_not() {
        let options = Options { buffers: 100, streams: 7, ..options() };
        let hazards =
            |mode| demo::run(&options, Sim::new(Purpose::Check), mode).expect("no error").hazards;
        assert_eq!(hazards(Mode::Scope), Some(0));
        assert!(hazards(Mode::Flag) > Some(0), "the demonstration shows nothing");
    }

    #[test]
    fn a_line_of_json_has_the_fields_that_scripts_read() {
        let options = Options { layers: 1, buffers: 8, streams: 2, ..options() };
        let measured = measure(&options, |purpose| Ok(Sim::new(purpose))).expect("no error");
        let json = report::json(&options, &measured);
        assert_eq!(json.lines().count(), Mode::ALL.len());
        let fields = [
            "mode",
            "backend",
            "layers",
            "buffers",
            "streams",
            "event_records",
            "stream_waits",
            "event_queries",
            "synchronizes",
            "clear_ms",
            "hazards",
        ];
        for line in json.lines() {
            let object: serde_json::Value = serde_json::from_str(line).expect("an object");
            let names: Vec<&String> = object.as_object().expect("an object").keys().collect();
            assert_eq!(names, fields);
        }
    }

    #[test]
    fn a_wrong_command_line_is_told() {
        let parse = |arguments: &[&str]| {
            let arguments = std::iter::once("clear_pool").chain(arguments.iter().copied());
            Options::parse(lexopt::Parser::from_iter(arguments))
        };
        let words = |arguments| parse(arguments).expect_err("wrong").to_string();
        assert!(words(&["--backend", "tpu"]).contains("this program runs on: sim"));
        assert!(words(&["--layers", "0"]).contains("at least 1"));
        assert!(words(&["--json", "--unsafe-demo"]).contains("no JSON"));
        assert!(words(&["--nonsense"]).contains("--nonsense"));
        assert!(parse(&["--help"]).expect("help is no error").is_none());
    }
}

mod replaying {
    use std::fs;
    use std::path::Path;

    use super::replay::common::cli::ByteSize;
    use super::replay::common::device::Sim;
    use super::replay::options::{Kernels, Limit, Options};
    use super::replay::report::Replayed;
    use super::replay::trace::{Operation, Trace};
    use super::replay::{replay, report, run};

    fn shipped(options: &Options) -> Replayed {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/streams.csv.gz");
        let trace = Trace::read(&file).expect("the shipped trace can be read");
        assert_eq!((trace.operations.len(), trace.streams), (6488, 8));
        assert_eq!(trace.peak_live_bytes, 693_551_104);
        replay(options, &trace, &Sim::new(options.purpose())).expect("no error")
    }

    #[test]
    fn the_shipped_trace_with_kernels_has_no_hazard() {
        let replayed = shipped(&Options::default());
        assert_eq!(replayed.hazards, Some(0), "{:?}", replayed.first_hazard);
        // Without waits or growth beyond the peak nothing would have been in flight.
        let own = replayed.cold;
        assert!(own.calls.stream_waits > 0 || own.stats[1].growths > 20, "{own:?}");
    }

    #[test]
    fn the_shipped_trace_alone_stays_small_and_hardly_waits() {
        let options = Options { kernels: Kernels::None, ..Options::default() };
        let replayed = shipped(&options);
        let taken = replayed.taken_over_live();
        assert!((1.0..=1.15).contains(&taken), "{taken} times the live bytes were taken");
        let waits = replayed.cold.calls.stream_waits;
        assert!(waits * 20 <= 6488, "{waits} waits in 6488 operations");
        let json = report::json(&options, &replayed);
        assert_eq!(json["device_peak_bytes"], replayed.device_peak_bytes);
        assert_eq!(json.as_object().map(|object| object.len()), Some(19));
    }

    #[test]
    fn what_happened_is_written_to_files() {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let [snapshot, perfetto] = ["replay.pickle", "replay.json"].map(|name| folder.join(name));
        let trace = folder.join("exported.csv");
        let more = "1,allocate,b0,4194304,0\n2,free,a0,512,1\n";
        fs::write(&trace, format!("{START}{more}")).expect("the folder can be written");
        let arguments = [
            "replay".as_ref(),
            "--snapshot".as_ref(),
            snapshot.as_os_str(),
            "--perfetto".as_ref(),
            perfetto.as_os_str(),
            "--json".as_ref(),
            trace.as_os_str(),
        ];
        let options = Options::parse(lexopt::Parser::from_iter(arguments)).expect("good options");
        run(options).expect("no error");
        let pickle = fs::read(&snapshot).expect("it is written");
        assert!(pickle.starts_with(b"\x80\x02}") && pickle.ends_with(b"."));
        let has = |words: &[u8]| pickle.windows(words.len()).any(|own| own == words);
        assert!(has(b"active_allocated") && has(b"free_completed"));
        let text = fs::read_to_string(&perfetto).expect("it is written");
        let events: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let named = |name: &str| {
            let events = events["traceEvents"].as_array().expect("a list of events");
            events.iter().filter(|event| event["name"] == name).count()
        };
        let allocated = named("allocate (hit)") + named("allocate (miss)");
        // Of both passes; at the end of the second one buffer is there still.
        assert_eq!((allocated, named("free")), (4, 3));
        let parser = lexopt::Parser::from_iter(["replay", "--snapshot", "a", "b.csv", "c.csv"]);
        assert!(Options::parse(parser).is_err());
    }

    const START: &str = "# a comment\nt_us,action,ptr,bytes,stream\n0,allocate,a0,512,1\n";

    fn parse(more: &str) -> Result<Trace, String> {
        let text = format!("{START}{more}");
        Trace::parse("t", "t.csv", text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_pointer_may_come_back_after_its_free() {
        let trace = parse("1,free,a0,512,1\n2,allocate,a0,256,0\n").expect("a good trace");
        let again = Operation::Allocate { slot: 0, bytes: 256, stream: 0 };
        assert_eq!(trace.operations[1..], [Operation::Free { slot: 0 }, again]);
        assert_eq!((trace.streams, trace.slots, trace.peak_live_bytes), (2, 1, 512));
    }

    #[test]
    fn a_malformed_line_is_told_by_file_and_number() {
        let cases = [
            ("1,free,b0,512,1\n", "b0 is freed, and was not allocated"),
            ("1,free,a0,512,1\n1,free,a0,512,1\n", "a0 is freed, and was not allocated"),
            ("1,free,a0,256,1\n", "freed as 256 bytes, and was allocated as 512"),
            ("1,allocate,a0,512,1\n", "a0 is allocated while it is live"),
            ("1,resize,a0,512,1\n", "`resize` where"),
            ("1,free,a0,512\n", "4 fields where 5"),
            ("soon,free,a0,512,1\n", "`soon` is no time"),
            ("1,free,xyz,512,1\n", "`xyz` is no hexadecimal pointer"),
            ("1,allocate,b0,-1,1\n", "`-1` is no number of bytes"),
            ("1,allocate,b0,1,70000\n", "`70000` is no stream number"),
        ];
        for (line, words) in cases {
            let error = parse(line).expect_err(line);
            let at = format!("t.csv:{}: ", 3 + line.lines().count());
            assert!(error.starts_with(&at) && error.contains(words), "{line:?}: {error}");
        }
        let error =
            Trace::parse("t", "t.csv", &b"0,allocate,a0,512,1\n"[..]).expect_err("no header");
        assert!(error.to_string().starts_with("t.csv:1: the header"), "{error}");
        let error = Trace::parse("t", "t.csv", &b"# nothing\n"[..]).expect_err("empty");
        assert!(error.to_string().contains("no operation"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_what_its_name_says_is_told() {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = folder.join("not_packed.csv.gz");
        fs::write(&file, START).expect("the folder can be written");
        let error = Trace::read(&file).expect_err("not gzip").to_string();
        assert!(error.contains("not_packed.csv.gz:1: this is no gzip file"), "{error}");
        let error = Trace::read(&folder.join("missing.csv")).expect_err("missing").to_string();
        assert!(error.contains("missing.csv: "), "{error}");
        let plain = folder.join("plain.csv");
        fs::write(&plain, START).expect("the folder can be written");
        assert_eq!(Trace::read(&plain).expect("a plain trace").name, "plain");
    }

    #[test]
    fn sizes_have_suffixes() {
        let bytes = |text: &str| text.parse::<ByteSize>().ok().map(|size| size.0);
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(
            [bytes("512K"), bytes("80MiB"), bytes("8g")],
            [Some(512 << 10), Some(80 << 20), Some(8 << 30)]
        );
        for wrong in ["", "0", "-1", "1.5G", "80Q", "M", "99999999999T"] {
            assert_eq!(bytes(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_limit_that_is_too_small_is_an_error_with_numbers() {
        let trace = parse("1,allocate,b0,4194304,0\n").expect("a good trace");
        let options = Options { limit: Limit::Bytes(2 << 20), ..Options::default() };
        let outcome = replay(&options, &trace, &Sim::new(options.purpose()));
        let error = outcome.err().expect("4 MiB do not fit into 2").to_string();
        assert!(
            error.starts_with("cold pass, operation 2 of the trace: over the pool's limit"),
            "{error}"
        );
    }

    #[test]
    fn a_trace_must_be_named() {
        let parser = lexopt::Parser::from_iter(["replay", "--json"]);
        let error = Options::parse(parser).expect_err("no file").to_string();
        assert!(error.contains("traces/streams.csv.gz"), "{error}");
    }
}

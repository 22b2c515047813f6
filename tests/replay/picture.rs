//! The picture of a replay.

use std::fs;
use std::path::Path;

use super::replay::common::device::Sim;
use super::replay::options::Options;
use super::replay::plot::{self, Picture};
use super::replay::report::Replayed;
use super::replay::trace::Trace;
use super::replay::{replay, run};
use super::{parse, shipped, shipped_file};

fn drawn(trace: &Trace, arguments: &[&str]) -> (String, Replayed) {
    let options = parse(&[&["--plot", "unused.svg"], arguments].concat()).expect("right");
    let replayed = replay(&options, trace, &Sim::new(options.purpose())).expect("no error");
    let curves = replayed.curves.as_ref().expect("curves for the picture");
    let svg = plot::draw(&plot::title(&options, &replayed), curves).expect("it can be drawn");
    (svg, replayed)
}

/// The points of the lines of this colour.
fn points(svg: &str, colour: &str) -> usize {
    let stroke = format!("stroke=\"{colour}\"");
    let lines = svg.lines().filter(|line| line.contains("<polyline") && line.contains(&stroke));
    lines.map(|line| line.matches(',').count()).sum()
}

#[test]
fn the_shipped_trace_gives_the_same_picture_twice() {
    let (svg, replayed) = drawn(&shipped(), &[]);
    assert_eq!(svg, drawn(&shipped(), &[]).0);
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.len() < 200 << 10, "{} bytes", svg.len());
    let taken = format!("streams: {:.3} times the peak", replayed.taken_over_live());
    for words in [
        taken.as_str(),
        "backend sim, policy balanced, kernels: use",
        "MiB",
        "operations",
        "live: ",
        "in use: ",
        "reserved: ",
        "the warm pass begins",
    ] {
        assert!(svg.contains(words), "the picture does not say `{words}`");
    }
    // 6488 operations, 9 to a point, in two passes.
    for colour in ["#D55E00", "#0072B2"] {
        assert_eq!(points(&svg, colour), 2 * 721, "{colour}");
    }
}

#[test]
fn no_peak_is_lost_when_points_are_thinned_out() {
    let trace = shipped();
    let (_, replayed) = drawn(&trace, &["--kernels", "none"]);
    let curves = replayed.curves.expect("curves for the picture");
    assert!(curves.stride > 1);
    for (pass, points) in curves.passes.iter().enumerate().take(2) {
        let most = |of: fn(&super::replay::curves::Sample) -> u64| points.iter().map(of).max();
        assert_eq!(most(|sample| sample.live), Some(trace.peak_live_bytes), "pass {pass}");
        for sample in points {
            assert!(sample.live <= sample.in_use && sample.in_use <= sample.reserved, "{sample:?}");
        }
        if pass == 0 {
            assert_eq!(most(|sample| sample.reserved), Some(replayed.device_peak_bytes));
        }
    }
}

#[test]
fn a_short_trace_has_a_point_for_each_operation() {
    let text = "t_us,action,ptr,bytes,stream\n0,allocate,a0,1000,0\n1,allocate,b0,3000,0\n2,free,a0,1000,0\n";
    let trace = Trace::parse("t", "t.csv", text.as_bytes()).expect("a good trace");
    let curves = drawn(&trace, &[]).1.curves.expect("curves for the picture");
    let points: Vec<_> =
        curves.points().map(|(at, sample)| (at, sample.live, sample.in_use)).collect();
    let pass = [(0, 1000, 1024), (1, 4000, 1024 + 3072), (2, 3000, 3072)];
    assert_eq!(points[..3], pass);
    assert_eq!(points[3..], pass.map(|(at, live, in_use)| (at + 3, live, in_use)));
}

#[test]
fn what_cannot_be_written_is_told_before_the_replay() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for path in [folder.to_owned(), folder.join("no such folder/a.svg")] {
        let error = Picture::open(&path).err().expect("it cannot be written").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        // A limit that would fail it: the replay has not begun.
        let limit = super::replay::options::Limit::Bytes(1);
        let (plot, files) = (Some(path), vec![shipped_file()]);
        let options = Options { plot, files, limit, ..Options::default() };
        assert_eq!(run(Some(options)).expect_err("the same").to_string(), error);
    }
    let two = parse(&["other.csv", "--plot", "a.svg"]).expect_err("two traces, one picture");
    assert!(two.contains("--plot draws one trace"), "{two}");
}

#[test]
fn a_replay_that_fails_leaves_what_was_there() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (new, old) = (folder.join("new.svg"), folder.join("old.svg"));
    let _ = fs::remove_file(&new);
    fs::write(&old, "old").expect("the folder can be written");
    drop(Picture::open(&new).expect("a new file"));
    assert!(!new.exists());
    drop(Picture::open(&old).expect("a file that is there"));
    assert_eq!(fs::read_to_string(&old).expect("it can be read"), "old");
    Picture::open(&old).expect("a file that is there").write("x").expect("it can be written");
    assert_eq!(fs::read_to_string(&old).expect("it can be read"), "x");
}

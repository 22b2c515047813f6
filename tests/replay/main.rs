//! What a pool takes for programs: the recorded trace under a limit and as a picture, and programs of other
//! kinds that are made up here, so that nothing is fitted to what was recorded.
#![cfg(all(feature = "sim", not(loom)))]

#[path = "../../examples/replay/main.rs"]
#[allow(dead_code, reason = "the program's `main` is not run")]
mod replay;

mod limit;
mod made_up;
mod memory;
mod picture;
mod snapshot;

use std::path::{Path, PathBuf};

use replay::options::Options;
use replay::trace::Trace;

fn shipped_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/streams.csv.gz")
}

fn shipped() -> Trace {
    Trace::read(&shipped_file()).expect("the shipped trace can be read")
}

fn parse(arguments: &[&str]) -> Result<Options, String> {
    let arguments = ["replay", "some.csv"].into_iter().chain(arguments.iter().copied());
    match Options::parse(lexopt::Parser::from_iter(arguments)) {
        Ok(options) => Ok(options.expect("no help is asked for")),
        Err(error) => Err(error.to_string()),
    }
}

//! The command line: what every example's options have in common.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;
use std::str::FromStr;

/// Why an example ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line makes no sense.
    Usage(String),
    /// Something went wrong on the way.
    Run(Box<dyn Error>),
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl<E: Into<Box<dyn Error>>> From<E> for Failure {
    fn from(error: E) -> Failure {
        let error = error.into();
        match error.downcast::<lexopt::Error>() {
            Ok(error) => Failure::Usage(error.to_string()),
            Err(error) => Failure::Run(error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(words) => f.write_str(words),
            Failure::Run(error) => error.fmt(f),
        }
    }
}

/// Prints what was measured; what went wrong with it is the outcome.
pub(crate) fn present(report: &str, failures: impl Iterator<Item = String>) -> Outcome<()> {
    print!("{report}");
    let failures: Vec<_> = failures.collect();
    if failures.is_empty() { Ok(()) } else { Err(Failure::Run(failures.join("\n").into())) }
}

/// Ends a program: with 0, 1 for a failure, 2 for a command line that makes no sense.
pub(crate) fn end(name: &str, outcome: Outcome<()>) -> ExitCode {
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    eprintln!("{name}: {failure}");
    if let Failure::Usage(_) = failure {
        eprintln!("Try `cargo run --release --example {name} -- --help`.");
        return ExitCode::from(2);
    }
    ExitCode::FAILURE
}

/// Which device to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendName {
    Sim,
    #[cfg(feature = "cuda")]
    Cuda,
}

impl BackendName {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            BackendName::Sim => "sim",
            #[cfg(feature = "cuda")]
            BackendName::Cuda => "cuda",
        }
    }
}

impl FromStr for BackendName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "sim" => Ok(BackendName::Sim),
            #[cfg(feature = "cuda")]
            "cuda" => Ok(BackendName::Cuda),
            #[cfg(not(feature = "cuda"))]
            "cuda" => Err("build this program with `--features cuda` to run on a GPU".to_owned()),
            _ => Err("this program runs on: sim, cuda".to_owned()),
        }
    }
}

/// A number of at least 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Positive(pub(crate) usize);

impl FromStr for Positive {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(number) if number > 0 => Ok(Positive(number)),
            _ => Err("a whole number of at least 1 is wanted".to_owned()),
        }
    }
}

/// A number of bytes; K, M, G and T (also as KiB, …) count in powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let shift = match suffix.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            _ => return Err("a number of bytes is wanted, as 4096, 512K, 80M or 8G".to_owned()),
        };
        let number = number.parse::<u64>().ok();
        match number.and_then(|number| number.checked_mul(1 << shift)) {
            Some(bytes) if bytes > 0 => Ok(ByteSize(bytes)),
            _ => Err("a number of bytes is wanted, at least 1 and below 2^64".to_owned()),
        }
    }
}

//! Recorded traces: the file, and the operations in it.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::common::cli::{Failure, Outcome};
use super::snapshot;

const HEADER: &str = "t_us,action,ptr,bytes,stream";

/// A trace, checked: each free is of an allocation that is live.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    /// The file's name, without folder and extensions.
    pub(crate) name: String,
    pub(crate) operations: Vec<Operation>,
    pub(crate) streams: usize,
    /// How many allocations are live at once, at most.
    pub(crate) slots: usize,
    /// The most that was live at once, in bytes as they were asked for.
    pub(crate) peak_live_bytes: u64,
}

/// One operation. A slot is where the replay keeps a buffer while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Allocate { slot: usize, bytes: usize, stream: usize },
    Free { slot: usize },
}

/// What is wrong with a trace, and where.
#[derive(Debug)]
struct Malformed {
    file: String,
    line: usize,
    what: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

impl std::error::Error for Malformed {}

impl Trace {
    /// Reads a trace, or a snapshot of PyTorch's as one; a name that ends in `.gz` is unpacked on the way.
    pub(crate) fn read(path: &Path) -> Outcome<Trace> {
        let shown = path.display().to_string();
        let failed = |error: io::Error| Failure::Run(format!("{shown}: {error}").into());
        let mut bytes = Vec::new();
        File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(failed)?;
        let packed = path.extension().is_some_and(|extension| extension == "gz");
        let file_name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = file_name.split('.').next().unwrap_or_default();
        if packed {
            let unpack = || BufReader::new(MultiGzDecoder::new(&bytes[..]));
            // What cannot be unpacked is told by the line.
            if unpack().fill_buf().is_ok_and(snapshot::is_pickle) {
                let mut unpacked = Vec::new();
                unpack().read_to_end(&mut unpacked).map_err(failed)?;
                return snapshot::read(name, &shown, &unpacked);
            }
            Trace::parse(name, &shown, unpack())
        } else if snapshot::is_pickle(&bytes) {
            snapshot::read(name, &shown, &bytes)
        } else {
            Trace::parse(name, &shown, &bytes[..])
        }
    }

    /// Parses the lines of a trace. `file` is what errors call it.
    pub(crate) fn parse(name: &str, file: &str, text: impl BufRead) -> Outcome<Trace> {
        let mut builder = Builder::default();
        let mut header = false;
        let mut number = 0;
        for line in text.lines() {
            number += 1;
            let at = |what| Malformed { file: file.to_owned(), line: number, what };
            let line = line.map_err(|error| at(unreadable(&error)))?;
            let line = line.trim_end();
            if line.starts_with('#') || line.is_empty() {
                continue;
            }
            if !header {
                if line != HEADER {
                    return Err(at(format!("the header `{HEADER}` is wanted")).into());
                }
                header = true;
                continue;
            }
            builder.take(line).map_err(at)?;
        }
        if builder.operations.is_empty() {
            let what = "a trace with no operation".to_owned();
            return Err(Malformed { file: file.to_owned(), line: number, what }.into());
        }
        Ok(builder.finish(name))
    }
}

fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
            format!("this is no gzip file, or a part of one ({error})")
        }
        _ => error.to_string(),
    }
}

/// A trace as far as it has been read.
#[derive(Default)]
pub(super) struct Builder {
    operations: Vec<Operation>,
    /// What is live: pointer to slot and size.
    live: HashMap<u64, (usize, u64)>,
    vacant: Vec<usize>,
    slots: usize,
    streams: usize,
    live_bytes: u64,
    peak_live_bytes: u64,
}

impl Builder {
    fn take(&mut self, line: &str) -> Result<(), String> {
        let fields: Vec<&str> = line.split(',').collect();
        let &[time, action, pointer, bytes, stream] = fields.as_slice() else {
            return Err(format!("{} fields where 5 are wanted", fields.len()));
        };
        let wrong = |what: &str, text: &str| format!("`{text}` is no {what}");
        time.parse::<u64>().map_err(|_| wrong("time in microseconds", time))?;
        let address =
            u64::from_str_radix(pointer, 16).map_err(|_| wrong("hexadecimal pointer", pointer))?;
        let size = bytes.parse::<u64>().map_err(|_| wrong("number of bytes", bytes))?;
        // A stream costs the device something: a number beyond all reason is a mistake.
        let stream = match stream.parse::<u16>() {
            Ok(stream) => usize::from(stream),
            Err(_) => return Err(wrong("stream number (0 to 65535)", stream)),
        };
        match action {
            "allocate" => self.allocate(address, size, stream),
            "free" => self.free(address, size),
            _ => Err(format!("`{action}` where `allocate` or `free` is wanted")),
        }
    }

    pub(super) fn allocate(
        &mut self,
        address: u64,
        size: u64,
        stream: usize,
    ) -> Result<(), String> {
        if self.live.contains_key(&address) {
            return Err(format!("{address:x} is allocated while it is live"));
        }
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        self.live.insert(address, (slot, size));
        self.streams = self.streams.max(stream + 1);
        let live_bytes = self.live_bytes.checked_add(size);
        self.live_bytes = live_bytes.ok_or("more than 2^64 bytes are live")?;
        self.peak_live_bytes = self.peak_live_bytes.max(self.live_bytes);
        let bytes = usize::try_from(size).map_err(|_| "more bytes than this machine can name")?;
        self.operations.push(Operation::Allocate { slot, bytes, stream });
        Ok(())
    }

    pub(super) fn free(&mut self, address: u64, size: u64) -> Result<(), String> {
        let Some((slot, allocated)) = self.live.remove(&address) else {
            return Err(format!("{address:x} is freed, and was not allocated or is free already"));
        };
        if size != allocated {
            return Err(format!(
                "{address:x} is freed as {size} bytes, and was allocated as {allocated}"
            ));
        }
        self.live_bytes -= size;
        self.vacant.push(slot);
        self.operations.push(Operation::Free { slot });
        Ok(())
    }

    pub(super) fn finish(self, name: &str) -> Trace {
        Trace {
            name: name.to_owned(),
            operations: self.operations,
            streams: self.streams,
            slots: self.slots,
            peak_live_bytes: self.peak_live_bytes,
        }
    }
}

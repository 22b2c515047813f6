//! Files that other programs open: where what is in the memory, and what happened.

use streampool::{Backend, StreamPool};

use super::common::cli::Outcome;
use super::options::Options;
use super::plot::Picture;
use super::trace::Trace;

/// The most events that a stream keeps: 18 MiB of them.
const EVENTS_MAX: usize = 1 << 18;

/// How many events each stream keeps, for all of both passes of a trace that is not too long: an
/// operation is seldom more than two events.
pub(crate) fn events(trace: &Trace) -> usize {
    (4 * trace.operations.len()).min(EVENTS_MAX)
}

/// What is to be written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exported {
    pub(crate) snapshot: Vec<u8>,
    pub(crate) perfetto: String,
}

impl Exported {
    pub(crate) fn of<B: Backend>(pool: &StreamPool<B>) -> Exported {
        let (snapshot, history) = (pool.snapshot(), pool.history());
        Exported { snapshot: snapshot.to_pickle_with(&history), perfetto: history.to_perfetto() }
    }
}

/// The files that are to be written, open.
pub(crate) struct Files {
    snapshot: Option<Picture>,
    perfetto: Option<Picture>,
}

impl Files {
    pub(crate) fn open(options: &Options) -> Outcome<Files> {
        let open = |option, path: Option<&std::path::Path>| {
            path.map(|path| Picture::open_for(option, path)).transpose()
        };
        Ok(Files {
            snapshot: open("--snapshot", options.snapshot.as_deref())?,
            perfetto: open("--perfetto", options.perfetto.as_deref())?,
        })
    }

    pub(crate) fn write(&mut self, exported: &Exported) -> Outcome<()> {
        if let Some(file) = self.snapshot.take() {
            file.write(&exported.snapshot)?;
        }
        if let Some(file) = self.perfetto.take() {
            file.write(&exported.perfetto)?;
        }
        Ok(())
    }
}

//! The command line.

use streampool::Reuse;

pub(crate) const USAGE: &str = "\
usage: gpu [OPTIONS] [PART-OF-A-NAME]    the workloads whose names contain it; all without it
       gpu [OPTIONS] trace FILE.csv ...  recorded traces, uncompressed
       gpu list                          the workloads' names

  --quick                          tiny counts: shows that everything runs; measures nothing
  --segments                       grow by plain segments instead of virtual memory
  --reuse balanced|memory|speed    what a miss prefers

JSON lines go to the standard output. The exit status is 0 when all was measured, 1 when a workload
failed, 2 when nothing was measured: wrong arguments, or no device.";

pub(crate) enum Command {
    Help,
    List,
    /// Those whose names contain this.
    Workloads(String),
    Traces(Vec<String>),
}

pub(crate) struct Options {
    pub(crate) command: Command,
    pub(crate) quick: bool,
    pub(crate) segments: bool,
    pub(crate) reuse: Reuse,
}

impl Options {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        // `cargo bench` adds `--bench`.
        let mut arguments = arguments.filter(|argument| argument != "--bench");
        let mut options = Options {
            command: Command::Workloads(String::new()),
            quick: false,
            segments: false,
            reuse: Reuse::default(),
        };
        let mut words = Vec::new();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--segments" => options.segments = true,
                "--reuse" => options.reuse = reuse(arguments.next().as_deref())?,
                "--help" | "-h" => {
                    options.command = Command::Help;
                    return Ok(options);
                }
                option if option.starts_with('-') => return Err(format!("no option {option}")),
                _ => words.push(argument),
            }
        }
        options.command = command(words)?;
        Ok(options)
    }

    /// How the pool is called in the report.
    pub(crate) fn peer(&self, way: &str) -> String {
        self.peer_reusing(way, self.reuse)
    }

    /// The same, for a workload that chooses what a miss prefers.
    pub(crate) fn peer_reusing(&self, way: &str, reuse: Reuse) -> String {
        let mut name = String::from("streampool");
        if !way.is_empty() {
            name = name + " " + way;
        }
        if self.segments {
            name += ", segments";
        }
        match reuse {
            Reuse::Memory => name += ", reuse memory",
            Reuse::Speed => name += ", reuse speed",
            _ => {}
        }
        if self.quick {
            name += ", quick";
        }
        name
    }
}

fn reuse(word: Option<&str>) -> Result<Reuse, String> {
    match word {
        Some("balanced") => Ok(Reuse::Balanced),
        Some("memory") => Ok(Reuse::Memory),
        Some("speed") => Ok(Reuse::Speed),
        _ => Err("--reuse takes balanced, memory or speed".to_owned()),
    }
}

fn command(words: Vec<String>) -> Result<Command, String> {
    let mut words = words.into_iter();
    match words.next().as_deref() {
        None => Ok(Command::Workloads(String::new())),
        Some("list") => Ok(Command::List),
        Some("trace") => {
            let files: Vec<String> = words.collect();
            if files.is_empty() {
                return Err("trace takes at least one file".to_owned());
            }
            Ok(Command::Traces(files))
        }
        Some(filter) => match words.next() {
            None => Ok(Command::Workloads(filter.to_owned())),
            Some(more) => Err(format!("one part of a name at a time: what is `{more}`?")),
        },
    }
}

//! One pass over a trace.

use std::hint::black_box;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use streampool::{Buffer, PoolStream, Stats, StreamPool, Tag};

use super::common::cli::{Failure, Outcome};
use super::common::device::{Access, Counts, Device, Launch};
use super::curves::{Curves, Size};
use super::export::{self, Exported};
use super::options::{Kernels, Options};
use super::trace::{Operation, Trace};

/// How many operations are done between two looks at the clock and the progress bar.
const STRIDE: usize = 256;
/// A trace that is shorter than this is done before a progress bar would help.
const LONG: usize = 20_000;

/// What one pass has cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass {
    /// Host time in the pool, in nanoseconds an operation.
    pub(crate) ns_per_op: f64,
    pub(crate) calls: Counts,
    /// The pool's own account before and after.
    pub(crate) stats: [Stats; 2],
}

/// A program that does what a trace has recorded.
pub(crate) struct Program<'a, D: Device> {
    kernels: Kernels,
    trace: &'a Trace,
    device: &'a D,
    pool: StreamPool<D::Backend>,
    streams: Vec<PoolStream<D::Backend>>,
    slots: Vec<Option<Buffer<D::Backend>>>,
    /// The stream of each slot's buffer.
    homes: Vec<usize>,
    /// Which pass this is.
    pass: &'static str,
    /// How the memory goes, where it is to be drawn.
    pub(crate) curves: Option<Curves>,
    /// What is to be written to files, as it was at the end of the latest pass.
    pub(crate) exported: Option<Exported>,
}

impl<'a, D: Device> Program<'a, D> {
    pub(crate) fn new(options: &Options, trace: &'a Trace, device: &'a D) -> Outcome<Self> {
        let mut builder = StreamPool::builder(device.backend());
        builder = builder.reuse(options.reuse).growth(options.growth);
        if let Some(limit) = options.limit.bytes(trace.peak_live_bytes) {
            builder = builder.limit(limit);
        }
        if options.exports() {
            builder = builder.history(export::events(trace));
        }
        let pool = builder.build()?;
        let mut streams = Vec::new();
        for _ in 0..trace.streams {
            streams.push(pool.stream(device.create_stream()?)?);
        }
        let slots = (0..trace.slots).map(|_| None).collect();
        let homes = vec![0; trace.slots];
        let curves = options.plot.as_ref().map(|_| Curves::new(trace.operations.len()));
        let exported = options.exports().then(Exported::default);
        let kernels = options.kernels;
        let pass = "";
        Ok(Program { kernels, trace, device, pool, streams, slots, homes, pass, curves, exported })
    }

    /// Does all operations, and at the end frees what the trace leaves.
    pub(crate) fn run(&mut self, name: &'static str) -> Outcome<Pass> {
        self.pass = name;
        // The exported files tell which pass a buffer is from.
        let _entered = Tag::new(&format!("{name} pass")).enter();
        let (before, stats) = (self.device.counts(), self.pool.stats());
        let bar = self.progress_bar(name);
        let mut spent = Duration::ZERO;
        let trace = self.trace;
        for (index, operations) in trace.operations.chunks(STRIDE).enumerate() {
            let first = index * STRIDE;
            spent += match self.curves.take() {
                None => self.take(operations, first)?,
                Some(curves) => self.take_watched(operations, first, curves)?,
            };
            bar.inc(operations.len() as u64);
        }
        bar.finish_and_clear();
        let calls = self.device.counts() - before;
        let stats = [stats, self.pool.stats()];
        if let Some(exported) = &mut self.exported {
            *exported = Exported::of(&self.pool);
        }
        self.free_rest()?;
        let ns_per_op = spent.as_nanos() as f64 / self.trace.operations.len() as f64;
        Ok(Pass { ns_per_op, calls, stats })
    }

    fn take(&mut self, operations: &[Operation], first: usize) -> Outcome<Duration> {
        match self.kernels {
            Kernels::None => self.only_pool(operations, first),
            Kernels::Use => self.with_kernels(operations, first),
        }
    }

    /// One operation at a time, with a look at the memory after each.
    fn take_watched(
        &mut self,
        operations: &[Operation],
        first: usize,
        mut curves: Curves,
    ) -> Outcome<Duration> {
        let mut spent = Duration::ZERO;
        for (index, operation) in operations.iter().enumerate() {
            let (Operation::Allocate { slot, .. } | Operation::Free { slot }) = *operation;
            let freed = self.slots[slot].as_ref().map(Size::of);
            spent += self.take(std::slice::from_ref(operation), first + index)?;
            let allocated = self.slots[slot].as_ref().map(Size::of);
            curves.change(freed, allocated);
            curves.look(self.device);
        }
        self.curves = Some(curves);
        Ok(spent)
    }

    /// Nothing but the pool's calls, timed together.
    fn only_pool(&mut self, operations: &[Operation], first: usize) -> Outcome<Duration> {
        let start = Instant::now();
        for (index, operation) in operations.iter().enumerate() {
            match *operation {
                Operation::Allocate { slot, bytes, stream } => {
                    let buffer = self.streams[stream].alloc(bytes);
                    self.slots[slot] =
                        Some(buffer.map_err(|error| failed(self.pass, first + index, error))?);
                }
                Operation::Free { slot } => drop(self.slots[slot].take()),
            }
        }
        Ok(start.elapsed())
    }

    /// A kernel writes each buffer when it is new and reads it when it is done with. Each of the pool's
    /// calls is timed by itself.
    fn with_kernels(&mut self, operations: &[Operation], first: usize) -> Outcome<Duration> {
        let mut spent = Duration::ZERO;
        let look = cost_of_a_look();
        for (index, operation) in operations.iter().enumerate() {
            match *operation {
                Operation::Allocate { slot, bytes, stream } => {
                    let start = Instant::now();
                    let buffer = self.streams[stream].alloc(bytes);
                    spent += start.elapsed().saturating_sub(look);
                    let buffer = buffer.map_err(|error| failed(self.pass, first + index, error))?;
                    let (address, bytes) = (buffer.device_ptr(), bytes as u64);
                    self.device.handed_out(self.streams[stream].raw(), address, bytes);
                    self.touch(stream, address, bytes, Access::Write)?;
                    self.slots[slot] = Some(buffer);
                    self.homes[slot] = stream;
                }
                Operation::Free { slot } => {
                    let buffer = self.end_use(slot)?;
                    let start = Instant::now();
                    drop(buffer);
                    spent += start.elapsed().saturating_sub(look);
                }
            }
        }
        Ok(spent)
    }

    /// The last kernel of a buffer, and the buffer.
    fn end_use(&mut self, slot: usize) -> Outcome<Option<Buffer<D::Backend>>> {
        let buffer = self.slots[slot].take();
        if let (Some(buffer), Kernels::Use) = (&buffer, self.kernels) {
            let (address, bytes) = (buffer.device_ptr(), buffer.len() as u64);
            self.touch(self.homes[slot], address, bytes, Access::Read)?;
            self.device.given_back(address, bytes);
        }
        Ok(buffer)
    }

    /// Runs a kernel for as long as it takes to start one and to move the bytes at 4 TB/s.
    fn touch(&self, stream: usize, address: u64, bytes: u64, access: Access) -> Outcome<()> {
        let launch = Launch { address, bytes, access, ns: 2000 + bytes / 4000 };
        self.device.launch(self.streams[stream].raw(), launch)
    }

    fn free_rest(&mut self) -> Outcome<()> {
        for slot in 0..self.slots.len() {
            drop(self.end_use(slot)?);
        }
        if let Some(curves) = &mut self.curves {
            curves.end_pass();
        }
        Ok(())
    }

    /// A bar on the standard error, for a long trace, when that is a terminal.
    fn progress_bar(&self, name: &str) -> ProgressBar {
        let length = self.trace.operations.len();
        if length < LONG {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::with_draw_target(
            Some(length as u64),
            ProgressDrawTarget::stderr_with_hz(10),
        );
        let template = "{prefix} {bar:40} {pos}/{len} operations, {eta} left";
        let style = ProgressStyle::with_template(template).expect("the template is well formed");
        bar.with_style(style).with_prefix(format!("{}, {name} pass", self.trace.name))
    }
}

/// What it costs to look at the clock twice with nothing between.
fn cost_of_a_look() -> Duration {
    let looks = (0..8).map(|_| {
        let start = black_box(Instant::now());
        start.elapsed()
    });
    looks.min().unwrap_or_default()
}

fn failed(pass: &str, index: usize, error: streampool::Error) -> Failure {
    Failure::Run(format!("{pass} pass, operation {} of the trace: {error}", index + 1).into())
}

//! The five ways to clear a pool, and a program that uses one of them.

use std::mem;

use streampool::{Backend, Buffer, PoolStream, StreamPool};

use super::baseline::{Baseline, Block};
use super::common::cli::Outcome;
use super::common::device::{Access, Device, Launch};

type Stream<D> = <<D as Device>::Backend as Backend>::Stream;

/// A way to clear the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    PairPerFree,
    Flag,
    Lazy,
    Scope,
    Release,
}

impl Mode {
    pub(crate) const ALL: [Mode; 5] =
        [Mode::PairPerFree, Mode::Flag, Mode::Lazy, Mode::Scope, Mode::Release];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::PairPerFree => "pair per free",
            Mode::Flag => "flag",
            Mode::Lazy => "lazy",
            Mode::Scope => "scope",
            Mode::Release => "release",
        }
    }

    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Mode::PairPerFree => {
                "another pool: each free records an event and makes the pool's stream wait for it"
            }
            Mode::Flag => {
                "the same pool, changed: one device synchronize, then frees skip that while a flag is \
                 set\n                 (unsafe in general: see --unsafe-demo)"
            }
            Mode::Lazy => "streampool: the buffers are dropped",
            Mode::Scope => "streampool: pool.quiesce(), the buffers are dropped, scope.finish()",
            Mode::Release => "streampool: pool.release(buffers)",
        }
    }
}

/// What runs between the synchronize of a clear and its frees; nothing, but for the demonstration.
pub(crate) type Between<'a, D> = &'a dyn Fn(&Program<D>) -> Outcome<()>;

/// A program that allocates a layer's buffers, works on them, and clears them.
pub(crate) struct Program<D: Device> {
    pub(crate) device: D,
    mode: Mode,
    pool: Pool<D::Backend>,
    /// The layer's buffers: address and stream.
    live: Vec<(u64, usize)>,
    bytes: u64,
}

enum Pool<B: Backend> {
    Baseline { pool: Baseline<B>, blocks: Vec<Block> },
    Ours { pool: StreamPool<B>, streams: Vec<PoolStream<B>>, buffers: Vec<Buffer<B>> },
}

impl<D: Device> Program<D> {
    pub(crate) fn new(device: D, mode: Mode, streams: usize, bytes: u64) -> Outcome<Program<D>> {
        let streams = (0..streams).map(|_| device.create_stream()).collect::<Outcome<Vec<_>>>()?;
        let backend = device.backend();
        let pool = match mode {
            Mode::PairPerFree | Mode::Flag => Pool::Baseline {
                pool: Baseline::new(backend, device.create_stream()?, streams)?,
                blocks: Vec::new(),
            },
            Mode::Lazy | Mode::Scope | Mode::Release => {
                let pool = StreamPool::new(backend);
                let streams = streams.into_iter().map(|stream| pool.stream(stream));
                let streams = streams.collect::<Result<Vec<_>, _>>()?;
                Pool::Ours { pool, streams, buffers: Vec::new() }
            }
        };
        Ok(Program { device, mode, pool, live: Vec::new(), bytes })
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Allocates a layer's buffers: the i-th on stream i + `shift`, round about.
    pub(crate) fn allocate(&mut self, count: usize, shift: usize) -> Outcome<()> {
        let bytes = self.bytes;
        for index in 0..count {
            let (address, stream) = match &mut self.pool {
                Pool::Baseline { pool, blocks } => {
                    let stream = (index + shift) % pool.streams();
                    let block = pool.alloc(bytes, stream)?;
                    blocks.push(block);
                    (block.address, stream)
                }
                Pool::Ours { streams, buffers, .. } => {
                    let stream = (index + shift) % streams.len();
                    let buffer = streams[stream].alloc(bytes as usize)?;
                    let address = buffer.device_ptr();
                    buffers.push(buffer);
                    (address, stream)
                }
            };
            self.live.push((address, stream));
        }
        for &(address, stream) in &self.live {
            self.device.handed_out(self.stream(stream), address, bytes);
        }
        Ok(())
    }

    /// Launches a kernel for each buffer of the layer, on the buffer's stream.
    pub(crate) fn work(&self, access: Access, ns: u64) -> Outcome<()> {
        for &(address, stream) in &self.live {
            let launch = Launch { address, bytes: self.bytes, access, ns };
            self.device.launch(self.stream(stream), launch)?;
        }
        Ok(())
    }

    /// Tells the device that the program is done with the layer's buffers.
    pub(crate) fn give_back(&mut self) {
        for (address, _) in self.live.drain(..) {
            self.device.given_back(address, self.bytes);
        }
    }

    /// Clears the pool in the program's mode.
    pub(crate) fn clear(&mut self) -> Outcome<()> {
        match &mut self.pool {
            Pool::Baseline { pool, blocks } => match self.mode {
                Mode::Flag => pool.with_flag(|| pool.clear(blocks)),
                _ => pool.clear(blocks),
            },
            Pool::Ours { pool, buffers, .. } => {
                match self.mode {
                    Mode::Scope => {
                        let scope = pool.quiesce()?;
                        buffers.clear();
                        let _ = scope.finish();
                    }
                    Mode::Release => {
                        let _ = pool.release(mem::take(buffers))?;
                    }
                    _ => buffers.clear(),
                }
                Ok(())
            }
        }
    }

    /// Clears the pool, with something else between the synchronize and the frees.
    pub(crate) fn clear_with(&mut self, between: Between<'_, D>) -> Outcome<()> {
        // Taken out so that `between` can have the program.
        let mut blocks = match &mut self.pool {
            Pool::Baseline { blocks, .. } => mem::take(blocks),
            Pool::Ours { .. } => Vec::new(),
        };
        match &self.pool {
            Pool::Baseline { pool, .. } if self.mode == Mode::Flag => pool.with_flag(|| {
                between(self)?;
                pool.clear(&mut blocks)
            })?,
            Pool::Baseline { pool, .. } => {
                between(self)?;
                pool.clear(&mut blocks)?;
            }
            Pool::Ours { pool, .. } => {
                let scope = pool.quiesce()?;
                between(self)?;
                if let Pool::Ours { buffers, .. } = &mut self.pool {
                    buffers.clear();
                }
                let _ = scope.finish();
            }
        }
        Ok(())
    }

    fn stream(&self, index: usize) -> &Stream<D> {
        match &self.pool {
            Pool::Baseline { pool, .. } => pool.stream(index),
            Pool::Ours { streams, .. } => streams[index].raw(),
        }
    }
}

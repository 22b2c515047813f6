//! Streams: queues of operations that run as soon as nothing holds them back.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::sync::Arc;

use crate::capture::CaptureId;
use crate::code::{Code, Outcome};
use crate::handle::Handles;
use crate::state::Driver;
use crate::thread;

/// A stream's own number, never used again.
pub(crate) type StreamId = u64;

/// A host function and its argument, as the program gave them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostFunction {
    pub(crate) function: extern "C" fn(*mut c_void),
    pub(crate) argument: usize,
}

/// One operation in a stream, or in a graph.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// A kernel. It does nothing.
    Kernel,
    /// Nothing later runs before that place in the other stream has been passed.
    Wait(Mark),
    Fill {
        address: usize,
        value: u8,
        bytes: usize,
    },
    Write {
        address: usize,
        data: Arc<[u8]>,
    },
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    /// Between devices: each range is reached as its own device reaches it.
    PeerCopy {
        to: (usize, usize),
        from: (usize, usize),
        bytes: usize,
    },
    Read {
        to: usize,
        from: usize,
        bytes: usize,
    },
    Free {
        address: usize,
    },
    Host(HostFunction),
}

/// A place in a stream: it has been passed when so many operations have finished there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    stream: StreamId,
    position: u64,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) handle: usize,
    pub(crate) context: usize,
    pub(crate) blocking: bool,
    pub(crate) capture: Option<CaptureId>,
    /// A test keeps it from running.
    held: bool,
    /// A host function of it runs.
    busy: bool,
    destroyed: bool,
    submitted: u64,
    completed: u64,
    queue: VecDeque<Op>,
}

#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) all: BTreeMap<StreamId, Stream>,
    by_handle: BTreeMap<usize, StreamId>,
    handles: Handles,
    last: StreamId,
}

impl Streams {
    pub(crate) const fn new() -> Streams {
        Streams {
            all: BTreeMap::new(),
            by_handle: BTreeMap::new(),
            handles: Handles::from(0x5712_0000),
            last: 0,
        }
    }

    /// Makes a stream that no handle of its own leads to: a default stream.
    pub(crate) fn create_default(&mut self, context: usize, handle: usize) -> StreamId {
        self.insert(context, handle, true)
    }

    pub(crate) fn create(&mut self, context: usize, blocking: bool) -> usize {
        let handle = self.handles.take();
        let id = self.insert(context, handle, blocking);
        self.by_handle.insert(handle, id);
        handle
    }

    fn insert(&mut self, context: usize, handle: usize, blocking: bool) -> StreamId {
        self.last += 1;
        let stream = Stream {
            handle,
            context,
            blocking,
            capture: None,
            held: false,
            busy: false,
            destroyed: false,
            submitted: 0,
            completed: 0,
            queue: VecDeque::new(),
        };
        self.all.insert(self.last, stream);
        self.last
    }

    pub(crate) fn id_of(&self, handle: usize) -> Outcome<StreamId> {
        self.by_handle.get(&handle).copied().ok_or(Code::INVALID_HANDLE)
    }

    /// Ends a stream: its handle is free at once, its pending operations run on.
    pub(crate) fn destroy(&mut self, id: StreamId) {
        let Some(stream) = self.all.get_mut(&id) else { return };
        stream.destroyed = true;
        stream.capture = None;
        self.by_handle.remove(&stream.handle);
        self.handles.give_back(stream.handle);
    }

    /// Ends all streams of a context, with what was pending in them.
    pub(crate) fn destroy_context(&mut self, context: usize) {
        let ids: Vec<StreamId> =
            self.all.iter().filter(|(_, s)| s.context == context).map(|(id, _)| *id).collect();
        for id in ids {
            if self.by_handle.get(&self.all[&id].handle) == Some(&id) {
                self.destroy(id);
            }
            self.all.remove(&id);
        }
    }

    /// The place behind everything that was submitted to a stream.
    pub(crate) fn tail(&self, id: StreamId) -> Mark {
        let position = self.all.get(&id).map_or(0, |stream| stream.submitted);
        Mark { stream: id, position }
    }

    /// The places behind everything that was submitted to a context.
    pub(crate) fn tails(&self, context: usize) -> Vec<Mark> {
        let own = self.all.iter().filter(|(_, stream)| stream.context == context);
        own.map(|(id, stream)| Mark { stream: *id, position: stream.submitted }).collect()
    }

    /// A stream that is gone has run everything.
    pub(crate) fn has_passed(&self, mark: Mark) -> bool {
        self.all.get(&mark.stream).is_none_or(|stream| stream.completed >= mark.position)
    }

    /// Holds or releases all streams, live or destroyed, that have this handle.
    pub(crate) fn hold(&mut self, handle: usize, held: bool) {
        for stream in self.all.values_mut().filter(|stream| stream.handle == handle) {
            stream.held = held;
        }
    }

    pub(crate) fn release_all(&mut self) {
        for stream in self.all.values_mut() {
            stream.held = false;
        }
    }

    /// A host function has returned.
    pub(crate) fn host_function_returned(&mut self, id: StreamId) {
        if let Some(stream) = self.all.get_mut(&id) {
            stream.busy = false;
            stream.completed += 1;
        }
    }

    fn push(&mut self, id: StreamId, op: Op) {
        if let Some(stream) = self.all.get_mut(&id) {
            stream.submitted += 1;
            stream.queue.push_back(op);
        }
    }
}

impl Driver {
    /// The stream of a handle: default streams are those of the current context.
    pub(crate) fn stream(&mut self, handle: usize) -> Outcome<StreamId> {
        let id = match handle {
            0 | 1 => self.context(self.current()?)?.legacy,
            2 => self.per_thread_stream()?,
            _ => self.streams.id_of(handle)?,
        };
        self.healthy(self.streams.all[&id].context)?;
        Ok(id)
    }

    fn per_thread_stream(&mut self) -> Outcome<StreamId> {
        let current = self.current()?;
        let key = (current, thread::number());
        if let Some(id) = self.per_thread.get(&key) {
            return Ok(*id);
        }
        let id = self.streams.create_default(current, 2);
        self.per_thread.insert(key, id);
        Ok(id)
    }

    /// Puts an operation into a stream that does not capture, behind the implicit barriers of the
    /// legacy stream.
    pub(crate) fn enqueue(&mut self, id: StreamId, op: Op) {
        let stream = &self.streams.all[&id];
        let (context, blocking) = (stream.context, stream.blocking);
        let legacy = self.contexts.get(&context).map_or(0, |context| context.legacy);
        let others: Vec<Mark> = if id == legacy {
            let of_context = self.streams.all.iter().filter(|(_, s)| s.context == context);
            let blocking = of_context.filter(|(other, s)| s.blocking && **other != id);
            blocking.map(|(other, _)| self.streams.tail(*other)).collect()
        } else if blocking {
            vec![self.streams.tail(legacy)]
        } else {
            Vec::new()
        };
        for mark in others {
            if !self.streams.has_passed(mark) {
                self.streams.push(id, Op::Wait(mark));
            }
        }
        self.streams.push(id, op);
    }

    /// Runs everything that can run. Returns the host functions to start, with their streams.
    pub(crate) fn advance(&mut self) -> Vec<(StreamId, HostFunction)> {
        let mut started = Vec::new();
        loop {
            let ids: Vec<StreamId> = self.streams.all.keys().copied().collect();
            let mut progress = false;
            for id in ids {
                while self.step(id, &mut started) {
                    progress = true;
                }
            }
            if !progress {
                break;
            }
        }
        self.streams
            .all
            .retain(|_, stream| !stream.destroyed || stream.completed < stream.submitted);
        started
    }

    fn step(&mut self, id: StreamId, started: &mut Vec<(StreamId, HostFunction)>) -> bool {
        let stream = &self.streams.all[&id];
        if stream.held || stream.busy {
            return false;
        }
        match stream.queue.front() {
            None => return false,
            Some(Op::Wait(mark)) if !self.streams.has_passed(*mark) => return false,
            Some(_) => {}
        }
        let Some(stream) = self.streams.all.get_mut(&id) else { return false };
        let context = stream.context;
        match stream.queue.pop_front() {
            Some(Op::Host(function)) => {
                stream.busy = true;
                started.push((id, function));
            }
            Some(op) => {
                stream.completed += 1;
                self.execute(context, op);
            }
            None => {}
        }
        true
    }

    /// Does what an operation does to memory. A bad address sticks to the context, as on a device.
    fn execute(&mut self, context: usize, op: Op) {
        if self.healthy(context).is_err() {
            return;
        }
        let Some(found) = self.contexts.get(&context) else { return };
        let device = found.device;
        let memory = &mut self.memory;
        let done = match op {
            Op::Kernel | Op::Wait(_) | Op::Host(_) => Ok(()),
            // Copies reach any plain memory; what runs on the device needs to be its peer.
            Op::Fill { address, .. } if !found.reaches(memory.context_of(address)) => {
                Err(Code::ILLEGAL_ADDRESS)
            }
            Op::Fill { address, value, bytes } => memory.fill(device, address, value, bytes),
            Op::Write { address, data } => memory.write(device, address, &data),
            Op::Copy { to, from, bytes } => memory.copy((device, to), (device, from), bytes),
            Op::PeerCopy { to, from, bytes } => memory.copy(to, from, bytes),
            Op::Read { to, from, bytes } => memory.read(device, to, from, bytes),
            Op::Free { address } => memory.free(address),
        };
        if let (Err(code), Some(context)) = (done, self.contexts.get_mut(&context)) {
            context.sticky = Some(code);
        }
    }
}

//! Everything that the driver knows, behind one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard};

use crate::call::Calls;
use crate::capture::Captures;
use crate::code::{Code, Outcome};
use crate::event::Events;
use crate::memory::Memory;
use crate::pools::Pools;
use crate::stream::{Op, StreamId, Streams};
use crate::thread;

/// The first primary context's handle; a device's is always the same, also after it was released and
/// retained again, as the real driver's is.
const PRIMARY: usize = 0xc0de_0000;
const OTHER: usize = 0xc0df_0000;

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| Mutex::new(Driver::from_environment()));
static CHANGED: Condvar = Condvar::new();

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) legacy: StreamId,
    /// A sticky error: every later call in the context returns it.
    pub(crate) sticky: Option<Code>,
    /// The contexts whose plain memory this one may use.
    pub(crate) peers: BTreeSet<usize>,
    retained: usize,
}

impl Context {
    /// Whether what runs in this context may use the plain memory of that one.
    pub(crate) fn reaches(&self, owner: Option<(usize, usize)>) -> bool {
        owner.is_none_or(|(device, context)| device == self.device || self.peers.contains(&context))
    }
}

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) initialized: bool,
    pub(crate) gone: bool,
    pub(crate) devices: usize,
    pub(crate) has_virtual_memory: bool,
    pub(crate) has_pools: bool,
    pub(crate) calls: Calls,
    pub(crate) contexts: BTreeMap<usize, Context>,
    pub(crate) streams: Streams,
    /// Per-thread default streams, by context and thread.
    pub(crate) per_thread: BTreeMap<(usize, u64), StreamId>,
    pub(crate) events: Events,
    pub(crate) captures: Captures,
    pub(crate) memory: Memory,
    pub(crate) pools: Pools,
    /// Graphs and their executables, modules and functions, by handle.
    pub(crate) graphs: BTreeMap<usize, Vec<Op>>,
    pub(crate) functions: BTreeSet<usize>,
    last_object: usize,
    others: usize,
}

impl Driver {
    fn from_environment() -> Driver {
        Driver {
            initialized: false,
            gone: false,
            devices: number("STANDIN_DEVICES", 1),
            has_virtual_memory: env::var_os("STANDIN_NO_VIRTUAL_MEMORY").is_none(),
            has_pools: env::var_os("STANDIN_NO_POOLS").is_none(),
            calls: Calls::from_environment(),
            contexts: BTreeMap::new(),
            streams: Streams::new(),
            per_thread: BTreeMap::new(),
            events: Events::new(),
            captures: Captures::new(),
            memory: Memory::new(number("STANDIN_MEMORY", 8 << 30)),
            pools: Pools::default(),
            graphs: BTreeMap::new(),
            functions: BTreeSet::new(),
            last_object: 0x0b1e_0000,
            others: 0,
        }
    }

    /// A handle for a graph, a module or a function.
    pub(crate) fn object(&mut self) -> usize {
        self.last_object += 0x40;
        self.last_object
    }

    pub(crate) fn device(&self, ordinal: i32) -> Outcome<usize> {
        let device = usize::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
        if device < self.devices { Ok(device) } else { Err(Code::INVALID_DEVICE) }
    }

    /// The calling thread's current context, if it is there and healthy.
    pub(crate) fn current(&self) -> Outcome<usize> {
        match thread::context() {
            0 => Err(Code::INVALID_CONTEXT),
            context => self.healthy(context).map(|()| context),
        }
    }

    pub(crate) fn context(&self, handle: usize) -> Outcome<&Context> {
        self.contexts.get(&handle).ok_or(Code::CONTEXT_IS_DESTROYED)
    }

    /// Whether a context is there, with no error that sticks to it.
    pub(crate) fn healthy(&self, context: usize) -> Outcome {
        self.context(context)?.sticky.map_or(Ok(()), Err)
    }

    pub(crate) fn retain_primary(&mut self, device: usize) -> usize {
        let handle = PRIMARY + device * 0x1000;
        if !self.contexts.contains_key(&handle) {
            self.insert_context(handle, device);
        }
        if let Some(context) = self.contexts.get_mut(&handle) {
            context.retained += 1;
        }
        handle
    }

    /// Whether somebody has retained the device's primary context.
    pub(crate) fn has_primary(&self, device: usize) -> bool {
        self.contexts.contains_key(&(PRIMARY + device * 0x1000))
    }

    pub(crate) fn release_primary(&mut self, device: usize) -> Outcome {
        let handle = PRIMARY + device * 0x1000;
        let context = self.contexts.get_mut(&handle).ok_or(Code::INVALID_CONTEXT)?;
        context.retained -= 1;
        if context.retained == 0 {
            self.destroy_context(handle);
        }
        Ok(())
    }

    pub(crate) fn create_context(&mut self, device: usize) -> usize {
        self.others += 1;
        let handle = OTHER + self.others * 0x1000;
        self.insert_context(handle, device);
        handle
    }

    fn insert_context(&mut self, handle: usize, device: usize) {
        let legacy = self.streams.create_default(handle, 0);
        let context = Context { device, legacy, sticky: None, peers: BTreeSet::new(), retained: 0 };
        self.contexts.insert(handle, context);
    }

    pub(crate) fn destroy_context(&mut self, handle: usize) {
        self.contexts.remove(&handle);
        self.per_thread.retain(|(context, _), _| *context != handle);
        self.streams.destroy_context(handle);
        self.memory.destroy_context(handle);
        let own = self.events.all.iter().filter(|(_, event)| event.context == handle);
        for event in own.map(|(event, _)| *event).collect::<Vec<_>>() {
            let _ = self.events.destroy(event);
        }
    }
}

/// A number from the environment.
fn number(name: &str, default: usize) -> usize {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

pub(crate) fn lock() -> MutexGuard<'static, Driver> {
    // A panic crosses the C interface and ends the process, so the state behind a poisoned lock is
    // seen only on the way out.
    DRIVER.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Waits until something has changed.
pub(crate) fn wait(driver: MutexGuard<'static, Driver>) -> MutexGuard<'static, Driver> {
    CHANGED.wait(driver).unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Lets everything that can run do so, and wakes whoever waits for a change.
pub(crate) fn settle(mut driver: MutexGuard<'static, Driver>) {
    let started = driver.advance();
    drop(driver);
    CHANGED.notify_all();
    for (stream, host) in started {
        // On a thread of its own, as the real driver does it: the function may call back.
        std::thread::spawn(move || {
            (host.function)(std::ptr::with_exposed_provenance_mut(host.argument));
            let mut driver = lock();
            driver.streams.host_function_returned(stream);
            settle(driver);
        });
    }
}

//! The record of one block while it is out of the heap: it moves between a stream list and a buffer.

use std::ops::Deref;
use std::ptr::NonNull;

use super::core::StreamCore;
use crate::backend::Backend;
use crate::heap::BlockId;
use crate::heap::size_class::Rounded;
use crate::order::Epoch;
use crate::sync::host;

/// What a buffer owns, and what lies on a stream list between two buffers.
///
/// Allocation moves the boxed record out of the list into the buffer and dropping moves it back, so
/// that the two touch no count but those under the stream's own lock, and no host allocator.
pub(crate) struct Record<B: Backend> {
    /// The next record of the same bin, while this one is on a list.
    pub(super) next: Option<Box<Record<B>>>,
    /// The stream it was allocated on and is freed on.
    pub(crate) home: Home<B>,
    /// The heap's name for the block; none for a buffer of zero bytes.
    pub(crate) block: BlockId,
    /// The bin that the block belongs to on a list.
    pub(super) bin: u8,
    /// Whether others than home use the block: home's lock may guard a set of streams for it, and
    /// strangers may have used it.
    shared: host::AtomicBool,
    /// Whether a stream that is not registered may have read the block, or written it, with no
    /// synchronize since.
    stranger_read: host::AtomicBool,
    stranger_wrote: host::AtomicBool,
    pub(crate) address: u64,
    /// The block's size in bytes.
    pub(crate) bytes: u64,
    /// What the caller asked for, in bytes.
    pub(crate) len: u64,
    /// While it is on a list: the epoch of home that was open when it was freed.
    pub(super) epoch: Epoch,
}

impl<B: Backend> Record<B> {
    pub(crate) fn new(home: Home<B>) -> Box<Record<B>> {
        Box::new(Record {
            next: None,
            home,
            block: BlockId::NONE,
            bin: 0,
            shared: host::AtomicBool::new(false),
            stranger_read: host::AtomicBool::new(false),
            stranger_wrote: host::AtomicBool::new(false),
            address: 0,
            bytes: 0,
            len: 0,
            epoch: Epoch::NONE,
        })
    }

    /// Makes this the record of a block that is handed out to `home`.
    pub(crate) fn assign(
        &mut self,
        home: Home<B>,
        block: BlockId,
        size: Rounded,
        address: u64,
        len: u64,
    ) {
        self.home = home;
        self.block = block;
        self.bin = size.bin;
        *self.shared.get_mut() = false;
        *self.stranger_read.get_mut() = false;
        *self.stranger_wrote.get_mut() = false;
        self.address = address;
        self.bytes = size.bytes;
        self.len = len;
    }

    /// Whether others than home use the block.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        // Relaxed: it is set through a reference, and asked by the drop, which comes after all of them.
        self.shared.load(host::Ordering::Relaxed)
    }

    /// Notes that others use it from now on.
    pub(crate) fn share(&self) {
        self.shared.store(true, host::Ordering::Relaxed);
    }

    /// Whether a stranger may have read the block, and whether one may have written it.
    pub(crate) fn strangers(&self) -> (bool, bool) {
        // Relaxed, as for `shared`; and two threads that hold the buffer at the same time only read.
        let flag = |flag: &host::AtomicBool| flag.load(host::Ordering::Relaxed);
        (flag(&self.stranger_read), flag(&self.stranger_wrote))
    }

    /// Notes whether strangers may have read or written it.
    #[cfg(feature = "cuda")]
    pub(crate) fn set_strangers(&self, read: Option<bool>, wrote: Option<bool>) {
        for (flag, value) in [(&self.stranger_read, read), (&self.stranger_wrote, wrote)] {
            if let Some(value) = value {
                flag.store(value, host::Ordering::Relaxed);
            }
        }
    }

    /// Chains this record before others.
    pub(crate) fn chain(&mut self, next: Option<Box<Record<B>>>) {
        self.next = next;
    }

    /// Takes the records behind this one.
    pub(crate) fn unchain(&mut self) -> Option<Box<Record<B>>> {
        self.next.take()
    }
}

/// A reference to a stream that is counted under the stream's own lock, not by an `Arc`.
///
/// Whoever holds one for use is counted in the stream's `live` (a buffer, or an entry of a `use_on`
/// set). A stream is retired only when nothing is counted, which is decided under the same lock, and
/// its core is freed only after that.
pub(crate) struct Home<B: Backend> {
    core: NonNull<StreamCore<B>>,
}

impl<B: Backend> Home<B> {
    /// A reference to `core`, to be counted by the caller.
    pub(crate) fn new(core: &StreamCore<B>) -> Home<B> {
        Home { core: NonNull::from(core) }
    }

    /// Whether it refers to this stream.
    pub(crate) fn is(self, core: &StreamCore<B>) -> bool {
        std::ptr::eq(self.core.as_ptr(), core)
    }

    /// The core with a lifetime of the caller's choice.
    ///
    /// # Safety
    ///
    /// The caller's count must last as long as the lifetime, apart from one thing: after the caller
    /// has taken its own count back under the stream's lock, it may still hold that lock's guard and
    /// drop it, since nothing of the core is touched after the store that unlocks.
    pub(crate) unsafe fn counted<'a>(self) -> &'a StreamCore<B> {
        // SAFETY: the count keeps the core alive, because a stream is retired only when its counts are
        // zero, and whoever frees a core has taken its lock after that.
        unsafe { self.core.as_ref() }
    }
}

impl<B: Backend> Clone for Home<B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Home<B> {}

impl<B: Backend> Deref for Home<B> {
    type Target = StreamCore<B>;

    fn deref(&self) -> &StreamCore<B> {
        // SAFETY: this reference is counted while it can be dereferenced, and the borrow of it ends
        // before the count does, because the record or set that holds it is what is counted.
        unsafe { self.core.as_ref() }
    }
}

// SAFETY: a `Home` is a reference to a `StreamCore`, which is `Sync`; what is counted for it is not
// tied to a thread.
unsafe impl<B: Backend> Send for Home<B> {}
// SAFETY: as above.
unsafe impl<B: Backend> Sync for Home<B> {}

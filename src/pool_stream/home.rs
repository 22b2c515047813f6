//! A buffer's reference to its stream.

use std::ops::Deref;
use std::ptr::NonNull;

use super::core::StreamCore;
use crate::backend::Backend;

/// A reference to a stream that is counted under the stream's own lock, not by an `Arc`.
///
/// Whoever holds one for use is counted: a buffer in the stream's `live`, an entry of a `use_on` set in
/// its `named`. A stream is retired only when nothing is counted, which is decided under the same lock, and
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
        // before the count does, because the buffer or set that holds it is what is counted.
        let core = unsafe { self.core.as_ref() };
        core.lifetime.touch();
        core
    }
}

// SAFETY: a `Home` is a reference to a `StreamCore`, which is `Sync`; what is counted for it is not
// tied to a thread.
unsafe impl<B: Backend> Send for Home<B> {}
// SAFETY: as above.
unsafe impl<B: Backend> Sync for Home<B> {}

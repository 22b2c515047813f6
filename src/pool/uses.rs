//! Ordering a use that cannot return an error and cannot name its stream: a typed slice's address is
//! asked for by code that knows nothing of the pool.

use super::{PoolCore, copy};
use crate::backend::Backend;
use crate::buffer::{Buffer, STRANGER_READ, STRANGER_WROTE};
use crate::error::Error;
use crate::pool_stream::core::StreamCore;

/// Who is about to use a buffer.
pub(crate) enum User<'a, B: Backend> {
    /// A registered stream, which the caller keeps registered.
    Known(&'a StreamCore<B>),
    /// A stranger: a stream of the pool's context that is not registered.
    Stranger,
}

/// What the use does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    /// It may write.
    pub(crate) writes: bool,
    /// Nobody else can be between asking for the address and submitting a use that conflicts with
    /// this one: Rust's borrows of the *whole* buffer say so.
    pub(crate) alone: bool,
}

impl<B: Backend> PoolCore<B> {
    /// Orders a use that is about to be submitted after every earlier one, and has the buffer's next
    /// owner come after it.
    ///
    /// The stream waits for home and for each stream of the set, as they are now. Where that cannot be,
    /// and always for a stranger, the host waits for them. When that fails too, the use must not happen.
    pub(crate) fn order_use(
        &self,
        buffer: &Buffer<B>,
        user: &User<'_, B>,
        access: Access,
    ) -> Result<(), Error> {
        if buffer.block.is_none() {
            return Ok(());
        }
        let _call = self.begin_call()?;
        if let User::Known(other) = user {
            self.check_access(other)?;
        }
        self.settle_strangers(buffer, access)?;
        for source in sources(buffer, user) {
            self.order_source(source, user)?;
        }
        match user {
            User::Known(other) if buffer.home.is(other) => {}
            User::Known(other) => self.name_user(buffer, other),
            User::Stranger => {
                buffer.add_others(if access.writes { STRANGER_WROTE } else { STRANGER_READ });
            }
        }
        Ok(())
    }

    /// Makes the user come after all that is queued on `source` by now.
    fn order_source(&self, source: &StreamCore<B>, user: &User<'_, B>) -> Result<(), Error> {
        if let User::Known(taker) = user
            && self.order_after_now(source, taker).is_ok()
        {
            return Ok(());
        }
        self.synchronize_stream(source)
    }

    /// A use that conflicts with a stranger's comes after it: nothing can be waited for but the whole
    /// context.
    pub(super) fn settle_strangers(&self, buffer: &Buffer<B>, access: Access) -> Result<(), Error> {
        let conflicts = if access.writes { STRANGER_READ | STRANGER_WROTE } else { STRANGER_WROTE };
        if !buffer.has_others(conflicts) {
            return Ok(());
        }
        self.quiesce_strangers()?;
        if access.alone {
            // Every stranger's use that conflicts with this one was submitted before the synchronize.
            buffer.remove_others(conflicts);
        }
        Ok(())
    }
}

/// The streams whose queued work the user comes after.
fn sources<'a, B: Backend>(buffer: &'a Buffer<B>, user: &User<'_, B>) -> Vec<&'a StreamCore<B>> {
    match user {
        User::Known(other) => copy::sources(buffer, other),
        User::Stranger => copy::all_streams(buffer),
    }
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;

//! Copies of buffers, to a stream of any device.

use super::PoolCore;
use crate::backend::Backend;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::fault::seeded;
use crate::pool_stream::PoolStream;
use crate::pool_stream::core::StreamCore;

#[cfg(feature = "cuda")]
use super::Access;

impl<B: Backend> PoolCore<B> {
    /// A copy of a buffer of this pool that is at home on `other`, made on that stream: after all that was
    /// submitted to the buffer's own streams before, and before its next owner.
    pub(crate) fn copy_to(
        &self,
        buffer: &Buffer<B>,
        other: &PoolStream<B>,
    ) -> Result<Buffer<B>, Error> {
        let _call = self.begin_call()?;
        let taker = &*other.core;
        let driver = &taker.pool.driver;
        driver.refuse_capturing(taker.stream(), "the stream that is to copy")?;
        #[cfg(feature = "cuda")]
        self.settle_strangers(buffer, Access { writes: false, alone: false })?;
        for source in sources(buffer, taker).into_iter().filter(|_| !seeded!(CopyTooEarly)) {
            self.order_after_now(source, taker)?;
        }
        // After what can fail, so that no buffer is freed again, which a scope would count.
        let copy = other.alloc(buffer.len())?;
        // Before the copy is submitted: should that fail, whether it was is unknown.
        if !buffer.home.is(taker) && !seeded!(CopyNotNamed) {
            self.name_user(buffer, taker);
        }
        let (to, from) = (copy.device_ptr(), buffer.device_ptr());
        // All of a block may be used, and both are of one size, because they were asked for by one length.
        let bytes = buffer.bytes().min(copy.bytes());
        // SAFETY: both buffers hold as many bytes, and are two, because they live. The stream is ordered after
        // the earlier uses of the one, by the waits above, and of the other, whose home it is; later ones come
        // after this, because the stream is home or in the buffer's set.
        unsafe { driver.copy((taker.stream(), to), (&self.driver, from), bytes) }.map(|()| copy)
    }
}

/// The streams whose queued work a use by `user` comes after: home and the set, without the user itself.
pub(super) fn sources<'a, B: Backend>(
    buffer: &'a Buffer<B>,
    user: &StreamCore<B>,
) -> Vec<&'a StreamCore<B>> {
    let mut all = all_streams(buffer);
    all.retain(|core| !std::ptr::eq(*core, user));
    all
}

/// Home and the set.
pub(super) fn all_streams<B: Backend>(buffer: &Buffer<B>) -> Vec<&StreamCore<B>> {
    let home: &StreamCore<B> = &buffer.home;
    let mut all = vec![home];
    let state = home.state.lock();
    for other in state.sets.get(&buffer.address).into_iter().flatten() {
        // SAFETY: entries of a set are counted in the stream's `named`, and are taken out only by who owns
        // the buffer or borrows it exclusively, which the borrow of it excludes.
        all.push(unsafe { other.counted() });
    }
    drop(state);
    all
}

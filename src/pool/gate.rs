//! Who may begin a call, and who may end the pool.

use super::PoolCore;
use crate::backend::Backend;
use crate::error::{Error, Reason};
use crate::sync::host::{AtomicU64, Ordering};
use crate::tell;

/// Whether the pool is closed, and how many calls are under way. One word tells both, so that whoever closes
/// the pool sees every call that has begun before, and every later one sees that the pool is closed.
#[derive(Debug, Default)]
pub(super) struct Gate {
    word: AtomicU64,
}

const CLOSED: u64 = 1 << 63;

impl Gate {
    /// A call begins, unless the pool is closed.
    pub(super) fn enter(&self) -> bool {
        let enter = |word| (word & CLOSED == 0).then_some(word + 1);
        // Acquire: a call comes after the close that was refused before it. Relaxed on failure: nothing of
        // a closed pool is looked at.
        self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok()
    }

    /// A call begins that cannot be refused: a drop or a scope's end.
    pub(super) fn enter_always(&self) {
        self.word.fetch_add(1, Ordering::Acquire);
    }

    /// A call ends.
    pub(super) fn exit(&self) {
        // Release, with the acquire in `close`: who sees it gone sees what it has done.
        self.word.fetch_sub(1, Ordering::Release);
    }

    /// Closes the pool. Says whether it was closed, and how many calls are under way.
    pub(super) fn close(&self) -> (bool, u64) {
        let before = self.word.fetch_or(CLOSED, Ordering::AcqRel);
        (before & CLOSED != 0, before & !CLOSED)
    }

    /// Whether the pool is closed.
    pub(super) fn is_closed(&self) -> bool {
        // Relaxed: a call beside the close may come before it.
        self.word.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Takes [`close`](Self::close) back.
    pub(super) fn reopen(&self) {
        self.word.fetch_and(!CLOSED, Ordering::Release);
    }
}

/// A call that may block, under way. When it ends with the device lost, whoever found that out, no stream
/// serves hits any more.
#[must_use = "the call ends when this is dropped"]
pub(crate) struct Call<'a, B: Backend> {
    pool: &'a PoolCore<B>,
}

impl<B: Backend> Drop for Call<'_, B> {
    fn drop(&mut self) {
        if self.pool.driver.lost().is_some() {
            self.pool.shut_hits();
        }
        self.pool.gate.exit();
    }
}

impl<B: Backend> PoolCore<B> {
    /// What every call that may block does first: refuses on a closed pool or a lost device, and does
    /// what drops have left for it.
    pub(crate) fn begin_call(&self) -> Result<Call<'_, B>, Error> {
        self.begin_call_that(false)
    }

    /// The same for a call that may block until work on the device has finished.
    pub(crate) fn begin_blocking_call(&self) -> Result<Call<'_, B>, Error> {
        self.begin_call_that(true)
    }

    fn begin_call_that(&self, may_block: bool) -> Result<Call<'_, B>, Error> {
        if let Some(error) = self.driver.lost() {
            self.shut_hits();
            return Err(error.clone());
        }
        if !self.gate.enter() {
            return Err(Error::new(Reason::Closed));
        }
        let call = Call { pool: self };
        self.tend();
        super::end::poll(may_block);
        tell::now();
        Ok(call)
    }

    /// A call that cannot be refused, since it is the end of something: it does nothing for others.
    pub(crate) fn begin_end(&self) -> Call<'_, B> {
        self.gate.enter_always();
        Call { pool: self }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_seen_or_refused() {
        let gate = Gate::default();
        assert!(gate.enter());
        assert_eq!(gate.close(), (false, 1));
        assert!(!gate.enter());
        gate.enter_always();
        assert_eq!(gate.close(), (true, 2));
        gate.reopen();
        assert!(gate.enter());
        (0..3).for_each(|_| gate.exit());
        assert_eq!(gate.close(), (false, 0));
    }
}

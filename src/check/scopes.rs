//! The operations on quiescent scopes, and the one-call form.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::program::Exit;
use super::world::{Check, Live, Local, Scope, World, ensure};
use crate::{QuiescentReport, StreamPool};

impl World {
    pub(super) fn quiesce(&mut self, local: &mut Local, pool: u8) -> Result<bool, String> {
        let pool = self.side(pool);
        match self.sides[pool].pool.quiesce() {
            Ok(scope) => {
                let serial = self.sides[pool].serial;
                let nested = local.scopes.iter().any(|scope| scope.serial == serial);
                self.coverage.nested_scopes += u64::from(nested);
                let (freed, bytes) = (0, 0);
                local.scopes.push(Scope { scope: Some(scope), pool, serial, freed, bytes });
                self.open_scopes += 1;
            }
            Err(error) => self.expect_error(&error, false, "quiesce")?,
        }
        Ok(true)
    }

    pub(super) fn end_scope(
        &mut self,
        local: &mut Local,
        scope: u8,
        exit: Exit,
    ) -> Result<bool, String> {
        let open: Vec<usize> =
            (0..local.scopes.len()).filter(|at| local.scopes[*at].scope.is_some()).collect();
        let Some(&at) = open.get(usize::from(scope) % open.len().max(1)) else { return Ok(false) };
        self.coverage.out_of_order_exits += u64::from(Some(&at) != open.last());
        if exit == Exit::Forget {
            self.coverage.leaked_scopes += 1;
            local.leak(at);
            return Ok(true);
        }
        if exit == Exit::Panic {
            self.end_by_panic(local, at);
            return Ok(true);
        }
        self.end_in_order(local, at, exit == Exit::Finish)?;
        Ok(true)
    }

    /// Ends the scope at this place of the thread's list.
    pub(super) fn end_in_order(&mut self, local: &mut Local, at: usize, finish: bool) -> Check {
        let ended = local.scopes.remove(at);
        self.open_scopes -= 1;
        self.coverage.scopes += 1;
        let Some(scope) = ended.scope else { return Ok(()) };
        if !finish {
            drop(scope);
            return Ok(());
        }
        let report = scope.finish();
        self.check_report(report, ended.freed, ended.bytes)
    }

    fn check_report(&mut self, report: QuiescentReport, freed: u64, bytes: u64) -> Check {
        let QuiescentReport { clean, deferred, .. } = report;
        ensure!(
            (report.freed, report.bytes) == (freed, bytes),
            "{freed} buffers of {bytes} bytes were freed in a scope: {report:?}"
        );
        ensure!(clean + deferred == freed, "clean and deferred are all: {report:?}");
        self.coverage.clean_at_scope_end += clean;
        self.coverage.deferred_at_scope_end += deferred;
        Ok(())
    }

    /// The scope is dropped by a panic, after a buffer that the same panic drops.
    fn end_by_panic(&mut self, local: &mut Local, at: usize) {
        let dropped = self.live.pop();
        if let Some(live) = &dropped {
            self.given_back(live);
            self.note_in_scope(local, live.pool, live.capacity());
        }
        let ended = local.scopes.remove(at);
        self.open_scopes -= 1;
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _scope = ended.scope;
            let _live = dropped;
            resume_unwind(Box::new("a panic inside a scope"));
        }));
        self.coverage.panics_in_scope += u64::from(unwound.is_err());
        self.coverage.scopes += 1;
    }

    pub(super) fn release(
        &mut self,
        local: &mut Local,
        pool: u8,
        buffer: u8,
        count: u8,
    ) -> Result<bool, String> {
        let pool = self.side(pool);
        let (value, given) = self.take_value(buffer, count);
        let (own, mut others): (Vec<_>, Vec<_>) = given.into_iter().partition(|of| of.0 == pool);
        match self.sides[pool].pool.release(value) {
            Ok(report) => {
                self.coverage.releases += 1;
                let freed = own.iter().filter(|of| of.1 > 0).count() as u64;
                self.check_report(report, freed, own.iter().map(|of| of.1).sum())?;
            }
            Err(error) => {
                // There was no scope: the value was dropped in the ordinary way.
                others.extend(own);
                self.expect_error(&error, false, "release")?;
            }
        }
        for (pool, capacity) in others {
            self.note_in_scope(local, pool, capacity);
        }
        Ok(true)
    }

    /// Takes up to so many buffers, from one on, and says of which pool each is and how many bytes it has.
    fn take_value(&mut self, buffer: u8, count: u8) -> (Vec<Live>, Vec<(usize, u64)>) {
        let mut value = Vec::new();
        for _ in 0..usize::from(count).min(self.live.len()) {
            let at = usize::from(buffer) % self.live.len();
            value.push(self.live.swap_remove(at));
        }
        value.iter().for_each(|live| self.given_back(live));
        let given = value.iter().map(|live| (live.pool, live.capacity())).collect();
        (value, given)
    }

    /// The same in scopes of all pools, opened and ended together.
    pub(super) fn release_of_all(
        &mut self,
        local: &mut Local,
        buffer: u8,
        count: u8,
    ) -> Result<bool, String> {
        let (value, given) = self.take_value(buffer, count);
        let pools: Vec<_> = self.sides.iter().map(|side| side.pool.clone()).collect();
        match StreamPool::quiesce_all(&pools.iter().collect::<Vec<_>>()) {
            Ok(scopes) => {
                drop(value);
                for (pool, report) in scopes.finish().into_iter().enumerate() {
                    let own = given.iter().filter(|of| of.0 == pool && of.1 > 0);
                    let (freed, bytes) = (own.clone().count() as u64, own.map(|of| of.1).sum());
                    self.check_report(report, freed, bytes)?;
                }
                self.coverage.releases_of_all += 1;
            }
            Err(error) => {
                drop(value);
                for (pool, capacity) in given {
                    self.note_in_scope(local, pool, capacity);
                }
                self.expect_error(&error, false, "scopes of all pools")?;
            }
        }
        Ok(true)
    }
}

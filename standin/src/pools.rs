//! The driver's memory pools: which a device allocates from, and each one's release threshold. What they
//! give is memory like any other; none keeps what is freed.

use std::collections::BTreeMap;

use crate::code::{Code, Outcome};

/// The first device's default pool; pools that are made come after the last device's.
const DEFAULT: usize = 0x0900_1000;
const CREATED: usize = 0x0901_0000;

#[derive(Debug)]
struct Pool {
    device: usize,
    threshold: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Pools {
    /// By handle. Default pools are here once they have been changed.
    all: BTreeMap<usize, Pool>,
    /// By device, where it is not the default one.
    current: BTreeMap<usize, usize>,
    created: usize,
}

impl Pools {
    pub(crate) fn default_of(device: usize) -> usize {
        DEFAULT + device * 0x40
    }

    pub(crate) fn current_of(&self, device: usize) -> usize {
        self.current.get(&device).copied().unwrap_or(Pools::default_of(device))
    }

    pub(crate) fn create(&mut self, device: usize) -> usize {
        self.created += 1;
        let handle = CREATED + self.created * 0x40;
        self.all.insert(handle, Pool { device, threshold: 0 });
        handle
    }

    /// A device that allocated from it has its default pool again.
    pub(crate) fn destroy(&mut self, pool: usize) -> Outcome {
        if pool < CREATED {
            return Err(Code::INVALID_VALUE);
        }
        self.all.remove(&pool).ok_or(Code::INVALID_VALUE)?;
        self.current.retain(|_, current| *current != pool);
        Ok(())
    }

    pub(crate) fn make_current(&mut self, device: usize, pool: usize) -> Outcome {
        if self.pool(pool)?.device != device {
            return Err(Code::INVALID_VALUE);
        }
        self.current.insert(device, pool);
        Ok(())
    }

    pub(crate) fn threshold(&mut self, pool: usize) -> Outcome<&mut u64> {
        Ok(&mut self.pool(pool)?.threshold)
    }

    fn pool(&mut self, handle: usize) -> Outcome<&mut Pool> {
        if (DEFAULT..CREATED).contains(&handle) && (handle - DEFAULT).is_multiple_of(0x40) {
            let device = (handle - DEFAULT) / 0x40;
            return Ok(self.all.entry(handle).or_insert(Pool { device, threshold: 0 }));
        }
        self.all.get_mut(&handle).ok_or(Code::INVALID_VALUE)
    }
}

//! Handles that are used again at once, last in, first out, as the real driver's stream handles are
//! (20 of 20, with the old stream's work pending).

/// Makes the handles of one kind of object.
#[derive(Debug)]
pub(crate) struct Handles {
    next: usize,
    free: Vec<usize>,
}

impl Handles {
    /// Handles from `base` upwards. They look like pointers, and nothing is behind them.
    pub(crate) const fn from(base: usize) -> Handles {
        Handles { next: base, free: Vec::new() }
    }

    pub(crate) fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.next += 0x40;
            self.next - 0x40
        })
    }

    pub(crate) fn give_back(&mut self, handle: usize) {
        self.free.push(handle);
    }
}

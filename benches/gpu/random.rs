//! The generator and the draws of C++ programs, so that theirs and ours run the same sequence:
//! `std::mt19937_64`, and `std::uniform_real_distribution<double>` as libstdc++ has it.

const SIZE: usize = 312;
const MIDDLE: usize = 156;
const UPPER: u64 = 0xFFFF_FFFF_8000_0000;
const MATRIX: u64 = 0xB502_6F5A_A966_19E9;

/// The 64-bit Mersenne Twister of Matsumoto and Nishimura.
pub(crate) struct Mt19937 {
    state: [u64; SIZE],
    at: usize,
}

impl Mt19937 {
    pub(crate) fn new(seed: u64) -> Mt19937 {
        let mut state = [seed; SIZE];
        for at in 1..SIZE {
            let last = state[at - 1];
            state[at] = (last ^ (last >> 62)).wrapping_mul(6_364_136_223_846_793_005) + at as u64;
        }
        Mt19937 { state, at: SIZE }
    }

    pub(crate) fn next(&mut self) -> u64 {
        if self.at == SIZE {
            self.renew();
        }
        let mut word = self.state[self.at];
        self.at += 1;
        word ^= (word >> 29) & 0x5555_5555_5555_5555;
        word ^= (word << 17) & 0x71D6_7FFF_EDA6_0000;
        word ^= (word << 37) & 0xFFF7_EEE0_0000_0000;
        word ^ (word >> 43)
    }

    fn renew(&mut self) {
        for at in 0..SIZE {
            let joined = (self.state[at] & UPPER) | (self.state[(at + 1) % SIZE] & !UPPER);
            let mixed = (joined >> 1) ^ if joined & 1 == 1 { MATRIX } else { 0 };
            self.state[at] = self.state[(at + MIDDLE) % SIZE] ^ mixed;
        }
        self.at = 0;
    }

    /// Evenly from `low` to below `high`.
    pub(crate) fn real(&mut self, low: f64, high: f64) -> f64 {
        // 2^64 as a double.
        const RANGE: f64 = 18_446_744_073_709_551_616.0;
        let part = (self.next() as f64 / RANGE).min(1.0f64.next_down());
        part * (high - low) + low
    }

    /// From 0 to below `end`, by the remainder: uneven by nothing that matters here.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

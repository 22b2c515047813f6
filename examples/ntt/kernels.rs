//! What is launched: the kernels of `kernels/ntt.ptx`, and the same steps in Rust.
//!
//! The simulated device runs the Rust ones, so that the indices and the arithmetic of the PTX are checked
//! where there is no GPU; on a GPU they tell which kernel is wrong.

use super::modular::Factor;
use super::reference::on_all_cores;
use super::ring::{Limb, Ring};

/// A pass has at most as many stages: 2^8 rows of 4 columns are 8 KiB of shared memory.
const MOST_STAGES: u32 = 8;
const LOG_WIDTH: u32 = 2;
/// Threads a block of the kernels that go word by word.
const THREADS: u32 = 256;
/// The largest number of numbers that a kernel takes.
const MOST_NUMBERS: usize = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Forward,
    Inverse,
    Product,
    Rescale,
}

impl Kernel {
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) const ALL: [Kernel; 4] =
        [Kernel::Forward, Kernel::Inverse, Kernel::Product, Kernel::Rescale];

    /// What it is called in the PTX.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kernel::Forward => "forward",
            Kernel::Inverse => "inverse",
            Kernel::Product => "product",
            Kernel::Rescale => "rescale",
        }
    }

    /// How many numbers it takes after its two inputs and its target.
    pub(crate) fn numbers(self) -> usize {
        match self {
            Kernel::Forward => 5,
            Kernel::Inverse => MOST_NUMBERS,
            Kernel::Product => 2,
            Kernel::Rescale => 3,
        }
    }
}

/// A launch of one kernel, but for its buffers: two inputs and a target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    numbers: [u64; MOST_NUMBERS],
}

impl Launch {
    fn new(kernel: Kernel, blocks: u32, threads: u32, numbers: &[u64]) -> Launch {
        assert_eq!(numbers.len(), kernel.numbers(), "numbers of kernel {}", kernel.name());
        let mut all = [0; MOST_NUMBERS];
        all[..numbers.len()].copy_from_slice(numbers);
        Launch { kernel, blocks, threads, numbers: all }
    }

    pub(crate) fn numbers(&self) -> &[u64] {
        &self.numbers[..self.kernel.numbers()]
    }

    /// Bytes of shared memory of each block: the tile has two words a thread.
    #[cfg(feature = "cuda")]
    pub(crate) fn shared_bytes(&self) -> u32 {
        match self.kernel {
            Kernel::Forward | Kernel::Inverse => self.threads * 16,
            Kernel::Product | Kernel::Rescale => 0,
        }
    }

    /// The passes of a forward transform.
    pub(crate) fn forward(ring: &Ring, limb: &Limb) -> impl Iterator<Item = Launch> + use<> {
        let (stages, prime) = (ring.stages(), limb.prime);
        passes(stages).map(move |pass| {
            let numbers = pass.numbers(prime);
            Launch::new(Kernel::Forward, pass.blocks(stages), pass.threads(), &numbers)
        })
    }

    /// The passes of an inverse transform of a `product`.
    pub(crate) fn inverse(ring: &Ring, limb: &Limb) -> impl Iterator<Item = Launch> + use<> {
        let (stages, prime, scale) = (ring.stages(), limb.prime, limb.product_scale);
        passes(stages).rev().map(move |pass| {
            // The last pass is the one of the first stage.
            let scale = if pass.first == 0 { scale } else { Factor::new(1, prime) };
            let mut numbers = pass.numbers(prime).to_vec();
            numbers.extend([scale.factor, scale.quotient]);
            Launch::new(Kernel::Inverse, pass.blocks(stages), pass.threads(), &numbers)
        })
    }

    pub(crate) fn product(ring: &Ring, limb: &Limb) -> Launch {
        Launch::by_word(Kernel::Product, ring, &[limb.prime, limb.prime_inverse])
    }

    /// Drops the limb of number `dropped`.
    pub(crate) fn rescale(ring: &Ring, limb: &Limb, dropped: usize) -> Launch {
        let Factor { factor, quotient } = limb.rescale[dropped];
        Launch::by_word(Kernel::Rescale, ring, &[limb.prime, factor, quotient])
    }

    fn by_word(kernel: Kernel, ring: &Ring, numbers: &[u64]) -> Launch {
        let words = ring.n as u32;
        let threads = THREADS.min(words);
        Launch::new(kernel, words / threads, threads, numbers)
    }

    /// Does what the launch does: the steps of the PTX, thread by thread.
    pub(crate) fn execute(&self, inputs: [&[u64]; 2], target: &mut [u64]) {
        match self.kernel {
            Kernel::Forward | Kernel::Inverse => {
                let tiles = on_all_cores(self.blocks as usize, |block| {
                    self.execute_block(block as u64, inputs)
                });
                for (block, tile) in tiles.iter().enumerate() {
                    for thread in 0..self.threads as usize {
                        let [near, far] = self.words_of(block as u64, thread as u64);
                        target[near] = tile[thread];
                        target[far] = tile[thread + self.threads as usize];
                    }
                }
            }
            Kernel::Product => {
                let [prime, prime_inverse] = self.numbers[..2] else { unreachable!("two numbers") };
                for (index, target) in target.iter_mut().enumerate() {
                    let (x, y) = (inputs[0][index], inputs[1][index]);
                    let m = x.wrapping_mul(y).wrapping_mul(prime_inverse);
                    *target = difference(high(x, y), high(m, prime), prime);
                }
            }
            Kernel::Rescale => {
                let [prime, factor, quotient] = self.numbers[..3] else {
                    unreachable!("three numbers")
                };
                for (index, target) in target.iter_mut().enumerate() {
                    let y = reduced(inputs[1][index], prime);
                    let x = difference(inputs[0][index], y, prime);
                    *target = scaled(x, [factor, quotient], prime);
                }
            }
        }
    }

    /// The column of a pass that a thread works on.
    fn column_of(&self, block: u64, thread: u64) -> u64 {
        let log_width = self.numbers[4];
        (block << log_width) + (thread & ((1 << log_width) - 1))
    }

    /// The two words that it reads in the beginning, and writes in the end.
    fn words_of(&self, block: u64, thread: u64) -> [usize; 2] {
        let [_, _, stages, log_stride, log_width, ..] = self.numbers;
        let column = self.column_of(block, thread);
        let group = (column >> log_stride) << log_stride;
        let rest = column - group;
        let near = ((thread >> log_width) << log_stride) + (group << stages) + rest;
        [near as usize, (near + (1 << (log_stride + stages - 1))) as usize]
    }

    /// One thread block of a pass: its tile as it is written. Where the PTX has a barrier, a loop over the
    /// threads ends.
    fn execute_block(&self, block: u64, [source, table]: [&[u64]; 2]) -> Vec<u64> {
        let [prime, first, stages, log_stride, log_width, scale, scale_quotient] = self.numbers;
        let threads = u64::from(self.threads);
        let mut tile = vec![0; 2 * self.threads as usize];
        for thread in 0..threads {
            let [near, far] = self.words_of(block, thread);
            tile[thread as usize] = source[near];
            tile[(thread + threads) as usize] = source[far];
        }
        let forward = self.kernel == Kernel::Forward;
        for step in 0..stages {
            let stage = if forward { step } else { stages - 1 - step };
            let log_gap = log_width + stages - 1 - stage;
            for thread in 0..threads {
                let group = self.column_of(block, thread) >> log_stride;
                let node = ((1 << first) + group) << stage;
                let twin = thread >> log_gap;
                let low = (thread + (twin << log_gap)) as usize;
                let high = low + (1 << log_gap);
                let index = 2 * (node + twin) as usize;
                let factor = [table[index], table[index + 1]];
                let (u, v) = (tile[low], tile[high]);
                if forward {
                    let v = scaled(v, factor, prime);
                    tile[low] = reduced(u + v, prime);
                    tile[high] = difference(u, v, prime);
                } else {
                    tile[low] = reduced(u + v, prime);
                    tile[high] = scaled(difference(u, v, prime), factor, prime);
                }
            }
        }
        if !forward {
            tile.iter_mut().for_each(|word| *word = scaled(*word, [scale, scale_quotient], prime));
        }
        tile
    }
}

/// Some stages that follow one another.
#[derive(Clone, Copy, Debug)]
struct Pass {
    first: u32,
    stages: u32,
    log_stride: u32,
    log_width: u32,
}

impl Pass {
    fn numbers(&self, prime: u64) -> [u64; 5] {
        let Pass { first, stages, log_stride, log_width } = *self;
        [prime, first.into(), stages.into(), log_stride.into(), log_width.into()]
    }

    fn threads(&self) -> u32 {
        1 << (self.stages - 1 + self.log_width)
    }

    fn blocks(&self, all: u32) -> u32 {
        1 << (all - self.stages - self.log_width)
    }
}

/// The passes of a transform of so many stages, as few and as even as can be.
fn passes(all: u32) -> impl DoubleEndedIterator<Item = Pass> {
    let count = all.div_ceil(MOST_STAGES);
    (0..count).map(move |index| {
        let (first, end) = (all * index / count, all * (index + 1) / count);
        let stages = end - first;
        let log_width = LOG_WIDTH.min(all - stages);
        Pass { first, stages, log_stride: all - end, log_width }
    })
}

/// The upper half of a product.
fn high(x: u64, y: u64) -> u64 {
    ((u128::from(x) * u128::from(y)) >> 64) as u64
}

fn reduced(x: u64, prime: u64) -> u64 {
    if x >= prime { x - prime } else { x }
}

fn difference(x: u64, y: u64, prime: u64) -> u64 {
    let rest = x.wrapping_sub(y);
    if x < y { rest.wrapping_add(prime) } else { rest }
}

fn scaled(x: u64, [factor, quotient]: [u64; 2], prime: u64) -> u64 {
    let rest = x.wrapping_mul(factor).wrapping_sub(high(x, quotient).wrapping_mul(prime));
    reduced(rest, prime)
}

//! What is multiplied: numbers that look random, the same in each run.

use super::reference::{Polynomial, on_all_cores};
use super::ring::Ring;

/// The polynomials of a run.
pub(crate) struct Inputs {
    /// The batch that the run begins with.
    pub(crate) start: Vec<Polynomial>,
    /// For each layer what the batch is multiplied by. Each has one limb less than the one before.
    pub(crate) multipliers: Vec<Polynomial>,
}

impl Inputs {
    pub(crate) fn new(ring: &Ring, batch: usize, layers: usize) -> Inputs {
        let limbs = ring.limbs.len();
        let polynomial = |number: usize, limbs: usize| {
            on_all_cores(limbs, |limb| words(ring, limb, (number * ring.limbs.len() + limb) as u64))
        };
        Inputs {
            start: (0..batch).map(|number| polynomial(number, limbs)).collect(),
            multipliers: (0..layers)
                .map(|layer| polynomial(batch + layer, limbs - layer))
                .collect(),
        }
    }
}

/// The words of one limb (Steele, Lea and Flood: SplitMix64).
fn words(ring: &Ring, limb: usize, seed: u64) -> Vec<u64> {
    let prime = ring.limbs[limb].prime;
    let mut state = seed << 32;
    let word = |_| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % prime
    };
    (0..ring.n).map(word).collect()
}

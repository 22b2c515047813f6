//! The ring that the polynomials are from: integers modulo a product of primes, and X^n = -1. A number is
//! kept as its residues, one for each prime; a polynomial as a limb for each prime.

use super::modular::{Factor, inverse, inverse_of_odd, primes, root_of_minus_one};

/// One prime, and all constants that belong to it.
pub(crate) struct Limb {
    pub(crate) prime: u64,
    /// That of the prime modulo 2^64.
    pub(crate) prime_inverse: u64,
    /// The factors of the forward transform: each a word and its quotient. The factor of block `b` of the
    /// 2^s blocks in stage `s` is at `2^s + b`.
    pub(crate) forward: Vec<u64>,
    /// Those of the inverse transform.
    pub(crate) inverse: Vec<u64>,
    /// 1 / n.
    pub(crate) scale: Factor,
    /// 2^64 / n: what the device's product lacks is made up for with the scale.
    pub(crate) product_scale: Factor,
    /// By the number of the limb that is dropped: the inverse of that one's prime. Unused for itself.
    pub(crate) rescale: Vec<Factor>,
}

/// The primes, the first of which stay longest: the last limb is dropped first.
pub(crate) struct Ring {
    pub(crate) n: usize,
    pub(crate) limbs: Vec<Limb>,
}

impl Ring {
    /// The ring of polynomials with `n` coefficients, a power of two, and as many limbs. `None` when there
    /// are not that many primes.
    pub(crate) fn new(n: usize, count: usize) -> Option<Ring> {
        let primes = primes(n, count);
        let limbs: Vec<_> = primes.iter().map(|&prime| Limb::new(n, prime, &primes)).collect();
        (limbs.len() == count && !limbs.is_empty()).then_some(Ring { n, limbs })
    }

    /// The logarithm of `n`: the stages of a transform.
    pub(crate) fn stages(&self) -> u32 {
        self.n.trailing_zeros()
    }
}

impl Limb {
    fn new(n: usize, prime: u64, primes: &[u64]) -> Limb {
        let root = root_of_minus_one(n, prime);
        let of_n = inverse(n as u64 % prime, prime);
        let two_64 = ((1u128 << 64) % u128::from(prime)) as u64;
        let rescale = |&dropped: &u64| match dropped % prime {
            0 => Factor::new(0, prime),
            rest => Factor::new(inverse(rest, prime), prime),
        };
        let scale = Factor::new(of_n, prime);
        Limb {
            prime,
            prime_inverse: inverse_of_odd(prime),
            forward: powers(n, root, prime),
            inverse: powers(n, inverse(root, prime), prime),
            scale,
            product_scale: Factor::new(scale.times(two_64, prime), prime),
            rescale: primes.iter().map(rescale).collect(),
        }
    }
}

/// The powers of a root, each with its quotient, in the order of the exponents' reversed bits.
fn powers(n: usize, root: u64, prime: u64) -> Vec<u64> {
    let bits = n.trailing_zeros();
    let root = Factor::new(root, prime);
    let mut words = vec![0; 2 * n];
    let mut power = 1;
    for exponent in 0..n {
        let at = exponent.reverse_bits() >> (usize::BITS - bits);
        let Factor { factor, quotient } = Factor::new(power, prime);
        words[2 * at..2 * at + 2].copy_from_slice(&[factor, quotient]);
        power = root.times(power, prime);
    }
    words
}

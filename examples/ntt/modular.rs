//! Numbers modulo a prime, and the primes themselves.

/// Below this are all primes, and above half of it: a sum of two residues fits 64 bits, and a residue of
/// one prime is below twice any other.
const BOUND: u64 = 1 << 60;

pub(crate) fn multiply(x: u64, y: u64, prime: u64) -> u64 {
    (u128::from(x) * u128::from(y) % u128::from(prime)) as u64
}

pub(crate) fn power(base: u64, mut exponent: u64, prime: u64) -> u64 {
    let (mut square, mut result) = (base, 1);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = multiply(result, square, prime);
        }
        square = multiply(square, square, prime);
        exponent >>= 1;
    }
    result
}

/// The number that gives 1 when it is multiplied by `x`, which is not 0 (Fermat).
pub(crate) fn inverse(x: u64, prime: u64) -> u64 {
    power(x, prime - 2, prime)
}

/// The inverse of an odd number modulo 2^64 (Newton: each step doubles the bits that are right).
pub(crate) fn inverse_of_odd(x: u64) -> u64 {
    let mut inverse = x;
    for _ in 0..5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(x.wrapping_mul(inverse)));
    }
    inverse
}

/// A constant factor, with what makes multiplying by it cheap (Shoup): no division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Factor {
    pub(crate) factor: u64,
    /// `factor * 2^64 / prime`, rounded down.
    pub(crate) quotient: u64,
}

impl Factor {
    pub(crate) fn new(factor: u64, prime: u64) -> Factor {
        let quotient = (u128::from(factor) << 64) / u128::from(prime);
        Factor { factor, quotient: quotient as u64 }
    }

    /// `x` times the factor, for any `x`.
    pub(crate) fn times(self, x: u64, prime: u64) -> u64 {
        let whole = (u128::from(x) * u128::from(self.quotient)) >> 64;
        let rest = x.wrapping_mul(self.factor).wrapping_sub((whole as u64).wrapping_mul(prime));
        if rest >= prime { rest - prime } else { rest }
    }
}

/// Whether a number is prime (Miller and Rabin; these bases decide all numbers of 64 bits).
pub(crate) fn is_prime(number: u64) -> bool {
    const BASES: [u64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];
    if number < 2 || BASES.iter().any(|&base| number.is_multiple_of(base)) {
        return BASES.contains(&number);
    }
    let twos = (number - 1).trailing_zeros();
    let odd = (number - 1) >> twos;
    BASES.iter().all(|&base| {
        let mut x = power(base, odd, number);
        if x == 1 {
            return true;
        }
        for _ in 1..twos {
            if x == number - 1 {
                return true;
            }
            x = multiply(x, x, number);
        }
        x == number - 1
    })
}

/// The largest primes below 2^60 that are 1 modulo `2 * n`: those that have a root of unity of that order.
/// Fewer than asked for when there are no more above 2^59.
pub(crate) fn primes(n: usize, count: usize) -> Vec<u64> {
    let step = 2 * n as u64;
    let candidates = (1..BOUND / 2 / step).map(|index| BOUND - index * step + 1);
    candidates.filter(|&candidate| is_prime(candidate)).take(count).collect()
}

/// A number whose `n`-th power is -1, for `n` a power of two and a prime that is 1 modulo `2 * n`.
pub(crate) fn root_of_minus_one(n: usize, prime: u64) -> u64 {
    let exponent = (prime - 1) / (2 * n as u64);
    // Every second number will do: those that are no squares.
    let mut roots = (2..).map(|base| power(base, exponent, prime));
    roots.find(|&root| power(root, n as u64, prime) == prime - 1).expect("there are many")
}

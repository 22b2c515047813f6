//! Whether the numbers are right; and when not, what to look at.

use super::kernels::{Kernel, Launch};
use super::ring::Ring;

/// How many coefficients are wrong, and the first of them in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) count: u64,
    pub(crate) compared: u64,
    pub(crate) first: Option<String>,
}

impl Wrong {
    /// Compares the words of one limb.
    pub(crate) fn compare(&mut self, place: &str, expected: &[u64], got: &[u64]) {
        assert_eq!(expected.len(), got.len(), "words of {place}");
        self.compared += expected.len() as u64;
        for (index, (expected, got)) in expected.iter().zip(got).enumerate() {
            if expected != got {
                self.count += 1;
                self.first.get_or_insert_with(|| {
                    format!("{place}, coefficient {index}: {got} where {expected} is right")
                });
            }
        }
    }

    pub(crate) fn add(&mut self, other: Wrong) {
        self.count += other.count;
        self.compared += other.compared;
        self.first = self.first.take().or(other.first);
    }
}

/// Inputs to try a kernel with, of the ring's first prime.
pub(crate) fn inputs_of(launch: &Launch, ring: &Ring) -> [Vec<u64>; 2] {
    let limb = &ring.limbs[0];
    let words = |salt: u64| -> Vec<u64> {
        let word = |index| (index as u64 + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15) % limb.prime;
        (0..ring.n).map(word).collect()
    };
    let other = match launch.kernel {
        Kernel::Forward => limb.forward.clone(),
        Kernel::Inverse => limb.inverse.clone(),
        Kernel::Product | Kernel::Rescale => words(1 << 40),
    };
    [words(1), other]
}

/// What one launch of a kernel has done, against its steps in Rust: a line.
pub(crate) fn of_kernel(launch: &Launch, inputs: [&[u64]; 2], got: Option<&[u64]>) -> String {
    let name = launch.kernel.name();
    let numbers = launch.numbers();
    let Some(got) = got else { return format!("kernel {name}: nothing is computed\n") };
    let mut expected = vec![0; got.len()];
    launch.execute(inputs, &mut expected);
    let mut wrong = Wrong::default();
    wrong.compare(&format!("kernel {name} {numbers:?}"), &expected, got);
    match wrong.first {
        None => format!("kernel {name} {numbers:?}: right\n"),
        Some(first) => format!("{first}; {} of {} are wrong\n", wrong.count, wrong.compared),
    }
}

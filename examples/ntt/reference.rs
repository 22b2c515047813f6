//! What the result must be, by the processor: its own transform, written as the books have it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::inputs::Inputs;
use super::modular::{Factor, multiply};
use super::ring::{Limb, Ring};

/// A polynomial: the words of each limb.
pub(crate) type Polynomial = Vec<Vec<u64>>;

/// The result for each polynomial of the batch.
pub(crate) fn results(ring: &Ring, inputs: &Inputs) -> Vec<Polynomial> {
    let mut batch = inputs.start.clone();
    for multiplier in &inputs.multipliers {
        let count = multiplier.len();
        let transformed = on_all_cores(count, |limb| {
            let mut words = multiplier[limb].clone();
            forward(&ring.limbs[limb], &mut words);
            words
        });
        let products = on_all_cores(batch.len() * count, |job| {
            let (polynomial, limb) = (job / count, job % count);
            product(&ring.limbs[limb], &batch[polynomial][limb], &transformed[limb])
        });
        let kept = count - 1;
        let rescaled = on_all_cores(batch.len() * kept, |job| {
            let (polynomial, limb) = (job / kept, job % kept);
            let of = |limb| &products[polynomial * count + limb];
            rescale(&ring.limbs[limb], of(limb), of(kept), ring.limbs[kept].prime)
        });
        batch = rescaled.chunks(kept).map(<[_]>::to_vec).collect();
    }
    batch
}

/// The product of a polynomial and a transformed one, modulo X^n + 1 and one prime.
pub(crate) fn product(limb: &Limb, left: &[u64], transformed: &[u64]) -> Vec<u64> {
    let mut words = left.to_vec();
    forward(limb, &mut words);
    for (x, &y) in words.iter_mut().zip(transformed) {
        *x = multiply(*x, y, limb.prime);
    }
    inverse(limb, &mut words);
    words
}

/// The values that the polynomial has at the odd powers of the root, in the order of reversed bits (Cooley
/// and Tukey).
pub(crate) fn forward(limb: &Limb, words: &mut [u64]) {
    let prime = limb.prime;
    let mut blocks = 1;
    while blocks < words.len() {
        let length = words.len() / blocks;
        for (block, words) in words.chunks_mut(length).enumerate() {
            let factor = factor(&limb.forward, blocks + block);
            let (low, high) = words.split_at_mut(length / 2);
            for (u, v) in low.iter_mut().zip(high) {
                let scaled = factor.times(*v, prime);
                *v = if *u < scaled { *u + prime - scaled } else { *u - scaled };
                *u = sum(*u, scaled, prime);
            }
        }
        blocks *= 2;
    }
}

/// The polynomial that has these values (Gentleman and Sande).
pub(crate) fn inverse(limb: &Limb, words: &mut [u64]) {
    let prime = limb.prime;
    let mut blocks = words.len() / 2;
    while blocks > 0 {
        let length = words.len() / blocks;
        for (block, words) in words.chunks_mut(length).enumerate() {
            let factor = factor(&limb.inverse, blocks + block);
            let (low, high) = words.split_at_mut(length / 2);
            for (u, v) in low.iter_mut().zip(high) {
                let rest = if *u < *v { *u + prime - *v } else { *u - *v };
                *u = sum(*u, *v, prime);
                *v = factor.times(rest, prime);
            }
        }
        blocks /= 2;
    }
    for word in words {
        *word = limb.scale.times(*word, prime);
    }
}

/// `(value - last) / dropped` modulo the limb's prime, where `last` is the value modulo `dropped`.
pub(crate) fn rescale(limb: &Limb, value: &[u64], last: &[u64], dropped: u64) -> Vec<u64> {
    let prime = limb.prime;
    let factor = super::modular::inverse(dropped % prime, prime);
    let factor = Factor::new(factor, prime);
    let word = |(&value, &last): (&u64, &u64)| factor.times(value + prime - last % prime, prime);
    value.iter().zip(last).map(word).collect()
}

fn sum(x: u64, y: u64, prime: u64) -> u64 {
    if x + y >= prime { x + y - prime } else { x + y }
}

fn factor(table: &[u64], index: usize) -> Factor {
    Factor { factor: table[2 * index], quotient: table[2 * index + 1] }
}

/// The results of `count` jobs, in order.
pub(crate) fn on_all_cores<R: Send>(count: usize, job: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return done;
            }
            done.push((index, job(index)));
        }
    };
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get()).min(count);
    if threads <= 1 {
        return (0..count).map(job).collect();
    }
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|worker| worker.join().expect("a job does not panic"));
        joined.flatten().collect()
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

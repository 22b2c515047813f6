//! What goes round the ring, as the processor computes it.

/// Each device multiplies by this, and adds its own number and the other.
pub(crate) const FACTOR: u32 = 1_664_525;
pub(crate) const ADDEND: u32 = 1_013_904_223;

/// What a device adds.
pub(crate) fn addend(rank: usize) -> u32 {
    ADDEND.wrapping_add(rank as u32)
}

/// The word at a place of the chunk that begins on a device.
pub(crate) fn first_word(rank: usize, place: usize) -> u32 {
    (rank as u32).wrapping_mul(0x9E37_79B9).wrapping_add(place as u32)
}

/// What so many steps of a ring of so many devices make of each word of that chunk: a factor and an addend.
pub(crate) fn all_steps(rank: usize, steps: usize, ranks: usize) -> (u32, u32) {
    (0..steps).fold((1, 0), |(factor, sum): (u32, u32), step| {
        let own = addend((rank + step) % ranks);
        (factor.wrapping_mul(FACTOR), sum.wrapping_mul(FACTOR).wrapping_add(own))
    })
}

/// How many of these words are not those of the chunk that began on a device, after so many steps.
pub(crate) fn count_wrong(words: &[u32], rank: usize, steps: usize, ranks: usize) -> u64 {
    let (factor, sum) = all_steps(rank, steps, ranks);
    let right = |place| first_word(rank, place).wrapping_mul(factor).wrapping_add(sum);
    words.iter().enumerate().filter(|&(place, word)| *word != right(place)).count() as u64
}

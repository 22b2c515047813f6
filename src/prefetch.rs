//! A hint to the processor: what will be used soon.

/// Fetches the line on which `place` lies. The address need not be valid.
#[inline]
pub(crate) fn prefetch<T>(place: *const T) {
    // SAFETY: a prefetch is a hint: it reads nothing that the program can see, and faults on no address.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

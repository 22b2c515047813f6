//! What the fuzz targets run: the same programs as the property tests, from bytes.

use super::program::Program;
use super::run::{lock_step, run};
use super::shadow::largest_block;
use crate::StreamPool;
use crate::sim::SimDevice;

/// The largest request that is not refused for its size alone: 1 TiB.
const LARGEST: u64 = 1 << 40;

/// A fuzz target: its name, and what it runs. It panics if the pool does not get right what the bytes
/// spell.
pub type Target = (&'static str, fn(&[u8]));

/// Every fuzz target.
pub const TARGETS: &[Target] = &[("program", program), ("threads", threads), ("sizes", sizes)];

/// Runs the fuzz target of this name.
///
/// # Panics
///
/// If there is none, or the pool does not get right what the bytes spell.
pub fn fuzz(target: &str, bytes: &[u8]) {
    let found = TARGETS.iter().find(|(name, _)| *name == target);
    let (_, entry) = found.expect("the name is that of a fuzz target");
    entry(bytes);
}

fn program(bytes: &[u8]) {
    if let Err(failure) = run(&Program::from_bytes(bytes)) {
        panic!("{failure}");
    }
}

fn threads(bytes: &[u8]) {
    if let Err(failure) = lock_step(&Program::from_bytes(bytes), 3) {
        panic!("{failure}");
    }
}

/// Allocates the sizes and alignments that the bytes spell, ten bytes each, and checks each answer.
fn sizes(bytes: &[u8]) {
    let device = SimDevice::new(1);
    let pool = StreamPool::new(device.clone());
    let stream = pool.stream(device.create_stream()).expect("a stream can be registered");
    for spelled in bytes.as_chunks::<10>().0 {
        let [shift, align, rest @ ..] = *spelled;
        let len = (u64::from_le_bytes(rest) >> (shift % 64)) as usize;
        // Powers of two, and their neighbours.
        let align = (1_usize << (align % 40)).wrapping_add_signed(isize::from(align / 40) % 3 - 1);
        let good = align.is_power_of_two() && align <= 1 << 30;
        match stream.alloc_aligned(len, align) {
            Ok(buffer) => {
                let capacity = buffer.capacity() as u64;
                assert!(good, "an alignment of {align} was accepted");
                assert_eq!(buffer.len(), len);
                let most = if len == 0 { 0 } else { largest_block(len as u64) };
                assert!((len as u64..=most).contains(&capacity), "{capacity} bytes for {len}");
                assert_eq!(buffer.device_ptr() % align.max(256) as u64, 0, "{buffer:?} at {align}");
                assert_eq!(buffer.device_ptr() == 0, len == 0, "{buffer:?}");
            }
            Err(error) if !good => assert!(error.is_invalid_argument(), "{error}"),
            Err(error) if len as u64 > LARGEST => assert!(error.is_too_large(), "{error}"),
            Err(error) => {
                assert!(error.is_out_of_memory(), "{error}");
                let room = device.memory_peak() + len as u64 + align as u64;
                assert!(room > 64 << 30, "out of memory for {len} bytes: {error}");
            }
        }
    }
    drop(stream);
    assert_eq!(pool.stats().in_use, 0);
    assert!(device.hazards().is_empty());
}

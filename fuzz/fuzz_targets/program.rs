#![no_main]

use libfuzzer_sys::fuzz_target;
use streampool::check::fuzz;

fuzz_target!(|bytes: &[u8]| fuzz("program", bytes));

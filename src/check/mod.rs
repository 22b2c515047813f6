//! One generator of programs and one naive oracle, for property tests, fuzzing and benchmarks.
//!
//! - A [`Program`] is a plain vector of operations on a pool, its streams and its buffers; indices are
//!   taken modulo what is live, so that every vector of bytes is a program.
//! - The shadow mirrors every call and knows, by the plainest means, what must hold: who holds which
//!   addresses, how much is in use, which streams the *program* has ordered after each other (so that
//!   programs do not race by themselves), what a scope must report, how many driver calls a free may
//!   make. It tells the simulated device of every hand-out, whose race detector then judges the pool.
//! - [`run`] executes a program, on one thread or on several in lock step, and returns the
//!   [`Coverage`], the states that it reached, or the [`Failure`] with the program.
//!
//! ```
//! use streampool::check::{self, Coverage, Program};
//!
//! let mut reached = Coverage::default();
//! for seed in 0..50 {
//!     reached += check::run(&Program::random(seed, 60))?;
//! }
//! assert!(reached.hits > 0);
//! # Ok::<(), check::Failure>(())
//! ```

mod coverage;
mod fuzz;
mod program;
mod run;
mod scopes;
mod shadow;
mod steps;
mod streams;
mod world;

pub use coverage::Coverage;
pub use fuzz::{TARGETS, Target, fuzz};
pub use program::{Exit, Op, Program, Setup, Step};
pub use run::{Failure, Fault, fail_call, frozen, lock_step, quick, quick_on_threads, run};

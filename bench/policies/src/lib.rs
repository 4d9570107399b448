//! What one call costs behind each policy: time, instructions, allocations.
//!
//! - [`work`]: the inner call, the same for every row, and what it may fail with.
//! - [`case`]: one row of the table: a loop over a call, made generic so that nothing is boxed inside.
//! - [`cases`]: all rows: primitives, tower, the peers (feature `peers`), ours.
//! - [`time`]: interleaved rounds; ratios are only taken inside one. [`clock`] reads the clock,
//!   `start` lets two tasks begin as one.
//! - [`instructions`]: the functions that callgrind is told to count in.
//! - [`recorder`]: counters for the rows with a listener.
//! - [`loopback`]: a TCP round trip for scale.
//!
//! `cargo xtask bench policies` runs it all, compares and prints; see `docs/benchmarks.md`.

pub mod case;
pub mod cases;
pub mod clock;
pub mod instructions;
pub mod loopback;
pub mod recorder;
mod start;
pub mod time;
pub mod work;

//! Where callgrind counts, and nowhere else.
//!
//! `cargo xtask bench` runs this under `valgrind --tool=callgrind`, told by name to collect only
//! inside [`counted`] and to write one file after each return from it. What a call costs is the
//! difference between a long and a short loop, so that entering the runtime and the future around the
//! loop fall out. Kernel time is not in it, and neither is what a real processor makes of the
//! instructions; the count is the same on every machine with the same compiler.

use tokio::runtime::Runtime;

use crate::case::Case;

/// Calls of the short loop.
pub const SHORT: u64 = 100;
/// Calls of the long loop.
pub const LONG: u64 = 1_100;
/// Long loops; the median is taken, because a window may roll in one of them.
pub const REPEATS: usize = 3;
/// Calls before counting, so that caches, tables and lazy parts are filled.
pub const WARM_UP: u64 = 300;

/// Runs each of `cases` in the order of the dumps that follow: one short loop, then the long ones.
///
/// # Errors
/// When a row does not say what it is about.
pub fn run(runtime: &Runtime, cases: &[Case]) -> Result<(), String> {
    for case in cases {
        runtime.block_on(case.check())?;
        runtime.block_on(case.run(WARM_UP));
        counted(runtime, case, SHORT);
        for _ in 0..REPEATS {
            counted(runtime, case, LONG);
        }
        runtime.block_on(case.check())?;
    }
    Ok(())
}

/// The function that callgrind is told to count in.
#[inline(never)]
pub fn counted(runtime: &Runtime, case: &Case, calls: u64) {
    runtime.block_on(case.run(calls));
}

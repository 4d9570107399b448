//! The only reading of a clock by the harness itself, and of how long it was kept from running.

use std::time::{Duration, Instant};

/// Now.
#[must_use]
pub fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a benchmark times real work")]
    Instant::now()
}

/// How long this thread has been ready to run without a processor, since it started; `None` where the
/// system does not say (Linux does, in `schedstat`).
#[must_use]
pub fn waited() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

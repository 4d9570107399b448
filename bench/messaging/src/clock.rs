//! The only reading of a clock by the harness itself, and its only pause.

use std::time::{Duration, Instant};

/// Now.
pub(crate) fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a benchmark times real work")]
    Instant::now()
}

/// A moment between two looks at something that is measured: short beside what it waits for, long
/// enough to leave the processors to the measured.
pub(crate) async fn pause() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// A wait in which nothing is to be done.
pub(crate) async fn rest(length: Duration) {
    tokio::time::sleep(length).await;
}

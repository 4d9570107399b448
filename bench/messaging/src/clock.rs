//! The only reading of a clock, and the only wait of the harness itself.

use std::time::{Duration, Instant};

/// Now.
pub(crate) fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a benchmark times real work")]
    Instant::now()
}

/// Pauses the task; the program under measurement goes on.
pub(crate) async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

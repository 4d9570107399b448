//! The policies one by one, around any future, without a [`Dependency`](crate::Dependency).
//!
//! Use these where the order of the [pipeline](mamparo_core::call::pipeline) does not fit. Each policy is
//! made once, shared by clones or references, and turns a future into a guarded one:
//!
//! | policy | refuses or ends a call when | error |
//! |---|---|---|
//! | [`BreakerPolicy`] | the dependency has failed too often of late | [`GuardError`] |
//! | [`RateLimitPolicy`] | too many have come in the period | [`GuardError`] |
//! | [`ThrottlePolicy`] | the dependency turns most calls away | [`GuardError`] |
//! | [`BulkheadPolicy`] | too many are under way; first lets some wait in line | [`GuardError`] |
//! | [`AdaptivePolicy`] | more are under way than it has shown to serve well | [`GuardError`] |
//! | [`TimeoutPolicy`] | it takes too long, or the caller's deadline is too near | [`TimeoutError`] |
//! | [`RetryPolicy`] | never; makes another attempt of what failed | [`RetryError`] |
//! | [`HedgePolicy`] | never; sends another copy of what is slow | the future's own |
//! | [`FaultInjector`](crate::fault::FaultInjector) | somebody switched that on | the future's own |
//!
//! What is guarded can be guarded again, in any order; the outermost policy is the one that is called
//! first. The futures are plain named types: no box, no allocation, no task. Dropping one at any await
//! and a panic inside give back whatever was taken; a panic counts as a failure, a drop is no verdict.
//! All of it is decided by the machines of `mamparo-core`.

mod adaptive;
mod breaker;
mod bulkhead;
mod error;
mod guard;
mod hedge;
mod judge;
mod listen;
mod observe;
mod rate_limit;
mod retry;
mod throttle;
mod timeout;

pub use adaptive::{AdaptivePolicy, Flattened};
pub use breaker::{BreakerPass, BreakerPolicy};
pub(crate) use bulkhead::Place;
pub use bulkhead::{BulkheadPolicy, Slotted};
pub use error::{GuardError, Refused, RetryError, TimeoutError};
pub use guard::{Ending, Guard, Guarded};
pub use hedge::{HedgePolicy, Hedged};
pub(crate) use hedge::{Pace, Race, poll_copies};
pub use judge::{ByError, Judge, Unjudged};
pub use listen::{Listener, PolicyEvent};
pub use observe::MetricsListener;
pub use rate_limit::RateLimitPolicy;
pub(crate) use retry::{Attempts, Next};
pub use retry::{RetryPolicy, Retrying};
pub use throttle::ThrottlePolicy;
pub use timeout::{Timed, TimeoutPolicy};

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mamparo_core::call::breaker::BreakerConfig;
    use mamparo_core::call::bulkhead::BulkheadConfig;
    use mamparo_core::call::retry::Retry;
    use mamparo_core::outcome::Repeatable;

    use super::*;
    use crate::CallError;
    use crate::clock::tests::READINGS;

    #[tokio::test(start_paused = true)]
    async fn a_success_that_is_there_at_once_reads_no_clock() {
        let bulkhead = BulkheadPolicy::new(BulkheadConfig::default());
        let breaker = BreakerPolicy::new(BreakerConfig::default());
        let retry = RetryPolicy::new(Retry::default());
        let limit = TimeoutPolicy::new(Duration::from_millis(700));
        let before = READINGS.get();
        let attempt = |_| limit.call(async { Ok::<_, CallError<()>>(7) });
        let call = bulkhead.call(breaker.call(retry.call(Repeatable::Idempotent, attempt)));
        assert!(matches!(call.await, Ok(7)));
        assert_eq!(READINGS.get() - before, 0);
    }

    #[test]
    fn futures_stay_small_enough_to_be_moved() {
        let breaker = BreakerPolicy::new(BreakerConfig::default());
        let bulkhead = BulkheadPolicy::new(BulkheadConfig::default());
        let ready = std::future::ready(Ok::<_, CallError<()>>(()));
        assert!(size_of_val(&breaker.call(ready)) <= 128);
        let ready = std::future::ready(Ok::<_, CallError<()>>(()));
        assert!(size_of_val(&bulkhead.call(ready)) <= 112);
    }
}

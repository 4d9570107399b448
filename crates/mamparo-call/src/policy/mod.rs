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
pub use bulkhead::{BulkheadPolicy, Slotted};
pub(crate) use bulkhead::{Place, SlotUnwinding};
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

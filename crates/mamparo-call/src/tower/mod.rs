//! The policies as tower layers.
//!
//! | layer | policy | error |
//! |---|---|---|
//! | [`BreakerLayer`] | [`BreakerPolicy`](crate::policy::BreakerPolicy) | [`GuardError`](crate::policy::GuardError) |
//! | [`RateLimitLayer`] | [`RateLimitPolicy`](crate::policy::RateLimitPolicy) | [`GuardError`](crate::policy::GuardError) |
//! | [`ThrottleLayer`] | [`ThrottlePolicy`](crate::policy::ThrottlePolicy) | [`GuardError`](crate::policy::GuardError) |
//! | [`BulkheadLayer`] | [`BulkheadPolicy`](crate::policy::BulkheadPolicy) | [`GuardError`](crate::policy::GuardError) |
//! | [`AdaptiveLayer`] | [`AdaptivePolicy`](crate::policy::AdaptivePolicy) | [`GuardError`](crate::policy::GuardError) |
//! | [`TimeoutLayer`] | [`TimeoutPolicy`](crate::policy::TimeoutPolicy) | [`TimeoutError`](crate::policy::TimeoutError) |
//! | [`RetryLayer`] | [`RetryPolicy`](crate::policy::RetryPolicy) | [`RetryError`](crate::policy::RetryError) |
//! | [`HedgeLayer`] | [`HedgePolicy`](crate::policy::HedgePolicy) | the service's own |
//! | [`FaultLayer`] | [`FaultInjector`](crate::fault::FaultInjector) | the service's own |
//!
//! [`DependencyLayer`] puts the whole [`Dependency`](crate::Dependency) in front of a service.
//!
//! A layer keeps to tower's contract to the letter: the instance that was asked for readiness is the
//! one that is called, a readiness that was given is kept until it is used, a clone is asked for its
//! own, and an instance whose readiness failed is never used again. Futures are named types without a
//! box, errors are typed and need no `Clone`, and responses pass through untouched.
//!
//! A service needs a handle of its policy that it owns. A policy's clone is one reference count a
//! call; a `&'static` policy costs nothing:
//!
//! ```
//! # use std::{convert::Infallible, time::Duration};
//! # use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use mamparo_call::{policy::TimeoutPolicy, tower::TimeoutLayer};
//!
//! let limit = TimeoutPolicy::new(Duration::from_millis(700));
//! let mut service = ServiceBuilder::new()
//!     .layer(TimeoutLayer::new(limit))
//!     .service(service_fn(|name: &'static str| async move { Ok::<_, Infallible>(name.len()) }));
//! assert_eq!(service.ready().await?.call("catalog").await?, 7);
//! # Ok(()) }
//! ```

mod adaptive;
mod bulkhead;
mod dependency;
mod fault;
mod guard;
mod hedge;
mod oneshot;
mod replay;
mod retry;
mod timeout;

pub use adaptive::{AdaptiveLayer, AdaptiveService};
pub use bulkhead::{BulkheadLayer, BulkheadService, SlottedCall};
pub use dependency::{DependencyCall, DependencyLayer, DependencyService};
pub use fault::{FaultLayer, FaultService, Faulty};
pub use guard::{BreakerLayer, GuardLayer, GuardService, RateLimitLayer, ThrottleLayer};
pub use hedge::{HedgeLayer, HedgeService, HedgedCall};
pub use replay::{Cloned, Once, Replay};
pub use retry::{Repeating, RetryLayer, RetryService};
pub use timeout::{TimeoutLayer, TimeoutService};

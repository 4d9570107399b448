//! Design for failure: call policies, messages that are never lost, sagas that survive.
//!
//! mamparo (Spanish for *bulkhead*) is for services that call other services, consume messages and
//! change state across them. It answers one question everywhere: *did it run or not?*
//!
//! This crate is a door: it holds no code, only the crates that you would otherwise name one by one.
//! Every decision is made by a pure state machine in [`core`]; the other modules carry decisions
//! out. What you switch off is not compiled:
//!
//! | feature (all on) | module | what it brings |
//! |---|---|---|
//! | – | [`call`] | a [`call::Dependency`] with its policies, for any future; each policy alone ([`call::policy`]), and all of them as tower layers ([`call::tower`]) |
//! | – | [`core`] | the state machines, without a runtime |
//! | – | [`topology`] | `mamparo.toml`, every mistake reported at once |
//! | `http` | `http` | a client per dependency, server layers, problem+json |
//! | `store` | `store` | outbox, inbox and idempotency keys in your own database |
//! | `messaging` | `messaging` | brokers, consumers, the outbox relay, dead letters |
//! | `service` | `service` | configuration, readiness, ordered shutdown, telemetry |
//!
//! One dependency with its policies, one call, and what the caller gets when it fails:
//!
//! ```
//! use std::time::Duration;
//! use mamparo::{core::outcome::Sent, prelude::*};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let catalog = Dependency::builder("catalog")
//!     .attempt_timeout(Duration::from_millis(700))
//!     .retry(2, Backoff::default()) // attempts count the first one
//!     .breaker(BreakerConfig::default()) // 5 failures in 10 s open it for 30 s
//!     .bulkhead(20, 0) // 20 calls in flight, nobody waits
//!     .build()?;
//! let catalog = HttpClient::new("http://127.0.0.1:9", catalog)?; // nobody listens there
//!
//! let Err(error) = catalog.get("/v1/products").query("ids", "a,b").send().await else {
//!     return Err("somebody answered".into());
//! };
//! assert_eq!(error.attempts(), 2);
//! let CallError::Failed { failure, .. } = &error else { return Err(error.into()) };
//! assert_eq!(failure.sent, Sent::Nothing); // the connection was refused: it did not run
//!
//! let answer = Problem::from(&error); // what our own caller gets
//! assert_eq!((answer.status().as_u16(), answer.code()), (503, "DEPENDENCY_UNAVAILABLE"));
//! # Ok(()) }
//! ```

pub use mamparo_call as call;
pub use mamparo_core as core;
#[cfg(feature = "http")]
pub use mamparo_http as http;
#[cfg(feature = "messaging")]
pub use mamparo_messaging as messaging;
#[cfg(feature = "service")]
pub use mamparo_service as service;
#[cfg(feature = "store")]
pub use mamparo_store as store;
pub use mamparo_topology as topology;

/// The names that most services use.
pub mod prelude {
    pub use mamparo_call::{CallError, Classify, Dependency, Failure, Repeatable};
    pub use mamparo_core::backoff::Backoff;
    pub use mamparo_core::call::breaker::BreakerConfig;
    #[cfg(feature = "http")]
    pub use mamparo_http::{HttpClient, Problem};
    #[cfg(feature = "messaging")]
    pub use mamparo_messaging::{Answer, Handler, Message};
    #[cfg(feature = "service")]
    pub use mamparo_service::Service;
    #[cfg(feature = "store")]
    pub use mamparo_store::{PostgresStore, SqliteStore, Transaction};
}

/// The README's code is compiled and run like every other example.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

/// So is the code of the policies' pages.
#[cfg(doctest)]
mod policies {
    #[doc = include_str!("../../../docs/policies/adaptive-concurrency.md")]
    mod adaptive_concurrency {}
    #[doc = include_str!("../../../docs/policies/bulkhead.md")]
    mod bulkhead {}
    #[doc = include_str!("../../../docs/policies/circuit-breaker.md")]
    mod circuit_breaker {}
    #[doc = include_str!("../../../docs/policies/deadline.md")]
    mod deadline {}
    #[doc = include_str!("../../../docs/policies/events.md")]
    mod events {}
    #[doc = include_str!("../../../docs/policies/fallback.md")]
    mod fallback {}
    #[doc = include_str!("../../../docs/policies/faults.md")]
    mod faults {}
    #[doc = include_str!("../../../docs/policies/hedge.md")]
    mod hedge {}
    #[doc = include_str!("../../../docs/policies/load-shedding.md")]
    mod load_shedding {}
    #[doc = include_str!("../../../docs/policies/rate-limit.md")]
    mod rate_limit {}
    #[doc = include_str!("../../../docs/policies/README.md")]
    mod overview {}
    #[doc = include_str!("../../../docs/policies/retry.md")]
    mod retry {}
    #[doc = include_str!("../../../docs/policies/throttle.md")]
    mod throttle {}
}

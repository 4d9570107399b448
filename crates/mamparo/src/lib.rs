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
//! | – | [`call`] | a [`call::Dependency`] with its policies, for any future |
//! | – | [`core`] | the state machines, without a runtime |
//! | – | [`topology`] | `mamparo.toml`, every mistake reported at once |
//! | `http` | `http` | a client per dependency, server layers, problem+json |
//! | `store` | `store` | outbox, inbox and idempotency keys in your own database |
//! | `messaging` | `messaging` | brokers, consumers, the outbox relay, dead letters |
//! | `service` | `service` | configuration, readiness, ordered shutdown, telemetry |

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

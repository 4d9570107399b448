//! Drives the call pipeline of `mamparo-core` on tokio.
//!
//! A [`Dependency`] is made once per thing you call. [`Dependency::call`] takes what makes one
//! attempt, and either hands back its value or says which guard refused, why, and when to return.

pub mod classify;
pub mod clock;
pub mod context;
pub mod dependency;
pub mod error;

pub use classify::Classify;
pub use context::Context;
pub use dependency::{Attempt, Dependency, DependencyBuilder};
pub use error::CallError;
pub use mamparo_core::outcome::{Failure, Repeatable};

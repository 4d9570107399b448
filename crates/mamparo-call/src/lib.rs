//! Drives the call pipeline of `mamparo-core` on tokio.
//!
//! A [`Dependency`] is made once per thing you call. [`Dependency::call`] takes what makes one
//! attempt, and either hands back its value or says which guard refused, why, and when to return.
//!
//! - [`dependency`], [`builder`]: what you hold, and how it is made.
//! - `driver`: the loop that carries out the machine's steps; `gate`: the shared policies and the queue's wakers; `running`: an attempt's
//!   own code; `race`: hedged attempts.
//! - [`policy`]: each policy alone, around any future; [`tower`]: all of them as layers.
//! - [`context`]: the deadline and the ids that travel with a request.
//! - [`deadline`]: a limit on any future, whose timer is made by the first wait.
//! - [`classify`], [`error`]: errors are asked, not guessed, and one enum says how a call ended.
//! - [`cache`]: remembered answers, stale ones when the call fails, one call for all.
//! - [`fallback`]: lesser answers, and a type that says so.
//! - [`fault`]: faults on purpose, for staging and game days.
//! - [`transaction`]: the plain loop for a database transaction that met a deadlock.
//! - `counters`: what was counted, without contention.
//! - `observe`: the only file that speaks to logs and metrics of calls.
//! - [`clock`]: the only file that reads a clock.

pub mod builder;
pub mod cache;
pub mod classify;
pub mod clock;
pub mod context;
mod counters;
pub mod deadline;
pub mod dependency;
pub mod detached;
mod driver;
pub mod error;
pub mod explain;
pub mod fallback;
pub mod fault;
mod gate;
pub mod keyed;
mod observe;
pub mod policy;
mod race;
mod running;
pub mod snapshot;
pub mod tower;
pub mod transaction;

pub use builder::{BuildError, DependencyBuilder};
pub use classify::Classify;
pub use context::Context;
pub use dependency::{Attempt, Dependency};
pub use detached::BackgroundWork;
pub use error::CallError;
pub use explain::Explanation;
pub use keyed::Dependencies;
pub use mamparo_core::outcome::{Failure, Repeatable};
pub use snapshot::Snapshot;
pub use transaction::retry_in_process;

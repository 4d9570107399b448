//! The life of a service: configuration, tasks, readiness, ordered shutdown, telemetry.
//!
//! A service fails fast at its start and tolerates while it runs. [`config`] reports every mistake
//! of the policy file before anything starts; [`tasks`] is the only place that spawns, and a task
//! that is lost ends the process loudly; a dependency that is down only makes [`readiness`] say so;
//! a signal leads through the steps of [`shutdown`], within 30 s.
//!
//! ```no_run
//! use std::process::ExitCode;
//! use mamparo_service::{Role, Service, config, exit_code, run_until_signal, telemetry};
//!
//! fn main() -> ExitCode {
//!     let (policy, environment) = match config::load_or_report("orders.toml") {
//!         Ok(loaded) => loaded,
//!         Err(code) => return code,
//!     };
//!     let Ok(runtime) = tokio::runtime::Runtime::new() else { return ExitCode::FAILURE };
//!     exit_code(runtime.block_on(async {
//!         telemetry::install(&environment)?;
//!         let service = Service::new(policy.service.name.value.clone());
//!         let database = service.readiness().check("database");
//!         service.tasks().spawn_essential(Role::Worker, "watchdog", |stop| async move {
//!             database.ready();
//!             stop.cancelled().await;
//!         });
//!         run_until_signal(vec![service]).await
//!     }))
//! }
//! ```

pub mod config;
pub mod env;
pub mod error;
mod observe;
pub mod readiness;
pub mod run;
pub mod shutdown;
pub mod signal;
pub mod tasks;
pub mod telemetry;

pub use env::{Environment, LogFormat};
pub use error::ServiceError;
pub use mamparo_core::process::lifecycle::Stage;
pub use mamparo_core::process::shutdown::{Ending, Step};
pub use readiness::{Check, Readiness};
pub use run::{Service, exit_code, run_all, run_until_signal};
pub use shutdown::{Shutdown, ShutdownReport, StepReport};
pub use tasks::{Role, TaskEnd, Tasks};
pub use telemetry::Telemetry;
pub use tokio_util::sync::CancellationToken;

//! The demo: the shop under traffic and a scripted fault, seen live, judged by its books.
//!
//! [`run`] holds the order of things: lay the [`site`], let the [`staff`] start, send [`traffic`],
//! break what the [`scenario`] says, drain, stop everybody, and ask the [`books`] for the
//! [`verdict`].

pub mod books;
mod checks;
pub mod engines;
mod ground;
pub mod live;
pub mod metrics;
pub mod report;
pub mod run;
pub mod scenario;
pub mod script;
mod servers;
pub mod site;
pub mod staff;
pub mod terminal;
pub mod traffic;
pub mod verdict;
pub mod view;

use std::time::Duration;

use mamparo::call::BuildError;
use mamparo::http::HttpError;
use mamparo::messaging::{Confirm, MessagingError};
use mamparo::service::ServiceError;
use mamparo::store::StoreError;
use mamparo::topology::Problems;

use crate::host::StartError;

/// Why a demo could not be run to its end. A broken invariant is no error: it is the verdict.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A file or program could not be used.
    #[error("use {path}")]
    File {
        /// Which.
        path: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A policy file that the demo itself has written is wrong.
    #[error("write the policy file of {service}: {why}")]
    Policy {
        /// Whose.
        service: String,
        /// What is wrong.
        why: String,
    },
    /// A policy file does not load.
    #[error("load a policy file: {0}")]
    Load(#[from] Problems),
    /// No port is free.
    #[error("find a free port")]
    NoPort,
    /// A service does not start.
    #[error("start {service}")]
    Start {
        /// Which.
        service: &'static str,
        /// Why not.
        #[source]
        source: StartError,
    },
    /// A service is not ready in time.
    #[error("wait for {service}: not ready within {within:?}")]
    NotReady {
        /// Which.
        service: &'static str,
        /// How long it had.
        within: Duration,
    },
    /// A service did not stop as it should.
    #[error("stop {service}")]
    Lost {
        /// Which.
        service: String,
    },
    /// A service, or the telemetry, failed.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A client of the demo's own.
    #[error("make a client")]
    Policies(#[from] BuildError),
    /// A client of the demo's own.
    #[error("make a client")]
    Client(#[from] HttpError),
    /// The books.
    #[error("read the books")]
    Books(#[from] sqlx::Error),
    /// The broker did not take a message.
    #[error("publish to {queue}: {confirm:?}")]
    NotTaken {
        /// To which queue.
        queue: &'static str,
        /// What the broker said.
        confirm: Confirm,
    },
    /// The broker.
    #[error("reach the broker")]
    Broker(#[from] MessagingError),
    /// The shop's database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The scenario breaks a server, and nobody has said how.
    #[error("play {scenario}: {why}")]
    NoWay {
        /// Which scenario.
        scenario: &'static str,
        /// What is missing, and the way out.
        why: &'static str,
    },
    /// The place is not empty.
    #[error("begin: {what}")]
    Occupied {
        /// What lies there, and the way out.
        what: String,
    },
    /// A command for a server failed.
    #[error("run {command:?}: {why}")]
    Command {
        /// Which.
        command: String,
        /// What became of it.
        why: String,
    },
}

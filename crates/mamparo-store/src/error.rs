//! The one error of the store.

use mamparo_core::message::transaction::Class;

use crate::class::class_of;

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The address is none that mamparo knows.
    #[error("open store: {address:?} is no address for it: {why}")]
    Address {
        /// What was given, without a password.
        address: String,
        /// What is wrong with it, and the way out.
        why: &'static str,
    },
    /// There is no database at the address, and it was not to be created.
    #[error("open store: there is no file at {address:?}")]
    Missing {
        /// What was given.
        address: String,
    },
    /// There is a database at the address, but mamparo has never been there.
    #[error("open store: the database at {address:?} has no tables of mamparo")]
    Foreign {
        /// What was given.
        address: String,
    },
    /// The database at the address could not be opened.
    #[error("open store at {address:?}")]
    Open {
        /// What was given.
        address: String,
        /// The driver's error.
        #[source]
        source: sqlx::Error,
    },
    /// A newer mamparo has migrated this database; this one must not touch it.
    #[error("open store: its schema is version {found}, this program knows versions up to {known}")]
    NewerSchema {
        /// The version in the database.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// The database said no.
    #[error("{operation}")]
    Database {
        /// What was being done, as a fragment after "failed to".
        operation: &'static str,
        /// The driver's error.
        #[source]
        source: sqlx::Error,
    },
    /// The answer to a commit was lost with the connection: it has happened or not. Never run the
    /// transaction again before [`Store::has_committed`](crate::Store::has_committed) said no.
    #[error("commit a transaction: the answer was lost, so it has happened or not")]
    CommitUnknown {
        /// The driver's error.
        #[source]
        source: sqlx::Error,
    },
    /// A statement of the transaction had failed and its error was passed over. PostgreSQL undoes
    /// such a transaction and calls the commit a success; we don't.
    #[error("commit a transaction: a statement of it had failed, so nothing of it is kept")]
    Aborted,
    /// The caller's time was over before the operation began; nothing was done.
    #[error("{operation}: no time is left")]
    Deadline {
        /// What was to be done.
        operation: &'static str,
    },
    /// A lease was lost: somebody else owns the row now, and nothing was changed.
    #[error("{operation}: the lease was lost")]
    Fenced {
        /// What was being done.
        operation: &'static str,
    },
    /// It was settled before, by the same owner; nothing was changed.
    #[error("{operation}: it is settled already")]
    Settled {
        /// What was being done.
        operation: &'static str,
    },
    /// No queue of this name is declared.
    #[error("find queue {queue:?}: it is not declared")]
    UnknownQueue {
        /// The name that was given.
        queue: String,
    },
    /// A queue was declared in a way that would lose messages.
    #[error("declare queue {queue:?}: {why}")]
    QueueSpec {
        /// The queue's name.
        queue: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl StoreError {
    /// What it means for whoever asked: run the transaction again, connect anew, resolve an unknown
    /// commit, call somebody. [`Class::Permanent`] for everything that asking again doesn't change.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Open { source, .. } | Self::Database { source, .. } => class_of(source),
            Self::CommitUnknown { .. } => Class::OutcomeUnknown,
            Self::Deadline { .. } => Class::Deadline,
            Self::Address { .. }
            | Self::Missing { .. }
            | Self::Foreign { .. }
            | Self::NewerSchema { .. }
            | Self::Aborted
            | Self::Fenced { .. }
            | Self::Settled { .. }
            | Self::UnknownQueue { .. }
            | Self::QueueSpec { .. } => Class::Permanent,
        }
    }

    /// For `map_err` of a commit: a connection that broke then has taken the answer with it.
    pub(crate) fn committing(source: sqlx::Error) -> Self {
        if matches!(class_of(&source), Class::Reconnect | Class::OutcomeUnknown) {
            Self::CommitUnknown { source }
        } else {
            Self::Database { operation: "commit a transaction", source }
        }
    }

    /// For `map_err`: says what was being done when the driver failed.
    pub(crate) fn during(operation: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Database { operation, source }
    }
}

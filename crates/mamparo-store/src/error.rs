//! The one error of the store.

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
    /// For `map_err`: says what was being done when the driver failed.
    pub(crate) fn during(operation: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Database { operation, source }
    }
}

//! The one error of the store.

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The address is none that mamparo knows.
    #[error("open store: {address:?} is no store address (use sqlite:PATH or sqlite::memory:)")]
    Address {
        /// What was given.
        address: String,
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
}

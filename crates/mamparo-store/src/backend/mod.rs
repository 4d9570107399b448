//! The seam between operations and databases: one trait a subject, one implementation of it a
//! database. The public modules say what each operation means; here is only what it takes.

mod inbox;
mod keys;
mod outbox;
mod queues;

use std::future::Future;

use sqlx::Result;

pub use inbox::InboxRows;
pub use keys::KeyRows;
pub use outbox::OutboxRows;
pub use queues::QueueRows;

/// Keeps the traits closed: their methods take what one operation needs, and change with it.
pub(crate) mod sealed {
    /// Implemented in this crate only.
    pub trait Sealed {}
    impl Sealed for sqlx::Sqlite {}
}

/// A database that mamparo can keep its state in. Sealed; implemented for SQLite.
///
/// Methods that take several statements must be called in a transaction; their callers in this
/// crate do that.
pub trait Backend: OutboxRows + InboxRows + KeyRows {
    /// The statement that begins a writing transaction.
    const BEGIN: &'static str;

    /// Runs several statements as they are.
    fn run_script(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Reads something small.
    fn check(conn: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send;
}

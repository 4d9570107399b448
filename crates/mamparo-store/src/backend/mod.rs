//! The seam between operations and databases: one trait a subject, one implementation of it a
//! database. The public modules say what each operation means; here is only what it takes.

mod failed;
pub(crate) mod failed_rows;
mod inbox;
mod keys;
mod outbox;
pub(crate) mod parked;
mod queues;
mod retries;
mod shards;

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use mamparo_core::time::WallTime;
use sqlx::{Pool, Result};

use crate::{StoreAddress, StoreError, StoreOptions};

pub use failed::FailedRows;
pub use inbox::InboxRows;
pub use keys::KeyRows;
pub use outbox::OutboxRows;
pub use parked::ParkedRows;
pub use queues::QueueRows;
pub use retries::RetryRows;
pub(crate) use retries::implement_retry_rows;
pub use shards::ShardRows;

/// Keeps the traits closed: their methods take what one operation needs, and change with it.
pub(crate) mod sealed {
    /// Implemented in this crate only.
    pub trait Sealed {}
    impl Sealed for sqlx::Sqlite {}
    impl Sealed for sqlx::Postgres {}
}

/// The connections of one kind of work.
#[derive(Debug)]
pub struct Lane<DB: sqlx::Database> {
    /// Where transactions begin and rows are written.
    pub writer: Pool<DB>,
    /// Where rows are only read.
    pub reader: Pool<DB>,
    /// How many more connections the pool closes instead of handing them out. SQLite closes none:
    /// a connection to a file says what any other would, and one to memory is the database.
    pub suspects: Arc<AtomicU32>,
}

/// What opening did to the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrated {
    /// The version that was found; 0 for a database without our tables.
    pub from: i64,
    /// The version that it has now: the newest that this program knows.
    pub to: i64,
}

/// All connections of a store.
#[derive(Debug)]
pub struct Pools<DB: sqlx::Database> {
    /// For requests.
    pub requests: Lane<DB>,
    /// For relays, consumers, sweepers and housekeeping. The same where there is only one writer.
    pub background: Lane<DB>,
    /// For relays, whose statements are planned without statistics. The same likewise.
    pub relay: Lane<DB>,
    /// The version of the schema before it was migrated, and since.
    pub migrated: Migrated,
}

impl<DB: sqlx::Database> Clone for Pools<DB> {
    fn clone(&self) -> Self {
        Self {
            requests: self.requests.clone(),
            background: self.background.clone(),
            relay: self.relay.clone(),
            migrated: self.migrated,
        }
    }
}

impl<DB: sqlx::Database> Clone for Lane<DB> {
    fn clone(&self) -> Self {
        Self {
            writer: self.writer.clone(),
            reader: self.reader.clone(),
            suspects: Arc::clone(&self.suspects),
        }
    }
}

/// A database that mamparo can keep its state in. Sealed; implemented for SQLite and PostgreSQL.
///
/// Methods that take several statements must be called in a transaction; their callers in this
/// crate do that.
pub trait Backend:
    OutboxRows + ShardRows + InboxRows + KeyRows + FailedRows + ParkedRows + RetryRows
{
    /// The statement that begins a writing transaction.
    const BEGIN: &'static str;

    /// The statements that begin a writing transaction whose statements may take `left`, and wait
    /// for a lock no longer than `lock` either. They are sent together.
    fn begin_within(left: Duration, lock: Duration) -> Cow<'static, str>;

    /// Fails when a statement of the transaction has failed before, so that a commit would undo it.
    fn ensure_whole(
        conn: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Connects to the database at `address` and migrates it. One that is not ours is only touched
    /// when it may be created.
    fn connect(
        address: &StoreAddress,
        create: bool,
        options: &StoreOptions,
    ) -> impl Future<Output = Result<Pools<Self>, StoreError>> + Send;

    /// Runs several statements as they are.
    fn run_script(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<()>> + Send;

    /// The time by the database's own clock, now and not at the transaction's start; `None` where
    /// that is the host's.
    fn read_clock(
        conn: &mut Self::Connection,
    ) -> impl Future<Output = Result<Option<WallTime>>> + Send;

    /// Reads something small.
    fn check(conn: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send;

    /// Does the database take changes, too? Changes nothing.
    fn check_writing(conn: &mut Self::Connection) -> impl Future<Output = sqlx::Result<()>> + Send;
}

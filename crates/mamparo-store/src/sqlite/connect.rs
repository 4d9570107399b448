//! Opening a file, also when several processes open it for the first time together.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Pool, Sqlite};

use super::schema;
use crate::backend::{Lane, Migrated, Pools};
use crate::{StoreAddress, StoreError, StoreOptions};

/// How long a statement waits for another process's transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How many readers may read at once in one process.
const READERS: u32 = 4;

/// How often opening gives way to another process that is just doing the same.
const OPEN_TRIES: u32 = 20;

/// The writing connection and the readers of the database at `address`, migrated.
pub(super) async fn open(
    address: &StoreAddress,
    create: bool,
    limits: &StoreOptions,
) -> Result<Pools<Sqlite>, StoreError> {
    let failed = |source| StoreError::Open { address: address.to_string(), source };
    let path = match address {
        StoreAddress::File(path) => path,
        StoreAddress::Memory => {
            let writer = memory(limits).await.map_err(failed)?;
            let migrated = migrate(&writer, address).await?;
            return Ok(pools(writer.clone(), writer, migrated));
        }
        StoreAddress::Postgres(_) => {
            return Err(StoreError::Address {
                address: address.to_string(),
                why: "an SQLite store is at sqlite:PATH or sqlite::memory:",
            });
        }
    };
    if !create && !path.is_file() {
        return Err(StoreError::Missing { address: address.to_string() });
    }
    let options = options(path).create_if_missing(create);
    if !create && !is_ours(&options).await.map_err(failed)? {
        return Err(StoreError::Foreign { address: address.to_string() });
    }
    let writing = options.clone().journal_mode(SqliteJournalMode::Wal);
    let writer = open_patiently(&options, writing, limits).await.map_err(failed)?;
    let migrated = migrate(&writer, address).await?;
    let reading = options.create_if_missing(false).pragma("query_only", "ON");
    let reader = pool(READERS, limits).connect_with(reading).await.map_err(failed)?;
    Ok(pools(writer, reader, migrated))
}

/// One writer serves all: SQLite has no more.
fn pools(writer: Pool<Sqlite>, reader: Pool<Sqlite>, migrated: Migrated) -> Pools<Sqlite> {
    let requests = Lane { writer, reader, suspects: Arc::default() };
    Pools { background: requests.clone(), relay: requests.clone(), requests, migrated }
}

/// Has mamparo been here? Only looks, because the file may be somebody else's: a switch to WAL alone
/// would change it.
async fn is_ours(options: &SqliteConnectOptions) -> sqlx::Result<bool> {
    let mut conn = options.clone().pragma("query_only", "ON").connect().await?;
    let found = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'mamparo_schema')",
    )
    .fetch_one(&mut conn)
    .await?;
    conn.close().await?;
    Ok(found)
}

fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        // FULL, not NORMAL: what was answered as committed must survive a power cut.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
}

/// Connections live as long as the store: opening one costs more than keeping it.
fn pool(connections: u32, limits: &StoreOptions) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(limits.acquire_timeout)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
}

/// A database that lives in its one connection.
async fn memory(limits: &StoreOptions) -> sqlx::Result<Pool<Sqlite>> {
    let options =
        SqliteConnectOptions::new().filename(":memory:").in_memory(true).foreign_keys(true);
    pool(1, limits).min_connections(1).connect_with(options).await
}

/// Switching a new file to WAL fails at once, in spite of the busy timeout, when another process is
/// doing the same. An exclusive transaction on a plain connection does heed the timeout, so it
/// serves to wait for the other one; then it is our turn again.
async fn open_patiently(
    plain: &SqliteConnectOptions,
    writing: SqliteConnectOptions,
    limits: &StoreOptions,
) -> sqlx::Result<Pool<Sqlite>> {
    let mut tries = 1;
    loop {
        match pool(1, limits).connect_with(writing.clone()).await {
            Err(error) if tries < OPEN_TRIES && is_busy(&error) => {
                tries += 1;
                let mut conn = plain.connect().await?;
                wait_for_others(&mut conn).await?;
                conn.close().await?;
            }
            result => return result,
        }
    }
}

async fn wait_for_others(conn: &mut SqliteConnection) -> sqlx::Result<()> {
    match conn.begin_with("BEGIN EXCLUSIVE").await {
        Ok(tx) => tx.rollback().await,
        Err(error) if is_busy(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// SQLITE_BUSY (5) and its extended codes.
fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.and_then(|code| code.parse::<i32>().ok()).is_some_and(|code| code & 0xff == 5)
}

async fn migrate(writer: &Pool<Sqlite>, address: &StoreAddress) -> Result<Migrated, StoreError> {
    let failed = |source| StoreError::Open { address: address.to_string(), source };
    let mut tx = writer.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    let found = schema::migrate(&mut tx).await.map_err(failed)?;
    if found > schema::VERSION {
        return Err(StoreError::NewerSchema { found, known: schema::VERSION });
    }
    tx.commit().await.map_err(failed)?;
    Ok(Migrated { from: found, to: schema::VERSION })
}

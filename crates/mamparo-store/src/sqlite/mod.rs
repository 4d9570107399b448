//! SQLite: all SQL of mamparo, a file a subject.

mod connect;
mod failed;
mod idempotency;
mod inbox;
mod letters;
mod outbox;
mod parked;
#[cfg(test)]
mod plans;
mod queue;
mod queue_ops;
mod queue_rows;
mod retries;
mod schema;
mod shards;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use mamparo_core::time::WallTime;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Result, Row, Sqlite, SqliteConnection};

use crate::backend::Pools;
use crate::columns::headers_from_json;
use crate::{Backend, StoreAddress, StoreError, StoreOptions};

impl Backend for Sqlite {
    // A deferred transaction that reads and then writes fails at once when somebody else wrote in
    // between, and no busy timeout helps. Taking the write lock first makes it wait instead.
    const BEGIN: &'static str = "BEGIN IMMEDIATE";

    /// SQLite knows no limit of a statement, and the wait for its lock is the wait for the begin.
    fn begin_within(_left: Duration, _lock: Duration) -> Cow<'static, str> {
        Cow::Borrowed(Self::BEGIN)
    }

    /// A failed statement undoes itself alone. Where SQLite undoes the whole transaction (disk full,
    /// say), its COMMIT fails.
    async fn ensure_whole(_conn: &mut SqliteConnection) -> Result<(), StoreError> {
        Ok(())
    }

    async fn connect(
        address: &StoreAddress,
        create: bool,
        options: &StoreOptions,
    ) -> Result<Pools<Self>, StoreError> {
        connect::open(address, create, options).await
    }

    async fn run_script(conn: &mut SqliteConnection, sql: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(drop)
    }

    async fn read_clock(_conn: &mut SqliteConnection) -> Result<Option<WallTime>> {
        Ok(None)
    }

    /// Asking the one writer would wait for whoever writes; a file that only reads refuses `BEGIN
    /// IMMEDIATE` by itself.
    async fn check_writing(conn: &mut SqliteConnection) -> Result<()> {
        Self::check(conn).await
    }

    async fn check(conn: &mut SqliteConnection) -> Result<()> {
        sqlx::query("SELECT version FROM mamparo_schema LIMIT 1").execute(&mut *conn).await?;
        // A file that was deleted under us reads and writes as before, and is gone with the process.
        let file: String =
            sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
                .fetch_one(conn)
                .await?;
        if !file.is_empty() {
            std::fs::metadata(&file)?;
        }
        Ok(())
    }
}

/// Headers from a column with a JSON object.
fn headers_of(row: &SqliteRow, column: &str) -> Result<BTreeMap<String, String>> {
    headers_from_json(row.try_get(column)?, column)
}

/// Values as a JSON array, for `json_each`: one prepared statement for any number of them.
fn json_of(values: &(impl serde::Serialize + ?Sized)) -> Result<String> {
    serde_json::to_string(values).map_err(|error| sqlx::Error::Encode(Box::new(error)))
}

/// A duration in milliseconds; longer ones than fit are cut.
fn millis_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

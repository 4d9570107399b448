//! SQLite: all SQL of mamparo, a file a subject.

mod connect;
mod idempotency;
mod inbox;
mod outbox;
#[cfg(test)]
mod plans;
mod queue;
mod queue_ops;
mod queue_rows;
mod schema;

use std::collections::BTreeMap;
use std::time::Duration;

use mamparo_core::time::WallTime;
use serde_json::Value;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Result, Row, Sqlite, SqliteConnection};

use crate::Backend;

pub(crate) use connect::open;

impl Backend for Sqlite {
    // A deferred transaction that reads and then writes fails at once when somebody else wrote in
    // between, and no busy timeout helps. Taking the write lock first makes it wait instead.
    const BEGIN: &'static str = "BEGIN IMMEDIATE";

    async fn run_script(conn: &mut SqliteConnection, sql: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(drop)
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

/// Headers as a JSON object.
fn headers_to_json(headers: &BTreeMap<String, String>) -> Result<String> {
    serde_json::to_string(headers).map_err(|error| sqlx::Error::Encode(Box::new(error)))
}

/// Headers from a column with a JSON object.
fn headers_of(row: &SqliteRow, column: &str) -> Result<BTreeMap<String, String>> {
    let read: Result<BTreeMap<String, Value>, _> = serde_json::from_str(row.try_get(column)?);
    let read = read.map_err(|source| column_error(column, source))?;
    // Whoever edits a header by hand writes 5 where we write "5". One such row must not keep all
    // others of its queue from being read.
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Ok(read.into_iter().map(|(name, value)| (name, text(value))).collect())
}

/// Row numbers as a JSON array, for `json_each`: one prepared statement for any number of them.
fn rows_to_json(rows: &[i64]) -> Result<String> {
    serde_json::to_string(rows).map_err(|error| sqlx::Error::Encode(Box::new(error)))
}

/// A point in time from a column with milliseconds.
fn time_of(row: &SqliteRow, column: &str) -> Result<WallTime> {
    row.try_get(column).map(WallTime::from_unix_millis)
}

/// A number from a column that is never negative.
fn count_of<T: TryFrom<i64>>(row: &SqliteRow, column: &str) -> Result<T>
where
    T::Error: std::error::Error + Send + Sync + 'static,
{
    T::try_from(row.try_get::<i64, _>(column)?).map_err(|source| column_error(column, source))
}

/// A duration in milliseconds; longer ones than fit are cut.
fn millis_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn column_error(
    column: &str,
    source: impl std::error::Error + Send + Sync + 'static,
) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.to_owned(), source: Box::new(source) }
}

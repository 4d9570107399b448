//! PostgreSQL: all SQL of mamparo for it, a file a subject.

mod connect;
mod failed;
mod history;
mod idempotency;
mod inbox;
mod outbox;
#[cfg(test)]
mod outbox_plans;
mod parked;
#[cfg(test)]
mod plans;
mod retries;
mod schema;
mod shards;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use mamparo_core::time::WallTime;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Postgres, Result, Row};

use crate::backend::Pools;
use crate::columns::headers_from_json;
use crate::{Backend, StoreAddress, StoreError, StoreOptions};

impl Backend for Postgres {
    const BEGIN: &'static str = "BEGIN ISOLATION LEVEL READ COMMITTED";

    fn begin_within(left: Duration, lock: Duration) -> Cow<'static, str> {
        // Zero would mean "no limit".
        let millis = |limit: Duration| limit.as_millis().clamp(1, i32::MAX as u128);
        let begin = Self::BEGIN;
        Cow::Owned(format!(
            "{begin}; SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = {}",
            millis(left),
            millis(lock.min(left)),
        ))
    }

    /// `COMMIT` of a transaction that is undone already succeeds, and the driver does not show that
    /// the server called it ROLLBACK. So a statement that fails then goes before it.
    async fn ensure_whole(conn: &mut PgConnection) -> Result<(), StoreError> {
        match sqlx::raw_sql("SELECT").execute(conn).await {
            Ok(_) => Ok(()),
            Err(error) if is_aborted(&error) => Err(StoreError::Aborted),
            Err(source) => Err(StoreError::Database { operation: "commit a transaction", source }),
        }
    }

    async fn connect(
        address: &StoreAddress,
        create: bool,
        options: &StoreOptions,
    ) -> Result<Pools<Self>, StoreError> {
        match address {
            StoreAddress::Postgres(url) => connect::open(url, create, options).await,
            StoreAddress::File(_) | StoreAddress::Memory => Err(StoreError::Address {
                address: address.to_string(),
                why: "a PostgreSQL store is at postgres://…",
            }),
        }
    }

    async fn run_script(conn: &mut PgConnection, sql: &str) -> Result<()> {
        // `CREATE TABLE IF NOT EXISTS` fails when two do it together.
        sqlx::raw_sql("SELECT pg_advisory_xact_lock(hashtext('mamparo apply'))")
            .execute(&mut *conn)
            .await?;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(drop)
    }

    async fn read_clock(conn: &mut PgConnection) -> Result<Option<WallTime>> {
        // Not `now()`, which is the time of the transaction's start.
        let millis = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        let millis = sqlx::query_scalar(millis).fetch_one(conn).await?;
        Ok(Some(WallTime::from_unix_millis(millis)))
    }

    async fn check(conn: &mut PgConnection) -> Result<()> {
        sqlx::query("SELECT version FROM mamparo_schema LIMIT 1").execute(conn).await.map(drop)
    }

    /// Whether a transaction may write is judged before its first row is looked for.
    async fn check_writing(conn: &mut PgConnection) -> Result<()> {
        let nothing = "UPDATE mamparo_schema SET version = version WHERE false";
        sqlx::query(nothing).execute(conn).await.map(drop)
    }
}

/// "current transaction is aborted"
fn is_aborted(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("25P02"))
}

/// Headers from a column with the text of a JSON object.
fn headers_of(row: &PgRow, column: &str) -> Result<BTreeMap<String, String>> {
    headers_from_json(row.try_get(column)?, column)
}

/// Numbers for an array of `BIGINT`.
fn numbers(shards: &[u16]) -> Vec<i64> {
    shards.iter().map(|shard| i64::from(*shard)).collect()
}

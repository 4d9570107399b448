//! SQLite: all SQL of mamparo, a file a subject.

mod connect;
mod idempotency;
mod inbox;
mod outbox;
#[cfg(test)]
mod plans;
mod queue;
mod queue_ops;
mod schema;

use std::collections::BTreeMap;
use std::time::Duration;

use mamparo_core::message::idempotency::Record;
use mamparo_core::time::WallTime;
use serde_json::Value;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Result, Row, Sqlite, SqliteConnection};

use crate::Backend;
use crate::attempts::Attempt;
use crate::idempotency::StoredResponse;
use crate::outbox::{Claimed, Event, Listed as ListedEvent, OutboxStats};
use crate::queue::{Archived, Leased, Listed, QueueMessage, QueueSpec, Selection, Totals};

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

    async fn insert_event(
        conn: &mut SqliteConnection,
        event: &Event,
        now: WallTime,
    ) -> Result<i64> {
        outbox::insert(conn, event, now).await
    }

    async fn has_due_events(conn: &mut SqliteConnection, now: WallTime) -> Result<bool> {
        outbox::has_due(conn, now).await
    }

    async fn claim_events(
        conn: &mut SqliteConnection,
        owner: &str,
        max: u32,
        until: WallTime,
        now: WallTime,
    ) -> Result<Vec<Claimed>> {
        outbox::claim(conn, owner, max, until, now).await
    }

    async fn confirm_events(
        conn: &mut SqliteConnection,
        owner: &str,
        rows: &[i64],
        now: WallTime,
    ) -> Result<u64> {
        outbox::confirm(conn, owner, rows, now).await
    }

    async fn postpone_event(
        conn: &mut SqliteConnection,
        owner: &str,
        row: i64,
        due: WallTime,
        error: &str,
    ) -> Result<u64> {
        outbox::postpone(conn, owner, row, due, error).await
    }

    async fn release_events(conn: &mut SqliteConnection, owner: &str) -> Result<u64> {
        outbox::release(conn, owner).await
    }

    async fn requeue_events(
        conn: &mut SqliteConnection,
        rows: &[i64],
        now: WallTime,
    ) -> Result<u64> {
        outbox::requeue(conn, rows, now).await
    }

    async fn count_events(conn: &mut SqliteConnection) -> Result<OutboxStats> {
        outbox::stats(conn).await
    }

    async fn list_events(conn: &mut SqliteConnection, max: u32) -> Result<Vec<ListedEvent>> {
        outbox::list(conn, max).await
    }

    async fn forget_events(conn: &mut SqliteConnection, before: WallTime, max: u32) -> Result<u64> {
        outbox::forget(conn, before, max).await
    }

    async fn insert_inbox(
        conn: &mut SqliteConnection,
        consumer: &str,
        message_id: &str,
        kind: &str,
        now: WallTime,
    ) -> Result<i64> {
        inbox::insert(conn, consumer, message_id, kind, now).await
    }

    async fn has_inbox(
        conn: &mut SqliteConnection,
        consumer: &str,
        message_id: &str,
    ) -> Result<bool> {
        inbox::contains(conn, consumer, message_id).await
    }

    async fn forget_inbox(conn: &mut SqliteConnection, before: WallTime, max: u32) -> Result<u64> {
        inbox::forget(conn, before, max).await
    }

    async fn start_attempt(
        conn: &mut SqliteConnection,
        attempt: Attempt<'_>,
        alive_until: WallTime,
        now: WallTime,
    ) -> Result<u32> {
        inbox::start_attempt(conn, attempt, alive_until, now).await
    }

    async fn renew_attempts(
        conn: &mut SqliteConnection,
        consumer: &str,
        owner: &str,
        alive_until: WallTime,
    ) -> Result<()> {
        inbox::renew_attempts(conn, consumer, owner, alive_until).await
    }

    async fn end_attempt(
        conn: &mut SqliteConnection,
        attempt: Attempt<'_>,
        now: WallTime,
    ) -> Result<()> {
        inbox::end_attempt(conn, attempt, now).await
    }

    async fn load_key(
        conn: &mut SqliteConnection,
        caller: &str,
        key: &str,
    ) -> Result<Option<Record>> {
        idempotency::load(conn, caller, key).await
    }

    async fn save_key(
        conn: &mut SqliteConnection,
        caller: &str,
        key: &str,
        record: &Record,
        answer: Option<(&StoredResponse, WallTime)>,
    ) -> Result<()> {
        idempotency::save(conn, caller, key, record, answer).await
    }

    async fn load_response(
        conn: &mut SqliteConnection,
        caller: &str,
        key: &str,
    ) -> Result<StoredResponse> {
        idempotency::response(conn, caller, key).await
    }

    async fn forget_keys(conn: &mut SqliteConnection, now: WallTime, max: u32) -> Result<u64> {
        idempotency::forget(conn, now, max).await
    }

    async fn declare_queue(conn: &mut SqliteConnection, spec: &QueueSpec) -> Result<()> {
        queue::declare(conn, spec).await
    }

    async fn has_queue(conn: &mut SqliteConnection, queue: &str) -> Result<bool> {
        queue::exists(conn, queue).await
    }

    async fn bind_queue(
        conn: &mut SqliteConnection,
        exchange: &str,
        pattern: &str,
        queue: &str,
    ) -> Result<()> {
        queue::bind(conn, exchange, pattern, queue).await
    }

    async fn bindings(
        conn: &mut SqliteConnection,
        exchange: &str,
    ) -> Result<Vec<(String, String)>> {
        queue::bindings(conn, exchange).await
    }

    async fn insert_message(
        conn: &mut SqliteConnection,
        queue: &str,
        message: &QueueMessage,
        now: WallTime,
    ) -> Result<()> {
        queue::insert(conn, queue, message, now).await
    }

    async fn expired_sources(
        conn: &mut SqliteConnection,
        queue: &str,
        now: WallTime,
    ) -> Result<Vec<(String, Duration)>> {
        queue::expired_sources(conn, queue, now).await
    }

    async fn has_visible(conn: &mut SqliteConnection, queue: &str, now: WallTime) -> Result<bool> {
        queue::has_visible(conn, queue, now).await
    }

    async fn move_expired(
        conn: &mut SqliteConnection,
        from: &str,
        ttl: Duration,
        to: &str,
        now: WallTime,
    ) -> Result<u64> {
        queue::move_expired(conn, from, ttl, to, now).await
    }

    async fn lease_messages(
        conn: &mut SqliteConnection,
        queue: &str,
        owner: &str,
        max: u32,
        until: WallTime,
        now: WallTime,
    ) -> Result<Vec<Leased>> {
        queue::lease(conn, queue, owner, max, until, now).await
    }

    async fn renew_leases(
        conn: &mut SqliteConnection,
        owner: &str,
        until: WallTime,
    ) -> Result<u64> {
        queue::renew(conn, owner, until).await
    }

    async fn ack_message(conn: &mut SqliteConnection, row: i64, epoch: i64) -> Result<bool> {
        queue::ack(conn, row, epoch).await
    }

    async fn release_message(
        conn: &mut SqliteConnection,
        row: i64,
        epoch: i64,
        visible: WallTime,
    ) -> Result<bool> {
        queue::release(conn, row, epoch, visible).await
    }

    async fn release_messages(conn: &mut SqliteConnection, owner: &str) -> Result<u64> {
        queue::release_all(conn, owner).await
    }

    async fn count_messages(conn: &mut SqliteConnection, queue: &str) -> Result<u64> {
        queue_ops::count(conn, queue).await
    }

    async fn list_messages(
        conn: &mut SqliteConnection,
        queue: &str,
        selection: &Selection,
    ) -> Result<Vec<Listed>> {
        queue_ops::list(conn, queue, selection).await
    }

    async fn move_message(
        conn: &mut SqliteConnection,
        row: i64,
        to: &str,
        headers: &BTreeMap<String, String>,
        now: WallTime,
    ) -> Result<bool> {
        queue_ops::move_to(conn, row, to, headers, now).await
    }

    async fn archive_message(
        conn: &mut SqliteConnection,
        row: i64,
        actor: &str,
        reason: &str,
        now: WallTime,
    ) -> Result<bool> {
        queue_ops::archive(conn, row, actor, reason, now).await
    }

    async fn list_archive(
        conn: &mut SqliteConnection,
        queue: &str,
        max: u32,
    ) -> Result<Vec<Archived>> {
        queue_ops::list_archive(conn, queue, max).await
    }

    async fn totals(conn: &mut SqliteConnection) -> Result<Vec<Totals>> {
        queue_ops::totals(conn).await
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

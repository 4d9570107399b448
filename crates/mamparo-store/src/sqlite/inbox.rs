//! Inbox and attempt rows.

use mamparo_core::time::WallTime;
use sqlx::{Result, SqliteConnection};

use super::count_of;

/// Insert first, in one statement: two consumers can't both see "not there yet".
pub(super) async fn insert(
    conn: &mut SqliteConnection,
    consumer: &str,
    message_id: &str,
    kind: &str,
    now: WallTime,
) -> Result<i64> {
    sqlx::query_scalar(
        "INSERT INTO mamparo_inbox (consumer, message_id, kind, applied_at) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (consumer, message_id) DO UPDATE SET duplicates = duplicates + 1
         RETURNING duplicates",
    )
    .bind(consumer)
    .bind(message_id)
    .bind(kind)
    .bind(now.unix_millis())
    .fetch_one(conn)
    .await
}

pub(super) async fn contains(
    conn: &mut SqliteConnection,
    consumer: &str,
    message_id: &str,
) -> Result<bool> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM mamparo_inbox WHERE consumer = ?1 AND message_id = ?2)",
    )
    .bind(consumer)
    .bind(message_id)
    .fetch_one(conn)
    .await
}

pub(super) async fn forget(conn: &mut SqliteConnection, before: WallTime, max: u32) -> Result<u64> {
    sqlx::query(
        "DELETE FROM mamparo_inbox WHERE (consumer, message_id) IN (SELECT consumer, message_id
         FROM mamparo_inbox WHERE applied_at < ?1 ORDER BY applied_at LIMIT ?2)",
    )
    .bind(before.unix_millis())
    .bind(max)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
}

pub(super) async fn start_attempt(
    conn: &mut SqliteConnection,
    consumer: &str,
    message_id: &str,
    now: WallTime,
) -> Result<u32> {
    let row = sqlx::query(
        "INSERT INTO mamparo_attempts (consumer, message_id, starts, started_at)
         VALUES (?1, ?2, 1, ?3)
         ON CONFLICT (consumer, message_id) DO UPDATE SET starts = starts + 1, started_at = ?3
         RETURNING starts - 1 AS earlier",
    )
    .bind(consumer)
    .bind(message_id)
    .bind(now.unix_millis())
    .fetch_one(conn)
    .await?;
    count_of(&row, "earlier")
}

pub(super) async fn end_attempt(
    conn: &mut SqliteConnection,
    consumer: &str,
    message_id: &str,
) -> Result<()> {
    sqlx::query("DELETE FROM mamparo_attempts WHERE consumer = ?1 AND message_id = ?2")
        .bind(consumer)
        .bind(message_id)
        .execute(conn)
        .await
        .map(drop)
}

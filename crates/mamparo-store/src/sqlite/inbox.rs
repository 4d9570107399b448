//! Inbox and attempt rows.

use mamparo_core::time::WallTime;
use sqlx::{Result, Sqlite, SqliteConnection};

use crate::attempts::Attempt;
use crate::backend::InboxRows;
use crate::columns::count_of;

impl InboxRows for Sqlite {
    async fn insert_inbox(
        conn: &mut SqliteConnection,
        consumer: &str,
        message_id: &str,
        kind: &str,
        now: WallTime,
    ) -> Result<i64> {
        insert(conn, consumer, message_id, kind, now).await
    }

    /// Both are calls within the process.
    fn begin_with_inbox(_: &str, _: &str, _: &str, _: WallTime) -> Option<String> {
        None
    }

    async fn count_duplicate(
        conn: &mut SqliteConnection,
        consumer: &str,
        message_id: &str,
    ) -> Result<bool> {
        sqlx::query(COUNT_DUPLICATE)
            .bind(consumer)
            .bind(message_id)
            .execute(conn)
            .await
            .map(|done| done.rows_affected() > 0)
    }

    async fn has_inbox(
        conn: &mut SqliteConnection,
        consumer: &str,
        message_id: &str,
    ) -> Result<bool> {
        contains(conn, consumer, message_id).await
    }

    async fn forget_inbox(conn: &mut SqliteConnection, before: WallTime, max: u32) -> Result<u64> {
        forget(conn, before, max).await
    }

    async fn start_attempt(
        conn: &mut SqliteConnection,
        attempt: Attempt<'_>,
        alive_until: WallTime,
        now: WallTime,
    ) -> Result<u32> {
        start_attempt(conn, attempt, alive_until, now).await
    }

    async fn attempt_elsewhere(
        conn: &mut SqliteConnection,
        attempt: Attempt<'_>,
        now: WallTime,
    ) -> Result<Option<WallTime>> {
        let until: Option<i64> = sqlx::query_scalar(
            "SELECT max(alive_until) FROM mamparo_attempts
             WHERE consumer = $1 AND message_id = $2 AND owner <> $3 AND alive_until > $4",
        )
        .bind(attempt.consumer)
        .bind(attempt.message_id)
        .bind(attempt.owner)
        .bind(now.unix_millis())
        .fetch_one(conn)
        .await?;
        Ok(until.map(WallTime::from_unix_millis))
    }

    async fn renew_attempts(
        conn: &mut SqliteConnection,
        consumer: &str,
        owner: &str,
        alive_until: WallTime,
    ) -> Result<()> {
        renew_attempts(conn, consumer, owner, alive_until).await
    }

    async fn end_attempt(
        conn: &mut SqliteConnection,
        attempt: Attempt<'_>,
        now: WallTime,
    ) -> Result<()> {
        end_attempt(conn, attempt, now).await
    }
}

const COUNT_DUPLICATE: &str = "UPDATE mamparo_inbox SET duplicates = duplicates + 1
     WHERE consumer = $1 AND message_id = $2";

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
    attempt: Attempt<'_>,
    alive_until: WallTime,
    now: WallTime,
) -> Result<u32> {
    let row = sqlx::query(
        "INSERT INTO mamparo_attempts (consumer, message_id, owner, started_at, alive_until)
         VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (consumer, message_id, owner) DO UPDATE
         SET started_at = excluded.started_at, alive_until = excluded.alive_until
         RETURNING (SELECT count(*) FROM mamparo_attempts AS other
             WHERE other.consumer = ?1 AND other.message_id = ?2 AND other.owner <> ?3
             AND other.alive_until <= ?4) AS crashes",
    )
    .bind(attempt.consumer)
    .bind(attempt.message_id)
    .bind(attempt.owner)
    .bind(now.unix_millis())
    .bind(alive_until.unix_millis())
    .fetch_one(conn)
    .await?;
    count_of(&row, "crashes")
}

pub(super) async fn renew_attempts(
    conn: &mut SqliteConnection,
    consumer: &str,
    owner: &str,
    alive_until: WallTime,
) -> Result<()> {
    sqlx::query("UPDATE mamparo_attempts SET alive_until = ?1 WHERE consumer = ?2 AND owner = ?3")
        .bind(alive_until.unix_millis())
        .bind(consumer)
        .bind(owner)
        .execute(conn)
        .await
        .map(drop)
}

pub(super) async fn end_attempt(
    conn: &mut SqliteConnection,
    attempt: Attempt<'_>,
    now: WallTime,
) -> Result<()> {
    sqlx::query(
        "DELETE FROM mamparo_attempts WHERE consumer = ?1 AND message_id = ?2
         AND (owner = ?3 OR alive_until <= ?4)",
    )
    .bind(attempt.consumer)
    .bind(attempt.message_id)
    .bind(attempt.owner)
    .bind(now.unix_millis())
    .execute(conn)
    .await
    .map(drop)
}

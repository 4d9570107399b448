//! Inbox and attempt rows.

use std::fmt::Write;

use mamparo_core::time::WallTime;
use sqlx::postgres::PgConnection;
use sqlx::{Postgres, Result};

use crate::attempts::Attempt;
use crate::backend::InboxRows;
use crate::columns::count_of;

pub(super) const V1: &str = "
CREATE TABLE mamparo_inbox (
    consumer   TEXT NOT NULL,
    message_id TEXT NOT NULL,
    kind       TEXT NOT NULL,
    applied_at BIGINT NOT NULL,
    duplicates BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (consumer, message_id)
);
CREATE INDEX mamparo_inbox_applied ON mamparo_inbox (applied_at);

CREATE TABLE mamparo_attempts (
    consumer    TEXT NOT NULL,
    message_id  TEXT NOT NULL,
    owner       TEXT NOT NULL,
    started_at  BIGINT NOT NULL,
    alive_until BIGINT NOT NULL,
    PRIMARY KEY (consumer, message_id, owner)
);
CREATE INDEX mamparo_attempts_owner ON mamparo_attempts (owner, consumer);
";

pub(super) const HAS: &str =
    "SELECT EXISTS (SELECT 1 FROM mamparo_inbox WHERE consumer = $1 AND message_id = $2)";

pub(super) const COUNT_DUPLICATE: &str = "UPDATE mamparo_inbox SET duplicates = duplicates + 1
     WHERE consumer = $1 AND message_id = $2";

/// Old rows go in batches, by index. Partitions by time, which could be dropped whole, would need the
/// time in the primary key, and then one message could be applied in two of them. Rows that somebody
/// holds are left for the next batch, so that neither waits for the other.
pub(super) const FORGET: &str =
    "DELETE FROM mamparo_inbox WHERE ctid = ANY (ARRAY(SELECT ctid FROM mamparo_inbox
     WHERE applied_at < $1 ORDER BY applied_at LIMIT $2 FOR UPDATE SKIP LOCKED))";

pub(super) const RENEW: &str =
    "UPDATE mamparo_attempts SET alive_until = $1 WHERE consumer = $2 AND owner = $3";

pub(super) const END: &str = "DELETE FROM mamparo_attempts WHERE consumer = $1 AND message_id = $2
     AND (owner = $3 OR alive_until <= $4)";

impl InboxRows for Postgres {
    /// Insert first, in one statement: the second of two waits until the first has ended, and then
    /// sees its row, or inserts its own when the first has rolled back.
    async fn insert_inbox(
        conn: &mut PgConnection,
        consumer: &str,
        message_id: &str,
        kind: &str,
        now: WallTime,
    ) -> Result<i64> {
        sqlx::query_scalar(
            "INSERT INTO mamparo_inbox AS row (consumer, message_id, kind, applied_at)
             VALUES ($1, $2, $3, $4)
             ON CONFLICT (consumer, message_id) DO UPDATE SET duplicates = row.duplicates + 1
             RETURNING duplicates",
        )
        .bind(consumer)
        .bind(message_id)
        .bind(kind)
        .bind(now.unix_millis())
        .fetch_one(conn)
        .await
    }

    /// Statements that are sent as one message are one transaction, and a BEGIN at their end keeps it
    /// open, the ones before it included. A row that is there ends it before the BEGIN, so that
    /// nothing is left open. The texts come from outside: they travel as hexadecimal digits, of
    /// which no SQL can be made.
    fn begin_with_inbox(
        consumer: &str,
        message_id: &str,
        kind: &str,
        now: WallTime,
    ) -> Option<String> {
        let [consumer, message_id, kind] = [consumer, message_id, kind].map(text);
        Some(format!(
            "INSERT INTO mamparo_inbox (consumer, message_id, kind, applied_at)
             VALUES ({consumer}, {message_id}, {kind}, {}); BEGIN",
            now.unix_millis()
        ))
    }

    async fn count_duplicate(
        conn: &mut PgConnection,
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

    async fn has_inbox(conn: &mut PgConnection, consumer: &str, message_id: &str) -> Result<bool> {
        sqlx::query_scalar(HAS).bind(consumer).bind(message_id).fetch_one(conn).await
    }

    async fn forget_inbox(conn: &mut PgConnection, before: WallTime, max: u32) -> Result<u64> {
        sqlx::query(FORGET)
            .bind(before.unix_millis())
            .bind(i64::from(max))
            .execute(conn)
            .await
            .map(|done| done.rows_affected())
    }

    async fn start_attempt(
        conn: &mut PgConnection,
        attempt: Attempt<'_>,
        alive_until: WallTime,
        now: WallTime,
    ) -> Result<u32> {
        let row = sqlx::query(
            "INSERT INTO mamparo_attempts (consumer, message_id, owner, started_at, alive_until)
             VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (consumer, message_id, owner) DO UPDATE
             SET started_at = excluded.started_at, alive_until = excluded.alive_until
             RETURNING (SELECT count(*) FROM mamparo_attempts AS other
                 WHERE other.consumer = $1 AND other.message_id = $2 AND other.owner <> $3
                 AND other.alive_until <= $4) AS crashes",
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

    async fn attempt_elsewhere(
        conn: &mut PgConnection,
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
        conn: &mut PgConnection,
        consumer: &str,
        owner: &str,
        alive_until: WallTime,
    ) -> Result<()> {
        sqlx::query(RENEW)
            .bind(alive_until.unix_millis())
            .bind(consumer)
            .bind(owner)
            .execute(conn)
            .await
            .map(drop)
    }

    async fn end_attempt(
        conn: &mut PgConnection,
        attempt: Attempt<'_>,
        now: WallTime,
    ) -> Result<()> {
        sqlx::query(END)
            .bind(attempt.consumer)
            .bind(attempt.message_id)
            .bind(attempt.owner)
            .bind(now.unix_millis())
            .execute(conn)
            .await
            .map(drop)
    }
}

/// A text as an SQL expression.
fn text(value: &str) -> String {
    let mut sql = String::with_capacity(value.len() * 2 + 36);
    // Not '\x…': a backslash means something else where standard_conforming_strings is off.
    sql.push_str("convert_from(decode('");
    for byte in value.as_bytes() {
        // Writing into a String can't fail.
        let _ = write!(sql, "{byte:02x}");
    }
    sql.push_str("','hex'),'UTF8')");
    sql
}

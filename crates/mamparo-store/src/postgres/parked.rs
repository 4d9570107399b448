//! Messages that wait for another attempt.

use mamparo_core::time::WallTime;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Postgres, Result, Row};

use super::headers_of;
use crate::backend::ParkedRows;
use crate::backend::parked::{CONSUMERS, FIND, FIRST, SEIZE};
use crate::columns::{count_of, headers_to_json, time_of};
use crate::parked::{Claimed, Entry, Failure, ParkedRow, Wait};
use crate::queue::QueueMessage;

/// `head` marks the first row of its key, which alone may be handed out: looking for it at each
/// claim would read everything that waits behind a key that stays parked.
pub(super) const V1: &str = "
CREATE TABLE mamparo_parked (
    seq         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer    TEXT NOT NULL,
    id          TEXT NOT NULL,
    key         TEXT NOT NULL,
    head        BOOLEAN NOT NULL,
    visible_at  BIGINT NOT NULL,
    epoch       BIGINT NOT NULL DEFAULT 0,
    losses      BIGINT NOT NULL DEFAULT 0,
    owner       TEXT,
    attempts    BIGINT NOT NULL,
    since       BIGINT NOT NULL,
    kind        TEXT NOT NULL,
    exchange    TEXT NOT NULL,
    routing_key TEXT NOT NULL,
    history     JSONB NOT NULL,
    headers     TEXT NOT NULL,
    body        BYTEA NOT NULL,
    UNIQUE (consumer, id)
);
-- In the order of the claim, seq included: without it a planner whose statistics know of no due row sorts
-- all of them for each claim.
CREATE INDEX mamparo_parked_due ON mamparo_parked (consumer, visible_at, seq) WHERE head;
CREATE INDEX mamparo_parked_key ON mamparo_parked (consumer, key, seq) WHERE key <> '';
CREATE INDEX mamparo_parked_owner ON mamparo_parked (owner) WHERE owner IS NOT NULL;
";

/// A row that still has an owner was neither settled nor given back: that is a loss. Rows that
/// another process just claims are left to it.
const CLAIM: &str = "UPDATE mamparo_parked
     SET owner = $1, visible_at = $2, epoch = epoch + 1,
         losses = losses + CASE WHEN owner IS NULL THEN 0 ELSE 1 END
     WHERE seq = ANY (ARRAY(SELECT seq FROM mamparo_parked WHERE consumer = $3 AND head
         AND visible_at <= $4 ORDER BY visible_at, seq LIMIT $5 FOR UPDATE SKIP LOCKED))
     RETURNING seq, epoch, losses, id, kind, exchange, routing_key, key, headers, body";

impl ParkedRows for Postgres {
    /// A statement of its own: what comes after it sees what the holder before us has committed.
    async fn lock_parked_key(conn: &mut PgConnection, consumer: &str, key: &str) -> Result<()> {
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1 || '/' || $2, 1))")
            .bind(consumer)
            .bind(key)
            .execute(conn)
            .await
            .map(drop)
    }

    async fn park(
        conn: &mut PgConnection,
        consumer: &str,
        message: &QueueMessage,
        wait: &Wait,
        failure: Option<&Failure>,
    ) -> Result<bool> {
        let history: Vec<_> = failure.map(|failure| failure.to_json(wait)).into_iter().collect();
        sqlx::query(
            "INSERT INTO mamparo_parked (consumer, id, key, head, visible_at, attempts, since,
                 kind, exchange, routing_key, history, headers, body)
             VALUES ($1, $2, $3, NOT EXISTS (SELECT 1 FROM mamparo_parked
                 WHERE consumer = $1 AND key = $3 AND key <> ''), $4, $5, $6, $7, $8, $9,
                 $10::jsonb, $11, $12)
             ON CONFLICT (consumer, id) DO NOTHING",
        )
        .bind(consumer)
        .bind(&message.id)
        .bind(&message.key)
        .bind(wait.due.unix_millis())
        .bind(i64::from(wait.attempts))
        .bind(wait.now.unix_millis())
        .bind(&message.kind)
        .bind(&message.exchange)
        .bind(&message.routing_key)
        .bind(serde_json::Value::Array(history).to_string())
        .bind(headers_to_json(&message.headers)?)
        .bind(&message.body)
        .execute(conn)
        .await
        .map(|done| done.rows_affected() == 1)
    }

    async fn is_parked(conn: &mut PgConnection, consumer: &str, key: &str) -> Result<bool> {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM mamparo_parked
             WHERE consumer = $1 AND key = $2 AND key <> '')",
        )
        .bind(consumer)
        .bind(key)
        .fetch_one(conn)
        .await
    }

    async fn look_up(
        conn: &mut PgConnection,
        consumer: &str,
        messages: &[(&str, &str)],
    ) -> Result<Vec<String>> {
        let (ids, keys): (Vec<&str>, Vec<&str>) = messages.iter().copied().unzip();
        sqlx::query_scalar(
            "SELECT m.id FROM unnest($2::text[], $3::text[]) AS m (id, key)
             WHERE EXISTS (SELECT 1 FROM mamparo_parked AS p WHERE p.consumer = $1 AND p.id = m.id)
             OR EXISTS (SELECT 1 FROM mamparo_parked AS p
                 WHERE p.consumer = $1 AND p.key = m.key AND p.key <> '')",
        )
        .bind(consumer)
        .bind(ids)
        .bind(keys)
        .fetch_all(conn)
        .await
    }

    async fn insert_inbox_unless_parked(
        conn: &mut PgConnection,
        entry: Entry<'_>,
        now: WallTime,
    ) -> Result<Option<i64>> {
        sqlx::query_scalar(
            "INSERT INTO mamparo_inbox AS row (consumer, message_id, kind, applied_at)
             SELECT $1, $2, $3, $4::bigint WHERE NOT EXISTS (SELECT 1 FROM mamparo_parked
                 WHERE consumer = $1 AND key = $5 AND key <> '')
             ON CONFLICT (consumer, message_id) DO UPDATE SET duplicates = row.duplicates + 1
             RETURNING duplicates",
        )
        .bind(entry.consumer)
        .bind(entry.message_id)
        .bind(entry.kind)
        .bind(now.unix_millis())
        .bind(entry.key)
        .fetch_optional(conn)
        .await
    }

    async fn claim_parked(
        conn: &mut PgConnection,
        consumer: &str,
        owner: &str,
        max: u32,
        until: WallTime,
        now: WallTime,
    ) -> Result<Vec<Claimed>> {
        let rows = sqlx::query(CLAIM)
            .bind(owner)
            .bind(until.unix_millis())
            .bind(consumer)
            .bind(now.unix_millis())
            .bind(i64::from(max))
            .fetch_all(conn)
            .await?;
        let mut claimed = rows.iter().map(claimed).collect::<Result<Vec<_>>>()?;
        // RETURNING promises no order.
        claimed.sort_unstable_by_key(|claimed| claimed.row);
        Ok(claimed)
    }

    async fn renew_parked(
        conn: &mut PgConnection,
        rows: &[i64],
        owner: &str,
        until: WallTime,
    ) -> Result<u64> {
        sqlx::query("UPDATE mamparo_parked SET visible_at = $1 WHERE owner = $2 AND seq = ANY ($3)")
            .bind(until.unix_millis())
            .bind(owner)
            .bind(rows)
            .execute(conn)
            .await
            .map(|done| done.rows_affected())
    }

    async fn next_parked(conn: &mut PgConnection, consumer: &str) -> Result<Option<WallTime>> {
        let next: Option<i64> = sqlx::query_scalar(
            "SELECT min(visible_at) FROM mamparo_parked WHERE consumer = $1 AND head",
        )
        .bind(consumer)
        .fetch_one(conn)
        .await?;
        Ok(next.map(WallTime::from_unix_millis))
    }

    async fn park_again(
        conn: &mut PgConnection,
        row: i64,
        epoch: i64,
        message: &QueueMessage,
        wait: &Wait,
        failure: &Failure,
    ) -> Result<bool> {
        sqlx::query(
            "UPDATE mamparo_parked SET owner = NULL, losses = 0, visible_at = $1, attempts = $2,
                 headers = $3, history = history || $4::jsonb
             WHERE seq = $5 AND epoch = $6 AND owner IS NOT NULL",
        )
        .bind(wait.due.unix_millis())
        .bind(i64::from(wait.attempts))
        .bind(headers_to_json(&message.headers)?)
        .bind(failure.to_json(wait).to_string())
        .bind(row)
        .bind(epoch)
        .execute(conn)
        .await
        .map(|done| done.rows_affected() == 1)
    }

    async fn release_parked(
        conn: &mut PgConnection,
        row: i64,
        epoch: i64,
        due: WallTime,
    ) -> Result<bool> {
        sqlx::query(
            "UPDATE mamparo_parked SET owner = NULL, visible_at = $1
             WHERE seq = $2 AND epoch = $3 AND owner IS NOT NULL",
        )
        .bind(due.unix_millis())
        .bind(row)
        .bind(epoch)
        .execute(conn)
        .await
        .map(|done| done.rows_affected() == 1)
    }

    async fn release_all_parked(
        conn: &mut PgConnection,
        consumer: &str,
        owner: &str,
        now: WallTime,
    ) -> Result<u64> {
        sqlx::query(
            "UPDATE mamparo_parked SET owner = NULL, visible_at = $1
             WHERE owner = $2 AND consumer = $3",
        )
        .bind(now.unix_millis())
        .bind(owner)
        .bind(consumer)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    }

    async fn remove_parked(conn: &mut PgConnection, row: i64, epoch: i64) -> Result<bool> {
        let removed: Option<(String, String)> = sqlx::query_as(
            "DELETE FROM mamparo_parked WHERE seq = $1 AND epoch = $2 AND owner IS NOT NULL
             RETURNING consumer, key",
        )
        .bind(row)
        .bind(epoch)
        .fetch_optional(&mut *conn)
        .await?;
        let Some((consumer, key)) = removed else { return Ok(false) };
        if !key.is_empty() {
            sqlx::query(
                "UPDATE mamparo_parked SET head = true WHERE seq = (SELECT min(seq) FROM mamparo_parked
                     WHERE consumer = $1 AND key = $2 AND key <> '')",
            )
            .bind(consumer)
            .bind(key)
            .execute(conn)
            .await?;
        }
        Ok(true)
    }

    async fn make_due(
        conn: &mut PgConnection,
        consumer: &str,
        message_id: Option<&str>,
        key: Option<&str>,
        now: WallTime,
    ) -> Result<u64> {
        sqlx::query(
            "UPDATE mamparo_parked SET visible_at = $1 WHERE consumer = $2 AND owner IS NULL
             AND ($3::text IS NULL OR id = $3) AND ($4::text IS NULL OR key = $4) AND visible_at > $1",
        )
        .bind(now.unix_millis())
        .bind(consumer)
        .bind(message_id)
        .bind(key)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    }

    async fn list_parked(
        conn: &mut PgConnection,
        consumer: &str,
        after: i64,
        max: u32,
    ) -> Result<Vec<ParkedRow>> {
        let rows = sqlx::query(
            "SELECT seq, head, visible_at, owner, attempts, since, history::text AS history, id, kind,
                 exchange, routing_key, key, headers, body
             FROM mamparo_parked WHERE consumer = $1 AND seq > $2 ORDER BY seq LIMIT $3",
        )
        .bind(consumer)
        .bind(after)
        .bind(i64::from(max))
        .fetch_all(conn)
        .await?;
        rows.iter().map(shown).collect()
    }

    async fn list_first_parked(
        conn: &mut PgConnection,
        consumer: &str,
        after: i64,
        max: u32,
    ) -> Result<Vec<(ParkedRow, u64)>> {
        let rows = sqlx::query(FIRST).bind(consumer).bind(after).bind(i64::from(max));
        let rows = rows.fetch_all(conn).await?;
        rows.iter().map(|row| Ok((shown(row)?, count_of(row, "behind")?))).collect()
    }

    async fn find_parked(
        conn: &mut PgConnection,
        consumer: &str,
        message_id: Option<&str>,
        key: Option<&str>,
    ) -> Result<Option<ParkedRow>> {
        let row = sqlx::query(FIND).bind(consumer).bind(message_id).bind(key);
        row.fetch_optional(conn).await?.as_ref().map(shown).transpose()
    }

    async fn seize_parked(
        conn: &mut PgConnection,
        row: i64,
        owner: &str,
        until: WallTime,
        now: WallTime,
    ) -> Result<Option<i64>> {
        let seized = sqlx::query_scalar(SEIZE).bind(owner).bind(until.unix_millis()).bind(row);
        seized.bind(now.unix_millis()).fetch_optional(conn).await
    }

    async fn parked_consumers(conn: &mut PgConnection) -> Result<Vec<String>> {
        sqlx::query_scalar(CONSUMERS).fetch_all(conn).await
    }

    async fn parked_stats(
        conn: &mut PgConnection,
        consumer: &str,
    ) -> Result<(u64, Option<WallTime>)> {
        let row = sqlx::query(
            "SELECT count(*) AS waiting, min(since) AS oldest FROM mamparo_parked
             WHERE consumer = $1",
        )
        .bind(consumer)
        .fetch_one(conn)
        .await?;
        let oldest: Option<i64> = row.try_get("oldest")?;
        Ok((count_of(&row, "waiting")?, oldest.map(WallTime::from_unix_millis)))
    }
}

fn claimed(row: &PgRow) -> Result<Claimed> {
    let losses: i64 = row.try_get("losses")?;
    Ok(Claimed {
        row: row.try_get("seq")?,
        epoch: row.try_get("epoch")?,
        suspect: losses > 0,
        message: message_of(row)?,
    })
}

fn shown(row: &PgRow) -> Result<ParkedRow> {
    let owner: Option<String> = row.try_get("owner")?;
    Ok(ParkedRow {
        row: row.try_get("seq")?,
        first: row.try_get("head")?,
        due: time_of(row, "visible_at")?,
        since: time_of(row, "since")?,
        attempts: count_of(row, "attempts")?,
        in_hand: owner.is_some(),
        history: row.try_get("history")?,
        message: message_of(row)?,
    })
}

fn message_of(row: &PgRow) -> Result<QueueMessage> {
    Ok(QueueMessage {
        id: row.try_get("id")?,
        kind: row.try_get("kind")?,
        exchange: row.try_get("exchange")?,
        routing_key: row.try_get("routing_key")?,
        key: row.try_get("key")?,
        headers: headers_of(row, "headers")?,
        body: row.try_get("body")?,
    })
}

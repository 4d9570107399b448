//! Outbox rows. Transactions that write events of one key take their turns, so that on each key the
//! rows' numbers are in the order of commits.

use mamparo_core::time::WallTime;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Postgres, Result, Row};

use super::headers_of;
use crate::backend::OutboxRows;
use crate::columns::{count_of, headers_to_json, time_of};
use crate::outbox::{Claimed, Event, Listed, OutboxStats};

pub(super) const V1: &str = "
CREATE TABLE mamparo_outbox (
    seq          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    kind         TEXT NOT NULL,
    key          TEXT NOT NULL,
    enqueued_at  BIGINT NOT NULL,
    due_at       BIGINT NOT NULL,
    tries        BIGINT NOT NULL DEFAULT 0,
    owner        TEXT,
    lease_until  BIGINT,
    confirmed_at BIGINT,
    error        TEXT,
    headers      TEXT NOT NULL,
    body         BYTEA NOT NULL
);
CREATE INDEX mamparo_outbox_pending ON mamparo_outbox (seq) WHERE confirmed_at IS NULL;
CREATE INDEX mamparo_outbox_key ON mamparo_outbox (key, seq) WHERE confirmed_at IS NULL;
CREATE INDEX mamparo_outbox_owner ON mamparo_outbox (owner) WHERE owner IS NOT NULL;
CREATE INDEX mamparo_outbox_confirmed ON mamparo_outbox (confirmed_at)
    WHERE confirmed_at IS NOT NULL;
";

impl OutboxRows for Postgres {
    async fn insert_event(conn: &mut PgConnection, event: &Event, now: WallTime) -> Result<i64> {
        if !event.key.is_empty() {
            sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))")
                .bind(&event.key)
                .execute(&mut *conn)
                .await?;
        }
        sqlx::query_scalar(
            "INSERT INTO mamparo_outbox (id, kind, key, body, headers, enqueued_at, due_at)
             VALUES ($1, $2, $3, $4, $5, $6, $6) RETURNING seq",
        )
        .bind(&event.id)
        .bind(&event.kind)
        .bind(&event.key)
        .bind(&event.body)
        .bind(headers_to_json(&event.headers)?)
        .bind(now.unix_millis())
        .fetch_one(conn)
        .await
    }

    async fn has_due_events(conn: &mut PgConnection, now: WallTime) -> Result<bool> {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM mamparo_outbox AS row
             WHERE confirmed_at IS NULL AND due_at <= $1 AND (owner IS NULL OR lease_until <= $1)
             AND (key = '' OR NOT EXISTS (SELECT 1 FROM mamparo_outbox AS before
                 WHERE before.confirmed_at IS NULL AND before.key = row.key
                 AND before.seq < row.seq)))",
        )
        .bind(now.unix_millis())
        .fetch_one(conn)
        .await
    }

    async fn claim_events(
        conn: &mut PgConnection,
        owner: &str,
        max: u32,
        until: WallTime,
        now: WallTime,
    ) -> Result<Vec<Claimed>> {
        let rows = sqlx::query(
            "UPDATE mamparo_outbox SET owner = $1, lease_until = $2, tries = tries + 1
             WHERE seq = ANY (ARRAY(SELECT seq FROM mamparo_outbox AS row
                 WHERE confirmed_at IS NULL AND due_at <= $3
                 AND (owner IS NULL OR lease_until <= $3)
                 AND (key = '' OR NOT EXISTS (SELECT 1 FROM mamparo_outbox AS before
                     WHERE before.confirmed_at IS NULL AND before.key = row.key
                     AND before.seq < row.seq))
                 ORDER BY due_at, seq LIMIT $4 FOR UPDATE SKIP LOCKED))
             RETURNING seq, id, kind, key, body, headers, enqueued_at, tries - 1 AS earlier",
        )
        .bind(owner)
        .bind(until.unix_millis())
        .bind(now.unix_millis())
        .bind(i64::from(max))
        .fetch_all(conn)
        .await?;
        let mut claimed = rows.iter().map(claimed_of).collect::<Result<Vec<_>>>()?;
        // RETURNING promises no order.
        claimed.sort_unstable_by_key(|claimed| claimed.row);
        Ok(claimed)
    }

    async fn confirm_events(
        conn: &mut PgConnection,
        owner: &str,
        rows: &[i64],
        now: WallTime,
    ) -> Result<u64> {
        sqlx::query(
            "UPDATE mamparo_outbox
             SET confirmed_at = $1, owner = NULL, lease_until = NULL, error = NULL
             WHERE seq = ANY ($2) AND owner = $3 AND confirmed_at IS NULL",
        )
        .bind(now.unix_millis())
        .bind(rows)
        .bind(owner)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    }

    async fn postpone_event(
        conn: &mut PgConnection,
        owner: &str,
        row: i64,
        due: WallTime,
        error: &str,
    ) -> Result<u64> {
        sqlx::query(
            "UPDATE mamparo_outbox SET due_at = $1, error = $2, owner = NULL, lease_until = NULL
             WHERE seq = $3 AND owner = $4 AND confirmed_at IS NULL",
        )
        .bind(due.unix_millis())
        .bind(error)
        .bind(row)
        .bind(owner)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    }

    async fn release_events(conn: &mut PgConnection, owner: &str) -> Result<u64> {
        sqlx::query(
            "UPDATE mamparo_outbox SET owner = NULL, lease_until = NULL
             WHERE owner = $1 AND confirmed_at IS NULL",
        )
        .bind(owner)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    }

    async fn requeue_events(conn: &mut PgConnection, rows: &[i64], now: WallTime) -> Result<u64> {
        sqlx::query(
            "UPDATE mamparo_outbox SET due_at = $1
             WHERE seq = ANY ($2) AND due_at > $1 AND owner IS NULL AND confirmed_at IS NULL",
        )
        .bind(now.unix_millis())
        .bind(rows)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    }

    async fn count_events(conn: &mut PgConnection) -> Result<OutboxStats> {
        let row = sqlx::query(
            "SELECT count(*) AS pending, min(enqueued_at) AS oldest,
                 (SELECT count(*) FROM mamparo_outbox AS p WHERE p.confirmed_at IS NULL
                  AND (p.error IS NOT NULL OR (p.key <> '' AND p.key IN (
                      SELECT key FROM mamparo_outbox
                      WHERE confirmed_at IS NULL AND error IS NOT NULL)))) AS parked
             FROM mamparo_outbox WHERE confirmed_at IS NULL",
        )
        .fetch_one(conn)
        .await?;
        Ok(OutboxStats {
            pending: count_of(&row, "pending")?,
            parked: count_of(&row, "parked")?,
            oldest: row.try_get::<Option<i64>, _>("oldest")?.map(WallTime::from_unix_millis),
        })
    }

    async fn list_events(conn: &mut PgConnection, max: u32) -> Result<Vec<Listed>> {
        let rows = sqlx::query(
            "SELECT seq, id, kind, key, body, headers, enqueued_at, tries, due_at, owner, error
             FROM mamparo_outbox WHERE confirmed_at IS NULL ORDER BY seq LIMIT $1",
        )
        .bind(i64::from(max))
        .fetch_all(conn)
        .await?;
        rows.iter()
            .map(|row| {
                Ok(Listed {
                    row: row.try_get("seq")?,
                    event: event_of(row)?,
                    enqueued: time_of(row, "enqueued_at")?,
                    tries: count_of(row, "tries")?,
                    due: time_of(row, "due_at")?,
                    owner: row.try_get("owner")?,
                    error: row.try_get("error")?,
                })
            })
            .collect()
    }

    async fn forget_events(conn: &mut PgConnection, before: WallTime, max: u32) -> Result<u64> {
        sqlx::query(
            "DELETE FROM mamparo_outbox WHERE seq = ANY (ARRAY(SELECT seq FROM mamparo_outbox
             WHERE confirmed_at IS NOT NULL AND confirmed_at < $1
             ORDER BY confirmed_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
        )
        .bind(before.unix_millis())
        .bind(i64::from(max))
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    }
}

fn claimed_of(row: &PgRow) -> Result<Claimed> {
    Ok(Claimed {
        row: row.try_get("seq")?,
        event: event_of(row)?,
        enqueued: time_of(row, "enqueued_at")?,
        tries: count_of(row, "earlier")?,
    })
}

fn event_of(row: &PgRow) -> Result<Event> {
    Ok(Event {
        id: row.try_get("id")?,
        kind: row.try_get("kind")?,
        key: row.try_get("key")?,
        body: row.try_get("body")?,
        headers: headers_of(row, "headers")?,
    })
}

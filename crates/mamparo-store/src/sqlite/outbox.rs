//! Outbox rows. One writer gives them their numbers, so the numbers are in the order of commits and
//! no row appears behind one that a relay has already passed.

use mamparo_core::time::WallTime;
use sqlx::sqlite::SqliteRow;
use sqlx::{Result, Row, Sqlite, SqliteConnection};

use super::{headers_of, rows_to_json};
use crate::backend::OutboxRows;
use crate::columns::{count_of, headers_to_json, time_of};
use crate::outbox::{Claimed, Event, Listed, OutboxStats};

impl OutboxRows for Sqlite {
    async fn insert_event(
        conn: &mut SqliteConnection,
        event: &Event,
        now: WallTime,
    ) -> Result<i64> {
        insert(conn, event, now).await
    }

    async fn has_due_events(conn: &mut SqliteConnection, now: WallTime) -> Result<bool> {
        has_due(conn, now).await
    }

    async fn claim_events(
        conn: &mut SqliteConnection,
        owner: &str,
        max: u32,
        until: WallTime,
        now: WallTime,
    ) -> Result<Vec<Claimed>> {
        claim(conn, owner, max, until, now).await
    }

    async fn confirm_events(
        conn: &mut SqliteConnection,
        owner: &str,
        rows: &[i64],
        now: WallTime,
    ) -> Result<u64> {
        confirm(conn, owner, rows, now).await
    }

    async fn postpone_event(
        conn: &mut SqliteConnection,
        owner: &str,
        row: i64,
        due: WallTime,
        error: &str,
    ) -> Result<u64> {
        postpone(conn, owner, row, due, error).await
    }

    async fn release_events(conn: &mut SqliteConnection, owner: &str) -> Result<u64> {
        release(conn, owner).await
    }

    async fn requeue_events(
        conn: &mut SqliteConnection,
        rows: &[i64],
        now: WallTime,
    ) -> Result<u64> {
        requeue(conn, rows, now).await
    }

    async fn count_events(conn: &mut SqliteConnection) -> Result<OutboxStats> {
        stats(conn).await
    }

    async fn list_events(conn: &mut SqliteConnection, max: u32) -> Result<Vec<Listed>> {
        list(conn, max).await
    }

    async fn forget_events(conn: &mut SqliteConnection, before: WallTime, max: u32) -> Result<u64> {
        forget(conn, before, max).await
    }
}

/// Is there a row for [`CLAIM`]?
pub(super) const HAS_DUE: &str = "SELECT EXISTS (SELECT 1 FROM mamparo_outbox
     WHERE confirmed_at IS NULL AND head = 1 AND due_at <= ?1
     AND (owner IS NULL OR lease_until <= ?1))";

/// Only the first pending row of a key can be claimed, whatever state it is in: while it is leased
/// or waits, its followers are no heads. Those that were due first go first.
pub(super) const CLAIM: &str =
    "UPDATE mamparo_outbox SET owner = ?1, lease_until = ?2, tries = tries + 1
     WHERE seq IN (SELECT seq FROM mamparo_outbox
         WHERE confirmed_at IS NULL AND head = 1 AND due_at <= ?3
         AND (owner IS NULL OR lease_until <= ?3) ORDER BY due_at, seq LIMIT ?4)
     RETURNING seq, id, kind, key, body, headers, enqueued_at, tries - 1 AS earlier";

pub(super) async fn insert(
    conn: &mut SqliteConnection,
    event: &Event,
    now: WallTime,
) -> Result<i64> {
    sqlx::query_scalar(
        "INSERT INTO mamparo_outbox (id, kind, key, body, headers, enqueued_at, due_at, head)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?3 = '' OR NOT EXISTS (SELECT 1
             FROM mamparo_outbox WHERE confirmed_at IS NULL AND key = ?3)) RETURNING seq",
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

pub(super) async fn has_due(conn: &mut SqliteConnection, now: WallTime) -> Result<bool> {
    sqlx::query_scalar(HAS_DUE).bind(now.unix_millis()).fetch_one(conn).await
}

pub(super) async fn claim(
    conn: &mut SqliteConnection,
    owner: &str,
    max: u32,
    until: WallTime,
    now: WallTime,
) -> Result<Vec<Claimed>> {
    let rows = sqlx::query(CLAIM)
        .bind(owner)
        .bind(until.unix_millis())
        .bind(now.unix_millis())
        .bind(max)
        .fetch_all(conn)
        .await?;
    let mut claimed = rows.iter().map(claimed_of).collect::<Result<Vec<_>>>()?;
    // RETURNING promises no order.
    claimed.sort_unstable_by_key(|claimed| claimed.row);
    Ok(claimed)
}

pub(super) async fn confirm(
    conn: &mut SqliteConnection,
    owner: &str,
    rows: &[i64],
    now: WallTime,
) -> Result<u64> {
    sqlx::query(
        "UPDATE mamparo_outbox
         SET confirmed_at = ?1, owner = NULL, lease_until = NULL, error = NULL
         WHERE seq IN (SELECT value FROM json_each(?2)) AND owner = ?3 AND confirmed_at IS NULL",
    )
    .bind(now.unix_millis())
    .bind(rows_to_json(rows)?)
    .bind(owner)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
}

pub(super) async fn postpone(
    conn: &mut SqliteConnection,
    owner: &str,
    row: i64,
    due: WallTime,
    error: &str,
) -> Result<u64> {
    sqlx::query(
        "UPDATE mamparo_outbox SET due_at = ?1, error = ?2, owner = NULL, lease_until = NULL
         WHERE seq = ?3 AND owner = ?4 AND confirmed_at IS NULL",
    )
    .bind(due.unix_millis())
    .bind(error)
    .bind(row)
    .bind(owner)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
}

pub(super) async fn release(conn: &mut SqliteConnection, owner: &str) -> Result<u64> {
    sqlx::query(
        "UPDATE mamparo_outbox SET owner = NULL, lease_until = NULL
         WHERE owner = ? AND confirmed_at IS NULL",
    )
    .bind(owner)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
}

pub(super) async fn requeue(
    conn: &mut SqliteConnection,
    rows: &[i64],
    now: WallTime,
) -> Result<u64> {
    sqlx::query(
        "UPDATE mamparo_outbox SET due_at = ?1
         WHERE seq IN (SELECT value FROM json_each(?2)) AND due_at > ?1
         AND owner IS NULL AND confirmed_at IS NULL",
    )
    .bind(now.unix_millis())
    .bind(rows_to_json(rows)?)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
}

pub(super) async fn stats(conn: &mut SqliteConnection) -> Result<OutboxStats> {
    let row = sqlx::query(
        "SELECT count(*) AS pending, min(enqueued_at) AS oldest,
             (SELECT count(*) FROM mamparo_outbox AS p WHERE p.confirmed_at IS NULL
              AND (p.error IS NOT NULL OR (p.key <> '' AND p.key IN (SELECT key FROM mamparo_outbox
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

pub(super) async fn list(conn: &mut SqliteConnection, max: u32) -> Result<Vec<Listed>> {
    let rows = sqlx::query(
        "SELECT seq, id, kind, key, body, headers, enqueued_at, tries, due_at, owner, error
         FROM mamparo_outbox WHERE confirmed_at IS NULL ORDER BY seq LIMIT ?",
    )
    .bind(max)
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

pub(super) async fn forget(conn: &mut SqliteConnection, before: WallTime, max: u32) -> Result<u64> {
    sqlx::query(
        "DELETE FROM mamparo_outbox WHERE seq IN (SELECT seq FROM mamparo_outbox
         WHERE confirmed_at IS NOT NULL AND confirmed_at < ?1 ORDER BY confirmed_at LIMIT ?2)",
    )
    .bind(before.unix_millis())
    .bind(max)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
}

fn claimed_of(row: &SqliteRow) -> Result<Claimed> {
    Ok(Claimed {
        row: row.try_get("seq")?,
        event: event_of(row)?,
        enqueued: time_of(row, "enqueued_at")?,
        tries: count_of(row, "earlier")?,
    })
}

fn event_of(row: &SqliteRow) -> Result<Event> {
    Ok(Event {
        id: row.try_get("id")?,
        kind: row.try_get("kind")?,
        key: row.try_get("key")?,
        body: row.try_get("body")?,
        headers: headers_of(row, "headers")?,
    })
}

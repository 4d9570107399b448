//! Queue rows on the way of a message: published, leased, settled.

use std::time::Duration;

use mamparo_core::time::WallTime;
use sqlx::sqlite::SqliteRow;
use sqlx::{Result, Row, SqliteConnection};

use super::{headers_of, millis_of};
use crate::columns::{count_of, headers_to_json};
use crate::queue::{Leased, QueueMessage, QueueSpec};

/// Most messages that one call moves on when their TTL is over: a long backlog must not hold the
/// writer for seconds. The next call goes on.
const MOVE_MAX: i64 = 1_000;

/// What the second version adds: finding the earlier messages of a key.
pub(super) const V2: &str =
    "CREATE INDEX mamparo_messages_key ON mamparo_messages (queue, key, seq)
    WHERE key <> '';";

/// May there be a message for [`LEASE`]? It does not look for earlier ones of the same key: its
/// answer only saves an idle consumer the write lock.
pub(super) const HAS_VISIBLE: &str = "SELECT EXISTS (SELECT 1 FROM mamparo_messages
     WHERE queue = ?1 AND visible_at <= ?2 AND (owner IS NULL OR lease_until <= ?2))";

/// A row that still has an owner was neither settled nor given back: that is a loss.
///
/// A key's later message stays while an earlier one is in somebody else's hand or put off. Else a
/// consumer that takes over from a dead one would get the later ones first.
pub(super) const LEASE: &str = "UPDATE mamparo_messages
     SET owner = ?1, lease_until = ?2, epoch = epoch + 1, losses = losses + (owner IS NOT NULL)
     WHERE seq IN (SELECT seq FROM mamparo_messages AS m WHERE queue = ?3 AND visible_at <= ?4
         AND (owner IS NULL OR lease_until <= ?4)
         AND (key = '' OR NOT EXISTS (SELECT 1 FROM mamparo_messages AS earlier
             WHERE earlier.queue = m.queue AND earlier.key = m.key AND earlier.key <> ''
             AND earlier.seq < m.seq AND (earlier.visible_at > ?4
                 OR (earlier.lease_until > ?4 AND earlier.owner <> ?1))))
         ORDER BY seq LIMIT ?5)
     RETURNING seq, epoch, losses, id, kind, exchange, routing_key, key, headers, body";

pub(super) async fn declare(conn: &mut SqliteConnection, spec: &QueueSpec) -> Result<()> {
    sqlx::query(
        "INSERT INTO mamparo_queues (name, message_ttl, dead_letter_to) VALUES (?1, ?2, ?3)
         ON CONFLICT (name) DO UPDATE
         SET message_ttl = excluded.message_ttl, dead_letter_to = excluded.dead_letter_to",
    )
    .bind(&spec.name)
    .bind(spec.message_ttl.map(millis_of))
    .bind(&spec.dead_letter_to)
    .execute(conn)
    .await
    .map(drop)
}

pub(super) async fn exists(conn: &mut SqliteConnection, queue: &str) -> Result<bool> {
    sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM mamparo_queues WHERE name = ?)")
        .bind(queue)
        .fetch_one(conn)
        .await
}

pub(super) async fn spec(conn: &mut SqliteConnection, queue: &str) -> Result<Option<QueueSpec>> {
    let row = sqlx::query("SELECT message_ttl, dead_letter_to FROM mamparo_queues WHERE name = ?")
        .bind(queue)
        .fetch_optional(conn)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let ttl: Option<i64> = row.try_get("message_ttl")?;
    Ok(Some(QueueSpec {
        name: queue.to_owned(),
        message_ttl: ttl.map(|millis| Duration::from_millis(millis.unsigned_abs())),
        dead_letter_to: row.try_get("dead_letter_to")?,
    }))
}

pub(super) async fn bind(
    conn: &mut SqliteConnection,
    exchange: &str,
    pattern: &str,
    queue: &str,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO mamparo_bindings (exchange, pattern, queue) VALUES (?1, ?2, ?3)
         ON CONFLICT DO NOTHING",
    )
    .bind(exchange)
    .bind(pattern)
    .bind(queue)
    .execute(conn)
    .await
    .map(drop)
}

pub(super) async fn bindings(
    conn: &mut SqliteConnection,
    exchange: &str,
) -> Result<Vec<(String, String)>> {
    sqlx::query_as("SELECT pattern, queue FROM mamparo_bindings WHERE exchange = ?")
        .bind(exchange)
        .fetch_all(conn)
        .await
}

pub(super) async fn insert(
    conn: &mut SqliteConnection,
    queue: &str,
    message: &QueueMessage,
    now: WallTime,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO mamparo_messages
             (queue, id, kind, exchange, routing_key, key, headers, body, since, visible_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9)",
    )
    .bind(queue)
    .bind(&message.id)
    .bind(&message.kind)
    .bind(&message.exchange)
    .bind(&message.routing_key)
    .bind(&message.key)
    .bind(headers_to_json(&message.headers)?)
    .bind(&message.body)
    .bind(now.unix_millis())
    .execute(&mut *conn)
    .await?;
    sqlx::query("UPDATE mamparo_queues SET published = published + 1 WHERE name = ?")
        .bind(queue)
        .execute(conn)
        .await
        .map(drop)
}

pub(super) async fn expired_sources(
    conn: &mut SqliteConnection,
    queue: &str,
    now: WallTime,
) -> Result<Vec<(String, Duration)>> {
    let rows = sqlx::query(
        "SELECT name, message_ttl FROM mamparo_queues AS q
         WHERE dead_letter_to = ?1 AND message_ttl IS NOT NULL
         AND EXISTS (SELECT 1 FROM mamparo_messages AS m
             WHERE m.queue = q.name AND m.since <= ?2 - q.message_ttl
             AND (m.owner IS NULL OR m.lease_until <= ?2))",
    )
    .bind(queue)
    .bind(now.unix_millis())
    .fetch_all(conn)
    .await?;
    rows.iter()
        .map(|row| Ok((row.try_get("name")?, Duration::from_millis(count_of(row, "message_ttl")?))))
        .collect()
}

pub(super) async fn move_expired(
    conn: &mut SqliteConnection,
    from: &str,
    ttl: Duration,
    to: &str,
    now: WallTime,
) -> Result<u64> {
    let expired_before = now.minus(ttl).unix_millis();
    sqlx::query(
        "INSERT INTO mamparo_messages
             (queue, id, kind, exchange, routing_key, key, headers, body, since, visible_at)
         SELECT ?1, id, kind, exchange, routing_key, key, headers, body, ?2, ?2
         FROM mamparo_messages
         WHERE queue = ?3 AND since <= ?4 AND (owner IS NULL OR lease_until <= ?2)
         ORDER BY since, seq LIMIT ?5",
    )
    .bind(to)
    .bind(now.unix_millis())
    .bind(from)
    .bind(expired_before)
    .bind(MOVE_MAX)
    .execute(&mut *conn)
    .await?;
    // The same rows: nobody else writes between two statements of one transaction.
    let moved = sqlx::query(
        "DELETE FROM mamparo_messages WHERE seq IN (SELECT seq FROM mamparo_messages
         WHERE queue = ?1 AND since <= ?2 AND (owner IS NULL OR lease_until <= ?3)
         ORDER BY since, seq LIMIT ?4)",
    )
    .bind(from)
    .bind(expired_before)
    .bind(now.unix_millis())
    .bind(MOVE_MAX)
    .execute(&mut *conn)
    .await?
    .rows_affected();
    count_moved(conn, from, to, moved).await?;
    Ok(moved)
}

/// Keeps the books of both queues.
pub(super) async fn count_moved(
    conn: &mut SqliteConnection,
    from: &str,
    to: &str,
    moved: u64,
) -> Result<()> {
    let moved = i64::try_from(moved).unwrap_or(i64::MAX);
    sqlx::query("UPDATE mamparo_queues SET moved_out = moved_out + ?1 WHERE name = ?2")
        .bind(moved)
        .bind(from)
        .execute(&mut *conn)
        .await?;
    sqlx::query("UPDATE mamparo_queues SET moved_in = moved_in + ?1 WHERE name = ?2")
        .bind(moved)
        .bind(to)
        .execute(conn)
        .await
        .map(drop)
}

pub(super) async fn has_visible(
    conn: &mut SqliteConnection,
    queue: &str,
    now: WallTime,
) -> Result<bool> {
    sqlx::query_scalar(HAS_VISIBLE).bind(queue).bind(now.unix_millis()).fetch_one(conn).await
}

pub(super) async fn lease(
    conn: &mut SqliteConnection,
    queue: &str,
    owner: &str,
    max: u32,
    until: WallTime,
    now: WallTime,
) -> Result<Vec<Leased>> {
    let rows = sqlx::query(LEASE)
        .bind(owner)
        .bind(until.unix_millis())
        .bind(queue)
        .bind(now.unix_millis())
        .bind(max)
        .fetch_all(conn)
        .await?;
    let mut leased = rows
        .iter()
        .map(|row| {
            let (number, epoch) = (row.try_get("seq")?, row.try_get("epoch")?);
            let losses: i64 = row.try_get("losses")?;
            Ok(Leased { row: number, epoch, suspect: losses > 0, message: message_of(row)? })
        })
        .collect::<Result<Vec<_>>>()?;
    // RETURNING promises no order.
    leased.sort_unstable_by_key(|leased| leased.row);
    Ok(leased)
}

pub(super) async fn renew(
    conn: &mut SqliteConnection,
    owner: &str,
    until: WallTime,
) -> Result<u64> {
    sqlx::query("UPDATE mamparo_messages SET lease_until = ?1 WHERE owner = ?2")
        .bind(until.unix_millis())
        .bind(owner)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
}

pub(super) async fn ack(conn: &mut SqliteConnection, row: i64, epoch: i64) -> Result<bool> {
    let queue: Option<String> = sqlx::query_scalar(
        "DELETE FROM mamparo_messages WHERE seq = ?1 AND epoch = ?2 AND owner IS NOT NULL
         RETURNING queue",
    )
    .bind(row)
    .bind(epoch)
    .fetch_optional(&mut *conn)
    .await?;
    let Some(queue) = queue else { return Ok(false) };
    sqlx::query("UPDATE mamparo_queues SET acked = acked + 1 WHERE name = ?")
        .bind(queue)
        .execute(conn)
        .await?;
    Ok(true)
}

pub(super) async fn release(
    conn: &mut SqliteConnection,
    row: i64,
    epoch: i64,
    visible: WallTime,
) -> Result<bool> {
    sqlx::query(
        "UPDATE mamparo_messages SET owner = NULL, lease_until = NULL, visible_at = ?1
         WHERE seq = ?2 AND epoch = ?3 AND owner IS NOT NULL",
    )
    .bind(visible.unix_millis())
    .bind(row)
    .bind(epoch)
    .execute(conn)
    .await
    .map(|done| done.rows_affected() == 1)
}

pub(super) async fn release_all(conn: &mut SqliteConnection, owner: &str) -> Result<u64> {
    sqlx::query("UPDATE mamparo_messages SET owner = NULL, lease_until = NULL WHERE owner = ?")
        .bind(owner)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
}

pub(super) fn message_of(row: &SqliteRow) -> Result<QueueMessage> {
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

//! Queue rows in the hands of people: paged, settled, restored.

use std::collections::BTreeMap;

use mamparo_core::time::WallTime;
use sqlx::{Result, Row, SqliteConnection};

use super::queue::{count_moved, insert, message_of};
use crate::columns::{headers_to_json, time_of};
use crate::letters::{InArchive, Note, Settlement};
use crate::queue::{Archived, Listed, QueueMessage};

pub(super) async fn last(conn: &mut SqliteConnection, queue: &str) -> Result<i64> {
    sqlx::query_scalar("SELECT coalesce(max(seq), 0) FROM mamparo_messages WHERE queue = ?")
        .bind(queue)
        .fetch_one(conn)
        .await
}

pub(super) async fn page(
    conn: &mut SqliteConnection,
    queue: &str,
    after: i64,
    last: i64,
    max: u32,
) -> Result<Vec<Listed>> {
    let rows = sqlx::query(
        "SELECT seq, since, id, kind, exchange, routing_key, key, headers, body
         FROM mamparo_messages WHERE queue = ?1 AND seq > ?2 AND seq <= ?3 ORDER BY seq LIMIT ?4",
    )
    .bind(queue)
    .bind(after)
    .bind(last)
    .bind(max)
    .fetch_all(conn)
    .await?;
    rows.iter()
        .map(|row| {
            let (number, since) = (row.try_get("seq")?, time_of(row, "since")?);
            Ok(Listed { row: number, since, message: message_of(row)? })
        })
        .collect()
}

pub(super) async fn page_archive(
    conn: &mut SqliteConnection,
    queue: &str,
    after: i64,
    max: u32,
) -> Result<Vec<InArchive>> {
    let rows = sqlx::query(
        "SELECT seq, id, kind, exchange, routing_key, key, headers, body, since, archived_at,
             actor, reason
         FROM mamparo_archive WHERE queue = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
    )
    .bind(queue)
    .bind(after)
    .bind(max)
    .fetch_all(conn)
    .await?;
    rows.iter()
        .map(|row| {
            let archived = Archived {
                since: time_of(row, "since")?,
                archived: time_of(row, "archived_at")?,
                actor: row.try_get("actor")?,
                reason: row.try_get("reason")?,
                message: message_of(row)?,
            };
            Ok(InArchive { row: row.try_get("seq")?, archived })
        })
        .collect()
}

/// Takes the row out, if nobody holds it, and puts it or its copy where it is to go.
pub(super) async fn settle(
    conn: &mut SqliteConnection,
    settlement: &Settlement<'_>,
    now: WallTime,
) -> Result<bool> {
    let row = sqlx::query(
        "DELETE FROM mamparo_messages WHERE seq = ?1 AND (owner IS NULL OR lease_until <= ?2)
         RETURNING queue, since, id, kind, exchange, routing_key, key, headers, body",
    )
    .bind(settlement.row)
    .bind(now.unix_millis())
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = row else { return Ok(false) };
    let (queue, since): (String, WallTime) = (row.try_get("queue")?, time_of(&row, "since")?);
    if let Some(note) = &settlement.archive {
        archive(conn, &queue, &message_of(&row)?, since, note, now).await?;
        if let Some((to, copy)) = settlement.copy {
            // The archived one has left by its own door, so this one is new.
            insert(conn, to, copy, now).await?;
        }
        return Ok(true);
    }
    match settlement.copy {
        Some((to, copy)) => {
            put(conn, to, copy, now).await?;
            count_moved(conn, &queue, to, 1).await?;
        }
        None => {
            sqlx::query("UPDATE mamparo_queues SET acked = acked + 1 WHERE name = ?")
                .bind(queue)
                .execute(conn)
                .await?;
        }
    }
    Ok(true)
}

async fn archive(
    conn: &mut SqliteConnection,
    queue: &str,
    message: &QueueMessage,
    since: WallTime,
    note: &Note<'_>,
    now: WallTime,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO mamparo_archive (queue, id, kind, exchange, routing_key, key, headers, body,
             since, archived_at, actor, reason)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )
    .bind(queue)
    .bind(&message.id)
    .bind(&message.kind)
    .bind(&message.exchange)
    .bind(&message.routing_key)
    .bind(&message.key)
    .bind(headers_to_json(note.headers)?)
    .bind(&message.body)
    .bind(since.unix_millis())
    .bind(now.unix_millis())
    .bind(note.actor)
    .bind(note.reason)
    .execute(&mut *conn)
    .await?;
    sqlx::query("UPDATE mamparo_queues SET archived = archived + 1 WHERE name = ?")
        .bind(queue)
        .execute(conn)
        .await
        .map(drop)
}

pub(super) async fn restore(
    conn: &mut SqliteConnection,
    row: i64,
    to: &str,
    headers: &BTreeMap<String, String>,
    now: WallTime,
) -> Result<bool> {
    let row = sqlx::query(
        "DELETE FROM mamparo_archive WHERE seq = ?
         RETURNING queue, id, kind, exchange, routing_key, key, headers, body",
    )
    .bind(row)
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = row else { return Ok(false) };
    let queue: String = row.try_get("queue")?;
    let message = QueueMessage { headers: headers.clone(), ..message_of(&row)? };
    put(conn, to, &message, now).await?;
    sqlx::query("UPDATE mamparo_queues SET archived = archived - 1 WHERE name = ?")
        .bind(&queue)
        .execute(&mut *conn)
        .await?;
    if queue != to {
        // It had left for the archive; now it has left for that queue.
        count_moved(conn, &queue, to, 1).await?;
    }
    Ok(true)
}

/// A row at the end of a queue that the books do not count as published.
async fn put(
    conn: &mut SqliteConnection,
    queue: &str,
    message: &QueueMessage,
    now: WallTime,
) -> Result<()> {
    insert(conn, queue, message, now).await?;
    sqlx::query("UPDATE mamparo_queues SET published = published - 1 WHERE name = ?")
        .bind(queue)
        .execute(conn)
        .await
        .map(drop)
}

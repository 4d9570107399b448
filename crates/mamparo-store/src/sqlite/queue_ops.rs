//! Queue rows in the hands of people: counted, shown, moved, archived.

use std::collections::BTreeMap;

use mamparo_core::time::WallTime;
use sqlx::{Result, Row, SqliteConnection};

use super::queue::{count_moved, message_of};
use crate::columns::{count_of, headers_to_json, time_of};
use crate::queue::{Archived, Listed, Selection, Totals};

pub(super) async fn count(conn: &mut SqliteConnection, queue: &str) -> Result<u64> {
    let row = sqlx::query("SELECT count(*) AS depth FROM mamparo_messages WHERE queue = ?")
        .bind(queue)
        .fetch_one(conn)
        .await?;
    count_of(&row, "depth")
}

pub(super) async fn list(
    conn: &mut SqliteConnection,
    queue: &str,
    selection: &Selection,
) -> Result<Vec<Listed>> {
    let ids = serde_json::to_string(&selection.ids)
        .map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    let rows = sqlx::query(
        "SELECT seq, since, id, kind, exchange, routing_key, key, headers, body
         FROM mamparo_messages WHERE queue = ?1 AND (?2 IS NULL OR kind = ?2)
         AND (?3 = '[]' OR id IN (SELECT value FROM json_each(?3))) ORDER BY seq LIMIT ?4",
    )
    .bind(queue)
    .bind(&selection.kind)
    .bind(ids)
    .bind(selection.max)
    .fetch_all(conn)
    .await?;
    rows.iter()
        .map(|row| {
            let (number, since) = (row.try_get("seq")?, time_of(row, "since")?);
            Ok(Listed { row: number, since, message: message_of(row)? })
        })
        .collect()
}

pub(super) async fn move_to(
    conn: &mut SqliteConnection,
    row: i64,
    to: &str,
    headers: &BTreeMap<String, String>,
    now: WallTime,
) -> Result<bool> {
    // A new row, not a changed one: it goes to the end of its new queue.
    let inserted = sqlx::query(
        "INSERT INTO mamparo_messages
             (queue, id, kind, exchange, routing_key, key, headers, body, since, visible_at)
         SELECT ?1, id, kind, exchange, routing_key, key, ?2, body, ?3, ?3
         FROM mamparo_messages WHERE seq = ?4 AND (owner IS NULL OR lease_until <= ?3)",
    )
    .bind(to)
    .bind(headers_to_json(headers)?)
    .bind(now.unix_millis())
    .bind(row)
    .execute(&mut *conn)
    .await?
    .rows_affected();
    if inserted == 0 {
        return Ok(false);
    }
    let from: String =
        sqlx::query_scalar("DELETE FROM mamparo_messages WHERE seq = ? RETURNING queue")
            .bind(row)
            .fetch_one(&mut *conn)
            .await?;
    count_moved(conn, &from, to, 1).await?;
    Ok(true)
}

pub(super) async fn archive(
    conn: &mut SqliteConnection,
    row: i64,
    actor: &str,
    reason: &str,
    now: WallTime,
) -> Result<bool> {
    let inserted = sqlx::query(
        "INSERT INTO mamparo_archive (queue, id, kind, exchange, routing_key, key, headers, body,
             since, archived_at, actor, reason)
         SELECT queue, id, kind, exchange, routing_key, key, headers, body, since, ?1, ?2, ?3
         FROM mamparo_messages WHERE seq = ?4 AND (owner IS NULL OR lease_until <= ?1)",
    )
    .bind(now.unix_millis())
    .bind(actor)
    .bind(reason)
    .bind(row)
    .execute(&mut *conn)
    .await?
    .rows_affected();
    if inserted == 0 {
        return Ok(false);
    }
    let queue: String =
        sqlx::query_scalar("DELETE FROM mamparo_messages WHERE seq = ? RETURNING queue")
            .bind(row)
            .fetch_one(&mut *conn)
            .await?;
    sqlx::query("UPDATE mamparo_queues SET archived = archived + 1 WHERE name = ?")
        .bind(queue)
        .execute(conn)
        .await?;
    Ok(true)
}

pub(super) async fn list_archive(
    conn: &mut SqliteConnection,
    queue: &str,
    max: u32,
) -> Result<Vec<Archived>> {
    let rows = sqlx::query(
        "SELECT id, kind, exchange, routing_key, key, headers, body, since, archived_at, actor,
             reason
         FROM mamparo_archive WHERE queue = ?1 ORDER BY seq LIMIT ?2",
    )
    .bind(queue)
    .bind(max)
    .fetch_all(conn)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Archived {
                since: time_of(row, "since")?,
                archived: time_of(row, "archived_at")?,
                actor: row.try_get("actor")?,
                reason: row.try_get("reason")?,
                message: message_of(row)?,
            })
        })
        .collect()
}

pub(super) async fn totals(conn: &mut SqliteConnection) -> Result<Vec<Totals>> {
    let rows = sqlx::query(
        "SELECT name, published, moved_in, moved_out, acked, archived,
             (SELECT count(*) FROM mamparo_messages WHERE queue = name) AS depth
         FROM mamparo_queues ORDER BY name",
    )
    .fetch_all(conn)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Totals {
                queue: row.try_get("name")?,
                published: count_of(row, "published")?,
                moved_in: count_of(row, "moved_in")?,
                moved_out: count_of(row, "moved_out")?,
                acked: count_of(row, "acked")?,
                archived: count_of(row, "archived")?,
                depth: count_of(row, "depth")?,
            })
        })
        .collect()
}

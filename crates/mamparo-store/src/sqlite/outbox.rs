//! Outbox rows. One writer gives them their numbers, so the numbers are in the order of commits.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use mamparo_core::message::shards::shard_of;
use mamparo_core::time::WallTime;
use sqlx::sqlite::SqliteRow;
use sqlx::{Pool, Result, Row, Sqlite, SqliteConnection};

use super::{headers_of, json_of};
use crate::StoreError;
use crate::backend::OutboxRows;
use crate::columns::{count_of, headers_to_json, time_of};
use crate::outbox::{
    BEHIND, Claimed, Confirmed, Ear, Event, FREED_MAX, Heard, Listed, OutboxStats, Parked,
    WOKEN_MAX, Wait, Whereabouts,
};

// Rows of the first version keep their order: a new row joins the shard of a pending one of its key, so
// it matters to nobody that the old rows are all in shard 0.
//
// The numbers go on where they were, for AUTOINCREMENT keeps the number of a deleted row from being
// given out again: a late report about the old row must not hit a new one.
pub(super) const V2: &str = "
ALTER TABLE mamparo_outbox RENAME TO mamparo_outbox_1;
CREATE TABLE mamparo_outbox (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    shard        INTEGER NOT NULL,
    id           TEXT NOT NULL UNIQUE,
    kind         TEXT NOT NULL,
    key          TEXT NOT NULL,
    enqueued_at  INTEGER NOT NULL,
    parked_until INTEGER,
    tries        INTEGER NOT NULL DEFAULT 0,
    error        TEXT,
    headers      TEXT NOT NULL CHECK (json_type(headers) = 'object'),
    body         BLOB NOT NULL
);
CREATE TABLE mamparo_outbox_history (
    seq          INTEGER PRIMARY KEY,
    id           TEXT NOT NULL,
    kind         TEXT NOT NULL,
    key          TEXT NOT NULL,
    enqueued_at  INTEGER NOT NULL,
    confirmed_at INTEGER NOT NULL,
    tries        INTEGER NOT NULL
);
INSERT INTO mamparo_outbox (seq, shard, id, kind, key, enqueued_at, tries, error, headers, body)
    SELECT seq, 0, id, kind, key, enqueued_at, tries, error, headers, body
    FROM mamparo_outbox_1 WHERE confirmed_at IS NULL ORDER BY seq;
INSERT INTO mamparo_outbox_history (seq, id, kind, key, enqueued_at, confirmed_at, tries)
    SELECT seq, id, kind, key, enqueued_at, confirmed_at, tries
    FROM mamparo_outbox_1 WHERE confirmed_at IS NOT NULL;
DELETE FROM sqlite_sequence WHERE name = 'mamparo_outbox';
INSERT INTO sqlite_sequence (name, seq)
    SELECT 'mamparo_outbox', seq FROM sqlite_sequence WHERE name = 'mamparo_outbox_1';
DROP TABLE mamparo_outbox_1;
CREATE INDEX mamparo_outbox_ready ON mamparo_outbox (seq, shard) WHERE parked_until IS NULL;
CREATE INDEX mamparo_outbox_key ON mamparo_outbox (key) WHERE key <> '';
CREATE INDEX mamparo_outbox_parked_key ON mamparo_outbox (key, seq) WHERE parked_until IS NOT NULL;
CREATE INDEX mamparo_outbox_parked ON mamparo_outbox (parked_until) WHERE parked_until IS NOT NULL;
CREATE INDEX mamparo_outbox_history_id ON mamparo_outbox_history (id);
CREATE INDEX mamparo_outbox_history_confirmed ON mamparo_outbox_history (confirmed_at);
";

/// Most rows of history that are forgotten at once, so that the writer is soon free again.
const FORGET_MAX: i64 = 1_000;

/// Ready rows of shards that have room. They are read in the order of their numbers, straight from an
/// index that holds no others, so what is parked costs nothing however much it is.
pub(super) const READ: &str = "SELECT seq, shard, id, kind, key, body, headers, enqueued_at, tries,
         key <> '' AND EXISTS (SELECT 1 FROM mamparo_outbox AS before
             INDEXED BY mamparo_outbox_parked_key
             WHERE before.key = row.key AND before.parked_until IS NOT NULL
             AND before.seq < row.seq) AS behind
     FROM mamparo_outbox AS row INDEXED BY mamparo_outbox_ready
     WHERE parked_until IS NULL AND shard IN (SELECT value FROM json_each($1))
     AND seq NOT IN (SELECT value FROM json_each($2)) ORDER BY seq LIMIT $3";

pub(super) const HAS_REFUSED: &str = "SELECT EXISTS (SELECT 1 FROM mamparo_outbox
     WHERE parked_until <= $1 AND shard IN (SELECT value FROM json_each($2)))";

/// The ready rows of a report (an array of number and epoch) whose shard is still held as it was then.
macro_rules! reported {
    () => {
        "SELECT row.seq FROM json_each($1) AS report
         CROSS JOIN mamparo_outbox AS row ON row.seq = report.value ->> 0
         CROSS JOIN mamparo_outbox_shards AS held ON held.shard = row.shard
         WHERE row.parked_until IS NULL AND held.owner = $2 AND held.epoch = report.value ->> 1"
    };
}

const KEEP: &str = concat!(
    "INSERT INTO mamparo_outbox_history (seq, id, kind, key, enqueued_at, confirmed_at, tries)
     SELECT seq, id, kind, key, enqueued_at, $3, tries FROM mamparo_outbox WHERE seq IN (",
    reported!(),
    ")"
);

const CONFIRM: &str =
    concat!("DELETE FROM mamparo_outbox WHERE seq IN (", reported!(), ") RETURNING key");

/// Keys that have rows behind something.
const WAITING_KEYS: &str = "SELECT value FROM json_each($1) WHERE EXISTS (
     SELECT 1 FROM mamparo_outbox WHERE key = value AND parked_until IS NOT NULL)";

const FREE: &str = "UPDATE mamparo_outbox SET parked_until = NULL WHERE seq IN (
     SELECT seq FROM mamparo_outbox WHERE key = $1 AND parked_until = $2 ORDER BY seq LIMIT $3)";

const PARK: &str = "UPDATE mamparo_outbox AS row
     SET parked_until = report.value ->> 2, error = report.value ->> 3, tries = row.tries + 1
     FROM json_each($1) AS report, mamparo_outbox_shards AS held
     WHERE row.seq = report.value ->> 0 AND row.parked_until IS NULL AND held.shard = row.shard
     AND held.owner = $2 AND held.epoch = report.value ->> 1";

const HOLD: &str = concat!(
    "UPDATE mamparo_outbox AS row SET parked_until = $3 WHERE seq IN (",
    reported!(),
    ") AND row.key <> '' AND EXISTS (SELECT 1 FROM mamparo_outbox AS before
             INDEXED BY mamparo_outbox_parked_key
         WHERE before.key = row.key AND before.parked_until IS NOT NULL AND before.seq < row.seq)"
);

const FREE_ORPHANS: &str = "UPDATE mamparo_outbox AS row SET parked_until = NULL
     WHERE parked_until = $1 AND shard IN (SELECT value FROM json_each($2))
     AND NOT EXISTS (SELECT 1 FROM mamparo_outbox AS before
         WHERE before.key = row.key AND before.key <> '' AND before.seq < row.seq)";

/// Looks at the write-ahead log's file, which every commit of every process changes: no query, and no
/// connection is held for it.
#[derive(Debug)]
pub struct SqliteEar {
    /// `None` for a database in memory, which no other process sees.
    log: Option<PathBuf>,
    seen: Option<(SystemTime, u64)>,
}

impl SqliteEar {
    fn look(&self) -> Option<(SystemTime, u64)> {
        // A log that is not there yet is one that has not changed.
        let found = std::fs::metadata(self.log.as_ref()?).ok()?;
        Some((found.modified().ok()?, found.len()))
    }
}

impl Ear for SqliteEar {
    const LOOK_EVERY: Option<Duration> = Some(Duration::from_millis(100));

    async fn hear(&mut self) -> Result<Heard, StoreError> {
        let now = self.look();
        let before = std::mem::replace(&mut self.seen, now);
        Ok(if before == now { Heard::Nothing } else { Heard::Rows })
    }
}

impl OutboxRows for Sqlite {
    type Ear = SqliteEar;
    const RECORDS_AT_ONCE: bool = false;

    async fn insert_event(
        conn: &mut SqliteConnection,
        event: &Event,
        now: WallTime,
    ) -> Result<i64> {
        sqlx::query_scalar(
            "INSERT INTO mamparo_outbox (shard, id, kind, key, body, headers, enqueued_at)
             VALUES (coalesce((SELECT shard FROM mamparo_outbox WHERE key = $4 AND key <> ''
                 LIMIT 1), $1), $2, $3, $4, $5, $6, $7) RETURNING seq",
        )
        .bind(shard_of(&event.key, &event.id))
        .bind(&event.id)
        .bind(&event.kind)
        .bind(&event.key)
        .bind(&event.body)
        .bind(headers_to_json(&event.headers)?)
        .bind(now.unix_millis())
        .fetch_one(conn)
        .await
    }

    async fn has_refused(
        conn: &mut SqliteConnection,
        shards: &[u16],
        now: WallTime,
    ) -> Result<bool> {
        let query = sqlx::query_scalar(HAS_REFUSED).bind(now.unix_millis());
        query.bind(json_of(shards)?).fetch_one(conn).await
    }

    async fn wake_refused(
        conn: &mut SqliteConnection,
        shards: &[u16],
        now: WallTime,
    ) -> Result<()> {
        sqlx::query(
            "UPDATE mamparo_outbox SET parked_until = NULL WHERE seq IN (
                 SELECT seq FROM mamparo_outbox
                 WHERE parked_until <= $1 AND shard IN (SELECT value FROM json_each($2))
                 ORDER BY parked_until LIMIT $3)",
        )
        .bind(now.unix_millis())
        .bind(json_of(shards)?)
        .bind(WOKEN_MAX)
        .execute(conn)
        .await
        .map(drop)
    }

    async fn next_refused(conn: &mut SqliteConnection, shards: &[u16]) -> Result<Option<WallTime>> {
        let next: Option<i64> = sqlx::query_scalar(
            "SELECT parked_until FROM mamparo_outbox
             WHERE parked_until < $1 AND shard IN (SELECT value FROM json_each($2))
             ORDER BY parked_until LIMIT 1",
        )
        .bind(BEHIND)
        .bind(json_of(shards)?)
        .fetch_optional(conn)
        .await?;
        Ok(next.map(WallTime::from_unix_millis))
    }

    async fn free_orphans(conn: &mut SqliteConnection, shards: &[u16]) -> Result<u64> {
        let query = sqlx::query(FREE_ORPHANS).bind(BEHIND).bind(json_of(shards)?);
        query.execute(conn).await.map(|done| done.rows_affected())
    }

    async fn read_events(
        conn: &mut SqliteConnection,
        rooms: &[(u16, u32)],
        known: &[i64],
    ) -> Result<Vec<Claimed>> {
        let shards: Vec<u16> = rooms.iter().map(|(shard, _)| *shard).collect();
        // One shard may get the room of another here; the next look makes up for it.
        let room: i64 = rooms.iter().map(|(_, room)| i64::from(*room)).sum();
        let rows = sqlx::query(READ)
            .bind(json_of(&shards)?)
            .bind(json_of(known)?)
            .bind(room)
            .fetch_all(conn)
            .await?;
        let claimed = |row: &SqliteRow| {
            Ok(Claimed {
                row: row.try_get("seq")?,
                shard: count_of(row, "shard")?,
                event: event_of(row)?,
                enqueued: time_of(row, "enqueued_at")?,
                tries: count_of(row, "tries")?,
                behind: row.try_get("behind")?,
            })
        };
        rows.iter().map(claimed).collect()
    }

    async fn confirm_events(
        conn: &mut SqliteConnection,
        owner: &str,
        rows: &[Confirmed],
        history: Option<WallTime>,
    ) -> Result<u64> {
        let report = report_of(rows)?;
        if let Some(now) = history {
            let kept = sqlx::query(KEEP).bind(&report).bind(owner).bind(now.unix_millis());
            kept.execute(&mut *conn).await?;
        }
        let confirmed = sqlx::query_scalar::<_, String>(CONFIRM).bind(&report).bind(owner);
        let keys = confirmed.fetch_all(&mut *conn).await?;
        let done = keys.len() as u64;
        let keys: BTreeSet<String> = keys.into_iter().filter(|key| !key.is_empty()).collect();
        let waiting = sqlx::query_scalar::<_, String>(WAITING_KEYS).bind(json_of(&keys)?);
        for key in waiting.fetch_all(&mut *conn).await? {
            let free = sqlx::query(FREE).bind(key).bind(BEHIND).bind(FREED_MAX);
            free.execute(&mut *conn).await?;
        }
        Ok(done)
    }

    async fn park_events(conn: &mut SqliteConnection, owner: &str, rows: &[Parked]) -> Result<u64> {
        let report: Vec<_> = rows
            .iter()
            .map(|row| (row.row, row.held.epoch, row.due.unix_millis(), &row.error))
            .collect();
        let query = sqlx::query(PARK).bind(json_of(&report)?).bind(owner);
        query.execute(conn).await.map(|done| done.rows_affected())
    }

    async fn hold_events(
        conn: &mut SqliteConnection,
        owner: &str,
        rows: &[Confirmed],
    ) -> Result<u64> {
        let query = sqlx::query(HOLD).bind(report_of(rows)?).bind(owner).bind(BEHIND);
        query.execute(conn).await.map(|done| done.rows_affected())
    }

    async fn requeue_events(conn: &mut SqliteConnection, rows: &[i64]) -> Result<u64> {
        sqlx::query(
            "UPDATE mamparo_outbox SET parked_until = NULL
             WHERE seq IN (SELECT value FROM json_each($1)) AND parked_until < $2",
        )
        .bind(json_of(rows)?)
        .bind(BEHIND)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    }

    async fn count_events(conn: &mut SqliteConnection) -> Result<OutboxStats> {
        let rows = sqlx::query(
            "SELECT shard, count(*) AS pending, count(parked_until) AS parked,
                 count(*) FILTER (WHERE parked_until < $1) AS refused, min(enqueued_at) AS oldest
             FROM mamparo_outbox GROUP BY shard",
        )
        .bind(BEHIND)
        .fetch_all(conn)
        .await?;
        let mut stats = OutboxStats::default();
        for row in &rows {
            stats.add(
                count_of(row, "shard")?,
                [count_of(row, "pending")?, count_of(row, "parked")?, count_of(row, "refused")?],
                time_of(row, "oldest")?,
            );
        }
        Ok(stats)
    }

    async fn list_events(conn: &mut SqliteConnection, max: u32) -> Result<Vec<Listed>> {
        let rows = sqlx::query(
            "SELECT seq, row.shard, id, kind, key, body, headers, enqueued_at, tries, parked_until,
                 owner, error
             FROM mamparo_outbox AS row LEFT JOIN mamparo_outbox_shards AS held
                 ON held.shard = row.shard
             ORDER BY seq LIMIT $1",
        )
        .bind(max)
        .fetch_all(conn)
        .await?;
        let listed = |row: &SqliteRow| {
            Ok(Listed {
                row: row.try_get("seq")?,
                shard: count_of(row, "shard")?,
                event: event_of(row)?,
                enqueued: time_of(row, "enqueued_at")?,
                tries: count_of(row, "tries")?,
                wait: Wait::of(row.try_get("parked_until")?),
                owner: row.try_get("owner")?,
                error: row.try_get("error")?,
            })
        };
        rows.iter().map(listed).collect()
    }

    async fn find_event(conn: &mut SqliteConnection, id: &str) -> Result<Option<Whereabouts>> {
        let found: Option<bool> = sqlx::query_scalar(
            "SELECT 1 FROM mamparo_outbox WHERE id = $1
             UNION ALL SELECT 0 FROM mamparo_outbox_history WHERE id = $1 LIMIT 1",
        )
        .bind(id)
        .fetch_optional(conn)
        .await?;
        Ok(found.map(Whereabouts::of))
    }

    async fn forget_history(
        conn: &mut SqliteConnection,
        before: WallTime,
        _: WallTime,
    ) -> Result<bool> {
        let done = sqlx::query(
            "DELETE FROM mamparo_outbox_history WHERE seq IN (SELECT seq
             FROM mamparo_outbox_history WHERE confirmed_at < $1 ORDER BY confirmed_at LIMIT $2)",
        )
        .bind(before.unix_millis())
        .bind(FORGET_MAX)
        .execute(conn)
        .await?;
        Ok(done.rows_affected() >= FORGET_MAX.unsigned_abs())
    }

    async fn oldest_snapshot(_: &mut SqliteConnection) -> Result<Option<Duration>> {
        Ok(None)
    }

    async fn listen(pool: &Pool<Sqlite>) -> Result<SqliteEar> {
        let mut conn = pool.acquire().await?;
        let sql = "SELECT file FROM pragma_database_list WHERE name = 'main'";
        let file: String = sqlx::query_scalar(sql).fetch_one(&mut *conn).await?;
        let log = (!file.is_empty()).then(|| PathBuf::from(format!("{file}-wal")));
        let ear = SqliteEar { log, seen: None };
        Ok(SqliteEar { seen: ear.look(), ..ear })
    }

    async fn announce(_: &mut SqliteConnection, _: &str) -> Result<()> {
        // Ears see each commit by themselves.
        Ok(())
    }
}

fn report_of(rows: &[Confirmed]) -> Result<String> {
    let report: Vec<_> = rows.iter().map(|row| (row.row, row.held.epoch)).collect();
    json_of(&report)
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

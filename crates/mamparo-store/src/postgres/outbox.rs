//! Outbox rows. Transactions that write events of one key take their turns, so that on each key the
//! rows' numbers are in the order of commits.
//!
//! The statements of relays run with an index or not at all: the table is empty or full within seconds,
//! so whatever the statistics say about it is wrong at one of both times (`connect.rs` switches the
//! other plans off for the relays' connections).

use std::time::Duration;

use mamparo_core::message::shards::shard_of;
use mamparo_core::time::WallTime;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions, PgRow};
use sqlx::{Pool, Postgres, Result, Row};

use super::{headers_of, history, numbers};
use crate::StoreError;
use crate::backend::OutboxRows;
use crate::columns::{count_of, headers_to_json, time_of};
use crate::outbox::{
    BEHIND, Claimed, Confirmed, Ear, Event, FREED_MAX, Heard, Listed, OutboxStats, Parked,
    WOKEN_MAX, Wait, Whereabouts,
};

// Rows are inserted, sometimes updated, and deleted: vacuum must come by often, and cheaply because the
// table is small.
//
// No index begins with `seq`: one that does would give the rows in their order too, and a planner that
// thinks shards equally full would read through another relay's backlog to find our rows.
pub(super) const V1: &str = "
CREATE TABLE mamparo_outbox (
    seq          BIGINT GENERATED ALWAYS AS IDENTITY,
    shard        BIGINT NOT NULL,
    id           TEXT PRIMARY KEY,
    kind         TEXT NOT NULL,
    key          TEXT NOT NULL,
    enqueued_at  BIGINT NOT NULL,
    parked_until BIGINT,
    tries        BIGINT NOT NULL DEFAULT 0,
    error        TEXT,
    headers      TEXT NOT NULL,
    body         BYTEA NOT NULL
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX mamparo_outbox_ready ON mamparo_outbox (shard, seq) WHERE parked_until IS NULL;
CREATE INDEX mamparo_outbox_parked_key ON mamparo_outbox (key, seq)
    WHERE parked_until IS NOT NULL;
CREATE INDEX mamparo_outbox_parked ON mamparo_outbox (shard, parked_until, seq)
    WHERE parked_until IS NOT NULL;
";

/// What relays tell each other on.
const CHANNEL: &str = "mamparo_outbox";

/// Keeps our locks apart from those that others take on the same text.
const KEY_SEED: i64 = 0x6d_61_6d_70;

const INSERT: &str = "INSERT INTO mamparo_outbox (shard, id, kind, key, body, headers, enqueued_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING seq";

/// As [`INSERT`], with the lock of the key taken before the row gets its number.
const INSERT_IN_TURN: &str =
    "WITH turn AS MATERIALIZED (SELECT pg_advisory_xact_lock(hashtextextended($4, $8)))
     INSERT INTO mamparo_outbox (shard, id, kind, key, body, headers, enqueued_at)
     SELECT $1, $2, $3, $4, $5, $6, $7 FROM turn RETURNING seq";

/// Of each shard the first ready rows. What is parked is in no index that is read here, except to see
/// whether a row is behind one.
pub(super) const READ: &str =
    "SELECT row.seq, row.shard, id, kind, row.key, body, headers, enqueued_at, tries,
         row.key <> '' AND EXISTS (SELECT 1 FROM mamparo_outbox AS before
             WHERE before.key = row.key AND before.parked_until IS NOT NULL
             AND before.seq < row.seq) AS behind
     FROM unnest($1::bigint[], $2::bigint[]) AS room (shard, rows)
     CROSS JOIN LATERAL (SELECT * FROM mamparo_outbox AS ready
         WHERE ready.shard = room.shard AND parked_until IS NULL
         AND seq NOT IN (SELECT unnest($3::bigint[])) ORDER BY seq LIMIT room.rows) AS row
     ORDER BY row.seq";

/// The shards of a report that are held as they were then; nobody takes them before it is written.
macro_rules! held {
    () => {
        "held AS MATERIALIZED (SELECT shard.shard
             FROM unnest($2::bigint[], $3::bigint[]) AS report (shard, epoch)
             JOIN mamparo_outbox_shards AS shard
                 ON shard.shard = report.shard AND shard.epoch = report.epoch
             WHERE shard.owner = $1 ORDER BY shard.shard FOR SHARE OF shard)"
    };
}

/// The id of a reported row that is ready. A subquery of one value is asked for each reported row, by the
/// index, whatever the statistics say: a planner that believes the table empty would begin a join at it,
/// and compare all that it holds with each reported row.
macro_rules! found {
    () => {
        "(SELECT id FROM mamparo_outbox AS ready WHERE ready.shard = report.shard
             AND ready.seq = report.seq AND ready.parked_until IS NULL)"
    };
}

/// The row is ready, said so that no index over ready rows serves to find it: the primary key does.
macro_rules! ready {
    () => {
        "COALESCE(row.parked_until, -1) = -1"
    };
}

pub(super) const CONFIRM: &str = concat!(
    "WITH ",
    held!(),
    ", gone AS (DELETE FROM mamparo_outbox AS row
         WHERE row.id = ANY (ARRAY(SELECT ",
    found!(),
    " FROM unnest($4::bigint[], $8::bigint[]) AS report (seq, shard)
             WHERE report.shard IN (SELECT shard FROM held)))
         AND ",
    ready!(),
    " RETURNING row.seq, id, kind, key, enqueued_at, tries),
     freed AS (UPDATE mamparo_outbox AS row SET parked_until = NULL
         WHERE row.id = ANY (ARRAY(SELECT next.id
             FROM (SELECT DISTINCT key FROM gone WHERE key <> '') AS done
             CROSS JOIN LATERAL (SELECT id FROM mamparo_outbox AS waiting
                 WHERE waiting.key = done.key AND parked_until IS NOT NULL AND parked_until = $6
                 ORDER BY seq LIMIT $7) AS next))),
     kept AS (INSERT INTO mamparo_outbox_history
             (seq, id, kind, key, enqueued_at, confirmed_at, tries)
         SELECT seq, id, kind, key, enqueued_at, $5, tries FROM gone WHERE $5 IS NOT NULL)
     SELECT count(*) FROM gone"
);

const PARK: &str = concat!(
    "WITH ",
    held!(),
    ", report AS MATERIALIZED (SELECT * FROM unnest($4::bigint[], $5::bigint[], $6::text[],
         $7::bigint[]) AS report (seq, due, error, shard))
     UPDATE mamparo_outbox AS row
     SET (parked_until, error, tries) = (SELECT due, report.error, row.tries + 1 FROM report
         WHERE report.seq = row.seq)
     WHERE row.id = ANY (ARRAY(SELECT ",
    found!(),
    " FROM report WHERE report.shard IN (SELECT shard FROM held)))
     AND ",
    ready!()
);

const HOLD: &str = concat!(
    "WITH ",
    held!(),
    " UPDATE mamparo_outbox AS row SET parked_until = $5
     WHERE row.id = ANY (ARRAY(SELECT ",
    found!(),
    " FROM unnest($4::bigint[], $6::bigint[]) AS report (seq, shard)
         WHERE report.shard IN (SELECT shard FROM held)))
     AND ",
    ready!(),
    " AND row.key <> '' AND EXISTS (SELECT 1 FROM mamparo_outbox AS before
         WHERE before.key = row.key AND before.parked_until IS NOT NULL AND before.seq < row.seq)"
);

/// Hears notifications on a connection of its own.
#[derive(Debug)]
pub struct PgEar(PgListener);

impl Ear for PgEar {
    const LOOK_EVERY: Option<Duration> = None;

    async fn hear(&mut self) -> Result<Heard, StoreError> {
        let heard = self.0.try_recv().await.map_err(StoreError::during("listen for commits"))?;
        Ok(match heard {
            None => Heard::Gap,
            Some(heard) if heard.payload().is_empty() => Heard::Rows,
            Some(heard) => Heard::Word(heard.payload().to_owned()),
        })
    }
}

impl OutboxRows for Postgres {
    type Ear = PgEar;
    const RECORDS_AT_ONCE: bool = true;

    async fn insert_event(conn: &mut PgConnection, event: &Event, now: WallTime) -> Result<i64> {
        let sql = if event.key.is_empty() { INSERT } else { INSERT_IN_TURN };
        let query = sqlx::query_scalar(sql)
            .bind(i64::from(shard_of(&event.key, &event.id)))
            .bind(&event.id)
            .bind(&event.kind)
            .bind(&event.key)
            .bind(&event.body)
            .bind(headers_to_json(&event.headers)?)
            .bind(now.unix_millis());
        let query = if event.key.is_empty() { query } else { query.bind(KEY_SEED) };
        query.fetch_one(conn).await
    }

    async fn has_refused(conn: &mut PgConnection, shards: &[u16], now: WallTime) -> Result<bool> {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM unnest($1::bigint[]) AS held (shard)
             CROSS JOIN LATERAL (SELECT 1 FROM mamparo_outbox AS row
                 WHERE row.shard = held.shard AND parked_until IS NOT NULL
                 AND parked_until <= $2 LIMIT 1) AS due)",
        )
        .bind(numbers(shards))
        .bind(now.unix_millis())
        .fetch_one(conn)
        .await
    }

    async fn wake_refused(conn: &mut PgConnection, shards: &[u16], now: WallTime) -> Result<()> {
        sqlx::query(
            "UPDATE mamparo_outbox AS row SET parked_until = NULL
             WHERE row.id = ANY (ARRAY(SELECT due.id FROM unnest($1::bigint[]) AS held (shard)
                 CROSS JOIN LATERAL (SELECT id FROM mamparo_outbox AS waiting
                     WHERE waiting.shard = held.shard AND parked_until IS NOT NULL
                     AND parked_until <= $2 ORDER BY parked_until LIMIT $3) AS due))
             AND COALESCE(row.parked_until, -1) BETWEEN 0 AND $2",
        )
        .bind(numbers(shards))
        .bind(now.unix_millis())
        .bind(WOKEN_MAX)
        .execute(conn)
        .await
        .map(drop)
    }

    async fn next_refused(conn: &mut PgConnection, shards: &[u16]) -> Result<Option<WallTime>> {
        let next: Option<i64> = sqlx::query_scalar(
            "SELECT min(parked_until) FROM unnest($1::bigint[]) AS held (shard)
             CROSS JOIN LATERAL (SELECT parked_until FROM mamparo_outbox AS row
                 WHERE row.shard = held.shard AND parked_until IS NOT NULL
                 AND parked_until < $2 ORDER BY parked_until LIMIT 1) AS next",
        )
        .bind(numbers(shards))
        .bind(BEHIND)
        .fetch_one(conn)
        .await?;
        Ok(next.map(WallTime::from_unix_millis))
    }

    async fn free_orphans(conn: &mut PgConnection, shards: &[u16]) -> Result<u64> {
        sqlx::query(
            "UPDATE mamparo_outbox AS row SET parked_until = NULL
             WHERE parked_until IS NOT NULL AND parked_until = $2 AND shard = ANY ($1)
             AND NOT EXISTS (SELECT 1 FROM mamparo_outbox AS before
                 WHERE before.key = row.key AND before.parked_until IS NOT NULL
                 AND before.seq < row.seq)
             AND NOT EXISTS (SELECT 1 FROM mamparo_outbox AS before
                 WHERE before.shard = row.shard AND before.parked_until IS NULL
                 AND before.seq < row.seq AND before.key = row.key)",
        )
        .bind(numbers(shards))
        .bind(BEHIND)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    }

    async fn read_events(
        conn: &mut PgConnection,
        rooms: &[(u16, u32)],
        known: &[i64],
    ) -> Result<Vec<Claimed>> {
        let (shards, rows): (Vec<i64>, Vec<i64>) =
            rooms.iter().map(|(shard, rows)| (i64::from(*shard), i64::from(*rows))).unzip();
        let query = sqlx::query(READ).bind(shards).bind(rows).bind(known);
        let claimed = |row: &PgRow| {
            Ok(Claimed {
                row: row.try_get("seq")?,
                shard: count_of(row, "shard")?,
                event: event_of(row)?,
                enqueued: time_of(row, "enqueued_at")?,
                tries: count_of(row, "tries")?,
                behind: row.try_get("behind")?,
            })
        };
        query.fetch_all(conn).await?.iter().map(claimed).collect()
    }

    async fn confirm_events(
        conn: &mut PgConnection,
        owner: &str,
        rows: &[Confirmed],
        history: Option<WallTime>,
    ) -> Result<u64> {
        let (shards, epochs) = tenures(rows);
        let seqs: Vec<i64> = rows.iter().map(|row| row.row).collect();
        let count: i64 = sqlx::query_scalar(CONFIRM)
            .bind(owner)
            .bind(shards)
            .bind(epochs)
            .bind(seqs)
            .bind(history.map(WallTime::unix_millis))
            .bind(BEHIND)
            .bind(FREED_MAX)
            .bind(shards_of(rows))
            .fetch_one(conn)
            .await?;
        Ok(count.unsigned_abs())
    }

    async fn park_events(conn: &mut PgConnection, owner: &str, rows: &[Parked]) -> Result<u64> {
        let reported: Vec<_> =
            rows.iter().map(|row| Confirmed { row: row.row, held: row.held }).collect();
        let (shards, epochs) = tenures(&reported);
        let dues: Vec<i64> = rows.iter().map(|row| row.due.unix_millis()).collect();
        // PostgreSQL's text has no zero bytes.
        let errors: Vec<String> = rows.iter().map(|row| row.error.replace('\0', "")).collect();
        sqlx::query(PARK)
            .bind(owner)
            .bind(shards)
            .bind(epochs)
            .bind(reported.iter().map(|row| row.row).collect::<Vec<_>>())
            .bind(dues)
            .bind(errors)
            .bind(shards_of(&reported))
            .execute(conn)
            .await
            .map(|done| done.rows_affected())
    }

    async fn hold_events(conn: &mut PgConnection, owner: &str, rows: &[Confirmed]) -> Result<u64> {
        let (shards, epochs) = tenures(rows);
        sqlx::query(HOLD)
            .bind(owner)
            .bind(shards)
            .bind(epochs)
            .bind(rows.iter().map(|row| row.row).collect::<Vec<_>>())
            .bind(BEHIND)
            .bind(shards_of(rows))
            .execute(conn)
            .await
            .map(|done| done.rows_affected())
    }

    async fn requeue_events(conn: &mut PgConnection, rows: &[i64]) -> Result<u64> {
        sqlx::query(
            "UPDATE mamparo_outbox SET parked_until = NULL
             WHERE seq = ANY ($1) AND parked_until IS NOT NULL AND parked_until < $2",
        )
        .bind(rows)
        .bind(BEHIND)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    }

    async fn count_events(conn: &mut PgConnection) -> Result<OutboxStats> {
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

    async fn list_events(conn: &mut PgConnection, max: u32) -> Result<Vec<Listed>> {
        let rows = sqlx::query(
            "SELECT seq, row.shard, id, kind, key, body, headers, enqueued_at, tries, parked_until,
                 owner, error
             FROM mamparo_outbox AS row LEFT JOIN mamparo_outbox_shards AS held
                 ON held.shard = row.shard
             ORDER BY seq LIMIT $1",
        )
        .bind(i64::from(max))
        .fetch_all(conn)
        .await?;
        let listed = |row: &PgRow| {
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

    async fn find_event(conn: &mut PgConnection, id: &str) -> Result<Option<Whereabouts>> {
        let found: Option<bool> = sqlx::query_scalar(
            "SELECT true FROM mamparo_outbox WHERE id = $1
             UNION ALL SELECT false FROM mamparo_outbox_history WHERE id = $1 LIMIT 1",
        )
        .bind(id)
        .fetch_optional(conn)
        .await?;
        Ok(found.map(Whereabouts::of))
    }

    async fn forget_history(
        conn: &mut PgConnection,
        before: WallTime,
        now: WallTime,
    ) -> Result<bool> {
        history::keep(conn, before, now).await
    }

    async fn oldest_snapshot(conn: &mut PgConnection) -> Result<Option<Duration>> {
        let millis: Option<i64> = sqlx::query_scalar(
            "SELECT (extract(epoch FROM max(clock_timestamp() - xact_start)) * 1000)::bigint
             FROM pg_stat_activity
             WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
             AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
        )
        .fetch_one(conn)
        .await?;
        Ok(Some(Duration::from_millis(millis.unwrap_or(0).max(0).unsigned_abs())))
    }

    async fn listen(pool: &Pool<Postgres>) -> Result<PgEar> {
        // A connection of its own: an ear keeps it for good, and as many relays as the pool has places
        // would leave none for their work.
        let ear = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(pool.options().get_acquire_timeout())
            .connect_lazy_with(PgConnectOptions::clone(&pool.connect_options()));
        let mut listener = PgListener::connect_with(&ear).await?;
        // Reconnecting is the relay's business: it knows how long to wait.
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await?;
        Ok(PgEar(listener))
    }

    /// Who notifies commits, and all of PostgreSQL's notifiers commit one after the other. The rows are on
    /// the disk by now, and a notification that a crash swallows is one that polling makes up for: so it
    /// does not wait for the disk, and the writers' commits do not wait for it.
    async fn announce(conn: &mut PgConnection, word: &str) -> Result<()> {
        sqlx::query("SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)")
            .bind(CHANNEL)
            .bind(word)
            .execute(conn)
            .await
            .map(drop)
    }
}

/// The shard of each row.
fn shards_of(rows: &[Confirmed]) -> Vec<i64> {
    rows.iter().map(|row| i64::from(row.held.shard)).collect()
}

/// The tenures that rows were read under, each once.
fn tenures(rows: &[Confirmed]) -> (Vec<i64>, Vec<i64>) {
    let mut tenures: Vec<_> =
        rows.iter().map(|row| (i64::from(row.held.shard), row.held.epoch)).collect();
    tenures.sort_unstable();
    tenures.dedup();
    tenures.into_iter().unzip()
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

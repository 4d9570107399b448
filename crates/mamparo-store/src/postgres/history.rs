//! What was published: kept in partitions by time, and forgotten by dropping a whole one. A `DELETE` of
//! millions of rows would leave as many dead ones behind, and vacuum would read them all.

use std::time::Duration;

use mamparo_core::time::WallTime;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Result};

/// The default partition takes what no other does, so that a report is never refused because nobody
/// prepared its partition; [`keep`] sees to it that it stays empty.
pub(super) const V1: &str = "
CREATE TABLE mamparo_outbox_history (
    seq          BIGINT NOT NULL,
    id           TEXT NOT NULL,
    kind         TEXT NOT NULL,
    key          TEXT NOT NULL,
    enqueued_at  BIGINT NOT NULL,
    confirmed_at BIGINT NOT NULL,
    tries        BIGINT NOT NULL
) PARTITION BY RANGE (confirmed_at);
CREATE INDEX mamparo_outbox_history_id ON mamparo_outbox_history (id);
CREATE TABLE mamparo_outbox_history_rest PARTITION OF mamparo_outbox_history DEFAULT;
";

/// How much time a partition holds. History is forgotten in steps of this, so a row is kept up to so
/// much longer than was asked for.
const SPAN: Duration = Duration::from_secs(6 * 3_600);

const PREFIX: &str = "mamparo_outbox_history_from_";

/// Most rows of the default partition that are forgotten at once.
const FORGET_MAX: i64 = 1_000;

/// One process at a time lays out partitions: "history" in ASCII, cut.
const LOCK: i64 = 0x68_69_73_74_6f_72_79;

/// How long the upkeep waits for its lock, in milliseconds. Everybody who comes later stands behind it
/// for so long, every report of a relay among them; and a dump may hold it up for hours.
const PATIENCE_MS: u32 = 100;

/// Makes the partitions for `now` and the span after it, drops those that end before `before`, and
/// forgets a batch of the default one. Is there more? While somebody reads the history partitions are
/// left for the next time.
pub(super) async fn keep(conn: &mut PgConnection, before: WallTime, now: WallTime) -> Result<bool> {
    let span = i64::try_from(SPAN.as_millis()).unwrap_or(i64::MAX);
    let start = now.unix_millis().div_euclid(span) * span;
    let there = starts(conn).await?;
    let mut steps = String::new();
    for from in [start, start + span].into_iter().filter(|from| !there.contains(from)) {
        let to = from + span;
        // Rows of that time in the default partition would make this fail; they stay where they are,
        // and so does everything of that time.
        steps.push_str(&format!(
            "IF NOT EXISTS (SELECT 1 FROM mamparo_outbox_history_rest
                 WHERE confirmed_at >= {from} AND confirmed_at < {to}) THEN
                 CREATE TABLE IF NOT EXISTS {PREFIX}{from} PARTITION OF mamparo_outbox_history
                     FOR VALUES FROM ({from}) TO ({to});
             END IF; "
        ));
    }
    let over = |from: &&i64| from.saturating_add(span) <= before.unix_millis();
    for from in there.iter().filter(over) {
        steps.push_str(&format!("DROP TABLE IF EXISTS {PREFIX}{from}; "));
    }
    if !steps.is_empty() {
        let sql = format!(
            "DO $$ BEGIN
                 PERFORM set_config('lock_timeout', '{PATIENCE_MS}ms', true);
                 PERFORM pg_advisory_xact_lock({LOCK});
                 LOCK TABLE mamparo_outbox_history IN ACCESS EXCLUSIVE MODE;
                 {steps}
             EXCEPTION WHEN lock_not_available THEN NULL;
             END $$"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *conn).await?;
    }
    forget_rest(conn, before).await
}

/// Where the partitions begin. Asked of the table and not by name: another schema of the search path
/// may be another service's.
async fn starts(conn: &mut PgConnection) -> Result<Vec<i64>> {
    let names: Vec<String> = sqlx::query_scalar(
        "SELECT child.relname::text FROM pg_inherits
         JOIN pg_class AS child ON child.oid = inhrelid
         WHERE inhparent = 'mamparo_outbox_history'::regclass",
    )
    .fetch_all(conn)
    .await?;
    Ok(names.iter().filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok()).collect())
}

/// Forgets a batch of the default partition. Is there more?
async fn forget_rest(conn: &mut PgConnection, before: WallTime) -> Result<bool> {
    let done = sqlx::query(
        "DELETE FROM mamparo_outbox_history_rest WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM mamparo_outbox_history_rest WHERE confirmed_at < $1 LIMIT $2))",
    )
    .bind(before.unix_millis())
    .bind(FORGET_MAX)
    .execute(conn)
    .await?;
    Ok(done.rows_affected() >= FORGET_MAX.unsigned_abs())
}

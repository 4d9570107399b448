//! Shards of the outbox and the relays that share them.

use mamparo_core::message::shards::{Plan, Shard};
use mamparo_core::time::WallTime;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Postgres, Result, Row};

use super::numbers;
use crate::backend::ShardRows;
use crate::columns::{count_of, time_of};
use crate::outbox::{Held, Tenure};

pub(super) const V1: &str = "
CREATE TABLE mamparo_outbox_shards (
    shard       BIGINT PRIMARY KEY,
    owner       TEXT,
    epoch       BIGINT NOT NULL DEFAULT 0,
    lease_until BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO mamparo_outbox_shards (shard) SELECT generate_series(0, 15);
CREATE TABLE mamparo_outbox_relays (
    owner       TEXT PRIMARY KEY,
    alive_until BIGINT NOT NULL
);
";

impl ShardRows for Postgres {
    async fn lock_shards(conn: &mut PgConnection) -> Result<Vec<Shard>> {
        let rows = sqlx::query(
            "SELECT shard, owner, epoch, lease_until FROM mamparo_outbox_shards
             ORDER BY shard FOR NO KEY UPDATE",
        )
        .fetch_all(conn)
        .await?;
        let shard = |row: &PgRow| {
            Ok(Shard {
                shard: count_of(row, "shard")?,
                owner: row.try_get("owner")?,
                epoch: row.try_get("epoch")?,
                lease_until: time_of(row, "lease_until")?,
            })
        };
        rows.iter().map(shard).collect()
    }

    async fn beat_relay(
        conn: &mut PgConnection,
        owner: &str,
        alive_until: WallTime,
        now: WallTime,
    ) -> Result<()> {
        sqlx::query(
            "WITH dead AS (DELETE FROM mamparo_outbox_relays
                 WHERE alive_until <= $3 AND owner <> $1)
             INSERT INTO mamparo_outbox_relays (owner, alive_until) VALUES ($1, $2)
             ON CONFLICT (owner) DO UPDATE SET alive_until = excluded.alive_until",
        )
        .bind(owner)
        .bind(alive_until.unix_millis())
        .bind(now.unix_millis())
        .execute(conn)
        .await
        .map(drop)
    }

    async fn alive_relays(conn: &mut PgConnection, now: WallTime) -> Result<Vec<String>> {
        sqlx::query_scalar("SELECT owner FROM mamparo_outbox_relays WHERE alive_until > $1")
            .bind(now.unix_millis())
            .fetch_all(conn)
            .await
    }

    async fn lease_shards(
        conn: &mut PgConnection,
        owner: &str,
        plan: &Plan,
        until: WallTime,
    ) -> Result<()> {
        sqlx::query(
            "UPDATE mamparo_outbox_shards SET owner = $1, lease_until = $2,
                 epoch = epoch + CASE WHEN shard = ANY ($4) THEN 1 ELSE 0 END
             WHERE shard = ANY ($3) OR shard = ANY ($4)",
        )
        .bind(owner)
        .bind(until.unix_millis())
        .bind(numbers(&plan.renew))
        .bind(numbers(&plan.take))
        .execute(conn)
        .await
        .map(drop)
    }

    /// Rows are locked in the order of [`lock_shards`](ShardRows::lock_shards), so that no two relays wait
    /// for each other.
    async fn renew_shards(
        conn: &mut PgConnection,
        owner: &str,
        tenure: &Tenure,
        until: WallTime,
        now: WallTime,
    ) -> Result<bool> {
        let (shards, epochs): (Vec<i64>, Vec<i64>) =
            tenure.held.iter().map(|held| (i64::from(held.shard), held.epoch)).unzip();
        let renewed: i64 = sqlx::query_scalar(
            "WITH known AS MATERIALIZED (
                 SELECT coalesce(array_agg(owner ORDER BY owner COLLATE \"C\") = $6::text[]
                     AND bool_and(alive_until > $3), false) AS same FROM mamparo_outbox_relays),
             mine AS MATERIALIZED (
                 SELECT shard, epoch FROM mamparo_outbox_shards
                 WHERE owner = $1 AND lease_until > $3 AND (SELECT same FROM known)
                 ORDER BY shard FOR NO KEY UPDATE),
             renewed AS (
                 UPDATE mamparo_outbox_shards AS row SET lease_until = $2
                 FROM mine JOIN unnest($4::bigint[], $5::bigint[]) AS held (shard, epoch)
                     USING (shard, epoch)
                 WHERE row.shard = mine.shard AND row.epoch = mine.epoch
                 RETURNING row.shard),
             beat AS (
                 UPDATE mamparo_outbox_relays SET alive_until = $2
                 WHERE owner = $1 AND EXISTS (SELECT 1 FROM renewed))
             SELECT count(*) FROM renewed",
        )
        .bind(owner)
        .bind(until.unix_millis())
        .bind(now.unix_millis())
        .bind(shards)
        .bind(epochs)
        .bind(&tenure.relays)
        .fetch_one(conn)
        .await?;
        Ok(usize::try_from(renewed) == Ok(tenure.held.len()))
    }

    async fn give_shards(conn: &mut PgConnection, owner: &str, shards: &[Held]) -> Result<()> {
        let (numbers, epochs): (Vec<i64>, Vec<i64>) =
            shards.iter().map(|held| (i64::from(held.shard), held.epoch)).unzip();
        sqlx::query(
            "UPDATE mamparo_outbox_shards AS shard SET owner = NULL, lease_until = 0
             FROM unnest($2::bigint[], $3::bigint[]) AS given (shard, epoch)
             WHERE shard.shard = given.shard AND shard.epoch = given.epoch AND owner = $1",
        )
        .bind(owner)
        .bind(numbers)
        .bind(epochs)
        .execute(conn)
        .await
        .map(drop)
    }

    async fn forget_relay(conn: &mut PgConnection, owner: &str) -> Result<()> {
        sqlx::query(
            "WITH gone AS (DELETE FROM mamparo_outbox_relays WHERE owner = $1)
             UPDATE mamparo_outbox_shards SET owner = NULL, lease_until = 0 WHERE owner = $1",
        )
        .bind(owner)
        .execute(conn)
        .await
        .map(drop)
    }
}

//! Shards of the outbox and the relays that share them.

use mamparo_core::message::shards::{Plan, Shard};
use mamparo_core::time::WallTime;
use sqlx::sqlite::SqliteRow;
use sqlx::{Result, Row, Sqlite, SqliteConnection};

use super::json_of;
use crate::backend::ShardRows;
use crate::columns::{count_of, time_of};
use crate::outbox::{Held, Tenure};

pub(super) const V2: &str = "
CREATE TABLE mamparo_outbox_shards (
    shard       INTEGER PRIMARY KEY,
    owner       TEXT,
    epoch       INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER NOT NULL DEFAULT 0
);
INSERT INTO mamparo_outbox_shards (shard)
    WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 15) SELECT i FROM n;
CREATE TABLE mamparo_outbox_relays (
    owner       TEXT PRIMARY KEY,
    alive_until INTEGER NOT NULL
) WITHOUT ROWID;
";

impl ShardRows for Sqlite {
    async fn lock_shards(conn: &mut SqliteConnection) -> Result<Vec<Shard>> {
        // The transaction holds the only write lock.
        let rows =
            sqlx::query("SELECT shard, owner, epoch, lease_until FROM mamparo_outbox_shards")
                .fetch_all(conn)
                .await?;
        let shard = |row: &SqliteRow| {
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
        conn: &mut SqliteConnection,
        owner: &str,
        alive_until: WallTime,
        now: WallTime,
    ) -> Result<()> {
        sqlx::query(
            "INSERT INTO mamparo_outbox_relays (owner, alive_until) VALUES ($1, $2)
             ON CONFLICT (owner) DO UPDATE SET alive_until = excluded.alive_until",
        )
        .bind(owner)
        .bind(alive_until.unix_millis())
        .execute(&mut *conn)
        .await?;
        sqlx::query("DELETE FROM mamparo_outbox_relays WHERE alive_until <= $1")
            .bind(now.unix_millis())
            .execute(conn)
            .await
            .map(drop)
    }

    async fn alive_relays(conn: &mut SqliteConnection, now: WallTime) -> Result<Vec<String>> {
        sqlx::query_scalar("SELECT owner FROM mamparo_outbox_relays WHERE alive_until > $1")
            .bind(now.unix_millis())
            .fetch_all(conn)
            .await
    }

    async fn lease_shards(
        conn: &mut SqliteConnection,
        owner: &str,
        plan: &Plan,
        until: WallTime,
    ) -> Result<()> {
        sqlx::query(
            "UPDATE mamparo_outbox_shards SET owner = $1, lease_until = $2,
                 epoch = epoch + (shard IN (SELECT value FROM json_each($4)))
             WHERE shard IN (SELECT value FROM json_each($3))
             OR shard IN (SELECT value FROM json_each($4))",
        )
        .bind(owner)
        .bind(until.unix_millis())
        .bind(json_of(&plan.renew)?)
        .bind(json_of(&plan.take)?)
        .execute(conn)
        .await
        .map(drop)
    }

    /// A transaction here is no round trip, and one more statement that says the same would save nothing.
    async fn renew_shards(
        _: &mut SqliteConnection,
        _: &str,
        _: &Tenure,
        _: WallTime,
        _: WallTime,
    ) -> Result<bool> {
        Ok(false)
    }

    async fn give_shards(conn: &mut SqliteConnection, owner: &str, shards: &[Held]) -> Result<()> {
        let shards: Vec<_> = shards.iter().map(|held| (held.shard, held.epoch)).collect();
        sqlx::query(
            "UPDATE mamparo_outbox_shards SET owner = NULL, lease_until = 0
             WHERE owner = $1 AND EXISTS (SELECT 1 FROM json_each($2)
                 WHERE value ->> 0 = shard AND value ->> 1 = epoch)",
        )
        .bind(owner)
        .bind(json_of(&shards)?)
        .execute(conn)
        .await
        .map(drop)
    }

    async fn forget_relay(conn: &mut SqliteConnection, owner: &str) -> Result<()> {
        sqlx::query(
            "UPDATE mamparo_outbox_shards SET owner = NULL, lease_until = 0 WHERE owner = $1",
        )
        .bind(owner)
        .execute(&mut *conn)
        .await?;
        sqlx::query("DELETE FROM mamparo_outbox_relays WHERE owner = $1")
            .bind(owner)
            .execute(conn)
            .await
            .map(drop)
    }
}

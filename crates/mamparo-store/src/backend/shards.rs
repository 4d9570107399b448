//! Shards of the outbox and the relays that share them.

use std::future::Future;

use mamparo_core::message::shards::{Plan, Shard};
use mamparo_core::time::WallTime;
use sqlx::Result;

use super::sealed;
use crate::outbox::{Held, Tenure};

/// Shards of the outbox and the relays that share them.
pub trait ShardRows: sqlx::Database + sealed::Sealed {
    /// All shards; nobody else changes them until the transaction ends.
    fn lock_shards(conn: &mut Self::Connection) -> impl Future<Output = Result<Vec<Shard>>> + Send;

    /// Writes that a relay is alive and forgets those that are not.
    fn beat_relay(
        conn: &mut Self::Connection,
        owner: &str,
        alive_until: WallTime,
        now: WallTime,
    ) -> impl Future<Output = Result<()>> + Send;

    /// The relays that are alive.
    fn alive_relays(
        conn: &mut Self::Connection,
        now: WallTime,
    ) -> impl Future<Output = Result<Vec<String>>> + Send;

    /// Renews and takes shards as planned.
    fn lease_shards(
        conn: &mut Self::Connection,
        owner: &str,
        plan: &Plan,
        until: WallTime,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Renews what `owner` holds in one statement, if the relays are those of `tenure`, all of them alive,
    /// and each of its shards is still held in the same tenure. `false` when anything else is the
    /// case, or when there is no cheap way: nothing can be relied on then, and the shards are to be locked and
    /// planned.
    fn renew_shards(
        conn: &mut Self::Connection,
        owner: &str,
        tenure: &Tenure,
        until: WallTime,
        now: WallTime,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Ends the lease of shards that `owner` holds.
    fn give_shards(
        conn: &mut Self::Connection,
        owner: &str,
        shards: &[Held],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Ends all leases of `owner` and forgets it.
    fn forget_relay(
        conn: &mut Self::Connection,
        owner: &str,
    ) -> impl Future<Output = Result<()>> + Send;
}

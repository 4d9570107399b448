//! Rows of the outbox.

use std::future::Future;
use std::time::Duration;

use mamparo_core::time::WallTime;
use sqlx::{Pool, Result};

use super::sealed;
use crate::outbox::{Claimed, Confirmed, Ear, Event, Listed, OutboxStats, Parked, Whereabouts};

/// Rows of the outbox.
pub trait OutboxRows: sqlx::Database + sealed::Sealed {
    /// Hears of commits of other processes.
    type Ear: Ear;

    /// Is [`OutboxRows::confirm_events`] a single statement, which needs no transaction?
    const RECORDS_AT_ONCE: bool;

    /// Writes an outbox row; its number.
    fn insert_event(
        conn: &mut Self::Connection,
        event: &Event,
        now: WallTime,
    ) -> impl Future<Output = Result<i64>> + Send;

    /// Is there a refused row in these shards that is due?
    fn has_refused(
        conn: &mut Self::Connection,
        shards: &[u16],
        now: WallTime,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Makes due refused rows ready.
    fn wake_refused(
        conn: &mut Self::Connection,
        shards: &[u16],
        now: WallTime,
    ) -> impl Future<Output = Result<()>> + Send;

    /// When the next refused row of these shards is due.
    fn next_refused(
        conn: &mut Self::Connection,
        shards: &[u16],
    ) -> impl Future<Output = Result<Option<WallTime>>> + Send;

    /// Makes rows ready that wait behind nothing; how many.
    fn free_orphans(
        conn: &mut Self::Connection,
        shards: &[u16],
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Reads ready rows by shard and room, oldest first.
    fn read_events(
        conn: &mut Self::Connection,
        rooms: &[(u16, u32)],
        known: &[i64],
    ) -> impl Future<Output = Result<Vec<Claimed>>> + Send;

    /// Moves rows to the history and frees what waited behind them; how many.
    fn confirm_events(
        conn: &mut Self::Connection,
        owner: &str,
        rows: &[Confirmed],
        history: Option<WallTime>,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Gives rows a time and an error; how many.
    fn park_events(
        conn: &mut Self::Connection,
        owner: &str,
        rows: &[Parked],
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Marks rows that are behind a parked one; how many.
    fn hold_events(
        conn: &mut Self::Connection,
        owner: &str,
        rows: &[Confirmed],
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Makes refused rows ready; how many.
    fn requeue_events(
        conn: &mut Self::Connection,
        rows: &[i64],
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Counts pending rows.
    fn count_events(
        conn: &mut Self::Connection,
    ) -> impl Future<Output = Result<OutboxStats>> + Send;

    /// Shows pending rows.
    fn list_events(
        conn: &mut Self::Connection,
        max: u32,
    ) -> impl Future<Output = Result<Vec<Listed>>> + Send;

    /// Looks an event up by its id.
    fn find_event(
        conn: &mut Self::Connection,
        id: &str,
    ) -> impl Future<Output = Result<Option<Whereabouts>>> + Send;

    /// Forgets a batch of history and prepares room for more; is there more to forget?
    fn forget_history(
        conn: &mut Self::Connection,
        before: WallTime,
        now: WallTime,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// The age of the oldest snapshot that holds back clean-up.
    fn oldest_snapshot(
        conn: &mut Self::Connection,
    ) -> impl Future<Output = Result<Option<Duration>>> + Send;

    /// An ear.
    fn listen(pool: &Pool<Self>) -> impl Future<Output = Result<Self::Ear>> + Send;

    /// What ears hear.
    fn announce(conn: &mut Self::Connection, word: &str)
    -> impl Future<Output = Result<()>> + Send;
}

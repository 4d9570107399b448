//! Rows of messages that wait in the service's own database for another attempt.

use std::future::Future;

use mamparo_core::time::WallTime;
use sqlx::Result;

use super::sealed;
use crate::parked::{Claimed, Entry, Failure, ParkedRow, Wait};
use crate::queue::QueueMessage;

/// Rows of messages that wait in the service's own database for another attempt.
///
/// Whatever changes which row of a key is its first one is called under
/// [`lock_parked_key`](Self::lock_parked_key).
pub trait ParkedRows: sqlx::Database + sealed::Sealed {
    /// Keeps others from changing the rows of `key` until the transaction's end.
    fn lock_parked_key(
        conn: &mut Self::Connection,
        consumer: &str,
        key: &str,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Writes a row, the first of its key if there is no other; `false` when the message is there.
    fn park(
        conn: &mut Self::Connection,
        consumer: &str,
        message: &QueueMessage,
        wait: &Wait,
        failure: Option<&Failure>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Are there rows of `key`?
    fn is_parked(
        conn: &mut Self::Connection,
        consumer: &str,
        key: &str,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Which of these messages wait, and which have a key of which another one waits.
    fn look_up(
        conn: &mut Self::Connection,
        consumer: &str,
        messages: &[(&str, &str)],
    ) -> impl Future<Output = Result<Vec<String>>> + Send;

    /// Writes an inbox row unless a message of `key` waits: `None` then, else how often the message
    /// came before.
    fn insert_inbox_unless_parked(
        conn: &mut Self::Connection,
        entry: Entry<'_>,
        now: WallTime,
    ) -> impl Future<Output = Result<Option<i64>>> + Send;

    /// Leases up to `max` rows that are due, the first of each key, the longest due first.
    fn claim_parked(
        conn: &mut Self::Connection,
        consumer: &str,
        owner: &str,
        max: u32,
        until: WallTime,
        now: WallTime,
    ) -> impl Future<Output = Result<Vec<Claimed>>> + Send;

    /// Puts off when the leases of `owner` on `rows` end.
    fn renew_parked(
        conn: &mut Self::Connection,
        rows: &[i64],
        owner: &str,
        until: WallTime,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// When the next row can be claimed.
    fn next_parked(
        conn: &mut Self::Connection,
        consumer: &str,
    ) -> impl Future<Output = Result<Option<WallTime>>> + Send;

    /// Ends a lease with another failure; `false` when the lease was lost.
    fn park_again(
        conn: &mut Self::Connection,
        row: i64,
        epoch: i64,
        message: &QueueMessage,
        wait: &Wait,
        failure: &Failure,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Ends a lease without a verdict; `false` when the lease was lost.
    fn release_parked(
        conn: &mut Self::Connection,
        row: i64,
        epoch: i64,
        due: WallTime,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Ends all leases of `owner`; how many.
    fn release_all_parked(
        conn: &mut Self::Connection,
        consumer: &str,
        owner: &str,
        now: WallTime,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Deletes a leased row and makes the next of its key the first; `false` when the lease was lost.
    fn remove_parked(
        conn: &mut Self::Connection,
        row: i64,
        epoch: i64,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Makes rows due now: those of a message, of a key, or all of the consumer; how many.
    fn make_due(
        conn: &mut Self::Connection,
        consumer: &str,
        message_id: Option<&str>,
        key: Option<&str>,
        now: WallTime,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Rows in order of their keys' turn, after row `after`.
    fn list_parked(
        conn: &mut Self::Connection,
        consumer: &str,
        after: i64,
        max: u32,
    ) -> impl Future<Output = Result<Vec<ParkedRow>>> + Send;

    /// First rows of their keys after row `after`, each with the number of those behind it.
    fn list_first_parked(
        conn: &mut Self::Connection,
        consumer: &str,
        after: i64,
        max: u32,
    ) -> impl Future<Output = Result<Vec<(ParkedRow, u64)>>> + Send;

    /// The row of a message, or the first one of a key.
    fn find_parked(
        conn: &mut Self::Connection,
        consumer: &str,
        message_id: Option<&str>,
        key: Option<&str>,
    ) -> impl Future<Output = Result<Option<ParkedRow>>> + Send;

    /// Leases a row, due or not, that is the first of its key and in nobody's hand; its epoch.
    fn seize_parked(
        conn: &mut Self::Connection,
        row: i64,
        owner: &str,
        until: WallTime,
        now: WallTime,
    ) -> impl Future<Output = Result<Option<i64>>> + Send;

    /// Consumers of which messages wait.
    fn parked_consumers(
        conn: &mut Self::Connection,
    ) -> impl Future<Output = Result<Vec<String>>> + Send;

    /// How many rows wait, and since when the oldest does.
    fn parked_stats(
        conn: &mut Self::Connection,
        consumer: &str,
    ) -> impl Future<Output = Result<(u64, Option<WallTime>)>> + Send;
}

/// The first rows of their keys, with what waits behind them.
pub(crate) const FIRST: &str = "SELECT p.seq, p.head, p.visible_at, p.owner, p.attempts, p.since,
     CAST(p.history AS TEXT) AS history, p.id, p.kind, p.exchange, p.routing_key, p.key, p.headers,
     p.body, (SELECT count(*) FROM mamparo_parked AS b
         WHERE b.consumer = p.consumer AND b.key = p.key AND b.key <> '' AND b.seq > p.seq) AS behind
     FROM mamparo_parked AS p WHERE p.consumer = $1 AND p.head AND p.seq > $2
     ORDER BY p.seq LIMIT $3";

/// A message's row, or the first one of a key.
pub(crate) const FIND: &str = "SELECT seq, head, visible_at, owner, attempts, since,
     CAST(history AS TEXT) AS history, id, kind, exchange, routing_key, key, headers, body
     FROM mamparo_parked WHERE consumer = $1 AND (CAST($2 AS TEXT) IS NULL OR id = $2)
     AND (CAST($3 AS TEXT) IS NULL OR (key = $3 AND head)) ORDER BY seq LIMIT 1";

/// An operator's lease.
pub(crate) const SEIZE: &str = "UPDATE mamparo_parked
     SET owner = $1, visible_at = $2, epoch = epoch + 1
     WHERE seq = $3 AND head AND (owner IS NULL OR visible_at <= $4) RETURNING epoch";

/// Whose messages wait.
pub(crate) const CONSUMERS: &str = "SELECT DISTINCT consumer FROM mamparo_parked ORDER BY consumer";

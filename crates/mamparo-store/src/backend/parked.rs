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

    /// How many rows wait, and since when the oldest does.
    fn parked_stats(
        conn: &mut Self::Connection,
        consumer: &str,
    ) -> impl Future<Output = Result<(u64, Option<WallTime>)>> + Send;
}

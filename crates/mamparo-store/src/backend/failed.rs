//! Rows of failed messages.

use std::future::Future;

use mamparo_core::time::WallTime;
use sqlx::Result;

use super::sealed;
use crate::failed::{Acted, Counted, Entry, FailedMessage, Failure, Grouped, Query, Target};

/// Rows of failed messages.
pub trait FailedRows: sqlx::Database + sealed::Sealed {
    /// Writes a failure; how often the message has failed for good, `None` when it was known.
    fn record_failure(
        conn: &mut Self::Connection,
        failure: &Failure<'_>,
        now: WallTime,
    ) -> impl Future<Output = Result<Option<i64>>> + Send;

    /// Shows rows, in order.
    fn list_failed(
        conn: &mut Self::Connection,
        query: &Query,
    ) -> impl Future<Output = Result<Vec<FailedMessage>>> + Send;

    /// Counts the rows that a query would show without its limit.
    fn count_failed(
        conn: &mut Self::Connection,
        query: &Query,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Leases failed rows that nobody holds; which.
    fn claim_failed(
        conn: &mut Self::Connection,
        owner: &str,
        rows: &[i64],
        until: WallTime,
        now: WallTime,
    ) -> impl Future<Output = Result<Vec<i64>>> + Send;

    /// Ends leases of `owner` without a change.
    fn release_failed(
        conn: &mut Self::Connection,
        owner: &str,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Marks rows and writes it down; how many rows were still as expected.
    fn act_on_failed(
        conn: &mut Self::Connection,
        target: &Target<'_>,
        acted: &Acted<'_>,
        now: WallTime,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// What happened to a message, oldest first.
    fn failed_log(
        conn: &mut Self::Connection,
        consumer: &str,
        id: &str,
    ) -> impl Future<Output = Result<Vec<Entry>>> + Send;

    /// Failed messages by consumer and reason.
    fn failed_counts(
        conn: &mut Self::Connection,
    ) -> impl Future<Output = Result<Vec<Counted>>> + Send;

    /// Failed messages by group, the largest first.
    fn failed_groups(
        conn: &mut Self::Connection,
        consumer: Option<&str>,
        max: u32,
    ) -> impl Future<Output = Result<Vec<Grouped>>> + Send;

    /// Deletes rows that were acted on before `before`, and their history; how many.
    fn forget_failed(
        conn: &mut Self::Connection,
        before: WallTime,
        max: u32,
    ) -> impl Future<Output = Result<u64>> + Send;
}

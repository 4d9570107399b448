//! Rows of the outbox.

use std::future::Future;

use mamparo_core::time::WallTime;
use sqlx::Result;

use super::sealed;
use crate::outbox::{Claimed, Event, Listed, OutboxStats};

/// Rows of the outbox.
pub trait OutboxRows: sqlx::Database + sealed::Sealed {
    /// Writes an outbox row; its number.
    fn insert_event(
        conn: &mut Self::Connection,
        event: &Event,
        now: WallTime,
    ) -> impl Future<Output = Result<i64>> + Send;

    /// Is there a row that [`OutboxRows::claim_events`] would claim?
    fn has_due_events(
        conn: &mut Self::Connection,
        now: WallTime,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Leases the due first rows of keys.
    fn claim_events(
        conn: &mut Self::Connection,
        owner: &str,
        max: u32,
        until: WallTime,
        now: WallTime,
    ) -> impl Future<Output = Result<Vec<Claimed>>> + Send;

    /// Marks rows of `owner` as confirmed; how many.
    fn confirm_events(
        conn: &mut Self::Connection,
        owner: &str,
        rows: &[i64],
        now: WallTime,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Gives a row of `owner` back with a time and an error; how many (0 or 1).
    fn postpone_event(
        conn: &mut Self::Connection,
        owner: &str,
        row: i64,
        due: WallTime,
        error: &str,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Gives all rows of `owner` back; how many.
    fn release_events(
        conn: &mut Self::Connection,
        owner: &str,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Makes postponed rows due; how many.
    fn requeue_events(
        conn: &mut Self::Connection,
        rows: &[i64],
        now: WallTime,
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

    /// Deletes confirmed rows; how many.
    fn forget_events(
        conn: &mut Self::Connection,
        before: WallTime,
        max: u32,
    ) -> impl Future<Output = Result<u64>> + Send;
}

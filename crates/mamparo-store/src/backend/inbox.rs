//! Rows of the inbox, and of the attempts that its handlers make.

use std::future::Future;

use mamparo_core::time::WallTime;
use sqlx::Result;

use super::sealed;
use crate::attempts::Attempt;

/// Rows of the inbox, and of the attempts that its handlers make.
pub trait InboxRows: sqlx::Database + sealed::Sealed {
    /// Writes an inbox row or counts a duplicate on it; how many duplicates there are.
    fn insert_inbox(
        conn: &mut Self::Connection,
        consumer: &str,
        message_id: &str,
        kind: &str,
        now: WallTime,
    ) -> impl Future<Output = Result<i64>> + Send;

    /// Statements that are sent together: they insert an inbox row and leave a transaction open with it
    /// in it, or fail with [`Class::Duplicate`](crate::Class::Duplicate) and leave nothing open. `None`
    /// where beginning first costs no round trip.
    fn begin_with_inbox(
        consumer: &str,
        message_id: &str,
        kind: &str,
        now: WallTime,
    ) -> Option<String>;

    /// Counts a duplicate on the row that is there; `false` when it is not there any more.
    fn count_duplicate(
        conn: &mut Self::Connection,
        consumer: &str,
        message_id: &str,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Is there an inbox row?
    fn has_inbox(
        conn: &mut Self::Connection,
        consumer: &str,
        message_id: &str,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Deletes old inbox rows; how many.
    fn forget_inbox(
        conn: &mut Self::Connection,
        before: WallTime,
        max: u32,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Writes a start; how many other owners' starts are no longer alive.
    fn start_attempt(
        conn: &mut Self::Connection,
        attempt: Attempt<'_>,
        alive_until: WallTime,
        now: WallTime,
    ) -> impl Future<Output = Result<u32>> + Send;

    /// Until when the last of other owners' starts counts as alive, if any does at `now`.
    fn attempt_elsewhere(
        conn: &mut Self::Connection,
        attempt: Attempt<'_>,
        now: WallTime,
    ) -> impl Future<Output = Result<Option<WallTime>>> + Send;

    /// Puts off when the starts of `owner` count as dead.
    fn renew_attempts(
        conn: &mut Self::Connection,
        consumer: &str,
        owner: &str,
        alive_until: WallTime,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Forgets the owner's start and those of the dead.
    fn end_attempt(
        conn: &mut Self::Connection,
        attempt: Attempt<'_>,
        now: WallTime,
    ) -> impl Future<Output = Result<()>> + Send;
}

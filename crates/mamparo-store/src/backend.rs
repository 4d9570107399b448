//! The seam between operations and databases: one method per operation, one implementation a
//! database. The public modules say what each operation means; here is only what it takes.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use mamparo_core::message::idempotency::Record;
use mamparo_core::time::WallTime;
use sqlx::Result;

use crate::attempts::Attempt;
use crate::idempotency::StoredResponse;
use crate::outbox::{Claimed, Event, Listed as ListedEvent, OutboxStats};
use crate::queue::{Archived, Leased, Listed, QueueMessage, QueueSpec, Selection, Totals};

/// Keeps the trait closed until a second database has shown what it should look like.
pub(crate) mod sealed {
    /// Implemented in this crate only.
    pub trait Sealed {}
    impl Sealed for sqlx::Sqlite {}
}

/// A database that mamparo can keep its state in. Sealed; implemented for SQLite.
///
/// Methods that take several statements must be called in a transaction; their callers in this
/// crate do that.
pub trait Backend: sqlx::Database + sealed::Sealed {
    /// The statement that begins a writing transaction.
    const BEGIN: &'static str;

    /// Runs several statements as they are.
    fn run_script(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Reads something small.
    fn check(conn: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send;

    /// Writes an outbox row; its number.
    fn insert_event(
        conn: &mut Self::Connection,
        event: &Event,
        now: WallTime,
    ) -> impl Future<Output = Result<i64>> + Send;

    /// Is there a row that [`Backend::claim_events`] would claim?
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
    ) -> impl Future<Output = Result<Vec<ListedEvent>>> + Send;

    /// Deletes confirmed rows; how many.
    fn forget_events(
        conn: &mut Self::Connection,
        before: WallTime,
        max: u32,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Writes an inbox row or counts a duplicate on it; how many duplicates there are.
    fn insert_inbox(
        conn: &mut Self::Connection,
        consumer: &str,
        message_id: &str,
        kind: &str,
        now: WallTime,
    ) -> impl Future<Output = Result<i64>> + Send;

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

    /// Reads an idempotency key's record and keeps others from changing it until the transaction ends.
    fn load_key(
        conn: &mut Self::Connection,
        caller: &str,
        key: &str,
    ) -> impl Future<Output = Result<Option<Record>>> + Send;

    /// Writes an idempotency key's record; `answer` and its time replace what was kept before.
    fn save_key(
        conn: &mut Self::Connection,
        caller: &str,
        key: &str,
        record: &Record,
        answer: Option<(&StoredResponse, WallTime)>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Reads the answer that was kept for a key.
    fn load_response(
        conn: &mut Self::Connection,
        caller: &str,
        key: &str,
    ) -> impl Future<Output = Result<StoredResponse>> + Send;

    /// Deletes keys past their retention; how many.
    fn forget_keys(
        conn: &mut Self::Connection,
        now: WallTime,
        max: u32,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Writes a queue's arguments.
    fn declare_queue(
        conn: &mut Self::Connection,
        spec: &QueueSpec,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Is the queue declared?
    fn has_queue(
        conn: &mut Self::Connection,
        queue: &str,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Writes a binding.
    fn bind_queue(
        conn: &mut Self::Connection,
        exchange: &str,
        pattern: &str,
        queue: &str,
    ) -> impl Future<Output = Result<()>> + Send;

    /// The (pattern, queue) pairs of an exchange.
    fn bindings(
        conn: &mut Self::Connection,
        exchange: &str,
    ) -> impl Future<Output = Result<Vec<(String, String)>>> + Send;

    /// Writes a message into a queue and counts it as published.
    fn insert_message(
        conn: &mut Self::Connection,
        queue: &str,
        message: &QueueMessage,
        now: WallTime,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Queues that dead-letter to `queue` and hold messages whose TTL is over.
    fn expired_sources(
        conn: &mut Self::Connection,
        queue: &str,
        now: WallTime,
    ) -> impl Future<Output = Result<Vec<(String, Duration)>>> + Send;

    /// Is there a message that [`Backend::lease_messages`] would lease?
    fn has_visible(
        conn: &mut Self::Connection,
        queue: &str,
        now: WallTime,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Moves messages of `from` that are older than `ttl` and not leased to `to`; how many.
    fn move_expired(
        conn: &mut Self::Connection,
        from: &str,
        ttl: Duration,
        to: &str,
        now: WallTime,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Leases visible messages.
    fn lease_messages(
        conn: &mut Self::Connection,
        queue: &str,
        owner: &str,
        max: u32,
        until: WallTime,
        now: WallTime,
    ) -> impl Future<Output = Result<Vec<Leased>>> + Send;

    /// Puts all leases of `owner` off until `until`; how many.
    fn renew_leases(
        conn: &mut Self::Connection,
        owner: &str,
        until: WallTime,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Deletes a leased message and counts it as acknowledged.
    fn ack_message(
        conn: &mut Self::Connection,
        row: i64,
        epoch: i64,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Ends a lease.
    fn release_message(
        conn: &mut Self::Connection,
        row: i64,
        epoch: i64,
        visible: WallTime,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Ends all leases of `owner`; how many.
    fn release_messages(
        conn: &mut Self::Connection,
        owner: &str,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Counts a queue's messages.
    fn count_messages(
        conn: &mut Self::Connection,
        queue: &str,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Shows a queue's messages.
    fn list_messages(
        conn: &mut Self::Connection,
        queue: &str,
        selection: &Selection,
    ) -> impl Future<Output = Result<Vec<Listed>>> + Send;

    /// Moves an unleased message to the end of another queue, with new headers.
    fn move_message(
        conn: &mut Self::Connection,
        row: i64,
        to: &str,
        headers: &BTreeMap<String, String>,
        now: WallTime,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Moves an unleased message to the archive.
    fn archive_message(
        conn: &mut Self::Connection,
        row: i64,
        actor: &str,
        reason: &str,
        now: WallTime,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Shows what was archived from a queue.
    fn list_archive(
        conn: &mut Self::Connection,
        queue: &str,
        max: u32,
    ) -> impl Future<Output = Result<Vec<Archived>>> + Send;

    /// Counts of all queues, by name.
    fn totals(conn: &mut Self::Connection) -> impl Future<Output = Result<Vec<Totals>>> + Send;
}

//! Queues and messages of the embedded broker. Only for databases that carry one.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use mamparo_core::time::WallTime;
use sqlx::Result;

use crate::letters::{InArchive, Settlement};
use crate::queue::{Archived, Leased, Listed, QueueMessage, QueueSpec, Selection, Totals};

/// Queues and messages of the embedded broker. Only for databases that carry one.
pub trait QueueRows: super::Backend {
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

    /// A queue's arguments as they were declared last.
    fn queue_spec(
        conn: &mut Self::Connection,
        queue: &str,
    ) -> impl Future<Output = Result<Option<QueueSpec>>> + Send;

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

    /// Is there a message that [`QueueRows::lease_messages`] would lease?
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

    /// The highest number in a queue, else 0.
    fn last_message(
        conn: &mut Self::Connection,
        queue: &str,
    ) -> impl Future<Output = Result<i64>> + Send;

    /// Shows a queue's messages with numbers after `after` and up to `last`.
    fn page_messages(
        conn: &mut Self::Connection,
        queue: &str,
        after: i64,
        last: i64,
        max: u32,
    ) -> impl Future<Output = Result<Vec<Listed>>> + Send;

    /// Shows what was archived from a queue, with numbers after `after`.
    fn page_archive(
        conn: &mut Self::Connection,
        queue: &str,
        after: i64,
        max: u32,
    ) -> impl Future<Output = Result<Vec<InArchive>>> + Send;

    /// Takes an unleased message out and puts it, or its copy, where it is to go.
    fn settle_letter(
        conn: &mut Self::Connection,
        settlement: &Settlement<'_>,
        now: WallTime,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Moves an archived message to the end of a queue, with new headers.
    fn restore_message(
        conn: &mut Self::Connection,
        row: i64,
        to: &str,
        headers: &BTreeMap<String, String>,
        now: WallTime,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Counts of all queues, by name.
    fn totals(conn: &mut Self::Connection) -> impl Future<Output = Result<Vec<Totals>>> + Send;
}

//! The embedded broker's operations, each by its statements.

use std::collections::BTreeMap;
use std::time::Duration;

use mamparo_core::time::WallTime;
use sqlx::{Result, Sqlite, SqliteConnection};

use super::{letters, queue, queue_ops};
use crate::backend::QueueRows;
use crate::letters::{InArchive, Settlement};
use crate::queue::{Archived, Leased, Listed, QueueMessage, QueueSpec, Selection, Totals};

impl QueueRows for Sqlite {
    async fn declare_queue(conn: &mut SqliteConnection, spec: &QueueSpec) -> Result<()> {
        queue::declare(conn, spec).await
    }

    async fn has_queue(conn: &mut SqliteConnection, queue: &str) -> Result<bool> {
        queue::exists(conn, queue).await
    }

    async fn queue_spec(conn: &mut SqliteConnection, queue: &str) -> Result<Option<QueueSpec>> {
        queue::spec(conn, queue).await
    }

    async fn bind_queue(
        conn: &mut SqliteConnection,
        exchange: &str,
        pattern: &str,
        queue: &str,
    ) -> Result<()> {
        queue::bind(conn, exchange, pattern, queue).await
    }

    async fn bindings(
        conn: &mut SqliteConnection,
        exchange: &str,
    ) -> Result<Vec<(String, String)>> {
        queue::bindings(conn, exchange).await
    }

    async fn insert_message(
        conn: &mut SqliteConnection,
        queue: &str,
        message: &QueueMessage,
        now: WallTime,
    ) -> Result<()> {
        queue::insert(conn, queue, message, now).await
    }

    async fn expired_sources(
        conn: &mut SqliteConnection,
        queue: &str,
        now: WallTime,
    ) -> Result<Vec<(String, Duration)>> {
        queue::expired_sources(conn, queue, now).await
    }

    async fn has_visible(conn: &mut SqliteConnection, queue: &str, now: WallTime) -> Result<bool> {
        queue::has_visible(conn, queue, now).await
    }

    async fn move_expired(
        conn: &mut SqliteConnection,
        from: &str,
        ttl: Duration,
        to: &str,
        now: WallTime,
    ) -> Result<u64> {
        queue::move_expired(conn, from, ttl, to, now).await
    }

    async fn lease_messages(
        conn: &mut SqliteConnection,
        queue: &str,
        owner: &str,
        max: u32,
        until: WallTime,
        now: WallTime,
    ) -> Result<Vec<Leased>> {
        queue::lease(conn, queue, owner, max, until, now).await
    }

    async fn renew_leases(
        conn: &mut SqliteConnection,
        owner: &str,
        until: WallTime,
    ) -> Result<u64> {
        queue::renew(conn, owner, until).await
    }

    async fn ack_message(conn: &mut SqliteConnection, row: i64, epoch: i64) -> Result<bool> {
        queue::ack(conn, row, epoch).await
    }

    async fn release_message(
        conn: &mut SqliteConnection,
        row: i64,
        epoch: i64,
        visible: WallTime,
    ) -> Result<bool> {
        queue::release(conn, row, epoch, visible).await
    }

    async fn release_messages(conn: &mut SqliteConnection, owner: &str) -> Result<u64> {
        queue::release_all(conn, owner).await
    }

    async fn count_messages(conn: &mut SqliteConnection, queue: &str) -> Result<u64> {
        queue_ops::count(conn, queue).await
    }

    async fn list_messages(
        conn: &mut SqliteConnection,
        queue: &str,
        selection: &Selection,
    ) -> Result<Vec<Listed>> {
        queue_ops::list(conn, queue, selection).await
    }

    async fn move_message(
        conn: &mut SqliteConnection,
        row: i64,
        to: &str,
        headers: &BTreeMap<String, String>,
        now: WallTime,
    ) -> Result<bool> {
        queue_ops::move_to(conn, row, to, headers, now).await
    }

    async fn archive_message(
        conn: &mut SqliteConnection,
        row: i64,
        actor: &str,
        reason: &str,
        now: WallTime,
    ) -> Result<bool> {
        queue_ops::archive(conn, row, actor, reason, now).await
    }

    async fn list_archive(
        conn: &mut SqliteConnection,
        queue: &str,
        max: u32,
    ) -> Result<Vec<Archived>> {
        queue_ops::list_archive(conn, queue, max).await
    }

    async fn last_message(conn: &mut SqliteConnection, queue: &str) -> Result<i64> {
        letters::last(conn, queue).await
    }

    async fn page_messages(
        conn: &mut SqliteConnection,
        queue: &str,
        after: i64,
        last: i64,
        max: u32,
    ) -> Result<Vec<Listed>> {
        letters::page(conn, queue, after, last, max).await
    }

    async fn page_archive(
        conn: &mut SqliteConnection,
        queue: &str,
        after: i64,
        max: u32,
    ) -> Result<Vec<InArchive>> {
        letters::page_archive(conn, queue, after, max).await
    }

    async fn settle_letter(
        conn: &mut SqliteConnection,
        settlement: &Settlement<'_>,
        now: WallTime,
    ) -> Result<bool> {
        letters::settle(conn, settlement, now).await
    }

    async fn restore_message(
        conn: &mut SqliteConnection,
        row: i64,
        to: &str,
        headers: &BTreeMap<String, String>,
        now: WallTime,
    ) -> Result<bool> {
        letters::restore(conn, row, to, headers, now).await
    }

    async fn totals(conn: &mut SqliteConnection) -> Result<Vec<Totals>> {
        queue_ops::totals(conn).await
    }
}

//! Events that leave with the transaction that caused them.

use std::collections::BTreeMap;
use std::time::Duration;

use mamparo_core::time::WallTime;

use crate::{Backend, Store, StoreError, Transaction};

/// An event as it will be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Unique; what receivers deduplicate by. UUIDv7 by [`Event::new`].
    pub id: String,
    /// The event type, `order.created` say; receivers dispatch on it.
    pub kind: String,
    /// Events with the same key (the order's id, say) are published in the order of their commits.
    pub key: String,
    /// The body, usually JSON.
    pub body: Vec<u8>,
    /// Headers: request id, traceparent.
    pub headers: BTreeMap<String, String>,
}

/// An outbox row that a relay has claimed.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// The row's number; grows with the order of commits on one key.
    pub row: i64,
    /// The event.
    pub event: Event,
    /// When it was enqueued.
    pub enqueued: WallTime,
    /// Times that publishing has been tried before.
    pub tries: u32,
}

/// What waits in the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutboxStats {
    /// Rows not yet confirmed by the broker.
    pub pending: u64,
    /// Of those, rows whose key is parked after a return or a nack.
    pub parked: u64,
    /// When the oldest pending row was enqueued.
    pub oldest: Option<WallTime>,
}

impl Event {
    /// An event with a fresh id.
    #[must_use]
    pub fn new(kind: impl Into<String>, key: impl Into<String>, body: Vec<u8>) -> Self {
        let (kind, key) = (kind.into(), key.into());
        Self { id: uuid::Uuid::now_v7().to_string(), kind, key, body, headers: BTreeMap::new() }
    }
}

/// Writes `event` in the caller's transaction: it is published if and only if that commits.
///
/// # Errors
/// What the database said.
pub async fn enqueue<DB: Backend>(
    _tx: &mut Transaction<'_, DB>,
    _event: &Event,
    _now: WallTime,
) -> Result<i64, StoreError> {
    todo!()
}

/// Claims up to `max` due rows for `owner` until `now + lease`: oldest first, per key strictly in
/// order (a key with an earlier row in flight or parked yields nothing later).
///
/// # Errors
/// What the database said.
pub async fn claim<DB: Backend>(
    _store: &Store<DB>,
    _owner: &str,
    _max: u32,
    _lease: Duration,
    _now: WallTime,
) -> Result<Vec<Claimed>, StoreError> {
    todo!()
}

/// Records that the broker has confirmed these rows. Rows that `owner` no longer holds are left alone.
///
/// # Errors
/// What the database said.
pub async fn confirmed<DB: Backend>(
    _store: &Store<DB>,
    _owner: &str,
    _rows: &[i64],
    _now: WallTime,
) -> Result<u64, StoreError> {
    todo!()
}

/// Gives a row back to be tried again at `due`; its key waits until then. `error` is kept for people.
///
/// # Errors
/// What the database said.
pub async fn postpone<DB: Backend>(
    _store: &Store<DB>,
    _owner: &str,
    _row: i64,
    _due: WallTime,
    _error: &str,
) -> Result<(), StoreError> {
    todo!()
}

/// What waits.
///
/// # Errors
/// What the database said.
pub async fn stats<DB: Backend>(_store: &Store<DB>) -> Result<OutboxStats, StoreError> {
    todo!()
}

/// Forgets confirmed rows older than `before`, at most `max` of them. How many were forgotten.
///
/// # Errors
/// What the database said.
pub async fn forget<DB: Backend>(
    _store: &Store<DB>,
    _before: WallTime,
    _max: u32,
) -> Result<u64, StoreError> {
    todo!()
}

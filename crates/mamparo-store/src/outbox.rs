//! Events that leave with the transaction that caused them.

use std::collections::BTreeMap;
use std::time::Duration;

use mamparo_core::time::WallTime;

use crate::{Backend, Now, Store, StoreError, Transaction};

/// An event as it will be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Unique; what receivers deduplicate by. UUIDv7 by [`Event::new`].
    pub id: String,
    /// The event type, `order.created` say; receivers dispatch on it.
    pub kind: String,
    /// Events with the same key (the order's id, say) are published in the order of their commits.
    /// An empty key means that order doesn't matter.
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
    /// Times that it was claimed before: tries that failed, or whose relay died.
    pub tries: u32,
}

/// A pending outbox row, as shown to people.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The row's number.
    pub row: i64,
    /// The event.
    pub event: Event,
    /// When it was enqueued.
    pub enqueued: WallTime,
    /// Times that it was claimed.
    pub tries: u32,
    /// Not to be tried before this.
    pub due: WallTime,
    /// The relay that holds it.
    pub owner: Option<String>,
    /// What the broker said last.
    pub error: Option<String>,
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
/// Commit with [`Store::commit`], so that the relay learns of it at once.
///
/// # Errors
/// What the database said; an event id that is there already, among others.
pub async fn enqueue<DB: Backend>(
    tx: &mut Transaction<'_, DB>,
    event: &Event,
    now: WallTime,
) -> Result<i64, StoreError> {
    DB::insert_event(&mut **tx, event, now).await.map_err(StoreError::during("enqueue an event"))
}

/// Claims up to `max` due rows for `owner` until `now + lease`: oldest first, per key strictly in
/// order. Only the first pending row of a key is ever handed out; while it is leased or waits, its
/// key yields nothing. `owner` must be unique to the relay, not to the host.
///
/// # Errors
/// What the database said.
pub async fn claim<DB: Backend>(
    store: &Store<DB>,
    owner: &str,
    max: u32,
    lease: Duration,
    now: impl Now,
) -> Result<Vec<Claimed>, StoreError> {
    let failed = || StoreError::during("claim outbox rows");
    // Looking first keeps an idle relay from taking the write lock at each poll.
    let mut conn = store.read_connection("claim outbox rows").await?;
    if !DB::has_due_events(&mut conn, now.now()).await.map_err(failed())? {
        return Ok(Vec::new());
    }
    drop(conn);
    let mut tx = store.begin().await?;
    let now = now.now();
    let claimed =
        DB::claim_events(&mut tx, owner, max, now.plus(lease), now).await.map_err(failed())?;
    tx.commit().await.map_err(failed())?;
    Ok(claimed)
}

/// Records that the broker has confirmed these rows; how many. Rows that `owner` no longer holds are
/// left alone: whoever holds them now publishes them again, under the same id.
///
/// # Errors
/// What the database said.
pub async fn confirmed<DB: Backend>(
    store: &Store<DB>,
    owner: &str,
    rows: &[i64],
    now: WallTime,
) -> Result<u64, StoreError> {
    let mut conn = store.write_connection("confirm outbox rows").await?;
    let confirmed = DB::confirm_events(&mut conn, owner, rows, now).await;
    confirmed.map_err(StoreError::during("confirm outbox rows"))
}

/// Gives a row back to be tried again at `due`; its key waits until then. `error` is kept for people.
///
/// # Errors
/// [`StoreError::Fenced`] when `owner` no longer holds the row, else what the database said.
pub async fn postpone<DB: Backend>(
    store: &Store<DB>,
    owner: &str,
    row: i64,
    due: WallTime,
    error: &str,
) -> Result<(), StoreError> {
    let operation = "postpone an outbox row";
    let mut conn = store.write_connection(operation).await?;
    let postponed = DB::postpone_event(&mut conn, owner, row, due, error).await;
    match postponed.map_err(StoreError::during(operation))? {
        0 => Err(StoreError::Fenced { operation }),
        _ => Ok(()),
    }
}

/// Gives back everything that `owner` holds, for a shutdown in order; how many rows.
///
/// # Errors
/// What the database said.
pub async fn release_all<DB: Backend>(store: &Store<DB>, owner: &str) -> Result<u64, StoreError> {
    let mut conn = store.write_connection("release outbox rows").await?;
    let released = DB::release_events(&mut conn, owner).await;
    released.map_err(StoreError::during("release outbox rows"))
}

/// Makes postponed rows due at once; how many. Leased and confirmed rows are left alone.
///
/// # Errors
/// What the database said.
pub async fn requeue<DB: Backend>(
    store: &Store<DB>,
    rows: &[i64],
    now: WallTime,
) -> Result<u64, StoreError> {
    let mut conn = store.write_connection("requeue outbox rows").await?;
    let requeued = DB::requeue_events(&mut conn, rows, now).await;
    requeued.map_err(StoreError::during("requeue outbox rows"))
}

/// What waits.
///
/// # Errors
/// What the database said.
pub async fn stats<DB: Backend>(store: &Store<DB>) -> Result<OutboxStats, StoreError> {
    let mut conn = store.read_connection("count outbox rows").await?;
    DB::count_events(&mut conn).await.map_err(StoreError::during("count outbox rows"))
}

/// Up to `max` pending rows, oldest first.
///
/// # Errors
/// What the database said.
pub async fn list<DB: Backend>(store: &Store<DB>, max: u32) -> Result<Vec<Listed>, StoreError> {
    let mut conn = store.read_connection("list outbox rows").await?;
    DB::list_events(&mut conn, max).await.map_err(StoreError::during("list outbox rows"))
}

/// Forgets confirmed rows older than `before`, at most `max` of them. How many were forgotten.
///
/// # Errors
/// What the database said.
pub async fn forget<DB: Backend>(
    store: &Store<DB>,
    before: WallTime,
    max: u32,
) -> Result<u64, StoreError> {
    let mut conn = store.write_connection("forget outbox rows").await?;
    let forgotten = DB::forget_events(&mut conn, before, max).await;
    forgotten.map_err(StoreError::during("forget outbox rows"))
}

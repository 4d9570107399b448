//! Events that leave with the transaction that caused them.
//!
//! A row is pending until the broker has confirmed it; then it leaves the table, which stays small, and
//! a line about it goes to the history. Relays work through a [`RelaySession`].

mod relay;
mod wake;

use std::collections::BTreeMap;

use mamparo_core::message::shards::SHARDS;
use mamparo_core::time::WallTime;

use crate::{Backend, Store, StoreError, Transaction};

pub use relay::{Confirmed, Held, Parked, Recorded, RelaySession, Report, Tenure};
pub(crate) use relay::{FREED_MAX, WOKEN_MAX};
pub use wake::{Ear, Heard};

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

/// An outbox row that a relay has read.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// The row's number; grows with the order of commits on one key.
    pub row: i64,
    /// Its shard.
    pub shard: u16,
    /// The event.
    pub event: Event,
    /// When it was enqueued.
    pub enqueued: WallTime,
    /// Times that the broker did not take it.
    pub tries: u32,
    /// A row of its key before it is parked: it must not leave now.
    pub behind: bool,
}

/// A pending outbox row, as shown to people.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The row's number.
    pub row: i64,
    /// Its shard.
    pub shard: u16,
    /// The event.
    pub event: Event,
    /// When it was enqueued.
    pub enqueued: WallTime,
    /// Times that the broker did not take it.
    pub tries: u32,
    /// Whether and why it waits.
    pub wait: Wait,
    /// The relay that holds its shard.
    pub owner: Option<String>,
    /// What the broker said last.
    pub error: Option<String>,
}

/// Whether and why a pending row waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It does not: it leaves as soon as a relay comes to it.
    Ready,
    /// The broker did not take it; it goes again then.
    Until(WallTime),
    /// Behind a row of its key that waits.
    Behind,
}

/// What stands for [`Wait::Behind`] in the column of times.
pub(crate) const BEHIND: i64 = i64::MAX;

impl Wait {
    pub(crate) const fn of(parked_until: Option<i64>) -> Self {
        match parked_until {
            None => Self::Ready,
            Some(BEHIND) => Self::Behind,
            Some(millis) => Self::Until(WallTime::from_unix_millis(millis)),
        }
    }
}

/// What waits in the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutboxStats {
    /// Rows not yet confirmed by the broker.
    pub pending: u64,
    /// Of those, rows that wait: the broker did not take them or one before them.
    pub parked: u64,
    /// Of those, rows that the broker did not take: one for each parked key.
    pub refused: u64,
    /// When the oldest pending row was enqueued.
    pub oldest: Option<WallTime>,
    /// The same in each shard that has pending rows.
    pub oldest_in: [Option<WallTime>; SHARDS as usize],
}

/// Where an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// Committed, not yet confirmed by the broker.
    Pending,
    /// Confirmed by the broker, and still in the history.
    Published,
}

impl OutboxStats {
    /// Adds a shard's rows: pending, parked and refused ones, and when the oldest was enqueued.
    pub(crate) fn add(&mut self, shard: u16, counts: [u64; 3], oldest: WallTime) {
        let [pending, parked, refused] = counts;
        self.pending += pending;
        self.parked += parked;
        self.refused += refused;
        self.oldest = Some(self.oldest.map_or(oldest, |before| before.min(oldest)));
        if let Some(place) = self.oldest_in.get_mut(usize::from(shard)) {
            *place = Some(oldest);
        }
    }
}

impl Whereabouts {
    pub(crate) const fn of(pending: bool) -> Self {
        if pending { Self::Pending } else { Self::Published }
    }
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
/// On PostgreSQL transactions that write events of one key take turns, from here to their commit: that
/// is what makes the order of the rows the order of the commits. Enqueue late in the transaction, and
/// several keys in one order everywhere (sorted, say): two transactions that take two keys crosswise
/// are a deadlock, which the database ends with 40P01 and which is retried whole.
///
/// # Errors
/// What the database said; the id of an event that is still pending, among others.
pub async fn enqueue<DB: Backend>(
    tx: &mut Transaction<'_, DB>,
    event: &Event,
    now: WallTime,
) -> Result<i64, StoreError> {
    DB::insert_event(&mut **tx, event, now).await.map_err(StoreError::during("enqueue an event"))
}

/// Makes refused rows leave at once; how many. Rows that don't wait, or wait behind another, are left
/// alone.
///
/// # Errors
/// What the database said.
pub async fn requeue<DB: Backend>(store: &Store<DB>, rows: &[i64]) -> Result<u64, StoreError> {
    let failed = || StoreError::during("requeue outbox rows");
    let mut conn = store.write_connection("requeue outbox rows").await?;
    let requeued = DB::requeue_events(&mut conn, rows).await.map_err(failed())?;
    if requeued > 0 {
        // Relays of other processes hear of it; those that don't will poll.
        DB::announce(&mut conn, "").await.map_err(failed())?;
        drop(conn);
        store.wake();
    }
    Ok(requeued)
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

/// Where the event with this id is; `None` when it was never committed, or published longer ago than
/// the relay keeps its history. Answers whether a transaction whose COMMIT got no answer went through.
///
/// # Errors
/// What the database said.
pub async fn find<DB: Backend>(
    store: &Store<DB>,
    id: &str,
) -> Result<Option<Whereabouts>, StoreError> {
    let mut conn = store.read_connection("find an event").await?;
    DB::find_event(&mut conn, id).await.map_err(StoreError::during("find an event"))
}

//! Queue rows of the embedded broker. The broker itself, its words and its loops live in
//! `mamparo-messaging`; here is only what SQL does.
//!
//! Safe for several processes on one file: a delivery is a lease (owner, epoch, expiry), and a
//! dead owner's messages come back when its lease runs out.

use std::collections::BTreeMap;
use std::time::Duration;

use mamparo_core::time::WallTime;

use crate::{Backend, Store, StoreError};

/// A message as it lies in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueMessage {
    /// The message id, kept over all hops.
    pub id: String,
    /// The event type.
    pub kind: String,
    /// The exchange it was first published to.
    pub exchange: String,
    /// The routing key it was first published with.
    pub routing_key: String,
    /// Key for ordering, the order's id say.
    pub key: String,
    /// All headers.
    pub headers: BTreeMap<String, String>,
    /// The body, untouched.
    pub body: Vec<u8>,
}

/// A message handed out under a lease.
#[derive(Debug, Clone)]
pub struct Leased {
    /// The row.
    pub row: i64,
    /// Grows with each hand-out; an acknowledgement of an older one changes nothing.
    pub epoch: i64,
    /// Was it handed out before?
    pub redelivered: bool,
    /// The message.
    pub message: QueueMessage,
}

/// A queue's arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueSpec {
    /// The queue's name.
    pub name: String,
    /// Messages leave after this long …
    pub message_ttl: Option<Duration>,
    /// … to this queue (dead-lettering by name; never to a shared exchange).
    pub dead_letter_to: Option<String>,
}

/// A message that lies in a queue, as shown to people.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The row.
    pub row: i64,
    /// When it came to this queue.
    pub since: WallTime,
    /// The message.
    pub message: QueueMessage,
}

/// Which messages an operation on a queue is about.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// At most this many, oldest first.
    pub max: u32,
    /// Only this event type.
    pub kind: Option<String>,
    /// Only these message ids; empty for all.
    pub ids: Vec<String>,
}

/// Declares a queue; doing it again with the same arguments changes nothing.
///
/// # Errors
/// What the database said.
pub async fn declare<DB: Backend>(_store: &Store<DB>, _spec: &QueueSpec) -> Result<(), StoreError> {
    todo!()
}

/// Binds `queue` to `exchange` for routing keys that match `pattern` (`*` one word, `#` any).
///
/// # Errors
/// What the database said.
pub async fn bind<DB: Backend>(
    _store: &Store<DB>,
    _exchange: &str,
    _pattern: &str,
    _queue: &str,
) -> Result<(), StoreError> {
    todo!()
}

/// Publishes to every bound queue, or to the one named by the routing key when `exchange` is empty,
/// in one transaction. How many queues took it; 0 means it went nowhere.
///
/// # Errors
/// What the database said.
pub async fn publish<DB: Backend>(
    _store: &Store<DB>,
    _exchange: &str,
    _routing_key: &str,
    _message: &QueueMessage,
    _now: WallTime,
) -> Result<u32, StoreError> {
    todo!()
}

/// Leases up to `max` visible messages, oldest first; messages whose TTL is over are moved first.
///
/// # Errors
/// What the database said.
pub async fn lease<DB: Backend>(
    _store: &Store<DB>,
    _queue: &str,
    _owner: &str,
    _max: u32,
    _lease: Duration,
    _now: WallTime,
) -> Result<Vec<Leased>, StoreError> {
    todo!()
}

/// Renews all leases of `owner`.
///
/// # Errors
/// What the database said.
pub async fn renew<DB: Backend>(
    _store: &Store<DB>,
    _owner: &str,
    _lease: Duration,
    _now: WallTime,
) -> Result<u64, StoreError> {
    todo!()
}

/// Removes a message for good. `false` when the lease was not ours any more (nothing changed).
///
/// # Errors
/// What the database said.
pub async fn ack<DB: Backend>(
    _store: &Store<DB>,
    _row: i64,
    _epoch: i64,
) -> Result<bool, StoreError> {
    todo!()
}

/// Gives a message back to its place, to be handed out again from `visible` on.
///
/// # Errors
/// What the database said.
pub async fn give_back<DB: Backend>(
    _store: &Store<DB>,
    _row: i64,
    _epoch: i64,
    _visible: WallTime,
) -> Result<bool, StoreError> {
    todo!()
}

/// Gives back everything that `owner` holds.
///
/// # Errors
/// What the database said.
pub async fn give_back_all<DB: Backend>(
    _store: &Store<DB>,
    _owner: &str,
) -> Result<u64, StoreError> {
    todo!()
}

/// How many messages lie in a queue, leased ones included.
///
/// # Errors
/// What the database said.
pub async fn depth<DB: Backend>(_store: &Store<DB>, _queue: &str) -> Result<u64, StoreError> {
    todo!()
}

/// Messages in a queue, oldest first, without taking them.
///
/// # Errors
/// What the database said.
pub async fn list<DB: Backend>(
    _store: &Store<DB>,
    _queue: &str,
    _selection: &Selection,
) -> Result<Vec<Listed>, StoreError> {
    todo!()
}

/// Moves one message to another queue with new headers, atomically. `false` when it is gone or leased.
///
/// # Errors
/// What the database said.
pub async fn move_to<DB: Backend>(
    _store: &Store<DB>,
    _row: i64,
    _to: &str,
    _headers: &BTreeMap<String, String>,
    _now: WallTime,
) -> Result<bool, StoreError> {
    todo!()
}

/// Takes one message out of its queue into the archive, with who did it and why.
/// `false` when it is gone or leased.
///
/// # Errors
/// What the database said.
pub async fn discard<DB: Backend>(
    _store: &Store<DB>,
    _row: i64,
    _actor: &str,
    _reason: &str,
    _now: WallTime,
) -> Result<bool, StoreError> {
    todo!()
}

/// The names of all queues, sorted. For tools that say which queues there are.
///
/// # Errors
/// What the database said.
pub async fn names<DB: Backend>(_store: &Store<DB>) -> Result<Vec<String>, StoreError> {
    todo!()
}

//! A row written before the handler runs, so that a message that kills the process is known.
//!
//! A start without an end convicts a message only when its owner is dead. The owner is an opening of
//! the store: a start of this very opening was cut off, because the process lives, and a start that
//! another one keeps renewing is a copy of the same message in other hands.

use std::time::Duration;

use mamparo_core::time::WallTime;

use crate::{Backend, Now, Store, StoreError, Transaction};

/// One handler's run on one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt<'a> {
    /// Whose handler.
    pub consumer: &'a str,
    /// The message.
    pub message_id: &'a str,
    /// The opening of the store that runs it.
    pub owner: &'a str,
}

impl<'a> Attempt<'a> {
    /// The run of `consumer` on `message_id` in this process.
    #[must_use]
    pub fn of<DB: Backend>(store: &'a Store<DB>, consumer: &'a str, message_id: &'a str) -> Self {
        Self { consumer, message_id, owner: store.opening() }
    }
}

/// Records that `consumer` starts on `message_id`; answers how many other owners died in it.
///
/// The owner counts as alive for `alive`; [`renew`] it more often than that. No longer than the
/// message's own lease, or the message comes back before its owner is known to be dead.
///
/// # Errors
/// What the database said.
pub async fn started<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message_id: &str,
    alive: Duration,
    now: impl Now,
) -> Result<u32, StoreError> {
    let mut conn = store.write_connection("record an attempt").await?;
    let (attempt, now) = (Attempt::of(store, consumer, message_id), now.now());
    let crashes = DB::start_attempt(&mut conn, attempt, now.plus(alive), now).await;
    crashes.map_err(StoreError::during("record an attempt"))
}

/// Until when another owner's start of `message_id` counts as alive, if one does: it may be running
/// there, or its process has just died and nobody can know yet.
///
/// # Errors
/// What the database said.
pub async fn alive_elsewhere<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message_id: &str,
    now: WallTime,
) -> Result<Option<WallTime>, StoreError> {
    let mut conn = store.read_connection("look for attempts").await?;
    let attempt = Attempt::of(store, consumer, message_id);
    let until = DB::attempt_elsewhere(&mut conn, attempt, now).await;
    until.map_err(StoreError::during("look for attempts"))
}

/// Says that everything that this store's `consumer` has started still runs.
///
/// # Errors
/// What the database said.
pub async fn renew<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    alive: Duration,
    now: impl Now,
) -> Result<(), StoreError> {
    let mut conn = store.write_connection("renew attempts").await?;
    let until = now.now().plus(alive);
    let renewed = DB::renew_attempts(&mut conn, consumer, store.opening(), until).await;
    renewed.map_err(StoreError::during("renew attempts"))
}

/// Records that the handler came to an end, whatever it said. That clears the deaths of others, too:
/// the message did not kill this one.
///
/// # Errors
/// What the database said.
pub async fn ended<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message_id: &str,
    now: WallTime,
) -> Result<(), StoreError> {
    let mut conn = store.write_connection("end an attempt").await?;
    let ended = DB::end_attempt(&mut conn, Attempt::of(store, consumer, message_id), now).await;
    ended.map_err(StoreError::during("end an attempt"))
}

/// As [`ended`], in the handler's own transaction: it saves a commit, and a crash before that
/// commit still counts.
///
/// # Errors
/// What the database said.
pub async fn ended_in<DB: Backend>(
    tx: &mut Transaction<'_, DB>,
    attempt: Attempt<'_>,
    now: WallTime,
) -> Result<(), StoreError> {
    let ended = DB::end_attempt(&mut **tx, attempt, now).await;
    ended.map_err(StoreError::during("end an attempt"))
}

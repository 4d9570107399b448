//! What is known of a message that waits in its broker's own queue, where nobody can write on it.
//!
//! A broker that hands a rejected message out again after a while hands it out as it was: attempts and
//! the last failure can't travel in its headers. So the headers that a copy would have stand here, in a
//! row that is written before the rejection and laid over the message when it comes back.
//!
//! The row also tells an innocent from a suspect. The broker marks whatever it hands out again, whether
//! it was rejected in good order or its process died. A row without an owner was written for a
//! rejection; one of another opening of the store was in hand there, and was never given back.

use mamparo_core::message::headers::Headers;
use mamparo_core::time::WallTime;

use crate::attempts::Attempt;
use crate::{Backend, Store, StoreError};

/// A message that has come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recalled {
    /// The headers that it goes on with.
    pub headers: Headers,
    /// Times that it was given back to the broker since it came there.
    pub returns: u32,
    /// Another opening of the store had it in hand and has not given it back.
    pub suspect: bool,
}

/// Writes down that `consumer` is about to give `message_id` back, for the time `returns` since it came
/// to its queue, with the headers that it is to go on with.
///
/// # Errors
/// What the database said.
pub async fn keep<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message_id: &str,
    headers: &Headers,
    returns: u32,
    now: WallTime,
) -> Result<(), StoreError> {
    let mut conn = store.write_connection("keep a retry").await?;
    let kept = DB::keep_retry(&mut conn, (consumer, message_id), headers, returns, now).await;
    kept.map_err(StoreError::during("keep a retry"))
}

/// What is known of `message_id`, which has come back to `consumer` and is in this store's hand from
/// now on. `None` for one that was never given back.
///
/// # Errors
/// What the database said.
pub async fn recall<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message_id: &str,
) -> Result<Option<Recalled>, StoreError> {
    let operation = "recall a retry";
    let mut conn = store.write_connection(operation).await?;
    let read = DB::read_retry(&mut conn, (consumer, message_id)).await;
    let Some((headers, returns, owner)) = read.map_err(StoreError::during(operation))? else {
        return Ok(None);
    };
    let ours = owner.as_deref() == Some(store.opening());
    if !ours {
        let attempt = Attempt::of(store, consumer, message_id);
        DB::own_retry(&mut conn, attempt).await.map_err(StoreError::during(operation))?;
    }
    Ok(Some(Recalled { headers, returns, suspect: owner.is_some() && !ours }))
}

/// Forgets `message_id`, which will not come back.
///
/// # Errors
/// What the database said.
pub async fn done<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message_id: &str,
) -> Result<(), StoreError> {
    let mut conn = store.write_connection("end a retry").await?;
    let ended = DB::drop_retry(&mut conn, (consumer, message_id)).await;
    ended.map_err(StoreError::during("end a retry"))
}

/// How many messages of `consumer` wait at the broker, and since when the oldest.
///
/// # Errors
/// What the database said.
pub async fn stats<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
) -> Result<(u64, Option<WallTime>), StoreError> {
    let mut conn = store.read_connection("count retries").await?;
    let counted = DB::count_retries(&mut conn, consumer).await;
    counted.map_err(StoreError::during("count retries"))
}

/// Forgets rows that are as they are since before `before`, at most `max`; how many. Rows of messages
/// that are done go by themselves; what is left belongs to messages whose process died between their
/// settlement and that, or which the broker gave up. Keep them for longer than any message waits: 24 h.
///
/// # Errors
/// What the database said.
pub async fn forget<DB: Backend>(
    store: &Store<DB>,
    before: WallTime,
    max: u32,
) -> Result<u64, StoreError> {
    let mut conn = store.write_connection("forget retries").await?;
    let forgotten = DB::forget_retries(&mut conn, before, max).await;
    forgotten.map_err(StoreError::during("forget retries"))
}

//! A row written before the handler runs, so that a message that kills the process is known.

use mamparo_core::time::WallTime;

use crate::{Backend, Store, StoreError, Transaction};

/// Records that `consumer` starts on `message_id`; answers how many earlier starts never ended
/// (the process died in them).
///
/// # Errors
/// What the database said.
pub async fn started<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message_id: &str,
    now: WallTime,
) -> Result<u32, StoreError> {
    let mut conn = store.write_connection("record an attempt").await?;
    let earlier = DB::start_attempt(&mut conn, consumer, message_id, now).await;
    earlier.map_err(StoreError::during("record an attempt"))
}

/// Records that the handler came to an end, whatever it said.
///
/// # Errors
/// What the database said.
pub async fn ended<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message_id: &str,
) -> Result<(), StoreError> {
    let mut conn = store.write_connection("end an attempt").await?;
    let ended = DB::end_attempt(&mut conn, consumer, message_id).await;
    ended.map_err(StoreError::during("end an attempt"))
}

/// As [`ended`], in the handler's own transaction: it saves a commit, and a crash before that
/// commit still counts.
///
/// # Errors
/// What the database said.
pub async fn ended_in<DB: Backend>(
    tx: &mut Transaction<'_, DB>,
    consumer: &str,
    message_id: &str,
) -> Result<(), StoreError> {
    let ended = DB::end_attempt(&mut **tx, consumer, message_id).await;
    ended.map_err(StoreError::during("end an attempt"))
}

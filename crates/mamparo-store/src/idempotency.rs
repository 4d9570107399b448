//! Idempotency keys: the second request gets the first one's answer.

use std::time::Duration;

use mamparo_core::message::idempotency::{self as rules, Decision, Report, Unfit};
use mamparo_core::time::WallTime;

use crate::{Backend, Now, Store, StoreError, Transaction};

/// An answer as it is kept and replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResponse {
    /// The HTTP status.
    pub status: u16,
    /// Headers worth replaying (`location`, `content-type`).
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// Proof that this request owns its key; needed to complete or release it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimToken {
    /// Who asked; keys of different callers never meet.
    pub caller: String,
    /// The key.
    pub key: String,
    /// Fences off an owner whose lease ran out.
    pub epoch: i64,
}

/// What became of the wish to use a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// Ours: do the work, then [`complete`] it in the same transaction.
    Granted(ClaimToken),
    /// Another request holds it right now (409).
    InProgress {
        /// When its lease ends.
        until: WallTime,
    },
    /// Done before: replay this answer.
    Replay(StoredResponse),
    /// The key was used for another payload (422); [`fingerprint`] tells which.
    Mismatch,
}

/// Claims `key` of `caller` for a request with `fingerprint`, atomically.
///
/// The owner has `lease` to finish; when it dies, the next request after that takes over. The answer
/// is kept for `retention` from the grant on.
///
/// # Errors
/// What the database said.
pub async fn claim<DB: Backend>(
    store: &Store<DB>,
    caller: &str,
    key: &str,
    fingerprint: &str,
    lease: Duration,
    retention: Duration,
    now: impl Now,
) -> Result<Claim, StoreError> {
    let failed = || StoreError::during("claim an idempotency key");
    let mut tx = store.begin().await?;
    let record = DB::claim_key(&mut tx, caller, key).await.map_err(failed())?;
    // Only now, because another request may have held the key.
    let now = now.now();
    let claim = match rules::ask(now, record.as_ref(), fingerprint, lease, retention) {
        Decision::Grant { record, reason: _ } => {
            DB::save_key(&mut tx, caller, key, &record, None).await.map_err(failed())?;
            let (caller, key) = (caller.to_owned(), key.to_owned());
            Claim::Granted(ClaimToken { caller, key, epoch: record.epoch })
        }
        Decision::InProgress { until } => Claim::InProgress { until },
        Decision::Replay => {
            Claim::Replay(DB::load_response(&mut tx, caller, key).await.map_err(failed())?)
        }
        Decision::Mismatch => Claim::Mismatch,
    };
    tx.commit().await.map_err(failed())?;
    Ok(claim)
}

/// The fingerprint that `key` of `caller` stands for, to be shown beside the one that came.
///
/// # Errors
/// What the database said.
pub async fn fingerprint<DB: Backend>(
    store: &Store<DB>,
    caller: &str,
    key: &str,
) -> Result<Option<String>, StoreError> {
    let operation = "look up an idempotency key";
    let mut conn = store.read_connection(operation).await?;
    let record = DB::load_key(&mut conn, caller, key).await;
    let record = record.map_err(StoreError::during(operation))?;
    Ok(record.map(|record| record.fingerprint))
}

/// Keeps the answer, in the transaction of the work itself.
///
/// # Errors
/// [`StoreError::Fenced`] when another request took the key over meanwhile: roll back.
/// [`StoreError::Settled`] when this owner completed or released it before.
pub async fn complete<DB: Backend>(
    tx: &mut Transaction<'_, DB>,
    token: &ClaimToken,
    response: &StoredResponse,
    now: WallTime,
) -> Result<(), StoreError> {
    let operation = "keep the answer of an idempotency key";
    settle(tx, token, Report::Complete, Some((response, now)), operation).await
}

/// Gives the key back: nothing was done, the next request may try. A key that is completed, or
/// that another request has taken over, is left alone.
///
/// # Errors
/// What the database said.
pub async fn release<DB: Backend>(store: &Store<DB>, token: &ClaimToken) -> Result<(), StoreError> {
    let operation = "release an idempotency key";
    let mut tx = store.begin().await?;
    match settle(&mut tx, token, Report::Release, None, operation).await {
        Ok(()) => tx.commit().await.map_err(StoreError::during(operation)),
        Err(StoreError::Fenced { .. } | StoreError::Settled { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Forgets keys whose retention ended before `before`, at most `max` of them; how many.
///
/// Leave a day or so between: a key that is forgotten no longer fences off its former owners.
///
/// # Errors
/// What the database said.
pub async fn forget<DB: Backend>(
    store: &Store<DB>,
    before: WallTime,
    max: u32,
) -> Result<u64, StoreError> {
    let mut conn = store.write_connection("forget idempotency keys").await?;
    let forgotten = DB::forget_keys(&mut conn, before, max).await;
    forgotten.map_err(StoreError::during("forget idempotency keys"))
}

async fn settle<DB: Backend>(
    tx: &mut Transaction<'_, DB>,
    token: &ClaimToken,
    report: Report,
    answer: Option<(&StoredResponse, WallTime)>,
    operation: &'static str,
) -> Result<(), StoreError> {
    let ClaimToken { caller, key, epoch } = token;
    let record = DB::lock_key(&mut **tx, caller, key).await;
    let record = record.map_err(StoreError::during(operation))?;
    let record = rules::tell(record.as_ref(), *epoch, report).map_err(|unfit| match unfit {
        Unfit::Fenced => StoreError::Fenced { operation },
        Unfit::AlreadyCompleted | Unfit::AlreadyReleased => StoreError::Settled { operation },
    })?;
    let saved = DB::save_key(&mut **tx, caller, key, &record, answer).await;
    saved.map_err(StoreError::during(operation))
}

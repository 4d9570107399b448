//! Messages that wait for another attempt in the service's own database.
//!
//! The row commits before the broker is told that the message is done, so nothing is lost between
//! the two; a crash in between brings the message again, and its id finds the row. Delays are
//! exact, by the database's clock, and never early. A row goes in the transaction of the handler
//! that was done with it.
//!
//! While a message waits, later ones of its key wait behind it: only the first row of a key is ever
//! handed out. An empty key asks for no order.

use std::time::Duration;

use mamparo_core::message::selection::Sift;
use mamparo_core::time::WallTime;

use crate::failed::{self, Status, clean};
use crate::inbox::Seen;
use crate::queue::QueueMessage;
use crate::{Backend, Now, Store, StoreError, Transaction};

/// How long a row waits, and how often it has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Not to be handed out before.
    pub due: WallTime,
    /// Attempts that have ended without success.
    pub attempts: u32,
    /// Now.
    pub now: WallTime,
}

/// One failed attempt, kept with the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong.
    pub error: String,
    /// Where.
    pub host: String,
    /// In which version of the program.
    pub version: String,
}

impl Failure {
    /// The entry of a row's history.
    pub(crate) fn to_json(&self, wait: &Wait) -> serde_json::Value {
        serde_json::json!({
            "at": wait.now.to_string(),
            "attempt": wait.attempts,
            "error": clean(&self.error),
            "host": clean(&self.host),
            "version": clean(&self.version),
        })
    }
}

/// A message on its way into the inbox.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Whose inbox.
    pub consumer: &'a str,
    /// The message.
    pub message_id: &'a str,
    /// Its type.
    pub kind: &'a str,
    /// Its key, not empty.
    pub key: &'a str,
}

/// A row handed out under a lease.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// The row.
    pub row: i64,
    /// Grows with each hand-out; a report of an older one changes nothing.
    pub epoch: i64,
    /// An earlier hand-out ran out: its process may have died of it.
    pub suspect: bool,
    /// The message, with the headers that tell its attempts.
    pub message: QueueMessage,
}

/// A waiting message as shown to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedRow {
    /// The row; rows of one key are handed out in this order.
    pub row: i64,
    /// The first of its key: it goes next. Others wait for it.
    pub first: bool,
    /// When it may be handed out, or, while it is in hand, when its lease ends.
    pub due: WallTime,
    /// Since when it waits.
    pub since: WallTime,
    /// Attempts that have ended without success.
    pub attempts: u32,
    /// It is in a consumer's hand.
    pub in_hand: bool,
    /// Its failures as a JSON array: `at`, `attempt`, `error`, `host`, `version`.
    pub history: String,
    /// The message.
    pub message: QueueMessage,
}

/// The first waiting message of a key, as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct First {
    /// Its row.
    pub row: ParkedRow,
    /// Messages of its key that wait behind it; none where there is no key.
    pub behind: u64,
}

/// An operator's decision to give a waiting message up.
#[derive(Debug, Clone, Copy)]
pub struct Skip<'a> {
    /// Who.
    pub actor: &'a str,
    /// Why.
    pub reason: &'a str,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skipped {
    /// It is a failed message now, and the next one of its key is the first.
    Moved,
    /// An earlier one of its key waits: that one goes first.
    NotFirst,
    /// It is in a consumer's hand.
    InHand,
    /// It does not wait, or not any more.
    Gone,
}

/// What became of a message that was to wait behind its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// It waits.
    Waits,
    /// Nothing of its key waits any more: it may be handled.
    Free,
}

impl ParkedRow {
    /// The last entry of the history; null for a message that only waits behind another.
    fn last_failure(&self) -> serde_json::Value {
        let history: Result<Vec<serde_json::Value>, _> = serde_json::from_str(&self.history);
        history.ok().and_then(|mut entries| entries.pop()).unwrap_or_default()
    }

    /// What the last attempt said; `None` for a message that only waits behind another.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.last_failure().get("error")?.as_str().map(str::to_owned)
    }
}

/// The reason of a message that an operator gave up.
pub const SKIPPED: &str = "skipped";

/// How long an operator's own transaction may take.
const SEIZED: Duration = Duration::from_secs(60);

const PARK: &str = "park a message";
const LOOK: &str = "look for parked messages";

/// Writes the row of a message that failed; `false` when the message waits already. Acknowledge the
/// original after the commit, in both cases.
///
/// # Errors
/// What the database said.
pub async fn park<DB: Backend>(
    tx: &mut Transaction<'_, DB>,
    consumer: &str,
    message: &QueueMessage,
    wait: &Wait,
    failure: &Failure,
) -> Result<bool, StoreError> {
    lock::<DB>(tx, consumer, &message.key, PARK).await?;
    let parked = DB::park(&mut **tx, consumer, message, wait, Some(failure)).await;
    parked.map_err(StoreError::during(PARK))
}

/// Lets a message wait behind the ones of its key, if any of them waits.
///
/// # Errors
/// What the database said.
pub async fn park_behind<DB: Backend>(
    tx: &mut Transaction<'_, DB>,
    consumer: &str,
    message: &QueueMessage,
    wait: &Wait,
) -> Result<Behind, StoreError> {
    lock::<DB>(tx, consumer, &message.key, PARK).await?;
    let waits = DB::is_parked(&mut **tx, consumer, &message.key).await;
    if message.key.is_empty() || !waits.map_err(StoreError::during(PARK))? {
        return Ok(Behind::Free);
    }
    let parked = DB::park(&mut **tx, consumer, message, wait, None).await;
    parked.map_err(StoreError::during(PARK))?;
    Ok(Behind::Waits)
}

/// Of `messages` (id, key), the ids of those that wait themselves or have a key of which another one
/// waits. A hint that saves work; only a transaction decides.
///
/// # Errors
/// What the database said.
pub async fn look_up<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    messages: &[(&str, &str)],
) -> Result<Vec<String>, StoreError> {
    let mut conn = store.read_connection(LOOK).await?;
    DB::look_up(&mut conn, consumer, messages).await.map_err(StoreError::during(LOOK))
}

/// As [`inbox::insert`](crate::inbox::insert), unless a message of the entry's key waits: `None` then,
/// and the transaction is to be rolled back. One statement, so it costs no more than the inbox alone.
///
/// # Errors
/// What the database said.
pub async fn insert_inbox<DB: Backend>(
    tx: &mut Transaction<'_, DB>,
    entry: Entry<'_>,
    now: WallTime,
) -> Result<Option<Seen>, StoreError> {
    let inserted = DB::insert_inbox_unless_parked(&mut **tx, entry, now).await;
    let duplicates = inserted.map_err(StoreError::during("insert into the inbox"))?;
    Ok(duplicates.map(|count| if count == 0 { Seen::Fresh } else { Seen::Duplicate }))
}

/// Leases up to `max` due rows of `consumer` to `owner`, which must be unique to an opening of the
/// consumer. No row before its time, and of each key only the first.
///
/// # Errors
/// What the database said.
pub async fn claim<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    owner: &str,
    max: u32,
    lease: Duration,
    now: impl Now,
) -> Result<Vec<Claimed>, StoreError> {
    const CLAIM: &str = "claim parked messages";
    let mut conn = store.write_connection(CLAIM).await?;
    let now = now.now();
    let claimed = DB::claim_parked(&mut conn, consumer, owner, max, now.plus(lease), now).await;
    claimed.map_err(StoreError::during(CLAIM))
}

/// When the next row of `consumer` can be claimed, or the lease of one in hand ends.
///
/// # Errors
/// What the database said.
pub async fn next_due<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
) -> Result<Option<WallTime>, StoreError> {
    let mut conn = store.read_connection(LOOK).await?;
    DB::next_parked(&mut conn, consumer).await.map_err(StoreError::during(LOOK))
}

/// Keeps `rows` in the hand of `owner` for another `lease`; how many still were.
///
/// # Errors
/// What the database said.
pub async fn renew<DB: Backend>(
    store: &Store<DB>,
    rows: &[i64],
    owner: &str,
    lease: Duration,
    now: impl Now,
) -> Result<u64, StoreError> {
    const RENEW: &str = "renew leases of parked messages";
    let mut conn = store.write_connection(RENEW).await?;
    let until = now.now().plus(lease);
    let renewed = DB::renew_parked(&mut conn, rows, owner, until).await;
    renewed.map_err(StoreError::during(RENEW))
}

/// The claimed message failed once more and waits again; its `message` carries the new headers.
/// `false` when the lease was lost, and nothing was changed.
///
/// # Errors
/// What the database said.
pub async fn park_again<DB: Backend>(
    store: &Store<DB>,
    claim: (i64, i64),
    message: &QueueMessage,
    wait: &Wait,
    failure: &Failure,
) -> Result<bool, StoreError> {
    let mut conn = store.write_connection(PARK).await?;
    let parked = DB::park_again(&mut conn, claim.0, claim.1, message, wait, failure).await;
    parked.map_err(StoreError::during(PARK))
}

/// Gives a claimed row back without a verdict, due at `due`. `false` when the lease was lost.
///
/// # Errors
/// What the database said.
pub async fn release<DB: Backend>(
    store: &Store<DB>,
    claim: (i64, i64),
    due: WallTime,
) -> Result<bool, StoreError> {
    const RELEASE: &str = "give a parked message back";
    let mut conn = store.write_connection(RELEASE).await?;
    let released = DB::release_parked(&mut conn, claim.0, claim.1, due).await;
    released.map_err(StoreError::during(RELEASE))
}

/// Gives back everything that `owner` has in hand; how much.
///
/// # Errors
/// What the database said.
pub async fn release_all<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    owner: &str,
    now: WallTime,
) -> Result<u64, StoreError> {
    const RELEASE: &str = "give parked messages back";
    let mut conn = store.write_connection(RELEASE).await?;
    let released = DB::release_all_parked(&mut conn, consumer, owner, now).await;
    released.map_err(StoreError::during(RELEASE))
}

/// Takes the claimed row away, in the transaction of what was done with it: the handler's, or the
/// record of a failed message. The next message of its key is then the first. `false` when the lease
/// was lost: roll back, somebody else has the message.
///
/// # Errors
/// What the database said.
pub async fn remove<DB: Backend>(
    tx: &mut Transaction<'_, DB>,
    consumer: &str,
    key: &str,
    claim: (i64, i64),
) -> Result<bool, StoreError> {
    const REMOVE: &str = "remove a parked message";
    lock::<DB>(tx, consumer, key, REMOVE).await?;
    let removed = DB::remove_parked(&mut **tx, claim.0, claim.1).await;
    removed.map_err(StoreError::during(REMOVE))
}

/// Lets waiting messages go now: one message, or those of a key, or all of the consumer; how many.
/// Those in hand stay there, and order within a key stays.
///
/// # Errors
/// What the database said.
pub async fn make_due<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message_id: Option<&str>,
    key: Option<&str>,
    now: WallTime,
) -> Result<u64, StoreError> {
    const DUE: &str = "let parked messages go";
    let mut conn = store.write_connection(DUE).await?;
    DB::make_due(&mut conn, consumer, message_id, key, now).await.map_err(StoreError::during(DUE))
}

/// Waiting messages after row `after` (0 for the first ones), at most `max`.
///
/// # Errors
/// What the database said.
pub async fn list<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    after: i64,
    max: u32,
) -> Result<Vec<ParkedRow>, StoreError> {
    let mut conn = store.read_connection(LOOK).await?;
    DB::list_parked(&mut conn, consumer, after, max).await.map_err(StoreError::during(LOOK))
}

/// How many messages wait, and since when the oldest does.
///
/// # Errors
/// What the database said.
pub async fn stats<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
) -> Result<(u64, Option<WallTime>), StoreError> {
    let mut conn = store.read_connection(LOOK).await?;
    DB::parked_stats(&mut conn, consumer).await.map_err(StoreError::during(LOOK))
}

/// Consumers of which messages wait, by name.
///
/// # Errors
/// What the database said.
pub async fn consumers<DB: Backend>(store: &Store<DB>) -> Result<Vec<String>, StoreError> {
    let mut conn = store.read_connection(LOOK).await?;
    DB::parked_consumers(&mut conn).await.map_err(StoreError::during(LOOK))
}

/// What goes next: the first waiting message of each key, and every one without a key, after row
/// `after` (0 for the first ones), at most `max`.
///
/// # Errors
/// What the database said.
pub async fn first<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    after: i64,
    max: u32,
) -> Result<Vec<First>, StoreError> {
    let mut conn = store.read_connection(LOOK).await?;
    let rows = DB::list_first_parked(&mut conn, consumer, after, max).await;
    let rows = rows.map_err(StoreError::during(LOOK))?.into_iter();
    Ok(rows.map(|(row, behind)| First { row, behind }).collect())
}

/// The waiting message with this id, and the first one of this key; whichever are given.
///
/// # Errors
/// What the database said.
pub async fn find<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message_id: Option<&str>,
    key: Option<&str>,
) -> Result<Option<ParkedRow>, StoreError> {
    let mut conn = store.read_connection(LOOK).await?;
    let found = DB::find_parked(&mut conn, consumer, message_id, key).await;
    found.map_err(StoreError::during(LOOK))
}

/// Gives a waiting message up, so that those behind it go on: it becomes a failed message of reason
/// `skipped`, with who did it and why in its history, in one transaction. A message in hand stays;
/// whether it is done is being found out.
///
/// # Errors
/// What the database said; nothing is changed then.
pub async fn skip<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message_id: &str,
    skip: Skip<'_>,
    now: impl Now,
) -> Result<Skipped, StoreError> {
    const SKIP: &str = "skip a parked message";
    let said = || StoreError::during(SKIP);
    let Some(found) = find(store, consumer, Some(message_id), None).await? else {
        return Ok(Skipped::Gone);
    };
    let mut tx = store.begin().await?;
    lock::<DB>(&mut tx, consumer, &found.message.key, SKIP).await?;
    let now = now.now();
    let until = now.plus(SEIZED);
    let seized = DB::seize_parked(&mut tx, found.row, skip.actor, until, now).await;
    let Some(epoch) = seized.map_err(said())? else {
        let again = DB::find_parked(&mut tx, consumer, Some(message_id), None).await;
        return Ok(match again.map_err(said())? {
            None => Skipped::Gone,
            Some(row) if row.first => Skipped::InHand,
            Some(_) => Skipped::NotFirst,
        });
    };
    let last = found.last_failure();
    let text = |name: &str| last.get(name).and_then(serde_json::Value::as_str).unwrap_or_default();
    let failure = failed::Failure {
        consumer,
        message: &found.message,
        reason: SKIPPED,
        error: text("error"),
        first_failure: None,
        last_failure: Some(now),
        attempts: found.attempts,
        host: text("host"),
        version: text("version"),
    };
    failed::record(&mut tx, &failure, now).await?;
    let sift = Sift { ids: vec![message_id.to_owned()], ..Sift::default() };
    let query = failed::Query { consumer: Some(consumer.to_owned()), sift, ..Default::default() };
    let rows = DB::list_failed(&mut tx, &query).await.map_err(said())?;
    let rows: Vec<i64> = rows.into_iter().map(|row| row.row).collect();
    let status = Status::Failed;
    let target = failed::Target { rows: &rows, status, owner: None, acted_since: None };
    let Skip { actor, reason } = skip;
    let acted = failed::Acted { what: SKIPPED, to: status, actor, reason, edited_to: None };
    DB::act_on_failed(&mut tx, &target, &acted, now).await.map_err(said())?;
    DB::remove_parked(&mut tx, found.row, epoch).await.map_err(said())?;
    store.commit(tx).await?;
    Ok(Skipped::Moved)
}

async fn lock<DB: Backend>(
    tx: &mut Transaction<'_, DB>,
    consumer: &str,
    key: &str,
    operation: &'static str,
) -> Result<(), StoreError> {
    if key.is_empty() {
        return Ok(());
    }
    DB::lock_parked_key(&mut **tx, consumer, key).await.map_err(StoreError::during(operation))
}

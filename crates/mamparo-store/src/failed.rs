//! Failed messages: what a consumer gave up, kept where it can be searched, until a person has it
//! handled again or throws it away.
//!
//! One row per consumer and message id. Who fails twice is one row with a history. Rows are changed
//! by compare-and-set on their status and lease, so two operators never replay one message together.

use std::time::Duration;

use mamparo_core::message::failed::{Group, class};
use mamparo_core::message::selection::Sift;
use mamparo_core::time::WallTime;

use crate::queue::QueueMessage;
use crate::{Backend, Now, Store, StoreError, Transaction};

/// How long a discarded message can be brought back.
pub const UNDO_WINDOW: Duration = Duration::from_secs(7 * 86_400);

/// Most bytes of a body that a preview shows.
pub const PREVIEW_BYTES_MAX: usize = 4_096;

/// Where a failed message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It waits for a person.
    Failed,
    /// It was put back into its queue.
    Replayed,
    /// It was thrown away.
    Discarded,
    /// An edited copy went its way instead.
    Archived,
}

impl Status {
    /// As the `status` column says it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Replayed => "replayed",
            Self::Discarded => "discarded",
            Self::Archived => "archived",
        }
    }

    /// Of a column that the schema bounds to these words.
    pub(crate) fn of(word: &str) -> Self {
        let all = [Self::Replayed, Self::Discarded, Self::Archived];
        all.into_iter().find(|status| status.word() == word).unwrap_or(Self::Failed)
    }
}

/// A failure for good.
#[derive(Debug, Clone, Copy)]
pub struct Failure<'a> {
    /// Whose failure it is: the consumer's queue.
    pub consumer: &'a str,
    /// The message, untouched.
    pub message: &'a QueueMessage,
    /// Why it was given up, a slug: `attempts-spent`, `poison`, `undecodable`, `crashes`, or a broker's
    /// own (`delivery-limit`, `expired`, `maxlen`, `rejected`).
    pub reason: &'a str,
    /// What the last failure said.
    pub error: &'a str,
    /// When its first attempt failed; `None` when nobody knows.
    pub first_failure: Option<WallTime>,
    /// When its last attempt failed; `None` when nobody knows.
    pub last_failure: Option<WallTime>,
    /// Attempts that were made.
    pub attempts: u32,
    /// The host of the last attempt; may be empty.
    pub host: &'a str,
    /// The version of the program that made it; may be empty.
    pub version: &'a str,
}

impl Failure<'_> {
    /// The group that it falls into.
    #[must_use]
    pub fn group(&self) -> Group {
        Group::of(&clean(self.reason), &clean(self.error))
    }
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedMessage {
    /// Its number: the order in which messages failed first, and the key of paging.
    pub row: i64,
    /// Whose failure it is.
    pub consumer: String,
    /// The message.
    pub message: QueueMessage,
    /// Where it stands.
    pub status: Status,
    /// Why it was given up, a slug.
    pub reason: String,
    /// What the last failure said.
    pub error: String,
    /// Attempts that were made before it was given up the last time.
    pub attempts: u32,
    /// How often it was given up.
    pub failures: u32,
    /// When its first attempt failed.
    pub first_failure: WallTime,
    /// When its last attempt failed.
    pub last_failure: WallTime,
    /// The host of the last attempt.
    pub host: String,
    /// The version of the program that made it.
    pub version: String,
    /// How often it was put back.
    pub replays: u32,
    /// The id of its edited copy.
    pub edited_to: Option<String>,
    /// Who acted on it last.
    pub actor: Option<String>,
    /// Why.
    pub action_reason: Option<String>,
    /// When.
    pub acted_at: Option<WallTime>,
}

impl FailedMessage {
    /// The error without what differs from one occurrence to the next.
    #[must_use]
    pub fn class(&self) -> String {
        class(&self.error)
    }

    /// The group that it falls into.
    #[must_use]
    pub fn group(&self) -> Group {
        Group::of(&self.reason, &self.error)
    }
}

/// Which rows, in the order of their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Only this consumer's.
    pub consumer: Option<String>,
    /// Only in this state. Default: failed.
    pub status: Option<Status>,
    /// All conditions on the message.
    pub sift: Sift,
    /// Only rows after this number: the last one of the page before. Default 0.
    pub after: i64,
    /// At most this many. Default 50.
    pub max: u32,
}

impl Default for Query {
    fn default() -> Self {
        let (status, sift) = (Some(Status::Failed), Sift::default());
        Self { consumer: None, status, sift, after: 0, max: 50 }
    }
}

/// Rows that may be acted on.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// Their numbers.
    pub rows: &'a [i64],
    /// The state that they must be in.
    pub status: Status,
    /// Who must hold them; `None` for anybody or nobody.
    pub owner: Option<&'a str>,
    /// When they must have been acted on at the earliest.
    pub acted_since: Option<WallTime>,
}

/// What is done with them.
#[derive(Debug, Clone, Copy)]
pub struct Acted<'a> {
    /// The word in the history: `replayed`, `discarded`, `edited`, `restored`.
    pub what: &'static str,
    /// The state afterwards.
    pub to: Status,
    /// Who.
    pub actor: &'a str,
    /// Why; may be empty where the operation allows it.
    pub reason: &'a str,
    /// The id of the edited copy.
    pub edited_to: Option<&'a str>,
}

/// One line of a message's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub at: WallTime,
    /// `failed`, `replayed`, `discarded`, `edited`, `restored`.
    pub what: String,
    /// The host that it failed on, or who acted.
    pub who: String,
    /// Reason and error, or why somebody acted.
    pub why: String,
}

/// Failed messages of one consumer and reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The consumer.
    pub consumer: String,
    /// The reason slug.
    pub reason: String,
    /// How many wait for a person.
    pub messages: u64,
    /// When the first of them failed.
    pub oldest: WallTime,
}

/// Failed messages of one consumer and group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grouped {
    /// The consumer.
    pub consumer: String,
    /// The group, 16 hexadecimal digits.
    pub group: String,
    /// The reason slug.
    pub reason: String,
    /// One of the errors.
    pub sample: String,
    /// One of the event types.
    pub kind: String,
    /// How many event types there are.
    pub kinds: u64,
    /// How many wait for a person.
    pub messages: u64,
    /// When the first of them failed first.
    pub first: WallTime,
    /// When the last of them failed last.
    pub last: WallTime,
}

/// What recording a failure changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// The message has failed for good for the n-th time, counted from one.
    Failed(u32),
    /// This very failure was known. Nothing was changed.
    Known,
}

/// Writes a failure down, in the transaction that gives the message up.
///
/// Reporting the same failure again changes nothing, so whoever moves messages here may write,
/// commit, and only then let go of the original. A younger failure of a message that was put back
/// is counted on its row, and the row waits for a person again.
///
/// # Errors
/// What the database said.
pub async fn record<DB: Backend>(
    tx: &mut Transaction<'_, DB>,
    failure: &Failure<'_>,
    now: WallTime,
) -> Result<Recorded, StoreError> {
    let failures = DB::record_failure(&mut **tx, failure, now).await;
    let failures = failures.map_err(StoreError::during("record a failed message"))?;
    let count = |n: i64| Recorded::Failed(u32::try_from(n).unwrap_or(u32::MAX));
    Ok(failures.map_or(Recorded::Known, count))
}

/// Failed messages, in the order in which they failed first.
///
/// # Errors
/// What the database said.
pub async fn list<DB: Backend>(
    store: &Store<DB>,
    query: &Query,
) -> Result<Vec<FailedMessage>, StoreError> {
    let mut conn = store.read_connection("list failed messages").await?;
    let rows = DB::list_failed(&mut conn, query).await;
    rows.map_err(StoreError::during("list failed messages"))
}

/// How many rows `query` means, whatever its `max`.
///
/// # Errors
/// What the database said.
pub async fn count<DB: Backend>(store: &Store<DB>, query: &Query) -> Result<u64, StoreError> {
    let mut conn = store.read_connection("count failed messages").await?;
    let rows = DB::count_failed(&mut conn, query).await;
    rows.map_err(StoreError::during("count failed messages"))
}

/// What happened to a message, oldest first.
///
/// # Errors
/// What the database said.
pub async fn history<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    id: &str,
) -> Result<Vec<Entry>, StoreError> {
    let mut conn = store.read_connection("read a failed message's history").await?;
    let entries = DB::failed_log(&mut conn, consumer, id).await;
    entries.map_err(StoreError::during("read a failed message's history"))
}

/// Takes hold of failed rows that nobody holds, for `lease`; which of them.
///
/// # Errors
/// What the database said.
pub async fn claim<DB: Backend>(
    store: &Store<DB>,
    owner: &str,
    rows: &[i64],
    lease: Duration,
    now: impl Now,
) -> Result<Vec<i64>, StoreError> {
    let mut conn = store.write_connection("claim failed messages").await?;
    let now = now.now();
    let claimed = DB::claim_failed(&mut conn, owner, rows, now.plus(lease), now).await;
    claimed.map_err(StoreError::during("claim failed messages"))
}

/// Lets go of everything that `owner` holds; how many rows.
///
/// # Errors
/// What the database said.
pub async fn release<DB: Backend>(store: &Store<DB>, owner: &str) -> Result<u64, StoreError> {
    let mut conn = store.write_connection("release failed messages").await?;
    let released = DB::release_failed(&mut conn, owner).await;
    released.map_err(StoreError::during("release failed messages"))
}

/// Changes rows that are as `target` says, with a line in each one's history; how many.
///
/// # Errors
/// What the database said; nothing is changed then.
pub async fn act<DB: Backend>(
    store: &Store<DB>,
    target: &Target<'_>,
    acted: &Acted<'_>,
    now: WallTime,
) -> Result<u64, StoreError> {
    let failed = || StoreError::during("change failed messages");
    let mut tx = store.begin().await?;
    let changed = DB::act_on_failed(&mut tx, target, acted, now).await.map_err(failed())?;
    tx.commit().await.map_err(failed())?;
    Ok(changed)
}

/// Failed messages by consumer and reason, with the oldest of each: for metrics and alerts.
///
/// # Errors
/// What the database said.
pub async fn counts<DB: Backend>(store: &Store<DB>) -> Result<Vec<Counted>, StoreError> {
    let mut conn = store.read_connection("count failed messages").await?;
    DB::failed_counts(&mut conn).await.map_err(StoreError::during("count failed messages"))
}

/// Failed messages by group, the largest group first, at most `max` groups.
///
/// # Errors
/// What the database said.
pub async fn groups<DB: Backend>(
    store: &Store<DB>,
    consumer: Option<&str>,
    max: u32,
) -> Result<Vec<Grouped>, StoreError> {
    let mut conn = store.read_connection("group failed messages").await?;
    let groups = DB::failed_groups(&mut conn, consumer, max).await;
    groups.map_err(StoreError::during("group failed messages"))
}

/// Forgets messages that were acted on before `before` and have not failed since, at most `max`;
/// how many. Keep them for longer than [`UNDO_WINDOW`].
///
/// # Errors
/// What the database said; nothing is changed then.
pub async fn forget<DB: Backend>(
    store: &Store<DB>,
    before: WallTime,
    max: u32,
) -> Result<u64, StoreError> {
    let failed = || StoreError::during("forget failed messages");
    let mut tx = store.begin().await?;
    let forgotten = DB::forget_failed(&mut tx, before, max).await.map_err(failed())?;
    tx.commit().await.map_err(failed())?;
    Ok(forgotten)
}

/// A body for reading: JSON with indentation, text as it is, anything else as hexadecimal digits,
/// cut at [`PREVIEW_BYTES_MAX`] bytes.
#[must_use]
pub fn preview(body: &[u8]) -> String {
    let parsed: Result<serde_json::Value, _> = serde_json::from_slice(body);
    let pretty = parsed.ok().and_then(|value| serde_json::to_string_pretty(&value).ok());
    let text = pretty.or_else(|| std::str::from_utf8(body).ok().map(str::to_owned));
    let mut text = text.unwrap_or_else(|| {
        body.iter().take(PREVIEW_BYTES_MAX / 2 + 1).map(|byte| format!("{byte:02x}")).collect()
    });
    let fits = (0..=PREVIEW_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    if fits < text.len() {
        text.truncate(fits);
        text.push('…');
    }
    text
}

/// No text of PostgreSQL can hold a NUL, and a failure that can't be written would be lost.
pub(crate) fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

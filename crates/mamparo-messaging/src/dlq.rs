//! What people do with failed messages: look, put back, edit, throw away, bring back.
//!
//! The selection is frozen first and each message is touched at most once: poison that comes back
//! while a batch runs is not moved again, and a filter never fetches the same head twice. How a batch
//! proceeds (canary, rate, stop at the n-th failure) is decided in `mamparo_core::message::selection`;
//! here it is carried out. What a batch had not come to lies where it lay.

mod batch;
mod order;

use mamparo_core::message::selection::{End, Sift};
use mamparo_core::message::topology;

use crate::MessagingError;
use crate::broker::{Broker, Stored};
use crate::letters::{Letters, Place};

pub use batch::{Progress, Witness, carry_out};
pub use mamparo_core::message::selection::Pace;
pub use order::{Task, Verb};

/// Letters that are fetched at once.
const PAGE: u32 = 500;

/// Which letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// At most this many, oldest first. Default 50.
    pub max: u32,
    /// All conditions on the message.
    pub sift: Sift,
}

impl Default for Choice {
    fn default() -> Self {
        Self { max: 50, sift: Sift::default() }
    }
}

/// Letters of one queue, chosen and frozen.
#[derive(Debug)]
pub struct Selected<L> {
    /// The main queue's name.
    pub queue: String,
    /// The messages, oldest first.
    pub messages: Vec<Stored>,
    /// All letters of the queue at that time.
    pub total: u64,
    letters: L,
}

/// Why a chosen message was not settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Its id.
    pub id: String,
    /// Why it lies where it lay, or that it was gone.
    pub why: String,
}

/// What became of a batch.
#[derive(Debug)]
pub struct Outcome {
    /// Ids of the messages that were settled, in their order.
    pub done: Vec<String>,
    /// Those that were not, with the reason of each; those that had no turn are not among them.
    pub left: Vec<Left>,
    /// Ids of settled messages that failed again and came back while the batch ran.
    pub back: Vec<String>,
    /// Messages that had no turn.
    pub untouched: usize,
    /// How it ended.
    pub end: End,
    /// What ended it before its time. Messages on their way at that moment are among `left`.
    pub error: Option<MessagingError>,
}

/// Chooses dead letters of `queue` (the main queue's name; its dead-letter queue is implied).
///
/// # Errors
/// [`MessagingError::UnknownQueue`], or what the broker said.
pub async fn select<B: Broker>(
    broker: &B,
    queue: &str,
    choice: &Choice,
) -> Result<Selected<B::Letters>, MessagingError> {
    known(broker, queue).await?;
    choose(broker.letters(queue, Place::Dead).await?, queue, choice).await
}

/// Chooses messages that were taken out of `queue`'s dead letters.
///
/// # Errors
/// As [`select`].
pub async fn select_archived<B: Broker>(
    broker: &B,
    queue: &str,
    choice: &Choice,
) -> Result<Selected<B::Letters>, MessagingError> {
    known(broker, queue).await?;
    choose(broker.letters(queue, Place::Archive).await?, queue, choice).await
}

/// Chooses among letters of `queue` that are open already.
///
/// # Errors
/// What the place of the letters said.
pub async fn choose<L: Letters>(
    mut letters: L,
    queue: &str,
    choice: &Choice,
) -> Result<Selected<L>, MessagingError> {
    let most = usize::try_from(choice.max).unwrap_or(usize::MAX);
    let mut messages = Vec::new();
    while messages.len() < most {
        let page = letters.fetch(PAGE).await?;
        if page.is_empty() {
            break;
        }
        messages.extend(page.into_iter().filter(|it| choice.sift.takes(&it.sample(queue))));
    }
    messages.truncate(most);
    let total = letters.total();
    Ok(Selected { queue: queue.to_owned(), messages, total, letters })
}

impl<L: Letters> Selected<L> {
    /// Lets go of everything that was not settled.
    ///
    /// # Errors
    /// What the place of the letters said; it lets go by itself when the connection ends.
    pub async fn close(self) -> Result<(), MessagingError> {
        self.letters.close().await
    }
}

async fn known<B: Broker>(broker: &B, queue: &str) -> Result<(), MessagingError> {
    let dlq = topology::dlq(queue);
    // Without a list, the first look at the queue says that it does not exist.
    let Some(names) = broker.queues().await? else { return Ok(()) };
    if names.contains(&dlq) {
        return Ok(());
    }
    // The queues of a consumer are one thing to people: its main queue.
    let main = |name: &String| name.strip_suffix(topology::DLQ_SUFFIX).map(str::to_owned);
    let known = Some(names.iter().filter_map(main).collect());
    Err(MessagingError::UnknownQueue { queue: queue.to_owned(), known })
}

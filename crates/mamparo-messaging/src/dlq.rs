//! What people do with dead letters: look, put back, throw away.
//!
//! The selection is frozen first and each message is touched at most once: a poison message that
//! comes back while a batch runs is not moved again, and a filter never fetches the same head twice.

use mamparo_call::clock;
use mamparo_core::message::{headers, topology};

use crate::broker::{Broker, Filter, Stored};
use crate::{MessagingError, observe};

/// Dead letters of one queue, chosen and frozen.
#[derive(Debug, Clone)]
pub struct Selected {
    /// The main queue's name.
    pub queue: String,
    /// The messages, oldest first.
    pub messages: Vec<Stored>,
    /// All dead letters of the queue at that time.
    pub total: u64,
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Ids of the messages that were moved or discarded.
    pub done: Vec<String>,
    /// Ids of those that were gone, or in somebody's hand, when it was their turn.
    pub left: Vec<String>,
}

/// Chooses dead letters of `queue` (the main queue's name; its dead-letter queue is implied).
///
/// # Errors
/// [`MessagingError::UnknownQueue`] with the queues that exist, or what the broker said.
pub async fn select<B: Broker>(
    broker: &B,
    queue: &str,
    filter: &Filter,
) -> Result<Selected, MessagingError> {
    let dlq = topology::dlq(queue);
    // Without a list, the first look at the queue says that it does not exist.
    if let Some(names) = broker.queues().await?
        && !names.contains(&dlq)
    {
        // The three queues of a consumer are one thing to people: its main queue.
        let main = |name: &String| name.strip_suffix(topology::DLQ_SUFFIX).map(str::to_owned);
        let known = Some(names.iter().filter_map(main).collect());
        return Err(MessagingError::UnknownQueue { queue: queue.to_owned(), known });
    }
    let messages = broker.browse(&dlq, filter).await?;
    let total = broker.depth(&dlq).await?;
    Ok(Selected { queue: queue.to_owned(), messages, total })
}

/// Puts the selected messages back into their main queue: attempts start over, the trace stays, and
/// headers say when, by whom and why (`reason` may be empty). Each is in the main queue before it leaves the dead letters.
///
/// # Errors
/// What the broker said; messages before the failure have been moved, the rest lie where they lay.
pub async fn replay<B: Broker>(
    broker: &B,
    selected: &Selected,
    actor: &str,
    reason: &str,
) -> Result<Outcome, MessagingError> {
    let mut outcome = Outcome::default();
    let queue = selected.queue.as_str();
    for stored in &selected.messages {
        let (id, now) = (stored.message.id.clone(), clock::wall());
        let copy = headers::replayed(&stored.message.headers, queue, actor, reason, now);
        if broker.move_to(stored, queue, &copy).await? {
            observe::operated(queue, "replay", &id, actor, reason);
            outcome.done.push(id);
        } else {
            outcome.left.push(id);
        }
    }
    Ok(outcome)
}

/// Throws the selected messages away. The broker keeps an archived copy with actor, reason and time.
///
/// # Errors
/// [`MessagingError::Unsigned`] without an actor or a reason; else as [`replay`].
pub async fn discard<B: Broker>(
    broker: &B,
    selected: &Selected,
    actor: &str,
    reason: &str,
) -> Result<Outcome, MessagingError> {
    for (name, value) in [("actor", actor), ("reason", reason)] {
        if value.trim().is_empty() {
            return Err(MessagingError::Unsigned(name));
        }
    }
    let mut outcome = Outcome::default();
    for stored in &selected.messages {
        let id = stored.message.id.clone();
        if broker.discard(stored, actor, reason).await? {
            observe::operated(&selected.queue, "discard", &id, actor, reason);
            outcome.done.push(id);
        } else {
            outcome.left.push(id);
        }
    }
    Ok(outcome)
}

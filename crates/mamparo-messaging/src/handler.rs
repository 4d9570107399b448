//! What a service writes to handle messages.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use mamparo_call::CallError;
use mamparo_core::call::pipeline::Refusal;
use mamparo_core::message::delivery::Answer;
use mamparo_store::{Backend, Transaction};

use crate::Message;

/// Handles the messages of one queue, in two parts: first whatever takes time, outside any
/// transaction; then the change, inside one.
///
/// SQLite has one writer, and no database likes a transaction that waits for somebody else's
/// answer. So calls of other services belong in [`prepare`](Self::prepare), and
/// [`apply`](Self::apply) only writes.
///
/// ```
/// use mamparo_call::clock;
/// use mamparo_messaging::{Answer, Handler, Message, event};
/// use mamparo_store::{Transaction, outbox};
/// use sqlx::Sqlite;
///
/// #[derive(serde::Deserialize, serde::Serialize)]
/// struct Created {
///     order: String,
/// }
///
/// struct Reserve;
///
/// impl Handler<Sqlite> for Reserve {
///     type Facts = Created;
///
///     async fn prepare(&self, message: &Message) -> Result<Created, Answer> {
///         match message.kind.as_str() {
///             "order.created" => message.decode(),
///             _ => Err(Answer::Done),
///         }
///     }
///
///     async fn apply(
///         &self,
///         _message: &Message,
///         created: Created,
///         tx: &mut Transaction<'_, Sqlite>,
///     ) -> Answer {
///         let Ok(reserved) = event("stock.reserved", &created.order, &created) else {
///             return Answer::dead("the event is no JSON");
///         };
///         match outbox::enqueue(tx, &reserved, clock::wall()).await {
///             Ok(_) => Answer::Done,
///             Err(error) => Answer::retry(error.to_string()),
///         }
///     }
/// }
/// ```
pub trait Handler<DB: Backend>: Send + Sync + 'static {
    /// What `prepare` found out for `apply`.
    type Facts: Send;

    /// Finds out what is needed. May run again for the same message, so what it does elsewhere
    /// must be idempotent or keyed. Skipped for a message that has been applied already.
    ///
    /// # Errors
    /// The answer, when there is nothing to apply: [`Answer::Done`] included.
    fn prepare(
        &self,
        message: &Message,
    ) -> impl Future<Output = Result<Self::Facts, Answer>> + Send;

    /// Applies the change in `tx`, outbox events included. The inbox row is in it already:
    /// [`Answer::Done`] commits all of it, any other answer rolls all of it back.
    fn apply(
        &self,
        message: &Message,
        facts: Self::Facts,
        tx: &mut Transaction<'_, DB>,
    ) -> impl Future<Output = Answer> + Send;
}

/// Handles messages without a database of its own: forwards them, counts them, calls somebody. What it
/// does may happen twice for one message, so it must be idempotent or keyed.
pub trait PlainHandler: Send + Sync + 'static {
    /// Handles one message.
    fn handle(&self, message: &Message) -> impl Future<Output = Answer> + Send;
}

/// A [`PlainHandler`] where a [`Handler`] is asked for: all of it is preparation.
#[derive(Debug)]
pub struct Plain<H>(pub(crate) H);

impl<DB: Backend, H: PlainHandler> Handler<DB> for Plain<H> {
    type Facts = Infallible;

    async fn prepare(&self, message: &Message) -> Result<Infallible, Answer> {
        Err(self.0.handle(message).await)
    }

    async fn apply(
        &self,
        _message: &Message,
        facts: Infallible,
        _tx: &mut Transaction<'_, DB>,
    ) -> Answer {
        match facts {}
    }
}

/// How long to pause for a guard that does not say when to come back.
const REFUSED_DELAY: Duration = Duration::from_secs(1);

/// The answer for a call that gave no value: an open circuit pauses the queue without counting an
/// attempt, another local refusal defers this message, a permanent failure is dead at once, and
/// everything else is another attempt.
pub fn answer_of<E: std::error::Error + 'static>(error: &CallError<E>) -> Answer {
    let reason = crate::error::chain(error);
    if let CallError::Refused { reason: guard, retry_after, .. } = error {
        let delay = retry_after.unwrap_or(REFUSED_DELAY);
        return match *guard == Refusal::CircuitOpen {
            true => Answer::Unavailable { delay, reason },
            false => Answer::Defer { delay },
        };
    }
    if error.is_permanent() {
        return Answer::Dead { reason };
    }
    Answer::RetryAfter { delay: error.retry_after(), reason }
}

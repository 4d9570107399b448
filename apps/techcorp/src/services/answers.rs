//! How a service's own failures become answers to a message.

use std::time::Duration;

use mamparo::messaging::{Answer, MessagingError};
use mamparo::store::StoreError;

/// How long a message waits when the database is away.
const DATABASE_AWAY: Duration = Duration::from_secs(1);

/// Why a handler could not finish.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// The service's own SQL.
    #[error("read or write own tables")]
    Sql(#[from] sqlx::Error),
    /// The outbox.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An event that can't be written as JSON.
    #[error(transparent)]
    Event(#[from] MessagingError),
    /// The broker.
    #[error("ask the broker")]
    Broker(#[source] MessagingError),
    /// The message is about something that this service has never heard of.
    #[error("apply {kind}: there is no {what} {id:?}")]
    Unknown {
        /// The message's type.
        kind: String,
        /// What is missing.
        what: &'static str,
        /// Its id.
        id: String,
    },
}

/// The answer for a failure: a statement that the database refused is another attempt (and ends
/// among the dead letters if it is a bug); a database that is away or busy is nobody's attempt.
pub fn answer(error: &HandlerError) -> Answer {
    let reason = chain(error);
    match error {
        HandlerError::Sql(sqlx::Error::Database(refused)) if !is_busy(refused.as_ref()) => {
            Answer::RetryAfter { delay: None, reason }
        }
        HandlerError::Sql(_) | HandlerError::Store(_) | HandlerError::Broker(_) => {
            tracing::warn!(%reason, "message deferred");
            Answer::Defer { delay: DATABASE_AWAY }
        }
        HandlerError::Event(_) => Answer::Dead { reason },
        HandlerError::Unknown { .. } => Answer::RetryAfter { delay: None, reason },
    }
}

/// SQLITE_BUSY and SQLITE_LOCKED, extended codes included: the low byte is 5 or 6.
fn is_busy(error: &dyn sqlx::error::DatabaseError) -> bool {
    let code = error.code().and_then(|code| code.parse::<u32>().ok());
    code.is_some_and(|code| matches!(code & 0xFF, 5 | 6))
}

/// An error and its causes on one line; a cause that the error has told already is not told twice.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(&format!(": {cause_text}"));
        }
        source = cause.source();
    }
    text
}

//! How a service's own failures become answers to a message.

use std::time::Duration;

use mamparo::messaging::{Answer, MessagingError};
use mamparo::store::StoreError;

/// How long a message waits when the database is away.
pub(super) const DATABASE_AWAY: Duration = Duration::from_secs(1);

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
    /// Somebody else was first; whoever reads again sees what they did.
    #[error("somebody else has written the same row just now")]
    Raced,
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

/// The answer for a failure: a database that is away or busy is nobody's attempt. Anything else that
/// it says (a statement that it refuses, a row that can't be read) is an attempt, and ends among the
/// dead letters if it is a bug: deferred, it would come back every second for ever.
pub fn answer(error: &HandlerError) -> Answer {
    let reason = chain(error);
    let driver = match error {
        HandlerError::Sql(source) | HandlerError::Store(StoreError::Database { source, .. }) => {
            Some(source)
        }
        HandlerError::Event(_) => return Answer::Dead { reason },
        HandlerError::Raced => return Answer::Defer { delay: Duration::ZERO },
        HandlerError::Store(_) | HandlerError::Broker(_) | HandlerError::Unknown { .. } => None,
    };
    if driver.is_some_and(is_away) {
        tracing::warn!(%reason, "message deferred");
        return Answer::Defer { delay: DATABASE_AWAY };
    }
    Answer::RetryAfter { delay: None, reason }
}

/// Does this failure pass by itself: is the database away or busy, or was somebody else first?
pub(super) fn passes(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| {
        matches!(cause.downcast_ref(), Some(HandlerError::Raced))
            || cause.downcast_ref().is_some_and(is_away)
    })
}

/// Is the database away, or busy with somebody else?
pub(super) fn is_away(error: &sqlx::Error) -> bool {
    use sqlx::Error::{Io, PoolClosed, PoolTimedOut, Protocol, WorkerCrashed};
    error.as_database_error().map_or_else(
        || matches!(error, Io(_) | PoolTimedOut | PoolClosed | WorkerCrashed | Protocol(_)),
        is_busy,
    )
}

/// SQLite's BUSY, LOCKED, IOERR, FULL and CANTOPEN, extended codes included: the low byte counts.
fn is_busy(error: &dyn sqlx::error::DatabaseError) -> bool {
    let code = error.code().and_then(|code| code.parse::<u32>().ok());
    code.is_some_and(|code| matches!(code & 0xFF, 5 | 6 | 10 | 13 | 14))
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

#[cfg(test)]
mod tests {
    use mamparo::store::SqliteStore;

    use super::*;

    #[tokio::test]
    async fn a_row_that_cannot_be_read_uses_attempts_up_and_a_database_that_is_away_does_not() {
        let store = SqliteStore::open("sqlite::memory:").await.unwrap();
        let ask = async |query: &'static str| {
            let asked = sqlx::query_scalar::<_, i64>(query).fetch_one(store.reader()).await;
            answer(&asked.unwrap_err().into())
        };
        for bug in ["SELECT 'rubbish'", "SELECT no_such_column", "SELECT 1 WHERE 0"] {
            assert!(matches!(ask(bug).await, Answer::RetryAfter { .. }), "{bug}");
        }
        store.close().await;
        assert!(matches!(ask("SELECT 1").await, Answer::Defer { .. }));
        let full = HandlerError::Store(StoreError::Database {
            operation: "enqueue an event",
            source: sqlx::Error::PoolTimedOut,
        });
        assert!(matches!(answer(&full), Answer::Defer { .. }));
        assert_eq!(chain(&full).matches("enqueue").count(), 1);
    }
}

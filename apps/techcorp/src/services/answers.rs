//! How a service's own failures become answers to a message.

use std::time::Duration;

use mamparo::core::message::transaction::Class;
use mamparo::messaging::{Answer, MessagingError};
use mamparo::store::StoreError;
use mamparo::store::class::{class_of, class_within};

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

/// The answer for a failure: a database that is away or busy is nobody's attempt, and neither is a
/// transaction that lost against another. Anything else that it says (a statement that it refuses, a
/// row that can't be read) is an attempt, and ends among the dead letters if it is a bug: deferred,
/// it would come back every second for ever.
pub fn answer(error: &HandlerError) -> Answer {
    let reason = chain(error);
    let delay = match error {
        HandlerError::Event(_) => return Answer::Dead { reason },
        HandlerError::Raced => Some(Duration::ZERO),
        HandlerError::Sql(_)
        | HandlerError::Store(_)
        | HandlerError::Broker(_)
        | HandlerError::Unknown { .. } => class_within(error).and_then(postponed),
    };
    match delay {
        Some(delay) => {
            tracing::warn!(%reason, "message deferred");
            Answer::Defer { delay }
        }
        None => Answer::RetryAfter { delay: None, reason },
    }
}

/// How long a message waits for what is no fault of its own; `None` for what may be.
fn postponed(class: Class) -> Option<Duration> {
    if class.is_away() {
        Some(DATABASE_AWAY)
    } else if matches!(class, Class::RetryWhole | Class::Reprepare) {
        Some(Duration::ZERO)
    } else {
        None
    }
}

/// Does this failure pass by itself: is the database away, busy or late, or was somebody else first?
pub(super) fn passes(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| matches!(cause.downcast_ref(), Some(HandlerError::Raced)))
        || class_within(error).is_some_and(|class| class != Class::Permanent)
}

/// Is the database away, or busy with somebody else?
pub(super) fn is_away(error: &sqlx::Error) -> bool {
    class_of(error).is_away()
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

    #[test]
    fn what_passes_by_itself_is_nobodys_attempt_and_what_does_not_is_one() {
        for class in [Class::LockBusy, Class::Reconnect, Class::ReadOnly, Class::StopIntake] {
            assert_eq!(postponed(class), Some(DATABASE_AWAY), "{class:?}");
        }
        for class in [Class::RetryWhole, Class::Reprepare] {
            assert_eq!(postponed(class), Some(Duration::ZERO), "{class:?}");
        }
        for class in [Class::Deadline, Class::Duplicate, Class::Permanent, Class::OutcomeUnknown] {
            assert_eq!(postponed(class), None, "{class:?}");
        }
        assert!(passes(&HandlerError::Raced));
        assert!(passes(&HandlerError::Sql(sqlx::Error::PoolTimedOut)));
        assert!(!passes(&HandlerError::Sql(sqlx::Error::RowNotFound)));
        assert!(matches!(answer(&HandlerError::Raced), Answer::Defer { delay: Duration::ZERO }));
    }

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

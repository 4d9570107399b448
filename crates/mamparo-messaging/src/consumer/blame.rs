//! Whose fault a failure is: the message's, or a database's that is away.

use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::message::delivery::{self, Answer};
use mamparo_store::{Backend, Class, Store, StoreError};

use super::work::{STORE_DELAY, Work};
use crate::error::chain;

/// How long a database may take to say that it is there. One that is there answers within
/// milliseconds; one that takes longer is of no use to the next message either.
const PING_LIMIT: Duration = Duration::from_secs(2);

impl<B, DB: Backend, H> Work<B, DB, H> {
    /// The answer when our own part of a transaction failed. A database that is away pauses the
    /// consumer and counts nothing; a lost commit may have happened, and the inbox knows when the
    /// message comes again; another transaction's doing costs a moment; what fails every time is an
    /// attempt, unless [`blame`](Self::blame) finds otherwise.
    pub(super) fn answer_to(&self, error: &StoreError) -> Answer {
        let (reason, class) = (chain(error), error.class());
        if let Some(store) = &self.store {
            store.doubt(class);
        }
        if class.is_away() || class == Class::OutcomeUnknown {
            Answer::Unavailable { delay: STORE_DELAY, reason }
        } else if class == Class::RetryWhole || class == Class::Reprepare {
            Answer::Defer { delay: delivery::GIVE_BACK_MIN }
        } else {
            Answer::retry(reason)
        }
    }

    /// The answer for a message whose time was over before its transaction had begun: others had all
    /// the connections or a lock, or the database is away.
    pub(super) async fn held_up(&self) -> Answer {
        let away = match &self.store {
            Some(store) => missing(store).await,
            None => None,
        };
        match away {
            Some(reason) => Answer::Unavailable { delay: STORE_DELAY, reason },
            None => Answer::Defer { delay: STORE_DELAY },
        }
    }

    /// `answer`, unless it would cost the message an attempt or its life and the database is away: then
    /// nobody can know whether the message is to blame. A handler may say anything about a query
    /// that failed, or run out of time waiting for a connection; and a database that lets nobody in
    /// has many codes.
    pub(super) async fn blame(&self, answer: Answer) -> Answer {
        let costs = match &answer {
            Answer::RetryAfter { .. }
            | Answer::Dead { .. }
            | Answer::Panicked { .. }
            | Answer::TimedOut { .. } => true,
            // The body is what it is, with or without a database.
            Answer::Undecodable { .. }
            | Answer::Done
            | Answer::Defer { .. }
            | Answer::Unavailable { .. } => false,
        };
        let Some(store) = self.store.as_ref().filter(|_| costs) else { return answer };
        match missing(store).await {
            None => answer,
            Some(why) => {
                let reason = format!("{why}; before that: {}", answer.reason());
                Answer::Unavailable { delay: STORE_DELAY, reason }
            }
        }
    }
}

/// Why the database is away, or takes no changes; `None` when it is there.
pub(crate) async fn missing<DB: Backend>(store: &Store<DB>) -> Option<String> {
    let end = clock::instant_of(clock::now().plus(PING_LIMIT));
    match tokio::time::timeout_at(end, store.ping_to_write()).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(chain(&error)),
        Err(_) => Some(format!("reach the database: no answer within {PING_LIMIT:?}")),
    }
}

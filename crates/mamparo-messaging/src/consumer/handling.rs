//! The handler's part: what stands before it, its transaction, its commit.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use mamparo_call::clock;
use mamparo_core::message::delivery::Answer;
use mamparo_core::message::headers;
use mamparo_store::inbox::{self, Seen};
use mamparo_store::parked::{self, Entry};
use mamparo_store::{Backend, Store, StoreError, Transaction};
use tracing::Instrument as _;

use super::hand::Hand;
use super::work::{Came, Work};
use crate::room::KEY_BYTES_MAX;
use crate::{Broker, Handler, Message, observe};

/// How far a handler came within its time.
enum Handled<DB: Backend> {
    /// It is done: its change, the inbox row and the outbox rows wait for their commit, all or
    /// nothing.
    Applied(Transaction<'static, DB>),
    /// There is nothing to commit.
    Came(Came),
}

impl<DB: Backend> From<Answer> for Handled<DB> {
    fn from(answer: Answer) -> Self {
        Self::Came(Came::Said(answer))
    }
}

/// A message's transaction, by what the inbox says.
enum Begun<DB: Backend> {
    /// To be applied in it.
    Fresh(Transaction<'static, DB>),
    /// Applied before. What there is to commit: the count, unless that is done.
    Duplicate(Option<Transaction<'static, DB>>),
    /// An earlier message of its key waits; it lines up behind.
    Behind,
}

impl<B: Broker, DB: Backend, H: Handler<DB>> Work<B, DB, H> {
    /// The handler's answer within its time, panics included, in the message's own context.
    pub(super) async fn answer(&self, hand: &Hand) -> Came {
        let (now, after) = (clock::now(), self.policy.handler_timeout);
        let message = hand.message();
        let context = message.context().with_budget(now, after);
        let span = observe::handling(&self.policy.queue, message);
        let waits = AtomicBool::new(false);
        let handled = context.scope(self.handle(hand, &waits)).instrument(span);
        let handled = AssertUnwindSafe(handled).catch_unwind();
        let until = clock::instant_of(now.plus(after));
        let came = match tokio::time::timeout_at(until, handled).await {
            // Not within the deadline: a commit that is cut off may have happened, and the last
            // attempt would end among the dead letters with its effects in place.
            Ok(Ok(Handled::Applied(tx))) => self.commit(tx, hand).await,
            Ok(Ok(Handled::Came(came))) => came,
            Ok(Err(panic)) => Answer::Panicked { reason: words_of(&*panic) }.into(),
            Err(_) if waits.load(Ordering::Relaxed) => self.held_up().await.into(),
            Err(_) => Answer::TimedOut { after }.into(),
        };
        match came {
            Came::Said(answer) => self.blame(answer).await.into(),
            came @ (Came::Applied | Came::Behind | Came::Lost) => came,
        }
    }

    /// `waits` is set while the database is waited for and the handler is not.
    async fn handle(&self, hand: &Hand, waits: &AtomicBool) -> Handled<DB> {
        let message = hand.message();
        // PostgreSQL's text holds no zero: the inbox would refuse it at every attempt. RabbitMQ's
        // connections put one where a text was no UTF-8.
        let Message { id, kind, key, exchange, routing_key, .. } = message;
        if [id, kind, key, exchange, routing_key].iter().any(|text| text.contains('\0')) {
            let reason = "its id, type, key or address is no UTF-8 or has a zero byte, which no \
                          database keeps";
            let reason = reason.to_owned();
            return Answer::Undecodable { reason }.into();
        }
        // It could not wait for another attempt, which would then come every second and never count.
        if self.room.parked().is_some() && key.len() > KEY_BYTES_MAX {
            let bytes = key.len();
            let reason =
                format!("its key has {bytes} bytes; at most {KEY_BYTES_MAX} can be parked");
            return Answer::Undecodable { reason }.into();
        }
        if let (Some(store), true) = (&self.store, self.may_be_known(hand)) {
            waits.store(true, Ordering::Relaxed);
            match inbox::contains(store, self.policy.consumer(), &message.id).await {
                Ok(false) => waits.store(false, Ordering::Relaxed),
                Ok(true) => return self.count_duplicate(store, message).await.into(),
                Err(error) => return self.answer_to(&error).into(),
            }
        }
        match self.handler.prepare(message).await {
            Ok(facts) => self.apply(hand, facts, waits).await,
            Err(answer) => answer.into(),
        }
    }

    /// Is asking the inbox before the work worth a question? Only [`inbox::insert`] decides, so a new
    /// message that nobody has seen does without.
    fn may_be_known(&self, hand: &Hand) -> bool {
        let message = hand.message();
        hand.delivery.suspect
            || message.header(headers::REPLAYED).is_some()
            || self.recent.contains(&message.id)
    }

    /// Everything that the commit is to make true.
    async fn apply(&self, hand: &Hand, facts: H::Facts, waits: &AtomicBool) -> Handled<DB> {
        let message = hand.message();
        let Some(store) = &self.store else {
            return Answer::dead("its handler has a change to apply, and the consumer no database")
                .into();
        };
        waits.store(true, Ordering::Relaxed);
        let mut tx = match self.begin(store, hand).await {
            Ok(Begun::Fresh(tx)) => {
                waits.store(false, Ordering::Relaxed);
                tx
            }
            Ok(Begun::Duplicate(tx)) => {
                observe::duplicate(&self.policy.queue, message);
                return tx.map_or_else(|| Answer::Done.into(), Handled::Applied);
            }
            Ok(Begun::Behind) => return Handled::Came(Came::Behind),
            Err(error) => return self.answer_to(&error).into(),
        };
        let answer = self.handler.apply(message, facts, &mut tx).await;
        if answer == Answer::Done {
            return Handled::Applied(tx);
        }
        match self.roll_back(tx).await {
            // The connection broke under the handler, whatever it makes of that.
            Some(error) if error.class().is_away() => self.answer_to(&error).into(),
            _ => answer.into(),
        }
    }

    /// Begins the transaction and writes the inbox row, first thing in it.
    async fn begin(&self, store: &Store<DB>, hand: &Hand) -> Result<Begun<DB>, StoreError> {
        let Message { id, kind, key, .. } = hand.message();
        let (consumer, now) = (self.policy.consumer(), clock::wall());
        if hand.is_parked() {
            // Known or not: its parked row goes in the same transaction.
            let mut tx = store.begin().await?;
            return Ok(match inbox::insert(&mut tx, consumer, id, kind, now).await? {
                Seen::Fresh => Begun::Fresh(tx),
                Seen::Duplicate => Begun::Duplicate(Some(tx)),
            });
        }
        if self.room.parked().is_none() || key.is_empty() {
            let begun = inbox::begin(store, consumer, id, kind, now).await?;
            return Ok(begun.map_or(Begun::Duplicate(None), Begun::Fresh));
        }
        let mut tx = store.begin().await?;
        let entry = Entry { consumer, message_id: id, kind, key };
        Ok(match parked::insert_inbox(&mut tx, entry, now).await? {
            Some(Seen::Fresh) => Begun::Fresh(tx),
            Some(Seen::Duplicate) => Begun::Duplicate(Some(tx)),
            None => {
                self.roll_back(tx).await;
                Begun::Behind
            }
        })
    }

    /// What went wrong, if something did. The connection is then dropped with its transaction, which
    /// has the same effect.
    async fn roll_back(&self, tx: Transaction<'_, DB>) -> Option<StoreError> {
        let operation = "roll a transaction back";
        let source = tx.rollback().await.err()?;
        let error = StoreError::Database { operation, source };
        observe::aside(&self.policy.queue, &error);
        Some(error)
    }

    /// The message was applied before; its row counts how often it came again.
    async fn count_duplicate(&self, store: &Store<DB>, message: &Message) -> Answer {
        observe::duplicate(&self.policy.queue, message);
        let counted = async {
            let mut tx = store.begin().await?;
            let consumer = self.policy.consumer();
            inbox::insert(&mut tx, consumer, &message.id, &message.kind, clock::wall()).await?;
            store.commit(tx).await
        };
        counted.await.map_or_else(|error| self.answer_to(&error), |()| Answer::Done)
    }

    /// Takes the message's own row away and commits. A failed commit may have happened: the message
    /// comes again either way, and the inbox knows.
    async fn commit(&self, mut tx: Transaction<'_, DB>, hand: &Hand) -> Came {
        let Some(store) = &self.store else { return Came::Lost };
        let (message, consumer) = (hand.message(), self.policy.consumer());
        let committed = async {
            if hand.is_parked()
                && !parked::remove(&mut tx, consumer, &message.key, hand.claim()).await?
            {
                return Ok(false);
            }
            store.commit(tx).await.map(|()| true)
        };
        match committed.await {
            Ok(true) => {
                self.recent.insert(&message.id);
                Came::Applied
            }
            Ok(false) => Came::Lost,
            Err(error) => self.answer_to(&error).into(),
        }
    }
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is no text")
        .to_owned()
}

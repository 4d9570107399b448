//! One message, from its hand-out to its settlement.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use mamparo_call::clock;
use mamparo_core::message::delivery::{self, Admission, Answer, Decision, History};
use mamparo_core::message::headers;
use mamparo_core::message::intake;
use mamparo_core::message::order::Fate;
use mamparo_core::message::topology::QueuePolicy;
use mamparo_store::attempts::Attempt;
use mamparo_store::inbox::{self, Seen};
use mamparo_store::{Backend, Store, Transaction, attempts};
use tokio::sync::{Semaphore, SemaphorePermit};
use tracing::Instrument as _;

use crate::broker::{Delivery, Settled, Subscription};
use crate::error::chain;
use crate::{Broker, Confirm, Handler, Message, MessagingError, observe};

/// How long the consumer pauses when its own database does not answer.
const STORE_DELAY: Duration = Duration::from_secs(1);

/// How long a message stays in its queue after its copy was not confirmed.
const UNCONFIRMED_DELAY: Duration = Duration::from_secs(1);

/// What every message of a consumer needs.
#[derive(Debug)]
pub(super) struct Work<B, DB: Backend, H> {
    pub(super) broker: B,
    pub(super) store: Store<DB>,
    pub(super) policy: QueuePolicy,
    /// Of the program, for failures.
    pub(super) version: &'static str,
    host: String,
    handler: H,
    /// One place a message; all of them for one that runs alone.
    places: Semaphore,
}

/// How long a start counts as alive: it is dead when it has missed two renewals. Leases last for
/// three, so whoever died is known to be dead when its messages come back.
pub(super) fn alive(subscription: &impl Subscription) -> Duration {
    subscription.renew_every().saturating_mul(2)
}

/// What became of a message.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) delivery: Delivery,
    /// What was decided, `None` when settling failed: then the broker is lost.
    pub(super) end: Result<End, MessagingError>,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) fate: Fate,
    /// As in [`Decision::outcome`], or `unconfirmed`.
    pub(super) outcome: &'static str,
    pub(super) event: intake::Event,
    /// For [`intake::Event::Unavailable`]: how long to pause, and why.
    pub(super) pause: Duration,
    pub(super) reason: String,
}

/// How far a handler came within its time.
enum Handled<DB: Backend> {
    /// It is done: its change, the inbox row and the outbox rows wait for their commit, all or
    /// nothing.
    Applied(Transaction<'static, DB>),
    /// There is nothing to commit.
    Said(Answer),
}

impl<DB: Backend> From<Answer> for Handled<DB> {
    fn from(answer: Answer) -> Self {
        Self::Said(answer)
    }
}

impl<B: Broker, DB: Backend, H: Handler<DB>> Work<B, DB, H> {
    pub(super) fn new(
        broker: B,
        store: Store<DB>,
        policy: QueuePolicy,
        handler: H,
        version: &'static str,
    ) -> Self {
        let places = Semaphore::new(usize::try_from(policy.prefetch).unwrap_or(1));
        let host = gethostname::gethostname().to_string_lossy().into_owned();
        Self { broker, store, policy, version, host, handler, places }
    }

    /// Handles and settles one message.
    pub(super) async fn process(
        self: Arc<Self>,
        subscription: Arc<B::Subscription>,
        delivery: Delivery,
    ) -> Finished {
        let end = self.settle(&*subscription, &delivery).await;
        Finished { delivery, end }
    }

    async fn settle(
        &self,
        subscription: &B::Subscription,
        delivery: &Delivery,
    ) -> Result<End, MessagingError> {
        let place = self.place(delivery.suspect).await?;
        let (decision, answer) = self.decide(&delivery.message, alive(subscription)).await;
        drop(place);
        let reason = answer.reason();
        let (event, pause) = match answer {
            Answer::Unavailable { delay, .. } => (intake::Event::Unavailable, delay),
            Answer::Defer { .. } => (intake::Event::Deferred, Duration::ZERO),
            Answer::Done
            | Answer::RetryAfter { .. }
            | Answer::Dead { .. }
            | Answer::Undecodable { .. }
            | Answer::Panicked { .. }
            | Answer::TimedOut { .. } => (intake::Event::Handled, Duration::ZERO),
        };
        let (fate, outcome) = self.carry_out(subscription, delivery, decision).await?;
        Ok(End { fate, outcome, event, pause, reason })
    }

    /// A place to run in; all places for a message that may have killed a process.
    async fn place(&self, alone: bool) -> Result<SemaphorePermit<'_>, MessagingError> {
        let places = if alone { self.policy.prefetch } else { 1 };
        self.places.acquire_many(places).await.map_err(|_| MessagingError::LostTask)
    }

    /// Has the message handled, if it may be, and decides where it goes.
    async fn decide(&self, message: &Message, alive: Duration) -> (Decision, Answer) {
        let queue = self.policy.queue.as_str();
        let read = headers::attempts(&message.headers, queue);
        if read.unreadable {
            observe::unreadable_attempts(queue, message);
        }
        let attempts = read.made;
        let started = attempts::started(&self.store, queue, &message.id, alive, clock::wall).await;
        let crashes = match started {
            Ok(crashes) => crashes,
            Err(error) => {
                let answer = unavailable(&error);
                let history = History { attempts, crashes: 0 };
                return (
                    self.decide_on(message, delivery::Place::InHand, history, &answer),
                    answer,
                );
            }
        };
        let history = History { attempts, crashes };
        let admitted = delivery::take(&message.headers, history, &self.policy, clock::wall());
        let (decision, answer, ended) = match admitted {
            // Nothing was asked of the handler: no verdict about what it needs.
            Admission::Settle(decision) => {
                (decision, Answer::Defer { delay: Duration::ZERO }, false)
            }
            Admission::Handle(place) => {
                let (answer, ended) = self.answer(message).await;
                (self.decide_on(message, place, history, &answer), answer, ended)
            }
        };
        if ended {
            return (decision, answer);
        }
        let now = clock::wall();
        if let Err(error) = attempts::ended(&self.store, queue, &message.id, now).await {
            // The start stays. It counts as a crash only for others, and once this process is gone.
            observe::aside(queue, &error);
        }
        (decision, answer)
    }

    fn decide_on(
        &self,
        message: &Message,
        place: delivery::Place,
        history: History,
        answer: &Answer,
    ) -> Decision {
        delivery::settle(&message.headers, place, history, answer, &self.policy, clock::wall())
    }

    /// The handler's answer within its time, panics included, in the message's own context; and
    /// whether the attempt row has been ended with it.
    async fn answer(&self, message: &Message) -> (Answer, bool) {
        let (now, after) = (clock::now(), self.policy.handler_timeout);
        let context = message.context().with_budget(now, after);
        let span = observe::handling(&self.policy.queue, message);
        let handled = context.scope(self.handle(message)).instrument(span);
        let handled = AssertUnwindSafe(handled).catch_unwind();
        let until = clock::instant_of(now.plus(after));
        match tokio::time::timeout_at(until, handled).await {
            // Not within the deadline: a commit that is cut off may have happened, and the last
            // attempt would end among the dead letters with its effects in place.
            Ok(Ok(Handled::Applied(tx))) => {
                let answer = self.commit(tx, message).await;
                let ended = answer == Answer::Done;
                (answer, ended)
            }
            Ok(Ok(Handled::Said(answer))) => (answer, false),
            Ok(Err(panic)) => (Answer::Panicked { reason: words_of(&*panic) }, false),
            Err(_) => (Answer::TimedOut { after }, false),
        }
    }

    async fn handle(&self, message: &Message) -> Handled<DB> {
        let queue = self.policy.queue.as_str();
        match inbox::contains(&self.store, queue, &message.id).await {
            Ok(false) => {}
            Ok(true) => return self.count_duplicate(message).await.into(),
            Err(error) => return unavailable(&error).into(),
        }
        match self.handler.prepare(message).await {
            Ok(facts) => self.apply(message, facts).await,
            Err(answer) => answer.into(),
        }
    }

    /// Everything that the commit is to make true.
    async fn apply(&self, message: &Message, facts: H::Facts) -> Handled<DB> {
        let queue = self.policy.queue.as_str();
        let mut tx = match self.store.begin().await {
            Ok(tx) => tx,
            Err(error) => return unavailable(&error).into(),
        };
        let (id, kind) = (&message.id, &message.kind);
        let answer = match inbox::insert(&mut tx, queue, id, kind, clock::wall()).await {
            Ok(Seen::Fresh) => self.handler.apply(message, facts, &mut tx).await,
            Ok(Seen::Duplicate) => {
                observe::duplicate(queue, message);
                Answer::Done
            }
            Err(error) => unavailable(&error),
        };
        if answer == Answer::Done {
            return Handled::Applied(tx);
        }
        if let Err(error) = tx.rollback().await {
            // The connection is dropped with its transaction, which has the same effect.
            observe::aside(queue, &error);
        }
        answer.into()
    }

    /// The message was applied before; its row counts how often it came again.
    async fn count_duplicate(&self, message: &Message) -> Answer {
        let queue = self.policy.queue.as_str();
        observe::duplicate(queue, message);
        let counted = async {
            let mut tx = self.store.begin().await?;
            inbox::insert(&mut tx, queue, &message.id, &message.kind, clock::wall()).await?;
            self.store.commit(tx).await
        };
        counted.await.map_or_else(|error| unavailable(&error), |()| Answer::Done)
    }

    /// Ends the attempt and commits. A failed commit may have happened: the message comes again
    /// either way, and the inbox knows.
    async fn commit(&self, mut tx: Transaction<'_, DB>, message: &Message) -> Answer {
        let committed = async {
            let attempt = Attempt::of(&self.store, &self.policy.queue, &message.id);
            attempts::ended_in(&mut tx, attempt, clock::wall()).await?;
            self.store.commit(tx).await
        };
        committed.await.map_or_else(|error| unavailable(&error), |()| Answer::Done)
    }

    /// Does what was decided. Copies are confirmed before the original is acknowledged; without a
    /// confirm the original stays.
    async fn carry_out(
        &self,
        subscription: &B::Subscription,
        delivery: &Delivery,
        decision: Decision,
    ) -> Result<(Fate, &'static str), MessagingError> {
        let outcome = decision.outcome();
        let (to, headers, fate) = match &decision {
            Decision::Ack => {
                observe::settled(&self.policy.queue, &delivery.message, &decision);
                self.ack(subscription, delivery).await?;
                return Ok((Fate::Left, outcome));
            }
            Decision::GiveBack { delay, .. } => {
                observe::settled(&self.policy.queue, &delivery.message, &decision);
                self.give_back(subscription, delivery, *delay).await?;
                return Ok((Fate::Returns(*delay), outcome));
            }
            Decision::Wait { headers, .. } => {
                (self.policy.retry_queue(), headers, Fate::Returns(self.policy.retry_delay))
            }
            Decision::DeadLetter { headers, .. } => (self.policy.dlq(), headers, Fate::Left),
        };
        let mut headers = headers.clone();
        headers::failed_at(&mut headers, &self.host, self.version);
        let copy = delivery.message.with_headers(headers);
        let why = match self.broker.publish("", &to, &copy).await {
            Confirm::Confirmed => {
                observe::settled(&self.policy.queue, &delivery.message, &decision);
                self.ack(subscription, delivery).await?;
                return Ok((fate, outcome));
            }
            Confirm::Returned => "the queue does not exist".to_owned(),
            Confirm::Nacked(reason) | Confirm::Unknown(reason) => reason,
        };
        observe::unconfirmed(&self.policy.queue, &to, &delivery.message, &why);
        self.give_back(subscription, delivery, UNCONFIRMED_DELAY).await?;
        Ok((Fate::Returns(UNCONFIRMED_DELAY), "unconfirmed"))
    }

    async fn ack(
        &self,
        subscription: &B::Subscription,
        delivery: &Delivery,
    ) -> Result<(), MessagingError> {
        if subscription.ack(delivery.receipt).await? == Settled::Stale {
            observe::stale(&self.policy.queue, &delivery.message);
        }
        Ok(())
    }

    pub(super) async fn give_back(
        &self,
        subscription: &B::Subscription,
        delivery: &Delivery,
        delay: Duration,
    ) -> Result<(), MessagingError> {
        if subscription.give_back(delivery, delay).await? == Settled::Stale {
            observe::stale(&self.policy.queue, &delivery.message);
        }
        Ok(())
    }
}

fn unavailable(error: &mamparo_store::StoreError) -> Answer {
    Answer::Unavailable { delay: STORE_DELAY, reason: chain(error) }
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is no text")
        .to_owned()
}

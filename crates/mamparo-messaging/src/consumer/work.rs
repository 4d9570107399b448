//! One message, from its hand-out to its settlement.

use std::sync::Arc;
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::message::delivery::{self, Admission, Answer, Decision, History};
use mamparo_core::message::headers;
use mamparo_core::message::intake;
use mamparo_core::message::order::Fate;
use mamparo_core::message::patience::{Patience, patience};
use mamparo_core::message::topology::{QueuePolicy, alarm};
use mamparo_core::message::waiting::{self, Choice};
use mamparo_store::parked::Failure;
use mamparo_store::{Backend, Class, Store, StoreError, attempts};
use tokio::sync::{Semaphore, watch};

use super::ConsumerHealth;
use super::hand::Hand;
use super::recent::Recent;
use crate::broker::{Settled, Subscription};
use crate::room::{AnyRoom, Case, Followed, Moved, Parked, Room as _};
use crate::{Broker, Handler, MessagingError, observe};

/// How long the consumer pauses when its own database does not answer.
pub(super) const STORE_DELAY: Duration = Duration::from_secs(1);

/// How long a message stays in its queue after its copy was not confirmed.
const UNCONFIRMED_DELAY: Duration = Duration::from_secs(1);

/// One suspect at a time in the whole process, whichever consumer has it: when the process dies, only
/// one of them can have done it.
static ALONE: Semaphore = Semaphore::const_new(1);

/// What every message of a consumer needs.
#[derive(Debug)]
pub(super) struct Work<B, DB: Backend, H> {
    pub(super) broker: B,
    /// None for a consumer whose handler changes nothing of its own.
    pub(super) store: Option<Store<DB>>,
    pub(super) policy: QueuePolicy,
    pub(super) room: AnyRoom<B, DB>,
    /// Which room it is, and why another one than asked for.
    pub(super) choice: Choice,
    /// Why there is no room at all for this policy.
    obstacle: Option<String>,
    /// Of the program, for failures.
    pub(super) version: &'static str,
    host: String,
    pub(super) handler: H,
    /// One place a handler; all of them for a message that runs alone.
    places: Semaphore,
    pub(super) recent: Recent,
}

/// What became of a message.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) hand: Hand,
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
    /// A row of ours is due after this long.
    pub(super) due_in: Option<Duration>,
}

impl End {
    fn of(fate: Fate, outcome: &'static str) -> Self {
        let (event, pause, reason) = (intake::Event::Deferred, Duration::ZERO, String::new());
        Self { fate, outcome, event, pause, reason, due_in: None }
    }
}

/// What came of having a message handled.
#[derive(Debug)]
pub(super) enum Came {
    /// The handler, or what stands before it, answered.
    Said(Answer),
    /// Its change is committed, with the inbox row, and with the removal of its own row if it had one.
    Applied,
    /// An earlier message of its key waits: nothing was done.
    Behind,
    /// Its own row is gone or in other hands: nothing was done.
    Lost,
}

impl From<Answer> for Came {
    fn from(answer: Answer) -> Self {
        Self::Said(answer)
    }
}

/// What is to be done with a message, and what its answer means for the intake.
struct Verdict {
    decision: Decision,
    answer: Answer,
    attempts: u32,
    /// The message's own row went with the commit.
    removed: bool,
    /// The handler came to an end, so this message did not kill the process.
    ran: bool,
}

impl<B: Broker, DB: Backend, H: Handler<DB>> Work<B, DB, H> {
    pub(super) fn new(
        broker: B,
        store: Option<Store<DB>>,
        policy: QueuePolicy,
        handler: H,
        version: &'static str,
    ) -> Self {
        // Requests of users come first: their connections are not ours to take.
        let store = store.map(|store| store.background());
        let places = Semaphore::new(usize::try_from(policy.workers()).unwrap_or(1));
        let host = gethostname::gethostname().to_string_lossy().into_owned();
        let (room, choice, obstacle) = AnyRoom::choose(&broker, store.as_ref(), &policy);
        let recent = Recent::default();
        // What is declared has to be the room that is used.
        let policy = QueuePolicy { waiting_room: choice.room, ..policy };
        Self {
            broker,
            store,
            policy,
            room,
            choice,
            obstacle,
            version,
            host,
            handler,
            places,
            recent,
        }
    }

    /// Can this consumer begin at all? If not, it says why instead: the policy's room can't be had, or the
    /// broker does not wait for as long as the handler may take.
    pub(super) fn may_begin(
        &self,
        timeout: Duration,
        health: &watch::Sender<ConsumerHealth>,
    ) -> bool {
        let (queue, limit) = (&self.policy.queue, self.policy.handler_timeout);
        let judged = patience(&self.policy, &self.broker.capabilities(), timeout);
        health.send_modify(|health| health.patience = judged);
        if let Some(words) = &self.obstacle {
            observe::impatient(queue, words);
            health.send_modify(|health| health.error = Some(words.clone()));
            return false;
        }
        match judged {
            Patience::Enough => true,
            Patience::Crowded(last) => {
                observe::crowded(queue, last, timeout);
                true
            }
            Patience::TooShort => {
                let words = format!(
                    "handler_timeout {limit:?} of {queue:?} is too long: the broker takes messages back \
                     after {timeout:?} and closes the channel; shorten it, or raise the broker's \
                     consumer_timeout and say so in ConsumerOptions::consumer_timeout"
                );
                observe::impatient(queue, &words);
                health.send_modify(|health| health.error = Some(words));
                false
            }
        }
    }

    /// Handles and settles one message.
    pub(super) async fn process(
        self: Arc<Self>,
        subscription: Arc<B::Subscription>,
        hand: Hand,
    ) -> Finished {
        let end = self.settle(&*subscription, &hand).await;
        Finished { hand, end }
    }

    async fn settle(
        &self,
        subscription: &B::Subscription,
        hand: &Hand,
    ) -> Result<End, MessagingError> {
        let recalled = match self.recall(hand).await {
            Ok(recalled) => recalled,
            Err(error) => {
                let away = Moved::Away(crate::error::chain(&error));
                let end = End::of(Fate::Left, "unconfirmed");
                return self.moved(subscription, hand, away, end).await;
            }
        };
        let hand = recalled.as_ref().unwrap_or(hand);
        let verdict = self.run(subscription, hand).await?;
        let Verdict { decision, answer, attempts, removed, ran } = match verdict {
            Ok(verdict) => verdict,
            Err(Came::Behind) => return self.follow(subscription, hand).await,
            Err(Came::Lost | Came::Applied | Came::Said(_)) => {
                observe::stale(&self.policy.queue, hand.message());
                return Ok(End::of(Fate::Left, "stale"));
            }
        };
        let cleared = (ran && hand.delivery.suspect).then(|| hand.cleared());
        let hand = cleared.as_ref().unwrap_or(hand);
        let mut end = self.carry_out(subscription, hand, decision, attempts, removed).await?;
        if end.event == intake::Event::Unavailable {
            return Ok(end);
        }
        end.reason = answer.reason();
        (end.event, end.pause) = match answer {
            Answer::Unavailable { delay, .. } => (intake::Event::Unavailable, delay),
            Answer::Defer { .. } => (intake::Event::Deferred, Duration::ZERO),
            Answer::Done
            | Answer::RetryAfter { .. }
            | Answer::Dead { .. }
            | Answer::Undecodable { .. }
            | Answer::Panicked { .. }
            | Answer::TimedOut { .. } => (intake::Event::Handled, Duration::ZERO),
        };
        Ok(end)
    }

    /// The message as it was when the broker's own room got it, if that is where it comes from. Without an
    /// answer it must not be handled: its attempts are not known.
    async fn recall(&self, hand: &Hand) -> Result<Option<Hand>, StoreError> {
        let (message, queue) = (hand.message(), &self.policy.queue);
        let Some(room) = self.room.own() else { return Ok(None) };
        // The broker marks what it hands out again; a copy names its time.
        if !hand.delivery.suspect && message.header(headers::NOT_BEFORE).is_none() {
            return Ok(None);
        }
        let known = match room.recall(message).await {
            Ok(known) => known,
            // An id that the database can't even be asked about has no row.
            Err(error) if error.class() == Class::Permanent => {
                observe::aside(queue, &error);
                None
            }
            Err(error) => return Err(error),
        };
        let Some(hand) = known.map(|known| hand.recalled(known)) else { return Ok(None) };
        let returned = alarm::returned(&hand.message().headers, &self.policy, clock::wall());
        if let Some(back) = returned {
            observe::returned(queue, hand.message(), back);
        }
        Ok(Some(hand))
    }

    /// Has the message handled when a place is free, if it may be. The inner error says that there is
    /// nothing to decide.
    async fn run(
        &self,
        subscription: &B::Subscription,
        hand: &Hand,
    ) -> Result<Result<Verdict, Came>, MessagingError> {
        let gone = |_| MessagingError::LostTask;
        if !hand.delivery.suspect {
            let _place = self.places.acquire().await.map_err(gone)?;
            return Ok(self.decide(hand, 0).await);
        }
        let _one = ALONE.acquire().await.map_err(gone)?;
        let _all = self.places.acquire_many(self.policy.workers()).await.map_err(gone)?;
        let alive = match hand.is_parked() {
            true => Parked::<B, DB>::alive(),
            false => alive(subscription),
        };
        Ok(self.decide_alone(hand, alive).await)
    }

    /// As [`decide`](Self::decide), for a message that may have killed a process: with a row that
    /// outlives the process if it does so again.
    async fn decide_alone(&self, hand: &Hand, alive: Duration) -> Result<Verdict, Came> {
        let Some(store) = &self.store else { return self.decide(hand, 0).await };
        let (consumer, id) = (self.policy.consumer(), &hand.message().id);
        // The database's time: its owner may be on another host.
        let now = || store.time(clock::wall());
        let until = attempts::alive_elsewhere(store, consumer, id, now()).await;
        let started = match until {
            Ok(None) => attempts::started(store, consumer, id, alive, now).await,
            // Dead or alive? Nobody knows before its owner should have been heard of.
            Ok(Some(until)) => {
                let delay = until.since(now()).max(Duration::from_millis(1));
                return Ok(self.judge(hand, delivery::Place::InHand, 0, Answer::Defer { delay }));
            }
            Err(error) => Err(error),
        };
        let verdict = match started {
            Ok(crashes) => self.decide(hand, crashes).await,
            Err(error) => {
                let answer = self.blame(self.answer_to(&error)).await;
                return Ok(self.judge(hand, delivery::Place::InHand, 0, answer));
            }
        };
        if let Err(error) = attempts::ended(store, consumer, id, now()).await {
            // The start stays. It counts as a crash only for others, and once this process is gone.
            observe::aside(&self.policy.queue, &error);
        }
        verdict
    }

    async fn decide(&self, hand: &Hand, crashes: u32) -> Result<Verdict, Came> {
        let message = hand.message();
        let read = headers::attempts(&message.headers, self.policy.consumer());
        if read.unreadable {
            observe::unreadable_attempts(&self.policy.queue, message);
        }
        let history = History { attempts: read.made, crashes };
        match delivery::take(&message.headers, history, &self.policy, clock::wall()) {
            Admission::Settle(decision) => {
                // Nothing was asked of the handler: no verdict about what it needs.
                let answer = Answer::Defer { delay: Duration::ZERO };
                Ok(Verdict { decision, answer, attempts: read.made, removed: false, ran: false })
            }
            Admission::Handle(place) => match self.answer(hand).await {
                Came::Said(answer) => {
                    Ok(Verdict { ran: true, ..self.judge(hand, place, crashes, answer) })
                }
                Came::Applied => {
                    let verdict = self.judge(hand, place, crashes, Answer::Done);
                    Ok(Verdict { removed: true, ran: true, ..verdict })
                }
                came @ (Came::Behind | Came::Lost) => Err(came),
            },
        }
    }

    fn judge(&self, hand: &Hand, place: delivery::Place, crashes: u32, answer: Answer) -> Verdict {
        let given = &hand.message().headers;
        let attempts = headers::attempts(given, self.policy.consumer()).made;
        let history = History { attempts, crashes };
        let policy = &self.policy;
        let decision = delivery::settle(given, place, history, &answer, policy, clock::wall());
        Verdict { decision, answer, attempts, removed: false, ran: false }
    }

    /// Does what was decided. A copy is safe before the original is acknowledged; as long as it is
    /// not, the original stays.
    async fn carry_out(
        &self,
        subscription: &B::Subscription,
        hand: &Hand,
        decision: Decision,
        attempts: u32,
        removed: bool,
    ) -> Result<End, MessagingError> {
        let (outcome, mut due_in) = (decision.outcome(), None);
        let (moved, fate, reason) = match decision {
            Decision::Ack if removed && hand.is_parked() => {
                (Moved::Settled, Fate::Left, String::new())
            }
            Decision::Ack => (Moved::Safe, Fate::Left, String::new()),
            Decision::GiveBack { delay, reason } => {
                return self.put_off(subscription, hand, delay, attempts, reason).await;
            }
            Decision::Wait { headers, attempts, asked, reason } => {
                let room = self.choice.room;
                let stay =
                    waiting::stay(&self.policy, room, attempts, asked, &mut clock::entropy());
                let case = self.case(hand, headers, attempts, reason);
                due_in = Some(stay.wait);
                let fate = self.fate(hand, stay.wait);
                (self.room.keep(&case, stay).await, fate, case.failure.error)
            }
            Decision::DeadLetter { headers, attempts, reason } => {
                let case = self.case(hand, headers, attempts, reason);
                (self.room.bury(&case).await, Fate::Left, case.failure.error)
            }
        };
        let end = End { reason, due_in, ..End::of(fate, outcome) };
        self.moved(subscription, hand, moved, end).await
    }

    /// Where the order of the key is kept while the message waits.
    fn fate(&self, hand: &Hand, wait: Duration) -> Fate {
        match &self.room {
            AnyRoom::Parked(_) => Fate::Parked,
            AnyRoom::Tiers(room) => Fate::Returns(room.back_in(wait)),
            AnyRoom::Own(room) => Fate::Returns(room.stays_away(hand.returns(), wait)),
        }
    }

    fn case<'a>(
        &self,
        hand: &'a Hand,
        mut headers: headers::Headers,
        attempts: u32,
        error: String,
    ) -> Case<'a> {
        headers::failed_at(&mut headers, &self.host, self.version);
        for value in headers.values_mut().filter(|value| value.contains('\0')) {
            // Not to be kept as text by every database, and of no use to anybody.
            *value = value.replace('\0', "\u{fffd}");
        }
        let copy = hand.message().with_headers(headers);
        let (host, version) = (self.host.clone(), self.version.to_owned());
        Case { hand, copy, attempts, failure: Failure { error, host, version } }
    }

    /// Settles the original after the room has spoken.
    async fn moved(
        &self,
        subscription: &B::Subscription,
        hand: &Hand,
        moved: Moved,
        end: End,
    ) -> Result<End, MessagingError> {
        let queue = &self.policy.queue;
        match moved {
            Moved::Safe => {
                observe::settled(queue, hand.message(), end.outcome, &end.reason);
                self.ack(subscription, hand).await?;
                if end.fate == Fate::Left {
                    self.forget(hand).await;
                }
                Ok(end)
            }
            Moved::Kept => {
                observe::settled(queue, hand.message(), end.outcome, &end.reason);
                if subscription.reject(hand.delivery.receipt).await? == Settled::Stale {
                    observe::stale(queue, hand.message());
                }
                Ok(end)
            }
            Moved::Settled => {
                observe::settled(queue, hand.message(), end.outcome, &end.reason);
                Ok(end)
            }
            Moved::Stale => {
                observe::stale(queue, hand.message());
                Ok(End::of(Fate::Left, "stale"))
            }
            Moved::Stays(why) => {
                observe::unconfirmed(queue, hand.message(), &why);
                self.give_back(subscription, hand, UNCONFIRMED_DELAY).await?;
                let event = intake::Event::Handled;
                Ok(End { event, ..End::of(Fate::Returns(UNCONFIRMED_DELAY), "unconfirmed") })
            }
            Moved::Away(reason) => {
                observe::unconfirmed(queue, hand.message(), &reason);
                self.give_back(subscription, hand, STORE_DELAY).await?;
                let (event, pause) = (intake::Event::Unavailable, STORE_DELAY);
                let end = End::of(Fate::Returns(STORE_DELAY), "unconfirmed");
                Ok(End { event, pause, reason, ..end })
            }
        }
    }

    /// What is known of a message that is gone is of no use any more.
    async fn forget(&self, hand: &Hand) {
        if let (Some(room), true) = (self.room.own(), hand.is_kept())
            && let Err(error) = room.forget(hand.message()).await
        {
            // The row stays until it is old. It says nothing about a message with another id.
            observe::aside(&self.policy.queue, &error);
        }
    }

    /// Gives a message back for `delay`: at its place as long as the broker can keep it there, else by
    /// way of the waiting room.
    async fn put_off(
        &self,
        subscription: &B::Subscription,
        hand: &Hand,
        delay: Duration,
        attempts: u32,
        reason: String,
    ) -> Result<End, MessagingError> {
        // A copy would be a new message, above suspicion.
        let held = hand.is_parked() || hand.delivery.suspect;
        if held || delay <= subscription.holds_for() {
            observe::settled(&self.policy.queue, hand.message(), "deferred", &reason);
            let delay = if hand.is_parked() { delay } else { delay.min(subscription.holds_for()) };
            self.give_back(subscription, hand, delay).await?;
            return Ok(End { due_in: Some(delay), ..End::of(Fate::Returns(delay), "deferred") });
        }
        let case = self.case(hand, hand.message().headers.clone(), attempts, reason.clone());
        let moved = self.room.put_off(&case, delay).await;
        let end =
            End { reason, due_in: Some(delay), ..End::of(self.fate(hand, delay), "deferred") };
        self.moved(subscription, hand, moved, end).await
    }

    /// Lets a message wait behind an earlier one of its key. `None` when it may be handled after all.
    pub(super) async fn line_up(
        &self,
        subscription: &B::Subscription,
        hand: &Hand,
        delay: Duration,
    ) -> Result<Option<End>, MessagingError> {
        let in_room = matches!(self.room, AnyRoom::Parked(_));
        // As when it is put off: a suspect stays one.
        let here = hand.delivery.suspect || delay <= subscription.holds_for();
        if hand.is_parked() || (!in_room && here) {
            let delay = if hand.is_parked() { delay } else { delay.min(subscription.holds_for()) };
            self.give_back(subscription, hand, delay).await?;
            return Ok(Some(End::of(Fate::Returns(delay), "deferred")));
        }
        let message = hand.message();
        let attempts = headers::attempts(&message.headers, self.policy.consumer()).made;
        let reason = "an earlier message of its key waits".to_owned();
        let case = self.case(hand, message.headers.clone(), attempts, reason);
        match self.room.follow(&case, delay).await {
            Followed::Free => Ok(None),
            Followed::Moved(moved) => {
                let end = End {
                    reason: case.failure.error,
                    ..End::of(self.fate(hand, delay), "deferred")
                };
                self.moved(subscription, hand, moved, end).await.map(Some)
            }
        }
    }

    /// After its own transaction has found an earlier one of its key waiting.
    async fn follow(
        &self,
        subscription: &B::Subscription,
        hand: &Hand,
    ) -> Result<End, MessagingError> {
        if let Some(end) = self.line_up(subscription, hand, Duration::ZERO).await? {
            return Ok(end);
        }
        // The earlier one has just left; the next hand-out finds the way free.
        self.give_back(subscription, hand, delivery::GIVE_BACK_MIN).await?;
        Ok(End::of(Fate::Returns(delivery::GIVE_BACK_MIN), "deferred"))
    }

    /// The original is done.
    pub(super) async fn ack(
        &self,
        subscription: &B::Subscription,
        hand: &Hand,
    ) -> Result<(), MessagingError> {
        let settled = match (self.room.parked(), hand.is_parked()) {
            (Some(room), true) => {
                let done = room.done(&hand.message().key, hand.claim()).await;
                done.unwrap_or_else(|error| self.leave_to_lease(&error))
            }
            _ => subscription.ack(hand.delivery.receipt).await? == Settled::Done,
        };
        if !settled {
            observe::stale(&self.policy.queue, hand.message());
        }
        Ok(())
    }

    /// The database is away: the row comes back by itself when its lease is over, and the inbox knows
    /// whether it was applied. No reason to let go of the broker.
    fn leave_to_lease(&self, error: &MessagingError) -> bool {
        observe::aside(&self.policy.queue, error);
        true
    }

    /// The original goes back to its place.
    pub(super) async fn give_back(
        &self,
        subscription: &B::Subscription,
        hand: &Hand,
        delay: Duration,
    ) -> Result<(), MessagingError> {
        let settled = match (self.room.parked(), hand.is_parked()) {
            (Some(room), true) => {
                let released = room.release(hand.claim(), delay).await;
                released.unwrap_or_else(|error| self.leave_to_lease(&error))
            }
            _ => subscription.give_back(&hand.delivery, delay).await? == Settled::Done,
        };
        if !settled {
            observe::stale(&self.policy.queue, hand.message());
        }
        Ok(())
    }
}

/// How long a start counts as alive: it is dead when it has missed two renewals.
pub(super) fn alive(subscription: &impl Subscription) -> Duration {
    subscription.renew_every().saturating_mul(2)
}

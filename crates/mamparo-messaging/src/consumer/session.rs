//! One subscription, from its beginning to its end or its loss.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::message::intake::{self, Intake, Phase};
use mamparo_core::message::order::{Arrival, Fate, KeyOrder, Next};
use mamparo_core::message::topology::alarm;
use mamparo_core::time::{Moment, WallTime};
use mamparo_store::{Backend, MEASURE_EVERY, attempts};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::hand::Hand;
use super::work::{End, Finished, STORE_DELAY, Work, alive};
use super::{ConsumerHealth, ConsumerOptions, Summary};
use crate::broker::{Delivery, Subscription};
use crate::room::{ASK_LIMIT, AnyRoom, Parked, RENEW_EVERY};
use crate::{Broker, Handler, Message, MessagingError, observe};

/// How often waiting rows are counted. The count reads all of them and is asked of the service's own
/// database, so it comes more seldom than what keeps leases.
const COUNT_EVERY: Duration = Duration::from_secs(30);

/// When the database's clock is measured again after it could not be.
const MEASURE_AGAIN: Duration = Duration::from_secs(5);

/// What must be known of a message that a task has.
struct Running {
    id: String,
    /// It has an attempt row.
    suspect: bool,
    /// Its own row, if it has one.
    row: Option<i64>,
}

pub(super) struct Session<'c, B: Broker, DB: Backend, H> {
    work: &'c Arc<Work<B, DB, H>>,
    options: ConsumerOptions,
    health: &'c watch::Sender<ConsumerHealth>,
    subscription: Arc<B::Subscription>,
    tasks: JoinSet<Finished>,
    intake: Intake,
    /// Outlives the session: what waits for another attempt does so, too.
    order: &'c mut KeyOrder,
    /// Behind another message of their key, by tag.
    waiting: HashMap<i64, Hand>,
    /// Being handled, or waiting for a place, by tag.
    running: HashMap<i64, Running>,
    tags: i64,
    renew: Moment,
    /// When waiting rows are counted next.
    count: Moment,
    /// When the database's clock is measured next.
    measure: Moment,
    /// When parked rows are looked at next.
    look: Moment,
}

impl<'c, B: Broker, DB: Backend, H: Handler<DB>> Session<'c, B, DB, H> {
    pub(super) async fn open(
        work: &'c Arc<Work<B, DB, H>>,
        options: ConsumerOptions,
        health: &'c watch::Sender<ConsumerHealth>,
        order: &'c mut KeyOrder,
    ) -> Result<Self, MessagingError> {
        let policy = &work.policy;
        work.broker.declare(policy).await?;
        let subscription = work.broker.consume(&policy.queue, policy.prefetch).await?;
        observe::subscribed(&policy.queue, true);
        let session = Self {
            work,
            options,
            health,
            subscription: Arc::new(subscription),
            tasks: JoinSet::new(),
            intake: Intake::new(policy.prefetch),
            order,
            waiting: HashMap::new(),
            running: HashMap::new(),
            tags: 0,
            renew: Moment::ORIGIN,
            count: Moment::ORIGIN,
            measure: Moment::ORIGIN,
            look: Moment::ORIGIN,
        };
        session.health.send_modify(|health| {
            (health.subscribed, health.error) = (true, None);
        });
        Ok(session)
    }

    /// Works until `cancel` or until the broker is lost. In both cases what is in hand is finished
    /// or given back first.
    pub(super) async fn run(
        &mut self,
        cancel: &CancellationToken,
        summary: &mut Summary,
    ) -> Result<(), MessagingError> {
        let worked = self.work_on(cancel, summary).await;
        let drained = self.drain(summary).await;
        worked.and(drained)
    }

    async fn work_on(
        &mut self,
        cancel: &CancellationToken,
        summary: &mut Summary,
    ) -> Result<(), MessagingError> {
        let parks = self.work.room.parked().is_some();
        loop {
            let (room, wake) = match self.intake.ask(clock::now(), self.in_hand()) {
                intake::Decision::Take(room) => (room, self.renew),
                intake::Decision::Wait(until) => (0, self.renew.min(until)),
            };
            self.report();
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Ok(()),
                Some(ended) = self.tasks.join_next() => self.ended(ended, summary).await?,
                () = clock::sleep_until(wake) => self.tick().await?,
                () = clock::sleep_until(self.look), if parks && room > 0 => {
                    self.look_for_rows(room, summary).await?;
                }
                // Also without room: a handler that hangs must not hide that the channel is gone.
                () = self.subscription.lost() => {
                    self.subscription.take(0).await?;
                }
                () = self.subscription.ready(), if room > 0 => {
                    // Taken outside of the select: what a dropped `take` had leased would be lost
                    // until its lease ends.
                    let taken = self.subscription.take(room).await?;
                    self.taken(taken, summary).await?;
                }
            }
        }
    }

    fn in_hand(&self) -> u32 {
        u32::try_from(self.waiting.len() + self.running.len()).unwrap_or(u32::MAX)
    }

    fn report(&self) {
        let (phase, in_hand) = (self.intake.phase(), self.in_hand());
        self.health.send_if_modified(|health| {
            let changed = (health.phase, health.in_hand) != (phase, in_hand);
            (health.phase, health.in_hand) = (phase, in_hand);
            if phase == Phase::Flowing {
                health.missing = None;
            }
            changed
        });
    }

    /// Tells the intake what a message's end says about those after it.
    fn heed(&mut self, end: &End) {
        if end.event == intake::Event::Unavailable {
            self.health.send_modify(|health| health.missing = Some(end.reason.clone()));
        }
        if let Some(phase) = self.intake.tell(clock::now(), end.event, end.pause) {
            observe::phase(&self.work.policy.queue, phase, &end.reason);
        }
    }

    /// Renews leases when that is due. An early call, at the end of a pause, does nothing.
    async fn tick(&mut self) -> Result<(), MessagingError> {
        if clock::now() < self.renew {
            return Ok(());
        }
        let now = clock::now();
        self.renew = now.plus(self.renew_every());
        self.keep().await?;
        self.measure().await;
        let policy = &self.work.policy;
        let mut queues = vec![policy.queue.clone(), policy.dlq()];
        match &self.work.room {
            AnyRoom::Own(_) | AnyRoom::Parked(_) if now < self.count => {}
            AnyRoom::Own(room) => match room.stats().await {
                Ok((rows, age)) => {
                    self.count = now.plus(COUNT_EVERY);
                    observe::parked(policy.consumer(), rows, age);
                }
                Err(error) => observe::aside(&policy.queue, &error),
            },
            AnyRoom::Parked(room) => match room.stats().await {
                Ok((rows, oldest)) => {
                    self.count = now.plus(COUNT_EVERY);
                    let age = oldest.map_or(Duration::ZERO, |oldest| room.now().since(oldest));
                    observe::parked(policy.consumer(), rows, age);
                }
                Err(error) => observe::aside(&policy.queue, &error),
            },
            AnyRoom::Tiers(_) => queues.extend(policy.waits().into_iter().map(|wait| wait.queue)),
        }
        let (taken, settled) = {
            let health = self.health.borrow();
            (health.last_delivery, health.last_settlement)
        };
        let age = |at: WallTime| clock::wall().since(at);
        observe::ages(&policy.queue, taken.map(age), settled.map(age));
        for queue in queues {
            observe::depth(&queue, self.work.broker.depth(&queue).await?);
        }
        Ok(())
    }

    /// Measures the database's clock, in which leases and due times are. A database that is away leaves
    /// what was measured before.
    async fn measure(&mut self) {
        let Some(store) = self.work.store.as_ref().filter(|_| clock::now() >= self.measure) else {
            return;
        };
        let end = clock::instant_of(clock::now().plus(ASK_LIMIT));
        let measured = tokio::time::timeout_at(end, store.clock(clock::wall)).await;
        let next = if matches!(measured, Ok(Ok(_))) { MEASURE_EVERY } else { MEASURE_AGAIN };
        self.measure = clock::now().plus(next);
        if let Ok(Err(error)) = measured {
            observe::aside(&self.work.policy.queue, &error);
        }
    }

    fn renew_every(&self) -> Duration {
        let every = self.subscription.renew_every();
        if self.work.room.parked().is_some() { every.min(RENEW_EVERY) } else { every }
    }

    /// Says that everything in hand is still in good hands.
    async fn keep(&self) -> Result<(), MessagingError> {
        if self.in_hand() > 0 {
            self.subscription.renew().await?;
        }
        // The database may be away while the broker is not: leases then run out, nothing else.
        let queue = &self.work.policy.queue;
        let rows = self.rows();
        if let (Some(room), false) = (self.work.room.parked(), rows.is_empty())
            && let Err(error) = room.renew(&rows).await
        {
            observe::aside(queue, &error);
        }
        let suspects = self.running.values().any(|running| running.suspect);
        if let (Some(store), true) = (&self.work.store, suspects) {
            let (consumer, alive) = (self.work.policy.consumer(), self.alive());
            let now = || store.time(clock::wall());
            if let Err(error) = attempts::renew(store, consumer, alive, now).await {
                observe::aside(queue, &error);
            }
        }
        Ok(())
    }

    /// The rows in hand.
    fn rows(&self) -> Vec<i64> {
        let waiting = self.waiting.values().filter_map(Hand::row);
        self.running.values().filter_map(|running| running.row).chain(waiting).collect()
    }

    fn alive(&self) -> Duration {
        let alive = alive(&*self.subscription);
        let rows = Parked::<B, DB>::alive();
        if self.work.room.parked().is_some() { alive.max(rows) } else { alive }
    }

    /// Messages from the broker. Those whose key waits in the database wait behind it.
    async fn taken(
        &mut self,
        taken: Vec<Delivery>,
        summary: &mut Summary,
    ) -> Result<(), MessagingError> {
        if taken.is_empty() {
            return Ok(());
        }
        let now = clock::wall();
        self.health.send_modify(|health| health.last_delivery = Some(now));
        let behind = self.behind(&taken).await;
        for delivery in taken {
            self.came_back(&delivery.message, now);
            self.tags += 1;
            let hand = Hand::of_broker(self.tags, delivery);
            let waits = behind.contains(&hand.message().id);
            self.arrived(hand, waits, summary).await?;
        }
        Ok(())
    }

    /// Tells when a message comes back from the broker's waiting rooms. Rows have their own due time, and
    /// what waits in its own queue tells nothing before its row is read.
    fn came_back(&self, message: &Message, now: WallTime) {
        let policy = &self.work.policy;
        if matches!(self.work.room, AnyRoom::Tiers(_))
            && let Some(back) = alarm::returned(&message.headers, policy, now)
        {
            observe::returned(&policy.queue, message, back);
        }
    }

    /// Which of these have to wait, as far as is known: a hint that keeps handlers from beginning in
    /// vain. Without an answer the handler's own transaction finds out.
    async fn behind(&self, taken: &[Delivery]) -> HashSet<String> {
        let Some(room) = self.work.room.parked() else { return HashSet::new() };
        let asked: Vec<(&str, &str)> = taken
            .iter()
            .map(|delivery| (delivery.message.id.as_str(), delivery.message.key.as_str()))
            .collect();
        match room.look_up(&asked).await {
            Ok(known) => known.into_iter().collect(),
            Err(error) => {
                observe::aside(&self.work.policy.queue, &error);
                HashSet::new()
            }
        }
    }

    /// Claims parked rows that are due.
    async fn look_for_rows(
        &mut self,
        max: u32,
        summary: &mut Summary,
    ) -> Result<(), MessagingError> {
        let Some(room) = self.work.room.parked() else { return Ok(()) };
        let looked = async {
            let next = room.next_look().await?;
            if !next.is_zero() {
                return Ok((Vec::new(), next));
            }
            let rows = room.claim(max).await?;
            let full = u32::try_from(rows.len()).is_ok_and(|rows| rows >= max);
            let next = if full { Duration::ZERO } else { room.next_look().await? };
            Ok::<_, MessagingError>((rows, next))
        };
        let (rows, next) = match looked.await {
            Ok(found) => found,
            Err(error) => {
                observe::aside(&self.work.policy.queue, &error);
                (Vec::new(), STORE_DELAY)
            }
        };
        // A row that is due and not to be had is in somebody's way for a moment.
        let soon = if rows.is_empty() { Duration::from_millis(20) } else { Duration::ZERO };
        self.look = clock::now().plus(next.max(soon));
        for row in rows {
            self.tags += 1;
            self.arrived(Hand::of_row(self.tags, row), false, summary).await?;
        }
        Ok(())
    }

    /// A message came; `waits` when one of its key, or it itself, is known to wait in the database.
    async fn arrived(
        &mut self,
        hand: Hand,
        waits: bool,
        summary: &mut Summary,
    ) -> Result<(), MessagingError> {
        let (tag, message) = (hand.tag, hand.message());
        match self.order.ask(clock::now(), &message.key, &message.id, tag) {
            // Its turn within its key comes first: what waits here was earlier.
            Arrival::Start if waits => self.park(hand, summary).await?,
            Arrival::Start => self.start(hand),
            Arrival::Follow => {
                self.waiting.insert(tag, hand);
            }
            Arrival::GiveBack(delay) => self.hold(hand, delay, summary).await?,
        }
        Ok(())
    }

    /// An earlier one of its key waits elsewhere.
    async fn hold(
        &mut self,
        hand: Hand,
        delay: Duration,
        summary: &mut Summary,
    ) -> Result<(), MessagingError> {
        summary.given_back = summary.given_back.saturating_add(1);
        let fate = match self.work.line_up(&self.subscription, &hand, delay).await? {
            Some(end) => end.fate,
            None => {
                let delay = delay.min(self.subscription.holds_for());
                self.work.give_back(&self.subscription, &hand, delay).await?;
                Fate::Returns(delay)
            }
        };
        let (now, Message { id, key, .. }) = (clock::now(), hand.message());
        match fate {
            Fate::Returns(after) => self.order.away(now, key, id, after),
            Fate::Left | Fate::Parked => self.order.gone(now, key, id),
        }
        Ok(())
    }

    /// It is its turn within its key, and an earlier one of the key waits in the database, or did a
    /// moment ago.
    async fn park(&mut self, hand: Hand, summary: &mut Summary) -> Result<(), MessagingError> {
        let Message { id, key, .. } = hand.message();
        if key.is_empty() {
            // Its own row waits: this is the original of a copy that is safe.
            self.work.ack(&self.subscription, &hand).await?;
            self.order.tell(clock::now(), key, id, Fate::Left);
            return Ok(());
        }
        let Some(end) = self.work.line_up(&self.subscription, &hand, Duration::ZERO).await? else {
            self.start(hand);
            return Ok(());
        };
        summary.given_back = summary.given_back.saturating_add(1);
        if end.event == intake::Event::Unavailable {
            self.heed(&end);
        }
        // Nobody has followed it in the meantime: this is the only place where messages arrive.
        self.order.tell(clock::now(), key, id, end.fate);
        Ok(())
    }

    fn start(&mut self, hand: Hand) {
        let (id, suspect) = (hand.message().id.clone(), hand.delivery.suspect);
        self.running.insert(hand.tag, Running { id, suspect, row: hand.row() });
        let (work, subscription) = (Arc::clone(self.work), Arc::clone(&self.subscription));
        #[expect(
            clippy::disallowed_methods,
            reason = "the set belongs to this session, which reads every result"
        )]
        self.tasks.spawn(work.process(subscription, hand));
    }

    async fn ended(
        &mut self,
        ended: Result<Finished, JoinError>,
        summary: &mut Summary,
    ) -> Result<(), MessagingError> {
        // The handler's panics are caught in its task, so this is a panic of our own.
        let Finished { hand, end } = ended.map_err(|_| MessagingError::LostTask)?;
        self.running.remove(&hand.tag);
        let end = end?;
        count(summary, &end);
        let (now, wall) = (clock::now(), clock::wall());
        self.health.send_if_modified(|health| {
            health.last_settlement = Some(wall);
            // Of no use to somebody who waits for a change.
            false
        });
        if let Some(due) = end.due_in {
            self.look = self.look.min(now.plus(due));
        }
        self.heed(&end);
        let Hand { delivery: Delivery { message, .. }, .. } = &hand;
        for next in self.order.tell(now, &message.key, &message.id, end.fate) {
            let tag = match next {
                Next::Start(tag) | Next::GiveBack(tag, _) | Next::Park(tag) => tag,
            };
            let Some(hand) = self.waiting.remove(&tag) else { continue };
            match next {
                Next::Start(_) => self.start(hand),
                Next::GiveBack(_, delay) => self.hold(hand, delay, summary).await?,
                Next::Park(_) => self.arrived(hand, true, summary).await?,
            }
        }
        if end.fate == Fate::Left && self.work.room.parked().is_some() && hand.is_parked() {
            // The next one of its key may go now.
            self.look = now;
        }
        Ok(())
    }

    /// Finishes what runs within the grace period, cuts off the rest, gives everything back.
    async fn drain(&mut self, summary: &mut Summary) -> Result<(), MessagingError> {
        self.health.send_modify(|health| health.subscribed = false);
        summary.given_back += self.waiting.len() as u64;
        self.waiting.clear();
        let end = clock::now().plus(self.options.grace);
        while !self.tasks.is_empty() {
            tokio::select! {
                biased;
                Some(ended) = self.tasks.join_next() => {
                    if let Ok(Finished { hand, end }) = ended {
                        self.running.remove(&hand.tag);
                        self.drained(&hand, end, summary);
                    }
                }
                () = clock::sleep_until(self.renew.min(end)) => {
                    if clock::now() >= end {
                        break;
                    }
                    self.renew = clock::now().plus(self.renew_every());
                    if let Err(error) = self.keep().await {
                        observe::aside(&self.work.policy.queue, &error);
                    }
                }
            }
        }
        self.tasks.shutdown().await;
        self.cut_off(summary).await;
        self.order.let_go();
        if let Some(room) = self.work.room.parked()
            && let Err(error) = room.release_all().await
        {
            observe::aside(&self.work.policy.queue, &error);
        }
        self.subscription.close().await?;
        Ok(())
    }

    fn drained(&mut self, hand: &Hand, end: Result<End, MessagingError>, summary: &mut Summary) {
        match end {
            Ok(end) => {
                count(summary, &end);
                let message = hand.message();
                // What waited behind it goes back with everything else.
                self.order.tell(clock::now(), &message.key, &message.id, end.fate);
            }
            Err(error) => observe::aside(&self.work.policy.queue, &error),
        }
    }

    /// What still ran was cut off by us: no process died of it.
    async fn cut_off(&mut self, summary: &mut Summary) {
        let (queue, consumer) = (&self.work.policy.queue, self.work.policy.consumer());
        for (_, Running { id, suspect, .. }) in std::mem::take(&mut self.running) {
            summary.aborted += 1;
            let (Some(store), true) = (&self.work.store, suspect) else { continue };
            let now = store.time(clock::wall());
            if let Err(error) = attempts::ended(store, consumer, &id, now).await {
                observe::aside(queue, &error);
            }
        }
    }
}

fn count(summary: &mut Summary, end: &End) {
    let counter = match end.outcome {
        "done" => &mut summary.done,
        "dead" => &mut summary.dead,
        "retried" => &mut summary.retried,
        _ => &mut summary.given_back,
    };
    *counter = counter.saturating_add(1);
}

//! One subscription, from its beginning to its end or its loss.

use std::collections::HashMap;
use std::sync::Arc;

use mamparo_call::clock;
use mamparo_core::message::intake::{self, Intake};
use mamparo_core::message::order::{Arrival, KeyOrder, Next};
use mamparo_core::time::Moment;
use mamparo_store::{Backend, attempts};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::work::{End, Finished, Work, alive};
use super::{ConsumerHealth, ConsumerOptions, Summary};
use crate::broker::{Delivery, Subscription};
use crate::{Broker, Handler, MessagingError, observe};

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
    waiting: HashMap<i64, Delivery>,
    /// Being handled: the message ids, by tag.
    running: HashMap<i64, String>,
    renew: Moment,
}

impl<'c, B: Broker, DB: Backend, H: Handler<DB>> Session<'c, B, DB, H> {
    pub(super) async fn open(
        work: &'c Arc<Work<B, DB, H>>,
        options: ConsumerOptions,
        health: &'c watch::Sender<ConsumerHealth>,
        order: &'c mut KeyOrder,
    ) -> Result<Self, MessagingError> {
        work.broker.declare(&work.policy).await?;
        let subscription =
            Arc::new(work.broker.consume(&work.policy.queue, work.policy.prefetch).await?);
        observe::subscribed(&work.policy.queue, true);
        let session = Self {
            work,
            options,
            health,
            subscription,
            tasks: JoinSet::new(),
            intake: Intake::new(work.policy.prefetch),
            order,
            waiting: HashMap::new(),
            running: HashMap::new(),
            renew: Moment::ORIGIN,
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
                // Also without room: a handler that hangs must not hide that the channel is gone.
                () = self.subscription.lost() => {
                    self.subscription.take(0).await?;
                }
                () = self.subscription.ready(), if room > 0 => {
                    // Taken outside of the select: what a dropped `take` had leased would be lost
                    // until its lease ends.
                    for delivery in self.subscription.take(room).await? {
                        self.arrived(delivery, summary).await?;
                    }
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
            changed
        });
    }

    /// Renews leases when that is due. An early call, at the end of a pause, does nothing.
    async fn tick(&mut self) -> Result<(), MessagingError> {
        if clock::now() < self.renew {
            return Ok(());
        }
        self.renew = clock::now().plus(self.subscription.renew_every());
        self.keep().await?;
        let policy = &self.work.policy;
        for queue in [policy.queue.clone(), policy.retry_queue(), policy.dlq()] {
            observe::depth(&queue, self.work.broker.depth(&queue).await?);
        }
        Ok(())
    }

    /// Says that everything in hand is still in good hands.
    async fn keep(&self) -> Result<(), MessagingError> {
        if self.in_hand() > 0 {
            self.subscription.renew().await?;
        }
        if self.running.is_empty() {
            return Ok(());
        }
        let (work, alive) = (self.work, alive(&*self.subscription));
        attempts::renew(&work.store, &work.policy.queue, alive, clock::wall)
            .await
            .map_err(MessagingError::store("renew attempts"))
    }

    async fn arrived(
        &mut self,
        delivery: Delivery,
        summary: &mut Summary,
    ) -> Result<(), MessagingError> {
        let now = clock::wall();
        self.health.send_modify(|health| health.last_delivery = Some(now));
        let (tag, message) = (delivery.receipt.tag, &delivery.message);
        match self.order.ask(clock::now(), &message.key, &message.id, tag) {
            Arrival::Start => self.start(delivery),
            Arrival::Follow => {
                self.waiting.insert(tag, delivery);
            }
            Arrival::GiveBack(delay) => {
                summary.given_back += 1;
                self.work.give_back(&self.subscription, &delivery, delay).await?;
            }
        }
        Ok(())
    }

    fn start(&mut self, delivery: Delivery) {
        self.running.insert(delivery.receipt.tag, delivery.message.id.clone());
        let (work, subscription) = (Arc::clone(self.work), Arc::clone(&self.subscription));
        #[expect(
            clippy::disallowed_methods,
            reason = "the set belongs to this session, which reads every result"
        )]
        self.tasks.spawn(work.process(subscription, delivery));
    }

    async fn ended(
        &mut self,
        ended: Result<Finished, JoinError>,
        summary: &mut Summary,
    ) -> Result<(), MessagingError> {
        // The handler's panics are caught in its task, so this is a panic of our own.
        let Finished { delivery, end } = ended.map_err(|_| MessagingError::LostTask)?;
        self.running.remove(&delivery.receipt.tag);
        let end = end?;
        count(summary, &end);
        let now = clock::now();
        if let Some(phase) = self.intake.tell(now, end.event, end.pause) {
            observe::phase(&self.work.policy.queue, phase, &end.reason);
        }
        let (key, id) = (&delivery.message.key, &delivery.message.id);
        for next in self.order.tell(now, key, id, end.fate) {
            match next {
                Next::Start(tag) => {
                    if let Some(delivery) = self.waiting.remove(&tag) {
                        self.start(delivery);
                    }
                }
                Next::GiveBack(tag, delay) => {
                    if let Some(delivery) = self.waiting.remove(&tag) {
                        summary.given_back += 1;
                        self.work.give_back(&self.subscription, &delivery, delay).await?;
                    }
                }
            }
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
                    if let Ok(Finished { delivery, end }) = ended {
                        self.running.remove(&delivery.receipt.tag);
                        match end {
                            Ok(end) => {
                                count(summary, &end);
                                let (key, id) = (&delivery.message.key, &delivery.message.id);
                                // What waited behind it goes back with everything else.
                                self.order.tell(clock::now(), key, id, end.fate);
                            }
                            Err(error) => observe::aside(&self.work.policy.queue, &error),
                        }
                    }
                }
                () = clock::sleep_until(self.renew.min(end)) => {
                    if clock::now() >= end {
                        break;
                    }
                    self.renew = clock::now().plus(self.subscription.renew_every());
                    if let Err(error) = self.keep().await {
                        observe::aside(&self.work.policy.queue, &error);
                    }
                }
            }
        }
        self.tasks.shutdown().await;
        for (_, id) in std::mem::take(&mut self.running) {
            summary.aborted += 1;
            // Cut off by us: no process died of it.
            let queue = &self.work.policy.queue;
            if let Err(error) = attempts::ended(&self.work.store, queue, &id, clock::wall()).await {
                observe::aside(queue, &error);
            }
        }
        self.order.let_go();
        self.subscription.close().await?;
        Ok(())
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

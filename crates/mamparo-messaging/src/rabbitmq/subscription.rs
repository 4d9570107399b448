//! Consuming: one connection and one channel per subscription, which ends with either of them.
//!
//! A task reads deliveries and sends settlements. Settling is local: it marks the delivery in the
//! [`Ledger`] and wakes the task, which sends whatever has come together since it last looked, in
//! as few frames as are right. Nothing waits for company; company is what arrives meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{FutureExt as _, StreamExt as _};
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use mamparo_call::clock;
use mamparo_core::message::closure::{Closure, Kind};
use mamparo_core::message::ledger::Ledger;
use mamparo_core::time::Moment;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::connection::{Connector, closure_of};
use super::convert;
use super::mend::Mending;
use crate::broker::{Delivery, Receipt, Settled, Subscription};
use crate::{MessagingError, observe};

/// The longest that a message is kept back unacknowledged. Longer, and a few keys that wait would
/// fill the prefetch.
const HOLDS_FOR: Duration = Duration::from_secs(1);

/// How long a channel stays open after its last settlement. It hands them to a quorum queue 32 at a
/// time and forgets the rest when it is closed, also in order: the messages would come again (RabbitMQ
/// 3.10.8: 467 of 500 that were acknowledged one by one).
const LINGER: Duration = Duration::from_millis(200);

/// How often a consumer says that it lives. The broker needs no such word, its heartbeats do that;
/// the attempt rows in the consumer's store do.
const RENEW_EVERY: Duration = Duration::from_secs(3);

/// Numbers hand-outs over all channels of the process, so that a receipt of an earlier channel never
/// equals one of a later.
static EPOCHS: AtomicI64 = AtomicI64::new(1);

/// A consumer of one RabbitMQ queue.
#[derive(Debug)]
pub struct RabbitMqSubscription {
    inner: Arc<Inner>,
    reader: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Inner {
    queue: String,
    tag: String,
    connector: Connector,
    connection: Connection,
    /// The connection's relay, if it has one.
    _mending: Option<Mending>,
    channel: Channel,
    state: Mutex<State>,
    /// Something to take, or the end.
    arrived: Notify,
    /// Something to send.
    settled: Notify,
    /// The end.
    over: Notify,
}

#[derive(Debug, Default)]
struct State {
    ledger: Ledger,
    /// Delivered and not handed out, oldest first.
    fresh: VecDeque<Delivery>,
    /// Kept back until then.
    held: BTreeMap<(Moment, i64), Delivery>,
    lost: Option<Closure>,
    /// The reader is to stop, once it has sent what it is sending.
    closing: bool,
    /// When the last settlement was sent.
    sent: Moment,
}

impl RabbitMqSubscription {
    pub(super) async fn open(
        connector: &Connector,
        queue: &str,
        prefetch: u32,
    ) -> Result<Self, Closure> {
        let (connection, mending) = connector.open_consumer(queue).await?;
        let channel = connector.within(connection.create_channel()).await?;
        // 0 would mean without limit.
        let prefetch = u16::try_from(prefetch).unwrap_or(u16::MAX).max(1);
        connector.within(channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
        let tag = format!("mamparo-{}", uuid::Uuid::now_v7());
        let asked = channel.basic_consume(
            queue.into(),
            tag.as_str().into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let deliveries = connector.within(asked).await?;
        let inner = Arc::new(Inner {
            queue: queue.to_owned(),
            tag,
            connector: connector.clone(),
            connection,
            _mending: mending,
            channel,
            state: Mutex::default(),
            arrived: Notify::new(),
            settled: Notify::new(),
            over: Notify::new(),
        });
        let mut reader = JoinSet::new();
        #[expect(
            clippy::disallowed_methods,
            reason = "the set belongs to the subscription and is aborted with it; its end is an error of take"
        )]
        reader.spawn(Arc::clone(&inner).read(deliveries));
        Ok(Self { inner, reader: Mutex::new(reader) })
    }

    /// Settles in the ledger and has it sent.
    fn settle(&self, settle: impl FnOnce(&mut Ledger) -> bool) -> Settled {
        let mut state = self.inner.state();
        // On a dead channel there is nothing to settle: the broker hands the message out again.
        if state.lost.is_some() || !settle(&mut state.ledger) {
            return Settled::Stale;
        }
        drop(state);
        self.inner.settled.notify_one();
        Settled::Done
    }

    /// Not cut off: what the ledger counts as sent would stay unsent.
    async fn stop_reading(&self) {
        self.inner.state().closing = true;
        self.inner.settled.notify_one();
        // A set of tasks can't be left half written.
        let mut reader =
            std::mem::take(&mut *self.reader.lock().unwrap_or_else(PoisonError::into_inner));
        // It ends with the limit of a settlement at the latest.
        while reader.join_next().await.is_some() {}
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code that could panic runs while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(self: Arc<Self>, mut deliveries: lapin::Consumer) {
        loop {
            let done = tokio::select! {
                first = deliveries.next() => self.arrive(first, &mut deliveries),
                () = self.settled.notified() => self.connector.within(self.flush()).await,
            };
            if let Err(closure) = done {
                return self.end(closure).await;
            }
            if self.state().closing {
                return;
            }
        }
    }

    /// Takes in all that have come, under one lock and with one wake-up.
    fn arrive(
        &self,
        first: Option<lapin::Result<lapin::message::Delivery>>,
        deliveries: &mut lapin::Consumer,
    ) -> Result<(), Closure> {
        let (mut next, mut arrived) = (Some(first), VecDeque::new());
        let ended = loop {
            match next {
                Some(Some(Ok(delivery))) => arrived.push_back(delivery_of(delivery)),
                Some(Some(Err(error))) => break Err(closure_of(&error)),
                // The stream ends without a word when the broker cancels the consumer.
                Some(None) if self.channel.status().connected() => {
                    let text = "the broker cancelled the consumer";
                    break Err(Closure::new(Kind::Cancelled, text));
                }
                Some(None) => {
                    break Err(Closure::new(Kind::Disconnected, "the deliveries ended"));
                }
                None => break Ok(()),
            }
            next = deliveries.next().now_or_never();
        };
        let mut state = self.state();
        for delivery in &arrived {
            state.ledger.arrived(delivery.receipt.tag.unsigned_abs());
        }
        state.fresh.append(&mut arrived);
        drop(state);
        self.arrived.notify_one();
        ended
    }

    /// Sends every settlement that has come together.
    async fn flush(&self) -> lapin::Result<()> {
        let wire = {
            let mut state = self.state();
            let wire = state.ledger.flush();
            if !wire.is_empty() {
                state.sent = clock::now();
            }
            wire
        };
        let reject = BasicRejectOptions { requeue: true };
        let rejected = wire.rejects.into_iter().map(|tag| self.channel.basic_reject(tag, reject));
        for sent in join_all(rejected).await {
            sent?;
        }
        if let Some(tag) = wire.through {
            self.channel.basic_ack(tag, BasicAckOptions { multiple: true }).await?;
        }
        let single = BasicAckOptions::default();
        let acked = wire.singles.into_iter().map(|tag| self.channel.basic_ack(tag, single));
        for sent in join_all(acked).await {
            sent?;
        }
        Ok(())
    }

    async fn end(&self, closure: Closure) {
        observe::subscription_ended(&self.queue, &closure);
        self.connector.learn(&self.queue, &closure);
        self.mark(closure);
        // After a cancel the channel lives and holds what was in hand: let it go at once.
        if self.connection.status().connected() {
            let closed = self.connection.close(200, "the subscription ended".into());
            if let Err(closure) = self.connector.within(closed).await {
                observe::subscription_ended(&self.queue, &closure);
            }
        }
    }

    /// It is over: nothing is handed out and nothing is settled any more.
    fn mark(&self, closure: Closure) {
        let mut state = self.state();
        // The broker hands all of them out again.
        *state = State { lost: Some(closure), ..State::default() };
        drop(state);
        self.arrived.notify_one();
        self.over.notify_one();
    }

    fn error(&self, operation: &str, closure: Closure) -> MessagingError {
        let operation = format!("{operation} queue {:?}", self.queue);
        MessagingError::Broker { operation, closure }
    }

    async fn hand_back(&self) -> Result<u64, Closure> {
        let cancel = BasicCancelOptions::default();
        let cancelled = self.channel.basic_cancel(self.tag.as_str().into(), cancel);
        self.connector.within(cancelled).await?;
        self.connector.within(self.flush()).await?;
        let (open, sent) = {
            let state = self.state();
            (state.ledger.open(), state.sent)
        };
        clock::sleep_until(sent.plus(LINGER)).await;
        // The end of the channel gives back in order. `basic.nack` with `multiple` would not: a quorum
        // queue returns more than 32 messages in any order.
        self.connector.within(self.channel.close(200, "done".into())).await?;
        self.connector.within(self.connection.close(200, "done".into())).await?;
        Ok(u64::try_from(open).unwrap_or(u64::MAX))
    }
}

/// A delivery that nobody holds yet.
fn delivery_of(delivery: lapin::message::Delivery) -> Delivery {
    let message = convert::incoming(
        delivery.exchange.as_str(),
        delivery.routing_key.as_str(),
        &delivery.properties,
        delivery.data,
    );
    let tag = i64::try_from(delivery.delivery_tag).unwrap_or(i64::MAX);
    Delivery { receipt: Receipt { tag, epoch: 0 }, suspect: delivery.redelivered, message }
}

impl Subscription for RabbitMqSubscription {
    async fn ready(&self) {
        loop {
            let due = {
                let state = self.inner.state();
                if state.lost.is_some() || !state.fresh.is_empty() {
                    return;
                }
                state.held.first_key_value().map(|((due, _), _)| *due)
            };
            match due {
                Some(due) if due <= clock::now() => return,
                Some(due) => tokio::select! {
                    () = self.inner.arrived.notified() => {}
                    () = clock::sleep_until(due) => {}
                },
                None => self.inner.arrived.notified().await,
            }
        }
    }

    async fn lost(&self) {
        while self.inner.state().lost.is_none() {
            self.inner.over.notified().await;
        }
        // For whoever else waits.
        self.inner.over.notify_one();
    }

    async fn take(&self, max: u32) -> Result<Vec<Delivery>, MessagingError> {
        let mut state = self.inner.state();
        if let Some(closure) = &state.lost {
            return Err(self.inner.error("consume", closure.clone()));
        }
        let (now, mut taken) = (clock::now(), Vec::new());
        for _ in 0..max {
            let due = state.held.first_key_value().is_some_and(|((due, _), _)| *due <= now);
            let next = if due {
                state.held.pop_first().map(|(_, delivery)| delivery)
            } else {
                state.fresh.pop_front()
            };
            let Some(mut delivery) = next else { break };
            let epoch = EPOCHS.fetch_add(1, Ordering::Relaxed);
            state.ledger.hand_out(delivery.receipt.tag.unsigned_abs(), epoch);
            delivery.receipt.epoch = epoch;
            taken.push(delivery);
        }
        Ok(taken)
    }

    fn renew_every(&self) -> Duration {
        RENEW_EVERY
    }

    async fn renew(&self) -> Result<(), MessagingError> {
        let lost = self.inner.state().lost.clone();
        lost.map_or(Ok(()), |closure| Err(self.inner.error("consume", closure)))
    }

    async fn ack(&self, receipt: Receipt) -> Result<Settled, MessagingError> {
        Ok(self.settle(|ledger| ledger.ack(receipt.tag.unsigned_abs(), receipt.epoch)))
    }

    async fn give_back(
        &self,
        delivery: &Delivery,
        delay: Duration,
    ) -> Result<Settled, MessagingError> {
        let Receipt { tag, epoch } = delivery.receipt;
        let due = clock::now().plus(delay.min(HOLDS_FOR));
        let mut state = self.inner.state();
        if state.lost.is_some() || !state.ledger.recall(tag.unsigned_abs(), epoch) {
            return Ok(Settled::Stale);
        }
        // Whether it is a suspect is the consumer's to say: its handler may not have run yet.
        state.held.insert((due, tag), delivery.clone());
        drop(state);
        self.inner.arrived.notify_one();
        Ok(Settled::Done)
    }

    fn holds_for(&self) -> Duration {
        HOLDS_FOR
    }

    async fn reject(&self, receipt: Receipt) -> Result<Settled, MessagingError> {
        Ok(self.settle(|ledger| ledger.reject(receipt.tag.unsigned_abs(), receipt.epoch)))
    }

    async fn close(&self) -> Result<u64, MessagingError> {
        self.stop_reading().await;
        let open = {
            let state = self.inner.state();
            if state.lost.is_some() {
                // Given back already, by the end of the channel.
                return Ok(0);
            }
            state.ledger.open()
        };
        let given = match self.inner.hand_back().await {
            Ok(given) => given,
            Err(closure) => {
                // The end of the channel gives back as well.
                observe::subscription_ended(&self.inner.queue, &closure);
                u64::try_from(open).unwrap_or(u64::MAX)
            }
        };
        self.inner.state().lost = Some(Closure::new(Kind::Closed, "the subscription was closed"));
        Ok(given)
    }
}

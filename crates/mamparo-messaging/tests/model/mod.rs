//! A broker in memory that follows the rules of a RabbitMQ release, for those that are not at hand.
//!
//! It knows what our consumers rely on and nothing else: routing, TTL and dead-lettering with `x-death`
//! and cycles, limits, delivery counts, delayed retry and the consumer timeout. One node, no
//! replication, no frames. What 3.10 does here is checked against the real one by the same suites.
#![allow(dead_code, unreachable_pub, missing_debug_implementations, reason = "files use a part")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "these are tests")]

pub mod node;
pub mod rules;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::message::capabilities::{Capabilities, Version};
use mamparo_core::message::closure::{Closure, Kind};
use mamparo_core::message::topology::QueuePolicy;
use mamparo_core::message::topology::plan::{Difference, Plan, Seen, Subject, Theirs, subjects};
use mamparo_core::time::Moment;
use mamparo_messaging::any::AnyLetters;
use mamparo_messaging::broker::{Delivery, Filter, Receipt, Settled, Stored, Subscription, sealed};
use mamparo_messaging::letters::Place;
use mamparo_messaging::{Broker, Confirm, Message, MessagingError};
use node::{Node, Return};
use tokio::sync::Notify;

/// The longest that a message is kept back in hand, as with the real one.
const HOLDS_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct ModelBroker {
    release: Version,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    node: Mutex<Node>,
    changed: Notify,
}

impl ModelBroker {
    pub fn new(release: Version) -> Self {
        let inner = Inner { node: Mutex::new(Node::new(release)), changed: Notify::new() };
        Self { release, inner: Arc::new(inner) }
    }

    /// Looks at the node, or meddles with it.
    pub fn with<T>(&self, act: impl FnOnce(&mut Node, Moment) -> T) -> T {
        let now = clock::now();
        let done = {
            let mut node = self.node();
            node.tick(now);
            act(&mut node, now)
        };
        self.inner.changed.notify_waiters();
        done
    }

    fn node(&self) -> MutexGuard<'_, Node> {
        self.inner.node.lock().unwrap()
    }

    /// Waits until `done` says so.
    async fn until(&self, done: impl Fn(&Node, Moment) -> bool, at: impl Fn() -> Option<Moment>) {
        loop {
            let changed = self.inner.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let (now, at) = (clock::now(), at());
            let next = {
                let mut node = self.node();
                node.tick(now);
                if done(&node, now) || at.is_some_and(|at| at <= now) {
                    return;
                }
                node.next(now)
            };
            let next = next.into_iter().chain(at).min();
            match next {
                Some(next) => tokio::select! {
                    () = changed => {}
                    () = clock::sleep_until(next) => {}
                },
                None => changed.await,
            }
        }
    }

    fn unknown(queue: &str) -> MessagingError {
        MessagingError::UnknownQueue { queue: queue.to_owned(), known: None }
    }
}

impl sealed::Sealed for ModelBroker {}

impl Broker for ModelBroker {
    type Subscription = ModelSubscription;
    type Letters = AnyLetters;

    fn capabilities(&self) -> Capabilities {
        Capabilities::rabbitmq(self.release)
    }

    async fn declare(&self, policy: &QueuePolicy) -> Result<(), MessagingError> {
        let problems = policy.problems();
        if !problems.is_empty() {
            return Err(MessagingError::Policy { queue: policy.queue.clone(), problems });
        }
        let able = self.capabilities();
        let topology = policy.topology(&able);
        self.with(|node, _| {
            let look = |subject: &Subject| {
                let Subject::Queue(name, _) = subject else { return Seen::Hidden };
                let ours = topology.queues.iter().find(|queue| queue.name == *name).unwrap();
                let Some(theirs) = node.declared(name) else { return Seen::Missing };
                let keys = ours.arguments.keys().chain(theirs.arguments.keys());
                let mut keys: Vec<&String> = keys.collect();
                keys.sort();
                keys.dedup();
                let of = |key: &String| {
                    let (ours, there) = (ours.arguments.get(key), theirs.arguments.get(key));
                    let theirs = there.cloned().map_or(Theirs::NotSet, Theirs::Value);
                    let key = key.clone();
                    (ours != there).then(|| Difference { key, ours: ours.cloned(), theirs })
                };
                let differences = keys.into_iter().filter_map(of).collect();
                Seen::There { differences, depth: None }
            };
            let seen = subjects(&topology).iter().map(look).collect();
            let plan = Plan::new(policy, &able, seen);
            if plan.refused() {
                return Err(MessagingError::Mismatch { plan: Box::new(plan) });
            }
            for queue in &topology.queues {
                node.declare(queue.clone());
            }
            for binding in &topology.bindings {
                node.bind(binding.clone());
            }
            Ok(())
        })
    }

    async fn publish(&self, exchange: &str, routing_key: &str, message: &Message) -> Confirm {
        self.with(|node, now| node.publish(exchange, routing_key, message, now))
    }

    async fn consume(
        &self,
        queue: &str,
        prefetch: u32,
    ) -> Result<ModelSubscription, MessagingError> {
        let consumer = self.with(|node, _| {
            node.declared(queue).is_some().then(|| node.subscribe(queue, prefetch))
        });
        let consumer = consumer.ok_or_else(|| Self::unknown(queue))?;
        Ok(ModelSubscription { broker: self.clone(), consumer, hands: Mutex::default() })
    }

    async fn depth(&self, queue: &str) -> Result<u64, MessagingError> {
        let ready = self.with(|node, now| node.ready(queue, now));
        ready.map(|ready| ready.len() as u64).ok_or_else(|| Self::unknown(queue))
    }

    async fn queues(&self) -> Result<Option<Vec<String>>, MessagingError> {
        Ok(None)
    }

    async fn browse(&self, queue: &str, filter: &Filter) -> Result<Vec<Stored>, MessagingError> {
        let ready = self.with(|node, now| node.ready(queue, now));
        let ready = ready.ok_or_else(|| Self::unknown(queue))?.into_iter();
        let stored = |(place, message)| Stored {
            tag: i64::try_from(place).unwrap(),
            since: clock::wall(),
            message,
        };
        Ok(ready.map(stored).take(usize::try_from(filter.max).unwrap()).collect())
    }

    /// Tools are tested on brokers that exist.
    async fn letters(&self, queue: &str, _: Place) -> Result<AnyLetters, MessagingError> {
        Err(Self::unknown(queue))
    }
}

/// What is out, and what is kept back.
#[derive(Debug, Default)]
struct Hands {
    epoch: i64,
    out: HashMap<i64, i64>,
    held: BTreeMap<(Moment, i64), Delivery>,
}

#[derive(Debug)]
pub struct ModelSubscription {
    broker: ModelBroker,
    consumer: u64,
    hands: Mutex<Hands>,
}

impl ModelSubscription {
    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.hands.lock().unwrap()
    }

    fn settle(
        &self,
        receipt: Receipt,
        act: impl FnOnce(&mut Node, u64, Moment) -> bool,
    ) -> Settled {
        let current = {
            let mut hands = self.hands();
            let current = hands.out.get(&receipt.tag) == Some(&receipt.epoch);
            if current {
                hands.out.remove(&receipt.tag);
            }
            current
        };
        let place = u64::try_from(receipt.tag).unwrap();
        if current && self.broker.with(|node, now| act(node, place, now)) {
            Settled::Done
        } else {
            Settled::Stale
        }
    }
}

impl Subscription for ModelSubscription {
    async fn ready(&self) {
        let held = || self.hands().held.keys().next().map(|(due, _)| *due);
        let able = |node: &Node, now| {
            node.ended(self.consumer).is_some() || node.can_take(self.consumer, now)
        };
        self.broker.until(able, held).await;
    }

    async fn lost(&self) {
        self.broker.until(|node, _| node.ended(self.consumer).is_some(), || None).await;
    }

    async fn take(&self, max: u32) -> Result<Vec<Delivery>, MessagingError> {
        let ended = self.broker.with(|node, _| node.ended(self.consumer));
        if let Some(kind) = ended {
            let (operation, closure) = ("consume".to_owned(), Closure::new(kind, "the model"));
            return Err(MessagingError::Broker { operation, closure });
        }
        let (now, max) = (clock::now(), usize::try_from(max).unwrap());
        let mut taken = Vec::new();
        let mut hands = self.hands();
        while taken.len() < max
            && hands.held.first_key_value().is_some_and(|((due, _), _)| *due <= now)
        {
            taken.extend(hands.held.pop_first().map(|(_, delivery)| delivery));
        }
        let left = max - taken.len();
        let fresh = self.broker.with(|node, now| {
            let taken = node.take(self.consumer, left, now);
            taken
                .into_iter()
                .map(|(place, kept)| (place, kept.acquired > 0, node.shown(&kept)))
                .collect::<Vec<_>>()
        });
        taken.extend(fresh.into_iter().map(|(place, suspect, message)| {
            let receipt = Receipt { tag: i64::try_from(place).unwrap(), epoch: 0 };
            Delivery { receipt, suspect, message }
        }));
        for delivery in &mut taken {
            hands.epoch += 1;
            delivery.receipt.epoch = hands.epoch;
            let Receipt { tag, epoch } = delivery.receipt;
            hands.out.insert(tag, epoch);
        }
        Ok(taken)
    }

    fn renew_every(&self) -> Duration {
        Duration::from_secs(3)
    }

    async fn renew(&self) -> Result<(), MessagingError> {
        Ok(())
    }

    async fn ack(&self, receipt: Receipt) -> Result<Settled, MessagingError> {
        Ok(self.settle(receipt, |node, place, _| node.ack(self.consumer, place)))
    }

    async fn give_back(
        &self,
        delivery: &Delivery,
        delay: Duration,
    ) -> Result<Settled, MessagingError> {
        let Receipt { tag, epoch } = delivery.receipt;
        {
            let mut hands = self.hands();
            if hands.out.get(&tag) != Some(&epoch) {
                return Ok(Settled::Stale);
            }
            hands.out.remove(&tag);
            let due = clock::now().plus(delay.min(HOLDS_FOR));
            hands.held.insert((due, tag), delivery.clone());
        }
        self.broker.inner.changed.notify_waiters();
        Ok(Settled::Done)
    }

    fn holds_for(&self) -> Duration {
        HOLDS_FOR
    }

    async fn reject(&self, receipt: Receipt) -> Result<Settled, MessagingError> {
        let reject =
            |node: &mut Node, place, now| node.requeue(self.consumer, place, Return::Reject, now);
        Ok(self.settle(receipt, reject))
    }

    async fn close(&self) -> Result<u64, MessagingError> {
        *self.hands() = Hands::default();
        Ok(self.broker.with(|node, now| node.end(self.consumer, Kind::Closed, now)) as u64)
    }
}

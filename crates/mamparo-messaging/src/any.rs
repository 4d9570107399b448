//! The broker that an address names, for programs that take it as an argument.

use std::time::Duration;

use mamparo_core::message::capabilities::Capabilities;
use mamparo_core::message::topology::plan::{Seen, Subject};
use mamparo_core::message::topology::{QueuePolicy, Topology};

use crate::address::BrokerAddress;
use crate::broker::{
    Broker, Confirm, Delivery, Filter, Receipt, Settled, Stored, Subscription, sealed,
};
use crate::embedded::{EmbeddedLetters, EmbeddedSubscription};
use crate::letters::{Letters, Order, Place, Settling};
use crate::plan::Provision;
use crate::rabbitmq::{RabbitMqLetters, RabbitMqSubscription};
use crate::{EmbeddedBroker, Message, MessagingError, RabbitMqBroker};

/// One of the brokers.
#[derive(Debug, Clone)]
pub enum AnyBroker {
    /// `sqlite:PATH`.
    Embedded(EmbeddedBroker),
    /// `amqp://…` or `amqps://…`.
    RabbitMq(RabbitMqBroker),
}

impl AnyBroker {
    /// Opens the broker at `address`: `sqlite:PATH` (created when missing) or `amqp://…`.
    ///
    /// # Errors
    /// As [`EmbeddedBroker::open`] and [`RabbitMqBroker::connect`].
    pub async fn open(address: &str) -> Result<Self, MessagingError> {
        match BrokerAddress::parse(address)? {
            BrokerAddress::Amqp(_) => RabbitMqBroker::connect(address).await.map(Self::RabbitMq),
            BrokerAddress::File(_) | BrokerAddress::Memory => {
                EmbeddedBroker::open(address).await.map(Self::Embedded)
            }
        }
    }

    /// Opens the broker at `address` without creating one. For tools.
    ///
    /// # Errors
    /// As [`EmbeddedBroker::open_existing`] and [`RabbitMqBroker::connect`].
    pub async fn open_existing(address: &str) -> Result<Self, MessagingError> {
        match BrokerAddress::parse(address)? {
            BrokerAddress::Amqp(_) => RabbitMqBroker::connect(address).await.map(Self::RabbitMq),
            BrokerAddress::File(_) | BrokerAddress::Memory => {
                EmbeddedBroker::open_existing(address).await.map(Self::Embedded)
            }
        }
    }
}

impl AnyBroker {
    /// Closes its connections, after their work. Clones are closed with it.
    pub async fn close(&self) {
        match self {
            Self::Embedded(broker) => broker.store().close().await,
            Self::RabbitMq(broker) => broker.close(),
        }
    }
}

impl From<EmbeddedBroker> for AnyBroker {
    fn from(broker: EmbeddedBroker) -> Self {
        Self::Embedded(broker)
    }
}

impl From<RabbitMqBroker> for AnyBroker {
    fn from(broker: RabbitMqBroker) -> Self {
        Self::RabbitMq(broker)
    }
}

/// The same call on whichever it is.
macro_rules! on {
    ($any:expr, $enum:ident, $one:ident => $call:expr) => {
        match $any {
            $enum::Embedded($one) => $call,
            $enum::RabbitMq($one) => $call,
        }
    };
}

impl sealed::Sealed for AnyBroker {}

impl Broker for AnyBroker {
    type Subscription = AnySubscription;
    type Letters = AnyLetters;

    fn capabilities(&self) -> Capabilities {
        on!(self, AnyBroker, broker => broker.capabilities())
    }

    async fn declare(&self, policy: &QueuePolicy) -> Result<(), MessagingError> {
        on!(self, AnyBroker, broker => broker.declare(policy).await)
    }

    async fn publish(&self, exchange: &str, routing_key: &str, message: &Message) -> Confirm {
        on!(self, AnyBroker, broker => broker.publish(exchange, routing_key, message).await)
    }

    async fn consume(&self, queue: &str, prefetch: u32) -> Result<AnySubscription, MessagingError> {
        Ok(match self {
            Self::Embedded(broker) => {
                AnySubscription::Embedded(broker.consume(queue, prefetch).await?)
            }
            Self::RabbitMq(broker) => {
                AnySubscription::RabbitMq(broker.consume(queue, prefetch).await?)
            }
        })
    }

    async fn depth(&self, queue: &str) -> Result<u64, MessagingError> {
        on!(self, AnyBroker, broker => broker.depth(queue).await)
    }

    async fn queues(&self) -> Result<Option<Vec<String>>, MessagingError> {
        on!(self, AnyBroker, broker => broker.queues().await)
    }

    async fn browse(&self, queue: &str, filter: &Filter) -> Result<Vec<Stored>, MessagingError> {
        on!(self, AnyBroker, broker => broker.browse(queue, filter).await)
    }

    async fn letters(&self, queue: &str, place: Place) -> Result<AnyLetters, MessagingError> {
        Ok(match self {
            Self::Embedded(broker) => AnyLetters::Embedded(broker.letters(queue, place).await?),
            Self::RabbitMq(broker) => {
                AnyLetters::RabbitMq(Box::new(broker.letters(queue, place).await?))
            }
        })
    }
}

/// A tool's hand on dead letters of one of the brokers.
#[derive(Debug)]
pub enum AnyLetters {
    /// Of the embedded broker.
    Embedded(EmbeddedLetters),
    /// Of RabbitMQ.
    RabbitMq(Box<RabbitMqLetters>),
}

impl Letters for AnyLetters {
    fn total(&self) -> u64 {
        on!(self, AnyLetters, one => one.total())
    }

    async fn fetch(&mut self, max: u32) -> Result<Vec<Stored>, MessagingError> {
        on!(self, AnyLetters, one => one.fetch(max).await)
    }

    async fn arrivals(&mut self) -> Result<Vec<String>, MessagingError> {
        on!(self, AnyLetters, one => one.arrivals().await)
    }

    async fn settle(&mut self, orders: &[Order<'_>]) -> Result<Vec<Settling>, MessagingError> {
        on!(self, AnyLetters, one => one.settle(orders).await)
    }

    async fn handled(&mut self, queue: &str, id: &str) -> Result<Option<bool>, MessagingError> {
        on!(self, AnyLetters, one => one.handled(queue, id).await)
    }

    async fn close(self) -> Result<(), MessagingError> {
        match self {
            Self::Embedded(one) => one.close().await,
            Self::RabbitMq(one) => one.close().await,
        }
    }
}

impl Provision for AnyBroker {
    async fn look(&self, topology: &Topology) -> Result<Vec<Seen>, MessagingError> {
        on!(self, AnyBroker, broker => broker.look(topology).await)
    }

    async fn make(&self, topology: &Topology, subject: &Subject) -> Result<(), MessagingError> {
        on!(self, AnyBroker, broker => broker.make(topology, subject).await)
    }
}

/// A consumer's side of one of the brokers.
#[derive(Debug)]
pub enum AnySubscription {
    /// Of the embedded broker.
    Embedded(EmbeddedSubscription),
    /// Of RabbitMQ.
    RabbitMq(RabbitMqSubscription),
}

impl Subscription for AnySubscription {
    async fn ready(&self) {
        on!(self, AnySubscription, one => one.ready().await)
    }

    async fn lost(&self) {
        on!(self, AnySubscription, one => one.lost().await)
    }

    async fn take(&self, max: u32) -> Result<Vec<Delivery>, MessagingError> {
        on!(self, AnySubscription, one => one.take(max).await)
    }

    fn renew_every(&self) -> Duration {
        on!(self, AnySubscription, one => one.renew_every())
    }

    async fn renew(&self) -> Result<(), MessagingError> {
        on!(self, AnySubscription, one => one.renew().await)
    }

    async fn ack(&self, receipt: Receipt) -> Result<Settled, MessagingError> {
        on!(self, AnySubscription, one => one.ack(receipt).await)
    }

    async fn give_back(
        &self,
        delivery: &Delivery,
        delay: Duration,
    ) -> Result<Settled, MessagingError> {
        on!(self, AnySubscription, one => one.give_back(delivery, delay).await)
    }

    fn holds_for(&self) -> Duration {
        on!(self, AnySubscription, one => one.holds_for())
    }

    async fn reject(&self, receipt: Receipt) -> Result<Settled, MessagingError> {
        on!(self, AnySubscription, one => one.reject(receipt).await)
    }

    async fn close(&self) -> Result<u64, MessagingError> {
        on!(self, AnySubscription, one => one.close().await)
    }
}

//! RabbitMQ, 3.10 to 4.x, over AMQP 0-9-1.
//!
//! Publishing, consuming and declaring each have connections of their own. What breaks is opened
//! again: the publisher by itself, a consumer by its supervisor, which sees the end as an error of
//! [`take`](crate::broker::Subscription::take).

mod connection;
mod convert;
mod letters;
mod line;
mod mend;
mod probe;
mod publisher;
mod subscription;
mod topology;

use std::sync::Arc;
use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use mamparo_core::backoff::Backoff;
use mamparo_core::message::capabilities::Capabilities;
use mamparo_core::message::closure::{Closure, Kind};
use mamparo_core::message::topology::QueuePolicy;

use crate::address::BrokerAddress;
use crate::broker::{Broker, Confirm, Filter, Stored, sealed};
use crate::letters::Place;
use crate::plan;
use crate::{Message, MessagingError, observe};
use connection::{Connector, Shared, failed};
pub use letters::RabbitMqLetters;
use publisher::Publisher;
pub use subscription::RabbitMqSubscription;

/// Times and sizes of a RabbitMQ broker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RabbitMqOptions {
    /// How long a publish may take, its wait for a place in the window included, before it is
    /// [`Confirm::Unknown`]. Default 5 s.
    pub publish_timeout: Duration,
    /// How long connecting, declaring or a look at a queue may take. Default 5 s.
    pub timeout: Duration,
    /// Most publishes that wait for their confirm at once; others wait for a place. At least 1,
    /// default 1,000.
    pub window: usize,
    /// Waits between tries of the publisher to reach a lost broker. Default: base 100 ms, factor 2,
    /// cap 2 s.
    pub reconnect: Backoff,
}

impl Default for RabbitMqOptions {
    fn default() -> Self {
        Self {
            publish_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
            window: 1_000,
            reconnect: Backoff::default(),
        }
    }
}

/// RabbitMQ. Clones share the publisher.
#[derive(Debug, Clone)]
pub struct RabbitMqBroker {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    connector: Connector,
    shared: Shared,
    capabilities: Capabilities,
    publisher: Publisher,
}

impl RabbitMqBroker {
    /// Connects to the broker at `address` (`amqp://USER:PASSWORD@HOST:PORT/VHOST`, `amqps://…`).
    ///
    /// # Errors
    /// [`MessagingError::Address`]; [`MessagingError::Broker`] when it can't be reached or refuses us.
    pub async fn connect(address: &str) -> Result<Self, MessagingError> {
        Self::connect_with(address, RabbitMqOptions::default()).await
    }

    /// Connects with other options.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_with(
        address: &str,
        options: RabbitMqOptions,
    ) -> Result<Self, MessagingError> {
        let BrokerAddress::Amqp(amqp) = BrokerAddress::parse(address)? else {
            let why = "RabbitMQ's address begins with amqp:// or amqps://";
            return Err(MessagingError::Address { address: address.to_owned(), why });
        };
        let connector = Connector::new(amqp.clone(), options.timeout)?;
        let operation = || failed(format!("connect to {amqp}"));
        let capabilities = connector.probe().await.map_err(operation())?;
        let shared = Shared::new(connector.clone());
        // Now, not with the first message: a wrong password is a mistake of the configuration.
        shared.channel().await.map_err(operation())?;
        observe::broker_found(&amqp.to_string(), &capabilities);
        let (window, limit) = (options.window, options.publish_timeout);
        let publisher = Publisher::start(connector.clone(), window, limit, options.reconnect);
        Ok(Self { inner: Arc::new(Inner { connector, shared, capabilities, publisher }) })
    }

    /// Ends the publisher at once: whatever is in flight is [`Confirm::Unknown`]. Consumers go on.
    pub fn close(&self) {
        self.inner.publisher.close();
    }

    /// Publishes that were sent and have no confirm yet, and those that wait to be sent.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.inner.publisher.in_flight()
    }

    /// Messages ready in `queue`, or `None` when there is no such queue.
    async fn ready(&self, queue: &str) -> Result<Option<u64>, Closure> {
        let channel = self.inner.shared.channel().await?;
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let asked = channel.queue_declare(queue.into(), options, FieldTable::default());
        match self.inner.connector.within(asked).await {
            Ok(found) => Ok(Some(u64::from(found.message_count()))),
            Err(closure) if closure.kind == Kind::NotFound => Ok(None),
            Err(closure) => Err(closure),
        }
    }
}

impl sealed::Sealed for RabbitMqBroker {}

impl Broker for RabbitMqBroker {
    type Subscription = RabbitMqSubscription;
    type Letters = RabbitMqLetters;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities
    }

    async fn declare(&self, policy: &QueuePolicy) -> Result<(), MessagingError> {
        plan::declare(self, policy).await
    }

    async fn publish(&self, exchange: &str, routing_key: &str, message: &Message) -> Confirm {
        self.inner.publisher.publish(exchange, routing_key, message).await
    }

    async fn consume(
        &self,
        queue: &str,
        prefetch: u32,
    ) -> Result<RabbitMqSubscription, MessagingError> {
        match RabbitMqSubscription::open(&self.inner.connector, queue, prefetch).await {
            Ok(subscription) => Ok(subscription),
            Err(closure) if closure.kind == Kind::NotFound => Err(unknown(queue)),
            Err(closure) => Err(failed(format!("consume queue {queue:?}"))(closure)),
        }
    }

    /// Messages that nobody has in hand: AMQP does not count the others.
    async fn depth(&self, queue: &str) -> Result<u64, MessagingError> {
        let ready = self.ready(queue).await;
        ready.map_err(failed(format!("count queue {queue:?}")))?.ok_or_else(|| unknown(queue))
    }

    async fn queues(&self) -> Result<Option<Vec<String>>, MessagingError> {
        Ok(None)
    }

    async fn browse(&self, queue: &str, filter: &Filter) -> Result<Vec<Stored>, MessagingError> {
        letters::browse(self, queue, filter).await
    }

    async fn letters(&self, queue: &str, place: Place) -> Result<RabbitMqLetters, MessagingError> {
        RabbitMqLetters::open(self, queue, place).await
    }
}

fn unknown(queue: &str) -> MessagingError {
    MessagingError::UnknownQueue { queue: queue.to_owned(), known: None }
}

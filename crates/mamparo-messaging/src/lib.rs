//! Brokers, consumers, the outbox relay and dead-letter operations.
//!
//! An event leaves through the [`relay`], a [`consumer`] handles it once, and what could not be
//! handled lies in its queue's own dead-letter queue until a person looks at it with [`dlq`].
//! Every decision on the way is made in `mamparo_core::message`; here it is carried out.

pub mod address;
pub mod any;
pub mod broker;
pub mod consumer;
pub mod dlq;
pub mod embedded;
pub mod error;
pub mod handler;
pub mod housekeeper;
pub mod letters;
pub mod message;
mod observe;
pub mod plan;
pub mod rabbitmq;
pub mod relay;
mod room;
pub mod stored;
pub mod sweeper;

pub use any::{AnyBroker, AnySubscription};
pub use broker::{Broker, Confirm};
pub use consumer::{Consumer, ConsumerHandle, ConsumerHealth, ConsumerOptions, Summary};
pub use embedded::{EmbeddedBroker, EmbeddedOptions};
pub use error::MessagingError;
pub use handler::{Handler, PlainHandler, answer_of};
pub use housekeeper::Housekeeper;
pub use mamparo_core::message::delivery::Answer;
pub use mamparo_core::message::topology::QueuePolicy;
pub use message::{Message, event};
pub use observe::METRICS;
pub use rabbitmq::{RabbitMqBroker, RabbitMqOptions};
pub use relay::{Relay, RelayOptions, RelaySummary};
pub use sweeper::{Sweeper, SweeperOptions};

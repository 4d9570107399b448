//! What a broker can do, whichever it is.

use std::future::Future;
use std::time::Duration;

use mamparo_core::message::capabilities::Capabilities;
use mamparo_core::message::topology::QueuePolicy;
use mamparo_core::time::WallTime;

use crate::letters::{Letters, Place};
use crate::{Message, MessagingError};

#[doc(hidden)]
pub mod sealed {
    /// Brokers are ours until a second family of them exists. Public for one that must not be in the
    /// library: the tests' model of releases that are not at hand (`tests/model`).
    pub trait Sealed {}
}

/// What became of a publish. Every publish ends in one of these within the broker's limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confirm {
    /// At least one queue holds it, durably.
    Confirmed,
    /// The broker is well and no queue wants it.
    Returned,
    /// The broker refused it.
    Nacked(String),
    /// Nobody knows: the connection broke or the time was up. Publish the same id again.
    Unknown(String),
}

/// A message in hand.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// What settles it.
    pub receipt: Receipt,
    /// An earlier hand-out of it was neither settled nor given back: a process may have died of it.
    pub suspect: bool,
    /// The message.
    pub message: Message,
}

/// Names one hand-out of one message. An older one than the last changes nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// The message's place in its queue.
    pub tag: i64,
    /// Grows with each hand-out.
    pub epoch: i64,
}

/// Did settling change anything?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Yes.
    Done,
    /// No: the hand-out was over, and somebody else may have the message.
    Stale,
}

/// Which messages an operation is about, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// At most this many. Default 50.
    pub max: u32,
    /// Only this event type: the message's type, never its routing key.
    pub kind: Option<String>,
    /// Only these message ids; empty for all.
    pub ids: Vec<String>,
}

impl Default for Filter {
    fn default() -> Self {
        Self { max: 50, kind: None, ids: Vec::new() }
    }
}

/// A message that lies in a queue, seen without taking it.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its place.
    pub tag: i64,
    /// When it came to this queue.
    pub since: WallTime,
    /// The message.
    pub message: Message,
}

/// A broker. Cheap to clone; clones share connection and wake-ups.
pub trait Broker: sealed::Sealed + Clone + std::fmt::Debug + Send + Sync + 'static {
    /// A consumer's side.
    type Subscription: Subscription;

    /// A tool's hand on dead letters.
    type Letters: Letters;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Declares everything that the policy needs on this broker: queues, waiting rooms, bindings. Again
    /// with the same policy changes nothing. [`MessagingError::Mismatch`] when a queue is there with other
    /// arguments and can't be changed: it says what differs and the way out, and trying again is no use.
    fn declare(
        &self,
        policy: &QueuePolicy,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Publishes to the queues bound to `exchange`, or to the queue named `routing_key` when
    /// `exchange` is empty, and waits for the confirm.
    fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        message: &Message,
    ) -> impl Future<Output = Confirm> + Send;

    /// Begins to consume `queue`, with up to `prefetch` messages (at least 1) in hand at once.
    fn consume(
        &self,
        queue: &str,
        prefetch: u32,
    ) -> impl Future<Output = Result<Self::Subscription, MessagingError>> + Send;

    /// Messages in `queue`, those in hand included.
    fn depth(&self, queue: &str) -> impl Future<Output = Result<u64, MessagingError>> + Send;

    /// All queues' names, sorted; `None` when the broker has no way to list them, as AMQP has none.
    fn queues(&self) -> impl Future<Output = Result<Option<Vec<String>>, MessagingError>> + Send;

    /// Messages of `queue` without taking them.
    fn browse(
        &self,
        queue: &str,
        filter: &Filter,
    ) -> impl Future<Output = Result<Vec<Stored>, MessagingError>> + Send;

    /// Opens a session over the dead letters of `queue` (the main queue's name), or over what people
    /// took out of them.
    fn letters(
        &self,
        queue: &str,
        place: Place,
    ) -> impl Future<Output = Result<Self::Letters, MessagingError>> + Send;
}

/// The consuming side of one queue.
pub trait Subscription: std::fmt::Debug + Send + Sync + 'static {
    /// Completes when taking is worth a try. May be dropped at any time without loss.
    fn ready(&self) -> impl Future<Output = ()> + Send;

    /// Completes when the subscription has ended without our doing: the connection broke, the broker
    /// closed the channel or cancelled the consumer. [`take`](Self::take) then says why. A consumer
    /// waits for it also while it has no room for more. May be dropped at any time.
    fn lost(&self) -> impl Future<Output = ()> + Send;

    /// Takes up to `max` messages, oldest first. To be awaited to its end: what a dropped call had
    /// taken comes back only when its lease is over. An error means that the subscription is over:
    /// everything in hand comes again, to this consumer or to another.
    fn take(&self, max: u32) -> impl Future<Output = Result<Vec<Delivery>, MessagingError>> + Send;

    /// How often [`renew`](Self::renew) is due while messages are in hand.
    fn renew_every(&self) -> Duration;

    /// Keeps everything in hand.
    fn renew(&self) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// The message is settled for good.
    fn ack(&self, receipt: Receipt)
    -> impl Future<Output = Result<Settled, MessagingError>> + Send;

    /// The message goes back to its place, to be handed out after `delay`, which is at most
    /// [`holds_for`](Self::holds_for).
    fn give_back(
        &self,
        delivery: &Delivery,
        delay: Duration,
    ) -> impl Future<Output = Result<Settled, MessagingError>> + Send;

    /// The longest delay that [`give_back`](Self::give_back) can keep. Longer ones are cut to it:
    /// who wants them puts the message into the waiting room.
    fn holds_for(&self) -> Duration;

    /// The message goes back as one that was tried: a broker with a delayed retry of its own lets it
    /// wait, the others hand it out again at once.
    fn reject(
        &self,
        receipt: Receipt,
    ) -> impl Future<Output = Result<Settled, MessagingError>> + Send;

    /// Ends the subscription and gives back whatever is still in hand. How many that were.
    fn close(&self) -> impl Future<Output = Result<u64, MessagingError>> + Send;
}

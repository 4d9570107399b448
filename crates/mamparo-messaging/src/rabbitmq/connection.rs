//! Connections to RabbitMQ: how one is opened, and what the end of one means.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lapin::types::LongString;
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind};
use mamparo_call::clock;
use mamparo_core::message::capabilities::Capabilities;
use mamparo_core::message::closure::{Closure, Kind};
use tokio::sync::Mutex;

use super::mend::{self, Mending};
use super::probe;
use crate::MessagingError;
use crate::address::AmqpAddress;

/// A peer that gives no sign of life for two of these, in seconds, is gone. RabbitMQ's own default
/// of 60 would leave a consumer of a dead host silent for two minutes; under 5 a busy host looks dead.
const HEARTBEAT_SECONDS: u16 = 10;

/// Opens connections to one broker.
#[derive(Clone)]
pub(super) struct Connector {
    uri: AMQPUri,
    address: AmqpAddress,
    limit: Duration,
    /// Queues that held what the client library can't read.
    unreadable: Arc<std::sync::Mutex<BTreeSet<String>>>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connector({})", self.address)
    }
}

impl Connector {
    pub(super) fn new(address: AmqpAddress, limit: Duration) -> Result<Self, MessagingError> {
        let Ok(mut uri) = address.secret().parse::<AMQPUri>() else {
            // The parser's own text may repeat the address, password included.
            let why = "it can't be read; write amqp://USER:PASSWORD@HOST:5672/%2f";
            return Err(MessagingError::Address { address: address.to_string(), why });
        };
        uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
        Ok(Self { uri, address, limit, unreadable: Arc::default() })
    }

    /// What the broker can do.
    pub(super) async fn probe(&self) -> Result<Capabilities, Closure> {
        probe::capabilities(&self.uri, self.limit).await
    }

    /// A new connection, named after what it is for in RabbitMQ's lists.
    pub(super) async fn open(&self, purpose: &str) -> Result<Connection, Closure> {
        let connect = Connection::connect_uri(self.uri.clone(), properties(purpose));
        self.within(connect).await
    }

    /// A new connection on which any message can be read, at the price of a relay.
    pub(super) async fn open_mended(
        &self,
        purpose: &str,
    ) -> Result<(Connection, Mending), Closure> {
        // Boxed: it is large, and in the future of everybody who looks at letters.
        self.within(Box::pin(mend::connect(self.uri.clone(), properties(purpose)))).await
    }

    /// A new connection to consume `queue`: a mended one if the queue has held what can't be read.
    pub(super) async fn open_consumer(
        &self,
        queue: &str,
    ) -> Result<(Connection, Option<Mending>), Closure> {
        let purpose = format!("consumer of {queue}");
        let mended = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).contains(queue);
        if mended {
            let (connection, mending) = self.open_mended(&purpose).await?;
            return Ok((connection, Some(mending)));
        }
        Ok((self.open(&purpose).await?, None))
    }

    /// A consumer of `queue` ended: is it to be mended the next time?
    pub(super) fn learn(&self, queue: &str, closure: &Closure) {
        if closure.kind == Kind::Unreadable {
            let mut unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
            unreadable.insert(queue.to_owned());
        }
    }

    /// The answer within the limit.
    pub(super) async fn within<T>(
        &self,
        asked: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, Closure> {
        let until = clock::instant_of(clock::now().plus(self.limit));
        match tokio::time::timeout_at(until, asked).await {
            Ok(answer) => answer.map_err(|error| closure_of(&error)),
            Err(_) => {
                let text = format!("no answer within {:?}", self.limit);
                Err(Closure::new(Kind::Disconnected, text))
            }
        }
    }
}

fn properties(purpose: &str) -> ConnectionProperties {
    let host = gethostname::gethostname();
    let name = format!("mamparo {purpose} on {}", host.to_string_lossy());
    ConnectionProperties::default().with_connection_name(LongString::from(name))
}

/// One connection for declarations and looks, opened when first needed and again when it broke.
#[derive(Debug)]
pub(super) struct Shared {
    connector: Connector,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Shared {
    pub(super) fn new(connector: Connector) -> Self {
        Self { connector, connection: Mutex::new(None) }
    }

    /// A channel of its own for one operation: what fails there closes nobody else's.
    pub(super) async fn channel(&self) -> Result<Channel, Closure> {
        let connection = self.connection().await?;
        self.connector.within(connection.create_channel()).await
    }

    async fn connection(&self) -> Result<Arc<Connection>, Closure> {
        let mut slot = self.connection.lock().await;
        if let Some(connection) = slot.as_ref().filter(|open| open.status().connected()) {
            return Ok(Arc::clone(connection));
        }
        let connection = Arc::new(self.connector.open("topology").await?);
        *slot = Some(Arc::clone(&connection));
        Ok(connection)
    }
}

/// What an error of the client library means.
pub(super) fn closure_of(error: &lapin::Error) -> Closure {
    match error.kind() {
        ErrorKind::ProtocolError(reply) => {
            Closure::of_reply(reply.get_id(), reply.get_message().to_string())
        }
        ErrorKind::MissingHeartbeatError => {
            Closure::new(Kind::Disconnected, "the broker gave no sign of life")
        }
        ErrorKind::ParsingError(_) => Closure::new(Kind::Unreadable, error.to_string()),
        ErrorKind::IOError(error) => Closure::new(Kind::Disconnected, error.to_string()),
        ErrorKind::InvalidChannel(_)
        | ErrorKind::InvalidChannelState(..)
        | ErrorKind::InvalidConnectionState(_) => {
            Closure::new(Kind::Disconnected, error.to_string())
        }
        ErrorKind::ChannelsLimitReached
        | ErrorKind::InvalidProtocolVersion(_)
        | ErrorKind::RuntimeShutdownError(_)
        | ErrorKind::SerialisationError(_)
        | ErrorKind::AuthProviderError(_)
        | ErrorKind::FutureCompleted
        | ErrorKind::NoDefaultRuntime
        | _ => Closure::new(Kind::Other, error.to_string()),
    }
}

/// An error of messaging out of a closure.
pub(super) fn failed(operation: impl Into<String>) -> impl FnOnce(Closure) -> MessagingError {
    move |closure| MessagingError::Broker { operation: operation.into(), closure }
}

//! Publishing: every message goes out persistent and mandatory, and every publish ends in one of the
//! four [`Confirm`]s within its limit.
//!
//! One task owns the connection and the channel, apart from those of consumers: a broker that is
//! short of memory blocks publishers' connections, and acknowledgements must get through. Callers
//! wait for a place in the window, hand over, and wait for the answer. What a caller leaves behind
//! when it is dropped is either skipped, if it was not sent, or counted until its confirm comes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::backoff::Backoff;
use mamparo_core::time::Moment;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::connection::Connector;
use super::convert::{self, Outgoing};
use super::line::Line;
use crate::{Confirm, Message};

/// One publish on its way.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) id: String,
    pub(super) outgoing: Outgoing,
    pub(super) body: Vec<u8>,
    pub(super) reply: oneshot::Sender<Confirm>,
    /// Its place in the window, free again when the broker has answered.
    pub(super) place: OwnedSemaphorePermit,
}

/// How the publisher is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Connected,
    /// The broker is short of memory or disk.
    Blocked(String),
    Lost(String),
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connected => f.write_str("the connection is open"),
            Self::Blocked(reason) => write!(f, "the broker takes no publishes: {reason}"),
            Self::Lost(why) => write!(f, "not connected: {why}"),
        }
    }
}

/// The publishing side of a broker.
#[derive(Debug)]
pub(super) struct Publisher {
    window: Arc<Semaphore>,
    /// Places in the window.
    size: usize,
    commands: mpsc::UnboundedSender<Command>,
    state: watch::Receiver<State>,
    limit: Duration,
    /// Ends with the publisher.
    task: Mutex<JoinSet<()>>,
}

impl Publisher {
    /// A publisher with up to `window` publishes in flight, each taking up to `limit`.
    pub(super) fn start(
        connector: Connector,
        window: usize,
        limit: Duration,
        reconnect: Backoff,
    ) -> Self {
        // Unbounded, as its length is: no command without a place in the window.
        let (commands, receiver) = mpsc::unbounded_channel();
        let (sender, state) = watch::channel(State::Lost("it was not tried yet".into()));
        let mut task = JoinSet::new();
        #[expect(
            clippy::disallowed_methods,
            reason = "the set belongs to the publisher and is aborted with it; a panic ends every \
                      publish as unknown"
        )]
        task.spawn(Line::new(connector, receiver, sender, reconnect).run());
        let size = window.clamp(1, Semaphore::MAX_PERMITS);
        let window = Arc::new(Semaphore::new(size));
        Self { window, size, commands, state, limit, task: Mutex::new(task) }
    }

    pub(super) async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        message: &Message,
    ) -> Confirm {
        let outgoing = match convert::outgoing(exchange, routing_key, message, clock::wall()) {
            Ok(outgoing) => outgoing,
            Err(why) => return Confirm::Nacked(why),
        };
        let until = clock::now().plus(self.limit);
        let place = Arc::clone(&self.window).acquire_owned();
        let place = match self.by(until, place).await {
            Some(Ok(place)) => place,
            Some(Err(_)) => return Confirm::Unknown("the publisher was closed".into()),
            None => return self.late("not sent, the window was full,"),
        };
        let (reply, answer) = oneshot::channel();
        let (id, body) = (message.id.clone(), message.body.clone());
        if self.commands.send(Command { id, outgoing, body, reply, place }).is_err() {
            return Confirm::Unknown("the publisher was closed".into());
        }
        match self.by(until, answer).await {
            Some(Ok(confirm)) => confirm,
            Some(Err(_)) => Confirm::Unknown("the publisher was closed before the confirm".into()),
            None => self.late("no confirm"),
        }
    }

    /// Publishes that hold a place in the window.
    pub(super) fn in_flight(&self) -> usize {
        self.size - self.window.available_permits()
    }

    /// Ends at once: what is in flight is unknown.
    pub(super) fn close(&self) {
        self.window.close();
        // A set of tasks can't be left half written.
        self.task.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }

    async fn by<T>(&self, until: Moment, asked: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout_at(clock::instant_of(until), asked).await.ok()
    }

    fn late(&self, what: &str) -> Confirm {
        Confirm::Unknown(format!("{what} within {:?}; {}", self.limit, *self.state.borrow()))
    }
}

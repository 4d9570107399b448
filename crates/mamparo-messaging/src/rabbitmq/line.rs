//! The task behind the publisher: one connection, one channel in confirm mode, reopened when they end.
//!
//! **Which publish was returned?** The broker sends `basic.return` before the confirm of the same
//! publish, but the client library hands the returned message out with whichever confirm it resolves
//! next; when one frame confirms many, that may be another one's. Two rules make it exact: no two
//! publishes of one message id are in flight at once, the second waits for the first; and confirms
//! are read in rounds, to the last one that has come, before any is answered. A publish is confirmed
//! only when its round is over and no returned message with its id was in it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, FuturesUnordered};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Confirmation, Connection, Event, ExchangeKind};
use mamparo_call::clock;
use mamparo_core::backoff::Backoff;
use mamparo_core::message::closure::{Closure, Culprit, Kind};
use mamparo_core::time::Moment;
use tokio::sync::{mpsc, oneshot, watch};

use super::connection::{Connector, closure_of};
use super::publisher::{Command, State};
use crate::{Confirm, observe};

/// Most publishes that are sent before confirms are looked at again.
const TURN: usize = 256;

/// How long a publish that would close the channel is refused without asking. Then one tries again:
/// somebody may have changed the limit or the permission.
const REFUSED_FOR: Duration = Duration::from_secs(30);

type Flight = Pin<Box<dyn Future<Output = (String, lapin::Result<Confirmation>)> + Send>>;

/// One publish on the wire.
struct Pending {
    reply: oneshot::Sender<Confirm>,
    _place: tokio::sync::OwnedSemaphorePermit,
    exchange: String,
    /// Of the body.
    bytes: u64,
    /// The broker gave it back, and said this.
    returned: Option<String>,
    /// Publishes of the same id, which wait for this one.
    next: VecDeque<Command>,
}

pub(super) struct Line {
    connector: Connector,
    commands: mpsc::UnboundedReceiver<Command>,
    state: watch::Sender<State>,
    reconnect: Backoff,
    /// To be sent before anything new.
    backlog: VecDeque<Command>,
    pending: HashMap<String, Pending>,
    flights: FuturesUnordered<Flight>,
    flag: Arc<Flag>,
    /// Exchanges that were there when they were first used on this channel.
    exchanges: HashSet<String>,
    /// What channels were closed for, the broker's words, and since when: not sent again, for
    /// each would close the channel, and everybody's publishes with it.
    culprits: Vec<(Culprit, String, Moment)>,
}

/// Why a channel is not served any more.
enum Left {
    /// Nobody will publish again.
    Done,
    /// Only the channel ended.
    Channel(Closure),
    /// The connection ended.
    Connection(Closure),
}

impl Line {
    pub(super) fn new(
        connector: Connector,
        commands: mpsc::UnboundedReceiver<Command>,
        state: watch::Sender<State>,
        reconnect: Backoff,
    ) -> Self {
        Self {
            connector,
            commands,
            state,
            reconnect,
            backlog: VecDeque::new(),
            pending: HashMap::new(),
            flights: FuturesUnordered::new(),
            flag: Arc::new(Flag(AtomicBool::new(false))),
            exchanges: HashSet::new(),
            culprits: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) {
        let (mut failures, mut wait) = (0_u32, Duration::ZERO);
        loop {
            let closure = match self.connector.open("publisher").await {
                Ok(connection) => {
                    failures = 0;
                    match self.use_connection(&connection).await {
                        None => return,
                        Some(closure) => closure,
                    }
                }
                Err(closure) => closure,
            };
            failures = failures.saturating_add(1);
            observe::publisher_lost(&closure, failures);
            self.state.send_replace(State::Lost(closure.to_string()));
            wait = self.reconnect.delay(failures, wait, &mut clock::entropy());
            clock::sleep_until(clock::now().plus(wait)).await;
            // Those that nobody waits for any more give their place in the window to others.
            while let Ok(command) = self.commands.try_recv() {
                self.backlog.push_back(command);
            }
            self.backlog.retain(|command| !command.reply.is_closed());
        }
    }

    /// Opens channels on the connection for as long as it lives; `None` when nobody publishes again.
    async fn use_connection(&mut self, connection: &Connection) -> Option<Closure> {
        let mut events = connection.events_listener().boxed();
        loop {
            let channel = match open_channel(&self.connector, connection).await {
                Ok(channel) => Arc::new(channel),
                Err(closure) => return Some(closure),
            };
            observe::publisher_connected();
            self.state.send_replace(State::Connected);
            let left = self.serve(connection, &channel, &mut events).await;
            // Whatever the broker has made of them, we shall not learn it.
            match &left {
                Left::Done => {
                    self.abandon(&Closure::new(Kind::Closed, "the publisher was closed"));
                }
                Left::Channel(closure) | Left::Connection(closure) => self.abandon(closure),
            }
            match left {
                Left::Done => return None,
                Left::Connection(closure) => return Some(closure),
                Left::Channel(closure) => {
                    self.exchanges.clear();
                    observe::publisher_lost(&closure, 0);
                }
            }
        }
    }

    async fn serve(
        &mut self,
        connection: &Connection,
        channel: &Arc<Channel>,
        events: &mut BoxStream<'static, Event>,
    ) -> Left {
        let mut blocked = false;
        let mut commands = Vec::with_capacity(TURN);
        loop {
            while !blocked && let Some(command) = self.backlog.pop_front() {
                if let Err(left) = self.send(connection, channel, command).await {
                    return left;
                }
            }
            tokio::select! {
                ended = ended(&mut self.flights, &self.flag) => {
                    if let Some(closure) = self.settle(ended) {
                        return ended_by(connection, closure);
                    }
                }
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => {
                        blocked = true;
                        observe::publisher_blocked(Some(&reason));
                        self.state.send_replace(State::Blocked(reason));
                    }
                    Some(Event::ConnectionUnblocked) => {
                        blocked = false;
                        observe::publisher_blocked(None);
                        self.state.send_replace(State::Connected);
                    }
                    Some(Event::Error(error)) if !connection.status().connected() => {
                        return Left::Connection(closure_of(&error));
                    }
                    Some(_) => {}
                    None => {
                        let text = "the connection's events ended";
                        return Left::Connection(Closure::new(Kind::Disconnected, text));
                    }
                },
                count = self.commands.recv_many(&mut commands, TURN), if !blocked => {
                    if count == 0 {
                        return Left::Done;
                    }
                    self.backlog.extend(commands.drain(..));
                }
            }
        }
    }

    /// Puts a publish on the wire, if anybody still waits for it.
    async fn send(
        &mut self,
        connection: &Connection,
        channel: &Arc<Channel>,
        command: Command,
    ) -> Result<(), Left> {
        if command.reply.is_closed() {
            return Ok(());
        }
        if !self.culprits.is_empty() {
            let now = clock::now();
            self.culprits.retain(|(.., since)| now.since(*since) < REFUSED_FOR);
        }
        if let Some(first) = self.pending.get_mut(&command.id) {
            first.next.push_back(command);
            return Ok(());
        }
        if !channel.status().connected() {
            self.backlog.push_front(command);
            let closure = Closure::new(Kind::Disconnected, "the channel was closed");
            return Err(ended_by(connection, closure));
        }
        let exchange = command.outgoing.exchange.as_str();
        let bytes = u64::try_from(command.body.len()).unwrap_or(u64::MAX);
        if let Some((_, words, _)) = self.culprits.iter().find(|(one, ..)| one.is(exchange, bytes))
        {
            command.reply.send(Confirm::Nacked(words.clone())).ok();
            return Ok(());
        }
        if !exchange.is_empty() && !self.exchanges.contains(exchange) {
            match exists(&self.connector, connection, exchange).await {
                Ok(true) => {
                    self.exchanges.insert(exchange.to_owned());
                }
                // The broker would close the channel, and everybody's publishes with it.
                Ok(false) => {
                    observe::no_exchange(exchange);
                    command.reply.send(Confirm::Returned).ok();
                    return Ok(());
                }
                Err(closure) => {
                    self.backlog.push_front(command);
                    return Err(ended_by(connection, closure));
                }
            }
        }
        let exchange = exchange.to_owned();
        let Command { id, outgoing, body, reply, place } = command;
        let (channel, key) = (Arc::clone(channel), id.clone());
        self.flights.push(Box::pin(async move {
            let options = BasicPublishOptions { mandatory: true, immediate: false };
            let (exchange, routing_key) = (outgoing.exchange, outgoing.routing_key);
            let sent =
                channel.basic_publish(exchange, routing_key, options, &body, outgoing.properties);
            let confirm = async { sent.await?.await };
            (key, confirm.await)
        }));
        let (returned, next) = (None, VecDeque::new());
        let pending = Pending { reply, _place: place, exchange, bytes, returned, next };
        self.pending.insert(id, pending);
        Ok(())
    }

    /// Answers a whole round of publishes; the closure when the channel ended under them.
    fn settle(&mut self, mut ended: Vec<(String, lapin::Result<Confirmation>)>) -> Option<Closure> {
        for (_, confirmed) in &mut ended {
            let Ok(Confirmation::Ack(returned) | Confirmation::Nack(returned)) = confirmed else {
                continue;
            };
            let Some(returned) = returned.take() else { continue };
            let id = returned.delivery.properties.message_id().as_ref();
            if let Some(pending) = id.and_then(|id| self.pending.get_mut(id.as_str())) {
                pending.returned = Some(returned.reply_text.to_string());
            }
        }
        let mut closure = None;
        for (id, confirmed) in ended {
            let Some(pending) = self.pending.remove(&id) else { continue };
            let confirm = match confirmed {
                Ok(_) if pending.returned.is_some() => Confirm::Returned,
                Ok(Confirmation::Ack(_)) => Confirm::Confirmed,
                Ok(Confirmation::Nack(_)) => Confirm::Nacked(
                    "the broker refused it: the queue is full, or its leader failed".into(),
                ),
                Ok(Confirmation::NotRequested) => {
                    Confirm::Unknown("the channel is not in confirm mode".into())
                }
                Err(error) => {
                    let end = closure_of(&error);
                    let confirm = self.verdict(&end, &pending);
                    closure = Some(end);
                    confirm
                }
            };
            // Nobody waits any more: then its place in the window is all that it held.
            pending.reply.send(confirm).ok();
            self.backlog.extend(pending.next);
        }
        closure
    }

    /// What the end of the channel says of a publish: refused if it was for its sake.
    fn verdict(&mut self, closure: &Closure, pending: &Pending) -> Confirm {
        if pending.returned.is_some() {
            return Confirm::Returned;
        }
        let words = closure.to_string();
        let Some(culprit) = closure.culprit() else { return Confirm::Unknown(words) };
        let guilty = culprit.is(&pending.exchange, pending.bytes);
        if self.culprits.iter().all(|(known, ..)| *known != culprit) {
            self.culprits.push((culprit, words.clone(), clock::now()));
        }
        if guilty { Confirm::Nacked(words) } else { Confirm::Unknown(words) }
    }

    /// Everything in flight ends here.
    fn abandon(&mut self, closure: &Closure) {
        self.flights = FuturesUnordered::new();
        for (_, pending) in std::mem::take(&mut self.pending) {
            let confirm = self.verdict(closure, &pending);
            pending.reply.send(confirm).ok();
            // These were not sent.
            self.backlog.extend(pending.next);
        }
    }
}

async fn open_channel(connector: &Connector, connection: &Connection) -> Result<Channel, Closure> {
    let channel = connector.within(connection.create_channel()).await?;
    connector.within(channel.confirm_select(ConfirmSelectOptions::default())).await?;
    Ok(channel)
}

/// Is there such an exchange? Asked on a channel of its own, which a missing one closes.
async fn exists(
    connector: &Connector,
    connection: &Connection,
    exchange: &str,
) -> Result<bool, Closure> {
    let channel = connector.within(connection.create_channel()).await?;
    let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
    let (name, kind) = (exchange.into(), ExchangeKind::Topic);
    let asked = channel.exchange_declare(name, kind, options, FieldTable::default());
    match connector.within(asked).await {
        Ok(()) => Ok(true),
        Err(closure) if closure.kind == Kind::NotFound => Ok(false),
        Err(closure) => Err(closure),
    }
}

fn ended_by(connection: &Connection, closure: Closure) -> Left {
    if connection.status().connected() { Left::Channel(closure) } else { Left::Connection(closure) }
}

/// Whether somebody was woken.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Everything that has ended by now, and at least one. Never when nothing is in flight.
///
/// The set may pause in the middle to let other tasks run; it then wakes its waker itself, which is
/// how a pause is told from the end of the round. Dropping this future loses nothing: it holds
/// results only within one poll.
async fn ended(
    flights: &mut FuturesUnordered<Flight>,
    flag: &Arc<Flag>,
) -> Vec<(String, lapin::Result<Confirmation>)> {
    let waker = Waker::from(Arc::clone(flag));
    poll_fn(|cx| {
        let mut done = Vec::new();
        loop {
            flag.0.store(false, Ordering::Release);
            match flights.poll_next_unpin(&mut Context::from_waker(&waker)) {
                Poll::Ready(Some(ended)) => {
                    done.push(ended);
                    continue;
                }
                Poll::Pending if flag.0.load(Ordering::Acquire) => continue,
                Poll::Ready(None) | Poll::Pending => {}
            }
            if !done.is_empty() {
                return Poll::Ready(std::mem::take(&mut done));
            }
            // To be woken from now on, and to catch what came since: then the round goes on.
            match flights.poll_next_unpin(cx) {
                Poll::Ready(Some(ended)) => done.push(ended),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}

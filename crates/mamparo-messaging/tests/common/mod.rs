//! What the tests of this crate share: a shop with a broker and a database in a temporary folder.
#![allow(
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    reason = "each test file uses a part"
)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::backoff::Backoff;
use mamparo_core::time::Moment;
use mamparo_messaging::broker::{Filter, Stored};
use mamparo_messaging::{
    Answer, Broker, Consumer, ConsumerHandle, ConsumerOptions, EmbeddedBroker, EmbeddedOptions,
    Handler, Message, QueuePolicy, Summary,
};
use mamparo_store::outbox::Event;
use mamparo_store::{SqliteStore, Transaction};
use sqlx::Sqlite;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const QUEUE: &str = "orders.saga";

/// Short times, so that leases and polls end within a test.
pub fn options() -> EmbeddedOptions {
    EmbeddedOptions {
        lease: Duration::from_millis(800),
        renew_every: Duration::from_millis(150),
        poll_min: Duration::from_millis(5),
        poll_max: Duration::from_millis(20),
        publish_timeout: Duration::from_secs(5),
    }
}

pub fn policy() -> QueuePolicy {
    QueuePolicy {
        retry_delay: Duration::from_millis(30),
        handler_timeout: Duration::from_secs(5),
        ..QueuePolicy::new(QUEUE, "team-orders").bind("order.*")
    }
}

pub struct Shop {
    pub folder: tempfile::TempDir,
    pub broker: EmbeddedBroker,
    pub store: SqliteStore,
}

pub async fn open_store(folder: &Path, file: &str) -> SqliteStore {
    let address = format!("sqlite:{}", folder.join(file).display());
    SqliteStore::open(&address).await.unwrap()
}

pub async fn shop() -> Shop {
    let folder = tempfile::tempdir().unwrap();
    let broker = open_store(folder.path(), "broker.db").await;
    let broker = EmbeddedBroker::new(broker, options());
    let store = open_store(folder.path(), "orders.db").await;
    store.apply("CREATE TABLE IF NOT EXISTS effects (id TEXT, kind TEXT)").await.unwrap();
    Shop { folder, broker, store }
}

impl Shop {
    pub async fn publish(&self, message: &Message) {
        let confirm = self.broker.publish("events", &message.routing_key, message).await;
        assert_eq!(confirm, mamparo_messaging::Confirm::Confirmed);
    }

    /// Effects of messages, one a message id that was applied.
    pub async fn effects(&self) -> Vec<String> {
        let rows = sqlx::query_scalar("SELECT id FROM effects ORDER BY rowid");
        rows.fetch_all(self.store.reader()).await.unwrap()
    }

    pub async fn dead(&self) -> Vec<Stored> {
        self.broker.browse(&format!("{QUEUE}.dlq"), &Filter::default()).await.unwrap()
    }

    pub async fn depth(&self, suffix: &str) -> u64 {
        self.broker.depth(&format!("{QUEUE}{suffix}")).await.unwrap()
    }

    /// Waits until the main queue and its waiting room are empty.
    pub async fn settled(&self) {
        until("the queue is empty", async || {
            self.depth("").await == 0 && self.depth(".retry").await == 0
        })
        .await;
    }

    /// Changes the broker's file behind its back, as an operator with a database shell could.
    pub async fn meddle(&self, sql: &'static str) {
        use sqlx::ConnectOptions as _;
        let path = self.folder.path().join("broker.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(path)
            .foreign_keys(false)
            .busy_timeout(Duration::from_secs(5));
        let mut conn = options.connect().await.unwrap();
        sqlx::query(sql).execute(&mut conn).await.unwrap();
    }

    pub fn consume(&self, policy: QueuePolicy, script: &Script) -> Running {
        let options = ConsumerOptions {
            grace: Duration::from_millis(300),
            reconnect: Backoff { cap: Duration::from_millis(20), ..Backoff::default() },
            version: "shop 1.2",
            ..ConsumerOptions::default()
        };
        let script = script.clone();
        let consumer = Consumer::new(self.broker.clone(), self.store.clone(), policy, script)
            .with_options(options);
        let (handle, cancel) = (consumer.handle(), CancellationToken::new());
        let task = spawn(consumer.run(cancel.clone()));
        Running { handle, cancel, task }
    }
}

pub struct Running {
    pub handle: ConsumerHandle,
    pub cancel: CancellationToken,
    pub task: JoinHandle<Summary>,
}

impl Running {
    pub async fn stop(self) -> Summary {
        self.cancel.cancel();
        self.task.await.unwrap()
    }
}

#[expect(clippy::disallowed_methods, reason = "tests own their tasks by awaiting the handle")]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(future)
}

/// Waits for a condition, and fails with its name after ten seconds.
pub async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    until_within(10, what, condition).await;
}

/// Waits for a condition, and fails with its name after so many seconds.
pub async fn until_within(seconds: u64, what: &str, condition: impl AsyncFn() -> bool) {
    let end = clock::now().plus(Duration::from_secs(seconds));
    while !condition().await {
        assert!(clock::now() < end, "not in time: {what}");
        clock::sleep_until(clock::now().plus(Duration::from_millis(3))).await;
    }
}

/// The future's output, and a failure when it takes more than ten seconds.
pub async fn within<F: Future>(future: F) -> F::Output {
    let end = clock::instant_of(clock::now().plus(Duration::from_secs(10)));
    tokio::time::timeout_at(end, future).await.expect("not in time")
}

pub fn order(kind: &str, key: &str) -> Message {
    Message::from_event(Event::new(kind, key, b"{\"total\":1}".to_vec()), "events")
}

/// What the handler does with the n-th hand-out (from 1) of a message.
pub type Act = dyn Fn(&Message, u32) -> Step + Send + Sync;

pub enum Step {
    /// Before the transaction.
    Prepare(Answer),
    /// In the transaction, after the effect was written.
    Apply(Answer),
    /// Never ends, after the effect was written.
    Hang,
    Panic,
    /// Waits for the gate, then is done.
    Gate,
    /// Is done, but not before this moment, and without a pause in which it could be cut off.
    Busy(Moment),
}

#[derive(Clone)]
pub struct Script {
    act: Arc<Act>,
    counts: Arc<Mutex<HashMap<String, u32>>>,
    pub seen: Arc<Mutex<Vec<Message>>>,
    pub gate: CancellationToken,
    pub entered: Arc<tokio::sync::Semaphore>,
}

impl Script {
    pub fn new(act: impl Fn(&Message, u32) -> Step + Send + Sync + 'static) -> Self {
        Self {
            act: Arc::new(act),
            counts: Arc::default(),
            seen: Arc::default(),
            gate: CancellationToken::new(),
            entered: Arc::new(tokio::sync::Semaphore::new(0)),
        }
    }

    pub fn seen(&self) -> Vec<Message> {
        self.seen.lock().unwrap().clone()
    }

    pub fn kinds(&self) -> Vec<String> {
        self.seen().into_iter().map(|message| message.kind).collect()
    }

    pub fn calls(&self, id: &str) -> u32 {
        self.counts.lock().unwrap().get(id).copied().unwrap_or(0)
    }
}

impl Handler<Sqlite> for Script {
    type Facts = Step;

    async fn prepare(&self, message: &Message) -> Result<Step, Answer> {
        self.seen.lock().unwrap().push(message.clone());
        let count = {
            let mut counts = self.counts.lock().unwrap();
            let count = counts.entry(message.id.clone()).or_default();
            *count += 1;
            *count
        };
        self.entered.add_permits(1);
        match (self.act)(message, count) {
            Step::Prepare(answer) => Err(answer),
            Step::Gate => {
                self.gate.cancelled().await;
                Ok(Step::Apply(Answer::Done))
            }
            step @ (Step::Apply(_) | Step::Hang | Step::Panic | Step::Busy(_)) => Ok(step),
        }
    }

    async fn apply(
        &self,
        message: &Message,
        step: Step,
        tx: &mut Transaction<'_, Sqlite>,
    ) -> Answer {
        let insert = sqlx::query("INSERT INTO effects (id, kind) VALUES (?, ?)")
            .bind(&message.id)
            .bind(&message.kind);
        insert.execute(&mut **tx).await.unwrap();
        match step {
            Step::Apply(answer) => answer,
            Step::Hang => std::future::pending().await,
            Step::Panic => panic!("the handler's bug"),
            Step::Prepare(answer) => answer,
            Step::Gate => Answer::Done,
            Step::Busy(until) => {
                while clock::now() < until {
                    std::hint::spin_loop();
                }
                Answer::Done
            }
        }
    }
}

pub fn done() -> Step {
    Step::Apply(Answer::Done)
}

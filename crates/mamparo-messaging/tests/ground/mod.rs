//! A consumer's surroundings on any broker and any database, with a queue that nobody else uses.
#![allow(dead_code, unreachable_pub, missing_debug_implementations, reason = "files use a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mamparo_core::backoff::Backoff;
use mamparo_core::message::headers;
use mamparo_core::message::topology::WaitingRoom;
use mamparo_messaging::broker::Filter;
use mamparo_messaging::{
    Answer, AnyBroker, Broker, Confirm, Consumer, ConsumerOptions, EmbeddedBroker, Handler,
    Message, QueuePolicy,
};
use mamparo_store::failed::{self, Query};
use mamparo_store::{Backend, Postgres, Sqlite, Store, Transaction, parked, retries};
use mamparo_testkit::database::Database;
use mamparo_testkit::servers::amqp_url;
use tokio_util::sync::CancellationToken;

use crate::common::{Running, open_store, options, order, spawn, until};

/// The two statements of the tests' own that differ by database.
pub trait Db: Backend {
    fn insert(tx: &mut Transaction<'_, Self>, id: &str) -> impl Future<Output = ()> + Send
    where
        Self: Sized;
    fn effects(store: &Store<Self>) -> impl Future<Output = Vec<String>> + Send
    where
        Self: Sized;
}

const INSERT: &str = "INSERT INTO effects (id) VALUES ($1)";
const EFFECTS: &str = "SELECT id FROM effects ORDER BY at";

impl Db for Sqlite {
    async fn insert(tx: &mut Transaction<'_, Self>, id: &str) {
        sqlx::query(INSERT).bind(id).execute(&mut **tx).await.unwrap();
    }

    async fn effects(store: &Store<Self>) -> Vec<String> {
        sqlx::query_scalar(EFFECTS).fetch_all(store.reader()).await.unwrap()
    }
}

impl Db for Postgres {
    async fn insert(tx: &mut Transaction<'_, Self>, id: &str) {
        sqlx::query(INSERT).bind(id).execute(&mut **tx).await.unwrap();
    }

    async fn effects(store: &Store<Self>) -> Vec<String> {
        sqlx::query_scalar(EFFECTS).fetch_all(store.reader()).await.unwrap()
    }
}

/// What must outlive the test.
#[derive(Default)]
pub struct Keep {
    pub folder: Option<tempfile::TempDir>,
    pub database: Option<Database>,
}

pub struct Ground<DB: Backend, B = AnyBroker> {
    pub broker: B,
    pub store: Store<DB>,
    pub policy: QueuePolicy,
    pub keep: Keep,
}

pub async fn embedded(keep: &mut Keep) -> AnyBroker {
    let folder = keep.folder.get_or_insert_with(|| tempfile::tempdir().unwrap());
    EmbeddedBroker::new(open_store(folder.path(), "broker.db").await, options()).into()
}

pub async fn rabbitmq(_: &mut Keep) -> AnyBroker {
    AnyBroker::open(&amqp_url()).await.unwrap()
}

pub async fn sqlite(keep: &mut Keep) -> Store<Sqlite> {
    let folder = keep.folder.get_or_insert_with(|| tempfile::tempdir().unwrap());
    let store = open_store(folder.path(), "orders.db").await;
    let table = "CREATE TABLE IF NOT EXISTS effects (at INTEGER PRIMARY KEY, id TEXT)";
    store.apply(table).await.unwrap();
    store
}

pub async fn postgres(keep: &mut Keep) -> Store<Postgres> {
    let database = keep.database.get_or_insert_with(Database::create);
    let store = Store::open(&database.url()).await.unwrap();
    store.apply("CREATE TABLE IF NOT EXISTS effects (at BIGSERIAL, id TEXT)").await.unwrap();
    store
}

pub fn policy(waiting_room: WaitingRoom) -> QueuePolicy {
    let queue = format!("rooms.{}", uuid::Uuid::new_v4());
    QueuePolicy {
        waiting_room,
        retry_delay: Duration::from_millis(60),
        handler_timeout: Duration::from_secs(5),
        ..QueuePolicy::new(queue.clone(), "team-orders").bind(format!("{queue}.#"))
    }
}

impl<DB: Db, B: Broker> Ground<DB, B> {
    pub async fn declared(self) -> Self {
        self.broker.declare(&self.policy).await.unwrap();
        self
    }

    pub fn message(&self, kind: &str, key: &str) -> Message {
        Message { routing_key: format!("{}.{kind}", self.policy.queue), ..order(kind, key) }
    }

    pub async fn publish(&self, message: &Message) {
        let confirm = self.broker.publish("events", &message.routing_key, message).await;
        assert_eq!(confirm, Confirm::Confirmed);
    }

    pub async fn effects(&self) -> Vec<String> {
        DB::effects(&self.store).await
    }

    pub fn consume(&self, script: &Act) -> Running {
        self.consume_with(self.policy.clone(), script)
    }

    pub fn consume_with(&self, policy: QueuePolicy, script: &Act) -> Running {
        let options = ConsumerOptions {
            grace: Duration::from_millis(500),
            reconnect: Backoff { cap: Duration::from_millis(50), ..Backoff::default() },
            version: "shop 1.2",
            ..ConsumerOptions::default()
        };
        let (broker, store) = (self.broker.clone(), self.store.clone());
        let consumer = Consumer::new(broker, store, policy, script.clone()).with_options(options);
        let (handle, cancel) = (consumer.handle(), CancellationToken::new());
        let task = spawn(consumer.run(cancel.clone()));
        Running { handle, cancel, task }
    }

    /// The dead letters, wherever this room puts them: id, reason, attempts, error.
    pub async fn dead(&self) -> Vec<(String, String, u32, String)> {
        if self.policy.waiting_room == WaitingRoom::Parked {
            let rows = failed::list(&self.store, &Query::default()).await.unwrap();
            return rows
                .into_iter()
                .map(|row| (row.message.id, row.reason, row.attempts, row.error))
                .collect();
        }
        let stored = self.broker.browse(&self.policy.dlq(), &Filter::default()).await.unwrap();
        let told = |message: Message| {
            let text = |name| message.header(name).unwrap_or_default().to_owned();
            let attempts = text(headers::ATTEMPTS).parse().unwrap_or_default();
            let (reason, error) = (text(headers::DEAD_REASON), text(headers::LAST_ERROR));
            (message.id, reason, attempts, error)
        };
        stored.into_iter().map(|stored| told(stored.message)).collect()
    }

    /// How many messages wait.
    pub async fn waiting(&self) -> u64 {
        if self.policy.waiting_room == WaitingRoom::Parked {
            return parked::stats(&self.store, self.policy.consumer()).await.unwrap().0;
        }
        if self.policy.waiting_room == WaitingRoom::Broker {
            return retries::stats(&self.store, self.policy.consumer()).await.unwrap().0;
        }
        self.broker.depth(&self.policy.retry_queue()).await.unwrap()
    }

    /// Waits until nothing is in the main queue, in hand or waiting.
    pub async fn settled(&self, running: &Running) {
        until("everything is settled", async || {
            running.handle.health().in_hand == 0
                && self.broker.depth(&self.policy.queue).await.unwrap() == 0
                && self.waiting().await == 0
        })
        .await;
    }
}

type Script = dyn Fn(&Message, u32) -> Answer + Send + Sync;

/// What the handler does with the n-th hand-out (from 1) of a message.
#[derive(Clone)]
pub struct Act {
    act: Arc<Script>,
    counts: Arc<Mutex<HashMap<String, u32>>>,
    seen: Arc<Mutex<Vec<Message>>>,
}

impl Act {
    pub fn new(act: impl Fn(&Message, u32) -> Answer + Send + Sync + 'static) -> Self {
        Self { act: Arc::new(act), counts: Arc::default(), seen: Arc::default() }
    }

    pub fn seen(&self) -> Vec<Message> {
        self.seen.lock().unwrap().clone()
    }

    pub fn kinds(&self, key: &str) -> Vec<String> {
        let seen = self.seen().into_iter().filter(|message| message.key == key);
        seen.map(|message| message.kind).collect()
    }
}

impl<DB: Db> Handler<DB> for Act {
    type Facts = Answer;

    async fn prepare(&self, message: &Message) -> Result<Answer, Answer> {
        self.seen.lock().unwrap().push(message.clone());
        let count = {
            let mut counts = self.counts.lock().unwrap();
            let count = counts.entry(message.id.clone()).or_default();
            *count += 1;
            *count
        };
        let answer = (self.act)(message, count);
        // Half of the refusals come before the transaction, half in it.
        if answer != Answer::Done && count.is_multiple_of(2) { Err(answer) } else { Ok(answer) }
    }

    async fn apply(
        &self,
        message: &Message,
        answer: Answer,
        tx: &mut Transaction<'_, DB>,
    ) -> Answer {
        DB::insert(tx, &message.id).await;
        answer
    }
}

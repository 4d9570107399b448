//! A whole consumer on RabbitMQ: what it survives, and what its health says meanwhile.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod amqp;
mod common;

use std::time::Duration;

use amqp::Raw;
use amqp::proxy::Proxy;
use common::{Running, Script, Step, done, open_store, order, spawn, until, within};
use mamparo_core::backoff::Backoff;
use mamparo_core::message::headers;
use mamparo_messaging::{
    Answer, Broker as _, Confirm, Consumer, ConsumerOptions, Message, QueuePolicy, RabbitMqBroker,
    RabbitMqOptions,
};
use mamparo_store::SqliteStore;
use mamparo_testkit::servers::amqp_url;
use tokio_util::sync::CancellationToken;

struct Stage {
    _folder: tempfile::TempDir,
    store: SqliteStore,
    proxy: Proxy,
    broker: RabbitMqBroker,
    policy: QueuePolicy,
}

async fn stage() -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let store = open_store(folder.path(), "orders.db").await;
    store.apply("CREATE TABLE effects (id TEXT, kind TEXT)").await.unwrap();
    let proxy = Proxy::start(&amqp_url()).await;
    let broker = RabbitMqBroker::connect_with(&proxy.url, hasty()).await.unwrap();
    let policy = QueuePolicy { handler_timeout: Duration::from_secs(20), ..amqp::policy() };
    broker.declare(&policy).await.unwrap();
    Stage { _folder: folder, store, proxy, broker, policy }
}

fn hasty() -> RabbitMqOptions {
    RabbitMqOptions { reconnect: backoff(), ..RabbitMqOptions::default() }
}

fn backoff() -> Backoff {
    Backoff { cap: Duration::from_millis(50), ..Backoff::default() }
}

impl Stage {
    fn consume(&self, script: &Script) -> Running {
        let options = ConsumerOptions {
            grace: Duration::from_millis(300),
            reconnect: backoff(),
            ..ConsumerOptions::default()
        };
        let (broker, store) = (self.broker.clone(), self.store.clone());
        let consumer =
            Consumer::new(broker, store, self.policy.clone(), script.clone()).with_options(options);
        let (handle, cancel) = (consumer.handle(), CancellationToken::new());
        Running { handle, task: spawn(consumer.run(cancel.clone())), cancel }
    }

    /// The same id again until the broker has it, as a relay does.
    async fn publish(&self, message: &Message) {
        until("published", async || {
            let queue = &self.policy.queue;
            self.broker.publish("", queue, message).await == Confirm::Confirmed
        })
        .await;
    }

    async fn effects(&self) -> Vec<String> {
        let rows = sqlx::query_scalar("SELECT id FROM effects ORDER BY rowid");
        rows.fetch_all(self.store.reader()).await.unwrap()
    }

    async fn end(self, running: Running) {
        within(running.stop()).await;
        Raw::connect(&amqp_url()).await.clear(&self.policy).await;
    }
}

async fn subscribed(running: &Running, yes: bool) {
    assert!(within(running.handle.wait_for(|health| health.subscribed == yes)).await);
}

#[tokio::test]
async fn messages_c09_a_cut_consumer_is_not_ready_and_comes_back_by_itself() {
    let stage = stage().await;
    let running = stage.consume(&Script::new(|_, _| done()));
    subscribed(&running, true).await;
    stage.proxy.refuse(true);
    stage.proxy.cut();
    subscribed(&running, false).await;
    within(running.handle.wait_for(|health| health.error.is_some())).await;
    until("it tries again", async || stage.proxy.refused() > 3).await;
    assert!(!running.handle.health().subscribed, "not ready for as long as it is cut off");
    stage.proxy.refuse(false);
    subscribed(&running, true).await;
    assert_eq!(running.handle.health().error, None);
    let message = order("order.created", "o-1");
    stage.publish(&message).await;
    until("applied", async || stage.effects().await == [message.id.as_str()]).await;
    stage.end(running).await;
}

#[tokio::test]
async fn lesson_k11_a_hung_handler_does_not_hide_a_dead_channel() {
    let stage = Stage { policy: QueuePolicy { prefetch: 1, ..amqp::policy() }, ..stage().await };
    stage.broker.declare(&stage.policy).await.unwrap();
    let script = Script::new(|_, n| if n == 1 { Step::Gate } else { done() });
    let running = stage.consume(&script);
    let message = order("order.created", "o-1");
    stage.publish(&message).await;
    let _entered = within(script.entered.acquire()).await.unwrap();
    // No room, so nothing is taken; the loss is seen all the same, and at once.
    let noticed = running.handle.clone();
    let noticed = spawn(async move { noticed.wait_for(|health| !health.subscribed).await });
    stage.proxy.cut();
    assert!(within(noticed).await.unwrap());
    subscribed(&running, true).await;
    until("applied once", async || stage.effects().await == [message.id.as_str()]).await;
    stage.end(running).await;
}

#[tokio::test]
async fn messages_c10_a_deleted_queue_is_declared_again() {
    let stage = stage().await;
    let running = stage.consume(&Script::new(|_, _| done()));
    subscribed(&running, true).await;
    let noticed = running.handle.clone();
    let noticed = spawn(async move { noticed.wait_for(|health| !health.subscribed).await });
    Raw::connect(&amqp_url()).await.delete(&stage.policy.queue).await;
    assert!(within(noticed).await.unwrap());
    subscribed(&running, true).await;
    let message = order("order.created", "o-1");
    stage.publish(&message).await;
    until("applied", async || stage.effects().await == [message.id.as_str()]).await;
    stage.end(running).await;
}

#[tokio::test]
async fn messages_c16_connections_cut_under_work_lose_nothing_and_double_nothing() {
    let stage = stage().await;
    let running = stage.consume(&Script::new(|_, _| done()));
    let mut sent = Vec::new();
    for n in 0..60 {
        let message = order("order.created", &format!("o-{n}"));
        if n % 15 == 7 {
            stage.proxy.cut();
        }
        stage.publish(&message).await;
        sent.push(message.id);
    }
    until("all are applied", async || stage.effects().await.len() >= sent.len()).await;
    let mut effects = stage.effects().await;
    effects.sort();
    sent.sort();
    assert_eq!(effects, sent, "each exactly once");
    stage.end(running).await;
}

#[tokio::test]
async fn retries_go_through_the_waiting_room_and_the_last_into_the_dead_letters() {
    let stage = stage().await;
    let script = Script::new(|message, n| match (message.kind.as_str(), n) {
        ("order.poison", _) => Step::Prepare(Answer::dead("a bug")),
        ("order.doomed", _) | (_, 1..=2) => Step::Prepare(Answer::retry("503")),
        _ => done(),
    });
    let running = stage.consume(&script);
    let (slow, doomed, poison) =
        (order("order.slow", "o-1"), order("order.doomed", "o-2"), order("order.poison", "o-3"));
    for message in [&slow, &doomed, &poison] {
        stage.publish(message).await;
    }
    until("applied", async || stage.effects().await == [slow.id.as_str()]).await;
    assert_eq!(script.calls(&slow.id), 3);
    let dead = stage.policy.dlq();
    until("two are dead", async || stage.broker.depth(&dead).await.unwrap() == 2).await;
    assert_eq!(script.calls(&doomed.id), stage.policy.attempts);
    assert_eq!(script.calls(&poison.id), 1);
    let raw = Raw::connect(&amqp_url()).await;
    let mut reasons = Vec::new();
    for _ in 0..2 {
        let letter = raw.pull(&dead).await;
        let table = letter.properties.headers().clone().unwrap();
        for name in [headers::FAILURE_HOST, headers::LAST_ERROR, headers::FIRST_FAILURE] {
            assert!(table.contains_key(name), "{name}");
        }
        let reason = table.inner().get(headers::DEAD_REASON).unwrap();
        reasons.push(reason.as_long_string().unwrap().to_string());
    }
    reasons.sort();
    assert_eq!(reasons, ["attempts-spent", "poison"]);
    stage.end(running).await;
}

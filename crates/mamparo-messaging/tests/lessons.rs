//! The lesson's consumer and ours, side by side on the real broker.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod amqp;
mod common;
mod ground;

use std::time::Duration;

use amqp::{Raw, number, table, text};
use common::until;
use ground::{Act, Ground, Keep, policy};
use lapin::BasicProperties;
use lapin::options::{BasicAckOptions, BasicPublishOptions};
use mamparo_call::clock;
use mamparo_core::message::topology::WaitingRoom;
use mamparo_messaging::{Answer, Consumer, Message, PlainHandler, QueuePolicy};
use mamparo_store::Sqlite;
use mamparo_testkit::servers::amqp_url;
use tokio_util::sync::CancellationToken;

const MESSAGES: usize = 10;

async fn on_sqlite(policy: QueuePolicy) -> Ground<Sqlite> {
    let mut keep = Keep::default();
    let (broker, store) = (ground::rabbitmq(&mut keep).await, ground::sqlite(&mut keep).await);
    Ground { broker, store, policy, keep }.declared().await
}

/// The lesson's step after a failed handler: publish to the waiting room, look at nothing, acknowledge.
async fn fail_as_in_the_lesson(raw: &Raw, queue: &str, retry: &str) {
    let channel = raw.connection.create_channel().await.unwrap();
    let got = raw.get(queue).await.unwrap();
    let options = BasicPublishOptions::default();
    let properties = BasicProperties::default();
    channel.basic_publish("".into(), retry.into(), options, &got.data, properties).await.unwrap();
    got.ack(BasicAckOptions::default()).await.unwrap();
    channel.close(200, "done".into()).await.unwrap();
}

#[tokio::test]
async fn lesson_k01_messages_c01_a_full_waiting_room_loses_nine_of_ten_there_and_none_here() {
    let raw = Raw::connect(&amqp_url()).await;
    let name = format!("lesson.{}", uuid::Uuid::new_v4());
    let (queue, retry) = (name.clone(), format!("{name}.retry"));
    raw.declare(&queue, table([])).await;
    let limited = [("x-max-length", number(1)), ("x-overflow", text("reject-publish"))];
    raw.declare(&retry, table(limited)).await;
    for _ in 0..MESSAGES {
        raw.publish("", &queue, BasicProperties::default()).await;
    }
    for _ in 0..MESSAGES {
        fail_as_in_the_lesson(&raw, &queue, &retry).await;
    }
    assert_eq!((raw.ready(&queue).await, raw.ready(&retry).await), (0, 1), "nine are nowhere");
    raw.delete(&queue).await;
    raw.delete(&retry).await;

    let small = QueuePolicy { max_length: 1, ..policy(WaitingRoom::Tiers) };
    let ground = on_sqlite(small).await;
    for n in 0..MESSAGES {
        ground.publish(&ground.message("order.created", &format!("o-{n}"))).await;
    }
    let script = Act::new(|_, n| if n == 1 { Answer::retry("503") } else { Answer::Done });
    let running = ground.consume(&script);
    until("all ten applied", async || ground.effects().await.len() == MESSAGES).await;
    ground.settled(&running).await;
    assert!(ground.dead().await.is_empty());
    assert_eq!(running.stop().await.done, MESSAGES as u64);
    raw.clear(&ground.policy).await;
}

#[tokio::test]
async fn lesson_k11_a_handler_that_may_outlast_the_brokers_patience_is_not_begun() {
    let patient = policy(WaitingRoom::Tiers);
    let ground = on_sqlite(patient.clone()).await;
    let script = Act::new(|_, _| Answer::Done);
    ground.publish(&ground.message("order.created", "o-1")).await;
    let endless = QueuePolicy { handler_timeout: Duration::from_secs(1_800), ..patient };
    let running = ground.consume_with(endless, &script);
    assert!(running.handle.wait_for(|health| health.error.is_some()).await);
    let health = running.handle.health();
    assert!(!health.subscribed);
    assert!(health.error.unwrap().contains("consumer_timeout"));
    assert!(script.seen().is_empty());
    running.stop().await;
    Raw::connect(&amqp_url()).await.clear(&ground.policy).await;
}

/// RabbitMQ keeps a follower for a second in hand; one that has to wait longer goes through the tier, and
/// is back after the message that it followed. Who comes in between must not pass it.
#[tokio::test]
async fn lesson_k14_a_follower_in_the_waiting_room_is_not_passed_either() {
    let delay = Duration::from_millis(1_500);
    let ground = on_sqlite(QueuePolicy { retry_delay: delay, ..policy(WaitingRoom::Tiers) }).await;
    let script = Act::new(|message, n| match (message.kind.as_str(), n) {
        ("order.created", 1) => Answer::retry("503"),
        _ => Answer::Done,
    });
    let running = ground.consume(&script);
    ground.publish(&ground.message("order.created", "o-1")).await;
    until("it waits", async || ground.waiting().await == 1).await;
    // Late enough to come back visibly later, and early enough to be sent away.
    let end = clock::now().plus(Duration::from_millis(300));
    until("a moment", async || clock::now() >= end).await;
    ground.publish(&ground.message("order.paid", "o-1")).await;
    until("it is applied", async || !ground.effects().await.is_empty()).await;
    ground.publish(&ground.message("order.cancelled", "o-1")).await;
    until("all applied", async || ground.effects().await.len() == 3).await;
    let expected = ["order.created", "order.created", "order.paid", "order.cancelled"];
    assert_eq!(script.kinds("o-1"), expected);
    running.stop().await;
    Raw::connect(&amqp_url()).await.clear(&ground.policy).await;
}

#[tokio::test]
async fn messages_c37_what_came_before_a_restart_is_handled_without_anything_new() {
    let ground = on_sqlite(policy(WaitingRoom::Parked)).await;
    let script = Act::new(|_, n| if n == 1 { Answer::retry("503") } else { Answer::Done });
    let hasty = QueuePolicy { retry_delay: Duration::from_millis(400), ..ground.policy.clone() };
    let running = ground.consume_with(hasty.clone(), &script);
    ground.publish(&ground.message("order.created", "o-1")).await;
    until("it waits in the database", async || ground.waiting().await == 1).await;
    let handle = running.handle.clone();
    running.stop().await;
    assert!(!handle.health().subscribed, "not ready");
    // One lies at the broker, one in the database, and nobody publishes any more.
    ground.publish(&ground.message("order.created", "o-2")).await;
    let running = ground.consume_with(hasty, &script);
    until("both applied", async || ground.effects().await.len() == 2).await;
    assert!(running.handle.health().subscribed);
    running.stop().await;
    Raw::connect(&amqp_url()).await.clear(&ground.policy).await;
}

struct Forward(CancellationToken);

impl PlainHandler for Forward {
    async fn handle(&self, message: &Message) -> Answer {
        match message.kind.as_str() {
            "order.bad" => Answer::dead("no"),
            _ if message.header("x-attempts").is_none() => Answer::retry("503"),
            _ => {
                self.0.cancel();
                Answer::Done
            }
        }
    }
}

#[tokio::test]
async fn a_consumer_without_a_database_handles_retries_and_gives_up() {
    let ground = on_sqlite(policy(WaitingRoom::Parked)).await;
    let done = CancellationToken::new();
    let consumer =
        Consumer::plain(ground.broker.clone(), ground.policy.clone(), Forward(done.clone()));
    let (handle, cancel) = (consumer.handle(), CancellationToken::new());
    assert_eq!(handle.health().room, WaitingRoom::Tiers, "there is no database to wait in");
    let task = common::spawn(consumer.run(cancel.clone()));
    ground.publish(&ground.message("order.bad", "o-1")).await;
    ground.publish(&ground.message("order.created", "o-1")).await;
    common::within(done.cancelled()).await;
    let raw = Raw::connect(&amqp_url()).await;
    raw.until_ready(&ground.policy.dlq(), 1).await;
    cancel.cancel();
    let summary = task.await.unwrap();
    assert_eq!((summary.done, summary.retried, summary.dead), (1, 1, 1));
    raw.clear(&ground.policy).await;
}

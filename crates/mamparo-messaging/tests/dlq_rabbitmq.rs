//! What people do with dead letters on RabbitMQ.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use common::{order, until};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use mamparo_core::message::selection::{End, Sift};
use mamparo_core::message::{headers, lineage};
use mamparo_messaging::broker::{Filter, Subscription as _};
use mamparo_messaging::dlq::{self, Choice, Outcome, Pace, Selected, Task, Verb};
use mamparo_messaging::rabbitmq::RabbitMqLetters;
use mamparo_messaging::{Broker as _, Confirm, Message, QueuePolicy, RabbitMqBroker};
use mamparo_testkit::servers::amqp_url;
use tokio_util::sync::CancellationToken;

struct Shop {
    broker: RabbitMqBroker,
    policy: QueuePolicy,
}

impl Shop {
    async fn new() -> Self {
        let queue = format!("failed.{}", uuid::Uuid::new_v4());
        let policy = QueuePolicy::new(queue.clone(), "team-orders").bind(format!("{queue}.*"));
        let broker = RabbitMqBroker::connect(&amqp_url()).await.unwrap();
        broker.declare(&policy).await.unwrap();
        Self { broker, policy }
    }

    fn queue(&self) -> &str {
        &self.policy.queue
    }

    async fn dead(&self, kinds: &[&str], count: usize) -> Vec<Message> {
        let mut messages = Vec::new();
        for n in 0..count {
            for kind in kinds {
                let mut message = order(kind, &format!("o-{n}"));
                // As the lesson leaves it: the routing key is the queue's name.
                message.routing_key = self.queue().to_owned();
                for (name, value) in [
                    ("x-attempts", "5"),
                    ("x-attempts-queue", self.queue()),
                    ("traceparent", "00-a-b-01"),
                    ("x-last-error", "the catalog said 503"),
                ] {
                    message.headers.insert(name.to_owned(), value.to_owned());
                }
                messages.push(message);
            }
        }
        let dlq = self.policy.dlq();
        let publish = |message| self.broker.publish("", &dlq, message);
        let confirms: FuturesOrdered<_> = messages.iter().map(publish).collect();
        let confirms: Vec<Confirm> = confirms.collect().await;
        assert!(confirms.iter().all(|confirm| *confirm == Confirm::Confirmed));
        messages
    }

    async fn select(&self, choice: &Choice) -> Selected<RabbitMqLetters> {
        dlq::select(&self.broker, self.queue(), choice).await.unwrap()
    }

    /// All messages of a queue, in order.
    async fn lying(&self, suffix: &str) -> Vec<Message> {
        let queue = format!("{}{suffix}", self.queue());
        let all = Filter { max: 20_000, ..Filter::default() };
        let stored = self.broker.browse(&queue, &all).await.unwrap();
        stored.into_iter().map(|stored| stored.message).collect()
    }

    async fn depth(&self, suffix: &str) -> u64 {
        self.broker.depth(&format!("{}{suffix}", self.queue())).await.unwrap()
    }

    async fn gone(self) {
        use lapin::options::QueueDeleteOptions;
        let connection = lapin::Connection::connect(&amqp_url(), Default::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        for suffix in ["", ".retry", ".dlq", ".archive"] {
            let name = format!("{}{suffix}", self.queue());
            channel
                .queue_delete(name.as_str().into(), QueueDeleteOptions::default())
                .await
                .unwrap();
        }
    }
}

async fn carry_out(selected: &mut Selected<RabbitMqLetters>, task: &Task) -> Outcome {
    dlq::carry_out(selected, task, None, &CancellationToken::new(), |_| ()).await.unwrap()
}

fn of_kind(kind: &str) -> Choice {
    Choice { max: 10_000, sift: Sift { kind: Some(kind.to_owned()), ..Sift::default() } }
}

fn ids<'m>(messages: impl IntoIterator<Item = &'m Message>) -> Vec<String> {
    messages.into_iter().map(|message| message.id.clone()).collect()
}

/// The lesson gets a message, sees that it is another type, gives it back, and gets the same one.
#[tokio::test]
async fn lesson_s01_s02_a_filter_ends_and_leaves_the_others_in_their_order() {
    use lapin::options::{BasicGetOptions, BasicNackOptions};
    let shop = Shop::new().await;
    let all = shop.dead(&["order.created", "order.paid"], 20).await;

    let connection = lapin::Connection::connect(&amqp_url(), Default::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    for _ in 0..50 {
        let got = channel.basic_get(shop.policy.dlq().as_str().into(), BasicGetOptions::default());
        let got = got.await.unwrap().unwrap();
        let id = got.properties.message_id().as_ref().unwrap().to_string();
        assert_eq!(id, all[0].id, "the same head, for ever");
        assert_ne!(got.delivery.routing_key.as_str(), "order.paid", "and the key is no type");
        let back = BasicNackOptions { requeue: true, ..Default::default() };
        got.delivery.acker.nack(back).await.unwrap();
    }
    connection.close(200, "done".into()).await.unwrap();
    until("all back", async || shop.depth(".dlq").await == 40).await;

    let mut selected = shop.select(&of_kind("order.paid")).await;
    assert_eq!((selected.messages.len(), selected.total), (20, 40));
    let outcome = carry_out(&mut selected, &Task::new(Verb::Replay, "ana", "")).await;
    let (paid, created): (Vec<_>, Vec<_>) = all.iter().partition(|m| m.kind == "order.paid");
    assert_eq!((outcome.done, outcome.end), (ids(paid.iter().copied()), End::Finished));
    selected.close().await.unwrap();
    assert_eq!(ids(&shop.lying(".dlq").await), ids(created), "in place and in order");
    let back = shop.lying("").await;
    assert_eq!(ids(&back), ids(paid));
    let first = &back[0];
    assert_eq!(headers::attempts(&first.headers, shop.queue()).made, 0);
    assert_eq!(first.header("traceparent"), Some("00-a-b-01"));
    assert_eq!(first.header(lineage::REPLAYS), Some("1"));
    shop.gone().await;
}

#[tokio::test]
async fn lesson_s03_what_comes_back_is_told_and_not_moved_again() {
    let shop = Shop::new().await;
    let all = shop.dead(&["order.created"], 6).await;
    let mut selected = shop.select(&Choice::default()).await;
    let window = std::num::NonZeroU32::MIN;
    let stop_after = std::num::NonZeroU32::new(2);
    let pace = Pace { window, stop_after, ..Pace::default() };
    let task = Task { pace, ..Task::new(Verb::Replay, "ana", "") };
    // A consumer that finds each of them to be poison, at once.
    let poison = async {
        let consumer = shop.broker.consume(shop.queue(), 1).await.unwrap();
        for _ in 0..2 {
            let delivery = loop {
                consumer.ready().await;
                if let Some(delivery) = consumer.take(1).await.unwrap().pop() {
                    break delivery;
                }
            };
            let dlq = shop.policy.dlq();
            let confirm = shop.broker.publish("", &dlq, &delivery.message).await;
            assert_eq!(confirm, Confirm::Confirmed);
            consumer.ack(delivery.receipt).await.unwrap();
        }
        consumer.close().await.unwrap();
    };
    let pace = Pace { rate: std::num::NonZeroU32::new(4), ..task.pace };
    let task = Task { pace, ..task };
    let (outcome, ()) = tokio::join!(carry_out(&mut selected, &task), poison);
    assert_eq!(outcome.end, End::Stopped, "{outcome:?}");
    assert_eq!(outcome.back, ids(&all[..2]));
    selected.close().await.unwrap();
    until("closed", async || shop.depth(".dlq").await + shop.depth("").await == 6).await;
    let moved = outcome.done.len();
    let left = ids(&shop.lying(".dlq").await);
    assert_eq!(left[..6 - moved], ids(&all[moved..]), "untouched, in order, before what came back");
    shop.gone().await;
}

#[tokio::test]
async fn lesson_s04_a_replay_into_a_queue_that_is_gone_loses_nothing() {
    use lapin::options::QueueDeleteOptions;
    let shop = Shop::new().await;
    let all = shop.dead(&["order.created"], 3).await;
    let mut selected = shop.select(&Choice::default()).await;
    let connection = lapin::Connection::connect(&amqp_url(), Default::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let delete = channel.queue_delete(shop.queue().into(), QueueDeleteOptions::default());
    delete.await.unwrap();
    let outcome = carry_out(&mut selected, &Task::new(Verb::Replay, "ana", "")).await;
    assert_eq!((outcome.done.len(), outcome.left.len()), (0, 3));
    assert!(outcome.left[0].why.contains("does not exist"), "{:?}", outcome.left);
    selected.close().await.unwrap();
    until("back", async || shop.depth(".dlq").await == 3).await;
    assert_eq!(ids(&shop.lying(".dlq").await), ids(&all));
    shop.gone().await;
}

#[tokio::test]
async fn lesson_s06_messages_c39_edits_and_discards_are_archived_and_discards_come_back() {
    let shop = Shop::new().await;
    let all = shop.dead(&["order.created"], 3).await;
    assert_eq!(archived(&shop).await.messages.len(), 0, "no archive before the first discard");
    let mut selected = shop.select(&Choice { max: 1, ..Choice::default() }).await;
    let body = Some(b"{\"total\":2}".to_vec());
    let edit = Verb::Edit { body, headers: vec![("tenant".to_owned(), "b".to_owned())] };
    carry_out(&mut selected, &Task::new(edit, "ana", "bad total")).await;
    selected.close().await.unwrap();
    let copies = shop.lying("").await;
    assert_eq!(ids(&copies), [format!("{}~e1", all[0].id)], "exactly one");
    assert_eq!(copies[0].body, b"{\"total\":2}");
    assert_eq!(copies[0].header(lineage::EDITED_FROM), Some(all[0].id.as_str()));
    assert_eq!(copies[0].header("tenant"), Some("b"));

    let mut selected = shop.select(&Choice { max: 1, ..Choice::default() }).await;
    carry_out(&mut selected, &Task::new(Verb::Discard, "ana", "test order")).await;
    selected.close().await.unwrap();
    until("one left", async || shop.depth(".dlq").await == 1).await;
    let mut archive = archived(&shop).await;
    let kept: Vec<Message> = archive.messages.iter().map(|s| s.message.clone()).collect();
    assert_eq!(ids(&kept), ids(&all[..2]));
    assert_eq!(kept[1].header(lineage::ARCHIVED_BY), Some("ana"));
    assert_eq!(kept[1].header(lineage::ARCHIVE_REASON), Some("test order"));
    let outcome = carry_out(&mut archive, &Task::new(Verb::Undo, "bea", "")).await;
    archive.close().await.unwrap();
    assert_eq!(outcome.done, ids(&all[1..2]));
    assert!(outcome.left[0].why.contains("went its way"), "{:?}", outcome.left);
    until("two", async || shop.depth(".dlq").await == 2).await;
    assert_eq!(shop.lying(".dlq").await, [all[2].clone(), all[1].clone()], "as it was");
    shop.gone().await;
}

async fn archived(shop: &Shop) -> Selected<RabbitMqLetters> {
    dlq::select_archived(&shop.broker, shop.queue(), &Choice::default()).await.unwrap()
}

#[tokio::test]
async fn a_session_that_dies_leaves_everything_in_place_and_in_order() {
    let shop = Shop::new().await;
    let all = shop.dead(&["order.created", "order.paid"], 50).await;
    let selected = shop.select(&of_kind("order.paid")).await;
    assert_eq!(selected.messages.len(), 50);
    drop(selected);
    until("back", async || shop.depth(".dlq").await == 100).await;
    assert_eq!(shop.lying(".dlq").await, all);
    let error = dlq::select(&shop.broker, "no.such.queue", &Choice::default()).await.unwrap_err();
    assert!(error.to_string().contains("no.such.queue"), "{error}");
    shop.gone().await;
}

/// The broker itself gave it up: its reason is told, and its death headers do not travel.
#[tokio::test]
async fn what_a_session_lets_go_lies_in_its_order_also_when_it_is_much() {
    let shop = Shop::new().await;
    let sent: Vec<String> =
        shop.dead(&["order.created"], 100).await.into_iter().map(|message| message.id).collect();
    // The first look must not shuffle what the second one sees.
    for _ in 0..2 {
        let lying = shop.lying(".dlq").await.into_iter();
        let ids: Vec<String> = lying.map(|message| message.id).collect();
        assert!(ids == sent, "another order");
    }
    shop.gone().await;
}

#[tokio::test]
async fn what_the_broker_gave_up_says_why() {
    let shop = Shop::new().await;
    let policy = QueuePolicy { delivery_limit: 5, ..shop.policy.clone() };
    let queue = format!("{}.limited", policy.queue);
    let policy = QueuePolicy { queue, ..policy };
    shop.broker.declare(&policy).await.unwrap();
    let sent = order("order.created", "o-1");
    shop.broker.publish("", &policy.queue, &sent).await;
    let consumer = shop.broker.consume(&policy.queue, 1).await.unwrap();
    let dlq = policy.dlq();
    while shop.broker.depth(&dlq).await.unwrap() == 0 {
        if let Some(delivery) = consumer.take(1).await.unwrap().pop() {
            consumer.reject(delivery.receipt).await.unwrap();
        }
    }
    consumer.close().await.unwrap();
    let selected = dlq::select(&shop.broker, &policy.queue, &Choice::default()).await.unwrap();
    let facts = selected.messages[0].facts(&policy.queue);
    assert_eq!(facts.reason, "delivery-limit");
    assert_eq!(selected.messages[0].message.header("x-death"), None);
    selected.close().await.unwrap();
    Shop { policy, broker: shop.broker.clone() }.gone().await;
    shop.gone().await;
}

/// 1,000 here for the counts; 10,000 take the time that `docs/benchmarks.md` tells.
#[tokio::test]
async fn a_thousand_are_chosen_by_type_and_put_back() {
    let shop = Shop::new().await;
    shop.dead(&["order.created", "order.paid"], 1_000).await;
    let start = mamparo_call::clock::now();
    let mut selected = shop.select(&of_kind("order.paid")).await;
    let outcome = carry_out(&mut selected, &Task::new(Verb::Replay, "ana", "")).await;
    selected.close().await.unwrap();
    let took = mamparo_call::clock::now().since(start);
    println!("1,000 of 2,000 dead letters chosen by type and put back in {took:?}");
    assert_eq!((outcome.done.len(), outcome.left.len()), (1_000, 0));
    until("all", async || shop.depth("").await == 1_000 && shop.depth(".dlq").await == 1_000).await;
    shop.gone().await;
}

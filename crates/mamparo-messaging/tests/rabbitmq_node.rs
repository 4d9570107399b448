//! A RabbitMQ node of our own, to be restarted, throttled and hurried. Its start takes some seconds;
//! tests that run at once share it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod amqp;
mod common;

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use amqp::{Raw, next, policy};
use common::{order, until, within};
use mamparo_call::clock;
use mamparo_core::backoff::Backoff;
use mamparo_core::message::closure::Kind;
use mamparo_messaging::broker::{Settled, Subscription};
use mamparo_messaging::{Broker as _, Confirm, MessagingError, RabbitMqBroker, RabbitMqOptions};
use mamparo_testkit::servers::RabbitMq;
use tokio::sync::RwLock;

/// Readers use the node, the writer restarts it or holds up everybody.
type Node = Arc<RwLock<RabbitMq>>;

fn node() -> Node {
    static NODE: Mutex<Weak<RwLock<RabbitMq>>> = Mutex::new(Weak::new());
    let mut slot = NODE.lock().unwrap();
    slot.upgrade().unwrap_or_else(|| {
        let node = Arc::new(RwLock::new(RabbitMq::start().unwrap()));
        *slot = Arc::downgrade(&node);
        node
    })
}

fn options() -> RabbitMqOptions {
    RabbitMqOptions {
        reconnect: Backoff { cap: Duration::from_millis(50), ..Backoff::default() },
        ..RabbitMqOptions::default()
    }
}

async fn connect(url: &str) -> RabbitMqBroker {
    RabbitMqBroker::connect_with(url, options()).await.unwrap()
}

/// Why the subscription ended.
async fn end_of(subscription: &impl Subscription) -> (Kind, String) {
    within(subscription.lost()).await;
    let error = subscription.take(0).await.unwrap_err();
    let MessagingError::Broker { operation, closure } = error else { panic!("{error}") };
    (closure.kind, format!("{operation}: {closure}"))
}

#[tokio::test]
async fn messages_c09_a_killed_connection_ends_the_subscription_with_words_and_a_new_one_goes_on() {
    let node = node();
    let node = node.write().await;
    let (broker, policy) = (connect(&node.url()).await, policy());
    broker.declare(&policy).await.unwrap();
    let message = order("order.created", "o-1");
    assert_eq!(broker.publish("", &policy.queue, &message).await, Confirm::Confirmed);
    let subscription = broker.consume(&policy.queue, 10).await.unwrap();
    let delivery = next(&subscription).await;
    node.ctl(&["close_all_connections", "maintenance"]).unwrap();
    let (kind, words) = end_of(&subscription).await;
    assert_eq!(kind, Kind::Forced, "{words}");
    assert!(words.contains("maintenance") && words.contains("320"), "{words}");
    assert!(subscription.renew().await.is_err());
    // What was in hand comes again, and the old receipt is nothing on either.
    assert_eq!(subscription.ack(delivery.receipt).await.unwrap(), Settled::Stale);
    let subscription = broker.consume(&policy.queue, 10).await.unwrap();
    let again = next(&subscription).await;
    assert!(again.suspect);
    assert_eq!(subscription.ack(delivery.receipt).await.unwrap(), Settled::Stale);
    assert_eq!(subscription.ack(again.receipt).await.unwrap(), Settled::Done);
    // The publisher is back by itself.
    until("published again", async || {
        broker.publish("", &policy.queue, &message).await == Confirm::Confirmed
    })
    .await;
    subscription.ack(next(&subscription).await.receipt).await.unwrap();
    within(subscription.close()).await.unwrap();
}

#[tokio::test]
async fn messages_c09_a_restarted_broker_has_everything_and_both_sides_come_back() {
    let node = node();
    let mut node = node.write().await;
    let (broker, policy) = (connect(&node.url()).await, policy());
    broker.declare(&policy).await.unwrap();
    for n in 0..20 {
        let message = order("order.created", &n.to_string());
        assert_eq!(broker.publish("", &policy.queue, &message).await, Confirm::Confirmed);
    }
    let subscription = broker.consume(&policy.queue, 5).await.unwrap();
    next(&subscription).await;
    node.kill().unwrap();
    let (kind, words) = end_of(&subscription).await;
    assert_eq!(kind, Kind::Disconnected, "{words}");
    let error = broker.consume(&policy.queue, 5).await.unwrap_err();
    assert!(matches!(error, MessagingError::Broker { .. }), "{error}");
    let lost = order("order.created", "lost");
    let confirm = broker.publish("", &policy.queue, &lost);
    let (confirm, started) = tokio::join!(confirm, async { node.restart() });
    started.unwrap();
    assert!(matches!(confirm, Confirm::Unknown(_) | Confirm::Confirmed), "{confirm:?}");
    until("published again", async || {
        let message = order("order.created", "after");
        broker.publish("", &policy.queue, &message).await == Confirm::Confirmed
    })
    .await;
    let subscription = broker.consume(&policy.queue, 100).await.unwrap();
    let mut keys = std::collections::BTreeSet::new();
    while keys.len() < 21 {
        let delivery = next(&subscription).await;
        subscription.ack(delivery.receipt).await.unwrap();
        keys.insert(delivery.message.key);
        keys.remove("lost");
    }
    within(subscription.close()).await.unwrap();
}

#[tokio::test]
async fn messages_c10_lesson_k07_a_consumer_that_the_broker_cancels_knows_it() {
    let node = node();
    let node = node.read().await;
    let (broker, policy) = (connect(&node.url()).await, policy());
    broker.declare(&policy).await.unwrap();
    let subscription = broker.consume(&policy.queue, 10).await.unwrap();
    Raw::connect(&node.url()).await.delete(&policy.queue).await;
    let (kind, words) = end_of(&subscription).await;
    assert_eq!(kind, Kind::Cancelled, "{words}");
    assert!(words.contains("deleted"), "{words}");
    assert_eq!(within(subscription.close()).await.unwrap(), 0);
    // The supervisor's way back: declare, then consume.
    broker.declare(&policy).await.unwrap();
    let subscription = broker.consume(&policy.queue, 10).await.unwrap();
    let message = order("order.created", "o-1");
    assert_eq!(broker.publish("", &policy.queue, &message).await, Confirm::Confirmed);
    subscription.ack(next(&subscription).await.receipt).await.unwrap();
    within(subscription.close()).await.unwrap();
}

#[tokio::test]
async fn messages_c11_lesson_k10_after_an_ack_timeout_the_late_ack_stays_here() {
    let node = node();
    let node = node.write().await;
    // RabbitMQ's own are 30 minutes, looked at once a minute.
    let hurry = "application:set_env(rabbit, consumer_timeout, 400), \
                 application:set_env(rabbit, channel_tick_interval, 100).";
    node.ctl(&["eval", hurry]).unwrap();
    let (broker, policy) = (connect(&node.url()).await, policy());
    broker.declare(&policy).await.unwrap();
    let message = order("order.created", "o-1");
    assert_eq!(broker.publish("", &policy.queue, &message).await, Confirm::Confirmed);
    let subscription = broker.consume(&policy.queue, 1).await.unwrap();
    let delivery = next(&subscription).await;
    // The handler hangs; nothing is taken, and the end is seen all the same.
    let (kind, words) = end_of(&subscription).await;
    assert_eq!(kind, Kind::AckTimeout, "{words}");
    assert!(words.contains("consumer_timeout"), "{words}");
    let calm = "application:set_env(rabbit, consumer_timeout, 1800000), \
                application:set_env(rabbit, channel_tick_interval, 60000).";
    node.ctl(&["eval", calm]).unwrap();
    let subscription = broker.consume(&policy.queue, 1).await.unwrap();
    let again = next(&subscription).await;
    assert_eq!(again.receipt.tag, delivery.receipt.tag, "the same number on another channel");
    assert_eq!(subscription.ack(delivery.receipt).await.unwrap(), Settled::Stale);
    assert_eq!(subscription.ack(again.receipt).await.unwrap(), Settled::Done);
    // The channel lives: no unknown tag has reached it.
    let message = order("order.created", "o-2");
    assert_eq!(broker.publish("", &policy.queue, &message).await, Confirm::Confirmed);
    subscription.ack(next(&subscription).await.receipt).await.unwrap();
    within(subscription.close()).await.unwrap();
    until("all are gone", async || broker.depth(&policy.queue).await.unwrap() == 0).await;
}

#[tokio::test]
async fn a_broker_short_of_memory_makes_publishes_wait_and_loses_none() {
    let node = node();
    let node = node.write().await;
    let limit = Duration::from_millis(300);
    let hasty = RabbitMqOptions { publish_timeout: limit, ..options() };
    let broker = RabbitMqBroker::connect_with(&node.url(), hasty).await.unwrap();
    // As long as the broker's tool and its look at its memory take on a busy machine.
    let enough = Duration::from_secs(60);
    let patience = RabbitMqOptions { publish_timeout: enough, ..options() };
    let patient = RabbitMqBroker::connect_with(&node.url(), patience).await.unwrap();
    let policy = policy();
    broker.declare(&policy).await.unwrap();
    let message = |key: &str| order("order.created", key);
    for broker in [&broker, &patient] {
        until("it publishes", async || {
            broker.publish("", &policy.queue, &message("warm")).await == Confirm::Confirmed
        })
        .await;
    }
    node.ctl(&["set_vm_memory_high_watermark", "absolute", "1"]).unwrap();
    // The broker speaks of it to whoever publishes.
    until("it is said", async || {
        let confirm = broker.publish("", &policy.queue, &message("blocked")).await;
        format!("{confirm:?}").contains("the broker takes no publishes")
    })
    .await;
    let began = clock::now();
    let waits = message("patient");
    let waiting = patient.publish("", &policy.queue, &waits);
    let relief = async { node.ctl(&["set_vm_memory_high_watermark", "absolute", "1GB"]) };
    let (confirm, relieved) = tokio::join!(waiting, relief);
    relieved.unwrap();
    assert_eq!(confirm, Confirm::Confirmed);
    assert!(clock::now() < began.plus(enough));
    let subscription = broker.consume(&policy.queue, 1_000).await.unwrap();
    until("it arrived", async || {
        let taken = subscription.take(100).await.unwrap();
        taken.iter().any(|delivery| delivery.message.key == "patient")
    })
    .await;
    within(subscription.close()).await.unwrap();
}

#[tokio::test]
async fn a_publish_that_the_broker_closes_the_channel_for_is_refused_and_its_neighbours_are_not() {
    let node = node();
    let node = node.write().await;
    let size = |bytes: u64| {
        let set = format!("application:set_env(rabbit, max_message_size, {bytes}).");
        node.ctl(&["eval", &set]).unwrap();
    };
    node.ctl(&["add_user", "shop", "shop"]).unwrap();
    node.ctl(&["set_permissions", "shop", ".*", "^amq\\.default$|^rabbit", ".*"]).unwrap();
    let policy = policy();
    connect(&node.url()).await.declare(&policy).await.unwrap();
    size(2_000);
    let broker = connect(&node.url().replace("guest:guest", "shop:shop")).await;
    let (large, small) = (
        mamparo_messaging::Message { body: vec![b'x'; 2_001], ..order("order.created", "o-1") },
        order("order.created", "o-2"),
    );
    let [refused, neighbour] =
        [broker.publish("", &policy.queue, &large), broker.publish("", &policy.queue, &small)];
    let (refused, neighbour) = within(async { tokio::join!(refused, neighbour) }).await;
    let words = format!("{refused:?}");
    assert!(matches!(refused, Confirm::Nacked(_)) && words.contains("max_message_size"), "{words}");
    assert!(!matches!(neighbour, Confirm::Nacked(_) | Confirm::Returned), "{neighbour:?}");
    // The next of its kind is not even sent, and hurts nobody.
    let again = broker.publish("", &policy.queue, &large);
    let neighbour = broker.publish("", &policy.queue, &small);
    let (refused, neighbour) = within(async { tokio::join!(again, neighbour) }).await;
    assert!(matches!(refused, Confirm::Nacked(_)), "{refused:?}");
    assert_eq!(neighbour, Confirm::Confirmed);
    // The same for an exchange that this user may not write to.
    let refused = broker.publish("events", "x", &small).await;
    let words = format!("{refused:?}");
    assert!(matches!(refused, Confirm::Nacked(_)) && words.contains("permissions"), "{words}");
    assert_eq!(broker.publish("", &policy.queue, &small).await, Confirm::Confirmed);
    size(134_217_728);
}

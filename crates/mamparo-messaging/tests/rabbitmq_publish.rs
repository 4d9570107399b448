//! Publishing to RabbitMQ: returns that are told apart, and broken connections.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod amqp;
mod common;

use std::time::Duration;

use amqp::proxy::Proxy;
use amqp::{Raw, next, policy};
use common::{order, until, within};
use futures_util::future::join_all;
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions};
use lapin::types::FieldTable;
use mamparo_call::clock;
use mamparo_core::backoff::Backoff;
use mamparo_messaging::broker::Subscription as _;
use mamparo_messaging::{
    Broker as _, Confirm, Message, MessagingError, QueuePolicy, RabbitMqBroker, RabbitMqOptions,
};
use mamparo_testkit::servers::amqp_url;

fn hasty() -> RabbitMqOptions {
    RabbitMqOptions {
        reconnect: Backoff { cap: Duration::from_millis(20), ..Backoff::default() },
        ..RabbitMqOptions::default()
    }
}

async fn broker(options: RabbitMqOptions) -> (RabbitMqBroker, QueuePolicy) {
    let broker = RabbitMqBroker::connect_with(&amqp_url(), options).await.unwrap();
    let policy = policy();
    broker.declare(&policy).await.unwrap();
    (broker, policy)
}

/// A broker behind a proxy, a queue, and the proxy.
async fn behind(options: RabbitMqOptions) -> (RabbitMqBroker, QueuePolicy, Proxy) {
    let proxy = Proxy::start(&amqp_url()).await;
    let broker = RabbitMqBroker::connect_with(&proxy.url, options).await.unwrap();
    let policy = policy();
    broker.declare(&policy).await.unwrap();
    // However short the limit is: a busy machine takes its time for the first.
    until("it publishes", async || {
        let message = order("order.created", "o-1");
        broker.publish("", &policy.queue, &message).await == Confirm::Confirmed
    })
    .await;
    (broker, policy, proxy)
}

async fn clear(policy: &QueuePolicy) {
    Raw::connect(&amqp_url()).await.clear(policy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_returned_publish_is_told_from_its_confirmed_neighbours() {
    let (broker, policy) = broker(hasty()).await;
    // A classic queue confirms at once, so that one frame often confirms its messages and returned ones.
    let raw = Raw::connect(&amqp_url()).await;
    let queue = format!("{}.classic", policy.queue);
    raw.declare(&queue, FieldTable::default()).await;
    let publishes = (0..6_000_u32).map(|n| {
        let (broker, queue) = (&broker, &queue);
        async move {
            // No rhythm that one frame for many confirms could fall in with.
            let wanted = n % 7 % 3 != 1;
            let to = if wanted { queue.as_str() } else { "no.such.queue" };
            let confirm = broker.publish("", to, &order("order.created", &n.to_string())).await;
            assert_eq!(confirm == Confirm::Confirmed, wanted, "{n}: {confirm:?}");
            assert_eq!(confirm == Confirm::Returned, !wanted, "{n}: {confirm:?}");
        }
    });
    within(join_all(publishes)).await;
    raw.delete(&queue).await;
    raw.clear(&policy).await;
}

#[tokio::test]
async fn two_publishes_of_one_id_in_flight_do_not_mix() {
    let (broker, policy) = broker(hasty()).await;
    let message = order("order.created", "o-1");
    let publishes = (0..200).map(|n| {
        let to = if n % 2 == 0 { policy.queue.as_str() } else { "no.such.queue" };
        broker.publish("", to, &message)
    });
    let confirms = within(join_all(publishes)).await;
    for (n, confirm) in confirms.into_iter().enumerate() {
        let expected = if n % 2 == 0 { Confirm::Confirmed } else { Confirm::Returned };
        assert_eq!(confirm, expected, "{n}");
    }
    let raw = Raw::connect(&amqp_url()).await;
    raw.until_ready(&policy.queue, 100).await;
    raw.clear(&policy).await;
}

#[tokio::test]
async fn messages_c15_a_cut_connection_ends_every_publish_at_once_and_the_next_arrive() {
    let (broker, policy, proxy) = behind(hasty()).await;
    proxy.hold();
    let began = clock::now();
    let publishes = (0..50).map(|n| {
        let (broker, queue) = (&broker, &policy.queue);
        async move { broker.publish("", queue, &order("order.created", &n.to_string())).await }
    });
    let cut = async {
        until("all are in flight", async || broker.in_flight() == 50).await;
        proxy.cut();
    };
    let (confirms, ()) = within(async { tokio::join!(join_all(publishes), cut) }).await;
    assert!(clock::now() < began.plus(hasty().publish_timeout), "not by the limit");
    for confirm in confirms {
        // Those that had not left yet go out on the next connection.
        assert!(matches!(confirm, Confirm::Unknown(_) | Confirm::Confirmed), "{confirm:?}");
    }
    let confirm = broker.publish("", &policy.queue, &order("order.created", "last")).await;
    assert_eq!(confirm, Confirm::Confirmed);
    assert_eq!(broker.in_flight(), 0);
    clear(&policy).await;
}

#[tokio::test]
async fn messages_c15_a_silent_broker_ends_a_publish_by_its_limit() {
    let limit = Duration::from_millis(200);
    let options = RabbitMqOptions { publish_timeout: limit, window: 2, ..hasty() };
    let (broker, policy, proxy) = behind(options).await;
    proxy.hold();
    let publishes = (0..6).map(|n| {
        let (broker, queue) = (&broker, &policy.queue);
        async move { broker.publish("", queue, &order("order.created", &n.to_string())).await }
    });
    let confirms = within(join_all(publishes)).await;
    let words: Vec<String> = confirms.into_iter().map(|confirm| format!("{confirm:?}")).collect();
    let count = |says: &str| words.iter().filter(|text| text.contains(says)).count();
    assert_eq!((count("no confirm within"), count("window was full")), (2, 4), "{words:?}");
    // The confirms come after all: their places are free again.
    proxy.release();
    until("the window is empty", async || broker.in_flight() == 0).await;
    let confirm = broker.publish("", &policy.queue, &order("order.created", "last")).await;
    assert_eq!(confirm, Confirm::Confirmed);
    clear(&policy).await;
}

#[tokio::test]
async fn publishes_wait_for_the_connection_within_their_limit() {
    let (broker, policy, proxy) = behind(hasty()).await;
    proxy.refuse(true);
    proxy.cut();
    let message = order("order.created", "o-2");
    let back = async {
        until("it is tried again in vain", async || proxy.refused() > 2).await;
        proxy.refuse(false);
    };
    let publish = broker.publish("", &policy.queue, &message);
    let (confirm, ()) = within(async { tokio::join!(publish, back) }).await;
    assert!(matches!(confirm, Confirm::Confirmed | Confirm::Unknown(_)), "{confirm:?}");
    let confirm = broker.publish("", &policy.queue, &message).await;
    assert_eq!(confirm, Confirm::Confirmed);
    clear(&policy).await;
}

#[tokio::test]
async fn messages_c15_a_closed_channel_ends_its_publishes_and_only_the_channel_is_new() {
    let (broker, policy, proxy) = behind(hasty()).await;
    let raw = Raw::connect(&amqp_url()).await;
    let exchange = format!("{}.x", policy.queue);
    let none = FieldTable::default;
    let (name, options) = (exchange.as_str(), ExchangeDeclareOptions::default());
    raw.channel.exchange_declare(name.into(), ExchangeKind::Fanout, options, none()).await.unwrap();
    let (queue, bind) = (policy.queue.as_str(), QueueBindOptions::default());
    raw.channel.queue_bind(queue.into(), name.into(), "".into(), bind, none()).await.unwrap();
    let message = |key: &str| order("order.created", key);
    assert_eq!(broker.publish(name, "", &message("before")).await, Confirm::Confirmed);
    let opened = proxy.opened();
    raw.channel.exchange_delete(name.into(), ExchangeDeleteOptions::default()).await.unwrap();
    // The broker closes the channel for the first that names the lost exchange.
    let messages: Vec<Message> = (0..40).map(|n| message(&n.to_string())).collect();
    let publishes = messages.iter().enumerate().map(|(n, message)| {
        let (exchange, key) = if n % 4 == 0 { (name, "") } else { ("", queue) };
        broker.publish(exchange, key, message)
    });
    let confirms = within(join_all(publishes)).await;
    for (n, confirm) in confirms.iter().enumerate() {
        match confirm {
            Confirm::Unknown(why) => assert!(why.contains("404"), "{why}"),
            Confirm::Returned => assert_eq!(n % 4, 0),
            Confirm::Confirmed => assert_ne!(n % 4, 0),
            Confirm::Nacked(why) => panic!("{why}"),
        }
    }
    assert!(confirms.iter().any(|confirm| matches!(confirm, Confirm::Unknown(_))), "{confirms:?}");
    // It is known as missing now, and harms nobody any more.
    assert_eq!(broker.publish(name, "", &message("after")).await, Confirm::Returned);
    assert_eq!(broker.publish("", queue, &message("after")).await, Confirm::Confirmed);
    assert_eq!(proxy.opened(), opened, "the connection is the same");
    raw.clear(&policy).await;
}

#[tokio::test]
async fn messages_c15_a_closed_publisher_ends_every_publish_at_once() {
    let (broker, policy, proxy) = behind(hasty()).await;
    proxy.hold();
    let began = clock::now();
    let publish = async { broker.publish("", &policy.queue, &order("order.created", "o-2")).await };
    let close = async {
        until("it is in flight", async || broker.in_flight() == 1).await;
        broker.close();
    };
    let (confirm, ()) = within(async { tokio::join!(publish, close) }).await;
    assert!(matches!(confirm, Confirm::Unknown(_)), "{confirm:?}");
    assert!(clock::now() < began.plus(hasty().publish_timeout), "not by the limit");
    let confirm = broker.publish("", &policy.queue, &order("order.created", "o-3")).await;
    assert!(matches!(confirm, Confirm::Unknown(_)), "{confirm:?}");
    clear(&policy).await;
}

#[tokio::test]
async fn a_wrong_address_or_password_is_refused_in_words_without_the_password() {
    let url = amqp_url();
    let wrong = url.replace("guest:guest@", "guest:s3cret@");
    let nowhere = "amqp://guest:s3cret@127.0.0.1:1/%2f";
    let elsewhere = format!("{}no-such-vhost", url.trim_end_matches("%2f"));
    for (address, says) in [
        (wrong.as_str(), "check user, password"),
        (nowhere, "127.0.0.1:1"),
        (elsewhere.as_str(), "virtual host does not exist"),
        ("sqlite:x.db", "begins with amqp://"),
        ("amqp://guest:s3cret@127.0.0.1:99999/%2f", "can't be read"),
    ] {
        let error = RabbitMqBroker::connect(address).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(says) && !text.contains("s3cret"), "{address}: {text}");
        assert!(matches!(error, MessagingError::Broker { .. } | MessagingError::Address { .. }));
    }
}

#[tokio::test]
async fn messages_c09_a_connection_without_signs_of_life_is_given_up() {
    let proxy = Proxy::start(&amqp_url()).await;
    // One second instead of ten; it is given up after two of them.
    let address = format!("{}?heartbeat=1", proxy.url);
    let broker = RabbitMqBroker::connect_with(&address, hasty()).await.unwrap();
    let policy = policy();
    broker.declare(&policy).await.unwrap();
    let subscription = broker.consume(&policy.queue, 10).await.unwrap();
    proxy.hold();
    within(subscription.lost()).await;
    let words = subscription.take(1).await.unwrap_err().to_string();
    assert!(words.contains("no sign of life"), "{words}");
    proxy.cut();
    let subscription = broker.consume(&policy.queue, 10).await.unwrap();
    let message = order("order.created", "o-1");
    assert_eq!(broker.publish("", &policy.queue, &message).await, Confirm::Confirmed);
    subscription.ack(next(&subscription).await.receipt).await.unwrap();
    within(subscription.close()).await.unwrap();
    clear(&policy).await;
}

#[tokio::test]
async fn what_was_acknowledged_just_before_the_close_is_gone_and_the_rest_comes_in_order() {
    let (broker, policy) = broker(hasty()).await;
    let messages: Vec<Message> =
        (0..1_000).map(|n| order("order.created", &n.to_string())).collect();
    let publishes = messages.iter().map(|message| broker.publish("", &policy.queue, message));
    assert!(within(join_all(publishes)).await.iter().all(|one| *one == Confirm::Confirmed));
    let subscription = broker.consume(&policy.queue, 1_000).await.unwrap();
    let mut taken = Vec::new();
    while taken.len() < messages.len() {
        within(subscription.ready()).await;
        taken.extend(subscription.take(1_000).await.unwrap());
    }
    // Every other one, so that none can be sent together with its neighbour.
    for delivery in taken.iter().skip(1).step_by(2) {
        subscription.ack(delivery.receipt).await.unwrap();
    }
    assert_eq!(within(subscription.close()).await.unwrap(), 500);
    // What comes back comes before this one.
    let last = order("order.created", "last");
    assert_eq!(broker.publish("", &policy.queue, &last).await, Confirm::Confirmed);
    let subscription = broker.consume(&policy.queue, 2_000).await.unwrap();
    let mut ids = Vec::new();
    while ids.last() != Some(&last.id) {
        ids.push(next(&subscription).await.message.id);
    }
    let expected: Vec<String> = taken
        .iter()
        .step_by(2)
        .map(|one| &one.message)
        .chain([&last])
        .map(|m| m.id.clone())
        .collect();
    assert_eq!(ids.len(), expected.len(), "some came again");
    assert!(ids == expected, "they came back in another order");
    within(subscription.close()).await.unwrap();
    clear(&policy).await;
}

/// The reader waits for the first frame of a settlement to be written when it is stopped: what it had
/// not sent of the same settlement must go, too.
#[tokio::test]
async fn a_close_in_the_middle_of_a_settlement_sends_the_rest_of_it() {
    let (broker, policy) = broker(RabbitMqOptions::default()).await;
    for n in 1..=4 {
        let message = order("order.created", &n.to_string());
        assert_eq!(broker.publish("", &policy.queue, &message).await, Confirm::Confirmed);
    }
    let subscription = broker.consume(&policy.queue, 10).await.unwrap();
    let mut taken = Vec::new();
    for _ in 1..=4 {
        taken.push(next(&subscription).await);
    }
    // Everything up to the first in one frame, the third in one of its own.
    for delivery in [&taken[0], &taken[2]] {
        subscription.ack(delivery.receipt).await.unwrap();
    }
    tokio::task::yield_now().await;
    assert_eq!(subscription.close().await.unwrap(), 2);
    let raw = Raw::connect(&amqp_url()).await;
    raw.until_ready(&policy.queue, 2).await;
    for back in [&taken[1], &taken[3]] {
        let id = raw.pull(&policy.queue).await.properties.message_id().clone();
        assert_eq!(id.unwrap().as_str(), back.message.id);
    }
    raw.clear(&policy).await;
}

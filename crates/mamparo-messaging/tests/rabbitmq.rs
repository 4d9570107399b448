//! RabbitMQ: what only the real broker can show.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod common;

use std::time::Duration;

use common::{order, until, within};
use mamparo_messaging::broker::{Delivery, Settled, Subscription};
use mamparo_messaging::{Broker as _, Confirm, MessagingError, QueuePolicy, RabbitMqBroker};
use mamparo_testkit::servers::amqp_url;

/// A policy whose queues nobody else uses.
fn policy() -> QueuePolicy {
    let queue = format!("rabbit.{}", uuid::Uuid::new_v4());
    QueuePolicy {
        retry_delay: Duration::from_millis(30),
        ..QueuePolicy::new(queue.clone(), "team-orders").bind(format!("{queue}.*"))
    }
}

async fn broker() -> RabbitMqBroker {
    RabbitMqBroker::connect(&amqp_url()).await.unwrap()
}

async fn next(subscription: &impl Subscription) -> Delivery {
    loop {
        within(subscription.ready()).await;
        if let Some(delivery) = subscription.take(1).await.unwrap().pop() {
            return delivery;
        }
    }
}

#[tokio::test]
async fn what_is_published_is_handed_out_unchanged_and_gone_after_its_ack() {
    let (broker, policy) = (broker().await, policy());
    broker.declare(&policy).await.unwrap();
    let routing_key = format!("{}.created", policy.queue);
    let mut sent = order("order.created", "o-1");
    sent.routing_key = routing_key.clone();
    sent.headers.insert("tenant".into(), "north".into());
    assert_eq!(broker.publish("events", &routing_key, &sent).await, Confirm::Confirmed);
    let subscription = broker.consume(&policy.queue, 10).await.unwrap();
    let delivery = next(&subscription).await;
    assert_eq!(delivery.message, sent);
    assert!(!delivery.suspect);
    assert_eq!(subscription.ack(delivery.receipt).await.unwrap(), Settled::Done);
    assert_eq!(subscription.ack(delivery.receipt).await.unwrap(), Settled::Stale);
    assert_eq!(within(subscription.close()).await.unwrap(), 0);
    until("the queue is empty", async || broker.depth(&policy.queue).await.unwrap() == 0).await;
    let nowhere = broker.publish("", "no.such.queue", &sent).await;
    assert_eq!(nowhere, Confirm::Returned);
    let nowhere = broker.publish("no.such.exchange", "x", &sent).await;
    assert_eq!(nowhere, Confirm::Returned);
    let error = broker.consume("no.such.queue", 1).await.unwrap_err();
    assert!(matches!(error, MessagingError::UnknownQueue { known: None, .. }), "{error}");
}

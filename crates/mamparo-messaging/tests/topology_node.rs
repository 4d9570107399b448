//! Queues on a RabbitMQ node of our own, whose dead-letter worker tries again every 300 ms instead of every
//! 3 minutes. Starting it takes some seconds.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]
#![allow(missing_debug_implementations, unreachable_pub, dead_code, reason = "these are tests")]

mod common;
#[path = "topology/raw.rs"]
mod raw;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use common::until;
use mamparo_core::message::topology::plan::{Action, Migration};
use mamparo_messaging::plan::plan;
use mamparo_messaging::{Broker as _, MessagingError, QueuePolicy, RabbitMqBroker};
use mamparo_testkit::servers::RabbitMq;
use raw::{Raw, number, text};

static NODE: Mutex<Weak<RabbitMq>> = Mutex::new(Weak::new());

/// The node that the tests of this file share while any of them runs: a static one would never end.
fn node() -> Arc<RabbitMq> {
    let mut shared = NODE.lock().unwrap();
    if let Some(node) = shared.upgrade() {
        return node;
    }
    let node = Arc::new(RabbitMq::start().unwrap());
    let often = "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 300).";
    node.ctl(&["eval", often]).unwrap();
    *shared = Arc::downgrade(&node);
    node
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

async fn both(node: &RabbitMq) -> (Raw, RabbitMqBroker) {
    let url = node.url();
    (Raw::connect(&url).await, RabbitMqBroker::connect(&url).await.unwrap())
}

#[tokio::test]
async fn lesson_t03_messages_c06_a_target_that_is_away_loses_all_retries_there_and_none_here() {
    let node = node();
    let (raw, broker) = both(&node).await;
    let (target, retry) = (raw.name("lesson"), raw.name("lesson.retry"));
    let back = [
        ("x-message-ttl", number(100)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(&target)),
    ];
    raw.queue(&retry, &back).await;
    let policy =
        QueuePolicy { retry_delay: millis(100), ..QueuePolicy::new(raw.name("ours"), "team") };
    broker.declare(&policy).await.unwrap();
    raw.delete(&policy.queue).await;
    for _ in 0..5 {
        assert!(raw.put("", &retry, None).await);
        assert!(raw.put("", &policy.retry_queue(), None).await);
    }
    for queue in [&retry, &policy.retry_queue()] {
        until("all are over their time", async || raw.depth(queue).await == Some(0)).await;
    }
    raw.queue(&target, &[]).await;
    broker.declare(&policy).await.unwrap();
    until("five of five", async || raw.depth(&policy.queue).await == Some(5)).await;
    assert_eq!(raw.depth(&target).await, Some(0), "none of the lesson's five");
}

#[tokio::test]
async fn messages_c07_what_a_full_dead_letter_queue_does_not_take_stays_and_comes_later() {
    let node = node();
    let (raw, broker) = both(&node).await;
    let policy = QueuePolicy { max_length: 20, ..QueuePolicy::new(raw.name("ours"), "team") };
    broker.declare(&policy).await.unwrap();
    for _ in 0..40 {
        assert!(raw.put("", &policy.queue, None).await);
    }
    for _ in 0..40 {
        raw.reject(&policy.queue).await;
    }
    until("it is full", async || raw.depth(&policy.dlq()).await >= Some(20)).await;
    // Somebody looks, and makes room.
    let seen = AtomicU32::new(0);
    until("40 of 40", async || {
        let taken = raw.purge(&policy.dlq()).await;
        seen.fetch_add(taken, Ordering::Relaxed) + taken == 40
    })
    .await;
}

#[tokio::test]
async fn an_exchange_of_another_kind_belongs_to_somebody_else() {
    let node = node();
    node.ctl(&["add_vhost", "foreign"]).unwrap();
    node.ctl(&["set_permissions", "-p", "foreign", "guest", ".*", ".*", ".*"]).unwrap();
    let url = node.url().replace("%2f", "foreign");
    let (raw, broker) = (Raw::connect(&url).await, RabbitMqBroker::connect(&url).await.unwrap());
    raw.direct("events").await;
    let policy = QueuePolicy::new("orders.saga", "team").bind("order.created");
    let found = plan(&broker, &policy).await.unwrap();
    let Action::Refuse(differences, Migration::Exchange) = &found.steps[0].action else {
        panic!("{found:?}");
    };
    assert_eq!(differences[0].to_string(), "type: ours topic, there direct");
    let error = broker.declare(&policy).await.unwrap_err();
    assert!(matches!(error, MessagingError::Mismatch { .. }), "{error}");
    assert!(error.to_string().contains("ask who made this exchange"), "{error}");
}

#[tokio::test]
async fn a_user_who_may_not_look_is_told_so() {
    let node = node();
    node.ctl(&["add_user", "reader", "secret"]).unwrap();
    node.ctl(&["set_permissions", "reader", "", "", ""]).unwrap();
    let (raw, broker) = both(&node).await;
    let policy = QueuePolicy::new(raw.name("ours"), "team");
    broker.declare(&policy).await.unwrap();
    let url = node.url().replace("guest:guest", "reader:secret");
    let reader = RabbitMqBroker::connect(&url).await.unwrap();
    let error = plan(&reader, &policy).await.unwrap_err().to_string();
    assert!(error.contains("look at exchange events"), "{error}");
    assert!(error.contains("ACCESS_REFUSED") && !error.contains("secret"), "{error}");
}

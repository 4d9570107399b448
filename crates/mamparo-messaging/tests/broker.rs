//! The embedded broker: leases, wake-ups, several processes on one file.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use std::time::Duration;

use common::{QUEUE, open_store, options, order, policy, shop, until, within};
use mamparo_messaging::broker::{Settled, Subscription as _};
use mamparo_messaging::{
    Broker as _, Confirm, EmbeddedBroker, EmbeddedOptions, MessagingError, QueuePolicy,
};

#[tokio::test]
async fn messages_c13_settling_an_older_hand_out_changes_nothing() {
    let shop = shop().await;
    shop.broker.declare(&policy()).await.unwrap();
    shop.publish(&order("order.created", "o-1")).await;
    let (dead, alive) = (
        shop.broker.consume(QUEUE, 10).await.unwrap(),
        shop.broker.consume(QUEUE, 10).await.unwrap(),
    );
    let old = dead.take(10).await.unwrap().remove(0);
    assert!(!old.suspect);
    assert!(alive.take(10).await.unwrap().is_empty(), "leased to somebody");
    // The first owner never renews: its lease ends, and the message comes back.
    let taken = std::cell::RefCell::new(Vec::new());
    until("the lease is over", async || {
        let got = alive.take(10).await.unwrap();
        taken.borrow_mut().extend(got);
        !taken.borrow().is_empty()
    })
    .await;
    let new = taken.into_inner().remove(0);
    assert!(new.suspect && new.receipt.epoch > old.receipt.epoch);
    assert_eq!(dead.ack(old.receipt).await.unwrap(), Settled::Stale);
    assert_eq!(dead.give_back(&old, Duration::ZERO).await.unwrap(), Settled::Stale);
    assert_eq!(shop.depth("").await, 1);
    assert_eq!(alive.ack(new.receipt).await.unwrap(), Settled::Done);
    assert_eq!(shop.depth("").await, 0);
}

#[tokio::test]
async fn renewing_keeps_what_is_in_hand() {
    let shop = shop().await;
    shop.broker.declare(&policy()).await.unwrap();
    shop.publish(&order("order.created", "o-1")).await;
    let (holder, other) = (
        shop.broker.consume(QUEUE, 10).await.unwrap(),
        shop.broker.consume(QUEUE, 10).await.unwrap(),
    );
    let held = holder.take(10).await.unwrap().remove(0);
    let end = mamparo_call::clock::now().plus(2 * options().lease);
    until("two leases have passed", async || {
        holder.renew().await.unwrap();
        assert!(other.take(10).await.unwrap().is_empty());
        mamparo_call::clock::now() >= end
    })
    .await;
    assert_eq!(holder.ack(held.receipt).await.unwrap(), Settled::Done);
}

#[tokio::test]
async fn a_publish_wakes_consumers_of_its_process_without_a_poll() {
    let shop = shop().await;
    let (poll_min, poll_max) = (Duration::from_secs(3_600), Duration::from_secs(3_600));
    let slow = EmbeddedOptions { poll_min, poll_max, ..options() };
    let broker = EmbeddedBroker::new(shop.broker.store().clone(), slow);
    broker.declare(&policy()).await.unwrap();
    let subscription = broker.consume(QUEUE, 10).await.unwrap();
    subscription.ready().await;
    assert!(subscription.take(10).await.unwrap().is_empty());
    let publisher = broker.clone();
    let message = order("order.created", "o-1");
    let published = async { publisher.publish("events", "order.created", &message).await };
    let ((), confirm) = within(async { tokio::join!(subscription.ready(), published) }).await;
    assert_eq!(confirm, Confirm::Confirmed);
    assert_eq!(subscription.take(10).await.unwrap().len(), 1);
    // One published between two calls of `ready` is not slept through either.
    publisher.publish("events", "order.created", &message).await;
    within(subscription.ready()).await;
    assert_eq!(subscription.take(10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn another_process_on_the_same_file_is_found_by_polling() {
    let shop = shop().await;
    shop.broker.declare(&policy()).await.unwrap();
    let store = open_store(shop.folder.path(), "broker.db").await;
    let elsewhere = EmbeddedBroker::new(store, options());
    let subscription = elsewhere.consume(QUEUE, 10).await.unwrap();
    let sent = order("order.created", "o-1");
    shop.publish(&sent).await;
    let taken = loop {
        subscription.ready().await;
        if let Some(delivery) = subscription.take(10).await.unwrap().pop() {
            break delivery;
        }
    };
    assert_eq!(taken.message, sent);
}

#[tokio::test]
async fn messages_c15_every_publish_ends_also_when_the_file_is_locked() {
    let shop = shop().await;
    let hasty = EmbeddedOptions { publish_timeout: Duration::from_millis(50), ..options() };
    let broker = EmbeddedBroker::new(shop.broker.store().clone(), hasty);
    broker.declare(&policy()).await.unwrap();
    let lock = shop.broker.store().begin().await.unwrap();
    let message = order("order.created", "o-1");
    let confirm = broker.publish("events", "order.created", &message).await;
    assert!(matches!(confirm, Confirm::Unknown(_)), "{confirm:?}");
    lock.rollback().await.unwrap();
    let confirm = broker.publish("events", "order.created", &message).await;
    assert_eq!(confirm, Confirm::Confirmed);
    let nowhere = broker.publish("events", "customer.created", &message).await;
    assert_eq!(nowhere, Confirm::Returned);
    assert_eq!(broker.publish("", "no.such.queue", &message).await, Confirm::Returned);
}

#[tokio::test]
async fn lesson_t01_a_dead_letter_reaches_its_own_queue_only() {
    let shop = shop().await;
    for name in ["a", "b", "c"] {
        let policy = QueuePolicy::new(name, "team").bind("order.#");
        shop.broker.declare(&policy).await.unwrap();
    }
    let confirm = shop.broker.publish("", "a.dlq", &order("order.created", "o-1")).await;
    assert_eq!(confirm, Confirm::Confirmed);
    let mut depths = Vec::new();
    for name in ["a.dlq", "b.dlq", "c.dlq"] {
        depths.push(shop.broker.depth(name).await.unwrap());
    }
    assert_eq!(depths, [1, 0, 0]);
}

#[tokio::test]
async fn lesson_t04_declaring_again_with_another_delay_is_no_crash() {
    let shop = shop().await;
    shop.broker.declare(&policy()).await.unwrap();
    shop.publish(&order("order.created", "o-1")).await;
    let longer = QueuePolicy { retry_delay: Duration::from_secs(10), ..policy() };
    shop.broker.declare(&longer).await.unwrap();
    assert_eq!(shop.depth("").await, 1, "what lay there still lies there");
}

#[tokio::test]
async fn a_wrong_policy_or_queue_is_refused_in_words() {
    let shop = shop().await;
    let nobody = QueuePolicy { attempts: 0, ..QueuePolicy::new("orders", "") };
    let error = shop.broker.declare(&nobody).await.unwrap_err().to_string();
    assert!(error.contains("owner") && error.contains("attempts"), "{error}");
    shop.broker.declare(&policy()).await.unwrap();
    let error = shop.broker.consume("order.saga", 10).await.unwrap_err();
    assert!(matches!(error, MessagingError::UnknownQueue { .. }));
    assert!(error.to_string().contains("orders.saga"), "{error}");
}

#[tokio::test]
async fn opening_an_existing_broker_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("typo.db");
    let address = format!("sqlite:{}", path.display());
    let error = EmbeddedBroker::open_existing(&address).await.unwrap_err();
    assert!(matches!(error, MessagingError::NoFile { .. }), "{error}");
    assert!(!path.exists());
    EmbeddedBroker::open(&address).await.unwrap().store().close().await;
    EmbeddedBroker::open_existing(&address).await.unwrap();
}

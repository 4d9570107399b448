//! Who is not to blame for a lost hand-out: messages whose consumer was dropped, copies in several
//! replicas, messages that were given back.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use std::time::Duration;

use common::{Script, Shop, Step, done, open_store, options, order, policy, shop, until};
use mamparo_core::message::headers;
use mamparo_messaging::{Answer, Broker as _, Consumer, EmbeddedBroker, QueuePolicy};
use tokio_util::sync::CancellationToken;

/// The same shop as another process sees it.
async fn replica(shop: &Shop) -> Shop {
    let folder = shop.folder.path();
    let broker = EmbeddedBroker::new(open_store(folder, "broker.db").await, options());
    let store = open_store(folder, "orders.db").await;
    Shop { folder: tempfile::tempdir().unwrap(), broker, store }
}

#[tokio::test]
async fn messages_c08_consumers_that_are_dropped_convict_no_message() {
    let shop = shop().await;
    shop.broker.declare(&policy()).await.unwrap();
    shop.publish(&order("order.created", "o-1")).await;
    let script = Script::new(|_, n| if n <= 4 { Step::Hang } else { done() });
    for _ in 0..4 {
        let consumer =
            Consumer::new(shop.broker.clone(), shop.store.clone(), policy(), script.clone());
        tokio::select! {
            _ = consumer.run(CancellationToken::new()) => unreachable!("nobody cancels"),
            entered = script.entered.acquire() => entered.unwrap().forget(),
        }
    }
    let running = shop.consume(policy(), &script);
    shop.settled().await;
    assert_eq!(shop.effects().await.len(), 1);
    assert!(shop.dead().await.is_empty());
    running.stop().await;
}

#[tokio::test]
async fn messages_c08_replicas_that_meet_copies_of_one_message_convict_none() {
    let shop = shop().await;
    shop.broker.declare(&policy()).await.unwrap();
    // Without a key: those of one key are not handed out side by side.
    let message = order("order.created", "");
    let script = Script::new(|_, _| Step::Gate);
    let one = QueuePolicy { prefetch: 1, ..policy() };
    let mut replicas = Vec::new();
    for n in 1..=5_usize {
        shop.publish(&message).await;
        let replica = replica(&shop).await;
        let running = replica.consume(one.clone(), &script);
        until("it is in this replica's hand", async || {
            script.entered.available_permits() == n || shop.dead().await.len() == 1
        })
        .await;
        replicas.push((replica, running));
    }
    script.gate.cancel();
    shop.settled().await;
    assert!(shop.dead().await.is_empty());
    assert_eq!(shop.effects().await, [message.id]);
    for (_, running) in replicas {
        running.stop().await;
    }
}

#[tokio::test]
async fn messages_that_were_given_back_run_beside_each_other_again() {
    let shop = shop().await;
    let script = Script::new(|_, n| match n {
        1 => Step::Prepare(Answer::Defer { delay: Duration::ZERO }),
        _ => Step::Gate,
    });
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    for n in 0..3 {
        shop.publish(&order("order.created", &format!("o-{n}"))).await;
    }
    until("all three run", async || script.entered.available_permits() == 6).await;
    script.gate.cancel();
    shop.settled().await;
    running.stop().await;
}

#[tokio::test]
async fn lesson_k16_a_failure_says_on_which_host_and_in_which_version() {
    let shop = shop().await;
    let script = Script::new(|_, n| match n {
        1 => Step::Prepare(Answer::retry("not yet")),
        _ => Step::Prepare(Answer::dead("a missing field")),
    });
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    shop.publish(&order("order.created", "o-1")).await;
    until("dead", async || shop.dead().await.len() == 1).await;
    let waited = &script.seen()[1];
    for message in [waited, &shop.dead().await[0].message] {
        assert_eq!(message.header(headers::FAILURE_VERSION), Some("shop 1.2"));
        assert!(message.header(headers::FAILURE_HOST).is_some_and(|host| !host.is_empty()));
    }
    running.stop().await;
}

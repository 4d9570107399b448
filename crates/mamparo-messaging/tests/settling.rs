//! Between the handler's answer and the acknowledgement.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use std::time::Duration;

use common::{Script, Step, done, order, policy, shop, until};
use mamparo_call::clock;
use mamparo_messaging::{Answer, QueuePolicy};

#[tokio::test]
async fn lesson_k10_a_failed_acknowledgement_is_no_failed_handler() {
    let shop = shop().await;
    let script = Script::new(|_, _| done());
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    shop.meddle(
        "CREATE TRIGGER meddle BEFORE DELETE ON mamparo_messages
         BEGIN SELECT RAISE(ABORT, 'no'); END",
    )
    .await;
    let message = order("order.created", "o-1");
    shop.publish(&message).await;
    assert!(running.handle.wait_for(|health| health.error.is_some()).await);
    shop.meddle("DROP TRIGGER meddle").await;
    shop.settled().await;
    assert_eq!(shop.effects().await, [message.id.as_str()]);
    assert_eq!(script.calls(&message.id), 1, "the inbox knows it when it comes again");
    assert!(shop.dead().await.is_empty());
    let summary = running.stop().await;
    assert_eq!(summary.retried, 0, "no copy was made");
}

#[tokio::test]
async fn a_handler_that_is_done_as_its_time_ends_is_committed_not_cut_off() {
    let shop = shop().await;
    let limit = Duration::from_millis(150);
    let script = Script::new(move |_, _| Step::Busy(clock::now().plus(limit * 2)));
    let last = QueuePolicy { attempts: 1, handler_timeout: limit, ..policy() };
    let running = shop.consume(last, &script);
    running.handle.wait_for(|health| health.subscribed).await;
    let message = order("order.created", "o-1");
    shop.publish(&message).await;
    until("settled", async || shop.depth("").await == 0).await;
    assert!(shop.dead().await.is_empty(), "its effects would stand, and it would be called dead");
    assert_eq!(shop.effects().await, [message.id]);
    running.stop().await;
}

#[tokio::test]
async fn lesson_k14_a_lost_broker_does_not_let_later_messages_pass_one_that_waits() {
    let shop = shop().await;
    let script = Script::new(|message, n| match (message.kind.as_str(), n) {
        ("order.created", 1) => Step::Prepare(Answer::retry("not yet")),
        _ => done(),
    });
    let waits = QueuePolicy { retry_delay: Duration::from_millis(400), ..policy() };
    let running = shop.consume(waits, &script);
    running.handle.wait_for(|health| health.subscribed).await;
    shop.publish(&order("order.created", "o-1")).await;
    until("it waits", async || shop.depth(".retry").await == 1).await;
    // A message of another key loses the consumer its broker.
    let trouble = "CREATE TRIGGER meddle BEFORE DELETE ON mamparo_messages WHEN OLD.key = 'o-2'
         BEGIN SELECT RAISE(ABORT, 'no'); END";
    shop.meddle(trouble).await;
    shop.publish(&order("order.created", "o-2")).await;
    assert!(running.handle.wait_for(|health| health.error.is_some()).await);
    shop.meddle("DROP TRIGGER meddle").await;
    shop.publish(&order("order.cancelled", "o-1")).await;
    shop.settled().await;
    let seen = script.seen().into_iter().filter(|message| message.key == "o-1");
    let kinds: Vec<_> = seen.map(|message| message.kind).collect();
    assert_eq!(kinds, ["order.created", "order.created", "order.cancelled"]);
    running.stop().await;
}

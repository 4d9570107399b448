//! What people do with dead letters.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use common::{QUEUE, Script, Shop, Step, done, order, policy, shop, until};
use mamparo_core::message::headers;
use mamparo_messaging::broker::Filter;
use mamparo_messaging::{Answer, Broker as _, Confirm, Message, MessagingError, dlq};
use mamparo_store::queue;

/// `count` dead letters of each kind, in turns, as a consumer leaves them.
async fn dead(shop: &Shop, kinds: &[&str], count: usize) -> Vec<Message> {
    shop.broker.declare(&policy()).await.unwrap();
    let mut messages = Vec::new();
    for n in 0..count {
        for kind in kinds {
            let mut message = order(kind, &format!("o-{n}"));
            // The worst case for tools: the routing key has been rewritten on the way.
            message.routing_key = QUEUE.to_owned();
            for (name, value) in [
                ("x-attempts", "5"),
                ("x-attempts-queue", QUEUE),
                ("x-death", "[maxlen]"),
                ("traceparent", "00-a-b-01"),
            ] {
                message.headers.insert(name.to_owned(), value.to_owned());
            }
            let confirm = shop.broker.publish("", &format!("{QUEUE}.dlq"), &message).await;
            assert_eq!(confirm, Confirm::Confirmed);
            messages.push(message);
        }
    }
    messages
}

fn ids(messages: impl IntoIterator<Item = Message>) -> Vec<String> {
    messages.into_iter().map(|message| message.id).collect()
}

#[tokio::test]
async fn lesson_s01_s02_a_filter_goes_by_type_and_never_meets_the_same_head_twice() {
    let shop = shop().await;
    let all = dead(&shop, &["order.created", "order.paid"], 5).await;
    let paid = Filter { kind: Some("order.paid".to_owned()), ..Filter::default() };
    let selected = dlq::select(&shop.broker, QUEUE, &paid).await.unwrap();
    assert_eq!((selected.messages.len(), selected.total), (5, 10));
    let outcome = dlq::replay(&shop.broker, &selected, "ana", "").await.unwrap();
    let expected = ids(all.into_iter().filter(|message| message.kind == "order.paid"));
    assert_eq!(outcome.done, expected, "oldest first");
    assert_eq!((shop.depth("").await, shop.depth(".dlq").await), (5, 5));
}

#[tokio::test]
async fn lesson_s03_poison_that_comes_back_is_not_moved_again_in_the_same_batch() {
    let shop = shop().await;
    dead(&shop, &["order.created"], 20).await;
    let script = Script::new(|_, _| Step::Prepare(Answer::dead("poison")));
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    let selected = dlq::select(&shop.broker, QUEUE, &Filter::default()).await.unwrap();
    let outcome = dlq::replay(&shop.broker, &selected, "ana", "").await.unwrap();
    assert_eq!((outcome.done.len(), outcome.left.len()), (20, 0));
    until("all dead again", async || shop.depth(".dlq").await == 20).await;
    assert_eq!(script.seen().len(), 20, "each once");
    // The frozen selection is spent: what lies there now are other places in the queue.
    let again = dlq::replay(&shop.broker, &selected, "ana", "").await.unwrap();
    assert_eq!((again.done.len(), again.left.len()), (0, 20));
    running.stop().await;
}

#[tokio::test]
async fn chaos_e19_looking_alters_nothing_and_a_batch_hides_no_newer_failure() {
    let shop = shop().await;
    let first = dead(&shop, &["order.created"], 3).await;
    let look = async || dlq::select(&shop.broker, QUEUE, &Filter::default()).await.unwrap();
    let places = |selected: &dlq::Selected| {
        selected.messages.iter().map(|stored| (stored.tag, stored.since)).collect::<Vec<_>>()
    };
    let selected = look().await;
    assert_eq!(places(&look().await), places(&selected), "the same places, the same times");
    let seen: Vec<Message> = selected.messages.iter().map(|s| s.message.clone()).collect();
    assert_eq!(seen, first, "headers and bodies untouched");

    // Fails while somebody thinks about the first three.
    let newer = dead(&shop, &["order.paid"], 1).await;
    let outcome = dlq::replay(&shop.broker, &selected, "ana", "").await.unwrap();
    assert_eq!(outcome.done, ids(first), "each is really back in its queue");
    assert_eq!(shop.depth("").await, 3);
    let left = look().await.messages.into_iter().map(|stored| stored.message);
    assert_eq!(ids(left), ids(newer), "and the newer one is still there to be seen");
}

#[tokio::test]
async fn lesson_s04_s05_messages_c39_a_replay_is_one_copy_that_starts_over() {
    let shop = shop().await;
    let sent = dead(&shop, &["order.created"], 1).await.remove(0);
    let selected = dlq::select(&shop.broker, QUEUE, &Filter::default()).await.unwrap();
    dlq::replay(&shop.broker, &selected, "ana", "").await.unwrap();
    assert_eq!((shop.depth("").await, shop.depth(".dlq").await), (1, 0));
    let back = shop.broker.browse(QUEUE, &Filter::default()).await.unwrap().remove(0).message;
    assert_eq!((&back.id, &back.kind, &back.body), (&sent.id, &sent.kind, &sent.body));
    assert_eq!(headers::attempts(&back.headers, QUEUE).made, 0);
    assert!(back.header(headers::REPLAYED).is_some());
    assert_eq!(back.header("traceparent"), Some("00-a-b-01"));
    assert_eq!(back.header("x-death"), None);
    let script = Script::new(|_, _| done());
    let running = shop.consume(policy(), &script);
    until("applied", async || shop.effects().await == [sent.id.as_str()]).await;
    running.stop().await;
}

#[tokio::test]
async fn lesson_s04_a_replay_into_a_queue_that_is_gone_loses_nothing() {
    let shop = shop().await;
    dead(&shop, &["order.created"], 3).await;
    let selected = dlq::select(&shop.broker, QUEUE, &Filter::default()).await.unwrap();
    shop.meddle("DELETE FROM mamparo_queues WHERE name = 'orders.saga'").await;
    dlq::replay(&shop.broker, &selected, "ana", "").await.unwrap_err();
    assert_eq!(shop.depth(".dlq").await, 3);
}

#[tokio::test]
async fn lesson_s06_discarding_takes_an_actor_and_a_reason_and_keeps_a_copy() {
    let shop = shop().await;
    let sent = dead(&shop, &["order.created"], 2).await;
    let first = Filter { ids: vec![sent[0].id.clone()], ..Filter::default() };
    let selected = dlq::select(&shop.broker, QUEUE, &first).await.unwrap();
    for (actor, reason) in [("", "test order"), ("ana", " ")] {
        let error = dlq::discard(&shop.broker, &selected, actor, reason).await.unwrap_err();
        assert!(matches!(error, MessagingError::Unsigned(_)), "{error}");
    }
    assert_eq!(shop.depth(".dlq").await, 2);
    let outcome = dlq::discard(&shop.broker, &selected, "ana", "test order").await.unwrap();
    assert_eq!(outcome.done, [sent[0].id.clone()]);
    assert_eq!(shop.depth(".dlq").await, 1);
    let archive = queue::archive(shop.broker.store(), &format!("{QUEUE}.dlq"), 10).await.unwrap();
    assert_eq!(archive.len(), 1);
    assert_eq!((archive[0].actor.as_str(), archive[0].reason.as_str()), ("ana", "test order"));
    assert_eq!(archive[0].message.id, sent[0].id);
}

#[tokio::test]
async fn an_unknown_queue_is_named_with_those_that_exist() {
    let shop = shop().await;
    dead(&shop, &["order.created"], 1).await;
    let error = dlq::select(&shop.broker, "order.saga", &Filter::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "find queue \"order.saga\": the broker has orders.saga");
}

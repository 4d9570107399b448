//! The consumer with a real broker file: what becomes of messages, attempts and effects.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{QUEUE, Script, Step, done, order, policy, shop, until};
use mamparo_call::{Context, clock};
use mamparo_core::message::headers;
use mamparo_core::time::Moment;
use mamparo_messaging::{Answer, Broker as _, Message, QueuePolicy};

#[tokio::test]
async fn a_message_is_applied_once_and_acknowledged() {
    let shop = shop().await;
    let script = Script::new(|_, _| done());
    let running = shop.consume(policy(), &script);
    assert!(running.handle.wait_for(|health| health.subscribed).await);
    let message = order("order.created", "o-1");
    shop.publish(&message).await;
    until("applied", async || shop.effects().await == [message.id.as_str()]).await;
    shop.settled().await;
    assert_eq!(script.seen(), [message], "the message arrives as it was published");
    let health = running.handle.health();
    assert!(health.last_delivery.is_some() && health.error.is_none());
    let summary = running.stop().await;
    assert_eq!((summary.done, summary.retried, summary.dead), (1, 0, 0));
}

#[tokio::test]
async fn lesson_t02_s02_a_retry_keeps_id_type_key_and_trace_and_counts_one_attempt() {
    let shop = shop().await;
    let script = Script::new(|_, n| match n {
        1 => Step::Prepare(Answer::retry("the catalog said 503")),
        2 => Step::Apply(Answer::retry("deadlock")),
        _ => done(),
    });
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    let mut message = order("order.created", "o-1");
    message.headers.insert("X-Request-Id".to_owned(), "r-7".to_owned());
    message.headers.insert("CC".to_owned(), "elsewhere".to_owned());
    shop.publish(&message).await;
    until("applied", async || shop.effects().await.len() == 1).await;
    shop.settled().await;
    let seen = script.seen();
    let attempts: Vec<u32> =
        seen.iter().map(|message| headers::attempts(&message.headers, QUEUE).made).collect();
    assert_eq!(attempts, [0, 1, 2]);
    for copy in &seen[1..] {
        let same = (&copy.id, &copy.kind, &copy.key, &copy.exchange, &copy.routing_key, &copy.body);
        let original = (
            &message.id,
            &message.kind,
            &message.key,
            &message.exchange,
            &message.routing_key,
            &message.body,
        );
        assert_eq!(same, original);
        assert_eq!(copy.header("x-request-id"), Some("r-7"));
        assert_eq!(copy.header("cc"), None);
    }
    assert_eq!(running.stop().await.retried, 2);
}

#[tokio::test]
async fn lesson_k08_a_body_that_cannot_be_read_is_dead_at_once_and_says_why() {
    let shop = shop().await;
    let script = Script::new(|message, _| match message.decode::<Vec<u8>>() {
        Ok(_) => done(),
        Err(answer) => Step::Prepare(answer),
    });
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    shop.publish(&order("order.created", "o-1")).await;
    until("dead", async || shop.depth(".dlq").await == 1).await;
    shop.settled().await;
    let dead = &shop.dead().await[0].message;
    assert_eq!(dead.header(headers::DEAD_REASON), Some("undecodable"));
    assert!(dead.header(headers::LAST_ERROR).unwrap().contains("as JSON"));
    assert_eq!(script.seen().len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn lesson_k16_after_the_last_attempt_it_is_dead_with_its_history() {
    let shop = shop().await;
    let script = Script::new(|_, n| Step::Prepare(Answer::retry(format!("try {n}"))));
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    let message = order("order.created", "o-1");
    shop.publish(&message).await;
    until("dead", async || shop.depth(".dlq").await == 1).await;
    shop.settled().await;
    assert_eq!(script.calls(&message.id), 5);
    let dead = &shop.dead().await[0].message;
    assert_eq!(dead.id, message.id);
    assert_eq!(dead.header(headers::ATTEMPTS), Some("5"));
    assert_eq!(dead.header(headers::DEAD_REASON), Some("attempts-spent"));
    assert_eq!(dead.header(headers::LAST_ERROR), Some("try 5"));
    assert!(dead.header(headers::FIRST_FAILURE) < dead.header(headers::LAST_FAILURE));
    let summary = running.stop().await;
    assert_eq!((summary.retried, summary.dead), (4, 1));
}

#[tokio::test]
async fn lesson_k01_messages_c01_without_a_confirmed_copy_the_original_stays() {
    let shop = shop().await;
    let broken = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&broken);
    let script = Script::new(move |_, _| match flag.load(Ordering::SeqCst) {
        true => Step::Prepare(Answer::retry("503")),
        false => done(),
    });
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    shop.meddle("DELETE FROM mamparo_queues WHERE name = 'orders.saga.retry'").await;
    let message = order("order.created", "o-1");
    shop.publish(&message).await;
    until("tried", async || script.calls(&message.id) >= 1).await;
    until("given back", async || running.handle.health().in_hand == 0).await;
    assert_eq!(shop.depth("").await, 1, "it is where it was");
    assert_eq!((shop.depth(".dlq").await, shop.depth(".retry").await), (0, 0));
    shop.broker.declare(&policy()).await.unwrap();
    broken.store(false, Ordering::SeqCst);
    until("applied", async || shop.effects().await.len() == 1).await;
    shop.settled().await;
    let attempts = script.seen().last().map(|m| headers::attempts(&m.headers, QUEUE).made);
    assert_eq!(attempts, Some(0), "no attempt was counted without its copy");
    assert_eq!(running.stop().await.retried, 0);
}

#[tokio::test]
async fn lesson_k11_a_hung_handler_and_a_panic_are_attempts_and_leave_no_effect() {
    let shop = shop().await;
    let script = Script::new(|_, n| match n {
        1 => Step::Hang,
        2 => Step::Panic,
        _ => done(),
    });
    let hasty = QueuePolicy { handler_timeout: Duration::from_millis(60), ..policy() };
    let running = shop.consume(hasty, &script);
    running.handle.wait_for(|health| health.subscribed).await;
    let message = order("order.created", "o-1");
    shop.publish(&message).await;
    until("applied", async || shop.effects().await.len() == 1).await;
    shop.settled().await;
    let errors: Vec<Option<String>> = script
        .seen()
        .iter()
        .map(|message| message.header(headers::LAST_ERROR).map(str::to_owned))
        .collect();
    assert_eq!(errors[0], None);
    assert_eq!(errors[1].as_deref(), Some("no answer within 60ms"));
    assert_eq!(errors[2].as_deref(), Some("panicked: the handler's bug"));
    running.stop().await;
}

#[tokio::test]
async fn lesson_k09_a_business_refusal_is_done_and_anything_else_rolls_back() {
    let shop = shop().await;
    let script = Script::new(|message, _| match message.kind.as_str() {
        "order.refused" => Step::Prepare(Answer::Done),
        _ => Step::Apply(Answer::dead("a missing field")),
    });
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    shop.publish(&order("order.refused", "o-1")).await;
    shop.publish(&order("order.created", "o-2")).await;
    until("dead", async || shop.depth(".dlq").await == 1).await;
    shop.settled().await;
    assert_eq!(shop.effects().await, Vec::<String>::new());
    assert_eq!(shop.dead().await[0].message.header(headers::DEAD_REASON), Some("poison"));
    let summary = running.stop().await;
    assert_eq!((summary.done, summary.dead), (1, 1));
}

#[tokio::test]
async fn lesson_k02_messages_c16_copies_of_one_id_have_one_effect() {
    let shop = shop().await;
    let script = Script::new(|_, _| done());
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    // Without a key they may run side by side, so the inbox alone decides.
    let message = order("order.created", "");
    for _ in 0..8 {
        shop.publish(&message).await;
    }
    until("all acknowledged", async || shop.depth("").await == 0).await;
    assert_eq!(shop.effects().await, [message.id.as_str()]);
    assert_eq!(script.seen().len(), 1, "prepare is skipped for what was applied before");
    assert_eq!(running.stop().await.done, 8);
}

fn refuse(calls: &Mutex<Vec<Moment>>) -> Step {
    calls.lock().unwrap().push(clock::now());
    let (delay, reason) = (Duration::from_millis(60), "circuit-open".to_owned());
    Step::Prepare(Answer::Unavailable { delay, reason })
}

#[tokio::test]
async fn lesson_k12_an_open_circuit_pauses_the_queue_and_burns_no_attempt() {
    let shop = shop().await;
    let open = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&open);
    let times: Arc<Mutex<Vec<Moment>>> = Arc::default();
    let calls = Arc::clone(&times);
    let script = Script::new(move |_, _| match flag.load(Ordering::SeqCst) {
        true => refuse(&calls),
        false => done(),
    });
    shop.broker.declare(&policy()).await.unwrap();
    let messages: Vec<Message> =
        (0..20).map(|n| order("order.created", &format!("o-{n}"))).collect();
    for message in &messages {
        shop.publish(message).await;
    }
    let running = shop.consume(policy(), &script);
    // The first batch finds the circuit open; afterwards each pause lets one message through.
    until("probes", async || script.seen().len() >= 14).await;
    assert_eq!((shop.depth("").await, shop.depth(".retry").await), (20, 0));
    let times = times.lock().unwrap().clone();
    for pair in times[10..].windows(2) {
        let gap = pair[1].since(pair[0]);
        assert!(gap >= Duration::from_millis(60), "two at once: {gap:?}");
    }
    open.store(false, Ordering::SeqCst);
    until("all applied", async || shop.effects().await.len() == 20).await;
    shop.settled().await;
    assert!(script.seen().iter().all(|m| headers::attempts(&m.headers, QUEUE).made == 0));
    assert_eq!((shop.depth(".dlq").await, running.stop().await.retried), (0, 0));
}

#[tokio::test]
async fn lesson_k14_a_message_that_waits_is_not_overtaken_by_later_ones_of_its_key() {
    let shop = shop().await;
    let script = Script::new(|message, n| match (message.kind.as_str(), n) {
        ("order.created", 1 | 2) => Step::Prepare(Answer::retry("503")),
        _ => done(),
    });
    let patient = QueuePolicy { retry_delay: Duration::from_millis(150), ..policy() };
    shop.broker.declare(&patient).await.unwrap();
    let (created, paid) = (order("order.created", "o-1"), order("order.paid", "o-1"));
    let (cancelled, other) = (order("order.cancelled", "o-1"), order("order.created", "o-2"));
    // `paid` is in hand when `created` fails; `cancelled` comes while `created` waits.
    shop.publish(&created).await;
    shop.publish(&paid).await;
    let running = shop.consume(patient, &script);
    until("it waits", async || shop.depth(".retry").await == 1).await;
    shop.publish(&cancelled).await;
    shop.publish(&other).await;
    until("all applied", async || shop.effects().await.len() == 4).await;
    shop.settled().await;
    let kinds: Vec<String> =
        script.seen().into_iter().filter(|m| m.key == "o-1").map(|m| m.kind).collect();
    let expected =
        ["order.created", "order.created", "order.created", "order.paid", "order.cancelled"];
    assert_eq!(kinds, expected);
    running.stop().await;
}

#[tokio::test]
async fn lesson_k15_one_key_is_handled_one_at_a_time_and_in_order() {
    let shop = shop().await;
    shop.broker.declare(&policy()).await.unwrap();
    let mut sent = Vec::new();
    for n in 0..30 {
        let message = order("order.changed", &format!("o-{}", n % 3));
        shop.publish(&message).await;
        sent.push(message);
    }
    let script = Script::new(|_, _| done());
    let running = shop.consume(policy(), &script);
    until("all applied", async || shop.effects().await.len() == 30).await;
    let effects = shop.effects().await;
    for key in ["o-0", "o-1", "o-2"] {
        let of_key = sent.iter().filter(|message| message.key == key);
        let expected: Vec<&String> = of_key.map(|message| &message.id).collect();
        let got: Vec<&String> = effects.iter().filter(|id| expected.contains(id)).collect();
        assert_eq!(got, expected, "{key}");
    }
    running.stop().await;
}

#[tokio::test]
async fn cancelling_finishes_what_runs_and_gives_back_what_waits() {
    let shop = shop().await;
    shop.broker.declare(&policy()).await.unwrap();
    let first = order("order.created", "o-1");
    for message in [&first, &order("order.paid", "o-1"), &order("order.sent", "o-1")] {
        shop.publish(message).await;
    }
    let script = Script::new(|_, _| Step::Gate);
    let running = shop.consume(policy(), &script);
    until("all in hand", async || running.handle.health().in_hand == 3).await;
    running.cancel.cancel();
    running.handle.wait_for(|health| !health.subscribed).await;
    script.gate.cancel();
    let handle = running.handle.clone();
    let summary = running.stop().await;
    assert_eq!((summary.done, summary.given_back, summary.aborted), (1, 2, 0));
    assert!(handle.health().stopped);
    assert_eq!(shop.effects().await, [first.id.as_str()]);
    assert_eq!(shop.depth("").await, 2);
}

#[tokio::test]
async fn a_handler_that_overruns_the_grace_period_is_cut_off_and_its_message_given_back() {
    let shop = shop().await;
    shop.broker.declare(&policy()).await.unwrap();
    let message = order("order.created", "o-1");
    shop.publish(&message).await;
    for _ in 0..4 {
        // Four cut-offs: were they counted as crashes, the message would be dead by now.
        let script = Script::new(|_, _| Step::Gate);
        let running = shop.consume(policy(), &script);
        until("in hand", async || script.calls(&message.id) == 1).await;
        let summary = running.stop().await;
        assert_eq!((summary.done, summary.aborted), (0, 1));
    }
    let script = Script::new(|_, _| done());
    let running = shop.consume(policy(), &script);
    until("applied", async || shop.effects().await == [message.id.as_str()]).await;
    assert_eq!(shop.depth(".dlq").await, 0);
    running.stop().await;
}

#[tokio::test]
async fn lesson_k07_messages_c09_c10_a_lost_queue_is_not_ready_and_comes_back() {
    let shop = shop().await;
    let script = Script::new(|_, _| done());
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    let noticed = running.handle.clone();
    let noticed = common::spawn(async move { noticed.wait_for(|health| !health.subscribed).await });
    shop.meddle("DELETE FROM mamparo_queues WHERE name = 'orders.saga'").await;
    assert!(noticed.await.unwrap(), "the consumer never noticed");
    running.handle.wait_for(|health| health.subscribed).await;
    let message = order("order.created", "o-1");
    shop.publish(&message).await;
    until("applied", async || shop.effects().await == [message.id.as_str()]).await;
    assert!(running.stop().await.reconnects >= 1);
}

#[tokio::test]
async fn a_closed_broker_is_reported_and_cancelling_still_ends_the_consumer() {
    let shop = shop().await;
    let script = Script::new(|_, _| done());
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    shop.broker.store().close().await;
    assert!(running.handle.wait_for(|health| !health.subscribed && health.error.is_some()).await);
    let handle = running.handle.clone();
    running.stop().await;
    assert!(handle.health().stopped);
}

#[tokio::test]
async fn each_message_runs_in_its_own_context_with_its_handlers_deadline() {
    let shop = shop().await;
    let contexts: Arc<Mutex<Vec<Context>>> = Arc::default();
    let seen = Arc::clone(&contexts);
    let script = Script::new(move |_, _| {
        seen.lock().unwrap().push(Context::current());
        done()
    });
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    let mut message = order("order.created", "o-1");
    message.headers.insert("x-request-id".to_owned(), "r-1".to_owned());
    message.headers.insert("traceparent".to_owned(), "00-a-b-01".to_owned());
    shop.publish(&message).await;
    shop.publish(&order("order.created", "o-2")).await;
    until("both applied", async || shop.effects().await.len() == 2).await;
    let contexts = contexts.lock().unwrap().clone();
    let ids: Vec<Option<&str>> = contexts.iter().map(|c| c.request_id.as_deref()).collect();
    assert!(ids.contains(&Some("r-1")) && ids.contains(&None), "{ids:?}");
    assert!(contexts.iter().all(|context| context.deadline.is_some()));
    assert!(contexts.iter().any(|c| c.traceparent.as_deref() == Some("00-a-b-01")));
    running.stop().await;
}

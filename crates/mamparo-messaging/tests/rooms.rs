//! What every waiting room must do, run on each broker and each database.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod amqp;
mod common;
mod ground;
mod model;

use std::time::Duration;

use common::until;
use ground::{Act, Db, Ground, Keep, embedded, rabbitmq};
use mamparo_call::clock;
use mamparo_core::message::capabilities::Version;
use mamparo_core::message::headers;
use mamparo_core::message::topology::WaitingRoom;
use mamparo_messaging::broker::Filter;
use mamparo_messaging::{Answer, AnyBroker, Broker, QueuePolicy};
use mamparo_store::failed::{self, Query};
use mamparo_store::parked;
use mamparo_testkit::servers::amqp_url;
use model::ModelBroker;

async fn lesson_t02_k17_a_retry_is_the_same_message_with_one_attempt_more<DB: Db, B: Broker>(
    ground: Ground<DB, B>,
) {
    let script =
        Act::new(|_, n| if n < 4 { Answer::retry(format!("try {n}")) } else { Answer::Done });
    let running = ground.consume(&script);
    let mut message = ground.message("order.created", "o-1");
    // The count of another queue, which copied all headers, is none of ours.
    for (name, value) in [
        (headers::ATTEMPTS, "4"),
        (headers::ATTEMPTS_QUEUE, "another.queue"),
        ("X-Request-Id", "r-7"),
    ] {
        message.headers.insert(name.to_owned(), value.to_owned());
    }
    ground.publish(&message).await;
    until("applied", async || ground.effects().await == [message.id.as_str()]).await;
    ground.settled(&running).await;
    let seen = script.seen();
    let consumer = ground.policy.consumer();
    let attempts: Vec<u32> =
        seen.iter().map(|m| headers::attempts(&m.headers, consumer).made).collect();
    assert_eq!(attempts, [0, 1, 2, 3]);
    for copy in &seen {
        let of = |m: &mamparo_messaging::Message| {
            (m.id.clone(), m.kind.clone(), m.key.clone(), m.routing_key.clone(), m.body.clone())
        };
        assert_eq!(of(copy), of(&message));
        assert_eq!(copy.header("x-request-id"), Some("r-7"));
    }
    assert_eq!(seen[3].header(headers::LAST_ERROR), Some("try 3"));
    assert_eq!(seen[3].header(headers::FAILURE_VERSION), Some("shop 1.2"));
    assert_eq!(running.stop().await.retried, 3);
}

async fn lesson_k16_k08_k09_what_is_given_up_says_why_and_a_refusal_is_done<DB: Db, B: Broker>(
    ground: Ground<DB, B>,
) {
    let script = Act::new(|message, n| match message.kind.as_str() {
        "order.poison" => Answer::dead("a missing field"),
        "order.garbled" => Answer::Undecodable { reason: "no JSON".to_owned() },
        "order.hopeless" => Answer::retry(format!("try {n}")),
        _ => Answer::Done,
    });
    let running = ground.consume(&script);
    let mut expected = Vec::new();
    for (kind, reason, attempts, error) in [
        ("order.poison", "poison", 1, "a missing field"),
        ("order.garbled", "undecodable", 1, "no JSON"),
        ("order.hopeless", "attempts-spent", 5, "try 5"),
    ] {
        let message = ground.message(kind, "");
        ground.publish(&message).await;
        expected.push((message.id, reason.to_owned(), attempts, error.to_owned()));
    }
    ground.publish(&ground.message("order.refused", "")).await;
    until("all dead", async || ground.dead().await.len() == 3).await;
    ground.settled(&running).await;
    let mut dead = ground.dead().await;
    dead.sort();
    expected.sort();
    assert_eq!(dead, expected);
    assert_eq!(ground.effects().await.len(), 1, "what is given up leaves no effect");
    let summary = running.stop().await;
    assert_eq!((summary.done, summary.retried, summary.dead), (1, 4, 3));
}

async fn lesson_k14_later_messages_of_a_key_do_not_pass_one_that_waits<DB: Db, B: Broker>(
    ground: Ground<DB, B>,
) {
    let script = Act::new(|message, n| match (message.kind.as_str(), n) {
        ("order.created", 1 | 2) => Answer::retry("503"),
        _ => Answer::Done,
    });
    // Two are there when `created` fails, one comes while it waits.
    for (kind, key) in [("order.created", "o-1"), ("order.paid", "o-1")] {
        ground.publish(&ground.message(kind, key)).await;
    }
    let running = ground.consume(&script);
    until("it failed", async || !script.seen().is_empty()).await;
    ground.publish(&ground.message("order.cancelled", "o-1")).await;
    ground.publish(&ground.message("order.created", "o-2")).await;
    until("all applied", async || ground.effects().await.len() == 4).await;
    ground.settled(&running).await;
    let (created, then) = ("order.created", ["order.paid", "order.cancelled"]);
    assert_eq!(script.kinds("o-1"), [&[created; 3][..], &then[..]].concat());
    running.stop().await;
}

/// PostgreSQL's texts hold no zero byte. A message that could not be written down for one would be
/// handled every second for ever.
async fn a_zero_byte_is_a_dead_letter_or_a_word_less_and_no_endless_retry<DB: Db, B: Broker>(
    ground: Ground<DB, B>,
) {
    let script = Act::new(|_, n| match n {
        1 => Answer::retry("field 3 is \0"),
        _ => Answer::Done,
    });
    let running = ground.consume(&script);
    let whole = ground.message("order.created", "o-1");
    let broken = ground.message("order.created", "o-\0");
    for message in [&whole, &broken] {
        ground.publish(message).await;
    }
    until("applied", async || ground.effects().await == [whole.id.as_str()]).await;
    until("dead", async || ground.dead().await.len() == 1).await;
    ground.settled(&running).await;
    let (id, reason, attempts, _) = ground.dead().await.remove(0);
    assert_eq!((id, reason.as_str(), attempts), (broken.id, "undecodable", 1));
    let seen = script.seen();
    assert_eq!(seen.len(), 2, "the handler sees the first one twice, the other one never");
    assert_eq!(seen[1].header(headers::LAST_ERROR), Some("field 3 is  "));
    running.stop().await;
}

async fn lesson_k16_a_dead_letter_says_since_when_it_fails<DB: Db, B: Broker>(
    ground: Ground<DB, B>,
) {
    let running = ground.consume(&Act::new(|_, _| Answer::retry("503")));
    ground.publish(&ground.message("order.created", "o-1")).await;
    until("dead", async || ground.dead().await.len() == 1).await;
    let (first, last) = if ground.policy.waiting_room == WaitingRoom::Parked {
        let row = failed::list(&ground.store, &Query::default()).await.unwrap().remove(0);
        (row.first_failure, row.last_failure)
    } else {
        let filter = Filter::default();
        let letter = ground.broker.browse(&ground.policy.dlq(), &filter).await.unwrap().remove(0);
        let facts = letter.facts(&ground.policy.queue);
        (facts.first.unwrap(), facts.last.unwrap())
    };
    // Five attempts, and four waits of 60 ms between them.
    assert!(last.since(first) >= Duration::from_millis(200), "{first} {last}");
    running.stop().await;
}

async fn a_dead_message_lets_its_followers_go<DB: Db, B: Broker>(ground: Ground<DB, B>) {
    let script = Act::new(|message, n| match (message.kind.as_str(), n) {
        ("order.created", 1) => Answer::retry("503"),
        ("order.created", _) => Answer::dead("never"),
        _ => Answer::Done,
    });
    for kind in ["order.created", "order.paid", "order.cancelled"] {
        ground.publish(&ground.message(kind, "o-1")).await;
    }
    let running = ground.consume(&script);
    until("both applied", async || ground.effects().await.len() == 2).await;
    ground.settled(&running).await;
    let expected = ["order.created", "order.created", "order.paid", "order.cancelled"];
    assert_eq!(script.kinds("o-1"), expected);
    assert_eq!(ground.dead().await.len(), 1);
    running.stop().await;
}

async fn lesson_k02_messages_c16_copies_of_one_id_have_one_effect<DB: Db, B: Broker>(
    ground: Ground<DB, B>,
) {
    let script = Act::new(|_, n| if n == 1 { Answer::retry("503") } else { Answer::Done });
    let (keyed, keyless) =
        (ground.message("order.created", "o-1"), ground.message("order.sent", ""));
    for _ in 0..5 {
        ground.publish(&keyed).await;
        ground.publish(&keyless).await;
    }
    let running = ground.consume(&script);
    until("applied", async || ground.effects().await.len() == 2).await;
    ground.settled(&running).await;
    let (mut effects, mut expected) = (ground.effects().await, vec![keyed.id, keyless.id]);
    effects.sort();
    expected.sort();
    assert_eq!(effects, expected);
    assert!(ground.dead().await.is_empty());
    running.stop().await;
}

async fn lesson_k12_an_open_circuit_and_a_deferral_count_no_attempt<DB: Db, B: Broker>(
    ground: Ground<DB, B>,
) {
    let script = Act::new(|message, n| match (message.kind.as_str(), n) {
        ("order.open", 1..=7) => Answer::Unavailable {
            delay: Duration::from_millis(60),
            reason: "circuit-open".to_owned(),
        },
        ("order.locked", 1..=7) => Answer::Defer { delay: Duration::from_millis(30) },
        _ => Answer::Done,
    });
    for key in ["o-1", "o-2", ""] {
        ground.publish(&ground.message("order.open", key)).await;
        ground.publish(&ground.message("order.locked", key)).await;
    }
    let running = ground.consume(&script);
    until("all applied", async || ground.effects().await.len() == 6).await;
    ground.settled(&running).await;
    let consumer = ground.policy.consumer();
    assert!(script.seen().iter().all(|m| headers::attempts(&m.headers, consumer).made == 0));
    let summary = running.stop().await;
    assert_eq!((summary.done, summary.retried, summary.dead), (6, 0, 0));
}

async fn what_asks_for_longer_than_the_room_waits_longer<DB: Db, B: Broker>(ground: Ground<DB, B>) {
    let asked = Duration::from_millis(400);
    let times = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let clock = std::sync::Arc::clone(&times);
    let script = Act::new(move |_, n| {
        clock.lock().unwrap().push(mamparo_call::clock::now());
        match n {
            1 => Answer::RetryAfter { delay: Some(asked), reason: "503".to_owned() },
            _ => Answer::Done,
        }
    });
    let running = ground.consume(&script);
    ground.publish(&ground.message("order.created", "o-1")).await;
    until("applied", async || ground.effects().await.len() == 1).await;
    ground.settled(&running).await;
    let times = times.lock().unwrap().clone();
    assert_eq!(times.len(), 2, "it was not handled in between");
    assert!(times[1].since(times[0]) >= asked);
    assert_eq!(running.stop().await.retried, 1);
}

async fn the_room_is_shown<DB: Db, B: Broker>(ground: Ground<DB, B>) {
    let running = ground.consume(&Act::new(|_, _| Answer::Done));
    assert!(running.handle.wait_for(|health| health.subscribed).await);
    assert_eq!(running.handle.health().room, ground.policy.waiting_room);
    running.stop().await;
}

/// A shared broker must not fill up with the queues of tests.
async fn clear(broker: &impl Broker, policy: &QueuePolicy) {
    let any: &dyn std::any::Any = broker;
    if matches!(any.downcast_ref(), Some(AnyBroker::RabbitMq(_))) {
        amqp::Raw::connect(&amqp_url()).await.clear(policy).await;
    }
}

/// PostgreSQL's indexes take texts of up to 2,704 bytes. A message that could not be parked for its key
/// would be handled every second for ever.
#[tokio::test]
async fn a_key_that_no_index_takes_is_a_dead_letter_and_no_endless_retry() {
    let mut keep = ground::Keep::default();
    let (broker, store) = (ground::embedded(&mut keep).await, ground::postgres(&mut keep).await);
    let policy = ground::policy(WaitingRoom::Parked);
    let ground = Ground { broker, store, policy, keep }.declared().await;
    let script = Act::new(|_, _| Answer::retry("503"));
    let running = ground.consume(&script);
    let long: String = (0..100).map(|_| uuid::Uuid::new_v4().to_string()).collect();
    ground.publish(&ground.message("order.created", &long)).await;
    until("dead", async || ground.dead().await.len() == 1).await;
    let (_, reason, _, error) = ground.dead().await.remove(0);
    assert_eq!(reason, "undecodable");
    assert!(error.contains("3600 bytes") && error.contains("2000"), "{error}");
    assert!(script.seen().is_empty());
    running.stop().await;
}

/// A host that is an hour ahead would take the rows that others have in hand, and the others would wait
/// an hour for its own.
#[tokio::test]
async fn rows_wait_in_the_time_of_the_database_and_not_of_the_host() {
    let mut keep = ground::Keep::default();
    let database = keep.database.insert(mamparo_testkit::database::Database::create());
    let store = mamparo_store::PostgresStore::open(&database.url()).await.unwrap();
    let slow = "CREATE SCHEMA slow; CREATE FUNCTION slow.clock_timestamp() RETURNS timestamptz
         LANGUAGE sql AS $$ SELECT pg_catalog.clock_timestamp() - interval '1 hour' $$";
    store.apply(slow).await.unwrap();
    let url = format!("{}?options[search_path]=slow,pg_catalog", database.url());
    let store = mamparo_store::PostgresStore::open(&url).await.unwrap();
    store.apply("CREATE TABLE effects (at BIGSERIAL, id TEXT)").await.unwrap();
    let broker = ground::embedded(&mut keep).await;
    let mut policy = ground::policy(WaitingRoom::Parked);
    policy.retry_delay = Duration::from_secs(600);
    let ground = Ground { broker, store, policy, keep }.declared().await;
    let script = Act::new(|_, _| Answer::retry("503"));
    let running = ground.consume(&script);
    ground.publish(&ground.message("order.created", "o-1")).await;
    let consumer = ground.policy.consumer();
    let parked = async || parked::list(&ground.store, consumer, 0, 10).await.unwrap();
    until("it waits", async || parked().await.len() == 1).await;
    let row = parked().await.remove(0);
    let there = clock::wall().minus(Duration::from_secs(3_600));
    assert!(there.since(row.since) < Duration::from_secs(60), "{} at {there}", row.since);
    assert!(row.since <= there, "{} at {there}", row.since);
    assert!(row.due.since(row.since) >= Duration::from_secs(300), "{}", row.due);
    running.stop().await;
}

/// Brokers that are not at hand.
macro_rules! models {
    ($($name:ident: $major:literal $minor:literal $patch:literal;)+) => {
        $(async fn $name(_: &mut Keep) -> ModelBroker {
            ModelBroker::new(Version::new($major, $minor, $patch))
        })+
    };
}

models!(
    model_3_10: 3 10 8;
    model_3_13: 3 13 0;
    model_4_0: 4 0 0;
    model_4_1: 4 1 4;
    model_4_3: 4 3 0;
);

macro_rules! suite {
    ($($place:ident: $broker:ident, $store:ident, $room:ident;)+) => {
        $(mod $place {
            use super::*;

            async fn ground() -> Ground<impl Db, impl Broker> {
                let mut keep = ground::Keep::default();
                let broker = $broker(&mut keep).await;
                let store = ground::$store(&mut keep).await;
                let policy = ground::policy(WaitingRoom::$room);
                Ground { broker, store, policy, keep }.declared().await
            }

            suite!(@tests
                lesson_t02_k17_a_retry_is_the_same_message_with_one_attempt_more,
                lesson_k16_k08_k09_what_is_given_up_says_why_and_a_refusal_is_done,
                lesson_k14_later_messages_of_a_key_do_not_pass_one_that_waits,
                a_zero_byte_is_a_dead_letter_or_a_word_less_and_no_endless_retry,
                lesson_k16_a_dead_letter_says_since_when_it_fails,
                a_dead_message_lets_its_followers_go,
                lesson_k02_messages_c16_copies_of_one_id_have_one_effect,
                lesson_k12_an_open_circuit_and_a_deferral_count_no_attempt,
                what_asks_for_longer_than_the_room_waits_longer,
                the_room_is_shown,
            );
        })+
    };
    (@tests $($name:ident),+ $(,)?) => {
        $(#[tokio::test]
        async fn $name() {
            let ground = ground().await;
            let (broker, policy) = (ground.broker.clone(), ground.policy.clone());
            super::$name(ground).await;
            clear(&broker, &policy).await;
        })+
    };
}

suite!(
    tiers_embedded_sqlite: embedded, sqlite, Tiers;
    tiers_embedded_postgres: embedded, postgres, Tiers;
    tiers_rabbitmq_sqlite: rabbitmq, sqlite, Tiers;
    tiers_rabbitmq_postgres: rabbitmq, postgres, Tiers;
    parked_embedded_sqlite: embedded, sqlite, Parked;
    parked_embedded_postgres: embedded, postgres, Parked;
    parked_rabbitmq_sqlite: rabbitmq, sqlite, Parked;
    parked_rabbitmq_postgres: rabbitmq, postgres, Parked;
    tiers_on_3_10: model_3_10, sqlite, Tiers;
    tiers_on_3_13: model_3_13, sqlite, Tiers;
    tiers_on_4_0: model_4_0, sqlite, Tiers;
    tiers_on_4_1: model_4_1, sqlite, Tiers;
    tiers_on_4_3: model_4_3, sqlite, Tiers;
    parked_on_4_3: model_4_3, sqlite, Parked;
    own_on_4_3_sqlite: model_4_3, sqlite, Broker;
    own_on_4_3_postgres: model_4_3, postgres, Broker;
);

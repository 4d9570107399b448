//! The lesson's way and ours on the real broker: what is copied, what survives, what is read.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod amqp;
mod common;

use amqp::{Raw, next, number, policy, table, text, with_headers};
use common::{order, until, within};
use lapin::BasicProperties;
use lapin::options::BasicRejectOptions;
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use mamparo_call::clock;
use mamparo_core::message::capabilities::Version;
use mamparo_core::message::headers;
use mamparo_messaging::broker::{Settled, Subscription as _};
use mamparo_messaging::{Broker as _, Confirm, Message, QueuePolicy, RabbitMqBroker};
use mamparo_testkit::servers::amqp_url;

/// A broker, a plain client beside it, and a queue of their own.
struct Stage {
    broker: RabbitMqBroker,
    raw: Raw,
    policy: QueuePolicy,
}

async fn stage() -> Stage {
    let broker = RabbitMqBroker::connect(&amqp_url()).await.unwrap();
    let (raw, policy) = (Raw::connect(&amqp_url()).await, policy());
    broker.declare(&policy).await.unwrap();
    Stage { broker, raw, policy }
}

impl Stage {
    fn queue(&self) -> &str {
        &self.policy.queue
    }

    fn room(&self) -> String {
        self.policy.waits().remove(0).queue
    }

    fn key(&self) -> String {
        format!("{}.created", self.policy.queue)
    }

    async fn end(self) {
        self.raw.clear(&self.policy).await;
    }

    /// A queue of the lesson's: its messages go to our main queue after 30 ms.
    async fn lesson_room(&self) -> String {
        let name = format!("{}.lesson", self.queue());
        let arguments = [
            ("x-message-ttl", number(30)),
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(self.queue())),
        ];
        self.raw.declare(&name, table(arguments)).await;
        name
    }

    async fn publish(&self, to: &str, message: &Message) {
        assert_eq!(self.broker.publish("", to, message).await, Confirm::Confirmed);
    }
}

/// A message that another program published, as ours reads it.
async fn read_once(stage: &Stage) -> Message {
    let subscription = stage.broker.consume(stage.queue(), 10).await.unwrap();
    let delivery = next(&subscription).await;
    assert_eq!(subscription.ack(delivery.receipt).await.unwrap(), Settled::Done);
    within(subscription.close()).await.unwrap();
    delivery.message
}

#[tokio::test]
async fn lesson_t02_exchange_key_and_type_survive_the_waiting_room() {
    let stage = stage().await;
    // The lesson's: back by the queue's name, and nothing says what it was published as.
    let room = stage.lesson_room().await;
    let first = stage.key();
    stage.raw.publish("events", &first, BasicProperties::default()).await;
    let message = stage.raw.pull(stage.queue()).await;
    assert_eq!(message.routing_key.as_str(), first);
    stage.raw.publish("", &room, BasicProperties::default()).await;
    let message = stage.raw.pull(stage.queue()).await;
    assert_eq!((message.exchange.as_str(), message.routing_key.as_str()), ("", stage.queue()));
    let deaths = format!("{:?}", message.properties.headers());
    assert!(!deaths.contains(&first), "{deaths}");
    // Ours, through the waiting room and the dead-letter queue.
    let sent = Message { routing_key: first.clone(), ..order("order.created", "o-1") };
    let confirm = stage.broker.publish("events", &first, &sent).await;
    assert_eq!(confirm, Confirm::Confirmed);
    let mut message = read_once(&stage).await;
    for _ in 0..2 {
        stage.publish(&stage.room(), &message).await;
        message = read_once(&stage).await;
        assert_eq!(message, sent);
    }
    // Foreign, without a type: its first routing key is one, and stays.
    stage.raw.publish("events", &first, BasicProperties::default()).await;
    let foreign = read_once(&stage).await;
    assert_eq!((foreign.kind.as_str(), foreign.routing_key.as_str()), (&*first, &*first));
    stage.publish(&stage.room(), &foreign).await;
    assert_eq!(read_once(&stage).await, foreign);
    stage.raw.delete(&room).await;
    stage.end().await;
}

/// Puts a message among the dead letters of a queue, for each reason that the broker knows.
async fn dead_letters(stage: &Stage) -> (String, Vec<String>) {
    let (main, dead) =
        (format!("{}.origin", stage.queue()), format!("{}.origin.dead", stage.queue()));
    stage.raw.declare(&dead, FieldTable::default()).await;
    let to = |more: Vec<(&str, AMQPValue)>| {
        let mut arguments = table([
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(&dead)),
        ]);
        for (name, value) in more {
            arguments.insert(name.into(), value);
        }
        arguments
    };
    let mut queues = vec![dead.clone()];
    let rows = [
        ("maxlen", vec![("x-max-length", number(0))]),
        ("expired", vec![("x-message-ttl", number(1))]),
        ("rejected", vec![]),
        ("limit", vec![("x-queue-type", text("quorum")), ("x-delivery-limit", number(0))]),
    ];
    for (n, (name, arguments)) in rows.into_iter().enumerate() {
        let queue = format!("{main}.{name}");
        stage.raw.declare(&queue, to(arguments)).await;
        let properties = BasicProperties::default().with_message_id(name.into());
        stage.raw.publish("", &queue, properties).await;
        let before = u32::try_from(n).unwrap();
        until("it is dead", async || {
            if stage.raw.ready(&dead).await > before {
                return true;
            }
            if matches!(name, "rejected" | "limit")
                && let Some(message) = stage.raw.get(&queue).await
            {
                let requeue = name == "limit";
                message.reject(BasicRejectOptions { requeue }).await.unwrap();
            }
            false
        })
        .await;
        queues.push(queue);
    }
    (dead, queues)
}

#[tokio::test]
async fn lesson_k03_messages_c03_a_message_with_a_death_survives_ten_more_retries() {
    let stage = stage().await;
    // The lesson's: all headers are copied to the replay and to the retry. A message that our main
    // queue once dropped by its length comes back there: the broker sees a cycle.
    let room = stage.lesson_room().await;
    let death = table([
        ("count", number(1)),
        ("queue", text(stage.queue())),
        ("reason", text("maxlen")),
        ("exchange", text("")),
        ("routing-keys", AMQPValue::FieldArray(FieldArray::from(vec![text(stage.queue())]))),
    ]);
    let deaths = AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)]));
    let copied = with_headers(table([("x-death", deaths)]));
    stage.raw.publish("", &room, copied).await;
    stage.raw.until_ready(&room, 0).await;
    // A plain one behind it arrives alone: the first is not late, it is gone.
    let plain = BasicProperties::default().with_message_id("plain".into());
    stage.raw.publish("", &room, plain).await;
    let arrived = stage.raw.pull(stage.queue()).await;
    let arrived = arrived.properties.message_id().as_ref().map(ToString::to_string);
    let listens = stage.broker.capabilities().version < Version::new(4, 0, 1);
    assert_eq!(arrived.is_some(), listens, "from 4.0.1 on the broker does not believe clients");
    // Ours, whatever it died of.
    let (dead, queues) = dead_letters(&stage).await;
    let letters = stage.broker.consume(&dead, 1).await.unwrap();
    let main = stage.broker.consume(stage.queue(), 1).await.unwrap();
    let mut ids = Vec::new();
    for _ in 1..queues.len() {
        let letter = next(&letters).await;
        letters.ack(letter.receipt).await.unwrap();
        let mut message = letter.message;
        assert!(message.headers.keys().all(|name| !name.contains("death")), "{message:?}");
        stage.publish(stage.queue(), &message).await;
        for retry in 0..=10 {
            let delivery = next(&main).await;
            main.ack(delivery.receipt).await.unwrap();
            message = delivery.message;
            if retry < 10 {
                stage.publish(&stage.room(), &message).await;
            }
        }
        ids.push(message.id);
    }
    within(letters.close()).await.unwrap();
    within(main.close()).await.unwrap();
    assert_eq!(ids, ["maxlen", "expired", "rejected", "limit"]);
    for queue in queues.iter().chain([&room]) {
        stage.raw.delete(queue).await;
    }
    stage.end().await;
}

#[tokio::test]
async fn lesson_k04_the_users_id_is_not_copied() {
    let stage = stage().await;
    // The lesson's: somebody else's id on our connection closes the channel.
    let other = BasicProperties::default().with_user_id("somebody".into());
    let lost = Raw::connect(&amqp_url()).await;
    let error = lost.try_publish("", stage.queue(), other).await.unwrap_err();
    assert!(error.to_string().contains("406") || error.to_string().contains("PRECONDITION"));
    assert!(!lost.channel.status().connected());
    // Ours: neither the property nor a header of its name goes out again.
    let own = BasicProperties::default()
        .with_user_id("guest".into())
        .with_headers(table([("user_id", text("somebody")), ("tenant", text("north"))]));
    stage.raw.publish("", stage.queue(), own).await;
    let message = read_once(&stage).await;
    assert_eq!(message.header("tenant"), Some("north"));
    stage.publish(&stage.room(), &message).await;
    let again = stage.raw.pull(stage.queue()).await;
    assert!(again.properties.user_id().is_none());
    assert_eq!(read_names(&again.properties), ["tenant", "x-routing-key"]);
    stage.end().await;
}

/// Names of the headers, without the broker's own.
fn read_names(properties: &BasicProperties) -> Vec<String> {
    let table = properties.headers().clone().unwrap_or_default();
    let names = table.inner().keys().map(ToString::to_string);
    names.filter(|name| !headers::NEVER_COPIED.contains(&name.as_str())).collect()
}

#[tokio::test]
async fn lesson_k05_a_copy_goes_to_nobody_else() {
    let stage = stage().await;
    let aside = format!("{}.aside", stage.queue());
    stage.raw.declare(&aside, FieldTable::default()).await;
    let copy = || AMQPValue::FieldArray(FieldArray::from(vec![text(&aside)]));
    let copied = || with_headers(table([("CC", copy()), ("BCC", copy())]));
    // The lesson's: the headers of the first publish on the second, and a copy more each time.
    stage.raw.publish("", stage.queue(), copied()).await;
    stage.raw.until_ready(&aside, 1).await;
    stage.raw.publish("", &stage.room(), copied()).await;
    stage.raw.until_ready(&aside, 2).await;
    // Ours: of each of the two, nothing more.
    for _ in 0..2 {
        let message = read_once(&stage).await;
        stage.publish(&stage.room(), &message).await;
        let again = read_once(&stage).await;
        assert_eq!(again.headers, message.headers);
    }
    assert_eq!(stage.raw.ready(&aside).await, 2);
    // Nor does an expiration travel on: it would let the copy vanish.
    let short = BasicProperties::default().with_expiration("60000".into());
    stage.raw.publish("", stage.queue(), short).await;
    let message = read_once(&stage).await;
    stage.publish(stage.queue(), &message).await;
    assert!(stage.raw.pull(stage.queue()).await.properties.expiration().is_none());
    stage.raw.delete(&aside).await;
    stage.end().await;
}

#[tokio::test]
async fn lesson_k06_a_message_without_headers_is_read_like_any_other() {
    let stage = stage().await;
    // No table, no id, no type: legal, and the lesson's consumer dies of it.
    stage.raw.publish("events", &stage.key(), BasicProperties::default()).await;
    let first = stage.broker.consume(stage.queue(), 10).await.unwrap();
    let before = next(&first).await;
    drop(first);
    let subscription = stage.broker.consume(stage.queue(), 10).await.unwrap();
    let again = next(&subscription).await;
    assert!(again.suspect);
    assert_eq!(again.message, before.message, "its derived id is the same each time");
    assert!(again.message.id.starts_with("derived-"), "{}", again.message.id);
    assert_eq!(again.message.kind, stage.key());
    subscription.ack(again.receipt).await.unwrap();
    within(subscription.close()).await.unwrap();
    // A header of every type that AMQP has.
    let inner = table([("n", number(7)), ("yes", AMQPValue::Boolean(true))]);
    let list = vec![number(1), text("two"), AMQPValue::Void];
    let odd = table([
        ("a-text", text("as it is")),
        ("b-bytes", AMQPValue::LongString(vec![0x66, 0xff, 0x6f].into())),
        ("c-number", number(-5)),
        ("d-double", AMQPValue::Double(0.5)),
        ("e-float", AMQPValue::Float(1.5)),
        ("f-yes", AMQPValue::Boolean(true)),
        ("g-time", AMQPValue::Timestamp(1_700_000_000)),
        ("h-none", AMQPValue::Void),
        ("i-list", AMQPValue::FieldArray(FieldArray::from(list))),
        ("j-table", AMQPValue::FieldTable(inner)),
        ("x-attempts", AMQPValue::Boolean(false)),
    ]);
    let properties = with_headers(odd)
        .with_content_type("text/plain".into())
        .with_correlation_id("c-1".into())
        .with_priority(3);
    stage.raw.publish("events", &stage.key(), properties).await;
    let message = read_once(&stage).await;
    let expected = [
        ("a-text", "as it is"),
        ("b-bytes", "f\u{fffd}o"),
        ("c-number", "-5"),
        ("content-type", "text/plain"),
        ("correlation-id", "c-1"),
        ("d-double", "0.5"),
        ("e-float", "1.5"),
        ("f-yes", "true"),
        ("g-time", "1700000000"),
        ("h-none", ""),
        ("i-list", "[1,\"two\",null]"),
        ("j-table", "{\"n\":7,\"yes\":true}"),
        ("priority", "3"),
        ("x-attempts", "false"),
    ];
    let read: Vec<(&str, &str)> =
        message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(read, expected);
    assert!(headers::attempts(&message.headers, stage.queue()).unreadable);
    // And the properties are properties again on the way out.
    stage.publish(stage.queue(), &message).await;
    let copy = stage.raw.pull(stage.queue()).await.delivery.properties;
    assert_eq!(copy.content_type().as_ref().unwrap().as_str(), "text/plain");
    assert_eq!(copy.correlation_id().as_ref().unwrap().as_str(), "c-1");
    assert_eq!((copy.priority(), copy.delivery_mode()), (&Some(3), &Some(2)));
    stage.end().await;
}

#[tokio::test]
async fn messages_c02_attempts_are_counted_without_the_brokers_deaths() {
    let stage = stage().await;
    stage.publish(stage.queue(), &order("order.created", "o-1")).await;
    for made in 0..4 {
        let message = read_once(&stage).await;
        let read = headers::attempts(&message.headers, stage.queue());
        assert_eq!((read.made, read.unreadable), (made, false));
        let now = clock::wall();
        let copy =
            headers::after_failure(&message.headers, stage.queue(), made + 1, "no stock", now);
        stage.publish(&stage.room(), &message.with_headers(copy)).await;
    }
    stage.end().await;
}

#[tokio::test]
async fn a_message_that_amqp_cannot_carry_is_refused_in_words_and_harms_no_other() {
    let stage = stage().await;
    let long = "x".repeat(256);
    let mut wide = order("order.created", "o-1");
    wide.headers.insert("large".into(), "y".repeat(130_000));
    let mut named = order("order.created", "o-1");
    named.headers.insert(long.clone(), "y".into());
    for (message, says) in [
        (Message { id: long.clone(), ..order("order.created", "o-1") }, "message id has 256"),
        (Message { kind: long.clone(), ..order("order.created", "o-1") }, "type has 256"),
        (named, "header's name has 256"),
        (wide, "headers take"),
    ] {
        let confirm = stage.broker.publish("", stage.queue(), &message).await;
        let Confirm::Nacked(why) = confirm else { panic!("{confirm:?}") };
        assert!(why.contains(says), "{why}");
    }
    let confirm = stage.broker.publish("", &long, &order("order.created", "o-1")).await;
    assert!(matches!(confirm, Confirm::Nacked(_)), "{confirm:?}");
    // Just within: one frame.
    let mut fits = order("order.created", "o-1");
    fits.headers.insert("large".into(), "y".repeat(122_000));
    stage.publish(stage.queue(), &fits).await;
    assert_eq!(read_once(&stage).await.headers, fits.headers);
    stage.end().await;
}

//! What changes from one RabbitMQ release to the next: what breaks the lesson's consumer, and what does
//! not break ours. On a model of each release.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "these are tests")]

mod common;
mod ground;
mod model;

use std::time::Duration;

use common::until;
use ground::{Act, Ground, Keep, policy};
use mamparo_core::message::capabilities::Version;
use mamparo_core::message::closure::Kind;
use mamparo_core::message::headers;
use mamparo_core::message::topology::{Argument, WaitingRoom, alarm};
use mamparo_core::time::Moment;
use mamparo_messaging::{
    Answer, Broker as _, Confirm, Consumer, Message, MessagingError, PlainHandler, QueuePolicy,
};
use mamparo_store::{Sqlite, retries};
use model::ModelBroker;
use model::node::{Node, Return, read};
use model::rules::RELEASES;
use tokio_util::sync::CancellationToken;

const MS: Duration = Duration::from_millis(1);

async fn on(release: Version, policy: QueuePolicy) -> Ground<Sqlite, ModelBroker> {
    let mut keep = Keep::default();
    let (broker, store) = (ModelBroker::new(release), ground::sqlite(&mut keep).await);
    Ground { broker, store, policy, keep }.declared().await
}

/// A node with the queues of `policy`, and the moments of a test.
fn node(release: Version, policy: &QueuePolicy) -> Node {
    let mut node = Node::new(release);
    let able = mamparo_core::message::capabilities::Capabilities::rabbitmq(release);
    for queue in policy.topology(&able).queues {
        node.declare(queue);
    }
    node
}

fn at(millis: u64) -> Moment {
    Moment::ORIGIN.plus(MS * u32::try_from(millis).unwrap())
}

/// The lesson's step: a copy with all headers into the waiting room, then the acknowledgement. Answers
/// what the lesson reads, the count of its `x-death`.
fn retry_as_in_the_lesson(
    node: &mut Node,
    consumer: u64,
    policy: &QueuePolicy,
    now: Moment,
) -> u32 {
    let (place, kept) = node.take(consumer, 1, now).remove(0);
    let seen = node.shown(&kept);
    let deaths = read(seen.headers.get("x-death").map_or("", String::as_str));
    let retries = deaths.iter().find(|death| death.queue == policy.retry_queue());
    let confirm = node.publish("", &policy.retry_queue(), &seen, now);
    assert_eq!(confirm, Confirm::Confirmed);
    assert!(node.ack(consumer, place));
    retries.map_or(0, |death| death.count)
}

/// `x-death` is the broker's own business: since 3.13 a client that sends it back counts to one.
#[tokio::test]
async fn messages_c02_attempts_are_right_on_every_release_and_stand_still_in_the_lesson() {
    for release in RELEASES {
        let own = policy(WaitingRoom::Tiers);
        let mut node = node(release, &own);
        let sent = common::order("order.created", "o-1");
        node.publish("", &own.queue, &sent, at(0));
        let consumer = node.subscribe(&own.queue, 1);
        let counts: Vec<u32> = (0..4)
            .map(|n| {
                let now = at(n * 100);
                node.tick(now);
                retry_as_in_the_lesson(&mut node, consumer, &own, now)
            })
            .collect();
        let (old, new) = ([0, 1, 2, 3], [0, 1, 1, 1]);
        let right = model::rules::Rules(release).takes_deaths_of_clients();
        assert_eq!(counts, if right { old } else { new }, "{release}");

        for room in [WaitingRoom::Tiers, WaitingRoom::Broker] {
            let ground = on(release, policy(room)).await;
            let script = Act::new(|_, n| if n < 5 { Answer::retry("503") } else { Answer::Done });
            let running = ground.consume(&script);
            ground.publish(&ground.message("order.created", "o-1")).await;
            until("applied", async || ground.effects().await.len() == 1).await;
            let consumer = ground.policy.consumer();
            let seen = script.seen();
            let made = seen.iter().map(|m| headers::attempts(&m.headers, consumer).made);
            assert_eq!(made.collect::<Vec<_>>(), [0, 1, 2, 3, 4], "{release} {room:?}");
            running.stop().await;
            assert!(ground.broker.with(|node, _| node.lost.clone()).is_empty());
        }
    }
}

/// What once left the queue for another reason than a rejection, and came back with its `x-death`, is a
/// cycle to the broker.
#[tokio::test]
async fn lesson_k03_messages_c03_a_copied_death_header_is_a_cycle_there_and_never_sent_here() {
    for release in RELEASES {
        let own = policy(WaitingRoom::Tiers);
        let mut node = node(release, &own);
        let mut sent = common::order("order.created", "o-1");
        // As the lesson's script puts it back: attempts reset, everything else as it was.
        sent.headers.insert("x-death".to_owned(), format!("{}/maxlen/1", own.queue));
        node.publish("", &own.queue, &sent, at(0));
        let consumer = node.subscribe(&own.queue, 1);
        // The header reaches the consumer where the broker lets it; elsewhere the lesson's own copy has it.
        let (place, _) = node.take(consumer, 1, at(0)).remove(0);
        node.publish("", &own.retry_queue(), &sent, at(0));
        node.ack(consumer, place);
        node.tick(at(100));
        let cycle = !node.lost.is_empty();
        let drops = model::rules::Rules(release).looks_for_cycles_in_them();
        assert_eq!(cycle, drops, "{release}: {:?}", node.lost);
        assert_eq!(node.take(consumer, 1, at(100)).is_empty(), drops, "{release}");

        for reason in ["rejected", "maxlen", "expired", "delivery_limit"] {
            let ten =
                QueuePolicy { attempts: 11, retry_delay: 5 * MS, ..policy(WaitingRoom::Tiers) };
            let ground = on(release, ten).await;
            let script = Act::new(|_, n| if n <= 10 { Answer::retry("503") } else { Answer::Done });
            let running = ground.consume(&script);
            let mut message = ground.message("order.created", "o-1");
            let origin = format!("{}/{reason}/1", ground.policy.queue);
            message.headers.insert("x-death".to_owned(), origin);
            ground.publish(&message).await;
            until("applied", async || ground.effects().await.len() == 1).await;
            assert!(ground.broker.with(|node, _| node.lost.is_empty()), "{release} {reason}");
            assert_eq!(running.stop().await.retried, 10);
        }
    }
}

/// At most once, what expires while its target is away or full is gone; at least once it stays.
#[test]
fn messages_c06_what_expires_without_its_target_stays_in_our_waiting_rooms() {
    for release in RELEASES {
        let own = policy(WaitingRoom::Tiers);
        let (retry, id) = (own.retry_queue(), "o-1");
        let mut ours = node(release, &own);
        let mut theirs = node(release, &own);
        theirs.argument(&retry, "x-queue-type", Some(Argument::from("classic")));
        theirs.argument(&retry, "x-dead-letter-strategy", None);
        for (node, left) in [(&mut ours, 1), (&mut theirs, 0)] {
            let main = node.declared(&own.queue).unwrap().clone();
            let message = common::order("order.created", id);
            assert_eq!(node.publish("", &retry, &message, at(0)), Confirm::Confirmed);
            node.delete(&own.queue);
            node.tick(at(1_000));
            node.declare(main);
            node.tick(at(2_000));
            let back = node.ready(&own.queue, at(2_000)).unwrap();
            assert_eq!((back.len(), node.lost.len()), (left, 1 - left), "{release}");
        }
    }
}

/// The broker's worker stands still: nothing comes back and nothing is lost, and what comes late says so.
#[tokio::test]
async fn messages_c05_what_a_stuck_worker_keeps_comes_late_and_is_not_lost() {
    for release in RELEASES {
        let own = policy(WaitingRoom::Tiers);
        let mut node = node(release, &own);
        let message = common::order("order.created", "o-1");
        node.publish("", &own.retry_queue(), &message, at(0));
        node.stuck = true;
        node.tick(at(3_600_000));
        assert_eq!(node.ready(&own.queue, at(3_600_000)).unwrap().len(), 0, "{release}");
        let late = alarm::late(Duration::from_secs(3_600), own.retry_delay);
        assert_eq!(late, Some(Duration::from_secs(3_540) - own.retry_delay), "{release}");
        node.stuck = false;
        node.tick(at(3_600_001));
        assert_eq!(node.ready(&own.queue, at(3_600_001)).unwrap().len(), 1, "{release}");
        assert!(node.lost.is_empty(), "{release}");
    }
}

/// Everything in hand comes back when a process dies, and from 4.0 on a queue that names no limit gives
/// up after 20 times: into nothing, when it has no target either. Ours names a limit and a target.
#[test]
fn messages_c08_the_default_limit_drops_what_our_queues_keep() {
    for release in RELEASES {
        let own = policy(WaitingRoom::Tiers);
        let mut ours = node(release, &own);
        let mut theirs = node(release, &own);
        for key in ["x-delivery-limit", "x-dead-letter-exchange"] {
            theirs.argument(&own.queue, key, None);
        }
        let limited = model::rules::Rules(release).delivery_limit().is_some();
        for (node, dropped) in [(&mut ours, false), (&mut theirs, limited)] {
            node.publish("", &own.queue, &common::order("order.created", "o-1"), at(0));
            for n in 0..30 {
                let consumer = node.subscribe(&own.queue, 10);
                for (place, _) in node.take(consumer, 10, at(n)) {
                    node.requeue(consumer, place, Return::Reject, at(n));
                }
            }
            assert_eq!(!node.lost.is_empty(), dropped, "{release}: {:?}", node.lost);
            assert_eq!(node.ready(&own.queue, at(99)).unwrap().is_empty(), dropped, "{release}");
        }
    }
}

/// A message that waits for longer than the broker's longest delay comes back often, and the broker
/// counts each time. It is not given up for that.
#[tokio::test]
async fn a_long_wait_at_the_broker_ends_neither_early_nor_among_the_dead_letters() {
    let small = QueuePolicy {
        attempts: 3,
        delivery_limit: 4,
        retry_delay: 20 * MS,
        ..policy(WaitingRoom::Broker)
    };
    let ground = on(Version::new(4, 3, 0), small).await;
    let asked = 500 * MS;
    let times = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let clock = std::sync::Arc::clone(&times);
    let script = Act::new(move |_, n| {
        clock.lock().unwrap().push(mamparo_call::clock::now());
        match n {
            1 => Answer::RetryAfter { delay: Some(asked * 3), reason: "503".to_owned() },
            2 => Answer::Defer { delay: asked * 3 },
            _ => Answer::Done,
        }
    });
    let running = ground.consume(&script);
    ground.publish(&ground.message("order.created", "o-1")).await;
    until("applied", async || ground.effects().await.len() == 1).await;
    ground.settled(&running).await;
    let times = times.lock().unwrap().clone();
    assert_eq!(times.len(), 3, "it was not handled in between");
    assert!(times.windows(2).all(|two| two[1].since(two[0]) >= asked * 3), "{times:?}");
    assert!(ground.dead().await.is_empty() && ground.broker.with(|node, _| node.lost.is_empty()));
    let consumer = ground.policy.consumer();
    let made: Vec<u32> =
        script.seen().iter().map(|m| headers::attempts(&m.headers, consumer).made).collect();
    assert_eq!(made, [0, 1, 1], "a deferral is no attempt");
    running.stop().await;
}

/// The broker marks a message that comes back after its wait as it marks one whose process has died.
#[tokio::test]
async fn what_was_rejected_is_no_suspect_and_what_was_cut_off_is() {
    let ground = on(Version::new(4, 3, 0), policy(WaitingRoom::Broker)).await;
    let script = Act::new(|_, n| if n == 1 { Answer::retry("503") } else { Answer::Done });
    let running = ground.consume(&script);
    let message = ground.message("order.created", "o-1");
    ground.publish(&message).await;
    until("applied", async || ground.effects().await.len() == 1).await;
    ground.settled(&running).await;
    let rows = retries::stats(&ground.store, ground.policy.consumer()).await.unwrap();
    assert_eq!(rows.0, 0, "what is done leaves no row");
    running.stop().await;

    // In hand of one process, and its connection breaks: the other one is told what was known.
    let consumer = ground.policy.consumer();
    let kept = headers::after_failure(&message.headers, consumer, 3, "503", Default::default());
    let other = common::open_store(ground.keep.folder.as_ref().unwrap().path(), "orders.db").await;
    retries::keep(&other, consumer, "m-9", &kept, 3, Default::default()).await.unwrap();
    assert!(!retries::recall(&other, consumer, "m-9").await.unwrap().unwrap().suspect);
    let seen = retries::recall(&ground.store, consumer, "m-9").await.unwrap().unwrap();
    assert!(seen.suspect && headers::attempts(&seen.headers, consumer).made == 3);
}

/// A person put it back: its attempts start over, whatever row its earlier life has left.
#[tokio::test]
async fn a_replayed_message_has_nothing_to_do_with_the_row_of_its_earlier_life() {
    let ground = on(Version::new(4, 3, 0), policy(WaitingRoom::Broker)).await;
    let consumer = ground.policy.consumer().to_owned();
    let message = ground.message("order.created", "o-1");
    let old = headers::after_failure(&message.headers, &consumer, 4, "503", Default::default());
    retries::keep(&ground.store, &consumer, &message.id, &old, 4, Default::default())
        .await
        .unwrap();
    let now = mamparo_call::clock::wall();
    let replayed = headers::replayed(&old, &ground.policy.queue, "ana", "", now);
    let script = Act::new(|_, n| if n < 5 { Answer::retry("503") } else { Answer::Done });
    ground.publish(&message.with_headers(replayed)).await;
    // Handed out once and cut off, so that it comes back marked.
    ground.broker.with(|node, now| {
        let consumer = node.subscribe(&ground.policy.queue, 1);
        assert_eq!(node.take(consumer, 1, now).len(), 1);
        node.end(consumer, Kind::Disconnected, now);
    });
    let running = ground.consume(&script);
    until("applied", async || ground.effects().await.len() == 1).await;
    assert!(ground.dead().await.is_empty());
    let seen = script.seen();
    let made: Vec<u32> =
        seen.iter().map(|m| headers::attempts(&m.headers, &consumer).made).collect();
    assert_eq!(made, [0, 1, 2, 3, 4]);
    running.stop().await;
}

/// From 4.3 the broker ends a slow consumer without a word; before, it closes the channel.
#[tokio::test]
async fn messages_c11_after_a_consumer_timeout_of_any_release_the_consumer_is_back() {
    for release in RELEASES {
        let ground = on(release, policy(WaitingRoom::Tiers)).await;
        let script = Act::new(|_, n| if n == 1 { Answer::retry("slow") } else { Answer::Done });
        let running = ground.consume(&script);
        assert!(running.handle.wait_for(|health| health.subscribed).await);
        let subscription = ground.broker.consume(&ground.policy.queue, 1).await.unwrap();
        ground.broker.with(|node, now| {
            let slow = node.subscribe(&ground.policy.queue, 1);
            node.publish("", &ground.policy.queue, &ground.message("order.created", "o-1"), now);
            node.take(slow, 1, now);
            node.consumer_timeout = Duration::ZERO;
            node.tick(now);
            let quiet = model::rules::Rules(release).cancels_the_slow();
            let expected = if quiet { Kind::Cancelled } else { Kind::AckTimeout };
            assert_eq!(node.ended(slow), Some(expected), "{release}");
            node.consumer_timeout = Duration::from_secs(1_800);
        });
        // Now ours, with nothing in hand: the broker ends every consumer.
        ground.broker.with(|node, now| node.cut(now));
        let lost = common::within(mamparo_messaging::broker::Subscription::lost(&subscription));
        lost.await;
        until("applied", async || ground.effects().await.len() == 1).await;
        let summary = running.stop().await;
        assert!(summary.reconnects >= 1, "{release}");
    }
}

struct Nothing;

impl PlainHandler for Nothing {
    async fn handle(&self, _: &Message) -> Answer {
        Answer::Done
    }
}

/// The queue delays by itself, as planned; without a database nothing would count the attempts.
#[tokio::test]
async fn the_brokers_own_room_is_not_begun_without_a_database() {
    let ground = on(Version::new(4, 3, 0), policy(WaitingRoom::Broker)).await;
    let consumer = Consumer::plain(ground.broker.clone(), ground.policy.clone(), Nothing);
    let (handle, cancel) = (consumer.handle(), CancellationToken::new());
    let task = common::spawn(consumer.run(cancel.clone()));
    assert!(handle.wait_for(|health| health.error.is_some()).await);
    let words = handle.health().error.unwrap();
    assert!(!handle.health().subscribed && words.contains("no database"), "{words}");
    cancel.cancel();
    task.await.unwrap();
}

/// An upgrade to 4.3 does not change a queue: its arguments say where messages wait.
#[tokio::test]
async fn a_queue_of_an_older_release_is_a_readable_mismatch_for_the_brokers_own_room() {
    let asked = policy(WaitingRoom::Broker);
    let broker = ModelBroker::new(Version::new(4, 3, 0));
    let before = QueuePolicy { waiting_room: WaitingRoom::Tiers, ..asked.clone() };
    broker.declare(&before).await.unwrap();
    let error = broker.declare(&asked).await.unwrap_err();
    assert!(matches!(error, MessagingError::Mismatch { .. }), "{error}");
    let words = error.to_string();
    assert!(words.contains("x-delayed-retry-type") && words.contains("version = 2"), "{words}");
}

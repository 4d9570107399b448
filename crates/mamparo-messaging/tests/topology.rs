//! Queues on RabbitMQ: where the lesson's arrangement loses messages or sends them to the wrong place,
//! and ours does not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]
#![allow(missing_debug_implementations, unreachable_pub, dead_code, reason = "these are tests")]

mod common;
#[path = "topology/raw.rs"]
mod raw;

use std::time::Duration;

use common::until;
use mamparo_core::message::topology::alarm::{Fill, fill};
use mamparo_core::message::topology::plan::{Action, Migration, Seen, Step, Theirs, subjects};
use mamparo_core::message::topology::{Argument, Topology};
use mamparo_messaging::plan::{Provision as _, plan};
use mamparo_messaging::{Broker as _, MessagingError, QueuePolicy, RabbitMqBroker};
use mamparo_testkit::servers::amqp_url;
use raw::{Raw, number, text};

async fn broker() -> RabbitMqBroker {
    RabbitMqBroker::connect(&amqp_url()).await.unwrap()
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[tokio::test]
async fn lesson_t01_one_reject_lands_in_every_shared_dlq_and_in_ours_alone() {
    let (raw, broker) = (Raw::connect(&amqp_url()).await, broker().await);
    // The lesson: one dead-letter topic exchange, and every dead-letter queue bound to it with `#`.
    let dlx = raw.name("dlx");
    raw.topic(&dlx).await;
    for name in ["a", "b", "c"] {
        let (queue, dlq) = (raw.name(name), raw.name(&format!("{name}.dlq")));
        raw.queue(&queue, &[("x-dead-letter-exchange", text(&dlx))]).await;
        raw.queue(&dlq, &[]).await;
        raw.bind(&dlx, "#", &dlq).await;
    }
    assert!(raw.put("", &raw.name("a"), None).await);
    raw.reject(&raw.name("a")).await;
    for name in ["a.dlq", "b.dlq", "c.dlq"] {
        let queue = raw.name(name);
        until("the lesson's copy", async || raw.depth(&queue).await == Some(1)).await;
    }
    // Ours: by name, through no exchange.
    let ours = ["ours.a", "ours.b", "ours.c"];
    for name in ours {
        broker.declare(&QueuePolicy::new(raw.name(name), "team")).await.unwrap();
    }
    assert!(raw.put("", &raw.name("ours.a"), None).await);
    raw.reject(&raw.name("ours.a")).await;
    let dlq = |name: &str| format!("{}.dlq", raw.name(name));
    until("its own", async || raw.depth(&dlq("ours.a")).await == Some(1)).await;
    assert_eq!(
        (raw.depth(&dlq("ours.b")).await, raw.depth(&dlq("ours.c")).await),
        (Some(0), Some(0))
    );
    for name in ["a", "b", "c"] {
        raw.delete(&raw.name(name)).await;
        raw.delete(&raw.name(&format!("{name}.dlq"))).await;
    }
    raw.delete_exchange(&dlx).await;
    raw.clean(&ours).await;
}

#[tokio::test]
async fn lesson_t05_a_short_time_of_its_own_waits_behind_a_long_one_and_in_a_tier_it_does_not() {
    let (raw, broker) = (Raw::connect(&amqp_url()).await, broker().await);
    let tiers = QueuePolicy {
        retry_tiers: vec![millis(150), Duration::from_secs(600)],
        ..QueuePolicy::new(raw.name("ours"), "team")
    };
    broker.declare(&tiers).await.unwrap();
    // The lesson's reader puts both times into one queue, where only the head's is looked at.
    let (target, delays) = (raw.name("target"), raw.name("delays"));
    raw.queue(&target, &[]).await;
    let back = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(&target))];
    raw.queue(&delays, &back).await;
    assert!(raw.put("", &delays, Some(Duration::from_secs(600))).await);
    assert!(raw.put("", &delays, Some(millis(1))).await);
    // Into our tiers after it, and for longer than its 1 ms.
    let waits = tiers.waits();
    assert!(raw.put("", &waits[1].queue, None).await);
    assert!(raw.put("", &waits[0].queue, None).await);
    until("the short tier returns", async || raw.depth(&tiers.queue).await == Some(1)).await;
    assert_eq!(raw.depth(&waits[1].queue).await, Some(1), "the long one is still waiting");
    assert_eq!((raw.depth(&delays).await, raw.depth(&target).await), (Some(2), Some(0)));
    for queue in [&target, &delays, &tiers.queue, &tiers.dlq(), &waits[0].queue, &waits[1].queue] {
        raw.delete(queue).await;
    }
}

#[tokio::test]
async fn lesson_t06_what_kills_its_process_comes_back_for_ever_and_with_a_limit_it_does_not() {
    let (raw, broker) = (Raw::connect(&amqp_url()).await, broker().await);
    let classic = raw.name("lesson");
    raw.queue(&classic, &[]).await;
    assert!(raw.put("", &classic, None).await);
    let policy = QueuePolicy {
        attempts: 3,
        delivery_limit: 3,
        ..QueuePolicy::new(raw.name("ours"), "team")
    };
    broker.declare(&policy).await.unwrap();
    assert!(raw.put("", &policy.queue, None).await);
    for death in 0..20 {
        until("the lesson's is there again", async || raw.depth(&classic).await == Some(1)).await;
        assert!(raw.take_and_die(&classic).await, "death {death}");
    }
    let mut deaths = 0;
    until("ours is dead", async || {
        raw.depth(&policy.dlq()).await == Some(1) || {
            raw.take_and_die(&policy.queue).await;
            false
        }
    })
    .await;
    while raw.take_and_die(&policy.queue).await {
        deaths += 1;
    }
    assert_eq!(deaths, 0, "it is in the dead-letter queue and nowhere else");
    // A limit without a target: the message is gone. That is why it is refused.
    let lost = raw.name("lost");
    raw.queue(&lost, &[("x-queue-type", text("quorum")), ("x-delivery-limit", number(3))]).await;
    assert!(raw.put("", &lost, None).await);
    until("it is gone", async || {
        raw.take_and_die(&lost).await;
        raw.depth(&lost).await == Some(0) && !raw.take_and_die(&lost).await
    })
    .await;
    for queue in [&classic, &lost] {
        raw.delete(queue).await;
    }
    raw.clean(&["ours"]).await;
}

#[tokio::test]
async fn messages_c07_a_limit_on_dead_letters_loses_them_or_does_not_hold_so_it_is_watched() {
    let (raw, broker) = (Raw::connect(&amqp_url()).await, broker().await);
    let (main, dlq) = (raw.name("lesson"), raw.name("lesson.dlq"));
    let target = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(&dlq))];
    raw.queue(&main, &target).await;
    raw.queue(&dlq, &[("x-max-length", number(2)), ("x-overflow", text("reject-publish"))]).await;
    let policy = QueuePolicy { max_length: 2, ..QueuePolicy::new(raw.name("ours"), "team") };
    broker.declare(&policy).await.unwrap();
    for _ in 0..40 {
        for queue in [&main, &policy.queue] {
            assert!(raw.put("", queue, None).await);
            raw.reject(queue).await;
        }
    }
    until("both are at their limit", async || {
        raw.depth(&dlq).await == Some(2) && raw.depth(&policy.dlq()).await >= Some(2)
    })
    .await;
    assert_eq!(raw.depth(&main).await, Some(0), "38 of the lesson's 40 are nowhere");
    // Where ours are is shown by `topology_node`: nothing counts them, so the queue is watched.
    assert!(
        !raw.put("", &policy.dlq(), None).await,
        "a consumer is refused, and keeps its original"
    );
    let found = plan(&broker, &policy).await.unwrap();
    let depth = step(&found.steps, &policy.dlq()).depth.unwrap();
    assert_eq!(fill(depth, policy.max_length), Fill::Full);
    raw.delete(&main).await;
    raw.delete(&dlq).await;
    raw.clean(&["ours"]).await;
}

#[tokio::test]
async fn messages_c04_one_consumers_undeliverable_retries_do_not_block_anothers() {
    let (raw, broker) = (Raw::connect(&amqp_url()).await, broker().await);
    // One delay queue for all, returning by routing key: its worker holds 32 messages at most, and
    // those of a deleted endpoint never leave it.
    let (back, live, shared) = (raw.name("back"), raw.name("live"), raw.name("shared"));
    raw.topic(&back).await;
    raw.queue(&live, &[]).await;
    raw.bind(&back, "live", &live).await;
    let arguments = [
        ("x-queue-type", text("quorum")),
        ("x-message-ttl", number(50)),
        ("x-dead-letter-exchange", text(&back)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ];
    raw.queue(&shared, &arguments).await;
    raw.topic(&raw.name("in")).await;
    raw.bind(&raw.name("in"), "#", &shared).await;
    for _ in 0..40 {
        assert!(raw.put(&raw.name("in"), "deleted", None).await);
    }
    assert!(raw.put(&raw.name("in"), "live", None).await);
    // Ours: two consumers, one of them deleted.
    let policy = |name: &str| QueuePolicy {
        retry_delay: millis(300),
        ..QueuePolicy::new(raw.name(name), "team")
    };
    let (gone, well) = (policy("gone"), policy("well"));
    for policy in [&gone, &well] {
        broker.declare(policy).await.unwrap();
    }
    raw.delete(&gone.queue).await;
    for _ in 0..40 {
        assert!(raw.put("", &gone.retry_queue(), None).await);
    }
    assert!(raw.put("", &well.retry_queue(), None).await);
    until("the other's comes back", async || raw.depth(&well.queue).await == Some(1)).await;
    assert_eq!(raw.depth(&live).await, Some(0), "behind 40 that go nowhere, a shared one does not");
    for queue in [&live, &shared] {
        raw.delete(queue).await;
    }
    raw.delete_exchange(&back).await;
    raw.delete_exchange(&raw.name("in")).await;
    broker.declare(&gone).await.unwrap();
    raw.clean(&["gone", "well"]).await;
}

fn step<'p>(steps: &'p [Step], name: &str) -> &'p Step {
    steps.iter().find(|step| step.subject.to_string() == name).unwrap()
}

#[tokio::test]
async fn lesson_t04_a_service_with_another_delay_gets_a_readable_error_and_the_broker_lives_on() {
    let (raw, broker) = (Raw::connect(&amqp_url()).await, broker().await);
    let policy = QueuePolicy::new(raw.name("ours"), "team");
    broker.declare(&policy).await.unwrap();
    let ten = QueuePolicy { retry_delay: Duration::from_secs(10), ..policy.clone() };
    for _ in 0..3 {
        let error = broker.declare(&ten).await.unwrap_err();
        let words = error.to_string();
        let MessagingError::Mismatch { plan } = error else { panic!("{words}") };
        let Action::Refuse(differences, Migration::Tier { .. }) =
            &step(&plan.steps, &policy.retry_queue()).action
        else {
            panic!("{plan:?}");
        };
        assert_eq!(differences.len(), 1);
        for part in [
            "x-message-ttl: ours 10000, there 30000",
            "set retry_tiers = [\"10s\"]",
            "mamparo topology plan",
            "docs/runbooks/topology.md",
        ] {
            assert!(words.contains(part), "{words}");
        }
    }
    broker.declare(&policy).await.unwrap();
    assert!(raw.put("", &policy.retry_queue(), None).await, "nothing was touched");
    raw.clean(&["ours"]).await;
}

#[tokio::test]
async fn a_foreign_queue_of_our_name_tells_all_that_differs_and_keeps_its_messages() {
    let (raw, broker) = (Raw::connect(&amqp_url()).await, broker().await);
    let policy = QueuePolicy::new(raw.name("ours"), "team");
    let arguments = [
        ("x-queue-type", text("classic")),
        ("x-message-ttl", number(86_400_000)),
        ("x-dead-letter-exchange", text("elsewhere")),
        ("x-max-priority", number(5)),
        ("x-single-active-consumer", lapin::types::AMQPValue::Boolean(true)),
    ];
    raw.queue(&policy.queue, &arguments).await;
    assert!(raw.put("", &policy.queue, None).await);
    let found = plan(&broker, &policy).await.unwrap();
    let main = step(&found.steps, &policy.queue);
    let Action::Refuse(differences, Migration::Version { .. }) = &main.action else {
        panic!("{main:?}");
    };
    let mut shown: Vec<String> = differences.iter().map(ToString::to_string).collect();
    shown.sort();
    let key = policy.dlq();
    let expected = [
        "x-dead-letter-exchange: ours \"\", there elsewhere".to_owned(),
        format!("x-dead-letter-routing-key: ours {key}, there not set"),
        "x-max-priority: ours not set, there 5".to_owned(),
        "x-message-ttl: ours not set, there 86400000".to_owned(),
        "x-overflow: ours reject-publish, there not set".to_owned(),
        "x-queue-type: ours quorum, there classic".to_owned(),
        "x-single-active-consumer: ours not set, there true".to_owned(),
    ];
    assert_eq!(shown, expected);
    assert_eq!((main.depth, raw.depth(&policy.queue).await), (Some(1), Some(1)));
    for name in [policy.dlq(), policy.retry_queue()] {
        assert_eq!(step(&found.steps, &name).action, Action::Create);
        assert_eq!(raw.depth(&name).await, None, "a plan makes nothing");
    }
    raw.delete(&policy.queue).await;
}

#[tokio::test]
async fn an_answer_that_the_broker_cuts_off_is_still_a_difference() {
    let (raw, broker) = (Raw::connect(&amqp_url()).await, broker().await);
    let long = raw.name(&"y".repeat(120));
    let policy = QueuePolicy::new(long, "team");
    broker.declare(&policy).await.unwrap();
    let ten = QueuePolicy { retry_delay: Duration::from_secs(10), ..policy.clone() };
    let found = plan(&broker, &ten).await.unwrap();
    let retry = step(&found.steps, &policy.retry_queue());
    let Action::Refuse(differences, _) = &retry.action else { panic!("{retry:?}") };
    assert_eq!(differences[0].key, "x-message-ttl");
    assert_eq!(differences[0].ours, Some(Argument::Number(10_000)));
    assert_eq!(differences[0].theirs, Theirs::CutOff);
    for queue in [policy.queue.clone(), policy.dlq(), policy.retry_queue()] {
        raw.delete(&queue).await;
    }
}

#[tokio::test]
async fn a_look_is_in_the_order_of_the_parts_and_again_the_same() {
    let (raw, broker) = (Raw::connect(&amqp_url()).await, broker().await);
    let policy = QueuePolicy::new(raw.name("ours"), "team").bind("order.created");
    broker.declare(&policy).await.unwrap();
    let topology: Topology = policy.topology(&broker.capabilities());
    let seen = broker.look(&topology).await.unwrap();
    assert_eq!(seen.len(), subjects(&topology).len());
    let same = |depth| Seen::There { differences: Vec::new(), depth };
    let expected = [same(None), same(Some(0)), same(Some(0)), same(Some(0)), Seen::Hidden];
    assert_eq!(seen, expected);
    assert_eq!(broker.look(&topology).await.unwrap(), seen);
    raw.clean(&["ours"]).await;
}

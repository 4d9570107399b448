//! Real process deaths on RabbitMQ and PostgreSQL: the message that kills its process is found, its
//! neighbours in the prefetch are spared, whichever room they would wait in.
//!
//! It takes as long as a dead process's lease does, twice: until then a suspect may still be running
//! elsewhere.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod amqp;
mod common;
mod ground;

use std::process::{Command, ExitStatus};

use ground::{Act, Ground, Keep};
use mamparo_core::message::topology::WaitingRoom;
use mamparo_messaging::{Answer, AnyBroker, QueuePolicy};
use mamparo_store::{Postgres, PostgresStore};
use mamparo_testkit::servers::amqp_url;

const QUEUE: &str = "MAMPARO_TEST_CRASH_QUEUE";
const STORE: &str = "MAMPARO_TEST_CRASH_STORE";

fn policy(queue: &str, room: WaitingRoom) -> QueuePolicy {
    QueuePolicy { queue: queue.to_owned(), prefetch: 12, ..ground::policy(room) }
}

/// The child's part. In a run of the whole suite there is no queue, and nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_child() {
    #[expect(clippy::disallowed_methods, reason = "how the parent below hands over its queue")]
    let (Ok(queue), Ok(store)) = (std::env::var(QUEUE), std::env::var(STORE)) else { return };
    let room = if queue.ends_with("parked") { WaitingRoom::Parked } else { WaitingRoom::Tiers };
    let ground = Ground::<Postgres> {
        broker: AnyBroker::open(&amqp_url()).await.unwrap(),
        store: PostgresStore::open(&store).await.unwrap(),
        policy: policy(&queue, room),
        keep: Keep::default(),
    };
    let script = Act::new(|message, _| match message.kind.as_str() {
        "order.poison" => std::process::abort(),
        _ => Answer::Done,
    });
    let running = ground.consume(&script);
    common::until_within(60, "the poison is dead", async || ground.dead().await.len() == 1).await;
    ground.settled(&running).await;
    running.stop().await;
}

fn run_child(queue: &str, store: &str) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "crash_child", "--nocapture"]).env(QUEUE, queue).env(STORE, store);
    child.output().unwrap().status
}

async fn only_the_culprit_is_dead_lettered(room: WaitingRoom, suffix: &str) {
    let mut keep = Keep::default();
    let store = ground::postgres(&mut keep).await;
    let broker = ground::rabbitmq(&mut keep).await;
    let queue = format!("crash.{}.{suffix}", uuid::Uuid::new_v4());
    let policy = QueuePolicy { bindings: vec![format!("{queue}.#")], ..policy(&queue, room) };
    let ground = Ground { broker, store, policy, keep }.declared().await;
    let (mut innocent, mut culprit) = (Vec::new(), String::new());
    for n in 0..12 {
        let kind = if n == 4 { "order.poison" } else { "order.created" };
        let message = ground.message(kind, &format!("o-{n}"));
        ground.publish(&message).await;
        if n == 4 { culprit = message.id } else { innocent.push(message.id) }
    }
    let url = ground.keep.database.as_ref().unwrap().url();
    let mut deaths = 0;
    while !tokio::task::block_in_place(|| run_child(&queue, &url)).success() {
        deaths += 1;
        assert!(deaths <= 3, "the poison was never found out");
    }
    assert_eq!(deaths, 3, "the first makes suspects, two while alone convict");
    let mut effects = ground.effects().await;
    effects.sort_unstable();
    innocent.sort_unstable();
    assert_eq!(effects, innocent, "each innocent message was applied once");
    let dead = ground.dead().await;
    assert_eq!(dead.len(), 1);
    assert_eq!((&dead[0].0, dead[0].1.as_str()), (&culprit, "crashes"));
    amqp::Raw::connect(&amqp_url()).await.clear(&ground.policy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_c08_only_the_message_that_kills_processes_is_dead_lettered_tiers() {
    only_the_culprit_is_dead_lettered(WaitingRoom::Tiers, "tiers").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_c08_only_the_message_that_kills_processes_is_dead_lettered_parked() {
    only_the_culprit_is_dead_lettered(WaitingRoom::Parked, "parked").await;
}

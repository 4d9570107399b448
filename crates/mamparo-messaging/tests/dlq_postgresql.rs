//! Failed messages of a store in PostgreSQL, put back through RabbitMQ.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use common::until;
use mamparo_core::message::selection::Sift;
use mamparo_core::time::WallTime;
use mamparo_messaging::dlq::{self, Choice, Task, Verb};
use mamparo_messaging::letters::Place;
use mamparo_messaging::stored::StoreLetters;
use mamparo_messaging::{Broker as _, QueuePolicy, RabbitMqBroker};
use mamparo_store::PostgresStore;
use mamparo_store::failed::{self, Failure, Query, Status};
use mamparo_store::queue::QueueMessage;
use mamparo_testkit::database::Database;
use mamparo_testkit::leavings::Leavings;
use mamparo_testkit::servers::amqp_url;
use tokio_util::sync::CancellationToken;

/// Failed messages of the other type lie between those that are meant.
const CHOSEN: u32 = 1_000;

/// Counts here; how long 10,000 take stands in the runbook.
#[tokio::test]
async fn a_thousand_are_chosen_by_type_and_put_back() {
    let database = Database::create();
    let store = PostgresStore::open(&database.url()).await.unwrap();
    let broker = RabbitMqBroker::connect(&amqp_url()).await.unwrap();
    let policy = QueuePolicy::new(format!("failed.{}", uuid::Uuid::new_v4()), "team");
    let _leavings = Leavings::on(&amqp_url()).queue(&policy.queue);
    broker.declare(&policy.clone().bind("none.*")).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    for n in 0..2 * CHOSEN {
        let kind = if n % 2 == 0 { "order.created" } else { "order.paid" };
        let message = QueueMessage {
            id: format!("m-{n}"),
            kind: kind.to_owned(),
            exchange: "events".to_owned(),
            routing_key: kind.to_owned(),
            key: format!("o-{n}"),
            headers: [("traceparent".to_owned(), "00-a-b-01".to_owned())].into(),
            body: vec![b'x'; 500],
        };
        let at = WallTime::from_unix_millis(1_000_000);
        let failure = Failure {
            consumer: policy.consumer(),
            message: &message,
            reason: "attempts-spent",
            error: "the catalog said 503",
            first_failure: None,
            last_failure: Some(at),
            attempts: 5,
            host: "shop-1",
            version: "1.2",
        };
        failed::record(&mut tx, &failure, at).await.unwrap();
    }
    store.commit(tx).await.unwrap();

    let start = mamparo_call::clock::now();
    let sift = Sift { kind: Some("order.paid".to_owned()), ..Sift::default() };
    let (sender, place) = (Some(broker.clone()), Place::Dead);
    let letters = StoreLetters::open(store.clone(), sender, policy.consumer(), place, sift.clone());
    let choice = Choice { max: 10_000, sift };
    let mut selected = dlq::choose(letters.await.unwrap(), &policy.queue, &choice).await.unwrap();
    let (task, stop) = (Task::new(Verb::Replay, "ana", "mended"), CancellationToken::new());
    let outcome = dlq::carry_out(&mut selected, &task, None, &stop, |_| ()).await.unwrap();
    selected.close().await.unwrap();
    let took = mamparo_call::clock::now().since(start);
    println!("{CHOSEN} of {} failed messages chosen by type and put back in {took:?}", 2 * CHOSEN);
    let all = usize::try_from(CHOSEN).unwrap();
    assert_eq!((outcome.done.len(), outcome.left.len()), (all, 0));
    until("all", async || broker.depth(&policy.queue).await.unwrap() == u64::from(CHOSEN)).await;
    let replayed = Query { status: Some(Status::Replayed), ..Query::default() };
    assert_eq!(failed::count(&store, &replayed).await.unwrap(), u64::from(CHOSEN));
    let row = failed::list(&store, &Query { max: 1, ..replayed }).await.unwrap().remove(0);
    assert_eq!((row.actor.as_deref(), row.action_reason.as_deref()), (Some("ana"), Some("mended")));
}

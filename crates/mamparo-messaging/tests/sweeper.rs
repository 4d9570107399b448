//! Dead letters come from the broker to the service's store, and none is lost on the way.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use common::{order, shop, until};
use mamparo_messaging::broker::Filter;
use mamparo_messaging::{
    AnyBroker, Broker as _, Confirm, Message, MessagingError, QueuePolicy, Sweeper, SweeperOptions,
};
use mamparo_store::failed::{self, Query, Status};
use mamparo_store::{Backend, PostgresStore, Store};
use mamparo_testkit::database::Database;
use mamparo_testkit::leavings::Leavings;
use mamparo_testkit::servers::amqp_url;
use tokio_util::sync::CancellationToken;

async fn dead(broker: &AnyBroker, policy: &QueuePolicy, count: usize) -> Vec<Message> {
    broker.declare(policy).await.unwrap();
    let mut messages = Vec::new();
    for n in 0..count {
        let mut message = order("order.created", &format!("o-{n}"));
        let failure = [
            ("x-attempts", "5"),
            ("x-dead-reason", "attempts-spent"),
            ("x-last-error", "the catalog said 503"),
            ("x-last-failure", "2026-11-30T08:05:09.042Z"),
            ("x-failure-host", "shop-1"),
        ];
        // The last one is somebody else's, who says nothing.
        for (name, value) in failure.iter().filter(|_| n + 1 < count) {
            message.headers.insert((*name).to_owned(), (*value).to_owned());
        }
        assert_eq!(broker.publish("", &policy.dlq(), &message).await, Confirm::Confirmed);
        messages.push(message);
    }
    messages
}

fn policy() -> QueuePolicy {
    QueuePolicy::new(format!("failed.{}", uuid::Uuid::new_v4()), "team").bind("none.*")
}

fn ids(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| message.id.clone()).collect()
}

async fn stored<DB: Backend>(store: &Store<DB>) -> Vec<String> {
    let all = Query { max: 1_000, ..Query::default() };
    let rows = failed::list(store, &all).await.unwrap();
    assert!(rows.iter().all(|row| row.failures == 1 && row.status == Status::Failed));
    rows.into_iter().map(|row| row.message.id).collect()
}

async fn is_brought_in<DB: Backend>(broker: AnyBroker, store: Store<DB>) {
    let policy = policy();
    // The embedded broker goes with its folder.
    let _leavings = Leavings::on(&amqp_url()).queue(&policy.queue);
    let all = dead(&broker, &policy, 250).await;
    let options = SweeperOptions { max: 150, ..SweeperOptions::default() };
    let sweeper = Sweeper::new(broker.clone(), &store, [&policy], options);
    let sweep = async || sweeper.sweep(&policy.queue, policy.consumer()).await.unwrap();
    assert_eq!(sweep().await, (150, 100), "no more than the cycle's limit");
    assert_eq!(broker.depth(&policy.dlq()).await.unwrap(), 100);
    assert_eq!(sweep().await, (100, 0));
    assert_eq!(sweep().await, (0, 0));
    assert_eq!(stored(&store).await, ids(&all), "in their order");
    let rows = failed::list(&store, &Query { max: 1, ..Query::default() }).await.unwrap();
    assert_eq!((rows[0].reason.as_str(), rows[0].attempts), ("attempts-spent", 5));
    assert_eq!((rows[0].host.as_str(), &rows[0].message.body), ("shop-1", &all[0].body));
    let counts = failed::counts(&store).await.unwrap();
    let reasons: Vec<_> = counts.iter().map(|it| (it.reason.as_str(), it.messages)).collect();
    assert_eq!(reasons, [("attempts-spent", 249), ("unknown", 1)]);
}

#[tokio::test]
async fn what_the_embedded_broker_holds_is_brought_into_sqlite() {
    let shop = shop().await;
    is_brought_in(shop.broker.clone().into(), shop.store.clone()).await;
}

#[tokio::test]
async fn what_rabbitmq_holds_is_brought_into_postgresql() {
    let database = Database::create();
    let store = PostgresStore::open(&database.url()).await.unwrap();
    is_brought_in(AnyBroker::open(&amqp_url()).await.unwrap(), store).await;
}

#[tokio::test]
async fn a_letter_that_the_database_refuses_stays_and_holds_up_no_other() {
    // No euro in Latin 1, and no U+FFFD either.
    let database = Database::create_encoded("LATIN1");
    let store = PostgresStore::open(&database.url()).await.unwrap();
    let shop = shop().await;
    let (broker, policy): (AnyBroker, _) = (shop.broker.clone().into(), policy());
    broker.declare(&policy).await.unwrap();
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for n in 0..130 {
        let refused = [0, 57, 99, 129].contains(&n);
        let key = if refused { format!("\u{20ac}-{n}") } else { format!("o-{n}") };
        let message = order("order.created", &key);
        assert_eq!(broker.publish("", &policy.dlq(), &message).await, Confirm::Confirmed);
        if refused { bad.push(message) } else { good.push(message) }
    }
    let sweeper = Sweeper::new(broker.clone(), &store, [&policy], SweeperOptions::default());
    let sweep = async || sweeper.sweep(&policy.queue, policy.consumer()).await.unwrap();
    assert_eq!(sweep().await, (126, 4));
    assert_eq!(stored(&store).await, ids(&good), "in their order");
    assert_eq!(sweep().await, (0, 4), "tried again, and still there");
    let left = broker.browse(&policy.dlq(), &Filter::default()).await.unwrap();
    let left: Vec<Message> = left.into_iter().map(|letter| letter.message).collect();
    assert_eq!(left, bad, "as they were");
}

#[tokio::test]
async fn a_database_that_is_away_is_no_fault_of_a_letter() {
    let database = Database::create();
    let store = PostgresStore::open(&database.url()).await.unwrap();
    let shop = shop().await;
    let (broker, policy): (AnyBroker, _) = (shop.broker.clone().into(), policy());
    dead(&broker, &policy, 3).await;
    store.close().await;
    let sweeper = Sweeper::new(broker.clone(), &store, [&policy], SweeperOptions::default());
    let error = sweeper.sweep(&policy.queue, policy.consumer()).await.unwrap_err();
    assert!(matches!(error, MessagingError::Store { .. }), "{error:?}");
    assert_eq!(broker.depth(&policy.dlq()).await.unwrap(), 3);
}

/// Polls `future` so often at most, then drops it: a process that dies between two awaits.
async fn dies_after<F: Future>(polls: usize, future: F) -> bool {
    let (mut future, mut left) = (pin!(future), polls);
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        future.as_mut().poll(cx).map(|_| true)
    })
    .await
}

#[tokio::test]
async fn a_sweeper_that_dies_at_any_await_loses_and_doubles_nothing() {
    let shop = shop().await;
    let broker: AnyBroker = shop.broker.clone().into();
    let mut polls = 1;
    loop {
        let policy = policy();
        let all = dead(&broker, &policy, 3).await;
        let sweeper =
            Sweeper::new(broker.clone(), &shop.store, [&policy], SweeperOptions::default());
        let sweep = || sweeper.sweep(&policy.queue, policy.consumer());
        let finished = dies_after(polls, sweep()).await;
        until("nothing is lost", async || {
            let mine = Query { consumer: Some(policy.queue.clone()), ..Query::default() };
            let kept = failed::list(&shop.store, &mine).await.unwrap().len();
            kept + usize::try_from(shop.broker.depth(&policy.dlq()).await.unwrap()).unwrap() >= 3
        })
        .await;
        sweep().await.unwrap();
        assert_eq!(shop.broker.depth(&policy.dlq()).await.unwrap(), 0);
        let mine = Query { consumer: Some(policy.queue.clone()), ..Query::default() };
        let rows = failed::list(&shop.store, &mine).await.unwrap();
        assert!(rows.iter().all(|row| row.failures == 1), "polls: {polls}");
        let kept: Vec<String> = rows.into_iter().map(|row| row.message.id).collect();
        assert_eq!(kept, ids(&all), "polls: {polls}");
        if finished {
            break;
        }
        polls += 1;
    }
    assert!(polls > 5, "it was stopped on its way: {polls}");
}

#[tokio::test]
async fn it_runs_until_it_is_stopped_and_survives_a_queue_that_is_not_there() {
    let shop = shop().await;
    let broker: AnyBroker = shop.broker.clone().into();
    let (gone, policy) = (policy(), policy());
    let all = dead(&broker, &policy, 2).await;
    let every = std::time::Duration::from_millis(5);
    let options = SweeperOptions { every, ..SweeperOptions::default() };
    let sweeper = Sweeper::new(broker.clone(), &shop.store, [&gone, &policy], options);
    let cancel = CancellationToken::new();
    let stopped = async {
        until("both", async || stored(&shop.store).await == ids(&all)).await;
        let more = dead(&broker, &policy, 1).await;
        until("the third", async || stored(&shop.store).await.contains(&more[0].id)).await;
        cancel.cancel();
    };
    tokio::join!(sweeper.run(cancel.clone()), stopped);
}

//! The relay: nothing is lost, keys keep their order, a refused event holds up nobody else.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use std::time::Duration;

use common::{QUEUE, Script, Shop, done, policy, shop, spawn, until};
use mamparo_call::clock;
use mamparo_core::backoff::{Backoff, Jitter};
use mamparo_core::message::relay::Policy;
use mamparo_messaging::broker::Filter;
use mamparo_messaging::{Broker as _, EmbeddedBroker, QueuePolicy, Relay, RelayOptions, event};
use mamparo_store::{SqliteStore, outbox};
use tokio_util::sync::CancellationToken;

fn quick() -> RelayOptions {
    let (base, cap) = (Duration::from_millis(10), Duration::from_millis(40));
    let backoff = Backoff { base, factor: 2.0, cap, jitter: Jitter::Equal };
    RelayOptions {
        poll: Duration::from_millis(20),
        lease: Duration::from_millis(200),
        policy: Policy { backoff, ..Policy::default() },
        ..RelayOptions::default()
    }
}

async fn enqueue(store: &SqliteStore, kind: &str, key: &str) -> String {
    let event = event(kind, key, &serde_json::json!({ "key": key })).unwrap();
    let mut tx = store.begin().await.unwrap();
    outbox::enqueue(&mut tx, &event, clock::wall()).await.unwrap();
    store.commit(tx).await.unwrap();
    event.id
}

fn relay(shop: &Shop, options: RelayOptions) -> Relay<EmbeddedBroker, sqlx::Sqlite> {
    Relay::new(shop.store.clone(), shop.broker.clone(), options)
}

async fn published(shop: &Shop) -> Vec<(String, String)> {
    let filter = Filter { max: 10_000, ..Filter::default() };
    let rows = shop.broker.browse(QUEUE, &filter).await.unwrap();
    rows.into_iter().map(|stored| (stored.message.key, stored.message.id)).collect()
}

async fn pending(shop: &Shop) -> u64 {
    outbox::stats(&shop.store).await.unwrap().pending
}

#[tokio::test]
async fn an_event_goes_out_if_and_only_if_its_transaction_commits() {
    let shop = shop().await;
    shop.broker.declare(&policy()).await.unwrap();
    let cancel = CancellationToken::new();
    // A poll of an hour: only the commit's signal can make this pass.
    let patient = RelayOptions { poll: Duration::from_secs(3_600), ..quick() };
    let task = spawn(relay(&shop, patient).run(cancel.clone()));
    let lost = event("order.created", "o-0", &1).unwrap();
    let mut tx = shop.store.begin().await.unwrap();
    outbox::enqueue(&mut tx, &lost, clock::wall()).await.unwrap();
    tx.rollback().await.unwrap();
    let id = enqueue(&shop.store, "order.created", "o-1").await;
    until("published", async || shop.depth("").await == 1).await;
    assert_eq!(published(&shop).await, [("o-1".to_owned(), id)]);
    until("recorded", async || pending(&shop).await == 0).await;
    cancel.cancel();
    assert_eq!(task.await.unwrap().confirmed, 1);
}

#[tokio::test]
async fn messages_c20_four_relays_keep_the_order_of_each_key() {
    let shop = shop().await;
    shop.broker.declare(&policy()).await.unwrap();
    let mut sent = Vec::new();
    for n in 0..60 {
        let key = format!("o-{}", n % 4);
        sent.push((key.clone(), enqueue(&shop.store, "order.changed", &key).await));
    }
    let cancel = CancellationToken::new();
    let long = RelayOptions { lease: Duration::from_secs(30), batch: 3, ..quick() };
    let relays: Vec<_> =
        (0..4).map(|_| spawn(relay(&shop, long.clone()).run(cancel.clone()))).collect();
    until("all published", async || pending(&shop).await == 0).await;
    cancel.cancel();
    for relay in relays {
        relay.await.unwrap();
    }
    let got = published(&shop).await;
    assert_eq!(got.len(), 60);
    for key in ["o-0", "o-1", "o-2", "o-3"] {
        let of = |all: &[(String, String)]| -> Vec<String> {
            all.iter().filter(|(k, _)| k == key).map(|(_, id)| id.clone()).collect()
        };
        assert_eq!(of(&got), of(&sent), "{key}");
    }
}

#[tokio::test]
async fn messages_c21_a_relay_that_dies_anywhere_loses_nothing() {
    let shop = shop().await;
    let mut ids = Vec::new();
    for n in 0..30 {
        ids.push(enqueue(&shop.store, "order.created", &format!("o-{n}")).await);
    }
    shop.broker.declare(&policy()).await.unwrap();
    // Relays are dropped at ever later points of their work, without any goodbye.
    for micros in [0, 200, 700, 1_500, 3_000, 6_000, 12_000] {
        let until = clock::instant_of(clock::now().plus(Duration::from_micros(micros)));
        let work = relay(&shop, quick()).run(CancellationToken::new());
        let _ = tokio::time::timeout_at(until, work).await;
    }
    let cancel = CancellationToken::new();
    let task = spawn(relay(&shop, quick()).run(cancel.clone()));
    until("all published", async || pending(&shop).await == 0).await;
    cancel.cancel();
    task.await.unwrap();
    let mut got: Vec<String> = published(&shop).await.into_iter().map(|(_, id)| id).collect();
    got.sort_unstable();
    got.dedup();
    ids.sort_unstable();
    assert_eq!(got, ids, "each at least once; duplicates share their id");
}

#[tokio::test]
async fn a_returned_event_waits_with_its_key_and_holds_up_no_other() {
    let shop = shop().await;
    shop.broker.declare(&QueuePolicy::new(QUEUE, "team").bind("order.created")).await.unwrap();
    let nobody_wants = enqueue(&shop.store, "order.archived", "o-1").await;
    let behind = enqueue(&shop.store, "order.created", "o-1").await;
    let other = enqueue(&shop.store, "order.created", "o-2").await;
    let cancel = CancellationToken::new();
    let task = spawn(relay(&shop, quick()).run(cancel.clone()));
    until("the other key is out", async || shop.depth("").await == 1).await;
    assert_eq!(published(&shop).await, [("o-2".to_owned(), other.clone())]);
    let wanted = QueuePolicy::new(QUEUE, "team").bind("order.created").bind("order.archived");
    shop.broker.declare(&wanted).await.unwrap();
    until("all out", async || pending(&shop).await == 0).await;
    let order: Vec<String> = published(&shop).await.into_iter().map(|(_, id)| id).collect();
    assert_eq!(order, [other, nobody_wants, behind]);
    cancel.cancel();
    let summary = task.await.unwrap();
    assert!(summary.postponed >= 1 && summary.confirmed == 3, "{summary:?}");
}

#[tokio::test]
async fn what_a_stopped_relay_left_goes_out_with_the_next_one() {
    let shop = shop().await;
    let id = enqueue(&shop.store, "order.created", "o-1").await;
    let cancel = CancellationToken::new();
    let long = RelayOptions { lease: Duration::from_secs(3_600), ..quick() };
    let task = spawn(relay(&shop, long.clone()).run(cancel.clone()));
    until("tried", async || outbox::stats(&shop.store).await.unwrap().parked == 1).await;
    cancel.cancel();
    task.await.unwrap();
    shop.broker.declare(&policy()).await.unwrap();
    let cancel = CancellationToken::new();
    let task = spawn(relay(&shop, long).run(cancel.clone()));
    until("published", async || shop.depth("").await == 1).await;
    assert_eq!(published(&shop).await, [("o-1".to_owned(), id)]);
    cancel.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn the_whole_way_from_outbox_to_effect_carries_the_request_id() {
    let shop = shop().await;
    let script = Script::new(|_, _| done());
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    let cancel = CancellationToken::new();
    let task = spawn(relay(&shop, quick()).run(cancel.clone()));
    let context = mamparo_call::Context { request_id: Some("r-42".into()), ..Default::default() };
    context.scope(enqueue(&shop.store, "order.created", "o-1")).await;
    until("applied", async || shop.effects().await.len() == 1).await;
    assert_eq!(script.seen()[0].header("x-request-id"), Some("r-42"));
    cancel.cancel();
    task.await.unwrap();
    running.stop().await;
}

#[tokio::test]
async fn a_row_that_cannot_be_postponed_leaves_the_confirmed_ones_recorded() {
    let shop = shop().await;
    let wanted = QueuePolicy::new(QUEUE, "team").bind("order.created");
    shop.broker.declare(&wanted).await.unwrap();
    // The disk refuses what the broker said.
    let broken = "CREATE TRIGGER meddle BEFORE UPDATE OF error ON mamparo_outbox
        WHEN NEW.error <> '' BEGIN SELECT RAISE(ABORT, 'no'); END";
    shop.store.apply(broken).await.unwrap();
    let mut sent = Vec::new();
    for n in 0..10 {
        let kind = if n == 4 { "order.unwanted" } else { "order.created" };
        let id = enqueue(&shop.store, kind, &format!("o-{n}")).await;
        if n != 4 {
            sent.push(id);
        }
    }
    let cancel = CancellationToken::new();
    let long = RelayOptions { lease: Duration::from_secs(30), ..quick() };
    let task = spawn(relay(&shop, long).run(cancel.clone()));
    until("all but one recorded", async || pending(&shop).await == 1).await;
    cancel.cancel();
    assert_eq!(task.await.unwrap().confirmed, 9);
    let mut got: Vec<String> = published(&shop).await.into_iter().map(|(_, id)| id).collect();
    got.sort_unstable();
    sent.sort_unstable();
    assert_eq!(got, sent, "each went out once");
}

#[tokio::test]
async fn forgetting_keeps_up_with_what_was_confirmed() {
    let shop = shop().await;
    let old = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4500)
        INSERT INTO mamparo_outbox_history (seq, id, kind, key, enqueued_at, confirmed_at, tries)
        SELECT i, i, 'order.created', '', 0, 1, 0 FROM n";
    shop.store.apply(old).await.unwrap();
    let cancel = CancellationToken::new();
    let task = spawn(relay(&shop, quick()).run(cancel.clone()));
    let count = async || {
        let rows = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM mamparo_outbox_history");
        rows.fetch_one(shop.store.reader()).await.unwrap()
    };
    until("forgotten", async || count().await == 0).await;
    cancel.cancel();
    task.await.unwrap();
}

//! Rows that have served are forgotten, by a service's own housekeeper.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod common;

use std::time::Duration;

use common::{shop, spawn, until, within};
use mamparo_call::clock;
use mamparo_core::message::headers::Headers;
use mamparo_messaging::Housekeeper;
use mamparo_messaging::housekeeper::Policy;
use mamparo_store::idempotency::{self, Claim};
use mamparo_store::{Backend, PostgresStore, Store, inbox, retries};
use mamparo_testkit::database::Database;
use tokio_util::sync::CancellationToken;

const DAY: Duration = Duration::from_secs(86_400);
const CONSUMER: &str = "orders.saga";

/// Old rows of each kind, `inbox` of the first, and a young one.
async fn fill<DB: Backend>(store: &Store<DB>, inbox: u32) {
    let now = clock::wall();
    let (old, young) = (now.minus(8 * DAY), now.minus(6 * DAY));
    let mut tx = store.begin().await.unwrap();
    for n in 0..inbox {
        inbox::insert(&mut tx, CONSUMER, &format!("old-{n}"), "order.created", old).await.unwrap();
    }
    inbox::insert(&mut tx, CONSUMER, "young", "order.created", young).await.unwrap();
    store.commit(tx).await.unwrap();
    for (id, at) in [("old", old), ("young", young)] {
        retries::keep(store, CONSUMER, id, &Headers::new(), 1, at).await.unwrap();
    }
    let minute = Duration::from_secs(60);
    for (key, at) in [("old", now.minus(3 * DAY)), ("young", now.minus(DAY + DAY / 2))] {
        let claim = idempotency::claim(store, "ana", key, "f", minute, DAY, move || at).await;
        assert!(matches!(claim.unwrap(), Claim::Granted(_)), "{key}");
    }
}

async fn knows<DB: Backend>(store: &Store<DB>, id: &str) -> bool {
    inbox::contains(store, CONSUMER, id).await.unwrap()
}

/// How often this key was granted since it came into being, this time included.
async fn grants<DB: Backend>(store: &Store<DB>, key: &str) -> i64 {
    let claim = idempotency::claim(store, "ana", key, "f", DAY, DAY, clock::wall).await.unwrap();
    let Claim::Granted(token) = claim else { panic!("{key}: {claim:?}") };
    token.epoch
}

async fn goes_as_it_gets_old<DB: Backend>(store: Store<DB>) {
    fill(&store, 2_500).await;
    let cancel = CancellationToken::new();
    let running = spawn(Housekeeper::new(&store, Policy::default()).run(cancel.clone()));
    until("more than two batches of the inbox", async || !knows(&store, "old-2499").await).await;
    assert!(!knows(&store, "old-0").await);
    until("retries", async || retries::stats(&store, CONSUMER).await.unwrap().0 == 1).await;
    assert!(knows(&store, "young").await);
    cancel.cancel();
    within(running).await.unwrap();
    assert_eq!((grants(&store, "old").await, grants(&store, "young").await), (1, 2));
}

#[tokio::test]
async fn what_has_served_goes_from_sqlite() {
    goes_as_it_gets_old(shop().await.store).await;
}

#[tokio::test]
async fn what_has_served_goes_from_postgresql() {
    let database = Database::create();
    goes_as_it_gets_old(PostgresStore::open(&database.url()).await.unwrap()).await;
}

#[tokio::test]
async fn a_table_that_fails_holds_up_no_other_and_a_silent_database_no_shutdown() {
    let store = shop().await.store;
    fill(&store, 1).await;
    store.apply("ALTER TABLE mamparo_inbox RENAME TO inbox_away").await.unwrap();
    let cancel = CancellationToken::new();
    let running = spawn(Housekeeper::new(&store, Policy::default()).run(cancel.clone()));
    until("retries", async || retries::stats(&store, CONSUMER).await.unwrap().0 == 1).await;
    store.apply("ALTER TABLE inbox_away RENAME TO mamparo_inbox").await.unwrap();
    until("the inbox, once it is back", async || !knows(&store, "old-0").await).await;
    // Somebody holds the database's only writer.
    let held = store.begin().await.unwrap();
    let other = spawn(Housekeeper::new(&store, Policy::default()).run(cancel.clone()));
    cancel.cancel();
    within(running).await.unwrap();
    within(other).await.unwrap();
    drop(held);
}

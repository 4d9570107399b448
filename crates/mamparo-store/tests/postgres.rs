//! What only PostgreSQL does: two pools, foreign databases, opening together.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use mamparo_store::outbox::{self, Event};
use mamparo_store::{PostgresStore, StoreError};
use mamparo_testkit::database::Database;

mod common;

use common::{LEASE, at};

#[tokio::test]
async fn a_database_of_somebody_else_is_left_as_it_is() {
    let database = Database::create();
    let foreign = PostgresStore::open_existing(&database.url()).await.unwrap_err();
    assert!(matches!(foreign, StoreError::Foreign { .. }), "{foreign}");
    let store = PostgresStore::open(&database.url()).await.unwrap();
    store.ping().await.unwrap();
    let event = Event::new("order.created", "o-1", vec![0, 159]);
    let mut tx = store.begin().await.unwrap();
    outbox::enqueue(&mut tx, &event, at(0)).await.unwrap();
    store.commit(tx).await.unwrap();
    let claimed = outbox::claim(&store, "me", 10, LEASE, at(1)).await.unwrap();
    assert_eq!(claimed[0].event, event);
    store.close().await;
    PostgresStore::open_existing(&database.url()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_may_open_a_new_database_at_once() {
    let database = Database::create();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let address = database.url();
        #[expect(clippy::disallowed_methods, reason = "the set is drained below")]
        tasks.spawn(async move { PostgresStore::open(&address).await });
    }
    let stores: Vec<_> = tasks.join_all().await.into_iter().map(Result::unwrap).collect();
    let versions: i64 = sqlx::query_scalar("SELECT count(*) FROM mamparo_schema")
        .fetch_one(stores[0].reader())
        .await
        .unwrap();
    assert_eq!(versions, 1, "each migration ran once");
}

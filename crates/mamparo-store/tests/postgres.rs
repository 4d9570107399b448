//! What only PostgreSQL does: foreign databases and schemas, sessions and their limits, batches that
//! leave locked rows alone.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::error::Error;

use common::at;
use mamparo_store::{Class, PostgresStore, SqliteStore, StoreAddress, StoreError, StoreOptions};
use mamparo_store::{idempotency, inbox};
use mamparo_testkit::database::Database;

#[tokio::test]
async fn a_database_of_somebody_else_is_left_as_it_is() {
    let database = Database::create();
    let foreign = PostgresStore::open_existing(&database.url()).await.unwrap_err();
    assert!(matches!(foreign, StoreError::Foreign { .. }), "{foreign}");
    let store = PostgresStore::open(&database.url()).await.unwrap();
    PostgresStore::open_existing(&database.url()).await.unwrap();
    // Several services may share a database, each in a schema of its own.
    store.apply("CREATE SCHEMA other").await.unwrap();
    let other = format!("{}?options[search_path]=other,public", database.url());
    let foreign = PostgresStore::open_existing(&other).await.unwrap_err();
    assert!(matches!(foreign, StoreError::Foreign { .. }), "{foreign}");
    let neighbour = PostgresStore::open(&other).await.unwrap();
    let mut tx = neighbour.begin().await.unwrap();
    inbox::insert(&mut tx, "c", "m", "k", at(0)).await.unwrap();
    neighbour.commit(tx).await.unwrap();
    assert!(!inbox::contains(&store, "c", "m").await.unwrap());
}

#[tokio::test]
async fn errors_say_where_and_why_and_never_the_password() {
    let database = Database::create();
    let secret = database.url().replace("postgres@", "postgres:s3cret@");
    let nowhere = secret.replace(database.name(), "no_such_database");
    let refused = PostgresStore::open(&nowhere).await.unwrap_err();
    let text = format!("{refused}: {}", refused.source().unwrap());
    assert!(text.contains("no_such_database") && !text.contains("s3cret"), "{text}");
    assert_eq!(refused.class(), Class::Permanent);
    let closed = PostgresStore::open("postgres://postgres@127.0.0.1:1/x").await.unwrap_err();
    assert_eq!(closed.class(), Class::Reconnect, "{closed}");
    let other = PostgresStore::open("sqlite:orders.db").await.unwrap_err();
    assert!(other.to_string().contains("postgres://"), "{other}");
    let other = SqliteStore::open(&secret).await.unwrap_err();
    assert!(!other.to_string().contains("s3cret"), "{other}");
}

/// Forgetting must not stand behind a handler that is just counting a duplicate on an old row.
#[tokio::test]
async fn batches_leave_locked_rows_for_the_next_time() {
    let database = Database::create();
    let store = PostgresStore::open(&database.url()).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    for id in ["a", "b", "c"] {
        inbox::insert(&mut tx, "orders", id, "x", at(0)).await.unwrap();
    }
    store.commit(tx).await.unwrap();
    let lease = common::LEASE;
    for key in ["a", "b"] {
        idempotency::claim(&store, "ada", key, "f", lease, lease, at(0)).await.unwrap();
    }
    let mut held = store.begin().await.unwrap();
    inbox::insert(&mut held, "orders", "b", "x", at(0)).await.unwrap();
    sqlx::query("SELECT 1 FROM mamparo_idempotency WHERE key = 'a' FOR UPDATE")
        .execute(&mut *held)
        .await
        .unwrap();
    let background = store.background();
    assert_eq!(inbox::forget(&background, at(60), 10).await.unwrap(), 2);
    assert_eq!(idempotency::forget(&background, at(60), 10).await.unwrap(), 1);
    held.rollback().await.unwrap();
    assert_eq!(inbox::forget(&background, at(60), 10).await.unwrap(), 1);
    assert_eq!(idempotency::forget(&background, at(60), 10).await.unwrap(), 1);
}

/// What is sent together with a BEGIN must not leave a transaction open when it fails: whoever gets the
/// connection next would be in the middle of it.
#[tokio::test]
async fn a_message_that_may_not_begin_leaves_no_transaction_open() {
    let database = Database::create();
    let options = StoreOptions { connections: 1, ..StoreOptions::default() };
    let address = StoreAddress::parse(&database.url()).unwrap();
    let store = PostgresStore::open_with(&address, &options).await.unwrap();
    let tx = inbox::begin(&store, "c", "m", "k", at(0)).await.unwrap().unwrap();
    store.commit(tx).await.unwrap();
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                AND state LIKE 'idle in transaction%'";
    for _ in 0..3 {
        assert!(inbox::begin(&store, "c", "m", "k", at(0)).await.unwrap().is_none());
        let refused = inbox::begin(&store, "c", "no\0text", "k", at(0)).await.unwrap_err();
        assert_eq!(refused.class(), Class::Permanent, "{refused}");
        let watcher = store.background();
        let left: i64 = sqlx::query_scalar(open).fetch_one(watcher.reader()).await.unwrap();
        assert_eq!(left, 0);
    }
    // The one connection is as good as before.
    let tx = inbox::begin(&store, "c", "n", "k", at(0)).await.unwrap().unwrap();
    store.commit(tx).await.unwrap();
    assert!(inbox::contains(&store, "c", "n").await.unwrap());
}

/// Everything that was committed is there after the server crashed, and the same store goes on: the
/// first use of a connection that died says so, and later ones are new.
#[tokio::test]
async fn a_store_survives_the_crash_of_its_server() {
    use mamparo_testkit::servers::{Durability, Postgres};
    let mut server = Postgres::start(Durability::Fast).unwrap();
    let store = PostgresStore::open(&server.url()).await.unwrap();
    let insert = async |id: &str| {
        let mut tx = store.begin().await?;
        inbox::insert(&mut tx, "c", id, "k", at(0)).await?;
        store.commit(tx).await
    };
    insert("before").await.unwrap();
    server.kill().unwrap();
    let down = insert("down").await.unwrap_err();
    assert_eq!(down.class(), Class::Reconnect, "{down}");
    server.restart().unwrap();
    let mut tries = 0;
    while let Err(error) = insert("after").await {
        assert_eq!(error.class(), Class::Reconnect, "{error}");
        tries += 1;
        assert!(tries < 20, "one dead connection at most for each that was open: {error}");
    }
    for (id, there) in [("before", true), ("down", false), ("after", true)] {
        assert_eq!(inbox::contains(&store, "c", id).await.unwrap(), there, "{id}");
    }
}

//! Opening, migrating, closing; and what generic code may expect of the operations.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::error::Error;

use common::home::Home;
use common::{File, at, message, queue};
use mamparo_store::{
    Backend, PostgresStore, QueueRows, SqliteStore, Store, StoreError, attempts, inbox, outbox,
};
use mamparo_store::{idempotency, queue as rows};
use sqlx::ConnectOptions;

#[tokio::test]
async fn addresses_of_other_kinds_and_missing_files_are_errors() {
    let other = SqliteStore::open("postgres://localhost/orders").await.unwrap_err();
    assert!(other.to_string().contains("sqlite:PATH"), "{other}");
    let file = File::new();
    let missing = SqliteStore::open_existing(&file.address()).await.unwrap_err();
    assert!(matches!(missing, StoreError::Missing { .. }), "{missing}");
    assert!(!file.path().exists(), "looking must not create");
    let nowhere = SqliteStore::open("sqlite:/no/such/directory/store.db").await.unwrap_err();
    assert!(matches!(nowhere, StoreError::Open { .. }), "{nowhere}");
    assert!(nowhere.source().is_some());
    std::fs::write(file.path(), "this is a text, and not a database at all".repeat(100)).unwrap();
    assert!(SqliteStore::open(&file.address()).await.is_err());
}

#[tokio::test]
async fn a_file_that_is_deleted_under_us_is_no_database_any_more() {
    let file = File::new();
    let store = SqliteStore::open(&file.address()).await.unwrap();
    store.ping().await.unwrap();
    let away = file.path().with_extension("away");
    std::fs::rename(file.path(), &away).unwrap();
    assert!(store.ping().await.is_err());
    std::fs::rename(&away, file.path()).unwrap();
    store.ping().await.unwrap();
    let memory = SqliteStore::open("sqlite::memory:").await.unwrap();
    memory.ping().await.unwrap();
}

#[tokio::test]
async fn a_database_of_somebody_else_is_left_as_it_is() {
    let file = File::new();
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file.path());
    let mut conn = options.create_if_missing(true).connect().await.unwrap();
    sqlx::raw_sql("CREATE TABLE photos (id)").execute(&mut conn).await.unwrap();
    sqlx::Connection::close(conn).await.unwrap();
    let before = std::fs::read(file.path()).unwrap();
    let foreign = SqliteStore::open_existing(&file.address()).await.unwrap_err();
    assert!(matches!(foreign, StoreError::Foreign { .. }), "{foreign}");
    assert_eq!(std::fs::read(file.path()).unwrap(), before);
    std::fs::write(file.path(), "").unwrap();
    let empty = SqliteStore::open_existing(&file.address()).await.unwrap_err();
    assert!(matches!(empty, StoreError::Foreign { .. }), "{empty}");
    assert_eq!(std::fs::read(file.path()).unwrap(), b"");
    // A user's own database is where a service's store belongs.
    std::fs::write(file.path(), before).unwrap();
    SqliteStore::open(&file.address()).await.unwrap().close().await;
    SqliteStore::open_existing(&file.address()).await.unwrap();
}

#[tokio::test]
async fn the_file_is_opened_for_durability() {
    let file = File::new();
    let store = file.open().await;
    let mut tx = store.begin().await.unwrap();
    for (pragma, expected) in [
        ("PRAGMA journal_mode", "wal"),
        ("PRAGMA synchronous", "2"),
        ("PRAGMA foreign_keys", "1"),
        ("PRAGMA busy_timeout", "5000"),
    ] {
        let row = sqlx::query(pragma).fetch_one(&mut *tx).await.unwrap();
        let value = sqlx::Row::try_get_unchecked::<String, _>(&row, 0).unwrap();
        assert_eq!(value, expected, "{pragma}");
    }
    let written = sqlx::query("DELETE FROM mamparo_outbox").execute(store.reader()).await;
    assert!(written.is_err(), "readers can't write");
}

/// Switching to WAL gives up at once when another connection is writing in the old mode, as happens
/// when two processes create the file together.
#[tokio::test]
async fn a_file_that_somebody_is_just_creating_is_waited_for() {
    let file = File::new();
    let options =
        sqlx::sqlite::SqliteConnectOptions::new().filename(file.path()).create_if_missing(true);
    let mut other = options.connect().await.unwrap();
    sqlx::raw_sql("CREATE TABLE one (n); BEGIN IMMEDIATE; INSERT INTO one VALUES (1)")
        .execute(&mut other)
        .await
        .unwrap();
    let finish = async {
        for _ in 0..500 {
            sqlx::query("SELECT n FROM one").execute(&mut other).await.unwrap();
        }
        sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    };
    let address = file.address();
    let (store, ()) = tokio::join!(SqliteStore::open(&address), finish);
    store.unwrap().ping().await.unwrap();
}

async fn a_newer_schema_is_left_alone<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
    store.apply("INSERT INTO mamparo_schema (version) VALUES (99)").await.unwrap();
    store.close().await;
    let refused = Store::<H::Db>::open(&home.url()).await.unwrap_err();
    assert!(matches!(refused, StoreError::NewerSchema { found: 99, .. }), "{refused}");
}

async fn the_users_tables_are_applied_whole_or_not_at_all<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
    let schema = "CREATE TABLE IF NOT EXISTS one (n INTEGER);
                  CREATE TABLE IF NOT EXISTS two (n INTEGER);";
    store.apply(schema).await.unwrap();
    store.apply(schema).await.unwrap();
    let half = "CREATE TABLE three (n INTEGER); CREATE TABLE one (n INTEGER)";
    assert!(store.apply(half).await.is_err());
    store.apply("CREATE TABLE three (n INTEGER)").await.unwrap();
}

/// Each migration runs once, and the schemas of users who apply theirs at once don't collide.
async fn many_may_open_a_new_database_at_once<H: Home>() {
    for _ in 0..3 {
        let home = H::empty();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let address = home.url();
            #[expect(clippy::disallowed_methods, reason = "the set is drained below")]
            tasks.spawn(async move {
                let store = Store::<H::Db>::open(&address).await?;
                store.apply("CREATE TABLE IF NOT EXISTS mine (n INTEGER)").await?;
                Ok::<_, StoreError>(store)
            });
        }
        let stores: Vec<_> = tasks.join_all().await.into_iter().map(Result::unwrap).collect();
        let twice = "SELECT count(*) - count(DISTINCT version) FROM mamparo_schema";
        assert_eq!(H::number(&stores[0], twice).await, 0);
        assert!(H::number(&stores[0], "SELECT count(*) FROM mamparo_schema").await > 0);
    }
}

async fn what_was_committed_is_there_after_closing_and_a_closed_store_says_so<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
    let background = store.background();
    store.ping().await.unwrap();
    background.ping().await.unwrap();
    let mut tx = store.begin().await.unwrap();
    inbox::insert(&mut tx, "c", "m", "k", at(0)).await.unwrap();
    store.commit(tx).await.unwrap();
    background.close().await;
    assert!(store.ping().await.is_err(), "clones share their connections");
    assert!(store.begin().await.is_err());
    let again = Store::<H::Db>::open_existing(&home.url()).await.unwrap();
    assert!(inbox::contains(&again, "c", "m").await.unwrap());
    assert_ne!(again.opening(), store.opening());
}

on_every_database!(
    a_newer_schema_is_left_alone,
    the_users_tables_are_applied_whole_or_not_at_all,
    many_may_open_a_new_database_at_once,
    what_was_committed_is_there_after_closing_and_a_closed_store_says_so,
);

#[tokio::test]
async fn messages_are_there_after_closing_and_a_closed_store_says_so() {
    let file = File::new();
    let store = file.open().await;
    store.ping().await.unwrap();
    rows::declare(&store, &queue("q")).await.unwrap();
    rows::publish(&store, "", "q", &message("m"), at(0)).await.unwrap();
    store.close().await;
    assert!(store.ping().await.is_err());
    assert!(rows::depth(&store, "q").await.is_err());
    let again = SqliteStore::open_existing(&file.address()).await.unwrap();
    assert_eq!(rows::depth(&again, "q").await.unwrap(), 1);
}

/// Compiles only while every operation's future can cross threads in code that does not know the
/// database.
#[test]
fn futures_are_send_in_generic_code() {
    fn send<T: Send>(_: &T) {}
    async fn all<DB: Backend>(store: Store<DB>) -> Result<(), StoreError> {
        let mut tx = store.begin().await?;
        inbox::insert(&mut tx, "c", "m", "k", at(0)).await?;
        outbox::enqueue(&mut tx, &outbox::Event::new("k", "k", Vec::new()), at(0)).await?;
        store.commit(tx).await?;
        let session = outbox::RelaySession::new(&store);
        session.heartbeat(common::LEASE, || at(0)).await?;
        session.read(&[(0, 1)], &[]).await?;
        session.record(&outbox::Report::default(), Some(at(0))).await?;
        attempts::started(&store, "c", "m", common::LEASE, || at(0)).await?;
        let lease = common::LEASE;
        idempotency::claim(&store, "c", "k", "f", lease, lease, || at(0)).await?;
        store.begin_within(lease).await?.rollback().await.ok();
        store.outbox_signal().wait().await;
        Ok(())
    }
    async fn queues<DB: QueueRows>(store: Store<DB>) -> Result<(), StoreError> {
        rows::lease(&store, "q", "o", 1, common::LEASE, || at(0)).await?;
        rows::totals(&store).await?;
        Ok(())
    }
    fn check<DB: Backend>(store: Store<DB>) {
        send(&all(store));
    }
    fn check_queues<DB: QueueRows>(store: Store<DB>) {
        send(&queues(store));
    }
    let _: [fn(SqliteStore); 2] = [check::<sqlx::Sqlite>, check_queues::<sqlx::Sqlite>];
    let _: fn(PostgresStore) = check::<sqlx::Postgres>;
}

//! What only PostgreSQL does: foreign databases and schemas, sessions and their limits, batches that
//! leave locked rows alone.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test")]

mod common;

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use common::at;
use mamparo_store::failed::Status;
use mamparo_store::outbox::{Confirmed, Event, RelaySession, Report};
use mamparo_store::{Class, PostgresStore, SqliteStore, StoreAddress, StoreError, StoreOptions};
use mamparo_store::{failed, idempotency, inbox, outbox};
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

/// An idle relay asks for nothing else most of the time, so this is what an idle service costs.
#[tokio::test]
async fn a_heartbeat_without_news_is_one_statement_and_no_news_is_missed() {
    let database = Database::create();
    let store = PostgresStore::open(&database.url()).await.unwrap();
    let (a, b) = (RelaySession::new(&store), RelaySession::new(&store));
    let lease = common::LEASE;
    let alone = a.heartbeat(lease, at(0)).await.unwrap();
    assert_eq!((alone.held.len(), &alone.relays), (16, &vec![a.owner().to_owned()]));
    assert!(a.renew(lease, at(9), &alone).await.unwrap());
    // Renewed until 19 s: nothing is free for another one, who is seen from then on.
    assert_eq!(b.heartbeat(lease, at(15)).await.unwrap().held, []);
    assert!(!a.renew(lease, at(16), &alone).await.unwrap(), "somebody has come");
    let crowded = a.heartbeat(lease, at(16)).await.unwrap();
    assert!(!a.renew(lease, at(16), &crowded).await.unwrap(), "some of it is another's");
    let surplus = |shard: &u16| crowded.held.iter().find(|held| held.shard == *shard).copied();
    let surplus: Vec<_> = crowded.surplus.iter().filter_map(surplus).collect();
    a.give_back(&surplus).await.unwrap();
    let half = a.heartbeat(lease, at(17)).await.unwrap();
    assert!(half.held.len() == 8 && half.surplus.is_empty(), "{half:?}");
    let other = b.heartbeat(lease, at(17)).await.unwrap();
    assert!(a.renew(lease, at(20), &half).await.unwrap());
    assert!(b.renew(lease, at(20), &other).await.unwrap());
    assert!(a.renew(lease, at(29), &half).await.unwrap());
    assert!(!a.renew(lease, at(30), &half).await.unwrap(), "the other one is dead");
    let whole = a.heartbeat(lease, at(30)).await.unwrap();
    assert_eq!(whole.held.len(), 16);
    assert!(!b.renew(lease, at(31), &other).await.unwrap(), "its shards are another's");
    assert!(!a.renew(lease, at(40), &whole).await.unwrap(), "its own time is over");
    let again = a.heartbeat(lease, at(40)).await.unwrap();
    assert!(!a.renew(lease, at(41), &whole).await.unwrap(), "an older tenure");
    assert!(a.renew(lease, at(42), &again).await.unwrap());
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

/// Waits until somebody waits for a lock of this database, or `task` is over.
async fn until_it_waits<T>(store: &PostgresStore, task: &tokio::task::JoinHandle<T>) {
    let waits = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock'";
    for _ in 0..10_000 {
        let waits: i64 = sqlx::query_scalar(waits).fetch_one(store.reader()).await.unwrap();
        if waits > 0 || task.is_finished() {
            return;
        }
        tokio::task::yield_now().await;
    }
    unreachable!("nobody waits");
}

fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    #[expect(clippy::disallowed_methods, reason = "the test waits for it")]
    tokio::spawn(task)
}

/// A dump reads the history for an hour. Making and dropping its partitions must wait for that, and
/// whoever stands in line for such a lock holds up everybody behind him: no report of a relay could be
/// written.
#[tokio::test]
async fn a_reader_of_history_delays_its_upkeep_and_no_report() {
    let database = Database::create();
    let store = PostgresStore::open(&database.url()).await.unwrap();
    let session = Arc::new(RelaySession::new(&store));
    let tenure = session.heartbeat(common::LEASE, at(0)).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    outbox::enqueue(&mut tx, &Event::new("k", "o-1", Vec::new()), at(0)).await.unwrap();
    store.commit(tx).await.unwrap();
    let rooms: Vec<_> = tenure.held.iter().map(|held| (held.shard, 10)).collect();
    let row = session.read(&rooms, &[]).await.unwrap().remove(0);
    let held = *tenure.held.iter().find(|held| held.shard == row.shard).unwrap();
    let confirmed = vec![Confirmed { row: row.row, held }];

    let mut dump = store.begin().await.unwrap();
    let read = "SELECT count(*) FROM mamparo_outbox_history";
    let _: i64 = sqlx::query_scalar(read).fetch_one(&mut *dump).await.unwrap();
    let upkeep = Arc::clone(&session);
    let upkeep = spawn(async move { upkeep.forget(at(0), at(1)).await });
    until_it_waits(&store, &upkeep).await;
    let report = Report { confirmed, ..Report::default() };
    let written = session.record(&report, Some(at(1)));
    let written = tokio::time::timeout(Duration::from_secs(2), written).await;
    assert_eq!(written.expect("it stands behind the upkeep").unwrap().confirmed, 1);
    assert!(!upkeep.await.unwrap().unwrap(), "it is put off, which is no failure");
    dump.rollback().await.unwrap();
    // Later it is done; what was confirmed meanwhile stays where it is.
    let day = Duration::from_secs(86_400);
    session.forget(at(0), at(0).plus(day)).await.unwrap();
    let partitions = "SELECT count(*) FROM pg_inherits
         WHERE inhparent = 'mamparo_outbox_history'::regclass";
    let partitions: i64 = sqlx::query_scalar(partitions).fetch_one(store.reader()).await.unwrap();
    assert_eq!(partitions, 3, "the rest, the next day's hours and those after them");
}

/// A replayed message fails again in the moment in which its old row is forgotten: the row is the only
/// copy of it.
#[tokio::test]
async fn a_message_that_fails_again_meanwhile_is_not_forgotten() {
    let database = Database::create();
    let store = PostgresStore::open(&database.url()).await.unwrap();
    let message = common::message("m-1");
    let failure = |last: u64| failed::Failure {
        consumer: "orders.saga",
        message: &message,
        reason: "attempts-spent",
        error: "503",
        first_failure: None,
        last_failure: Some(at(last)),
        attempts: 5,
        host: "",
        version: "",
    };
    let mut tx = store.begin().await.unwrap();
    failed::record(&mut tx, &failure(1), at(1)).await.unwrap();
    store.commit(tx).await.unwrap();
    let rows = [failed::list(&store, &failed::Query::default()).await.unwrap()[0].row];
    let target =
        failed::Target { rows: &rows, status: Status::Failed, owner: None, acted_since: None };
    let to = Status::Replayed;
    let acted = failed::Acted { what: "replayed", to, actor: "ana", reason: "", edited_to: None };
    assert_eq!(failed::act(&store, &target, &acted, at(2)).await.unwrap(), 1);

    let mut tx = store.begin().await.unwrap();
    failed::record(&mut tx, &failure(50), at(50)).await.unwrap();
    let janitor = store.background();
    let forgotten = spawn(async move { failed::forget(&janitor, at(40), 10).await });
    until_it_waits(&store, &forgotten).await;
    store.commit(tx).await.unwrap();
    assert_eq!(forgotten.await.unwrap().unwrap(), 0);
    let left = failed::list(&store, &failed::Query::default()).await.unwrap();
    assert_eq!(left.len(), 1, "it has failed and waits for a person");
}

/// Where a role or a database reads backslashes as the standard does not, ids are the same nevertheless.
#[tokio::test]
async fn ids_are_the_same_whatever_a_backslash_means() {
    let database = Database::create();
    let url = format!("{}?options[standard_conforming_strings]=off", database.url());
    let store = PostgresStore::open(&url).await.unwrap();
    let tx = inbox::begin(&store, "c", "it's \\x", "k", at(0)).await.unwrap().unwrap();
    store.commit(tx).await.unwrap();
    assert!(inbox::contains(&store, "c", "it's \\x").await.unwrap());
    assert!(inbox::begin(&store, "c", "it's \\x", "k", at(0)).await.unwrap().is_none());
}

/// 55000 is what the server says when it lets nobody into a database, and what many a statement says
/// that was written wrongly. The first pauses a consumer, the second must not.
#[tokio::test]
async fn only_a_refused_connection_makes_55000_a_database_that_is_away() {
    let database = Database::create();
    let store = PostgresStore::open(&database.url()).await.unwrap();
    store.apply("CREATE SEQUENCE numbers").await.unwrap();
    let early = sqlx::query("SELECT currval('numbers')").execute(store.reader()).await.unwrap_err();
    let code =
        |error: &sqlx::Error| error.as_database_error().unwrap().code().unwrap().into_owned();
    assert_eq!(code(&early), "55000");
    assert_eq!(mamparo_store::class::class_of(&early), Class::Permanent);
    let admin = sqlx::PgPool::connect(&mamparo_testkit::servers::postgres_url()).await.unwrap();
    let closed = format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", database.name());
    sqlx::raw_sql(sqlx::AssertSqlSafe(closed)).execute(&admin).await.unwrap();
    let refused = PostgresStore::open(&database.url()).await.unwrap_err();
    let StoreError::Open { source, .. } = &refused else { panic!("{refused}") };
    assert_eq!(code(source), "55000");
    assert_eq!(refused.class(), Class::Reconnect);
}

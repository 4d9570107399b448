//! Transactions as closures: what runs again, what never does, and whose time is over.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::at;
use common::cutter::{Cut, Cutter};
use mamparo_store::idempotency::{self, Claim, StoredResponse};
use mamparo_store::inbox;
use mamparo_store::{
    Backend, Class, PostgresStore, SqliteStore, Store, StoreAddress, StoreError, StoreOptions,
    Transaction, Witness,
};
use mamparo_testkit::database::Database;
use tokio::sync::Barrier;

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("store")]
    Store(#[from] StoreError),
    #[error("sql")]
    Sql(#[from] sqlx::Error),
    #[error("out of stock")]
    OutOfStock,
}

async fn shop(database: &Database) -> PostgresStore {
    let store = PostgresStore::open(&database.url()).await.unwrap();
    let schema = "CREATE TABLE IF NOT EXISTS stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL);
                  INSERT INTO stock VALUES (1, 10), (2, 10) ON CONFLICT DO NOTHING";
    store.apply(schema).await.unwrap();
    store
}

async fn stock(store: &PostgresStore) -> Vec<i64> {
    sqlx::query_scalar("SELECT n FROM stock ORDER BY id").fetch_all(store.reader()).await.unwrap()
}

#[tokio::test]
async fn a_deadlock_runs_the_whole_work_again_and_both_come_through() {
    let database = Database::create();
    let store = shop(&database).await;
    let (runs, both) = (AtomicU32::new(0), Barrier::new(2));
    let transfer = async |first: i64, second: i64| {
        let mut attempt = 0;
        store
            .transact(async |tx| {
                attempt += 1;
                runs.fetch_add(1, Ordering::SeqCst);
                // The server looks for deadlocks after a second; a test need not wait for that.
                sqlx::query("SET LOCAL deadlock_timeout = '5ms'").execute(&mut **tx).await?;
                take(tx, first).await?;
                if attempt == 1 {
                    both.wait().await;
                }
                take(tx, second).await
            })
            .await
    };
    let (one, other): (Result<(), Failed>, Result<(), Failed>) =
        tokio::join!(transfer(1, 2), transfer(2, 1));
    one.unwrap();
    other.unwrap();
    assert_eq!(stock(&store).await, [8, 8]);
    assert_eq!(runs.load(Ordering::SeqCst), 3, "one of the two ran again");
}

async fn take(tx: &mut sqlx::PgConnection, id: i64) -> Result<(), Failed> {
    sqlx::query("UPDATE stock SET n = n - 1 WHERE id = $1").bind(id).execute(tx).await?;
    Ok(())
}

#[tokio::test]
async fn a_serialization_failure_at_the_commit_runs_again_and_sees_the_other() {
    let database = Database::create();
    let store = shop(&database).await;
    let both = Barrier::new(2);
    // Each takes the last unit if the other shelf still has one: write skew.
    let withdraw = async |from: i64| {
        let mut attempt = 0;
        store
            .transact(async |tx| {
                attempt += 1;
                sqlx::query("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
                    .execute(&mut **tx)
                    .await?;
                let all: i64 = sqlx::query_scalar("SELECT sum(n)::bigint FROM stock")
                    .fetch_one(&mut **tx)
                    .await?;
                if attempt == 1 {
                    both.wait().await;
                }
                if all < 20 {
                    return Err(Failed::OutOfStock);
                }
                take(tx, from).await
            })
            .await
    };
    let (one, other) = tokio::join!(withdraw(1), withdraw(2));
    let refused = [one, other].into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert!(matches!(refused[..], [Failed::OutOfStock]), "{refused:?}");
    assert_eq!(stock(&store).await.iter().sum::<i64>(), 19);
}

#[tokio::test]
async fn three_attempts_and_no_more_and_other_errors_not_even_two() {
    let database = Database::create();
    let store = shop(&database).await;
    for (code, class, expected) in [
        ("40001", Class::RetryWhole, 3),
        ("40P01", Class::RetryWhole, 3),
        ("55P03", Class::LockBusy, 1),
        ("57014", Class::Deadline, 1),
        ("53100", Class::StopIntake, 1),
        ("23505", Class::Duplicate, 1),
        ("22003", Class::Permanent, 1),
        ("40003", Class::OutcomeUnknown, 1),
        ("26000", Class::Reprepare, 2),
    ] {
        let mut runs = 0;
        let failed = store
            .transact(async |tx| {
                runs += 1;
                take(tx, 1).await?;
                let raise = format!("DO $$ BEGIN RAISE SQLSTATE '{code}'; END $$");
                sqlx::raw_sql(sqlx::AssertSqlSafe(raise)).execute(&mut **tx).await?;
                Ok::<_, Failed>(())
            })
            .await
            .unwrap_err();
        assert_eq!(mamparo_store::class::class_within(&failed), Some(class), "{code}");
        assert_eq!(runs, expected, "{code}");
    }
    assert_eq!(stock(&store).await, [10, 10], "all of it was undone");
}

#[tokio::test]
async fn a_refusal_of_the_work_itself_is_rolled_back_on_both_databases() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    store.apply("CREATE TABLE stock (n INTEGER)").await.unwrap();
    let mut runs = 0;
    let refused: Result<(), Failed> = store
        .transact(async |tx| {
            runs += 1;
            sqlx::query("INSERT INTO stock VALUES (1)").execute(&mut **tx).await?;
            Err(Failed::OutOfStock)
        })
        .await;
    assert!(matches!(refused, Err(Failed::OutOfStock)));
    let kept: i64 =
        sqlx::query_scalar("SELECT count(*) FROM stock").fetch_one(store.reader()).await.unwrap();
    assert_eq!((runs, kept), (1, 0));
}

/// PostgreSQL undoes a transaction of which a statement failed, and its COMMIT succeeds all the same.
#[tokio::test]
async fn a_failed_statement_that_was_passed_over_is_no_success() {
    let database = Database::create();
    let store = shop(&database).await;
    let work = async |tx: &mut sqlx::PgConnection| {
        take(tx, 1).await.unwrap();
        let twice = sqlx::query("INSERT INTO stock VALUES (1, 1)").execute(tx).await;
        assert_eq!(mamparo_store::class::class_of(&twice.unwrap_err()), Class::Duplicate);
    };
    let mut bare = store.begin().await.unwrap();
    work(&mut bare).await;
    bare.commit().await.unwrap();
    assert_eq!(stock(&store).await, [10, 10], "a bare commit calls this a success");

    let mut tx = store.begin().await.unwrap();
    work(&mut tx).await;
    let refused = store.commit(tx).await.unwrap_err();
    assert!(matches!(refused, StoreError::Aborted), "{refused}");
}

/// A statement whose table changed under it is prepared anew, in the pool's other connections too.
#[tokio::test]
async fn a_changed_table_costs_one_more_attempt() {
    let database = Database::create();
    let store = shop(&database).await;
    // Everybody has the statement prepared.
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut tx = store.begin().await.unwrap();
        sqlx::query("SELECT * FROM stock").fetch_all(&mut *tx).await.unwrap();
        open.push(tx);
    }
    for tx in open {
        tx.rollback().await.unwrap();
    }
    store.apply("ALTER TABLE stock ADD COLUMN place TEXT").await.unwrap();
    let mut runs = 0;
    let rows: Result<Vec<_>, Failed> = store
        .transact(async |tx| {
            runs += 1;
            Ok(sqlx::query("SELECT * FROM stock").fetch_all(&mut **tx).await?)
        })
        .await;
    assert_eq!(rows.unwrap().len(), 2);
    assert_eq!(runs, 2);
}

/// After a failover every pooled connection may lead to the old primary. The first refusal has them
/// all closed, where otherwise each of them would fail somebody.
#[tokio::test]
async fn a_server_that_only_reads_empties_the_pool() {
    let database = Database::create();
    let store = shop(&database).await;
    let mut old = Vec::new();
    for _ in 0..3 {
        let mut conn = store.reader().acquire().await.unwrap();
        let demote = sqlx::raw_sql("SET default_transaction_read_only = on");
        demote.execute(&mut *conn).await.unwrap();
        old.push(conn);
    }
    drop(old);
    while store.reader().num_idle() < 3 {
        tokio::task::yield_now().await;
    }
    let work = async |tx: &mut Transaction<'_, sqlx::Postgres>| take(tx, 1).await;
    let failed = store.transact(work).await.unwrap_err();
    assert_eq!(mamparo_store::class::class_within(&failed), Some(Class::ReadOnly));
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut tx = store.begin().await.unwrap();
        take(&mut tx, 1).await.unwrap();
        tx.rollback().await.unwrap();
        open.push(store.begin().await.unwrap());
    }
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_unknown_and_its_row_tells() {
    let database = Database::create();
    let (cutter, through) = Cutter::start(&database.url()).await;
    assert!(through.contains(&cutter.address().to_string()));
    shop(&database).await;
    let store = PostgresStore::open(&through).await.unwrap();
    for (cut, happened) in [(Cut::After, true), (Cut::Before, false)] {
        let message_id = format!("{cut:?}");
        let mut runs = 0;
        cutter.cut(cut);
        let unknown: Failed = store
            .transact(async |tx| {
                runs += 1;
                inbox::insert(tx, "orders", &message_id, "k", at(0)).await?;
                take(tx, 1).await
            })
            .await
            .unwrap_err();
        assert!(matches!(unknown, Failed::Store(StoreError::CommitUnknown { .. })), "{unknown:?}");
        assert_eq!(runs, 1, "never run again blindly");
        let witness = Witness::Inbox { consumer: "orders", message_id: &message_id };
        assert_eq!(store.has_committed(witness).await.unwrap(), happened, "{cut:?}");
        // Asking has left nothing behind.
        assert_eq!(inbox::contains(&store, "orders", &message_id).await.unwrap(), happened);
    }
    assert_eq!(stock(&store).await, [9, 10], "the one that was cut off after its COMMIT");
    assert_eq!(cutter.cuts(), 2);
}

/// The server may still be at work on a commit whose client is gone. A no must be final, so asking
/// waits for it.
#[tokio::test]
async fn asking_waits_for_a_commit_that_the_server_still_works_on() {
    let database = Database::create();
    let (cutter, through) = Cutter::start(&database.url()).await;
    let direct = shop(&database).await;
    // A commit that takes as long as we want: a deferred trigger waits for a lock of ours.
    direct
        .apply(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON stock DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION wait()",
        )
        .await
        .unwrap();
    let mut lock = direct.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(7)").execute(&mut *lock).await.unwrap();
    let store = PostgresStore::open(&through).await.unwrap();
    cutter.cut(Cut::After);
    let unknown: Failed = store
        .transact(async |tx| {
            inbox::insert(tx, "orders", "m", "k", at(0)).await?;
            take(tx, 1).await
        })
        .await
        .unwrap_err();
    assert!(matches!(unknown, Failed::Store(StoreError::CommitUnknown { .. })), "{unknown:?}");
    assert!(!inbox::contains(&direct, "orders", "m").await.unwrap(), "looking sees nothing");
    let witness = Witness::Inbox { consumer: "orders", message_id: "m" };
    let asked = direct.has_committed(witness);
    let release = async {
        // Once somebody waits for the inbox row's transaction, let it go on.
        let waiting =
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'
                       AND database IS NULL AND pid IN (SELECT pid FROM pg_stat_activity
                           WHERE datname = current_database())";
        for _ in 0..1_000 {
            let count: i64 = sqlx::query_scalar(waiting).fetch_one(direct.reader()).await.unwrap();
            if count > 0 {
                return lock.rollback().await.unwrap();
            }
        }
        unreachable!("nobody waited");
    };
    let (asked, ()) = tokio::join!(asked, release);
    assert!(asked.unwrap(), "it had happened after all");
}

#[tokio::test]
async fn a_kept_answer_is_witness_of_its_commit() {
    let database = Database::create();
    let (cutter, through) = Cutter::start(&database.url()).await;
    let store = PostgresStore::open(&through).await.unwrap();
    let day = Duration::from_secs(86_400);
    for (cut, happened) in [(Cut::After, true), (Cut::Before, false)] {
        let key = format!("{cut:?}");
        let claim = idempotency::claim(&store, "ada", &key, "f", day, day, at(0)).await.unwrap();
        let Claim::Granted(token) = claim else { unreachable!("{claim:?}") };
        let mut tx = store.begin().await.unwrap();
        let response = StoredResponse { status: 201, headers: Vec::new(), body: Vec::new() };
        idempotency::complete(&mut tx, &token, &response, at(1)).await.unwrap();
        cutter.cut(cut);
        let unknown = store.commit(tx).await.unwrap_err();
        assert_eq!(unknown.class(), Class::OutcomeUnknown);
        assert_eq!(store.has_committed(Witness::Key(&token)).await.unwrap(), happened);
    }
}

/// Lesson row W8: a rollback can fail too, and its connection must not go back to the pool.
#[tokio::test]
async fn lesson_w08_a_connection_whose_rollback_failed_is_never_used_again() {
    let database = Database::create();
    let store = shop(&database).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let failed: Failed = store
            .transact(async |tx| {
                let pid: i32 =
                    sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut **tx).await?;
                take(tx, 1).await?;
                seen.push(pid);
                let kill = sqlx::query("SELECT pg_terminate_backend($1, 5000)").bind(pid);
                kill.execute(store.background().reader()).await?;
                Err::<(), _>(Failed::OutOfStock)
            })
            .await
            .unwrap_err();
        assert!(matches!(failed, Failed::OutOfStock), "the first error counts: {failed:?}");
    }
    let pid: i32 = store
        .transact(async |tx| {
            take(tx, 2).await?;
            let pid = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut **tx).await?;
            Ok::<_, Failed>(pid)
        })
        .await
        .unwrap();
    seen.push(pid);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 4, "four transactions, four connections");
    assert_eq!(stock(&store).await, [10, 9]);
}

#[tokio::test]
async fn the_limits_of_a_transaction_come_from_what_its_caller_has_left() {
    let database = Database::create();
    let store = shop(&database).await;
    let setting = async |tx: &mut sqlx::PgConnection, name: &str| -> String {
        let show = sqlx::AssertSqlSafe(format!("SHOW {name}"));
        sqlx::query_scalar(show).fetch_one(tx).await.unwrap()
    };
    let mut tx = store.begin_within(|| Duration::from_millis(750)).await.unwrap();
    assert_eq!(setting(&mut tx, "statement_timeout").await, "750ms");
    assert_eq!(setting(&mut tx, "lock_timeout").await, "750ms");
    let late = sqlx::query("SELECT pg_sleep(30)").execute(&mut *tx).await.unwrap_err();
    assert_eq!(mamparo_store::class::class_of(&late), Class::Deadline);
    tx.rollback().await.unwrap();
    let mut tx = store.begin_within(Duration::from_secs(3_600)).await.unwrap();
    assert_eq!(setting(&mut tx, "statement_timeout").await, "30s", "never looser than the store's");
    assert_eq!(setting(&mut tx, "lock_timeout").await, "5s");
    assert_eq!(setting(&mut tx, "idle_in_transaction_session_timeout").await, "1min");
    drop(tx);
    let mut plain = store.begin().await.unwrap();
    assert_eq!(setting(&mut plain, "statement_timeout").await, "30s", "nothing sticks");
    assert_eq!(setting(&mut plain, "application_name").await, "mamparo");
    let over = store.begin_within(Duration::from_millis(10)).await.unwrap_err();
    assert!(matches!(over, StoreError::Deadline { .. }), "{over}");
}

#[tokio::test]
async fn the_wait_for_a_connection_ends_with_the_callers_time() {
    let database = Database::create();
    let options = StoreOptions { connections: 1, ..StoreOptions::default() };
    let address = StoreAddress::parse(&database.url()).unwrap();
    let postgres = PostgresStore::open_with(&address, &options).await.unwrap();
    let held = postgres.begin().await.unwrap();
    let late = postgres.begin_within(Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(late.class(), Class::Deadline);
    // Background work has connections of its own, and a request can't take them all.
    postgres.background().begin().await.unwrap().rollback().await.unwrap();
    drop(held);
    let sqlite = SqliteStore::open("sqlite::memory:").await.unwrap();
    let held = sqlite.begin().await.unwrap();
    let late = sqlite.begin_within(Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(late.class(), Class::Deadline);
    drop(held);
    sqlite.begin_within(Duration::from_secs(5)).await.unwrap();
}

/// Compiles only while a transaction that runs again can cross threads, whatever the database: as a
/// closure that owns what it uses, and as a loop over whatever it borrows.
#[test]
fn transactions_that_run_again_are_send_in_generic_code() {
    fn send<T: Send>(_: &T) {}
    async fn closure<DB: Backend>(store: Store<DB>, id: String) -> Result<(), StoreError> {
        store
            .transact(async move |tx| {
                inbox::insert(tx, "c", &id, "k", at(0)).await?;
                Ok(())
            })
            .await
    }
    async fn steps<DB: Backend>(store: &Store<DB>, id: &str) -> Result<(), StoreError> {
        let mut attempts = store.attempts();
        loop {
            let mut tx = attempts.begin().await?;
            let seen = inbox::insert(&mut tx, "c", id, "k", at(0)).await;
            if attempts.end(tx, seen).await?.is_some() {
                return Ok(());
            }
        }
    }
    fn check<DB: Backend>(store: Store<DB>) {
        send(&steps(&store, "m"));
        send(&closure(store, "m".to_owned()));
    }
    let _: fn(PostgresStore) = check::<sqlx::Postgres>;
}

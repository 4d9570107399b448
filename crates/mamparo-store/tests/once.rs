//! Things that happen once: inbox, attempts, idempotency keys.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::time::Duration;

use common::{File, LEASE, at};
use mamparo_core::time::WallTime;
use mamparo_store::attempts::{self, Attempt};
use mamparo_store::idempotency::{self, Claim, ClaimToken, StoredResponse};
use mamparo_store::inbox::{self, Seen};
use mamparo_store::{SqliteStore, StoreError};

const RETENTION: Duration = Duration::from_secs(86_400);

async fn claim(store: &SqliteStore, fingerprint: &str, now: WallTime) -> Claim {
    idempotency::claim(store, "ada", "k", fingerprint, LEASE, RETENTION, now).await.unwrap()
}

async fn granted(store: &SqliteStore, now: WallTime) -> ClaimToken {
    let claim = claim(store, "f", now).await;
    let Claim::Granted(token) = claim else { unreachable!("not granted: {claim:?}") };
    token
}

async fn complete(
    store: &SqliteStore,
    token: &ClaimToken,
    response: &StoredResponse,
) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    idempotency::complete(&mut tx, token, response, at(1)).await?;
    store.commit(tx).await
}

fn created() -> StoredResponse {
    let location = ("location".to_owned(), "/v1/orders/1".to_owned());
    StoredResponse { status: 201, headers: vec![location], body: b"{\"id\":1}".to_vec() }
}

#[tokio::test]
async fn messages_c16_a_message_is_applied_once_and_duplicates_are_counted() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    for expected in [Seen::Fresh, Seen::Duplicate, Seen::Duplicate] {
        let mut tx = store.begin().await.unwrap();
        let seen = inbox::insert(&mut tx, "orders", "m", "order.created", at(0)).await.unwrap();
        assert_eq!(seen, expected);
        store.commit(tx).await.unwrap();
    }
    let mut tx = store.begin().await.unwrap();
    assert_eq!(inbox::insert(&mut tx, "mail", "m", "x", at(0)).await.unwrap(), Seen::Fresh);
    drop(tx);
    assert!(inbox::contains(&store, "orders", "m").await.unwrap());
    assert!(!inbox::contains(&store, "mail", "m").await.unwrap(), "that one was rolled back");
    let row: (String, i64, i64) = sqlx::query_as(
        "SELECT kind, applied_at, duplicates FROM mamparo_inbox WHERE consumer = 'orders'",
    )
    .fetch_one(store.reader())
    .await
    .unwrap();
    assert_eq!(row, ("order.created".to_owned(), at(0).unix_millis(), 2));
    assert_eq!(inbox::forget(&store, at(0), 10).await.unwrap(), 0);
    assert_eq!(inbox::forget(&store, at(1), 10).await.unwrap(), 1);
}

/// The lesson looked first and inserted later: two consumers both saw nothing. Insert-first makes
/// the second one wait for the first's commit and then see it.
#[tokio::test(flavor = "multi_thread")]
async fn lesson_k18_two_consumers_of_one_message_are_never_both_first() {
    let file = File::new();
    let (one, other) = (file.open().await, file.open().await);
    one.apply("CREATE TABLE IF NOT EXISTS effects (n INTEGER NOT NULL)").await.unwrap();
    let apply = async |store: &SqliteStore, id: &str| {
        let mut tx = store.begin().await.unwrap();
        let seen = inbox::insert(&mut tx, "orders", id, "x", at(0)).await.unwrap();
        if seen == Seen::Fresh {
            sqlx::query("INSERT INTO effects VALUES (1)").execute(&mut *tx).await.unwrap();
        }
        store.commit(tx).await.unwrap();
        seen
    };
    for n in 0..20 {
        let id = n.to_string();
        let (left, right) = tokio::join!(apply(&one, &id), apply(&other, &id));
        assert_ne!(left, right, "message {id}");
    }
    let effects: i64 =
        sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(one.reader()).await.unwrap();
    assert_eq!(effects, 20);
}

async fn start(store: &SqliteStore, id: &str, seconds: u64) -> u32 {
    attempts::started(store, "orders", id, LEASE, at(seconds)).await.unwrap()
}

#[tokio::test]
async fn messages_c08_owners_that_died_in_a_message_are_counted_until_one_survives_it() {
    let file = File::new();
    for (earlier, seconds) in (0..3).zip([0, 20, 40]) {
        let process = file.open().await;
        assert_eq!(start(&process, "poison", seconds).await, earlier);
        assert_eq!(start(&process, "innocent", seconds).await, 0);
        attempts::ended(&process, "orders", "innocent", at(seconds)).await.unwrap();
        process.close().await;
    }
    let survivor = file.open().await;
    assert_eq!(start(&survivor, "poison", 60).await, 3);
    let mut tx = survivor.begin().await.unwrap();
    let attempt = Attempt::of(&survivor, "orders", "poison");
    attempts::ended_in(&mut tx, attempt, at(60)).await.unwrap();
    drop(tx);
    assert_eq!(start(&survivor, "poison", 60).await, 3, "the end was rolled back");
    attempts::ended(&survivor, "orders", "poison", at(60)).await.unwrap();
    assert_eq!(start(&file.open().await, "poison", 80).await, 0);
}

#[tokio::test]
async fn messages_c08_copies_in_other_hands_and_starts_that_were_cut_off_are_no_deaths() {
    let file = File::new();
    let replicas = [file.open().await, file.open().await, file.open().await, file.open().await];
    for replica in &replicas {
        assert_eq!(start(replica, "twin", 0).await, 0, "the others are alive");
    }
    // Dropped handlers leave their start behind; the process that says so lives.
    for seconds in [20, 40, 60] {
        assert_eq!(start(&replicas[0], "cut off", seconds).await, 0);
    }
    attempts::renew(&replicas[1], "orders", LEASE, at(9)).await.unwrap();
    assert_eq!(start(&replicas[0], "twin", 10).await, 2, "one of three was renewed");
    attempts::ended(&replicas[0], "orders", "twin", at(10)).await.unwrap();
    assert_eq!(start(&replicas[3], "twin", 19).await, 1, "the renewed one has stopped since");
}

#[tokio::test]
async fn the_second_request_gets_the_first_ones_answer() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    let token = granted(&store, at(0)).await;
    assert_eq!(claim(&store, "f", at(1)).await, Claim::InProgress { until: at(10) });
    complete(&store, &token, &created()).await.unwrap();
    assert_eq!(claim(&store, "f", at(1)).await, Claim::Replay(created()));
    assert_eq!(claim(&store, "f", at(3_600)).await, Claim::Replay(created()));
    let again = complete(&store, &token, &created()).await;
    assert!(matches!(again, Err(StoreError::Settled { .. })), "{again:?}");
    idempotency::release(&store, &token).await.unwrap();
    assert_eq!(claim(&store, "f", at(1)).await, Claim::Replay(created()), "releasing is too late");
}

#[tokio::test]
async fn keys_of_different_callers_never_meet() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    granted(&store, at(0)).await;
    let other = idempotency::claim(&store, "bob", "k", "g", LEASE, RETENTION, at(0)).await.unwrap();
    assert!(matches!(other, Claim::Granted(_)), "{other:?}");
}

#[tokio::test]
async fn messages_c40_the_same_key_with_another_payload_is_refused() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    let token = granted(&store, at(0)).await;
    assert_eq!(claim(&store, "other", at(1)).await, Claim::Mismatch);
    let known = idempotency::fingerprint(&store, "ada", "k").await.unwrap();
    assert_eq!(known.as_deref(), Some("f"));
    assert_eq!(idempotency::fingerprint(&store, "ada", "new").await.unwrap(), None);
    complete(&store, &token, &created()).await.unwrap();
    assert_eq!(claim(&store, "other", at(1)).await, Claim::Mismatch);
}

#[tokio::test]
async fn the_answer_rolls_back_with_the_work() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    let token = granted(&store, at(0)).await;
    let mut tx = store.begin().await.unwrap();
    idempotency::complete(&mut tx, &token, &created(), at(1)).await.unwrap();
    drop(tx);
    assert_eq!(claim(&store, "f", at(1)).await, Claim::InProgress { until: at(10) });
}

#[tokio::test(flavor = "multi_thread")]
async fn of_fifty_concurrent_claims_exactly_one_is_granted() {
    let file = File::new();
    let stores = [file.open().await, file.open().await];
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..50 {
        let store = stores[n % 2].clone();
        #[expect(clippy::disallowed_methods, reason = "the set is drained below")]
        tasks.spawn(async move { claim(&store, "f", at(0)).await });
    }
    let claims = tasks.join_all().await;
    let granted = claims.iter().filter(|claim| matches!(claim, Claim::Granted(_))).count();
    let waiting = claims.iter().filter(|claim| matches!(claim, Claim::InProgress { .. })).count();
    assert_eq!((granted, waiting), (1, 49));
}

#[tokio::test]
async fn an_owner_that_died_is_replaced_after_its_lease_and_fenced_off() {
    let file = File::new();
    let (dead, heir) = (file.open().await, file.open().await);
    let old = granted(&dead, at(0)).await;
    let new = granted(&heir, at(10)).await;
    assert!(new.epoch > old.epoch);
    // The old owner comes back with its work: neither its answer nor its effect may stay.
    dead.apply("CREATE TABLE IF NOT EXISTS effects (n INTEGER NOT NULL)").await.unwrap();
    let mut tx = dead.begin().await.unwrap();
    sqlx::query("INSERT INTO effects VALUES (1)").execute(&mut *tx).await.unwrap();
    let fenced = idempotency::complete(&mut tx, &old, &created(), at(11)).await;
    assert!(matches!(fenced, Err(StoreError::Fenced { .. })), "{fenced:?}");
    drop(tx);
    let effects: i64 =
        sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(heir.reader()).await.unwrap();
    assert_eq!(effects, 0);
    idempotency::release(&dead, &old).await.unwrap();
    assert_eq!(claim(&dead, "f", at(11)).await, Claim::InProgress { until: at(20) });
    complete(&heir, &new, &created()).await.unwrap();
}

#[tokio::test]
async fn a_released_key_is_free_for_the_same_payload_at_once() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    let old = granted(&store, at(0)).await;
    idempotency::release(&store, &old).await.unwrap();
    let new = granted(&store, at(1)).await;
    assert_eq!(new.epoch, old.epoch + 1);
    let fenced = complete(&store, &old, &created()).await;
    assert!(matches!(fenced, Err(StoreError::Fenced { .. })), "{fenced:?}");
}

#[tokio::test]
async fn keys_are_forgotten_after_their_retention() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    let token = granted(&store, at(0)).await;
    complete(&store, &token, &created()).await.unwrap();
    assert_eq!(claim(&store, "other", at(86_399)).await, Claim::Mismatch);
    assert_eq!(idempotency::forget(&store, at(86_399), 10).await.unwrap(), 0);
    assert!(matches!(claim(&store, "other", at(86_400)).await, Claim::Granted(_)));
    assert_eq!(idempotency::forget(&store, at(2 * 86_400), 10).await.unwrap(), 1);
}

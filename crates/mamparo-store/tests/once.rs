//! Things that happen once: inbox, attempts, idempotency keys; one suite, run on every database.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::home::Home;
use common::{LEASE, at};
use mamparo_core::time::WallTime;
use mamparo_store::attempts::{self, Attempt};
use mamparo_store::idempotency::{self, Claim, ClaimToken, StoredResponse};
use mamparo_store::inbox::{self, Seen};
use mamparo_store::{Backend, Store, StoreError};

const RETENTION: Duration = Duration::from_secs(86_400);

async fn claim<DB: Backend>(store: &Store<DB>, fingerprint: &str, now: WallTime) -> Claim {
    idempotency::claim(store, "ada", "k", fingerprint, LEASE, RETENTION, now).await.unwrap()
}

async fn granted<DB: Backend>(store: &Store<DB>, now: WallTime) -> ClaimToken {
    let claim = claim(store, "f", now).await;
    let Claim::Granted(token) = claim else { unreachable!("not granted: {claim:?}") };
    token
}

async fn complete<DB: Backend>(
    store: &Store<DB>,
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

async fn messages_c16_a_message_is_applied_once_and_duplicates_are_counted<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
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
    let row = format!(
        "SELECT count(*) FROM mamparo_inbox WHERE consumer = 'orders' AND kind = 'order.created'
         AND applied_at = {} AND duplicates = 2",
        at(0).unix_millis()
    );
    assert_eq!(H::number(&store, &row).await, 1);
    assert_eq!(inbox::forget(&store, at(0), 10).await.unwrap(), 0);
    assert_eq!(inbox::forget(&store, at(1), 10).await.unwrap(), 1);
}

/// The lesson looked first and inserted later: two consumers both saw nothing, and both applied it.
/// Insert-first makes the second one wait for the first's end, and then it knows.
async fn lesson_k18_looking_first_applies_twice_and_inserting_first_once<H: Home>() {
    let home = H::empty();
    let (one, other) = (home.store().await, home.store().await);
    one.apply("CREATE TABLE IF NOT EXISTS effects (n INTEGER NOT NULL)").await.unwrap();
    let effect = "INSERT INTO effects VALUES (1)";
    let effects = async || H::number(&one, "SELECT count(*) FROM effects").await;

    // The lesson's way.
    let looked =
        tokio::join!(inbox::contains(&one, "orders", "m"), inbox::contains(&other, "orders", "m"));
    for (store, seen) in [(&one, looked.0), (&other, looked.1)] {
        if !seen.unwrap() {
            let mut tx = store.begin().await.unwrap();
            H::run(&mut tx, effect).await;
            inbox::insert(&mut tx, "orders", "m", "x", at(0)).await.unwrap();
            store.commit(tx).await.unwrap();
        }
    }
    assert_eq!(effects().await, 2, "one message, two effects");

    // Ours.
    let apply = async |store: &Store<H::Db>, id: &str| {
        let mut tx = store.begin().await.unwrap();
        let seen = inbox::insert(&mut tx, "orders", id, "x", at(0)).await.unwrap();
        if seen == Seen::Fresh {
            H::run(&mut tx, effect).await;
        }
        store.commit(tx).await.unwrap();
        seen
    };
    for n in 0..20 {
        let id = n.to_string();
        let (left, right) = tokio::join!(apply(&one, &id), apply(&other, &id));
        assert_ne!(left, right, "message {id}");
    }
    assert_eq!(effects().await, 22);
}

/// Whoever comes second waits, and what it then sees is what the first has made of it.
async fn the_second_of_two_waits_for_the_firsts_end<H: Home>() {
    let home = H::empty();
    let (one, other) = (home.store().await, home.store().await);
    for (id, commits, expected) in
        [("kept", true, Seen::Duplicate), ("rolled back", false, Seen::Fresh)]
    {
        let mut first = one.begin().await.unwrap();
        assert_eq!(inbox::insert(&mut first, "orders", id, "x", at(0)).await.unwrap(), Seen::Fresh);
        let second = async {
            let mut tx = other.begin().await.unwrap();
            let seen = inbox::insert(&mut tx, "orders", id, "x", at(0)).await.unwrap();
            other.commit(tx).await.unwrap();
            seen
        };
        let first = async {
            // Long enough for the second to stand at the lock; right however long it takes.
            for _ in 0..20 {
                one.ping().await.unwrap();
            }
            if commits {
                one.commit(first).await.unwrap();
            } else {
                first.rollback().await.unwrap();
            }
        };
        let (seen, ()) = tokio::join!(second, first);
        assert_eq!(seen, expected, "{id}");
    }
}

/// Old rows go in batches, and a row that somebody holds is left for the next one.
async fn forgetting_goes_in_batches_and_waits_for_nobody<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
    let mut tx = store.begin().await.unwrap();
    for n in 0..25 {
        inbox::insert(&mut tx, "orders", &n.to_string(), "x", at(n)).await.unwrap();
    }
    store.commit(tx).await.unwrap();
    let mut forgotten = Vec::new();
    while forgotten.last() != Some(&0) {
        forgotten.push(inbox::forget(&store, at(20), 8).await.unwrap());
    }
    assert_eq!(forgotten, [8, 8, 4, 0]);
    assert_eq!(H::number(&store, "SELECT count(*) FROM mamparo_inbox").await, 5);
}

/// Beginning and inserting at once means the same as one after the other, whatever the texts are.
async fn a_message_may_begin_its_transaction<H: Home>() {
    let home = H::empty();
    let (store, other) = (home.store().await, home.store().await);
    store.apply("CREATE TABLE IF NOT EXISTS effects (n INTEGER NOT NULL)").await.unwrap();
    let effects = async || H::number(&store, "SELECT count(*) FROM effects").await;
    let begin = async |id: &str| inbox::begin(&store, "orders", id, "k", at(0)).await.unwrap();
    let ids =
        ["plain", "'; DROP TABLE effects; --", "\\', E'\\'", "$1 \u{20ac} \u{1f980}", "", "%s"];
    for (n, id) in (1..).zip(ids) {
        let mut tx = begin(id).await.unwrap();
        H::run(&mut tx, "INSERT INTO effects VALUES (1)").await;
        tx.rollback().await.unwrap();
        assert!(!inbox::contains(&store, "orders", id).await.unwrap(), "{id}");
        let mut tx = begin(id).await.unwrap();
        H::run(&mut tx, "INSERT INTO effects VALUES (1)").await;
        store.commit(tx).await.unwrap();
        assert!(begin(id).await.is_none() && begin(id).await.is_none(), "{id}");
        assert!(inbox::contains(&store, "orders", id).await.unwrap(), "{id}");
        assert_eq!(effects().await, n);
    }
    let counted = "SELECT count(*) FROM mamparo_inbox WHERE duplicates = 2 AND kind = 'k'";
    assert_eq!(H::number(&store, counted).await, ids.len() as i64);
    // Of two at once, one is first, and the other one waits for it.
    for n in 0..20 {
        let id = n.to_string();
        let apply = async |store: &Store<H::Db>| {
            let begun = inbox::begin(store, "mail", &id, "k", at(0)).await.unwrap();
            let Some(mut tx) = begun else { return 0 };
            H::run(&mut tx, "INSERT INTO effects VALUES (1)").await;
            store.commit(tx).await.unwrap();
            1
        };
        let (left, right) = tokio::join!(apply(&store), apply(&other));
        assert_eq!(left + right, 1, "message {id}");
    }
    assert_eq!(effects().await, ids.len() as i64 + 20);
}

async fn start<DB: Backend>(store: &Store<DB>, id: &str, seconds: u64) -> u32 {
    attempts::started(store, "orders", id, LEASE, at(seconds)).await.unwrap()
}

async fn messages_c08_owners_that_died_in_a_message_are_counted_until_one_survives_it<H: Home>() {
    let home = H::empty();
    for (earlier, seconds) in (0..3).zip([0, 20, 40]) {
        let process = home.store().await;
        assert_eq!(start(&process, "poison", seconds).await, earlier);
        assert_eq!(start(&process, "innocent", seconds).await, 0);
        attempts::ended(&process, "orders", "innocent", at(seconds)).await.unwrap();
        process.close().await;
    }
    let survivor = home.store().await;
    assert_eq!(start(&survivor, "poison", 60).await, 3);
    let mut tx = survivor.begin().await.unwrap();
    let attempt = Attempt::of(&survivor, "orders", "poison");
    attempts::ended_in(&mut tx, attempt, at(60)).await.unwrap();
    drop(tx);
    assert_eq!(start(&survivor, "poison", 60).await, 3, "the end was rolled back");
    attempts::ended(&survivor, "orders", "poison", at(60)).await.unwrap();
    assert_eq!(start(&home.store().await, "poison", 80).await, 0);
}

async fn messages_c08_copies_in_other_hands_and_starts_that_were_cut_off_are_no_deaths<H: Home>() {
    let home = H::empty();
    let replicas = [home.store().await, home.store().await, home.store().await, home.store().await];
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

async fn the_second_request_gets_the_first_ones_answer<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
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

async fn keys_of_different_callers_never_meet<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
    granted(&store, at(0)).await;
    let other = idempotency::claim(&store, "bob", "k", "g", LEASE, RETENTION, at(0)).await.unwrap();
    assert!(matches!(other, Claim::Granted(_)), "{other:?}");
}

async fn messages_c40_the_same_key_with_another_payload_is_refused<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
    let token = granted(&store, at(0)).await;
    assert_eq!(claim(&store, "other", at(1)).await, Claim::Mismatch);
    let known = idempotency::fingerprint(&store, "ada", "k").await.unwrap();
    assert_eq!(known.as_deref(), Some("f"));
    assert_eq!(idempotency::fingerprint(&store, "ada", "new").await.unwrap(), None);
    complete(&store, &token, &created()).await.unwrap();
    assert_eq!(claim(&store, "other", at(1)).await, Claim::Mismatch);
}

async fn the_answer_rolls_back_with_the_work<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
    let token = granted(&store, at(0)).await;
    let mut tx = store.begin().await.unwrap();
    idempotency::complete(&mut tx, &token, &created(), at(1)).await.unwrap();
    drop(tx);
    assert_eq!(claim(&store, "f", at(1)).await, Claim::InProgress { until: at(10) });
}

async fn of_fifty_concurrent_claims_exactly_one_is_granted<H: Home>() {
    let home = H::empty();
    let stores = [home.store().await, home.store().await];
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

async fn an_owner_that_died_is_replaced_after_its_lease_and_fenced_off<H: Home>() {
    let home = H::empty();
    let (dead, heir) = (home.store().await, home.store().await);
    let old = granted(&dead, at(0)).await;
    let new = granted(&heir, at(10)).await;
    assert!(new.epoch > old.epoch);
    // The old owner comes back with its work: neither its answer nor its effect may stay.
    dead.apply("CREATE TABLE IF NOT EXISTS effects (n INTEGER NOT NULL)").await.unwrap();
    let mut tx = dead.begin().await.unwrap();
    H::run(&mut tx, "INSERT INTO effects VALUES (1)").await;
    let fenced = idempotency::complete(&mut tx, &old, &created(), at(11)).await;
    assert!(matches!(fenced, Err(StoreError::Fenced { .. })), "{fenced:?}");
    drop(tx);
    assert_eq!(H::number(&heir, "SELECT count(*) FROM effects").await, 0);
    idempotency::release(&dead, &old).await.unwrap();
    assert_eq!(claim(&dead, "f", at(11)).await, Claim::InProgress { until: at(20) });
    complete(&heir, &new, &created()).await.unwrap();
}

async fn a_released_key_is_free_for_the_same_payload_at_once<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
    let old = granted(&store, at(0)).await;
    idempotency::release(&store, &old).await.unwrap();
    let new = granted(&store, at(1)).await;
    assert_eq!(new.epoch, old.epoch + 1);
    let fenced = complete(&store, &old, &created()).await;
    assert!(matches!(fenced, Err(StoreError::Fenced { .. })), "{fenced:?}");
}

async fn keys_are_forgotten_after_their_retention<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
    let token = granted(&store, at(0)).await;
    complete(&store, &token, &created()).await.unwrap();
    assert_eq!(claim(&store, "other", at(86_399)).await, Claim::Mismatch);
    assert_eq!(idempotency::forget(&store, at(86_399), 10).await.unwrap(), 0);
    assert!(matches!(claim(&store, "other", at(86_400)).await, Claim::Granted(_)));
    assert_eq!(idempotency::forget(&store, at(2 * 86_400), 10).await.unwrap(), 1);
}

/// A lease begins when it is handed out, not when it was asked for: the wait for another owner of the
/// key must not use it up.
async fn messages_c28_a_lease_is_whole_when_it_is_handed_out_after_a_wait<H: Home>() {
    let home = H::empty();
    let (one, other) = (home.store().await, home.store().await);
    let old = granted(&one, at(0)).await;
    let clock = AtomicU64::new(15);
    let now = || at(clock.load(Ordering::SeqCst));
    // Somebody holds the row for longer than a lease is long.
    let mut holder = one.begin().await.unwrap();
    let touch = "UPDATE mamparo_idempotency SET epoch = epoch";
    H::run(&mut holder, touch).await;
    let claimed = idempotency::claim(&other, "ada", "k", "f", LEASE, RETENTION, now);
    let release = async {
        for _ in 0..20 {
            one.ping().await.unwrap();
        }
        clock.store(40, Ordering::SeqCst);
        holder.rollback().await.unwrap();
    };
    let (claimed, ()) = tokio::join!(claimed, release);
    assert!(matches!(claimed.unwrap(), Claim::Granted(token) if token.epoch > old.epoch));
    assert_eq!(claim(&one, "f", at(45)).await, Claim::InProgress { until: at(50) });
}

on_every_database!(
    messages_c16_a_message_is_applied_once_and_duplicates_are_counted,
    messages_c08_owners_that_died_in_a_message_are_counted_until_one_survives_it,
    messages_c08_copies_in_other_hands_and_starts_that_were_cut_off_are_no_deaths,
    the_second_request_gets_the_first_ones_answer,
    keys_of_different_callers_never_meet,
    messages_c40_the_same_key_with_another_payload_is_refused,
    the_answer_rolls_back_with_the_work,
    of_fifty_concurrent_claims_exactly_one_is_granted,
    an_owner_that_died_is_replaced_after_its_lease_and_fenced_off,
    a_released_key_is_free_for_the_same_payload_at_once,
    keys_are_forgotten_after_their_retention,
    lesson_k18_looking_first_applies_twice_and_inserting_first_once,
    the_second_of_two_waits_for_the_firsts_end,
    a_message_may_begin_its_transaction,
    forgetting_goes_in_batches_and_waits_for_nobody,
    messages_c28_a_lease_is_whole_when_it_is_handed_out_after_a_wait,
);

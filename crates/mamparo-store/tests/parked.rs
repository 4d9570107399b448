//! Messages that wait in the service's database: one suite, run on every database.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::time::Duration;

use mamparo_store::inbox::Seen;
use mamparo_store::parked::{self, Behind, Claimed, Entry, Failure, Wait};
use mamparo_store::queue::QueueMessage;
use mamparo_store::{Backend, Store, inbox};

mod common;

use common::{LEASE, at};

const CONSUMER: &str = "orders.saga";

fn message(id: &str, key: &str) -> QueueMessage {
    QueueMessage { key: key.to_owned(), ..common::message(id) }
}

fn wait(due: u64, attempts: u32, now: u64) -> Wait {
    Wait { due: at(due), attempts, now: at(now) }
}

fn failure(error: &str) -> Failure {
    Failure { error: error.to_owned(), host: "h".to_owned(), version: "1".to_owned() }
}

async fn park<DB: Backend>(store: &Store<DB>, message: &QueueMessage, wait: &Wait) -> bool {
    let mut tx = store.begin().await.unwrap();
    let parked = parked::park(&mut tx, CONSUMER, message, wait, &failure("503")).await.unwrap();
    store.commit(tx).await.unwrap();
    parked
}

async fn follow<DB: Backend>(store: &Store<DB>, message: &QueueMessage, now: u64) -> Behind {
    let mut tx = store.begin().await.unwrap();
    let behind = parked::park_behind(&mut tx, CONSUMER, message, &wait(now, 0, now)).await.unwrap();
    store.commit(tx).await.unwrap();
    behind
}

async fn claim<DB: Backend>(store: &Store<DB>, owner: &str, now: u64) -> Vec<Claimed> {
    parked::claim(store, CONSUMER, owner, 10, LEASE, at(now)).await.unwrap()
}

async fn remove<DB: Backend>(store: &Store<DB>, key: &str, claimed: &Claimed) -> bool {
    let mut tx = store.begin().await.unwrap();
    let claim = (claimed.row, claimed.epoch);
    let removed = parked::remove(&mut tx, CONSUMER, key, claim).await.unwrap();
    store.commit(tx).await.unwrap();
    removed
}

fn ids(claimed: &[Claimed]) -> Vec<&str> {
    claimed.iter().map(|claimed| claimed.message.id.as_str()).collect()
}

async fn never_early_and_one_row_an_id<DB: Backend>(store: Store<DB>) {
    let created = message("m-1", "");
    assert!(park(&store, &created, &wait(30, 1, 0)).await);
    assert!(!park(&store, &created, &wait(99, 2, 1)).await, "a copy is the same row");
    assert_eq!(parked::next_due(&store, CONSUMER).await.unwrap(), Some(at(30)));
    let early = at(30).minus(Duration::from_millis(1));
    let none = parked::claim(&store, CONSUMER, "a", 10, LEASE, early).await.unwrap();
    assert!(none.is_empty(), "never early");
    let claimed = claim(&store, "a", 30).await;
    assert_eq!(claimed[0].message, created, "it comes back as it went");
    assert!(!claimed[0].suspect);
    assert!(claim(&store, "b", 31).await.is_empty(), "it is in somebody's hand");
    // It fails again: the history grows, the epoch fences the old hand-out.
    let mut again = created.clone();
    again.headers.insert("x-attempts".to_owned(), "2".to_owned());
    let old = (claimed[0].row, claimed[0].epoch);
    let stays = parked::park_again(&store, old, &again, &wait(60, 2, 31), &failure("504")).await;
    assert!(stays.unwrap());
    let twice = parked::park_again(&store, old, &again, &wait(90, 3, 32), &failure("x")).await;
    assert!(!twice.unwrap(), "the lease is over");
    let listed = parked::list(&store, CONSUMER, 0, 10).await.unwrap();
    assert_eq!((listed.len(), listed[0].attempts, listed[0].due), (1, 2, at(60)));
    assert_eq!(listed[0].message, again);
    let history: serde_json::Value = serde_json::from_str(&listed[0].history).unwrap();
    let told = |n: usize| (history[n]["error"].as_str(), history[n]["attempt"].as_u64());
    assert_eq!((told(0), told(1)), ((Some("503"), Some(1)), (Some("504"), Some(2))));
    assert_eq!(parked::stats(&store, CONSUMER).await.unwrap(), (1, Some(at(0))));
    assert_eq!(parked::make_due(&store, CONSUMER, Some("m-1"), None, at(33)).await.unwrap(), 1);
    let claimed = claim(&store, "a", 33).await;
    assert!(remove(&store, "", &claimed[0]).await);
    assert!(!remove(&store, "", &claimed[0]).await);
    assert_eq!(parked::stats(&store, CONSUMER).await.unwrap(), (0, None));
    assert_eq!(parked::next_due(&store, CONSUMER).await.unwrap(), None);
}

async fn a_lost_lease_makes_a_suspect<DB: Backend>(store: Store<DB>) {
    park(&store, &message("m-1", ""), &wait(0, 1, 0)).await;
    let first = claim(&store, "a", 0).await;
    let rows = [first[0].row];
    assert_eq!(parked::renew(&store, &rows, "b", LEASE, at(5)).await.unwrap(), 0, "not b's");
    assert_eq!(parked::renew(&store, &rows, "a", LEASE, at(5)).await.unwrap(), 1);
    assert!(claim(&store, "b", 12).await.is_empty(), "renewed");
    let second = claim(&store, "b", 15).await;
    assert!(second[0].suspect, "its holder has gone silent");
    assert!(!parked::release(&store, (first[0].row, first[0].epoch), at(15)).await.unwrap());
    assert!(!remove(&store, "", &first[0]).await, "a revived zombie changes nothing");
    assert_eq!(parked::release_all(&store, CONSUMER, "b", at(16)).await.unwrap(), 1);
    let third = claim(&store, "a", 16).await;
    assert_eq!(ids(&third), ["m-1"]);
    // Its handler came to an end, so it kills nobody.
    let hand = (third[0].row, third[0].epoch);
    let (again, failed) = (message("m-1", ""), failure("x"));
    let stays = parked::park_again(&store, hand, &again, &wait(20, 2, 16), &failed).await;
    assert!(stays.unwrap());
    assert!(!claim(&store, "b", 20).await[0].suspect, "it is above suspicion again");
    assert_eq!(parked::make_due(&store, CONSUMER, None, None, at(21)).await.unwrap(), 0);
    assert!(claim(&store, "a", 21).await.is_empty(), "what is in hand stays there");
}

async fn lesson_k14_followers_line_up_behind_their_key<DB: Backend>(store: Store<DB>) {
    let (created, paid, cancelled) =
        (message("created", "o-1"), message("paid", "o-1"), message("cancelled", "o-1"));
    assert_eq!(follow(&store, &created, 0).await, Behind::Free, "nothing of the key waits");
    park(&store, &created, &wait(30, 1, 0)).await;
    assert_eq!(follow(&store, &paid, 1).await, Behind::Waits);
    assert_eq!(follow(&store, &cancelled, 2).await, Behind::Waits);
    assert_eq!(follow(&store, &paid, 3).await, Behind::Waits, "a copy changes nothing");
    assert_eq!(follow(&store, &message("other", "o-2"), 3).await, Behind::Free);
    assert_eq!(follow(&store, &message("keyless", ""), 3).await, Behind::Free);
    let asked = [("x", "o-1"), ("y", "o-2"), ("created", ""), ("z", "")];
    let mut known = parked::look_up(&store, CONSUMER, &asked).await.unwrap();
    known.sort_unstable();
    assert_eq!(known, ["created", "x"]);
    assert!(parked::look_up(&store, "another", &asked).await.unwrap().is_empty());
    // The inbox refuses what has to wait, in the same statement.
    for (id, key, expected) in
        [("x", "o-1", None), ("y", "o-2", Some(Seen::Fresh)), ("y", "o-2", Some(Seen::Duplicate))]
    {
        let mut tx = store.begin().await.unwrap();
        let entry = Entry { consumer: CONSUMER, message_id: id, kind: "k", key };
        assert_eq!(parked::insert_inbox(&mut tx, entry, at(4)).await.unwrap(), expected, "{id}");
        store.commit(tx).await.unwrap();
    }
    assert!(!inbox::contains(&store, CONSUMER, "x").await.unwrap());
    assert!(claim(&store, "a", 29).await.is_empty(), "followers are due, their first is not");
    for id in ["created", "paid", "cancelled"] {
        let claimed = claim(&store, "a", 30).await;
        assert_eq!(ids(&claimed), [id], "one at a time and in order");
        assert!(claim(&store, "b", 30).await.is_empty());
        assert!(remove(&store, "o-1", &claimed[0]).await);
    }
    assert_eq!(follow(&store, &message("late", "o-1"), 40).await, Behind::Free);
}

/// Followers that arrive while the first of their key leaves are never left without a first.
async fn nobody_is_left_behind<DB: Backend>(store: Store<DB>) {
    let mut waits = 0;
    for round in 0..30 {
        let key = format!("o-{round}");
        park(&store, &message(&format!("first-{round}"), &key), &wait(0, 1, 0)).await;
        let first = claim(&store, "a", 0).await;
        let behind = message(&format!("behind-{round}"), &key);
        let (removed, followed) =
            tokio::join!(remove(&store, &key, &first[0]), follow(&store, &behind, 0));
        assert!(removed);
        if followed == Behind::Waits {
            waits += 1;
            let next = claim(&store, "a", 0).await;
            assert_eq!(ids(&next), [behind.id.as_str()], "it became the first");
            assert!(remove(&store, &key, &next[0]).await);
        }
    }
    assert_eq!(parked::stats(&store, CONSUMER).await.unwrap().0, 0, "{waits} of 30 waited");
}

async fn several_processes_share_the_rows<DB: Backend>(store: Store<DB>) {
    for n in 0..40 {
        park(&store, &message(&format!("m-{n:02}"), &format!("k-{n}")), &wait(n, 1, 0)).await;
    }
    let mut all = Vec::new();
    let claims = tokio::join!(
        claim(&store, "a", 100),
        claim(&store, "b", 100),
        claim(&store, "c", 100),
        claim(&store, "d", 100)
    );
    for claimed in [&claims.0, &claims.1, &claims.2, &claims.3] {
        all.extend(ids(claimed));
    }
    let last = claim(&store, "e", 100).await;
    all.extend(ids(&last));
    all.sort_unstable();
    let expected: Vec<String> = (0..40).map(|n| format!("m-{n:02}")).collect();
    assert_eq!(all, expected, "each to one of them");
}

/// What goes wrong may say anything. A row that can't be written for it would leave the message in its
/// queue, and its handler would fail on it every second for ever.
async fn an_error_with_a_zero_byte_keeps_nobody_from_waiting<DB: Backend>(store: Store<DB>) {
    let mut tx = store.begin().await.unwrap();
    let said = Failure {
        error: "field 3: \0".to_owned(),
        host: "h\0".to_owned(),
        version: "1\0".to_owned(),
    };
    let created = message("m-1", "o-1");
    assert!(parked::park(&mut tx, CONSUMER, &created, &wait(0, 1, 0), &said).await.unwrap());
    store.commit(tx).await.unwrap();
    let claimed = claim(&store, "a", 0).await;
    let hand = (claimed[0].row, claimed[0].epoch);
    assert!(parked::park_again(&store, hand, &created, &wait(9, 2, 1), &said).await.unwrap());
    let listed = parked::list(&store, CONSUMER, 0, 10).await.unwrap();
    assert!(listed[0].history.contains("field 3: \u{fffd}"), "{}", listed[0].history);
}

macro_rules! suite {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $name() {
                let file = super::common::File::new();
                super::$name(file.open().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                let database = mamparo_testkit::database::Database::create();
                let store = mamparo_store::PostgresStore::open(&database.url()).await.unwrap();
                super::$name(store).await;
            })+
        }
    };
}

suite!(
    never_early_and_one_row_an_id,
    a_lost_lease_makes_a_suspect,
    lesson_k14_followers_line_up_behind_their_key,
    nobody_is_left_behind,
    several_processes_share_the_rows,
    an_error_with_a_zero_byte_keeps_nobody_from_waiting,
);

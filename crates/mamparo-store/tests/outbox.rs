//! Outbox rows: what commits is claimed, per key in order, by one relay at a time.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{File, LEASE, at};
use mamparo_store::outbox::{self, Claimed, Event};
use mamparo_store::{SqliteStore, StoreError};

fn event(id: &str, key: &str) -> Event {
    Event { id: id.to_owned(), ..Event::new("order.created", key, b"{}".to_vec()) }
}

async fn enqueue(store: &SqliteStore, events: &[Event]) {
    let mut tx = store.begin().await.unwrap();
    for event in events {
        outbox::enqueue(&mut tx, event, at(0)).await.unwrap();
    }
    store.commit(tx).await.unwrap();
}

fn ids(claimed: &[Claimed]) -> Vec<&str> {
    claimed.iter().map(|claimed| claimed.event.id.as_str()).collect()
}

async fn confirm(store: &SqliteStore, owner: &str, claimed: &[Claimed]) -> u64 {
    let rows: Vec<i64> = claimed.iter().map(|claimed| claimed.row).collect();
    outbox::confirmed(store, owner, &rows, at(1)).await.unwrap()
}

#[tokio::test]
async fn an_event_leaves_if_and_only_if_its_transaction_commits() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    let mut tx = store.begin().await.unwrap();
    outbox::enqueue(&mut tx, &event("dropped", "k"), at(0)).await.unwrap();
    drop(tx);
    let mut kept = event("kept", "k");
    kept.headers = BTreeMap::from([("traceparent".to_owned(), "00-1-2-01".to_owned())]);
    enqueue(&store, std::slice::from_ref(&kept)).await;
    let claimed = outbox::claim(&store, "r", 10, LEASE, at(1)).await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].event, kept);
    assert_eq!((claimed[0].enqueued, claimed[0].tries), (at(0), 0));
    assert_eq!(confirm(&store, "r", &claimed).await, 1);
    assert!(outbox::claim(&store, "r", 10, LEASE, at(99)).await.unwrap().is_empty());
}

/// A relay with a cursor would have passed the number of the transaction that commits last. Here the
/// second one waits for the first, and every row is found by its status.
#[tokio::test]
async fn messages_c17_rows_that_commit_late_are_delivered_too() {
    let file = File::new();
    let (one, other) = (file.open().await, file.open().await);
    enqueue(&one, &[event("0", "a")]).await;
    let first = outbox::claim(&one, "r", 10, LEASE, at(1)).await.unwrap();
    assert_eq!(confirm(&one, "r", &first).await, 1);

    let mut early = one.begin().await.unwrap();
    outbox::enqueue(&mut early, &event("early", "a"), at(1)).await.unwrap();
    let late = async {
        let mut late = other.begin().await.unwrap();
        outbox::enqueue(&mut late, &event("late", "b"), at(1)).await.unwrap();
        other.commit(late).await.unwrap();
    };
    let between = async {
        // Nothing uncommitted is seen, and looking does not wait for the writer.
        assert_eq!(outbox::stats(&other).await.unwrap().pending, 0);
        assert!(outbox::claim(&other, "r", 10, LEASE, at(1)).await.unwrap().is_empty());
        one.commit(early).await.unwrap();
    };
    tokio::join!(late, between);
    let claimed = outbox::claim(&one, "r", 10, LEASE, at(1)).await.unwrap();
    assert_eq!(ids(&claimed), ["early", "late"]);
}

#[tokio::test]
async fn messages_c18_a_copy_of_the_file_keeps_delivering() {
    let (file, copy) = (File::new(), File::new());
    let store = file.open().await;
    enqueue(&store, &[event("0", "a"), event("1", "b")]).await;
    let claimed = outbox::claim(&store, "r", 1, LEASE, at(1)).await.unwrap();
    assert_eq!(confirm(&store, "r", &claimed).await, 1);
    store.close().await;
    std::fs::copy(file.path(), copy.path()).unwrap();
    let restored = copy.open().await;
    let claimed = outbox::claim(&restored, "r", 10, LEASE, at(2)).await.unwrap();
    assert_eq!(ids(&claimed), ["1"]);
}

#[tokio::test]
async fn messages_c19_an_idle_reader_does_not_delay_the_relay() {
    let file = File::new();
    let store = file.open().await;
    let mut idle = store.reader().begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM mamparo_outbox").execute(&mut *idle).await.unwrap();
    enqueue(&store, &[event("0", "a")]).await;
    assert_eq!(outbox::claim(&store, "r", 10, LEASE, at(1)).await.unwrap().len(), 1);
    drop(idle);
}

#[tokio::test]
async fn only_the_first_row_of_a_key_is_handed_out() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    enqueue(&store, &[event("a1", "a"), event("a2", "a"), event("b1", "b"), event("a3", "a")])
        .await;
    let first = outbox::claim(&store, "r", 10, LEASE, at(0)).await.unwrap();
    assert_eq!(ids(&first), ["a1", "b1"]);
    // In flight: nothing later of its key, not even for its own relay.
    assert!(outbox::claim(&store, "r", 10, LEASE, at(0)).await.unwrap().is_empty());
    assert_eq!(confirm(&store, "r", &first).await, 2);
    let second = outbox::claim(&store, "r", 10, LEASE, at(0)).await.unwrap();
    assert_eq!(ids(&second), ["a2"]);
}

#[tokio::test]
async fn events_without_a_key_do_not_wait_for_each_other() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    enqueue(&store, &[event("1", ""), event("2", ""), event("3", "")]).await;
    let claimed = outbox::claim(&store, "r", 10, LEASE, at(0)).await.unwrap();
    assert_eq!(ids(&claimed), ["1", "2", "3"]);
    outbox::postpone(&store, "r", claimed[0].row, at(60), "full").await.unwrap();
    assert_eq!(outbox::stats(&store).await.unwrap().parked, 1);
}

#[tokio::test]
async fn a_refused_row_parks_its_key_and_nothing_else() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    enqueue(&store, &[event("a1", "a"), event("a2", "a"), event("b1", "b")]).await;
    let claimed = outbox::claim(&store, "r", 10, LEASE, at(0)).await.unwrap();
    outbox::postpone(&store, "r", claimed[0].row, at(60), "no queue takes it").await.unwrap();
    assert_eq!(confirm(&store, "r", &claimed[1..]).await, 1);
    assert!(outbox::claim(&store, "r", 10, LEASE, at(59)).await.unwrap().is_empty());
    let stats = outbox::stats(&store).await.unwrap();
    assert_eq!((stats.pending, stats.parked, stats.oldest), (2, 2, Some(at(0))));

    let listed = outbox::list(&store, 10).await.unwrap();
    assert_eq!((listed[0].due, listed[0].tries), (at(60), 1));
    assert_eq!(listed[0].error.as_deref(), Some("no queue takes it"));
    assert_eq!(outbox::requeue(&store, &[claimed[0].row], at(5)).await.unwrap(), 1);
    let again = outbox::claim(&store, "r", 10, LEASE, at(5)).await.unwrap();
    assert_eq!((again[0].event.id.as_str(), again[0].tries), ("a1", 1));
    assert_eq!(confirm(&store, "r", &again).await, 1);
    assert_eq!(outbox::stats(&store).await.unwrap().parked, 0);
}

/// Four relays on four connections to one file: each key's events come out once and in order.
#[tokio::test(flavor = "multi_thread")]
async fn messages_c20_order_per_key_holds_under_parallel_relays() {
    let file = File::new();
    let writer = file.open().await;
    let events: Vec<Event> =
        (0..120).map(|n| event(&format!("{n:03}"), &format!("k{}", n % 7))).collect();
    enqueue(&writer, &events).await;
    let published = std::sync::Mutex::new(Vec::<(String, String)>::new());
    let relay = async |owner: &str, slowness: u32| {
        let store = file.open().await;
        while outbox::stats(&store).await.unwrap().pending > 0 {
            let claimed = outbox::claim(&store, owner, 3, LEASE, at(1)).await.unwrap();
            // A slow relay publishes long after it claimed; the fast ones would overtake it.
            for _ in 0..slowness {
                outbox::stats(&store).await.unwrap();
            }
            for claimed in &claimed {
                let event = &claimed.event;
                published.lock().unwrap().push((event.key.clone(), event.id.clone()));
            }
            assert_eq!(confirm(&store, owner, &claimed).await, claimed.len() as u64);
        }
    };
    tokio::join!(relay("1", 0), relay("2", 30), relay("3", 0), relay("4", 7));
    let published = published.into_inner().unwrap();
    assert_eq!(published.len(), events.len());
    let mut by_key = BTreeMap::<String, Vec<String>>::new();
    for (key, id) in published {
        by_key.entry(key).or_default().push(id);
    }
    for (key, ids) in by_key {
        assert!(ids.is_sorted(), "{key}: {ids:?}");
    }
}

#[tokio::test]
async fn messages_c21_a_dead_relay_s_rows_go_again_under_the_same_id_and_its_reports_are_void() {
    let file = File::new();
    let (dead, heir) = (file.open().await, file.open().await);
    enqueue(&dead, &[event("a1", "a"), event("a2", "a")]).await;
    let first = outbox::claim(&dead, "dead", 10, LEASE, at(0)).await.unwrap();
    assert!(outbox::claim(&heir, "heir", 10, LEASE, at(9)).await.unwrap().is_empty());
    let second = outbox::claim(&heir, "heir", 10, LEASE, at(10)).await.unwrap();
    assert_eq!((ids(&first), ids(&second)), (vec!["a1"], vec!["a1"]));
    assert_eq!(second[0].tries, 1);
    assert_eq!(confirm(&dead, "dead", &first).await, 0);
    let fenced = outbox::postpone(&dead, "dead", first[0].row, at(99), "late").await;
    assert!(matches!(fenced, Err(StoreError::Fenced { .. })), "{fenced:?}");
    assert_eq!(confirm(&heir, "heir", &second).await, 1);
}

#[tokio::test]
async fn messages_c28_a_claim_that_was_waited_for_is_measured_from_when_it_was_got() {
    let file = File::new();
    let (one, other) = (file.open().await, file.open().await);
    enqueue(&one, &[event("a", "a")]).await;
    // Each look at this clock is 8 s later; the row is handed out at the second one.
    let looks = std::sync::atomic::AtomicU64::new(0);
    let clock = || at(8 * looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    assert_eq!(outbox::claim(&one, "one", 1, LEASE, clock).await.unwrap().len(), 1);
    assert!(outbox::claim(&other, "other", 1, LEASE, at(17)).await.unwrap().is_empty());
    assert_eq!(outbox::claim(&other, "other", 1, LEASE, at(18)).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_relay_that_stops_in_order_gives_its_rows_back_at_once() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    enqueue(&store, &[event("a", "a"), event("b", "b"), event("c", "c")]).await;
    let held = outbox::claim(&store, "stops", 2, LEASE, at(0)).await.unwrap();
    assert_eq!(confirm(&store, "stops", &held[..1]).await, 1);
    assert_eq!(outbox::release_all(&store, "stops").await.unwrap(), 1);
    let claimed = outbox::claim(&store, "next", 10, LEASE, at(0)).await.unwrap();
    assert_eq!(ids(&claimed), ["b", "c"]);
}

#[tokio::test]
async fn confirmed_rows_are_forgotten_and_pending_ones_never() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    enqueue(&store, &[event("a", "a"), event("b", "b"), event("c", "c")]).await;
    let claimed = outbox::claim(&store, "r", 2, LEASE, at(0)).await.unwrap();
    assert_eq!(confirm(&store, "r", &claimed).await, 2);
    assert_eq!(outbox::forget(&store, at(1), 10).await.unwrap(), 0);
    assert_eq!(outbox::forget(&store, at(2), 1).await.unwrap(), 1);
    assert_eq!(outbox::forget(&store, at(99), 10).await.unwrap(), 1);
    assert_eq!(outbox::stats(&store).await.unwrap().pending, 1);
}

#[tokio::test]
async fn a_row_that_is_deleted_by_hand_frees_its_key() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    enqueue(&store, &[event("a1", "a"), event("a2", "a"), event("a3", "a")]).await;
    store.apply("DELETE FROM mamparo_outbox WHERE id = 'a1'").await.unwrap();
    let claimed = outbox::claim(&store, "r", 10, LEASE, at(0)).await.unwrap();
    assert_eq!(ids(&claimed), ["a2"]);
    store.apply("DELETE FROM mamparo_outbox WHERE id = 'a3'").await.unwrap();
    assert_eq!(confirm(&store, "r", &claimed).await, 1);
    assert_eq!(outbox::stats(&store).await.unwrap().pending, 0);
    enqueue(&store, &[event("a4", "a")]).await;
    assert_eq!(ids(&outbox::claim(&store, "r", 10, LEASE, at(0)).await.unwrap()), ["a4"]);
}

#[tokio::test]
async fn numbers_grow_with_commits_and_are_never_used_again() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    let mut rows = BTreeSet::new();
    for n in 0..5 {
        enqueue(&store, &[event(&n.to_string(), "k")]).await;
        let claimed = outbox::claim(&store, "r", 1, LEASE, at(0)).await.unwrap();
        assert!(rows.last().is_none_or(|last| *last < claimed[0].row));
        assert!(rows.insert(claimed[0].row));
        assert_eq!(confirm(&store, "r", &claimed).await, 1);
        assert_eq!(outbox::forget(&store, at(9), 10).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn a_commit_wakes_every_relay_and_none_is_missed() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    let (mut one, mut other) = (store.outbox_signal(), store.outbox_signal());
    // Committed before anybody waits: the wake-up is kept.
    enqueue(&store, &[event("a", "a")]).await;
    one.wait().await;
    other.wait().await;
    let clone = store.clone();
    let events = [event("b", "b")];
    tokio::join!(one.wait(), enqueue(&clone, &events));
    other.wait().await;
    tokio::select! {
        biased;
        () = other.wait() => unreachable!("nothing was committed since"),
        () = std::future::ready(()) => {}
    }
}

#[tokio::test]
async fn the_same_event_id_twice_is_an_error_not_a_second_event() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    enqueue(&store, &[event("a", "a")]).await;
    let mut tx = store.begin().await.unwrap();
    assert!(outbox::enqueue(&mut tx, &event("a", "a"), at(0)).await.is_err());
}

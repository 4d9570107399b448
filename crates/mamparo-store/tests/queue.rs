//! Queue rows: leases over several stores on one file, TTL, routing, people's verbs, the books.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::{File, LEASE, at, message, queue};
use mamparo_store::queue::{self as rows, QueueMessage, QueueSpec, Selection};
use mamparo_store::{SqliteStore, StoreError};

async fn publish_to(store: &SqliteStore, queue: &str, ids: impl IntoIterator<Item = String>) {
    for id in ids {
        assert_eq!(rows::publish(store, "", queue, &message(&id), at(0)).await.unwrap(), 1);
    }
}

async fn all_balanced(store: &SqliteStore) {
    for totals in rows::totals(store).await.unwrap() {
        assert!(totals.balanced(), "{totals:?}");
    }
}

fn everything() -> Selection {
    Selection { max: 1_000, ..Selection::default() }
}

#[tokio::test]
async fn a_message_comes_out_as_it_went_in_and_in_order() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    rows::declare(&store, &queue("q")).await.unwrap();
    publish_to(&store, "q", (0..5).map(|n| n.to_string())).await;
    let leased = rows::lease(&store, "q", "me", 3, LEASE, at(0)).await.unwrap();
    let ids: Vec<_> = leased.iter().map(|leased| leased.message.id.as_str()).collect();
    assert_eq!(ids, ["0", "1", "2"]);
    assert_eq!(leased[0].message, message("0"));
    assert!(!leased[0].suspect);
    assert_eq!(rows::depth(&store, "q").await.unwrap(), 5);
    assert!(rows::ack(&store, leased[0].row, leased[0].epoch).await.unwrap());
    assert_eq!(rows::depth(&store, "q").await.unwrap(), 4);
    all_balanced(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_stores_on_one_file_never_lease_a_message_twice() {
    let file = File::new();
    let (one, other) = (file.open().await, file.open().await);
    rows::declare(&one, &queue("q")).await.unwrap();
    publish_to(&one, "q", (0..60).map(|n| n.to_string())).await;
    let take = async |store: &SqliteStore, owner: &str| {
        let mut taken = Vec::new();
        loop {
            let leased = rows::lease(store, "q", owner, 4, LEASE, at(1)).await.unwrap();
            if leased.is_empty() {
                return taken;
            }
            taken.extend(leased.into_iter().map(|leased| leased.message.id));
        }
    };
    let (left, right) = tokio::join!(take(&one, "one"), take(&other, "other"));
    assert_eq!(left.len() + right.len(), 60);
    let unique: BTreeSet<_> = left.iter().chain(&right).collect();
    assert_eq!(unique.len(), 60);
}

#[tokio::test]
async fn messages_c13_an_expired_lease_comes_back_with_a_higher_epoch_and_stale_reports_change_nothing()
 {
    let file = File::new();
    let (one, other) = (file.open().await, file.open().await);
    rows::declare(&one, &queue("q")).await.unwrap();
    publish_to(&one, "q", ["a".to_owned()]).await;
    let first = rows::lease(&one, "q", "one", 10, LEASE, at(0)).await.unwrap().remove(0);
    assert!(rows::lease(&other, "q", "other", 10, LEASE, at(9)).await.unwrap().is_empty());
    let second = rows::lease(&other, "q", "other", 10, LEASE, at(10)).await.unwrap().remove(0);
    assert_eq!((second.row, second.epoch), (first.row, first.epoch + 1));
    assert!(second.suspect);
    assert!(!rows::ack(&one, first.row, first.epoch).await.unwrap());
    assert!(!rows::give_back(&one, first.row, first.epoch, at(0)).await.unwrap());
    assert_eq!(rows::renew(&one, "one", LEASE, at(10)).await.unwrap(), 0);
    assert_eq!(rows::depth(&one, "q").await.unwrap(), 1);
    assert!(rows::ack(&other, second.row, second.epoch).await.unwrap());
    assert!(!rows::ack(&other, second.row, second.epoch).await.unwrap());
    all_balanced(&one).await;
}

#[tokio::test]
async fn messages_c25_a_renewed_lease_is_not_taken_from_a_live_owner() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    rows::declare(&store, &queue("q")).await.unwrap();
    publish_to(&store, "q", ["a".to_owned()]).await;
    let held = rows::lease(&store, "q", "one", 1, LEASE, at(0)).await.unwrap().remove(0);
    assert_eq!(rows::renew(&store, "one", LEASE, at(8)).await.unwrap(), 1);
    assert!(rows::lease(&store, "q", "other", 1, LEASE, at(17)).await.unwrap().is_empty());
    assert!(rows::ack(&store, held.row, held.epoch).await.unwrap());
}

#[tokio::test]
async fn messages_c26_orphans_are_found_by_their_lease_alone() {
    let file = File::new();
    let dead = file.open().await;
    rows::declare(&dead, &queue("q")).await.unwrap();
    publish_to(&dead, "q", ["a".to_owned(), "b".to_owned()]).await;
    rows::lease(&dead, "q", "dead", 10, LEASE, at(0)).await.unwrap();
    dead.close().await;
    let heir = file.open().await;
    assert_eq!(rows::lease(&heir, "q", "heir", 10, LEASE, at(10)).await.unwrap().len(), 2);
}

#[tokio::test]
async fn messages_c28_a_lease_that_was_waited_for_is_measured_from_when_it_was_got() {
    let file = File::new();
    let (one, other) = (file.open().await, file.open().await);
    rows::declare(&one, &queue("q")).await.unwrap();
    publish_to(&one, "q", ["a".to_owned()]).await;
    // Each look at this clock is 8 s later; the lease is handed out at the second one.
    let looks = std::sync::atomic::AtomicU64::new(0);
    let clock = || at(8 * looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let leased = rows::lease(&one, "q", "one", 1, LEASE, clock).await.unwrap();
    assert_eq!(leased.len(), 1);
    assert!(rows::lease(&other, "q", "other", 1, LEASE, at(17)).await.unwrap().is_empty());
    assert_eq!(rows::lease(&other, "q", "other", 1, LEASE, at(18)).await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_given_back_waits_for_its_time_and_keeps_its_place() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    rows::declare(&store, &queue("q")).await.unwrap();
    publish_to(&store, "q", ["a".to_owned(), "b".to_owned()]).await;
    let first = rows::lease(&store, "q", "me", 1, LEASE, at(0)).await.unwrap().remove(0);
    assert!(rows::give_back(&store, first.row, first.epoch, at(5)).await.unwrap());
    assert!(!rows::give_back(&store, first.row, first.epoch, at(0)).await.unwrap());
    let at_once = rows::lease(&store, "q", "me", 9, LEASE, at(0)).await.unwrap();
    assert_eq!(at_once[0].message.id, "b");
    assert_eq!(at_once.len(), 1);
    assert_eq!(rows::give_back_all(&store, "me").await.unwrap(), 1);
    let later = rows::lease(&store, "q", "me", 9, LEASE, at(5)).await.unwrap();
    let ids: Vec<_> = later.iter().map(|leased| leased.message.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert!(!later[0].suspect, "who gives back has not died of it");
}

/// A consumer that takes over from a dead one must not get a key's later messages first.
#[tokio::test]
async fn messages_c20_a_later_message_of_a_key_stays_while_an_earlier_one_is_elsewhere() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    rows::declare(&store, &queue("q")).await.unwrap();
    for (id, key) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("n1", ""), ("n2", "")] {
        let message = QueueMessage { key: key.to_owned(), ..message(id) };
        rows::publish(&store, "", "q", &message, at(0)).await.unwrap();
    }
    let ids = |leased: &[rows::Leased]| -> Vec<String> {
        leased.iter().map(|leased| leased.message.id.clone()).collect()
    };
    let dead = rows::lease(&store, "q", "dead", 1, LEASE, at(0)).await.unwrap();
    assert_eq!(ids(&dead), ["a1"]);
    let heir = rows::lease(&store, "q", "heir", 9, LEASE, at(1)).await.unwrap();
    assert_eq!(ids(&heir), ["b1", "n1", "n2"]);
    let heir = rows::lease(&store, "q", "heir", 9, LEASE, at(10)).await.unwrap();
    assert_eq!(ids(&heir), ["a1", "a2"], "the lease is over, and the order is kept");
    let put_off = at(20);
    assert!(rows::give_back(&store, heir[0].row, heir[0].epoch, put_off).await.unwrap());
    assert!(rows::give_back(&store, heir[1].row, heir[1].epoch, at(10)).await.unwrap());
    let others = rows::lease(&store, "q", "heir", 9, LEASE, at(19)).await.unwrap();
    assert_eq!(ids(&others), ["b1", "n1", "n2"]);
    let later = rows::lease(&store, "q", "heir", 9, LEASE, put_off).await.unwrap();
    assert_eq!(ids(&later), ["a1", "a2"]);
}

#[tokio::test]
async fn messages_c29_messages_move_on_when_their_ttl_is_over_never_early_and_untouched() {
    let file = File::new();
    let store = file.open().await;
    rows::declare(&store, &queue("q")).await.unwrap();
    let retry = QueueSpec {
        name: "q.retry".to_owned(),
        message_ttl: Some(Duration::from_secs(30)),
        dead_letter_to: Some("q".to_owned()),
    };
    rows::declare(&store, &retry).await.unwrap();
    rows::publish(&store, "", "q.retry", &message("early"), at(0)).await.unwrap();
    rows::publish(&store, "", "q.retry", &message("late"), at(10)).await.unwrap();
    assert!(rows::lease(&store, "q", "me", 9, LEASE, at(29)).await.unwrap().is_empty());
    let back = rows::lease(&store, "q", "me", 9, LEASE, at(30)).await.unwrap();
    assert_eq!(back.len(), 1);
    assert_eq!(back[0].message, message("early"));
    assert_eq!(rows::depth(&store, "q.retry").await.unwrap(), 1);
    assert_eq!(rows::lease(&store, "q", "me", 9, LEASE, at(40)).await.unwrap().len(), 2);
    let totals = rows::totals(&store).await.unwrap();
    assert_eq!((totals[0].moved_in, totals[1].moved_out, totals[1].published), (2, 2, 2));
    all_balanced(&store).await;
}

#[tokio::test]
async fn topics_route_to_every_bound_queue_once() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    for name in ["orders", "mail", "audit"] {
        rows::declare(&store, &queue(name)).await.unwrap();
    }
    for (pattern, name) in
        [("order.*", "orders"), ("order.created", "orders"), ("*.created", "mail"), ("#", "audit")]
    {
        rows::bind(&store, "events", pattern, name).await.unwrap();
        rows::bind(&store, "events", pattern, name).await.unwrap();
    }
    let publish =
        async |key: &str| rows::publish(&store, "events", key, &message("m"), at(0)).await;
    assert_eq!(publish("order.created").await.unwrap(), 3);
    assert_eq!(publish("order.cancelled").await.unwrap(), 2);
    assert_eq!(publish("stock.reserved").await.unwrap(), 1);
    let elsewhere = rows::publish(&store, "commands", "order.created", &message("m"), at(0)).await;
    assert_eq!(elsewhere.unwrap(), 0);
    let nowhere = rows::publish(&store, "", "no.such.queue", &message("m"), at(0)).await;
    assert_eq!(nowhere.unwrap(), 0);
    let unknown = rows::bind(&store, "events", "#", "no.such.queue").await;
    assert!(matches!(unknown, Err(StoreError::UnknownQueue { .. })), "{unknown:?}");
}

#[tokio::test]
async fn people_list_move_and_discard_what_nobody_holds() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    for name in ["q", "q.dlq"] {
        rows::declare(&store, &queue(name)).await.unwrap();
    }
    publish_to(&store, "q.dlq", ["a", "b", "c", "d"].map(str::to_owned)).await;
    let mut other = message("e");
    other.kind = "order.cancelled".to_owned();
    rows::publish(&store, "", "q.dlq", &other, at(3)).await.unwrap();

    let of_kind = Selection { kind: Some("order.cancelled".to_owned()), ..everything() };
    let listed = rows::list(&store, "q.dlq", &of_kind).await.unwrap();
    assert_eq!((listed.len(), listed[0].since), (1, at(3)));
    assert_eq!(listed[0].message, other);
    let by_id = Selection { ids: vec!["b".to_owned(), "d".to_owned()], ..everything() };
    assert_eq!(rows::list(&store, "q.dlq", &by_id).await.unwrap().len(), 2);
    let three = Selection { max: 3, ..Selection::default() };
    let listed = rows::list(&store, "q.dlq", &three).await.unwrap();
    assert_eq!(listed.len(), 3);

    let headers = BTreeMap::from([("x-replayed".to_owned(), "now".to_owned())]);
    assert!(rows::move_to(&store, listed[0].row, "q", &headers, at(4)).await.unwrap());
    assert!(!rows::move_to(&store, listed[0].row, "q", &headers, at(4)).await.unwrap());
    let nowhere = rows::move_to(&store, listed[1].row, "gone", &headers, at(4)).await;
    assert!(matches!(nowhere, Err(StoreError::UnknownQueue { .. })), "{nowhere:?}");
    assert!(rows::discard(&store, listed[1].row, "ada", "customer is gone", at(5)).await.unwrap());
    assert!(!rows::discard(&store, listed[1].row, "ada", "again", at(5)).await.unwrap());

    let leased = rows::lease(&store, "q.dlq", "me", 1, LEASE, at(6)).await.unwrap().remove(0);
    assert!(!rows::move_to(&store, leased.row, "q", &headers, at(7)).await.unwrap());
    assert!(!rows::discard(&store, leased.row, "ada", "held", at(7)).await.unwrap());

    let replayed = rows::lease(&store, "q", "me", 9, LEASE, at(6)).await.unwrap().remove(0);
    assert_eq!((replayed.message.id.as_str(), replayed.suspect), ("a", false));
    assert_eq!((replayed.message.headers, replayed.message.body), (headers, message("a").body));
    let archive = rows::archive(&store, "q.dlq", 10).await.unwrap();
    assert_eq!((archive[0].actor.as_str(), archive[0].archived), ("ada", at(5)));
    assert_eq!(archive[0].message, message("b"));
    all_balanced(&store).await;
}

#[tokio::test]
async fn declarations_that_would_lose_messages_are_refused_and_others_may_change() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    let ttl = Some(Duration::from_secs(1));
    for (name, message_ttl, to) in [("", None, None), ("q", ttl, None), ("q", ttl, Some("q"))] {
        let spec =
            QueueSpec { name: name.to_owned(), message_ttl, dead_letter_to: to.map(str::to_owned) };
        let refused = rows::declare(&store, &spec).await;
        assert!(matches!(refused, Err(StoreError::QueueSpec { .. })), "{spec:?}: {refused:?}");
    }
    rows::declare(&store, &queue("q")).await.unwrap();
    publish_to(&store, "q", ["a".to_owned()]).await;
    rows::declare(&store, &queue("q")).await.unwrap();
    assert_eq!(rows::depth(&store, "q").await.unwrap(), 1);
    let unknown = rows::lease(&store, "typo", "me", 1, LEASE, at(0)).await;
    assert!(matches!(unknown, Err(StoreError::UnknownQueue { .. })), "{unknown:?}");
}

#[tokio::test]
async fn lesson_k06_headers_that_were_edited_by_hand_are_read_and_broken_ones_refused() {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    rows::declare(&store, &queue("q")).await.unwrap();
    publish_to(&store, "q", ["a".to_owned()]).await;
    for broken in ["'{'", "'[]'", "''"] {
        let sql = format!("UPDATE mamparo_messages SET headers = {broken}");
        assert!(store.apply(&sql).await.is_err(), "{broken}");
    }
    let edited = "UPDATE mamparo_messages SET headers = '{\"x-attempts\": 5, \"x\": \"y\"}'";
    store.apply(edited).await.unwrap();
    let leased = rows::lease(&store, "q", "me", 1, LEASE, at(0)).await.unwrap().remove(0);
    let headers = leased.message.headers;
    assert_eq!((headers["x-attempts"].as_str(), headers["x"].as_str()), ("5", "y"));
}

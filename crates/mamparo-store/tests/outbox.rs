//! Outbox rows: what commits is read, per key in order, by one relay at a time. Every test runs on both
//! databases.
//!
//! C42 (a restart skips events that share one log position) can't be put to a test here: nothing reads
//! a log, so there are no positions. A row is pending until it is deleted.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::{LEASE, at};
use mamparo_core::message::shards::{SHARDS, shard_of};
use mamparo_core::time::WallTime;
use mamparo_store::outbox::{
    self, Claimed, Confirmed, Ear, Event, Heard, Held, Parked, RelaySession, Report, Wait,
    Whereabouts,
};
use mamparo_store::{Backend, Store};
use mamparo_testkit::database::Database;
use sqlx::{Postgres, Sqlite};

fn event(id: &str, key: &str) -> Event {
    Event { id: id.to_owned(), ..Event::new("order.created", key, b"{}".to_vec()) }
}

async fn enqueue<DB: Backend>(store: &Store<DB>, events: &[Event]) {
    let mut tx = store.begin().await.unwrap();
    for event in events {
        outbox::enqueue(&mut tx, event, at(0)).await.unwrap();
    }
    store.commit(tx).await.unwrap();
}

/// A relay that works step by step.
struct Relay<DB: Backend> {
    session: RelaySession<DB>,
    held: BTreeMap<u16, Held>,
}

impl<DB: Backend> Relay<DB> {
    async fn start(store: &Store<DB>, now: WallTime) -> Self {
        let mut relay = Self { session: RelaySession::new(store), held: BTreeMap::new() };
        relay.beat(now).await;
        relay
    }

    async fn beat(&mut self, now: WallTime) {
        let tenure = self.session.heartbeat(LEASE, now).await.unwrap();
        self.held = tenure.held.iter().map(|held| (held.shard, *held)).collect();
    }

    fn shards(&self) -> Vec<u16> {
        self.held.keys().copied().collect()
    }

    async fn read(&self, rows: u32) -> Vec<Claimed> {
        let rooms: Vec<_> = self.shards().into_iter().map(|shard| (shard, rows)).collect();
        self.session.read(&rooms, &[]).await.unwrap()
    }

    fn of(&self, claimed: &Claimed) -> Confirmed {
        Confirmed { row: claimed.row, held: self.held[&claimed.shard] }
    }

    async fn confirm(&self, claimed: &[Claimed], now: WallTime) -> u64 {
        let confirmed = claimed.iter().map(|claimed| self.of(claimed)).collect();
        let report = Report { confirmed, ..Report::default() };
        self.session.record(&report, Some(now)).await.unwrap().confirmed
    }

    async fn park(&self, claimed: &Claimed, due: WallTime) -> u64 {
        let Confirmed { row, held } = self.of(claimed);
        let parked = vec![Parked { row, held, due, error: "no queue takes it".to_owned() }];
        let report = Report { parked, ..Report::default() };
        self.session.record(&report, Some(due)).await.unwrap().waiting
    }

    async fn hold(&self, claimed: &[Claimed]) -> u64 {
        let behind = claimed.iter().map(|claimed| self.of(claimed)).collect();
        let report = Report { behind, ..Report::default() };
        self.session.record(&report, None).await.unwrap().waiting
    }
}

fn ids(claimed: &[Claimed]) -> Vec<&str> {
    claimed.iter().map(|claimed| claimed.event.id.as_str()).collect()
}

/// A database of the test's own; every `open` is another process.
trait Place {
    type DB: Backend;
    fn new() -> Self;
    fn address(&self) -> String;
    async fn open(&self) -> Store<Self::DB> {
        Store::open(&self.address()).await.unwrap()
    }
    /// How many lines the history has.
    async fn history(store: &Store<Self::DB>) -> i64;
}

impl Place for common::File {
    type DB = Sqlite;
    fn new() -> Self {
        Self::new()
    }
    fn address(&self) -> String {
        self.address()
    }
    async fn history(store: &Store<Sqlite>) -> i64 {
        let sql = "SELECT count(*) FROM mamparo_outbox_history";
        sqlx::query_scalar(sql).fetch_one(store.reader()).await.unwrap()
    }
}

impl Place for Database {
    type DB = Postgres;
    fn new() -> Self {
        Self::create()
    }
    fn address(&self) -> String {
        self.url()
    }
    async fn history(store: &Store<Postgres>) -> i64 {
        let sql = "SELECT count(*) FROM mamparo_outbox_history";
        sqlx::query_scalar(sql).fetch_one(store.reader()).await.unwrap()
    }
}

/// Runs each test on a file and on a server.
macro_rules! on_both {
    ($($(#[$doc:meta])* async fn $name:ident<$place:ident: Place>() $body:block)*) => {
        $($(#[$doc])* async fn $name<$place: Place>() $body)*
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name::<super::common::File>().await; })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name::<super::Database>().await; })*
        }
    };
}

on_both! {
    async fn an_event_leaves_if_and_only_if_its_transaction_commits<P: Place>() {
        let place = P::new();
        let store = place.open().await;
        let mut tx = store.begin().await.unwrap();
        outbox::enqueue(&mut tx, &event("dropped", "k"), at(0)).await.unwrap();
        tx.rollback().await.unwrap();
        let mut kept = event("kept", "k");
        kept.headers = BTreeMap::from([("traceparent".to_owned(), "00-1-2-01".to_owned())]);
        enqueue(&store, std::slice::from_ref(&kept)).await;
        let relay = Relay::start(&store, at(1)).await;
        let claimed = relay.read(10).await;
        assert_eq!(claimed.len(), 1);
        assert_eq!(claimed[0].event, kept);
        assert_eq!((claimed[0].enqueued, claimed[0].tries, claimed[0].behind), (at(0), 0, false));
        assert_eq!(outbox::find(&store, "kept").await.unwrap(), Some(Whereabouts::Pending));
        assert_eq!(relay.confirm(&claimed, at(1)).await, 1);
        assert!(relay.read(10).await.is_empty());
        assert_eq!(outbox::find(&store, "kept").await.unwrap(), Some(Whereabouts::Published));
        assert_eq!(outbox::find(&store, "dropped").await.unwrap(), None);
        assert_eq!(relay.confirm(&claimed, at(2)).await, 0, "a second report changes nothing");
        assert_eq!(P::history(&store).await, 1);
    }

    /// What waits in an idle reader, in this database or another, delays nothing: rows are read by
    /// their state, not by what is visible to whom.
    async fn messages_c19_an_idle_transaction_does_not_delay_the_relay<P: Place>() {
        let (place, elsewhere) = (P::new(), P::new());
        let (store, other) = (place.open().await, elsewhere.open().await);
        let mut reader = store.reader().begin().await.unwrap();
        P::DB::check(&mut reader).await.unwrap();
        // On SQLite a writer would rightly keep others from writing, so it idles in the other file.
        let mut writer = other.begin().await.unwrap();
        outbox::enqueue(&mut writer, &event("idle", "a"), at(0)).await.unwrap();
        enqueue(&store, &[event("0", "a")]).await;
        let relay = Relay::start(&store, at(1)).await;
        let claimed = relay.read(10).await;
        assert_eq!(ids(&claimed), ["0"]);
        assert_eq!(relay.confirm(&claimed, at(1)).await, 1);
        reader.rollback().await.unwrap();
        writer.rollback().await.unwrap();
    }

    async fn a_read_takes_of_each_shard_its_room_oldest_first_and_nothing_known<P: Place>() {
        let place = P::new();
        let store = place.open().await;
        let keys: Vec<String> = (0..64).map(|n| format!("o-{n}")).collect();
        let events: Vec<Event> =
            keys.iter().enumerate().map(|(n, key)| event(&format!("{n:02}"), key)).collect();
        enqueue(&store, &events).await;
        let relay = Relay::start(&store, at(1)).await;
        let all = relay.read(64).await;
        assert_eq!(ids(&all), events.iter().map(|e| e.id.as_str()).collect::<Vec<_>>());
        let known: Vec<i64> = all.iter().map(|claimed| claimed.row).take(30).collect();
        let rooms: Vec<_> = (0..SHARDS).map(|shard| (shard, 64)).collect();
        let rest = relay.session.read(&rooms, &known).await.unwrap();
        assert_eq!(ids(&rest), ids(&all[30..]));
        let mine = shard_of("o-1", "");
        let one = relay.session.read(&[(mine, 2)], &[]).await.unwrap();
        let of_shard: Vec<_> = all.iter().filter(|claimed| claimed.shard == mine).collect();
        assert_eq!(one[0].row, of_shard[0].row);
        assert!(one.len() == 2 && one.iter().all(|claimed| claimed.shard == mine));
        assert!(relay.session.read(&[], &[]).await.unwrap().is_empty());
    }

    async fn a_refused_row_parks_its_key_and_nothing_else<P: Place>() {
        let place = P::new();
        let store = place.open().await;
        enqueue(&store, &[event("a1", "a"), event("a2", "a"), event("b1", "b"), event("n", "")])
            .await;
        let relay = Relay::start(&store, at(0)).await;
        let claimed = relay.read(10).await;
        assert_eq!(ids(&claimed), ["a1", "a2", "b1", "n"]);
        assert_eq!(relay.park(&claimed[0], at(60)).await, 1);
        assert_eq!(relay.park(&claimed[3], at(60)).await, 1);
        let again = relay.read(10).await;
        let behind = |c: &Claimed| (c.event.id.clone(), c.behind);
        let expected = [("a2".to_owned(), true), ("b1".to_owned(), false)];
        assert_eq!(again.iter().map(behind).collect::<Vec<_>>(), expected);
        assert_eq!(relay.hold(&again[..1]).await, 1);
        assert_eq!(relay.hold(&again[1..]).await, 0, "nothing before it waits");
        assert_eq!(ids(&relay.read(10).await), ["b1"]);
        // One more of the key comes, and waits too.
        enqueue(&store, &[event("a3", "a"), event("n2", "")]).await;
        assert_eq!(relay.confirm(&again[1..], at(1)).await, 1);
        let third = relay.read(10).await;
        assert_eq!(third.iter().map(|c| c.behind).collect::<Vec<_>>(), [true, false]);
        let stats = outbox::stats(&store).await.unwrap();
        assert_eq!((stats.pending, stats.parked, stats.refused), (5, 3, 2));
        assert_eq!(stats.oldest, Some(at(0)));
        assert_eq!(stats.oldest_in[usize::from(shard_of("a", ""))], Some(at(0)));

        let listed = outbox::list(&store, 10).await.unwrap();
        assert_eq!((listed[0].wait, listed[0].tries), (Wait::Until(at(60)), 1));
        assert_eq!(listed[0].error.as_deref(), Some("no queue takes it"));
        assert_eq!(listed[0].owner.as_deref(), Some(relay.session.owner()));
        assert_eq!(listed[1].wait, Wait::Behind);
        let shards = relay.shards();
        let wake = async |now| relay.session.wake_parked(&shards, now).await.unwrap();
        assert_eq!(wake(at(59)).await, Some(at(60)));
        assert!(relay.read(10).await.iter().all(|c| c.event.id != "a1"));
        assert_eq!(wake(at(60)).await, None);
        let due = relay.read(10).await;
        assert_eq!(ids(&due), ["a1", "n", "a3", "n2"]);
        assert_eq!(due.iter().map(|c| c.behind).collect::<Vec<_>>(), [false, false, true, false]);
        assert_eq!(due[0].tries, 1);
        assert_eq!(relay.confirm(&due[..2], at(61)).await, 2);
        // What waited behind it is free, in order.
        assert_eq!(ids(&relay.read(10).await), ["a2", "a3", "n2"]);
        assert!(relay.read(10).await.iter().all(|claimed| !claimed.behind));
        assert_eq!(outbox::stats(&store).await.unwrap().parked, 0);
    }

    /// More wait behind a refused row than one report frees: the last of them frees the next ones.
    async fn a_long_queue_behind_a_refused_row_leaves_in_order<P: Place>() {
        let place = P::new();
        let store = place.open().await;
        let events: Vec<Event> = (0..1_200).map(|n| event(&format!("{n:04}"), "a")).collect();
        enqueue(&store, &events).await;
        let relay = Relay::start(&store, at(0)).await;
        let first = relay.read(1).await;
        assert_eq!(relay.park(&first[0], at(5)).await, 1);
        let behind = relay.read(2_000).await;
        assert_eq!(relay.hold(&behind).await, 1_199);
        relay.session.wake_parked(&relay.shards(), at(5)).await.unwrap();
        let mut left = Vec::new();
        loop {
            let claimed = relay.read(300).await;
            let leaving: Vec<_> = claimed.into_iter().take_while(|c| !c.behind).collect();
            if leaving.is_empty() {
                break;
            }
            left.extend(leaving.iter().map(|c| c.event.id.clone()));
            assert_eq!(relay.confirm(&leaving, at(6)).await, leaving.len() as u64);
        }
        assert_eq!(left, events.iter().map(|e| e.id.clone()).collect::<Vec<_>>());
    }

    async fn requeue_makes_a_refused_row_leave_now<P: Place>() {
        let place = P::new();
        let store = place.open().await;
        enqueue(&store, &[event("a1", "a"), event("a2", "a")]).await;
        let relay = Relay::start(&store, at(0)).await;
        let claimed = relay.read(10).await;
        assert_eq!(relay.park(&claimed[0], at(600)).await, 1);
        assert_eq!(relay.hold(&claimed[1..]).await, 1);
        let (a1, a2) = (claimed[0].row, claimed[1].row);
        assert_eq!(outbox::requeue(&store, &[a2]).await.unwrap(), 0, "its turn comes by itself");
        assert_eq!(outbox::requeue(&store, &[a1, a2, 99]).await.unwrap(), 1);
        let again = relay.read(10).await;
        assert_eq!(ids(&again), ["a1"]);
        assert_eq!(relay.confirm(&again, at(1)).await, 1);
        assert_eq!(ids(&relay.read(10).await), ["a2"]);
    }

    async fn a_row_that_is_deleted_by_hand_frees_its_key<P: Place>() {
        let place = P::new();
        let store = place.open().await;
        enqueue(&store, &[event("a1", "a"), event("a2", "a"), event("b1", "b"), event("b2", "b")])
            .await;
        let relay = Relay::start(&store, at(0)).await;
        let claimed = relay.read(10).await;
        assert_eq!(relay.park(&claimed[0], at(600)).await, 1);
        assert_eq!(relay.park(&claimed[2], at(600)).await, 1);
        assert_eq!(relay.hold(&[claimed[1].clone(), claimed[3].clone()]).await, 2);
        store.apply("DELETE FROM mamparo_outbox WHERE id = 'a1'").await.unwrap();
        assert_eq!(relay.session.mend(&relay.shards()).await.unwrap(), 1);
        assert_eq!(ids(&relay.read(10).await), ["a2"]);
    }

    async fn messages_c21_a_dead_relay_s_rows_go_again_under_the_same_id_and_its_reports_are_void<P: Place>() {
        let place = P::new();
        let (one, other) = (place.open().await, place.open().await);
        enqueue(&one, &[event("a1", "a"), event("a2", "a")]).await;
        let dead = Relay::start(&one, at(0)).await;
        let first = dead.read(10).await;
        let mut heir = Relay::start(&other, at(9)).await;
        assert!(heir.held.is_empty(), "the lease of 10 s still runs");
        heir.beat(at(10)).await;
        let second = heir.read(10).await;
        assert_eq!((ids(&first), ids(&second)), (vec!["a1", "a2"], vec!["a1", "a2"]));
        assert_eq!(dead.confirm(&first, at(11)).await, 0);
        assert_eq!(dead.park(&first[0], at(99)).await, 0);
        assert_eq!(dead.hold(&first[1..]).await, 0);
        assert_eq!(heir.confirm(&second, at(11)).await, 2);
    }

    /// A relay that lost a shard and got it again is another holder: its old reports are void.
    async fn a_second_tenure_of_the_same_relay_voids_the_reports_of_the_first<P: Place>() {
        let place = P::new();
        let store = place.open().await;
        enqueue(&store, &[event("a1", "a")]).await;
        let mut relay = Relay::start(&store, at(0)).await;
        let claimed = relay.read(10).await;
        let old = relay.of(&claimed[0]);
        relay.beat(at(10)).await;
        assert_eq!(relay.held.len(), 16, "its lease was over; it took all again");
        let report = Report { confirmed: vec![old], ..Report::default() };
        assert_eq!(relay.session.record(&report, None).await.unwrap().confirmed, 0);
        assert_eq!(relay.confirm(&claimed, at(11)).await, 1);
    }

    /// A report whose answer was lost is written again; a row without a key waits behind nothing.
    async fn a_second_report_about_a_row_changes_nothing<P: Place>() {
        let place = P::new();
        let store = place.open().await;
        enqueue(&store, &[event("f1", ""), event("f2", "")]).await;
        let relay = Relay::start(&store, at(0)).await;
        let rows = relay.read(10).await;
        assert_eq!(relay.park(&rows[0], at(50)).await, 1);
        assert_eq!(relay.park(&rows[0], at(90)).await, 0);
        assert_eq!(relay.confirm(&rows[..1], at(1)).await, 0);
        assert_eq!(relay.hold(&rows[1..]).await, 0);
        let listed = outbox::list(&store, 10).await.unwrap();
        assert_eq!((listed[0].tries, listed[0].wait), (1, Wait::Until(at(50))));
        assert_eq!(listed[1].wait, Wait::Ready);
        // Nor does one about a shard that was given back, though nobody has taken it since.
        let held: Vec<_> = relay.held.values().copied().collect();
        relay.session.give_back(&held).await.unwrap();
        assert_eq!(relay.confirm(&rows[1..], at(1)).await, 0);
    }

    /// The lease is counted from after the wait for the shards, however long that was.
    async fn messages_c28_a_lease_that_was_waited_for_is_measured_from_when_it_was_got<P: Place>() {
        let place = P::new();
        let store = place.open().await;
        let session = RelaySession::new(&store);
        let looks = std::sync::atomic::AtomicU64::new(0);
        let clock = || at(8 + looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        session.heartbeat(LEASE, clock).await.unwrap();
        assert_eq!(looks.load(std::sync::atomic::Ordering::Relaxed), 1, "one look, under the lock");
        let mut other = Relay::start(&place.open().await, at(17)).await;
        assert!(other.held.is_empty());
        other.beat(at(18)).await;
        assert_eq!(other.held.len(), 16);
    }

    async fn relays_share_the_shards_and_give_them_back<P: Place>() {
        let place = P::new();
        let (one, other) = (place.open().await, place.open().await);
        let mut first = Relay::start(&one, at(0)).await;
        assert_eq!(first.held.len(), 16);
        let mut second = Relay::start(&other, at(1)).await;
        assert!(second.held.is_empty());
        let tenure = first.session.heartbeat(LEASE, at(2)).await.unwrap();
        assert_eq!((tenure.relays.len(), tenure.surplus.len()), (2, 8));
        let surplus: Vec<Held> =
            tenure.surplus.iter().map(|shard| first.held[shard]).collect();
        first.session.give_back(&surplus).await.unwrap();
        first.session.give_back(&surplus).await.unwrap();
        second.beat(at(3)).await;
        first.beat(at(3)).await;
        assert_eq!((first.held.len(), second.held.len()), (8, 8));
        let all: BTreeSet<u16> = first.held.keys().chain(second.held.keys()).copied().collect();
        assert_eq!(all.len(), 16, "no shard is in two hands");
        second.session.leave().await.unwrap();
        first.beat(at(4)).await;
        assert_eq!(first.held.len(), 16);
    }

    async fn history_is_forgotten_and_pending_rows_never<P: Place>() {
        let place = P::new();
        let store = place.open().await;
        enqueue(&store, &[event("a", "a"), event("b", "b"), event("c", "c")]).await;
        let relay = Relay::start(&store, at(0)).await;
        let forget = async |before, now| relay.session.forget(before, now).await.unwrap();
        assert!(!forget(at(0), at(0)).await);
        let claimed = relay.read(10).await;
        assert_eq!(relay.confirm(&claimed[..2], at(1)).await, 2);
        assert!(!forget(at(1), at(1)).await);
        assert_eq!(P::history(&store).await, 2);
        // PostgreSQL forgets a span of six hours at a time.
        let later = at(12 * 3_600);
        assert!(!forget(later, later).await);
        assert_eq!(P::history(&store).await, 0);
        assert_eq!(outbox::stats(&store).await.unwrap().pending, 1);
        let report = Report { confirmed: vec![relay.of(&claimed[2])], ..Report::default() };
        assert_eq!(relay.session.record(&report, None).await.unwrap().confirmed, 1);
        assert_eq!(P::history(&store).await, 0, "nothing is kept when nothing should be");
    }

    async fn numbers_grow_with_commits_and_are_never_used_again<P: Place>() {
        let place = P::new();
        let store = place.open().await;
        let relay = Relay::start(&store, at(0)).await;
        let mut rows = BTreeSet::new();
        for n in 0..5 {
            enqueue(&store, &[event(&n.to_string(), "k")]).await;
            let claimed = relay.read(1).await;
            assert!(rows.last().is_none_or(|last| *last < claimed[0].row));
            assert!(rows.insert(claimed[0].row));
            assert_eq!(relay.confirm(&claimed, at(0)).await, 1);
        }
    }

    async fn a_commit_wakes_every_relay_and_none_is_missed<P: Place>() {
        let place = P::new();
        let store = place.open().await;
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

    async fn another_process_is_heard<P: Place>() {
        let place = P::new();
        let (here, there) = (place.open().await, place.open().await);
        let session = RelaySession::new(&here);
        let mut ear = session.listen().await.unwrap();
        enqueue(&there, &[event("a", "a")]).await;
        RelaySession::new(&there).announce("").await.unwrap();
        let mut heard = Heard::Nothing;
        for _ in 0..2 {
            // SQLite's first look may have been after the commit: then the second tells nothing new.
            heard = ear.hear().await.unwrap();
            if heard == Heard::Rows {
                break;
            }
        }
        assert_eq!(heard, Heard::Rows);
    }

    async fn the_same_event_id_twice_is_an_error_not_a_second_event<P: Place>() {
        let place = P::new();
        let store = place.open().await;
        enqueue(&store, &[event("a", "a")]).await;
        let mut tx = store.begin().await.unwrap();
        assert!(outbox::enqueue(&mut tx, &event("a", "a"), at(0)).await.is_err());
    }
}

/// A relay with a cursor would have passed the number of the transaction that commits last. Here the
/// second one waits for the first, and every row is found by its status.
#[tokio::test]
async fn messages_c17_rows_that_commit_late_are_delivered_too_on_sqlite() {
    let file = common::File::new();
    let (one, other) = (file.open().await, file.open().await);
    let relay = Relay::start(&one, at(0)).await;
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
        assert!(relay.read(10).await.is_empty());
        one.commit(early).await.unwrap();
    };
    tokio::join!(late, between);
    assert_eq!(ids(&relay.read(10).await), ["early", "late"]);
}

/// Two open transactions, committed in reverse. A cursor (`seq > last`) passes the first one for good;
/// reading by status finds it.
#[tokio::test]
async fn messages_c17_rows_that_commit_late_are_delivered_too_on_postgres() {
    let database = Database::create();
    let store = Store::<Postgres>::open(&database.url()).await.unwrap();
    let relay = Relay::start(&store, at(0)).await;
    let (mut early, mut late) = (store.begin().await.unwrap(), store.begin().await.unwrap());
    let first = outbox::enqueue(&mut early, &event("early", "a"), at(1)).await.unwrap();
    let second = outbox::enqueue(&mut late, &event("late", "b"), at(1)).await.unwrap();
    assert!(first < second);
    store.commit(late).await.unwrap();
    let cursor = async |last: i64| -> Vec<i64> {
        let sql = "SELECT seq FROM mamparo_outbox WHERE seq > $1 ORDER BY seq";
        sqlx::query_scalar(sql).bind(last).fetch_all(store.reader()).await.unwrap()
    };
    let seen = cursor(0).await;
    assert_eq!(seen, [second]);
    let claimed = relay.read(10).await;
    assert_eq!(ids(&claimed), ["late"]);
    assert_eq!(relay.confirm(&claimed, at(2)).await, 1);
    store.commit(early).await.unwrap();
    assert!(cursor(second).await.is_empty(), "the cursor's way loses the row");
    assert_eq!(ids(&relay.read(10).await), ["early"], "ours does not");
}

/// Transactions on one key take turns: the second gets its number only after the first has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_one_key_numbers_are_in_the_order_of_commits() {
    let database = Database::create();
    let store = Store::<Postgres>::open(&database.url()).await.unwrap();
    let mut first = store.begin().await.unwrap();
    outbox::enqueue(&mut first, &event("1", "a"), at(0)).await.unwrap();
    let second = async {
        let mut second = store.begin().await.unwrap();
        outbox::enqueue(&mut second, &event("2", "a"), at(0)).await.unwrap();
        store.commit(second).await.unwrap();
    };
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let release = async {
        loop {
            let waiting: i64 = sqlx::query_scalar(waits).fetch_one(store.reader()).await.unwrap();
            if waiting == 1 {
                break;
            }
            tokio::task::yield_now().await;
        }
        // Another key is not held up, and neither is an event without one.
        let mut free = store.begin().await.unwrap();
        outbox::enqueue(&mut free, &event("3", "b"), at(0)).await.unwrap();
        outbox::enqueue(&mut free, &event("4", ""), at(0)).await.unwrap();
        store.commit(free).await.unwrap();
        store.commit(first).await.unwrap();
    };
    let both = Box::pin(async { tokio::join!(second, release) });
    tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
    let relay = Relay::start(&store, at(0)).await;
    assert_eq!(ids(&relay.read(10).await), ["1", "3", "4", "2"]);
}

#[tokio::test]
async fn messages_c18_a_copy_of_the_file_keeps_delivering() {
    let (file, copy) = (common::File::new(), common::File::new());
    let store = file.open().await;
    enqueue(&store, &[event("0", "a"), event("1", "b")]).await;
    let relay = Relay::start(&store, at(0)).await;
    let claimed = relay.read(10).await;
    assert_eq!(relay.confirm(&claimed[..1], at(1)).await, 1);
    store.close().await;
    std::fs::copy(file.path(), copy.path()).unwrap();
    let relay = Relay::start(&copy.open().await, at(20)).await;
    assert_eq!(ids(&relay.read(10).await), ["1"]);
}

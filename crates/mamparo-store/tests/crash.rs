//! Crashes: a process killed with SIGKILL while it writes, and futures dropped at every await.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::process::Stdio;
use std::task::Poll;
use std::time::Duration;

use common::home::Home;
use common::{File, LEASE, at, message, queue};
use mamparo_store::inbox::{self, Seen};
use mamparo_store::outbox::{self, Event};
use mamparo_store::queue::{self as rows, Selection};
use mamparo_store::{PostgresStore, SqliteStore, Store, StoreAddress, StoreOptions};
use mamparo_testkit::database::Database;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

/// The example stands next to the directory of the test binaries; cargo builds it with the tests.
fn writer() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let profile = tests.parent().and_then(|deps| deps.parent()).unwrap();
    let writer = profile.join("examples").join("crash_writer");
    assert!(writer.exists(), "build it: cargo build -p mamparo-store --example crash_writer");
    writer
}

/// What the writer said before it was killed after `lines` lines, by verb.
async fn killed_after(address: &str, lines: usize) -> Vec<(String, String)> {
    let mut child = Command::new(writer()).arg(address).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    while let Some(line) = output.next_line().await.unwrap() {
        let (verb, id) = line.split_once(' ').unwrap();
        said.push((verb.to_owned(), id.to_owned()));
        if said.len() == lines {
            child.start_kill().unwrap();
        }
    }
    assert!(!child.wait().await.unwrap().success());
    assert!(said.len() >= lines, "the writer died by itself: {said:?}");
    said
}

/// The effect, its inbox row and its event came together or not at all, and what was said to be
/// committed is there.
async fn nothing_is_half<H: Home>(store: &Store<H::Db>, said: &[(String, String)]) {
    let listed = outbox::list(store, 100_000).await.unwrap();
    let events: BTreeSet<&str> = listed.iter().map(|row| row.event.id.as_str()).collect();
    assert!(ids(said, "committed").is_subset(&events));
    assert_eq!(H::number(store, "SELECT count(*) FROM effects").await, events.len() as i64);
    let together = "SELECT count(*) FROM effects JOIN mamparo_outbox USING (id)
                    JOIN mamparo_inbox ON message_id = id AND consumer = 'writer'";
    assert_eq!(H::number(store, together).await, events.len() as i64);
    assert_eq!(H::number(store, "SELECT count(*) FROM mamparo_inbox").await, events.len() as i64);
}

fn ids<'s>(said: &'s [(String, String)], verb: &str) -> BTreeSet<&'s str> {
    said.iter().filter(|(said, _)| said == verb).map(|(_, id)| id.as_str()).collect()
}

async fn after_kill_9_everything_that_was_committed_is_there_and_nothing_half<H: Home>() {
    for lines in [1, 40, 173] {
        let home = H::empty();
        let said = killed_after(&home.url(), lines).await;
        let store = home.store().await;
        // A server takes a moment to notice that its client is dead; its transaction may still end
        // either way. Opening waits for the dead one's locks, counting does not.
        let effects = async || H::number(&store, "SELECT count(*) FROM effects").await;
        let mut before = -1;
        while before != effects().await {
            before = effects().await;
            drop(store.begin().await.unwrap());
        }
        nothing_is_half::<H>(&store, &said).await;
    }
}

#[tokio::test]
async fn after_kill_9_no_message_is_lost_or_doubled() {
    for lines in [1, 40, 173] {
        let file = File::new();
        let said = killed_after(&file.address(), lines).await;
        let ids = |verb: &str| ids(&said, verb);
        let store = SqliteStore::open_existing(&file.address()).await.unwrap();
        let sound: String =
            sqlx::query_scalar("PRAGMA integrity_check").fetch_one(store.reader()).await.unwrap();
        assert_eq!(sound, "ok");

        // Of messages, the one that was just being published or acknowledged may be on either side.
        let selection = Selection { max: 100_000, ..Selection::default() };
        let left = rows::list(&store, "q", &selection).await.unwrap();
        let left: BTreeSet<&str> = left.iter().map(|row| row.message.id.as_str()).collect();
        let (published, acked) = (ids("published"), ids("acked"));
        assert!(left.is_disjoint(&acked), "an acknowledged message came back");
        let lost: Vec<_> = published.difference(&acked).filter(|id| !left.contains(*id)).collect();
        assert!(lost.len() <= 1, "lost: {lost:?}");
        let totals = rows::totals(&store).await.unwrap();
        assert!(totals[0].balanced(), "{totals:?}");
        // An acknowledgement that was not reported any more is on the books.
        assert_eq!(totals[0].acked, (acked.len() + lost.len()) as u64);
    }
}

/// Polls `future` until it has been pending `polls` times, then drops it: a crash at that await.
async fn dropped_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut pending = 0;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending if pending == polls => Poll::Ready(None),
        Poll::Pending => {
            pending += 1;
            Poll::Pending
        }
    })
    .await
}

/// A caller may vanish at any await (a client hangs up, a handler times out). Whatever was not
/// committed is undone, and the writer is free for the next one.
async fn messages_c21_a_future_dropped_at_any_await_leaves_whole_rows<H: Home>() {
    let home = H::empty();
    let store = home.store().await;
    store.apply("CREATE TABLE IF NOT EXISTS effects (id TEXT PRIMARY KEY)").await.unwrap();
    // An answer that is there before it is asked for is no await: on a quick server a run has few, and
    // the awaits are gone through again until enough of them were one.
    let (mut crashed, mut finished, mut polls) = (0, 0, 0);
    for run in 0..1_000 {
        if finished >= 3 && crashed > 5 {
            break;
        }
        let id = run.to_string();
        let work = async {
            let mut tx = store.begin().await.unwrap();
            for part in ["", "-2", "-3", "-4", "-5"] {
                let id = format!("{id}{part}");
                inbox::insert(&mut tx, "writer", &id, "k", at(0)).await.unwrap();
                H::run(&mut tx, &format!("INSERT INTO effects VALUES ('{id}')")).await;
                let event = Event { id, ..Event::new("k", "", Vec::new()) };
                outbox::enqueue(&mut tx, &event, at(0)).await.unwrap();
            }
            store.commit(tx).await.unwrap();
        };
        let ended = dropped_after(polls, work).await;
        polls += 1;
        match ended {
            Some(()) => {
                finished += 1;
                polls = if finished % 3 == 0 { 0 } else { polls };
            }
            None => crashed += 1,
        }
        // A commit that was on its way may still land. Once the same row can be inserted, it has, or
        // never will.
        let mut tx = store.begin().await.unwrap();
        let seen = inbox::insert(&mut tx, "writer", &id, "k", at(0)).await.unwrap();
        tx.rollback().await.unwrap();
        assert!(ended.is_none() || seen == Seen::Duplicate, "what was answered is there");
        nothing_is_half::<H>(&store, &[]).await;
        assert_eq!(
            inbox::contains(&store, "writer", &id).await.unwrap(),
            seen == Seen::Duplicate,
            "dropped at await {polls}"
        );
    }
    assert!(crashed > 5 && finished >= 3, "{crashed} crashed, {finished} finished");
}

/// The same for the embedded broker's messages: they are in a queue, or were, but not in between.
#[tokio::test]
async fn messages_c21_a_future_dropped_at_any_await_leaves_balanced_queues() {
    let file = File::new();
    let store = file.open().await;
    rows::declare(&store, &queue("q")).await.unwrap();
    let mut finished = 0;
    for polls in 0..1_000 {
        if finished == 3 {
            break;
        }
        let work = async {
            let message = message(&polls.to_string());
            rows::publish(&store, "", "q", &message, at(0)).await.unwrap();
            for leased in rows::lease(&store, "q", "me", 1, LEASE, at(0)).await.unwrap() {
                rows::ack(&store, leased.row, leased.epoch).await.unwrap();
            }
        };
        finished += usize::from(dropped_after(polls, work).await.is_some());
        drop(store.begin().await.unwrap());
        let totals = rows::totals(&store).await.unwrap();
        assert!(totals[0].balanced(), "dropped after {polls} polls: {totals:?}");
    }
    assert_eq!(finished, 3);
}

/// A caller that vanishes while its transaction begins must not leave it open in the pool: whatever the
/// next user of the connection writes would never be committed.
#[tokio::test]
async fn messages_c21_a_begin_that_is_dropped_leaves_no_transaction_open() {
    let database = Database::create();
    let address = StoreAddress::parse(&database.url()).unwrap();
    let options = StoreOptions { connections: 1, ..StoreOptions::default() };
    let store = PostgresStore::open_with(&address, &options).await.unwrap();
    let watcher = PostgresStore::open(&database.url()).await.unwrap();
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                AND state LIKE 'idle in transaction%'";
    let second = Duration::from_secs(1);
    for way in ["begin", "begin_within", "inbox"] {
        let (mut crashed, mut polls) = (0, 0);
        loop {
            let id = format!("{way} {polls}");
            let begin = async {
                match way {
                    "begin" => drop(store.begin().await.unwrap()),
                    "begin_within" => drop(store.begin_within(second).await.unwrap()),
                    _ => drop(inbox::begin(&store, "c", &id, "k", at(0)).await.unwrap()),
                }
            };
            if dropped_after(polls, begin).await.is_some() {
                break;
            }
            crashed += 1;
            polls += 1;
            // Once the one connection is free, it is as clean as it was.
            drop(store.reader().acquire().await.unwrap());
            assert_eq!(Database::number(&watcher, open).await, 0, "{id}");
            let mut tx = store.begin().await.unwrap();
            let seen = inbox::insert(&mut tx, "c", &id, "k", at(0)).await.unwrap();
            tx.rollback().await.unwrap();
            assert_eq!(seen, Seen::Fresh, "{id}");
        }
        assert!(crashed > 0, "{way} never waited");
    }
}

on_every_database!(
    after_kill_9_everything_that_was_committed_is_there_and_nothing_half,
    messages_c21_a_future_dropped_at_any_await_leaves_whole_rows,
);

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

use common::{File, LEASE, at, message, queue};
use mamparo_store::outbox::{self, Event};
use mamparo_store::queue::{self as rows, Selection};
use mamparo_store::{SqliteStore, inbox};
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

#[tokio::test]
async fn after_kill_9_everything_that_was_committed_is_there_and_nothing_half() {
    for lines in [1, 40, 173] {
        let file = File::new();
        let said = killed_after(&file.address(), lines).await;
        let ids = |verb: &str| -> BTreeSet<&str> {
            said.iter().filter(|(said, _)| said == verb).map(|(_, id)| id.as_str()).collect()
        };
        let store = SqliteStore::open_existing(&file.address()).await.unwrap();
        let sound: String =
            sqlx::query_scalar("PRAGMA integrity_check").fetch_one(store.reader()).await.unwrap();
        assert_eq!(sound, "ok");

        // The effect, its inbox row and its event came together or not at all.
        let effects: Vec<String> =
            sqlx::query_scalar("SELECT id FROM effects").fetch_all(store.reader()).await.unwrap();
        let effects: BTreeSet<&str> = effects.iter().map(String::as_str).collect();
        assert!(ids("committed").is_subset(&effects));
        let listed = outbox::list(&store, 100_000).await.unwrap();
        let events: BTreeSet<&str> = listed.iter().map(|row| row.event.id.as_str()).collect();
        assert_eq!(events, effects);
        for id in &effects {
            assert!(inbox::contains(&store, "writer", id).await.unwrap());
        }

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
#[tokio::test]
async fn messages_c21_a_future_dropped_at_any_await_leaves_whole_rows_and_a_free_writer() {
    let file = File::new();
    let store = file.open().await;
    rows::declare(&store, &queue("q")).await.unwrap();
    store.apply("CREATE TABLE IF NOT EXISTS effects (id TEXT PRIMARY KEY)").await.unwrap();
    let (mut crashed, mut finished) = (0, 0);
    for polls in 0..1_000 {
        if finished == 3 {
            break;
        }
        let id = polls.to_string();
        let work = async {
            let mut tx = store.begin().await.unwrap();
            inbox::insert(&mut tx, "c", &id, "k", at(0)).await.unwrap();
            sqlx::query("INSERT INTO effects VALUES (?)")
                .bind(&id)
                .execute(&mut *tx)
                .await
                .unwrap();
            let event = Event { id: id.clone(), ..Event::new("k", "", Vec::new()) };
            outbox::enqueue(&mut tx, &event, at(0)).await.unwrap();
            store.commit(tx).await.unwrap();
            rows::publish(&store, "", "q", &message(&id), at(0)).await.unwrap();
            for leased in rows::lease(&store, "q", "me", 1, LEASE, at(0)).await.unwrap() {
                rows::ack(&store, leased.row, leased.epoch).await.unwrap();
            }
        };
        match dropped_after(polls, work).await {
            Some(()) => finished += 1,
            None => crashed += 1,
        }
        // A commit that was on its way may still land. Once the writer is ours, it has, or never will.
        drop(store.begin().await.unwrap());
        let effects: Vec<String> = sqlx::query_scalar("SELECT id FROM effects ORDER BY id")
            .fetch_all(store.reader())
            .await
            .unwrap();
        let mut events: Vec<_> = outbox::list(&store, 1_000)
            .await
            .unwrap()
            .into_iter()
            .map(|row| row.event.id)
            .collect();
        events.sort();
        assert_eq!(effects, events, "dropped after {polls} polls");
        assert_eq!(inbox::contains(&store, "c", &id).await.unwrap(), effects.contains(&id));
        let totals = rows::totals(&store).await.unwrap();
        assert!(totals[0].balanced(), "dropped after {polls} polls: {totals:?}");
    }
    assert!(crashed > 5 && finished == 3, "{crashed} crashed, {finished} finished");
}

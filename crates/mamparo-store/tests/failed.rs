//! Failed messages: written once, searched, acted on by one person at a time.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use common::{LEASE, at, message};
use mamparo_core::message::failed::Group;
use mamparo_core::message::selection::Sift;
use mamparo_core::time::WallTime;
use mamparo_store::failed::{
    self, Acted, Failure, Query, Recorded, Status, Target, UNDO_WINDOW, preview,
};
use mamparo_store::queue::QueueMessage;
use mamparo_store::{Backend, Store};

const QUEUE: &str = "orders.saga";

async fn fail<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    id: &str,
    error: &str,
    last: Option<WallTime>,
) -> Recorded {
    let mut message = message(id);
    message.key = format!("key of {id}");
    fail_with(store, consumer, &message, error, last).await
}

async fn fail_with<DB: Backend>(
    store: &Store<DB>,
    consumer: &str,
    message: &QueueMessage,
    error: &str,
    last: Option<WallTime>,
) -> Recorded {
    let failure = Failure {
        consumer,
        message,
        reason: "attempts-spent",
        error,
        first_failure: None,
        last_failure: last,
        attempts: 5,
        host: "shop-1",
        version: "1.2",
    };
    let mut tx = store.begin().await.unwrap();
    let recorded = failed::record(&mut tx, &failure, at(100)).await.unwrap();
    store.commit(tx).await.unwrap();
    recorded
}

async fn rows<DB: Backend>(store: &Store<DB>, query: &Query) -> Vec<(i64, String)> {
    let rows = failed::list(store, query).await.unwrap();
    rows.into_iter().map(|row| (row.row, row.message.id)).collect()
}

async fn numbers<DB: Backend>(store: &Store<DB>) -> Vec<i64> {
    rows(store, &Query::default()).await.into_iter().map(|(row, _)| row).collect()
}

fn replay<'a>(rows: &'a [i64], owner: &'a str) -> (Target<'a>, Acted<'a>) {
    let status = Status::Failed;
    let target = Target { rows, status, owner: Some(owner), acted_since: None };
    let (what, to) = ("replayed", Status::Replayed);
    (target, Acted { what, to, actor: "ana", reason: "mended", edited_to: None })
}

async fn several_failures_of_one_id_are_one_row_with_a_history<DB: Backend>(store: Store<DB>) {
    assert_eq!(
        fail(&store, QUEUE, "m-1", "503 after 17 ms", Some(at(5))).await,
        Recorded::Failed(1)
    );
    for again in [Some(at(5)), Some(at(4)), None] {
        let known = fail(&store, QUEUE, "m-1", "503 after 17 ms", again).await;
        assert_eq!(known, Recorded::Known, "{again:?} is no younger failure");
    }
    let other = fail(&store, "mail", "m-1", "503", Some(at(5))).await;
    assert_eq!(other, Recorded::Failed(1), "another consumer's failure of it");

    let mine = Query { consumer: Some(QUEUE.to_owned()), ..Query::default() };
    let row = failed::list(&store, &mine).await.unwrap().remove(0);
    assert_eq!(
        (&row.message.body, &row.message.headers),
        (&message("").body, &message("").headers)
    );
    assert_eq!((row.host.as_str(), row.version.as_str(), row.attempts), ("shop-1", "1.2", 5));
    assert_eq!((row.first_failure, row.last_failure), (at(5), at(5)));
    assert_eq!(row.group(), Group::of("attempts-spent", "503 after 2 ms"));
    let claimed = failed::claim(&store, "a", &[row.row], LEASE, at(6)).await.unwrap();
    let (target, acted) = replay(&claimed, "a");
    assert_eq!(failed::act(&store, &target, &acted, at(7)).await.unwrap(), 1);
    assert!(rows(&store, &mine).await.is_empty());

    let late = fail(&store, QUEUE, "m-1", "503 after 17 ms", Some(at(5))).await;
    assert_eq!(late, Recorded::Known, "the failure before the replay, reported late");
    let again = fail(&store, QUEUE, "m-1", "timeout\0", Some(at(9))).await;
    assert_eq!(again, Recorded::Failed(2));
    let row = failed::list(&store, &mine).await.unwrap().remove(0);
    assert_eq!(
        (row.failures, row.replays, row.first_failure, row.last_failure),
        (2, 1, at(5), at(9))
    );
    assert_eq!((row.status, row.actor), (Status::Failed, None));
    let history = failed::history(&store, QUEUE, "m-1").await.unwrap();
    let lines: Vec<_> = history.iter().map(|e| (e.at, e.what.as_str(), e.who.as_str())).collect();
    assert_eq!(
        lines,
        [(at(5), "failed", "shop-1"), (at(7), "replayed", "ana"), (at(9), "failed", "shop-1")]
    );
    assert_eq!(history[2].why, "attempts-spent: timeout\u{fffd}");
}

async fn a_failure_that_was_rolled_back_was_none<DB: Backend>(store: Store<DB>) {
    let message = message("m-1");
    let failure = Failure {
        consumer: QUEUE,
        message: &message,
        reason: "poison",
        error: "no",
        first_failure: Some(at(1)),
        last_failure: Some(at(2)),
        attempts: 1,
        host: "",
        version: "",
    };
    let mut tx = store.begin().await.unwrap();
    failed::record(&mut tx, &failure, at(3)).await.unwrap();
    tx.rollback().await.unwrap();
    assert!(numbers(&store).await.is_empty());
    assert!(failed::history(&store, QUEUE, "m-1").await.unwrap().is_empty());
}

async fn it_is_searched_by_each_condition_and_paged_by_number<DB: Backend>(store: Store<DB>) {
    for n in 1..=9_u64 {
        let error = if n % 3 == 0 { "Catalog said 503" } else { "no `total`" };
        fail(&store, QUEUE, &format!("m-{n}"), error, Some(at(n))).await;
    }
    let ids = async |sift: Sift| -> String {
        let query = Query { sift, ..Query::default() };
        let count = failed::count(&store, &query).await.unwrap();
        let found = rows(&store, &query).await;
        assert_eq!(usize::try_from(count).unwrap(), found.len());
        found.iter().map(|(_, id)| id.trim_start_matches("m-")).collect::<Vec<_>>().join(" ")
    };
    let text = |text: &str| Some(text.to_owned());
    let group = Some(Group::of("attempts-spent", "Catalog said 500"));
    for (sift, expected) in [
        (Sift::default(), "1 2 3 4 5 6 7 8 9"),
        (Sift { ids: vec!["m-7".into(), "m-2".into(), "x".into()], ..Sift::default() }, "2 7"),
        (Sift { kind: text("order.created"), ..Sift::default() }, "1 2 3 4 5 6 7 8 9"),
        (Sift { kind: text("order"), ..Sift::default() }, ""),
        (Sift { key: text("key of m-4"), ..Sift::default() }, "4"),
        (Sift { before: Some(at(3)), ..Sift::default() }, "1 2"),
        (Sift { since: Some(at(8)), ..Sift::default() }, "8 9"),
        (Sift { error: text("CATALOG"), ..Sift::default() }, "3 6 9"),
        (Sift { error: text("%"), ..Sift::default() }, ""),
        (Sift { group, since: Some(at(4)), ..Sift::default() }, "6 9"),
    ] {
        assert_eq!(ids(sift.clone()).await, expected, "{sift:?}");
    }
    let (mut after, mut pages) = (0, Vec::new());
    loop {
        let page = rows(&store, &Query { after, max: 4, ..Query::default() }).await;
        let Some((last, _)) = page.last() else { break };
        after = *last;
        pages.push(page.len());
        // What comes or goes meanwhile moves nothing from one page to another.
        fail(&store, "mail", &format!("late-{after}"), "x", Some(at(50))).await;
        if pages.len() == 5 {
            break;
        }
    }
    assert_eq!(pages, [4, 4, 3, 1, 1], "9, and those that came meanwhile");
    let groups = failed::groups(&store, Some(QUEUE), 10).await.unwrap();
    let counts: Vec<_> = groups.iter().map(|g| (g.messages, g.sample.as_str(), g.first)).collect();
    assert_eq!(counts, [(6, "no `total`", at(1)), (3, "Catalog said 503", at(3))]);
    let counted = failed::counts(&store).await.unwrap().into_iter().next_back().unwrap();
    assert_eq!((counted.consumer.as_str(), counted.messages, counted.oldest), (QUEUE, 9, at(1)));
}

async fn two_operators_never_hold_one_row<DB: Backend>(store: Store<DB>) {
    for n in 1..=3 {
        fail(&store, QUEUE, &format!("m-{n}"), "x", Some(at(n))).await;
    }
    let all = numbers(&store).await;
    let ana = failed::claim(&store, "ana", &all[..2], LEASE, at(10)).await.unwrap();
    let bea = failed::claim(&store, "bea", &all, LEASE, at(11)).await.unwrap();
    assert_eq!((ana.len(), bea), (2, vec![all[2]]));
    let (target, acted) = replay(&all, "ana");
    assert_eq!(failed::act(&store, &target, &acted, at(12)).await.unwrap(), 2, "hers only");
    assert_eq!(failed::act(&store, &target, &acted, at(12)).await.unwrap(), 0, "and once");
    let late = failed::claim(&store, "eve", &all, LEASE, at(21)).await.unwrap();
    assert_eq!(late, [all[2]], "a lease ends");
    let (target, acted) = replay(&all, "bea");
    assert_eq!(
        failed::act(&store, &target, &acted, at(22)).await.unwrap(),
        0,
        "and with it the right"
    );
    assert_eq!(failed::release(&store, "eve").await.unwrap(), 1);
    assert_eq!(failed::claim(&store, "bea", &all, LEASE, at(23)).await.unwrap(), [all[2]]);
}

async fn lesson_s06_a_discard_can_be_undone_within_its_window<DB: Backend>(store: Store<DB>) {
    fail(&store, QUEUE, "m-1", "x", Some(at(1))).await;
    let row = numbers(&store).await;
    let failed = Target { rows: &row, status: Status::Failed, owner: None, acted_since: None };
    let (what, to) = ("discarded", Status::Discarded);
    let discard = Acted { what, to, actor: "ana", reason: "test order", edited_to: None };
    assert_eq!(failed::act(&store, &failed, &discard, at(10)).await.unwrap(), 1);
    assert!(numbers(&store).await.is_empty());
    let (what, to) = ("restored", Status::Failed);
    let restore = Acted { what, to, actor: "bea", reason: "it was real", edited_to: None };
    let undo = async |now: WallTime| {
        let acted_since = Some(now.minus(UNDO_WINDOW));
        let gone = Target { rows: &row, status: Status::Discarded, owner: None, acted_since };
        failed::act(&store, &gone, &restore, now).await.unwrap()
    };
    assert_eq!(undo(at(11).plus(UNDO_WINDOW)).await, 0, "too late");
    assert_eq!(undo(at(10).plus(UNDO_WINDOW)).await, 1, "just in time");
    let log = failed::history(&store, QUEUE, "m-1").await.unwrap();
    let whats: Vec<_> = log.iter().map(|entry| (entry.what.as_str(), entry.why.as_str())).collect();
    assert_eq!(whats[1..], [("discarded", "test order"), ("restored", "it was real")]);
    assert_eq!(numbers(&store).await, row, "in its old place");
}

async fn only_what_was_acted_on_is_forgotten<DB: Backend>(store: Store<DB>) {
    for n in 1..=2 {
        fail(&store, QUEUE, &format!("m-{n}"), "x", Some(at(n))).await;
    }
    let all = numbers(&store).await;
    failed::claim(&store, "ana", &all[..1], LEASE, at(3)).await.unwrap();
    let (target, acted) = replay(&all[..1], "ana");
    failed::act(&store, &target, &acted, at(4)).await.unwrap();
    assert_eq!(failed::forget(&store, at(4), 10).await.unwrap(), 0);
    assert_eq!(failed::forget(&store, at(5), 10).await.unwrap(), 1);
    assert_eq!(numbers(&store).await, all[1..]);
    assert!(failed::history(&store, QUEUE, "m-1").await.unwrap().is_empty());
    assert_eq!(failed::history(&store, QUEUE, "m-2").await.unwrap().len(), 1);
}

async fn a_message_that_was_brought_back_waits_for_a_person_and_is_never_forgotten<DB: Backend>(
    store: Store<DB>,
) {
    fail(&store, QUEUE, "m-1", "x", Some(at(1))).await;
    let row = numbers(&store).await;
    for (status, what, to, now) in [
        (Status::Failed, "discarded", Status::Discarded, at(2)),
        (Status::Discarded, "restored", Status::Failed, at(3)),
    ] {
        let target = Target { rows: &row, status, owner: None, acted_since: None };
        let acted = Acted { what, to, actor: "ana", reason: "it was real", edited_to: None };
        assert_eq!(failed::act(&store, &target, &acted, now).await.unwrap(), 1);
    }
    assert_eq!(failed::forget(&store, at(100), 10).await.unwrap(), 0);
    assert_eq!(numbers(&store).await, row);
}

/// The consumer may be faster than whoever marks the replayed row, and its host's clock slower than
/// the one that the message failed on first: which replay it failed after tells more than times.
async fn a_replayed_message_that_fails_again_is_kept_whatever_the_clocks_say<DB: Backend>(
    store: Store<DB>,
) {
    for marked_first in [true, false] {
        let id = format!("m-{marked_first}");
        fail(&store, QUEUE, &id, "503", Some(at(50))).await;
        let all = numbers(&store).await;
        let held = failed::claim(&store, "ana", &all[all.len() - 1..], LEASE, at(51)).await;
        let held = held.unwrap();
        let (target, acted) = replay(&held, "ana");
        let mark = async || failed::act(&store, &target, &acted, at(52)).await.unwrap();
        if marked_first {
            assert_eq!(mark().await, 1);
        }
        let again = async |last| {
            let mut copy = message(&id);
            copy.headers.insert("x-replays".to_owned(), "1".to_owned());
            fail_with(&store, QUEUE, &copy, "503", Some(last)).await
        };
        assert_eq!(again(at(49)).await, Recorded::Failed(2), "marked first: {marked_first}");
        assert_eq!(again(at(49)).await, Recorded::Known, "the sweeper tells it once more");
        if !marked_first {
            assert_eq!(mark().await, 0, "it waits again: nothing to mark");
        }
        let stale = fail(&store, QUEUE, &id, "503", Some(at(48))).await;
        assert_eq!(stale, Recorded::Known, "a failure from before the replay, told late");
        let row = failed::list(&store, &Query::default()).await.unwrap().pop().unwrap();
        assert_eq!((row.message.id, row.failures, row.replays), (id, 2, 1));
    }
}

#[test]
fn a_preview_can_be_read_whatever_the_body_is() {
    assert_eq!(preview(br#"{"a":1}"#), "{\n  \"a\": 1\n}");
    assert_eq!(preview(b"plain text"), "plain text");
    assert_eq!(preview(&[0, 159, 146, 150]), "009f9296");
    assert_eq!(preview(b""), "");
    let long = preview("ñ".repeat(4_000).as_bytes());
    assert!(long.len() <= 4_096 + '…'.len_utf8() && long.ends_with('…'));
    assert!(preview(&[0xff; 10_000]).len() <= 4_096 + '…'.len_utf8());
}

macro_rules! on_every_database {
    ($($name:ident)*) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $name() {
                let file = super::common::File::new();
                super::$name(file.open().await).await;
            })*
        }

        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                let database = mamparo_testkit::database::Database::create();
                let store = mamparo_store::PostgresStore::open(&database.url()).await.unwrap();
                super::$name(store).await;
            })*
        }
    };
}

on_every_database! {
    several_failures_of_one_id_are_one_row_with_a_history
    a_failure_that_was_rolled_back_was_none
    it_is_searched_by_each_condition_and_paged_by_number
    two_operators_never_hold_one_row
    lesson_s06_a_discard_can_be_undone_within_its_window
    only_what_was_acted_on_is_forgotten
    a_message_that_was_brought_back_waits_for_a_person_and_is_never_forgotten
    a_replayed_message_that_fails_again_is_kept_whatever_the_clocks_say
}

//! `mamparo parked`, the binary itself, on both databases.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::process::{Command, Stdio};

use mamparo_core::time::WallTime;
use mamparo_store::failed::{self, Query};
use mamparo_store::parked::{self, Failure, Wait};
use mamparo_store::queue::QueueMessage;
use mamparo_store::{Backend, PostgresStore, SqliteStore, Store};
use mamparo_testkit::database::Database;

/// A year in which nothing of these tests is due.
const FAR: i64 = 32_503_680_000_000;

/// The exit code, standard output and standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mamparo"));
    let output = command.args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn message(id: &str, key: &str) -> QueueMessage {
    QueueMessage {
        id: id.to_owned(),
        kind: "order.created".to_owned(),
        exchange: "events".to_owned(),
        routing_key: "order.created".to_owned(),
        key: key.to_owned(),
        headers: [("x-attempts".to_owned(), "2".to_owned())].into(),
        body: b"{}".to_vec(),
    }
}

/// One key with two behind its first message, one without a key, and another queue's.
async fn fill<DB: Backend>(store: &Store<DB>) {
    let (due, now) = (WallTime::from_unix_millis(FAR), WallTime::from_unix_millis(1_000));
    let (wait, behind) = (Wait { due, attempts: 2, now }, Wait { due, attempts: 0, now });
    let text = str::to_owned;
    let failure =
        Failure { error: text("the bank says 503"), host: text("node-7"), version: text("1.2") };
    let mut tx = store.begin().await.unwrap();
    for (queue, id, key) in
        [("orders.saga", "a1", "a"), ("orders.saga", "b1", ""), ("stock", "s1", "s")]
    {
        parked::park(&mut tx, queue, &message(id, key), &wait, &failure).await.unwrap();
    }
    for id in ["a2", "a3"] {
        parked::park_behind(&mut tx, "orders.saga", &message(id, "a"), &behind).await.unwrap();
    }
    store.commit(tx).await.unwrap();
}

fn list_shows_what_waits_and_why(url: &str) {
    let (code, out, err) = run(&["parked", "list", "--store", url]);
    assert_eq!(code, 0, "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 4, "{out}");
    let words: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(words[..5], ["orders.saga", "order.created", "a", "a1", "2"], "{out}");
    assert!(lines[1].ends_with("2       the bank says 503"), "{out}");
    assert!(lines[3].starts_with("stock"), "{out}");
    assert!(err.contains("5 wait, 3 of them shown") && err.contains("hint: "), "{err}");
    let (_, out, _) = run(&["parked", "list", "--store", url, "--queue", "orders.saga", "--json"]);
    let rows: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 2);
    let first = &rows[0];
    assert_eq!(
        (&first["id"], &first["due_ms"], &first["behind"]),
        (&"a1".into(), &FAR.into(), &2.into())
    );
    assert_eq!((&first["attempts"], &first["since_ms"]), (&2.into(), &1_000.into()));
    assert_eq!(first["error"], "the bank says 503");
}

async fn release_and_skip_do_what_they_say<DB: Backend>(url: &str, store: &Store<DB>) {
    let on = |verb: &[&str]| {
        let place = ["--store", url, "--queue", "orders.saga.v2"];
        run(&[&["parked"], verb, &place[..]].concat())
    };
    let (code, out, err) = on(&["release", "--all"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("hint: give --yes"), "{err}");
    assert_eq!(on(&["release", "--yes"]).0, 2, "which ones?");
    let (code, _, err) = run(&["parked", "release", "--store", url, "--all", "--yes"]);
    assert!(code == 2 && err.contains("one of orders.saga, stock"), "{err}");

    let due = async |id| {
        let row = parked::find(store, "orders.saga", Some(id), None).await.unwrap();
        row.unwrap().due < WallTime::from_unix_millis(FAR)
    };
    let (code, out, err) = on(&["release", "--id", "a2", "--yes"]);
    assert_eq!((code, out.as_str()), (1, "1\n"), "{err}");
    assert!(err.contains("still goes behind"), "{err}");
    assert!(due("a2").await && !due("a1").await);
    let (code, out, err) = on(&["release", "--key", "a", "--yes"]);
    assert_eq!((code, out.as_str()), (0, "2\n"), "{err}");
    assert!(due("a1").await && !due("b1").await);
    let (code, out, err) = on(&["release", "--key", "a", "--yes"]);
    assert_eq!((code, out.as_str()), (1, "0\n"), "{err}");

    let skip = |which: &[&str], more: &[&str]| on(&[&["skip"], which, more].concat());
    let why = ["--reason", "agreed with team-orders", "--actor", "ana"];
    let signed = [&why[..], &["--yes"]].concat();
    assert_eq!(skip(&["--key", "a"], &[]).0, 2, "no reason");
    let empty = skip(&["--key", "a"], &["--reason", " ", "--yes"]);
    assert!(empty.0 == 2 && empty.2.contains("hint: "), "{}", empty.2);
    let (code, _, err) = skip(&["--key", "a"], &why);
    assert!(code == 2 && err.contains("hint: give --yes"), "{err}");
    let (code, _, err) = skip(&["--id", "a3"], &signed);
    assert!(code == 1 && err.contains("that one goes first"), "{err}");
    let (code, _, err) = skip(&["--id", "nobody"], &signed);
    assert!(code == 1 && err.contains("no such message"), "{err}");
    let (code, out, err) = skip(&["--key", "a"], &signed);
    assert_eq!((code, out.as_str()), (0, "a1\n"), "{err}");

    let rows = failed::list(store, &Query::default()).await.unwrap();
    assert_eq!(rows.len(), 1);
    let row = &rows[0];
    assert_eq!((row.message.clone(), row.consumer.as_str()), (message("a1", "a"), "orders.saga"));
    assert_eq!((row.reason.as_str(), row.error.as_str()), ("skipped", "the bank says 503"));
    assert_eq!((row.attempts, row.host.as_str(), row.version.as_str()), (2, "node-7", "1.2"));
    let (who, why) = (row.actor.as_deref(), row.action_reason.as_deref());
    assert_eq!((who, why), (Some("ana"), Some("agreed with team-orders")));
    let history = failed::history(store, "orders.saga", "a1").await.unwrap();
    let last = history.last().unwrap();
    assert_eq!((last.what.as_str(), last.who.as_str()), ("skipped", "ana"));
    let next = parked::find(store, "orders.saga", None, Some("a")).await.unwrap().unwrap();
    assert_eq!(next.message.id, "a2", "the next of its key is the first");

    // What a consumer has in hand is being found out.
    let now = WallTime::from_unix_millis(FAR);
    let lease = std::time::Duration::from_secs(30);
    let claimed = parked::claim(store, "orders.saga", "consumer-1", 9, lease, now).await.unwrap();
    assert_eq!(claimed.len(), 2, "b1 and a2");
    let (code, _, err) = skip(&["--key", "a"], &signed);
    assert!(code == 1 && err.contains("in a consumer's hand"), "{err}");
    let (_, out, _) = run(&["parked", "list", "--store", url]);
    assert!(out.contains("in hand"), "{out}");
}

#[tokio::test]
async fn messages_of_a_file_are_shown_released_and_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let (code, _, err) = run(&["parked", "list", "--store", &url]);
    assert!(code == 2 && err.contains("hint: "), "{err}");
    let store = SqliteStore::open(&url).await.unwrap();
    fill(&store).await;
    list_shows_what_waits_and_why(&url);
    release_and_skip_do_what_they_say(&url, &store).await;
}

#[tokio::test]
async fn messages_of_a_server_are_shown_released_and_skipped() {
    let database = Database::create();
    let store = PostgresStore::open(&database.url()).await.unwrap();
    fill(&store).await;
    list_shows_what_waits_and_why(&database.url());
    release_and_skip_do_what_they_say(&database.url(), &store).await;
}

//! `mamparo outbox`, the binary itself, on both databases.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::process::{Command, Stdio};
use std::time::Duration;

use mamparo_core::time::WallTime;
use mamparo_store::outbox::{self, Confirmed, Event, Parked, RelaySession, Report};
use mamparo_store::{Backend, PostgresStore, SqliteStore, Store};
use mamparo_testkit::database::Database;

/// The exit code, standard output and standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mamparo"));
    let output = command.arg("outbox").args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Three events of one key, the first one refused, and one that nothing holds up.
async fn fill<DB: Backend>(store: &Store<DB>) {
    let now = WallTime::from_unix_millis(1_000);
    let mut tx = store.begin().await.unwrap();
    for (id, key) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        let event = Event { id: id.to_owned(), ..Event::new("order.created", key, b"{}".to_vec()) };
        outbox::enqueue(&mut tx, &event, now).await.unwrap();
    }
    store.commit(tx).await.unwrap();
    let session = RelaySession::new(store);
    let tenure = session.heartbeat(Duration::from_secs(10), now).await.unwrap();
    let rooms: Vec<_> = tenure.held.iter().map(|held| (held.shard, 10)).collect();
    let read = session.read(&rooms, &[]).await.unwrap();
    let held = |shard| *tenure.held.iter().find(|held| held.shard == shard).unwrap();
    let due = WallTime::from_unix_millis(9_000);
    let error = "no queue takes it".to_owned();
    let (a1, a2) = (&read[0], &read[1]);
    let report = Report {
        parked: vec![Parked { row: a1.row, held: held(a1.shard), due, error }],
        behind: vec![Confirmed { row: a2.row, held: held(a2.shard) }],
        ..Report::default()
    };
    assert_eq!(session.record(&report, None).await.unwrap().waiting, 2);
    store.close().await;
}

fn the_verbs_work(url: &str) {
    let (code, out, err) = run(&["list", "--store", url]);
    assert_eq!(code, 0, "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 4, "{out}");
    assert!(lines[1].contains("refused") && lines[1].contains("no queue takes it"), "{out}");
    assert!(lines[2].contains("behind") && lines[3].contains("ready"), "{out}");
    assert!(
        err.contains("3 pending, 2 of them wait, 1 refused") && err.contains("hint: "),
        "{err}"
    );
    let (_, out, _) = run(&["list", "--store", url, "--waiting", "--json"]);
    let rows: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 2);
    assert_eq!((&rows[0]["id"], &rows[0]["due_ms"]), (&"a1".into(), &9_000.into()));
    let (code, out, err) = run(&["requeue", "--store", url, "--all"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("hint: give --yes"), "{err}");
    let second = rows[1]["row"].to_string();
    let (code, out, err) = run(&["requeue", "--store", url, "--row", &second, "--yes"]);
    assert_eq!((code, out.as_str()), (1, "0\n"), "{err}");
    let (code, out, err) = run(&["requeue", "--store", url, "--all", "--yes"]);
    assert_eq!((code, out.as_str()), (0, "1\n"), "{err}");
    let (code, _, err) = run(&["requeue", "--store", url, "--all", "--yes"]);
    assert!(code == 0 && err.contains("nothing waits"), "{err}");
    assert_eq!(run(&["requeue", "--store", url]).0, 2, "which ones?");
}

#[tokio::test]
async fn events_of_a_file_are_shown_and_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let (code, _, err) = run(&["list", "--store", &url]);
    assert!(code == 2 && err.starts_with("error: failed to "), "{err}");
    fill(&SqliteStore::open(&url).await.unwrap()).await;
    the_verbs_work(&url);
}

#[tokio::test]
async fn events_of_a_server_are_shown_and_sent_again() {
    let database = Database::create();
    fill(&PostgresStore::open(&database.url()).await.unwrap()).await;
    the_verbs_work(&database.url());
}

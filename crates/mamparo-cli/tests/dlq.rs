//! The binary itself: what it prints, where, and how it ends.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mamparo_core::time::WallTime;
use mamparo_messaging::broker::Filter;
use mamparo_messaging::{Broker as _, EmbeddedBroker, QueuePolicy};
use mamparo_store::queue::{self, QueueMessage};

const DEAD: WallTime = WallTime::from_unix_millis(1_796_025_909_042);

struct Ran {
    code: i32,
    out: String,
    err: String,
}

struct Broker {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Broker {
    /// Two queues; three dead letters in one of them.
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broker.db");
        let broker = EmbeddedBroker::open(&format!("sqlite:{}", path.display())).await.unwrap();
        for name in ["orders.saga", "payments.saga"] {
            broker.declare(&QueuePolicy::new(name, "team").bind("order.#")).await.unwrap();
        }
        for (n, kind, error) in [
            (1, "order.created", "the catalog said 503"),
            (2, "payment.confirmed", "\u{1b}[31mmissing field `total`"),
            (3, "order.created", "the catalog said 503"),
        ] {
            let headers = [
                ("x-attempts", "5"),
                ("x-attempts-queue", "orders.saga"),
                ("x-dead-reason", "attempts-spent"),
                ("x-last-error", error),
            ];
            let message = QueueMessage {
                id: format!("m-{n}"),
                kind: kind.to_owned(),
                exchange: "events".to_owned(),
                routing_key: kind.to_owned(),
                key: format!("o-{n}"),
                headers: headers.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
                body: format!("{{\"order\":{n}}}").into_bytes(),
            };
            queue::publish(broker.store(), "", "orders.saga.dlq", &message, DEAD).await.unwrap();
        }
        broker.store().close().await;
        Self { _folder: folder, path }
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    fn dlq(&self, verb: &str, rest: &[&str]) -> Ran {
        let url = self.url();
        let mut args = vec!["dlq", verb, "--broker", &url, "--queue", "orders.saga"];
        args.extend(rest);
        let mut ran = run(&args);
        ran.err = ran.err.replace(&*self.path.to_string_lossy(), "broker.db");
        ran
    }
}

fn run(args: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mamparo"));
    let command = command.args(args).env("USER", "bea");
    let output = command.stdin(Stdio::null()).output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[tokio::test]
async fn list_is_a_table_on_stdout_and_words_on_stderr() {
    let broker = Broker::new().await;
    let ran = broker.dlq("list", &[]);
    let expected = "\
ID   TYPE               KEY  DEAD SINCE                ATTEMPTS  REASON          LAST ERROR
m-1  order.created      o-1  2026-11-30T08:05:09.042Z  5         attempts-spent  the catalog said 503
m-2  payment.confirmed  o-2  2026-11-30T08:05:09.042Z  5         attempts-spent  \u{fffd}[31mmissing field `total`
m-3  order.created      o-3  2026-11-30T08:05:09.042Z  5         attempts-spent  the catalog said 503
";
    assert_eq!(ran.out, expected);
    let words = "\
3 of 3 dead letters of orders.saga
hint: mamparo dlq show --broker sqlite:broker.db --queue orders.saga --id ID
";
    assert_eq!((ran.code, ran.err.as_str()), (0, words));
}

#[tokio::test]
async fn list_speaks_json_and_filters_by_type() {
    let broker = Broker::new().await;
    let ran = broker.dlq("list", &["--json", "--filter-event", "payment.confirmed"]);
    let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let expected = serde_json::json!({
        "queue": "orders.saga",
        "total": 3,
        "messages": [{
            "id": "m-2", "type": "payment.confirmed", "key": "o-2",
            "since": "2026-11-30T08:05:09.042Z", "attempts": 5, "reason": "attempts-spent",
            "error": "\u{1b}[31mmissing field `total`", "group": "ce6248d2b0b1a2fe",
        }],
    });
    assert_eq!((ran.code, value), (0, expected));
    let none = broker.dlq("list", &["--filter-event", "order"]);
    assert_eq!((none.code, none.out.as_str()), (0, ""));
    assert_eq!(none.err, "0 of 3 dead letters of orders.saga\n");
}

#[tokio::test]
async fn show_prints_headers_and_body() {
    let broker = Broker::new().await;
    let ran = broker.dlq("show", &["--id", "m-1"]);
    let expected = "\
id           m-1
type         order.created
key          o-1
dead since   2026-11-30T08:05:09.042Z
published    events order.created
header       x-attempts: 5
header       x-attempts-queue: orders.saga
header       x-dead-reason: attempts-spent
header       x-last-error: the catalog said 503
body         11 bytes
    {
      \"order\": 1
    }

";
    assert_eq!((ran.code, ran.out.as_str()), (0, expected));
    let ran = broker.dlq("show", &["--json", "--id", "m-3"]);
    let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(value["messages"][0]["details"]["body"]["order"], 3);
    let wrong = broker.dlq("show", &["--id", "m-9"]);
    assert_eq!((wrong.code, wrong.out.as_str()), (2, ""));
    assert!(wrong.err.contains("no dead letter of orders.saga has the id m-9"), "{}", wrong.err);
}

#[tokio::test]
async fn a_change_needs_yes_when_nobody_can_be_asked() {
    let broker = Broker::new().await;
    let discard = ["--reason", "test order"];
    for (verb, rest) in [("replay", &[][..]), ("discard", &discard[..])] {
        let ran = broker.dlq(verb, rest);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{verb}");
        assert!(
            ran.err.ends_with(
                "hint: give --yes to do it without being asked, or --dry-run to see what would be done\n"
            ),
            "{}",
            ran.err
        );
    }
    assert_eq!(broker.dlq("list", &[]).out.lines().count(), 4, "nothing was changed");
}

#[tokio::test]
async fn json_is_spoken_also_when_nothing_is_done() {
    let broker = Broker::new().await;
    let read = |ran: &Ran| serde_json::from_str::<serde_json::Value>(&ran.out).unwrap();
    let dry = broker.dlq("replay", &["--json", "--dry-run", "--filter-event", "order.created"]);
    let expected = serde_json::json!({
        "queue": "orders.saga", "verb": "replay", "chosen": ["m-1", "m-3"],
        "done": [], "left": [], "back": [], "untouched": 2, "end": "dry-run",
    });
    assert_eq!((dry.code, read(&dry)), (0, expected));
    let none = broker.dlq("replay", &["--json", "--yes", "--id", "m-9"]);
    let expected = serde_json::json!({
        "queue": "orders.saga", "verb": "replay",
        "done": [], "left": ["m-9"], "back": [], "untouched": 0, "end": "finished",
    });
    assert_eq!((none.code, read(&none)), (1, expected));
}

#[tokio::test]
async fn replay_moves_what_was_chosen_and_says_what_it_left() {
    let broker = Broker::new().await;
    let ran = broker.dlq("replay", &["--yes", "--filter-event", "order.created", "--max", "1"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "m-1\n"));
    assert_eq!(ran.err, "replayed 1 of 1 dead letters of orders.saga\n");
    let ran = broker.dlq("replay", &["--yes", "--json", "--id", "m-3", "--id", "m-1"]);
    let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&value["done"], &value["left"]), (&"m-3".into_list(), &"m-1".into_list()));
    assert_eq!(ran.code, 1, "one was not there any more");
    let nothing = broker.dlq("replay", &["--filter-event", "order.created"]);
    assert_eq!((nothing.code, nothing.err.as_str()), (0, "nothing to replay in orders.saga\n"));
    let url = format!("sqlite:{}", broker.path.display());
    let back = EmbeddedBroker::open(&url).await.unwrap();
    assert_eq!(back.depth("orders.saga").await.unwrap(), 2);
}

trait IntoList {
    fn into_list(self) -> serde_json::Value;
}

impl IntoList for &str {
    fn into_list(self) -> serde_json::Value {
        serde_json::json!([self])
    }
}

#[tokio::test]
async fn the_flags_of_the_design_are_enough() {
    let broker = Broker::new().await;
    let rest = ["--max", "1", "--filter-event", "order.created", "--reason", "mended", "--yes"];
    for (verb, id) in [("replay", "m-1\n"), ("discard", "m-3\n")] {
        let ran = broker.dlq(verb, &rest);
        assert_eq!((ran.code, ran.out.as_str()), (0, id), "{}", ran.err);
    }
    let back = EmbeddedBroker::open(&broker.url()).await.unwrap();
    let replayed = back.browse("orders.saga", &Filter::default()).await.unwrap();
    assert_eq!(replayed[0].message.header("x-replayed-by"), Some("bea"), "the user's name");
    assert_eq!(replayed[0].message.header("x-replay-reason"), Some("mended"));
    let archive = queue::archive(back.store(), "orders.saga.dlq", 10).await.unwrap();
    assert_eq!((archive[0].actor.as_str(), archive[0].reason.as_str()), ("bea", "mended"));
}

#[tokio::test]
async fn discard_takes_an_actor_and_needs_a_reason() {
    let broker = Broker::new().await;
    assert_eq!(broker.dlq("discard", &["--yes"]).code, 2);
    for rest in [["--actor", " ", "--reason", "x"], ["--actor", "ana", "--reason", " "]] {
        assert_eq!(broker.dlq("discard", &[&["--yes"], &rest[..]].concat()).code, 2);
    }
    let rest = ["--yes", "--actor", "ana", "--reason", "test order", "--id", "m-2"];
    let ran = broker.dlq("discard", &rest);
    assert_eq!((ran.code, ran.out.as_str()), (0, "m-2\n"));
    assert_eq!(ran.err, "discarded 1 of 1 dead letters of orders.saga\n");
    let url = format!("sqlite:{}", broker.path.display());
    let store = mamparo_store::SqliteStore::open(&url).await.unwrap();
    let archive = queue::archive(&store, "orders.saga.dlq", 10).await.unwrap();
    assert_eq!((archive.len(), archive[0].actor.as_str()), (1, "ana"));
}

#[tokio::test]
async fn unusable_input_ends_with_2_and_says_how_to_go_on() {
    let broker = Broker::new().await;
    let url = format!("sqlite:{}", broker.path.display());
    let ran = run(&["dlq", "list", "--broker", &url, "--queue", "order.saga"]);
    let words =
        "error: failed to find queue \"order.saga\": the broker has orders.saga, payments.saga\n";
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (2, "", words));
    let same = run(&["dlq", "list", "--broker", &url, "--queue", "orders.saga.dlq"]);
    assert_eq!(same.code, 0, "the dead-letter queue's own name means the same");
    let rabbit = run(&["dlq", "list", "--broker", "amqp://u:secret@mq", "--queue", "q"]);
    assert!(rabbit.code == 2 && !rabbit.err.contains("secret"), "{}", rabbit.err);
    assert_eq!(run(&["dlq", "list"]).code, 2);
    assert_eq!(run(&["dlq", "list", "--broker", &url, "--queue", "q", "--max", "0"]).code, 2);
    let more = broker.dlq("show", &["--max", "1", "--id", "m-1", "--id", "m-3"]);
    assert_eq!((more.code, more.err.as_str()), (2, "error: failed to choose: 2 ids and --max 1\n"));
    assert_eq!(run(&["--help"]).code, 0);
}

#[tokio::test]
async fn a_file_that_is_not_there_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let path: &Path = &folder.path().join("typo.db");
    let url = format!("sqlite:{}", path.display());
    let ran = run(&["dlq", "list", "--broker", &url, "--queue", "orders.saga"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("there is no file") && ran.err.contains("hint:"), "{}", ran.err);
    assert!(!path.exists());
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "no database, but a text of some length that SQLite can't read").unwrap();
    let url = format!("sqlite:{}", text.display());
    assert_eq!(run(&["dlq", "list", "--broker", &url, "--queue", "orders.saga"]).code, 2);
}

#[tokio::test]
async fn a_database_of_somebody_else_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("photos.db");
    // An empty file is an empty database.
    std::fs::write(&path, "").unwrap();
    let url = format!("sqlite:{}", path.display());
    let ran = run(&["dlq", "list", "--broker", &url, "--queue", "orders.saga"]);
    assert_eq!((ran.code, ran.out.as_str()), (2, ""));
    assert!(
        ran.err.contains("has no tables of mamparo") && ran.err.contains("hint:"),
        "{}",
        ran.err
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(std::fs::read(&path).unwrap(), b"");
}

/// The command dies at any point of a batch: what it had not come to lies where it lay.
#[tokio::test]
async fn lesson_s03_a_replay_that_is_killed_leaves_the_rest_in_place_and_in_order() {
    const LETTERS: usize = 2_000;
    let broker = Broker::new().await;
    let opened = EmbeddedBroker::open(&broker.url()).await.unwrap();
    let template = opened.browse("orders.saga.dlq", &Filter::default()).await.unwrap().remove(0);
    let mut tx = opened.store().begin().await.unwrap();
    let many = "WITH RECURSIVE n (i) AS (SELECT 4 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
        INSERT INTO mamparo_messages
            (queue, id, kind, exchange, routing_key, key, since, visible_at, headers, body)
        SELECT queue, 'm-' || i, kind, exchange, routing_key, 'o-' || i, since, since, headers, body
        FROM n, mamparo_messages WHERE id = 'm-1'";
    sqlx::query(many).bind(LETTERS as i64).execute(&mut *tx).await.unwrap();
    let books =
        "UPDATE mamparo_queues SET published = published + ? WHERE name = 'orders.saga.dlq'";
    sqlx::query(books).bind((LETTERS - 3) as i64).execute(&mut *tx).await.unwrap();
    opened.store().commit(tx).await.unwrap();
    let everything = Filter { max: 10_000, ..Filter::default() };
    let ids = async |queue: &str| -> Vec<String> {
        let rows = opened.browse(queue, &everything).await.unwrap();
        rows.into_iter().map(|stored| stored.message.id).collect()
    };
    let all = ids("orders.saga.dlq").await;
    assert_eq!((all.len(), &all[0]), (LETTERS, &template.message.id));
    let url = broker.url();
    let replay = ["dlq", "replay", "--queue", "orders.saga", "--max", "10000", "--yes"];
    for aborted in [true, false] {
        let before = opened.depth("orders.saga").await.unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mamparo"));
        command.args(replay).args(["--broker", &url]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        if aborted {
            while opened.depth("orders.saga").await.unwrap() < before + 5 {
                assert!(child.try_wait().unwrap().is_none(), "it is in the middle of its batch");
            }
            child.kill().unwrap();
        }
        assert_eq!(child.wait().unwrap().success(), !aborted);
        let (back, left) = (ids("orders.saga").await, ids("orders.saga.dlq").await);
        assert_eq!(left.is_empty(), !aborted);
        assert_eq!(
            [back, left].concat(),
            all,
            "once each, in their order, in one queue or the other"
        );
        let totals = queue::totals(opened.store()).await.unwrap();
        assert!(totals.iter().all(queue::Totals::balanced), "{totals:?}");
    }
}

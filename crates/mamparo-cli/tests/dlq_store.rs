//! `mamparo dlq` on failed messages of a service's own store, sent by a broker; and what is the same
//! on every broker.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use mamparo_core::time::WallTime;
use mamparo_messaging::broker::Filter;
use mamparo_messaging::{AnyBroker, Broker as _, Message, QueuePolicy};
use mamparo_store::failed::{self, Failure};
use mamparo_store::queue::QueueMessage;
use mamparo_store::{Backend, PostgresStore, SqliteStore, Store, inbox};
use mamparo_testkit::database::Database;
use mamparo_testkit::leavings::Leavings;
use mamparo_testkit::servers::amqp_url;

const DEAD: WallTime = WallTime::from_unix_millis(1_796_025_909_042);

struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn run(args: &[&str], stdin: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mamparo"));
    command.args(args).env("USER", "bea").stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that reads nothing may be gone already.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Three failed messages in a store, and a broker with their queue.
struct Shop<DB: Backend> {
    store: Store<DB>,
    broker: AnyBroker,
    queue: String,
    store_url: String,
    broker_url: String,
    _leavings: Leavings,
}

impl<DB: Backend> Shop<DB> {
    async fn new(store: Store<DB>, store_url: String, broker_url: String) -> Self {
        let broker = AnyBroker::open(&broker_url).await.unwrap();
        let queue = format!("failed.{}", uuid::Uuid::new_v4());
        broker.declare(&QueuePolicy::new(&queue, "team").bind("none.*")).await.unwrap();
        let _leavings = Leavings::on(&broker_url).queue(&queue);
        let shop = Self { store, broker, queue, store_url, broker_url, _leavings };
        for (n, kind, error) in [
            (1, "order.created", "the catalog said 503 after 17 ms"),
            (2, "order.paid", "missing field `total`"),
            (3, "order.created", "the catalog said 503 after 21 ms"),
        ] {
            shop.fail(&format!("m-{n}"), kind, error, DEAD).await;
        }
        shop
    }

    async fn fail(&self, id: &str, kind: &str, error: &str, at: WallTime) {
        let message = QueueMessage {
            id: id.to_owned(),
            kind: kind.to_owned(),
            exchange: "events".to_owned(),
            routing_key: kind.to_owned(),
            key: format!("key of {id}"),
            headers: [("traceparent".to_owned(), "00-a-b-01".to_owned())].into(),
            body: vec![0xff, 0x00, 0x01],
        };
        let failure = Failure {
            consumer: &self.queue,
            message: &message,
            reason: "attempts-spent",
            error,
            first_failure: None,
            last_failure: Some(at),
            attempts: 5,
            host: "shop-1",
            version: "1.2",
        };
        let mut tx = self.store.begin().await.unwrap();
        failed::record(&mut tx, &failure, at).await.unwrap();
        self.store.commit(tx).await.unwrap();
    }

    fn dlq(&self, verb: &str, rest: &[&str], stdin: &str) -> Ran {
        let mut args = vec!["dlq", verb, "--store", &self.store_url, "--broker", &self.broker_url];
        args.extend(rest);
        let mut ran = run(&args, stdin);
        for text in [&mut ran.out, &mut ran.err] {
            *text = text.replace(&self.queue, "orders.saga");
        }
        ran
    }

    async fn sent(&self) -> Vec<Message> {
        let stored = self.broker.browse(&self.queue, &Filter::default()).await.unwrap();
        stored.into_iter().map(|stored| stored.message).collect()
    }

    async fn seen(self) {
        let list = self.dlq("list", &[], "");
        let expected = "\
ID   TYPE           KEY         DEAD SINCE                ATTEMPTS  REASON          LAST ERROR
m-1  order.created  key of m-1  2026-11-30T08:05:09.042Z  5         attempts-spent  the catalog said 503 after 17 ms
m-2  order.paid     key of m-2  2026-11-30T08:05:09.042Z  5         attempts-spent  missing field `total`
m-3  order.created  key of m-3  2026-11-30T08:05:09.042Z  5         attempts-spent  the catalog said 503 after 21 ms
";
        assert_eq!((list.code, list.out.as_str()), (0, expected), "{}", list.err);
        assert!(list.err.starts_with("3 of 3 failed messages of orders.saga\nhint: "));
        let groups = self.dlq("groups", &[], "");
        let lines: Vec<&str> = groups.out.lines().collect();
        assert!(lines[1].contains("  2         2026-11-30"), "{}", groups.out);
        assert!(lines[1].ends_with("the catalog said <n> after <n> ms"), "{}", groups.out);
        let group = lines[1].split(' ').next().unwrap();
        let found = self.dlq("list", &["--group", group, "--newer-than", "36500d"], "");
        assert_eq!(found.out.lines().count(), 3, "{}", found.out);
        for (filter, count) in [
            (["--error", "CATALOG"], 2),
            (["--filter-event", "order.paid"], 1),
            (["--key", "key of m-3"], 1),
            (["--older-than", "36500d"], 0),
        ] {
            let found = self.dlq("list", &filter, "");
            let shown = found.out.lines().count().saturating_sub(1);
            assert_eq!(shown, count, "{filter:?}: {}", found.out);
        }
        let show = self.dlq("show", &["--id", "m-1"], "");
        assert!(show.out.contains("body         3 bytes\n    ff0001\n"), "{}", show.out);
        let history = "history      2026-11-30T08:05:09.042Z failed shop-1: attempts-spent: the";
        assert!(show.out.contains(history), "{}", show.out);
        let export = self.dlq("export", &["--id", "m-2"], "");
        let line: serde_json::Value = serde_json::from_str(&export.out).unwrap();
        assert_eq!((&line["bodyBase64"], &line["body"]), (&"/wAB".into(), &().into()));
        assert_eq!(
            (&line["headers"]["traceparent"], &line["id"]),
            (&"00-a-b-01".into(), &"m-2".into())
        );

        let dry = self.dlq("replay", &["--dry-run", "--filter-event", "order.created"], "");
        assert_eq!((dry.code, dry.out.as_str()), (0, "m-1\nm-3\n"), "{}", dry.err);
        assert!(dry.err.contains("would replay 2 of 3 failed messages"), "{}", dry.err);
        assert!(self.sent().await.is_empty());
    }

    async fn acted_on(self) {
        // A canary that the inbox knows, then the rest.
        let mut tx = self.store.begin().await.unwrap();
        inbox::insert(&mut tx, &self.queue, "m-1", "order.created", DEAD).await.unwrap();
        self.store.commit(tx).await.unwrap();
        let all = ["--yes", "--filter-event", "order.created", "--canary=20s", "--rate", "100/s"];
        let replay = self.dlq("replay", &all, "");
        assert_eq!((replay.code, replay.out.as_str()), (0, "m-1\nm-3\n"), "{}", replay.err);
        let sent = self.sent().await;
        assert_eq!(sent.iter().map(|m| m.id.as_str()).collect::<Vec<_>>(), ["m-1", "m-3"]);
        assert_eq!(sent[0].header("x-attempts"), Some("0"));
        assert_eq!(sent[0].header("x-replay-of"), Some("00-a-b-01"));
        assert_eq!(sent[0].header("x-dead-reason"), None);
        let again = self.dlq("replay", &["--yes", "--id", "m-3"], "");
        assert_eq!((again.code, again.out.as_str()), (1, ""), "{}", again.err);

        // It fails again: one row with its history.
        self.fail(
            "m-3",
            "order.created",
            "still 503",
            DEAD.plus(std::time::Duration::from_secs(9)),
        )
        .await;
        let show = self.dlq("show", &["--json", "--id", "m-3"], "");
        let value: serde_json::Value = serde_json::from_str(&show.out).unwrap();
        let history = value["messages"][0]["details"]["history"].as_array().unwrap();
        let whats: Vec<_> = history.iter().map(|event| event["what"].as_str().unwrap()).collect();
        assert_eq!(whats, ["failed", "replayed", "failed"]);

        let edit = ["--yes", "--id", "m-2", "--body", "-", "--set-header", "tenant=b"];
        let edit = self.dlq("edit", &[&edit[..], &["--reason", "total"]].concat(), "{\"total\":1}");
        assert_eq!((edit.code, edit.out.as_str()), (0, "m-2\n"), "{}", edit.err);
        let copy = self.sent().await.pop().unwrap();
        assert_eq!((copy.id.as_str(), copy.body.as_slice()), ("m-2~e1", &b"{\"total\":1}"[..]));
        assert_eq!((copy.header("x-edited-from"), copy.header("tenant")), (Some("m-2"), Some("b")));

        let discard = self.dlq("discard", &["--yes", "--id", "m-3", "--reason", "test order"], "");
        assert_eq!((discard.code, discard.out.as_str()), (0, "m-3\n"), "{}", discard.err);
        let queue = ["--queue", self.queue.as_str()];
        assert_eq!(self.dlq("list", &queue, "").out, "");
        let undo = self.dlq("undo", &[&queue[..], &["--yes"]].concat(), "");
        assert_eq!((undo.code, undo.out.as_str()), (0, "m-3\n"), "{}", undo.err);
        assert_eq!(self.dlq("list", &queue, "").out.lines().count(), 2, "the edited one stays out");
        let silent = ["--yes", "--canary=1ms", "--json"];
        let silent = self.dlq("replay", &silent, "");
        let value: serde_json::Value = serde_json::from_str(&silent.out).unwrap();
        assert_eq!((silent.code, &value["end"]), (1, &"canary-unknown".into()), "{}", silent.err);
    }
}

async fn sqlite(folder: &tempfile::TempDir) -> (SqliteStore, String) {
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    (SqliteStore::open(&url).await.unwrap(), url)
}

#[tokio::test]
async fn a_store_in_sqlite_is_looked_at_beside_an_embedded_broker() {
    let folder = tempfile::tempdir().unwrap();
    let (store, url) = sqlite(&folder).await;
    let broker = format!("sqlite:{}", folder.path().join("broker.db").display());
    Shop::new(store, url, broker).await.seen().await;
}

#[tokio::test]
async fn a_store_in_sqlite_is_acted_on_beside_an_embedded_broker() {
    let folder = tempfile::tempdir().unwrap();
    let (store, url) = sqlite(&folder).await;
    let broker = format!("sqlite:{}", folder.path().join("broker.db").display());
    Shop::new(store, url, broker).await.acted_on().await;
}

#[tokio::test]
async fn a_store_in_postgresql_is_looked_at_beside_rabbitmq() {
    let database = Database::create();
    let store = PostgresStore::open(&database.url()).await.unwrap();
    Shop::new(store, database.url(), amqp_url()).await.seen().await;
}

#[tokio::test]
async fn a_store_in_postgresql_is_acted_on_beside_rabbitmq() {
    let database = Database::create();
    let store = PostgresStore::open(&database.url()).await.unwrap();
    Shop::new(store, database.url(), amqp_url()).await.acted_on().await;
}

/// The whole way on RabbitMQ's own dead letters, by the command alone.
#[tokio::test]
async fn dead_letters_of_rabbitmq_are_listed_replayed_discarded_and_brought_back() {
    let broker = AnyBroker::open(&amqp_url()).await.unwrap();
    let queue = format!("failed.{}", uuid::Uuid::new_v4());
    let _leavings = Leavings::on(&amqp_url()).queue(&queue);
    broker.declare(&QueuePolicy::new(&queue, "team").bind("none.*")).await.unwrap();
    for n in 1..=3 {
        let event = mamparo_store::outbox::Event::new("order.created", "o-1", b"{}".to_vec());
        let message = Message { id: format!("m-{n}"), ..Message::from_event(event, "events") };
        broker.publish("", &format!("{queue}.dlq"), &message).await;
    }
    let url = amqp_url();
    let dlq = |verb: &str, rest: &[&str]| {
        let args = [&["dlq", verb, "--broker", &url, "--queue", &queue][..], rest].concat();
        run(&args, "")
    };
    let list = dlq("list", &[]);
    assert_eq!((list.code, list.out.lines().count()), (0, 4), "{}", list.err);
    assert!(!list.err.contains("guest:") && list.err.contains("3 of 3"), "{}", list.err);
    let replay = dlq("replay", &["--yes", "--max", "1"]);
    assert_eq!((replay.code, replay.out.as_str()), (0, "m-1\n"), "{}", replay.err);
    let discard = dlq("discard", &["--yes", "--id", "m-3", "--reason", "test"]);
    assert_eq!((discard.code, discard.out.as_str()), (0, "m-3\n"), "{}", discard.err);
    assert_eq!(dlq("list", &[]).out.lines().count(), 2);
    let undo = dlq("undo", &["--yes"]);
    assert_eq!((undo.code, undo.out.as_str()), (0, "m-3\n"), "{}", undo.err);
    let json: serde_json::Value = serde_json::from_str(&dlq("list", &["--json"]).out).unwrap();
    let ids: Vec<_> =
        json["messages"].as_array().unwrap().iter().map(|m| m["id"].clone()).collect();
    assert_eq!(ids, ["m-2", "m-3"]);
    let unknown = run(&["dlq", "list", "--broker", &url, "--queue", "no.such"], "");
    assert_eq!((unknown.code, unknown.out.as_str()), (2, ""), "{}", unknown.err);
}

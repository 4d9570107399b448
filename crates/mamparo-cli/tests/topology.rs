//! `mamparo topology`, the binary itself, against both brokers.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mamparo_testkit::leavings::Leavings;
use mamparo_testkit::servers::amqp_url;
use serde_json::{Value, json};

struct Ran {
    code: i32,
    out: String,
    err: String,
}

/// One policy file and one broker; on RabbitMQ, with a queue that nobody else has.
struct Place {
    folder: tempfile::TempDir,
    broker: String,
    queue: String,
    _leavings: Leavings,
}

impl Place {
    fn embedded() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = format!("sqlite:{}", folder.path().join("broker.db").display());
        let _leavings = Leavings::on(&broker);
        Self { folder, broker, queue: "orders.saga".to_owned(), _leavings }
    }

    fn rabbit() -> Self {
        let queue = format!("cli.{}", uuid::Uuid::new_v4().simple());
        let folder = tempfile::tempdir().unwrap();
        let made = ["", ".v2", ".retry.10s", ".retry.2m"].map(|suffix| format!("{queue}{suffix}"));
        let leavings = Leavings::on(&amqp_url());
        let _leavings = made.iter().fold(leavings, |all, queue| all.queue(queue));
        Self { folder, broker: amqp_url(), queue, _leavings }
    }

    /// The policy file with these keys of the queue.
    fn file(&self, keys: &str) -> PathBuf {
        let path = self.folder.path().join("orders.toml");
        let queue = &self.queue;
        let text = format!(
            "[service]\nname = \"orders\"\nowner = \"team\"\n[queues.\"{queue}\"]\n\
             owner = \"team-orders\"\nrunbook = \"docs/runbooks/dlq.md\"\n\
             events = [\"{queue}.created\"]\n{keys}\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    fn run(&self, verb: &str, keys: &str, rest: &[&str]) -> Ran {
        let file = self.file(keys);
        let mut args = vec!["topology", verb, "--broker", &self.broker];
        args.extend(rest);
        let mut ran = run(&args, &file);
        for text in [&mut ran.out, &mut ran.err] {
            *text = text
                .replace(&self.queue, "Q")
                .replace(&*self.folder.path().to_string_lossy(), "FOLDER");
        }
        ran
    }
}

fn run(args: &[&str], file: &Path) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mamparo"));
    let output = command.args(args).arg(file).stdin(Stdio::null()).output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Lines with single spaces and without the broker's release, so that a test reads without counting
/// columns and holds on the next one.
fn lines(text: &str) -> Vec<String> {
    let plain = |line: &str| {
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        match (line.find("RabbitMQ "), line.find(", messages wait")) {
            (Some(from), Some(to)) => format!("{}RabbitMQ{}", &line[..from], &line[to..]),
            _ => line,
        }
    };
    text.lines().map(plain).collect()
}

#[test]
fn a_plan_of_an_empty_rabbitmq_changes_nothing_and_apply_makes_it() {
    let place = Place::rabbit();
    let missing = [
        "Q (team-orders) on RabbitMQ, messages wait in tiers",
        "missing queue Q.dlq",
        "missing queue Q",
        "missing queue Q.retry",
        "unseen binding events Q.created -> Q",
    ];
    for verb in ["plan", "plan", "drift"] {
        let ran = place.run(verb, "", &[]);
        let mut shown = lines(&ran.out);
        // Somebody else may have made the exchange that all share.
        shown.retain(|line| !line.contains("exchange"));
        assert_eq!(shown, missing, "{verb}: {}", ran.err);
        assert_eq!(ran.code, i32::from(verb == "drift"), "{}", ran.err);
        assert!(ran.err.starts_with("looking at Q (1 of 1)\n"), "{}", ran.err);
        assert!(ran.err.contains("AMQP shows neither bindings nor policies"), "{}", ran.err);
        assert!(ran.err.contains("hint: `mamparo topology apply` makes what is missing"));
    }
    let nobody = place.run("apply", "", &[]);
    assert_eq!(nobody.code, 2, "{}", nobody.err);
    assert!(nobody.err.contains("hint: give --yes"), "{}", nobody.err);
    let made = place.run("apply", "", &["--yes"]);
    assert_eq!(made.code, 0, "{}", made.err);
    let order = ["made queue Q.dlq", "made queue Q", "made queue Q.retry", "made binding"];
    let places: Vec<usize> = order.iter().map(|words| made.err.find(words).unwrap()).collect();
    assert!(places.is_sorted(), "{}", made.err);
    let alike = place.run("drift", "", &[]);
    assert_eq!(alike.code, 0, "{}", alike.err);
    assert!(alike.err.contains("0 missing, 4 alike, 1 not visible: no drift"), "{}", alike.err);
    let again = place.run("apply", "", &["--yes"]);
    assert_eq!(again.code, 0, "{}", again.err);
}

#[test]
fn lesson_t04_a_changed_delay_is_shown_and_refused_and_the_tier_is_the_way() {
    let place = Place::rabbit();
    assert_eq!(place.run("apply", "", &["--yes"]).code, 0);
    let keys = "retry_delay = \"10s\"\ndelivery_limit = 20\nmax_length = 50";
    for (verb, rest) in [("plan", &[][..]), ("drift", &[]), ("apply", &["--yes"])] {
        let ran = place.run(verb, keys, rest);
        assert_eq!(ran.code, 1, "{verb}: {}", ran.err);
        let shown = lines(&ran.out);
        let expected = [
            "differs queue Q.dlq 0 messages",
            "x-max-length: ours 50, there 100000",
            "way: set version = 2: Q.v2 then stands beside the old queue until that one is empty",
            "differs queue Q 0 messages",
            "x-delivery-limit: ours 20, there 100",
            "way: set version = 2: Q.v2 then stands beside the old queue until that one is empty",
            "differs queue Q.retry 0 messages",
            "x-max-length: ours 50, there 100000",
            "x-message-ttl: ours 10000, there 30000",
            "way: set retry_tiers = [\"10s\"] instead of retry_delay: Q.retry.10s then stands beside \
             the old waiting room, which empties itself",
            "unseen binding events Q.created -> Q",
        ];
        let mut found = shown[2..].to_vec();
        // The order in which the broker tells two arguments of one queue is its own.
        found[7..9].sort();
        assert_eq!(found, expected, "{verb}");
        assert!(ran.err.contains("hint: docs/runbooks/topology.md"), "{}", ran.err);
    }
    // Nothing was changed by the refused apply, and the way that was shown is one.
    assert_eq!(place.run("drift", "", &[]).code, 0);
    let tiers = "retry_tiers = [\"10s\", \"2m\"]";
    assert_eq!(place.run("plan", tiers, &[]).code, 0);
    let made = place.run("apply", tiers, &["--yes"]);
    assert!(made.err.contains("made queue Q.retry.10s\nmade queue Q.retry.2m\n"), "{}", made.err);
    let second = "retry_delay = \"10s\"\ndelivery_limit = 20\nversion = 2";
    let ran = place.run("apply", second, &["--yes"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(place.run("drift", second, &[]).code, 0);
}

#[test]
fn json_says_the_same() {
    let place = Place::rabbit();
    assert_eq!(place.run("apply", "", &["--yes"]).code, 0);
    let ran = place.run("drift", "type = \"classic\"", &["--json"]);
    assert_eq!(ran.code, 1);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&report["drifts"], &report["refused"]), (&json!(true), &json!(true)));
    let queue = &report["queues"][0];
    assert_eq!(queue["waitingRoom"], "tiers");
    let parts = queue["parts"].as_array().unwrap();
    assert_eq!(parts[1], json!({"kind": "queue", "name": "Q.dlq", "state": "alike", "depth": 0}));
    let mut keys: Vec<&str> = parts[2]["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|difference| difference["key"].as_str().unwrap())
        .collect();
    keys.sort_unstable();
    let expected = ["x-dead-letter-strategy", "x-delivery-limit", "x-overflow", "x-queue-type"];
    assert_eq!(keys, expected, "each that a classic queue has not");
    let applied = place.run("apply", "", &["--yes", "--json"]);
    let outcome: Value = serde_json::from_str(&applied.out).unwrap();
    assert_eq!((&outcome["made"], &outcome["failed"]), (&json!(1), &json!([])), "the binding");
}

#[test]
fn the_embedded_brokers_tables_are_planned_too_and_changed_in_place() {
    let place = Place::embedded();
    let none = place.run("plan", "", &[]);
    assert_eq!(none.code, 2, "{}", none.err);
    assert!(none.err.contains("there is no file"), "{}", none.err);
    assert!(!place.folder.path().join("broker.db").exists(), "a plan makes nothing");
    let made = place.run("apply", "", &["--yes"]);
    assert_eq!(made.code, 0, "{}", made.err);
    assert_eq!(place.run("drift", "", &[]).code, 0);
    let changed = place.run("plan", "retry_delay = \"10s\"", &[]);
    assert_eq!(changed.code, 0, "{}", changed.err);
    let expected = [
        "Q (team-orders) on the embedded broker, messages wait in tiers",
        "alike queue Q.dlq 0 messages",
        "alike queue Q 0 messages",
        "change queue Q.retry 0 messages",
        "x-message-ttl: ours 10000, there 30000",
        "alike binding events Q.created -> Q",
    ];
    assert_eq!(lines(&changed.out), expected);
    assert_eq!(place.run("drift", "retry_delay = \"10s\"", &[]).code, 1);
    assert_eq!(place.run("apply", "retry_delay = \"10s\"", &["--yes"]).code, 0);
    assert_eq!(place.run("drift", "retry_delay = \"10s\"", &[]).code, 0);
    let other = place.run("drift", "waiting_room = \"broker\"\nretry_delay = \"10s\"", &[]);
    assert_eq!(other.code, 0, "{}", other.err);
    assert!(other.err.contains("messages wait in tiers"), "{}", other.err);
}

#[test]
fn what_cannot_be_used_ends_with_2_and_says_why() {
    let place = Place::embedded();
    let wrong = place.run("plan", "max_length = 0", &[]);
    assert_eq!((wrong.code, wrong.out.as_str()), (2, ""));
    assert!(wrong.err.contains("orders.toml:8: queues.\"Q\".max_length: 0 is"), "{}", wrong.err);
    let unread = run(&["topology", "plan", "--broker", "sqlite:x"], Path::new("none.toml"));
    assert_eq!(unread.code, 2);
    let file = place.file("");
    let twice = ["topology", "plan", "--broker", &place.broker, file.to_str().unwrap()];
    let twice = run(&twice, &file);
    assert_eq!(twice.code, 2);
    assert!(twice.err.contains("the same queue stands at"), "{}", twice.err);
    let nowhere = "amqp://guest:secret@127.0.0.1:1/%2f";
    let nobody = run(&["topology", "drift", "--broker", nowhere], &file);
    assert_eq!(nobody.code, 2, "{}", nobody.err);
    assert!(
        nobody.err.contains("failed to connect") && !nobody.err.contains("secret"),
        "{}",
        nobody.err
    );
    let service = "[service]\nname = \"bff\"\nowner = \"team\"\n";
    std::fs::write(&file, service).unwrap();
    let none = run(&["topology", "plan", "--broker", &place.broker], &file);
    assert_eq!(none.code, 2);
    assert!(none.err.contains("no [queues"), "{}", none.err);
}

//! Each key of a queue: what a good value comes to, and what is said of a wrong one.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use std::time::Duration;

use mamparo_core::message::topology::{Order, QueuePolicy, QueueType, WaitingRoom};
use mamparo_topology::parse;

/// The queue's own keys begin on the seventh line.
fn file(keys: &str) -> String {
    format!(
        "[service]\nname = \"orders\"\nowner = \"team\"\n[queues.\"orders.saga\"]\n\
         owner = \"team-orders\"\nrunbook = \"docs/runbooks/dlq.md\"\n{keys}\n"
    )
}

fn policy(keys: &str) -> QueuePolicy {
    let parsed = parse("orders.toml", &file(keys));
    parsed.unwrap_or_else(|found| panic!("{keys}\n{found}")).queue("orders.saga").unwrap().policy()
}

fn mistakes(keys: &str) -> String {
    match parse("orders.toml", &file(keys)) {
        Ok(_) => panic!("no mistake in {keys}"),
        Err(problems) => problems.to_string().replace("orders.toml:7: queues.\"orders.saga\".", ""),
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn an_empty_queue_has_the_defaults_of_core() {
    assert_eq!(policy(""), QueuePolicy::new("orders.saga", "team-orders"));
}

#[test]
fn each_key_reaches_the_policy() {
    let base = || QueuePolicy::new("orders.saga", "team-orders");
    let tiers = vec![seconds(5), seconds(30), seconds(120), seconds(600)];
    for (keys, expected) in [
        ("prefetch = 100", QueuePolicy { prefetch: 100, ..base() }),
        ("workers = 8", QueuePolicy { workers: Some(8), ..base() }),
        ("attempts = 7", QueuePolicy { attempts: 7, ..base() }),
        ("retry_delay = \"10s\"", QueuePolicy { retry_delay: seconds(10), ..base() }),
        (
            "retry_tiers = [\"5s\", \"30s\", \"2m\", \"10m\"]",
            QueuePolicy { retry_tiers: tiers, ..base() },
        ),
        ("waiting_room = \"tiers\"", base()),
        ("waiting_room = \"parked\"", QueuePolicy { waiting_room: WaitingRoom::Parked, ..base() }),
        ("waiting_room = \"broker\"", QueuePolicy { waiting_room: WaitingRoom::Broker, ..base() }),
        ("order = \"none\"", QueuePolicy { order: Order::None, ..base() }),
        (
            "order = \"strict\"\nwaiting_room = \"parked\"",
            QueuePolicy { order: Order::Strict, waiting_room: WaitingRoom::Parked, ..base() },
        ),
        ("handler_timeout = \"5s\"", QueuePolicy { handler_timeout: seconds(5), ..base() }),
        ("type = \"quorum\"", base()),
        ("type = \"classic\"", QueuePolicy { queue_type: QueueType::Classic, ..base() }),
        ("delivery_limit = 20", QueuePolicy { delivery_limit: 20, ..base() }),
        ("max_length = 500", QueuePolicy { max_length: 500, ..base() }),
        ("version = 1", base()),
        ("version = 2", base().versioned(2)),
    ] {
        assert_eq!(policy(keys), expected, "{keys}");
    }
    assert_eq!(policy("version = 2").queue, "orders.saga.v2");
}

#[test]
fn a_wrong_value_says_the_range_and_the_way_out() {
    for (keys, said) in [
        ("workers = 11", "workers: 11 is out of range: from 1 to 10"),
        ("workers = 0", "workers: 0 is out of range: from 1 to 10"),
        (
            "retry_tiers = []",
            "retry_tiers: 0 delays: from 1 to 10\n  hint: write the shortest first: [\"5s\", \"30s\", \"2m\", \"10m\"]",
        ),
        ("retry_tiers = \"5s\"", "retry_tiers: expected an array, found a string"),
        (
            "retry_tiers = [5]",
            "retry_tiers: a duration needs a unit\n  hint: write \"5ms\" or \"5s\"",
        ),
        (
            "retry_tiers = [\"30s\", \"5s\"]",
            "retry_tiers: 5s is not longer than 30s before it\n  hint: write the shortest first: [\"5s\", \"30s\", \"2m\", \"10m\"]",
        ),
        ("retry_tiers = [\"2d\"]", "retry_tiers: 48h is out of range: from 1ms to 24h"),
        (
            "waiting_room = \"parkd\"",
            "waiting_room: \"parkd\" is no waiting_room\n  hint: did you mean parked?",
        ),
        ("type = \"stream\"", "type: \"stream\" is no type\n  hint: known here: quorum, classic"),
        ("delivery_limit = 4", "delivery_limit: 4 is out of range: from 5 to 10000"),
        ("max_length = 0", "max_length: 0 is out of range: from 1 to 10000000"),
        ("version = 0", "version: 0 is out of range: from 1 to 999"),
        (
            "dead_letter_exchange = \"dlx\"",
            "dead_letter_exchange: refused: each of these queues gets the dead letters of all consumers: the wrong team is called, and a replay puts foreign events into a queue\n  hint: dead-letter by name: exchange \"\" and the queue's own .dlq as routing key",
        ),
        (
            "message_ttl = \"5s\"",
            "message_ttl: refused: the broker looks at the head of a queue only: a message of 200 ms waits behind one of 10 min\n  hint: one queue per delay: retry_tiers = [\"5s\", \"30s\"]",
        ),
    ] {
        assert_eq!(mistakes(keys), said, "{keys}");
    }
    let both = mistakes("retry_tiers = [\"5s\"]\nretry_delay = \"5s\"");
    assert!(
        both.contains("say the same thing twice\n  hint: with tiers, leave retry_delay out"),
        "{both}"
    );
    let strict = mistakes("order = \"strict\"");
    assert!(strict.contains("order: \"strict\" needs waiting_room = \"parked\""), "{strict}");
    // The hint for a misspelt key never leads to a refused one.
    let unknown = mistakes("message_tt = \"5s\"");
    assert!(unknown.contains("unknown key") && !unknown.contains("message_ttl?"), "{unknown}");
}

#[test]
fn the_page_has_every_key_and_its_default() {
    let page = include_str!("../../../docs/queues.md");
    let defaults = QueuePolicy::new("", "");
    let seconds = |delay: Duration| format!("{} s", delay.as_secs());
    let rows = [
        ("owner", "required".to_owned()),
        ("runbook", "required".to_owned()),
        ("events", "none".to_owned()),
        ("prefetch", defaults.prefetch.to_string()),
        ("workers", "`prefetch`".to_owned()),
        ("attempts", defaults.attempts.to_string()),
        ("retry_delay", seconds(defaults.retry_delay)),
        ("retry_tiers", "none".to_owned()),
        ("waiting_room", format!("`{}`", defaults.waiting_room.as_str())),
        ("order", format!("`{}`", defaults.order.as_str())),
        ("handler_timeout", seconds(defaults.handler_timeout)),
        ("type", format!("`{}`", defaults.queue_type.as_str())),
        ("delivery_limit", defaults.delivery_limit.to_string()),
        ("max_length", defaults.max_length.to_string()),
        ("version", defaults.version.to_string()),
    ];
    let unknown = mistakes("zzzzzzzzzzzzzzzz = 1");
    let mut known: Vec<&str> = unknown.split_once("known here: ").unwrap().1.split(", ").collect();
    let mut listed: Vec<&str> = rows.iter().map(|(key, _)| *key).collect();
    known.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, known, "the keys that are read");
    for (key, default) in rows {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
        let row = row.unwrap_or_else(|| panic!("{key} is not in docs/queues.md"));
        let cell = row.split('|').nth(3).unwrap_or_default().trim();
        assert_eq!(cell, default, "{key}");
    }
}

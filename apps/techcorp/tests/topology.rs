//! A service whose queue is at the broker with other arguments does not start, and says what to do.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::process::Command;

use mamparo::messaging::{Broker as _, QueuePolicy, RabbitMqBroker};
use mamparo_testkit::leavings::Leavings;
use mamparo_testkit::servers::amqp_url;
use techcorp::shop::default_policy;

#[tokio::test]
async fn lesson_t04_a_changed_delay_ends_the_start_with_the_difference_and_the_way() {
    // A version that no other shop of this run has, and no bindings: nothing comes to it.
    let version = 2 + std::process::id() % 998;
    let queue = QueuePolicy::new("notifications.orders", "team-notifications").versioned(version);
    let _leavings = Leavings::on(&amqp_url()).queue(&queue.queue);
    let broker = RabbitMqBroker::connect(&amqp_url()).await.unwrap();
    broker.declare(&queue).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let text = default_policy("notifications").unwrap();
    let text = text
        .replacen(
            "retry_delay = \"30s\"",
            &format!("retry_delay = \"10s\"\nversion = {version}"),
            1,
        )
        .replacen("sqlite:broker.db", &amqp_url(), 1)
        .replacen("127.0.0.1:8087", "127.0.0.1:0", 1);
    std::fs::write(dir.path().join("notifications.toml"), text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_techcorp"))
        .args(["notifications", "--config", "notifications.toml"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for words in [
        "x-message-ttl: ours 10000, there 30000",
        "set retry_tiers = [\"10s\"] instead of retry_delay",
        "`mamparo topology plan`",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("failed to start") && !last.contains("PRECONDITION"), "{last}");
}

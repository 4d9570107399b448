//! The throwaway servers come up, survive a crash with their data, and leave nothing behind.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use mamparo_testkit::servers::{Durability, Postgres, RabbitMq};

fn is_open(url: &str) -> bool {
    let after = url.rsplit('@').next().unwrap();
    let address: SocketAddr = after.split('/').next().unwrap().parse().unwrap();
    TcpStream::connect(address).is_ok()
}

fn psql(url: &str, sql: &str) -> String {
    let output = Command::new("psql").args([url, "-Atc", sql]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn postgres_keeps_what_was_committed_over_a_crash_and_is_gone_when_dropped() {
    let mut server = Postgres::start(Durability::Fast).unwrap();
    let url = server.url();
    psql(&url, "CREATE TABLE t AS SELECT 7 AS n");
    server.kill().unwrap();
    assert!(!is_open(&url));
    server.restart().unwrap();
    assert_eq!(psql(&url, "SELECT n FROM t"), "7");
    drop(server);
    assert!(!is_open(&url));
}

#[test]
fn rabbitmq_comes_back_after_a_crash_and_is_gone_when_dropped() {
    let mut node = RabbitMq::start().unwrap();
    let url = node.url();
    node.ctl(&["add_vhost", "kept"]).unwrap();
    node.kill().unwrap();
    assert!(!is_open(&url));
    node.restart().unwrap();
    assert!(node.ctl(&["list_vhosts"]).unwrap().lines().any(|line| line == "kept"));
    drop(node);
    assert!(!is_open(&url));
}

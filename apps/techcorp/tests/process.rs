//! Real processes: what they refuse to start with, how they stop, and what a power cut leaves.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod common;
#[path = "process/servers.rs"]
mod servers;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use common::{PLAIN, PROGRAM, Sent, Shop, Visitor, pause, until};
use mamparo::call::clock;
use mamparo::core::rng::{Rng, SeededRng};
use mamparo_testkit::database::Database;
use techcorp::db::{make, of_service, query};
use techcorp::shop::default_policy;
use techcorp::weather::Sky;

/// Runs the program in `dir` until it ends by itself.
fn techcorp(dir: &Path, words: &[&str]) -> Output {
    Command::new(PROGRAM).args(words).current_dir(dir).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn line_of(text: &str, words: &str) -> usize {
    text.lines().position(|line| line.contains(words)).unwrap() + 1
}

#[test]
fn every_mistake_of_a_policy_file_is_named_at_once_and_nothing_starts() {
    let dir = tempfile::tempdir().unwrap();
    // Held for the whole test: whoever tried to listen there would say that it is in use.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let text = default_policy("orders").unwrap();
    let text = text.replace("127.0.0.1:8082", &format!("127.0.0.1:{port}"));
    // A key with a letter missing, a time without its unit, and no owner.
    let text = text.replacen("bulkhead = {", "bulkhed = {", 1);
    let text = text.replacen("request_budget = \"3s\"", "request_budget = \"3\"", 1);
    let text = text.replacen("owner = \"team-orders\"\n", "", 1);
    std::fs::write(dir.path().join("bad.toml"), &text).unwrap();

    let output = techcorp(dir.path(), &["orders", "--config", "bad.toml"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("3 mistakes; nothing was started"), "{said}");
    let place = |words: &str| format!("bad.toml:{}", line_of(&text, words));
    let about = |key: &str| {
        let at = said.lines().position(|line| line.contains(key));
        let at = at.unwrap_or_else(|| panic!("nothing about {key}: {said}"));
        said.lines().skip(at).take(2).collect::<Vec<_>>().join("\n")
    };
    let unknown = about("dependencies.catalog.bulkhed");
    assert!(unknown.starts_with(&place("bulkhed")), "{unknown}");
    assert!(unknown.contains("hint:") && unknown.contains("bulkhead"), "{unknown}");
    let unit = about("service.request_budget");
    assert!(unit.starts_with(&place("request_budget")), "{unit}");
    let missing = about("service.owner");
    assert!(missing.starts_with(&place("[service]")), "{missing}");

    assert!(output.stdout.is_empty());
    assert!(!said.contains("listening") && !said.contains("in use"), "{said}");
    let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(files.len(), 1, "only the policy file: {files:?}");
}

#[test]
fn who_asks_for_what_there_is_not_is_told_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("orders.toml"), default_policy("orders").unwrap()).unwrap();
    for (words, reason, way_out) in [
        (&["nosuch"][..], "no such service", "hint: services are psp, mail, catalog"),
        (&["gateway", "--config", "orders.toml"], "orders.toml:3", "the file of \"orders\""),
        (&["orders", "--config", "missing.toml"], "missing.toml", "nothing was started"),
        (&["orders", "--confg", "orders.toml"], "--confg", "--config"),
        (&["demo", "--scenario", "nosuch"], "nosuch", "there are: calm"),
        (&["demo", "--for", "5s"], "5s", "10s to 1h"),
        (&["demo", "--rate", "0"], "0", "1..=200"),
        (&["demo", "--store", "mysql://h/shop"], "mysql://h/shop", "postgres://"),
        (&["demo", "--store", "sqlite:shop.db"], "sqlite:shop.db", "postgres://HOST/DATABASE"),
        (&["all", "--store", "postgres://h/t?options[search_path]=a"], "postgres://h/t", "leave"),
        (&["demo", "--broker", "sqlite:b.db"], "--broker", "hint: without --broker"),
        (&["all", "--broker", "kafka://h"], "kafka://h", "amqp://"),
        (&["demo", "--scenario", "database-restart"], "SQLite has no server", "--store-restart"),
        (
            &["demo", "--scenario", "database-restart", "--store", "postgres://h/t"],
            "your command",
            "cargo xtask demo",
        ),
        (
            &["demo", "--scenario", "broker-down", "--broker", "amqp://h"],
            "your commands",
            "--broker-stop and --broker-start",
        ),
        (&["demo", "--broker-stop", "x"], "--broker-start", "--broker"),
        (&["demo", "--store-restart", "x"], "--store", "Usage"),
    ] {
        let output = techcorp(dir.path(), words);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(reason) && said.contains(way_out), "{words:?}: {said}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(files.len(), 1, "nothing was started: {files:?}");
}

#[test]
fn an_address_in_a_policy_file_that_is_none_is_named_with_its_line_and_without_its_password() {
    let dir = tempfile::tempdir().unwrap();
    let text = default_policy("orders").unwrap();
    for (key, wrong, way_out) in [
        ("store", "postgress://shop:s3cret@db/orders", "postgres://"),
        ("broker", "rabbitmq://shop:s3cret@mq", "amqp://"),
    ] {
        let right = text.lines().find(|line| line.starts_with(key)).unwrap();
        let text = text.replace(right, &format!("{key} = \"{wrong}\""));
        std::fs::write(dir.path().join("bad.toml"), &text).unwrap();
        let output = techcorp(dir.path(), &["orders", "--config", "bad.toml"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let place = format!("bad.toml:{}", line_of(&text, wrong));
        assert!(said.contains(&place) && said.contains(&format!("service.{key}")), "{said}");
        assert!(said.contains("hint:") && said.contains(way_out), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_counts_nobody_elses_books() {
    let database = Database::create();
    let dir = tempfile::tempdir().unwrap();
    let shop = database.url();
    let theirs = of_service(&shop, "orders").unwrap();
    make(&theirs).await.unwrap();
    let output = techcorp(dir.path(), &["demo", "--store", &shop]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("has a shop already (schemas orders)"), "{said}");
    assert!(said.contains("give another, or drop them"), "{said}");
}

/// Ids of all orders in the books.
async fn ids(shop: &Visitor) -> BTreeSet<String> {
    let books = shop.books().await;
    let ids: Vec<(String,)> = books.rows(query("SELECT id FROM orders.orders")).await.unwrap();
    books.close().await;
    ids.into_iter().map(|(id,)| id).collect()
}

async fn rises(shop: &Visitor, query: &'static str, by: u64) {
    let before = shop.count(query).await;
    until(query, async || (shop.count(query).await >= before + by).then_some(())).await;
}

const MID_CHARGE: &str = "SELECT COUNT(*) FROM psp.keys k JOIN payments.charges c
     ON c.order_id = k.order_id WHERE k.status = 'CHARGED' AND c.state = 'STARTED'";
const ACCEPTED: &str = "SELECT COUNT(*) FROM orders.orders";
const LEASED_BY_ORDERS: &str = "SELECT
    (SELECT COUNT(*) FROM broker.mamparo_messages
      WHERE queue IN ('orders.saga', 'orders.saga.retry') AND owner IS NOT NULL)
  + (SELECT COUNT(*) FROM orders.mamparo_outbox_shards WHERE owner IS NOT NULL)
  + (SELECT COUNT(*) FROM orders.mamparo_idempotency WHERE phase = 'running')";

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_under_load_cuts_nobody_off_and_leaves_nothing_leased() {
    let mut shop = Shop::open(&PLAIN, &["orders"]).await;
    // Stopped twice, since what SIGTERM meets is different each time.
    let mut answered = BTreeSet::new();
    for round in ["one", "two"] {
        let stop = Cell::new(false);
        let visitor = shop.visitor();
        let story = async {
            rises(&visitor, ACCEPTED, 15).await;
            let began = clock::now();
            // `stop` fails unless the process answers SIGTERM with exit code 0.
            shop.staff.stop("orders").await.unwrap();
            let took = clock::now().since(began);
            assert!(took < Duration::from_secs(10), "{took:?}");
            assert_eq!(visitor.count(LEASED_BY_ORDERS).await, 0, "the dead hold nothing");
            let committed = ids(&visitor).await;
            assert!(
                visitor.http.get(visitor.url("orders")).send().await.is_err(),
                "nobody listens any more"
            );
            pause(Duration::from_millis(300)).await;
            shop.staff.start("orders").await.unwrap();
            rises(&visitor, ACCEPTED, 5).await;
            stop.set(true);
            committed
        };
        let (sent, committed) = tokio::join!(visitor.load(round, 6, &stop), story);
        answered.extend(sent.iter().filter_map(Sent::accepted));
        assert!(sent.iter().any(|sent| sent.accepted().is_none()), "orders were never away");
        let cut: Vec<&String> = committed.difference(&answered).collect();
        assert!(cut.is_empty(), "accepted, and never answered: {cut:?}");
        answered.extend(answers_can_be_had_again(&visitor, &sent).await);
        shop.rest().await;
        assert_eq!(ids(&visitor).await, answered, "each order is the answer to somebody's key");
    }
    shop.holds().await;
    shop.staff.stop_all().await.unwrap();
}

/// Whoever got no order tries again with the same key, and gets one. The orders of all keys.
async fn answers_can_be_had_again(visitor: &Visitor, sent: &[Sent]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for sent in sent {
        let id = match sent.accepted() {
            Some(id) => id,
            None => {
                let what = format!("{:?} after {:?}", sent.post, sent.answer);
                until(&what, async || {
                    let again = visitor.order("gateway", &sent.post).await;
                    (again.status == 201).then(|| again.id())
                })
                .await
            }
        };
        assert!(all.insert(id), "two keys, one order: {:?}", sent.post);
    }
    all
}

/// The seed of this run. A test that fails shows it: put it in the place of the entropy to see the
/// same times again.
#[expect(clippy::print_stdout, reason = "a failing test shows what it has printed")]
fn seed() -> u64 {
    let seed = clock::entropy().next_u64() >> 32;
    println!("seed {seed}");
    seed
}

#[tokio::test(flavor = "multi_thread")]
async fn payments_killed_eight_times_under_load_charge_everybody_once() {
    let mut rng = SeededRng::new(seed());
    let mut shop = Shop::open(&PLAIN, &["payments"]).await;
    shop.staff.sky("psp", Sky::Late(Duration::from_millis(150))).await.unwrap();
    let (visitor, stop) = (shop.visitor(), Cell::new(false));
    let killer = async {
        let mut mid_charge = 0;
        for _ in 0..8 {
            pause(Duration::from_millis(50 + rng.up_to(450))).await;
            shop.staff.kill("payments").await.unwrap();
            mid_charge += visitor.count(MID_CHARGE).await;
            shop.staff.start("payments").await.unwrap();
        }
        stop.set(true);
        mid_charge
    };
    let (sent, mid_charge) = tokio::join!(visitor.load("load", 4, &stop), killer);
    assert!(mid_charge > 0, "no kill met a charge in flight: the test has seen nothing");
    shop.staff.sky("psp", Sky::Clear).await.unwrap();
    let facts = shop.holds().await.facts;
    let accepted = sent.iter().filter_map(Sent::accepted).count() as u64;
    assert!(facts.accepted >= accepted, "{accepted} were answered 201: {facts:?}");
    assert_eq!(facts.confirmed, facts.accepted, "{facts:?}");
    assert_eq!((facts.charges, facts.refunds), (facts.accepted, 0), "one charge each");
    shop.staff.stop_all().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_killed_under_load_the_books_hold() {
    const VICTIMS: [&str; 4] = ["orders", "inventory", "payments", "notifications"];
    let mut rng = SeededRng::new(seed());
    let mut shop = Shop::open(&PLAIN, &VICTIMS).await;
    let (visitor, stop) = (shop.visitor(), Cell::new(false));
    let killer = async {
        for victim in VICTIMS {
            pause(Duration::from_millis(200 + rng.up_to(400))).await;
            shop.staff.kill(victim).await.unwrap();
            pause(Duration::from_millis(rng.up_to(200))).await;
            shop.staff.start(victim).await.unwrap();
        }
        rises(&visitor, ACCEPTED, 5).await;
        stop.set(true);
    };
    let (sent, ()) = tokio::join!(visitor.load("load", 4, &stop), killer);
    let orders = answers_can_be_had_again(&visitor, &sent).await;
    assert_eq!(ids(&visitor).await, orders, "each order is the answer to somebody's key");
    let facts = shop.holds().await.facts;
    assert_eq!(facts.confirmed, sent.len() as u64, "each key became one order that was paid");
    shop.staff.stop_all().await.unwrap();
}

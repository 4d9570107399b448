//! The same shop on PostgreSQL and RabbitMQ, each service in its own process.

use std::cell::Cell;
use std::time::Duration;

use mamparo::core::rng::{Rng, SeededRng};
use mamparo_testkit::database::Database;
use mamparo_testkit::servers::RabbitMq;
use techcorp::demo::engines::Engines;
use techcorp::shop::SERVICES;
use techcorp::weather::Sky;

use super::common::{PLAIN, Post, Sent, Shop, pause, until};
use super::{ACCEPTED, MID_CHARGE, answers_can_be_had_again, ids, rises, seed};

/// A shop in a database and a virtual host of its own.
async fn shop_on(node: &RabbitMq, database: &Database, host: &str) -> Shop {
    let engines = Engines {
        store: Some(database.url()),
        broker: Some(node.url_of(host).unwrap()),
        ..Engines::default()
    };
    Shop::open_on(&engines, &PLAIN, &SERVICES).await
}

/// One test, so that one broker is enough: it takes seconds to boot.
#[tokio::test(flavor = "multi_thread")]
async fn on_servers_the_books_hold_whoever_is_killed() {
    let node = RabbitMq::start().unwrap();
    every_end_of_an_order(&node).await;
    payments_are_killed_in_the_middle_of_charges(&node).await;
    everybody_is_killed(&node).await;
}

async fn every_end_of_an_order(node: &RabbitMq) {
    let database = Database::create();
    let mut shop = shop_on(node, &database, "ends").await;
    for n in 0..4 {
        shop.ordered(&Post::new(&format!("paid-{n}")).of(&format!("p-{}", n % 3 + 1), 2)).await;
    }
    shop.ordered(&Post::new("declined").of("p-dear", 1)).await;
    shop.ordered(&Post::new("short").of("p-scarce", 21)).await;
    let again = shop.order("gateway", &Post::new("paid-0").of("p-1", 2)).await;
    assert!(again.replayed(), "{again:?}");
    let facts = shop.holds().await.facts;
    assert_eq!((facts.confirmed, facts.cancelled, facts.mails), (4, 2, 6));
    shop.staff.stop_all().await.unwrap();
}

async fn payments_are_killed_in_the_middle_of_charges(node: &RabbitMq) {
    let mut rng = SeededRng::new(seed());
    let database = Database::create();
    let mut shop = shop_on(node, &database, "payments").await;
    shop.staff.sky("psp", Sky::Late(Duration::from_millis(150))).await.unwrap();
    let (visitor, stop) = (shop.visitor(), Cell::new(false));
    let killer = async {
        let mut mid_charge = 0;
        for _ in 0..4 {
            pause(Duration::from_millis(50 + rng.up_to(250))).await;
            until("a charge in flight", async || {
                (visitor.count(MID_CHARGE).await > 0).then_some(())
            })
            .await;
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
    assert_eq!((facts.charges, facts.refunds), (facts.accepted, 0), "one charge each");
    shop.staff.stop_all().await.unwrap();
}

async fn everybody_is_killed(node: &RabbitMq) {
    let mut rng = SeededRng::new(seed());
    let database = Database::create();
    let mut shop = shop_on(node, &database, "everybody").await;
    let (visitor, stop) = (shop.visitor(), Cell::new(false));
    let killer = async {
        for victim in ["orders", "inventory", "payments", "notifications"] {
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

//! What leaves a process and what does not, counted where it leaves.
//!
//! The counters belong to the process, so the tests of this file take turns.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod common;

use std::time::Duration;

use common::{Post, Shop, day, until};
use futures_util::future::join_all;
use serde_json::Value;
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use techcorp::demo::metrics;
use techcorp::weather::Sky;
use tokio::sync::Mutex;

static TURN: Mutex<()> = Mutex::const_new(());

fn state_of_the_circuit(shop: &Shop, service: &str, dependency: &str) -> Option<u8> {
    metrics::breakers(&shop.metrics()).get(&(service.to_owned(), dependency.to_owned())).copied()
}

/// Refused, honestly and in time.
#[track_caller]
fn is_refused(answer: &common::Answer) {
    answer.is_problem(503, "DEPENDENCY_UNAVAILABLE");
    answer.says_when_to_come_back();
    assert!(answer.took < Duration::from_secs(3), "{:?}", answer.took);
}

async fn list(shop: &Shop) -> Value {
    let answer = shop.get("gateway", "/v1/orders?customerId=c-1").await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    answer.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_catalog_the_shop_refuses_orders_at_once_and_lists_them_without_names() {
    let _turn = TURN.lock().await;
    // Long enough that the circuit stays open while the test looks at it.
    let scenario = day(&[
        ("orders", "dependencies/catalog/breaker/open_for", "6s"),
        ("bff", "dependencies/catalog/breaker/open_for", "1s"),
    ]);
    let mut shop = Shop::open(&scenario, &[]).await;
    let first = shop.ordered(&Post::new("before")).await;
    let page = list(&shop).await;
    assert_eq!((&page["partial"], &page["orders"][0]["id"]), (&false.into(), &first.into()));
    assert_eq!(page["orders"][0]["productNames"]["p-1"], "Chair 1", "{page}");

    // Too slow is away, too: both attempts end at their limit, and the caller hears of it in time.
    shop.staff.sky("catalog", Sky::Slow(Duration::from_secs(5))).await.unwrap();
    is_refused(&shop.order("gateway", &Post::new("slow")).await);
    shop.staff.sky("catalog", Sky::Clear).await.unwrap();

    shop.staff.stop("catalog").await.unwrap();
    for service in ["gateway", "orders"] {
        is_refused(&shop.order(service, &Post::new(&format!("away-at-{service}"))).await);
    }
    let mut tries = 0;
    until("the circuit opens", async || {
        tries += 1;
        is_refused(&shop.order("orders", &Post::new(&format!("try-{tries}"))).await);
        (state_of_the_circuit(&shop, "orders", "catalog") == Some(2)).then_some(())
    })
    .await;

    let sent = shop.sent("orders", "catalog");
    assert!(sent >= 5, "five failures open it, and {sent} calls were made");
    let posts: Vec<Post> = (0..20).map(|n| Post::new(&format!("open-{n}"))).collect();
    let at = |n: usize| if n.is_multiple_of(2) { "gateway" } else { "orders" };
    let answers = join_all(posts.iter().enumerate().map(|(n, post)| shop.order(at(n), post))).await;
    for answer in &answers {
        is_refused(answer);
        assert!(answer.says_when_to_come_back() <= 6, "never longer than the circuit is open");
    }
    assert_eq!(shop.sent("orders", "catalog"), sent, "an open circuit lets nothing out");

    // Every reader gets a page, while the circuit is open and when it lets a probe through.
    for _ in 0..10 {
        for page in join_all((0..20).map(|_| shop.get("bff", "/v1/orders?customerId=c-1"))).await {
            assert_eq!((page.status, &page.json()["partial"]), (200, &true.into()));
        }
    }
    let page = list(&shop).await;
    assert_eq!(page["partial"], true, "{page}");
    assert_eq!(page["orders"].as_array().unwrap().len(), 1, "refused orders left a trace: {page}");
    assert_eq!(page["orders"][0]["productNames"], serde_json::json!({}), "{page}");

    shop.staff.start("catalog").await.unwrap();
    let mut tries = 0;
    until("orders are accepted again", async || {
        tries += 1;
        let answer = shop.order("gateway", &Post::new(&format!("again-{tries}"))).await;
        (answer.status == 201).then_some(())
    })
    .await;
    // A refusal gives its key back: the customer who tries again with it is served.
    assert_eq!(shop.order("orders", &posts[1]).await.status, 201);
    until("lists have names again", async || (list(&shop).await["partial"] == false).then_some(()))
        .await;
    let verdict = shop.holds().await;
    assert_eq!(verdict.facts.accepted, 3, "only what was answered 201 is in the books");
    shop.staff.stop_all().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_database_the_catalog_shows_what_it_remembers_and_orders_wait_for_prices() {
    let _turn = TURN.lock().await;
    let mut shop = Shop::open(&common::PLAIN, &[]).await;
    shop.ordered(&Post::new("before")).await;
    let file = SqliteConnectOptions::new().filename(shop.dir().join("catalog.db"));
    let mut database = SqliteConnection::connect_with(&file).await.unwrap();
    let rename = sqlx::query("ALTER TABLE products RENAME TO gone");
    rename.execute(&mut database).await.unwrap();

    let answer = shop.get("gateway", "/v1/products?ids=p-1").await;
    assert_eq!((answer.status, &answer.json()["products"][0]["name"]), (200, &"Chair 1".into()));
    assert!(answer.headers.contains_key("age"), "{answer:?}");
    let status = answer.headers["cache-status"].to_str().unwrap();
    assert!(status.starts_with("catalog; hit; ttl=-"), "{status}");
    let page = list(&shop).await;
    assert_eq!(
        (&page["partial"], &page["orders"][0]["productNames"]["p-1"]),
        (&false.into(), &"Chair 1".into())
    );
    let post = Post::new("old-prices");
    for service in ["gateway", "orders"] {
        is_refused(&shop.order(service, &post).await);
    }

    let rename = sqlx::query("ALTER TABLE gone RENAME TO products");
    rename.execute(&mut database).await.unwrap();
    database.close().await.unwrap();
    assert_eq!(shop.order("gateway", &post).await.status, 201);
    assert_eq!(shop.holds().await.facts.accepted, 2);
    shop.staff.stop_all().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_time_left_is_refused_before_anything_is_sent() {
    let _turn = TURN.lock().await;
    let mut shop = Shop::open(&common::PLAIN, &[]).await;
    let outgoing = |shop: &Shop| {
        ["orders catalog", "orders customers", "gateway orders"].map(|pair| {
            let (from, to) = pair.split_once(' ').unwrap();
            shop.sent(from, to)
        })
    };
    let before = outgoing(&shop);
    for (n, left) in ["10", "5", "1", "0"].into_iter().enumerate() {
        for service in ["orders", "gateway"] {
            let post = Post { timeout_ms: Some(left), ..Post::new(&format!("late-{n}")) };
            let answer = shop.order(service, &post).await;
            answer.is_problem(503, "DEADLINE_EXCEEDED");
            answer.says_when_to_come_back();
        }
    }
    assert_eq!(outgoing(&shop), before, "catalog, customers, orders: none may hear of it");
    assert_eq!(shop.count("SELECT COUNT(*) FROM orders.orders").await, 0);
    assert_eq!(shop.count("SELECT COUNT(*) FROM orders.mamparo_idempotency").await, 0);

    // With time enough the same request goes through, and its calls are seen.
    let post = Post { timeout_ms: Some("2900"), ..Post::new("late-0") };
    assert_eq!(shop.order("gateway", &post).await.status, 201);
    let [catalog, customers, orders] = outgoing(&shop);
    assert_eq!([catalog, customers, orders], before.map(|count| count + 1));
    shop.holds().await;
    shop.staff.stop_all().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_service_says_how_it_is_and_names_the_database_that_is_gone() {
    let _turn = TURN.lock().await;
    let mut shop = Shop::open(&common::PLAIN, &[]).await;
    shop.ordered(&Post::new("one")).await;
    shop.rest().await;
    for service in techcorp::shop::SERVICES {
        for path in ["/health/live", "/health/ready"] {
            let answer = shop.get(service, path).await;
            assert_eq!(answer.status, 200, "{service}{path}: {}", answer.json());
        }
        let metrics = shop.get(service, "/metrics").await;
        assert_eq!(metrics.status, 200, "{service}");
        let text = String::from_utf8(metrics.body).unwrap();
        let catalog = text.lines().any(|line| {
            line.starts_with("circuit_breaker_state{")
                && line.contains("service=\"orders\"")
                && line.contains("dependency=\"catalog\"")
                && line.ends_with("} 0")
        });
        assert!(catalog, "{service} shows no circuit from orders to catalog:\n{text}");
    }

    // A file that is no longer there, and one that is no longer what it was.
    let moved = ["catalog", "payments", "notifications"];
    let altered = ["customers", "orders", "inventory"];
    let kept = moved.into_iter().chain(altered);
    for service in moved {
        move_file(&shop, service, "db", "away");
    }
    for service in altered {
        alter(&shop, service, "ALTER TABLE mamparo_schema RENAME TO gone").await;
    }
    for service in kept.clone() {
        let report = until(&format!("{service} is not ready"), async || {
            let answer = shop.get(service, "/health/ready").await;
            (answer.status == 503).then(|| answer.json())
        })
        .await;
        let checks = report["checks"].as_array().unwrap();
        let database = checks.iter().find(|check| check["name"] == "database").unwrap();
        assert_eq!(database["ready"], false, "{service}: {report}");
        assert!(!database["detail"].as_str().unwrap().is_empty(), "{service}: {report}");
        assert_eq!(shop.get(service, "/health/live").await.status, 200, "no reason to restart it");
    }
    assert_eq!(shop.get("gateway", "/health/ready").await.status, 200, "it has no database");
    for service in moved {
        move_file(&shop, service, "away", "db");
    }
    for service in altered {
        alter(&shop, service, "ALTER TABLE gone RENAME TO mamparo_schema").await;
    }
    for service in kept {
        until(&format!("{service} is ready again"), async || {
            (shop.get(service, "/health/ready").await.status == 200).then_some(())
        })
        .await;
    }
    shop.ordered(&Post::new("two")).await;
    shop.holds().await;
    shop.staff.stop_all().await.unwrap();
}

fn move_file(shop: &Shop, service: &str, from: &str, to: &str) {
    let file = |extension| shop.dir().join(format!("{service}.{extension}"));
    std::fs::rename(file(from), file(to)).unwrap();
}

/// Changes a service's database behind its back.
async fn alter(shop: &Shop, service: &str, sql: &'static str) {
    use sqlx::{ConnectOptions, Connection as _, sqlite::SqliteConnectOptions};
    let file = shop.dir().join(format!("{service}.db"));
    let mut database = SqliteConnectOptions::new().filename(file).connect().await.unwrap();
    sqlx::query("PRAGMA busy_timeout = 5000").execute(&mut database).await.unwrap();
    sqlx::query(sql).execute(&mut database).await.unwrap();
    database.close().await.unwrap();
}

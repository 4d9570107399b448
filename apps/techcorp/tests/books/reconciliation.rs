//! Goods that inventory holds and orders know nothing of any more.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mamparo::call::{Dependency, clock};
use mamparo::core::saga::order::OrderState;
use mamparo::core::saga::reconcile::Reconciliation;
use mamparo::http::HttpClient;
use mamparo::store::{SqliteStore, Store, outbox};
use techcorp::db::query;
use techcorp::events::{Line, OrderCreated};
use techcorp::services::inventory::jobs::{Found, Reconciler};
use techcorp::services::inventory::{rows as stock, saga};
use techcorp::services::orders::http::{Orders, router};
use techcorp::services::orders::rows as orders;
use techcorp::services::orders::saga::Deadlines;
use tracing_subscriber::fmt::MakeWriter;

use super::ground::{Fresh, Ground, on_both};

const HOUR: Duration = Duration::from_secs(3_600);

fn lines() -> Vec<Line> {
    vec![Line { product_id: "p-1".to_owned(), quantity: 2 }]
}

fn client(url: &str) -> HttpClient {
    HttpClient::new(url, Dependency::builder("orders").service("inventory").build().unwrap())
        .unwrap()
}

/// Orders' own HTTP side over a database with these orders. Its address, and what keeps it alive.
async fn orders_with(known: &[(&str, OrderState)]) -> (String, impl Sized) {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    store.apply(orders::SCHEMA).await.unwrap();
    for (id, state) in known {
        let mut tx = store.begin().await.unwrap();
        let row = orders::OrderRow {
            id: (*id).to_owned(),
            customer_id: "c-1".to_owned(),
            lines: lines(),
            total_cents: 500,
            state: *state,
            version: 0,
            reason: None,
            created: clock::wall(),
        };
        orders::insert(&mut tx, &row, None).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    let nowhere = client("http://127.0.0.1:9");
    let router = router(Orders {
        store,
        catalog: nowhere.clone(),
        customers: nowhere,
        deadlines: Deadlines::default(),
        dependency_budget: Duration::from_secs(1),
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut server = tokio::task::JoinSet::new();
    #[expect(clippy::disallowed_methods, reason = "ends with the test that owns the set")]
    server.spawn(async move { axum::serve(listener, router).await });
    (url, server)
}

/// An inventory that has held goods for these orders since `age` ago.
async fn inventory_with<DB: Fresh>(ground: &mut Ground, held: &[(&str, Duration)]) -> Store<DB> {
    let store = DB::fresh(ground, stock::SCHEMA).await;
    let mut tx = store.begin().await.unwrap();
    stock::seed(&mut tx, "p-1", 1_000).await.unwrap();
    for (id, age) in held {
        let order = OrderCreated {
            order_id: (*id).to_owned(),
            customer_id: "c-1".to_owned(),
            lines: lines(),
            total_cents: 500,
        };
        let then = clock::wall().minus(*age);
        saga::reserve(&mut tx, &order, 10 * HOUR, then).await.unwrap();
        stock::announce(&mut tx, id).await.unwrap();
    }
    store.commit(tx).await.unwrap();
    store
}

async fn active<DB: Fresh>(store: &Store<DB>) -> Vec<String> {
    let all = "SELECT order_id FROM reservations WHERE state = 'ACTIVE' ORDER BY order_id";
    let found: Vec<(String,)> = query(all).all(store).await.unwrap();
    found.into_iter().map(|(id,)| id).collect()
}

async fn released<DB: Fresh>(store: &Store<DB>) -> Vec<(String, String)> {
    let all = "SELECT order_id, reason FROM reservations WHERE state = 'RELEASED' ORDER BY 1";
    query(all).all(store).await.unwrap()
}

async fn reserved<DB: Fresh>(store: &Store<DB>) -> i64 {
    let (reserved,) = query("SELECT reserved FROM stock").first(store).await.unwrap().unwrap();
    reserved
}

/// What is logged on this thread while it lives.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let lines = tracing_subscriber::fmt().with_writer(self.clone()).with_ansi(false).finish();
        tracing::subscriber::set_default(lines)
    }

    fn has(&self, level: &str, words: &[&str]) -> bool {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines()
            .any(|line| line.contains(level) && words.iter().all(|word| line.contains(word)))
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn reconciler<DB: Fresh>(store: &Store<DB>, url: &str) -> Reconciler<DB> {
    Reconciler { store: store.clone(), orders: client(url), plan: Reconciliation::default() }
}

on_both!(
    goods_of_cancelled_and_unknown_orders_are_released_and_logged_and_no_others,
    without_an_answer_of_orders_nothing_is_released,
    orders_that_have_lost_their_memory_do_not_empty_the_warehouse,
    expired_reservations_are_released_once,
);

async fn goods_of_cancelled_and_unknown_orders_are_released_and_logged_and_no_others<DB: Fresh>() {
    let mut ground = Ground::default();
    let log = Log::default();
    let _listening = log.listen();
    let known = [
        ("cancelled", OrderState::Cancelled),
        ("confirmed", OrderState::Confirmed),
        ("pending", OrderState::Pending),
        ("young-cancelled", OrderState::Cancelled),
    ];
    let (url, _server) = orders_with(&known).await;
    let young = Duration::from_secs(60);
    let held = [
        ("cancelled", HOUR),
        ("confirmed", HOUR),
        ("pending", HOUR),
        ("unknown", HOUR),
        ("young-cancelled", young),
        ("young-unknown", young),
    ];
    let store = inventory_with::<DB>(&mut ground, &held).await;
    assert_eq!(reserved(&store).await, 12);

    let found = reconciler(&store, &url).run().await.unwrap();
    assert_eq!(found, Found { looked: 4, released: 2, reported: 1 });
    assert_eq!(active(&store).await, ["confirmed", "pending", "young-cancelled", "young-unknown"]);
    let because = |id: &str| (id.to_owned(), "RECONCILED".to_owned());
    assert_eq!(released(&store).await, [because("cancelled"), because("unknown")]);
    assert_eq!(reserved(&store).await, 8, "two units each are back on the shelf");
    for id in ["cancelled", "unknown"] {
        assert!(log.has("ERROR", &["discrepancy: released", id]), "{id}");
    }
    assert!(log.has("ERROR", &["discrepancy: reported", "pending"]));
    assert!(!log.has("ERROR", &["confirmed"]));
    // Others hear of it, and a second run finds nothing more to release.
    let mut said = outbox::list(&store, 100).await.unwrap();
    said.retain(|listed| listed.event.kind == "stock.released");
    let mut said: Vec<&str> = said.iter().map(|listed| listed.event.key.as_str()).collect();
    said.sort_unstable();
    assert_eq!(said, ["cancelled", "unknown"]);
    let found = reconciler(&store, &url).run().await.unwrap();
    assert_eq!(found, Found { looked: 2, released: 0, reported: 1 });
}

async fn without_an_answer_of_orders_nothing_is_released<DB: Fresh>() {
    let mut ground = Ground::default();
    let log = Log::default();
    let _listening = log.listen();
    let store = inventory_with::<DB>(&mut ground, &[("cancelled", HOUR), ("unknown", HOUR)]).await;
    let found = reconciler(&store, "http://127.0.0.1:9").run().await.unwrap();
    assert_eq!(found, Found { looked: 2, released: 0, reported: 0 });
    assert_eq!(active(&store).await, ["cancelled", "unknown"]);
    assert!(log.has("WARN", &["no answer from orders"]));
}

async fn orders_that_have_lost_their_memory_do_not_empty_the_warehouse<DB: Fresh>() {
    let mut ground = Ground::default();
    let log = Log::default();
    let _listening = log.listen();
    let ids: Vec<String> = (10..22).map(|n| format!("o-{n}")).collect();
    let held: Vec<(&str, Duration)> = ids.iter().map(|id| (id.as_str(), HOUR)).collect();
    let store = inventory_with::<DB>(&mut ground, &held).await;
    let (url, _server) = orders_with(&[]).await;
    let found = reconciler(&store, &url).run().await.unwrap();
    assert_eq!(found, Found { looked: 12, released: 0, reported: 12 });
    assert_eq!(active(&store).await, ids);
    assert!(log.has("ERROR", &["lost their memory"]));
}

async fn expired_reservations_are_released_once<DB: Fresh>() {
    let mut ground = Ground::default();
    let store = inventory_with::<DB>(&mut ground, &[("old", 20 * HOUR), ("new", HOUR)]).await;
    assert_eq!(techcorp::services::inventory::jobs::expire(&store, 100).await.unwrap(), 1);
    assert_eq!(techcorp::services::inventory::jobs::expire(&store, 100).await.unwrap(), 0);
    assert_eq!(released(&store).await, [("old".to_owned(), "EXPIRED".to_owned())]);
    assert_eq!(reserved(&store).await, 2);
}

//! Stock: what is confirmed has its goods, whatever comes late.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use mamparo::call::Dependency;
use mamparo::call::clock;
use mamparo::core::limits;
use mamparo::core::saga::reconcile::Reconciliation;
use mamparo::core::time::WallTime;
use mamparo::http::{HttpClient, serve};
use mamparo::messaging::{Answer, Handler, Message, event};
use mamparo::service::{Role, Tasks};
use mamparo::store::{SqliteStore, outbox};
use serde_json::json;
use sqlx::Sqlite;
use tokio::net::TcpListener;

use super::jobs::{self, Reconciler};
use super::rows::{self, State};
use super::saga;
use super::saga::StockSaga;
use crate::events::{Line, OrderCreated, kind};

async fn shop(units: i64) -> SqliteStore {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    store.apply(rows::SCHEMA).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    rows::seed(&mut tx, "p-1", units).await.unwrap();
    store.commit(tx).await.unwrap();
    store
}

/// What orders say of an order of three units; reservations run out at once.
async fn tell(store: &SqliteStore, kind: &str, id: &str) {
    let body = json!({ "orderId": id, "customerId": "c-1", "totalCents": 500, "reason": "LATE",
                       "lines": [{ "productId": "p-1", "quantity": 3 }] });
    let message = Message::from_event(event(kind, id, &body).unwrap(), "events");
    let saga = StockSaga { expiry: Duration::ZERO };
    let facts = Handler::<Sqlite>::prepare(&saga, &message).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    assert_eq!(saga.apply(&message, facts, &mut tx).await, Answer::Done);
    store.commit(tx).await.unwrap();
}

async fn state(store: &SqliteStore, id: &str) -> State {
    rows::find(store, id).await.unwrap().unwrap().state
}

/// (free, reserved)
async fn shelf(store: &SqliteStore) -> (i64, i64) {
    let query = sqlx::query_as("SELECT free, reserved FROM stock WHERE product_id = 'p-1'");
    query.fetch_one(store.reader()).await.unwrap()
}

async fn emitted(store: &SqliteStore) -> Vec<String> {
    let events = outbox::list(store, 100).await.unwrap();
    events.into_iter().map(|listed| listed.event.kind).collect()
}

#[tokio::test]
async fn goods_of_a_confirmed_order_are_taken_again_when_its_reservation_ran_out_first() {
    let store = shop(5).await;
    tell(&store, kind::ORDER_CREATED, "o-1").await;
    assert_eq!(shelf(&store).await, (2, 3));
    // Inventory was away, or the confirmation lay among the dead letters.
    assert_eq!(jobs::expire(&store, 100).await.unwrap(), 1);
    assert_eq!(shelf(&store).await, (5, 0));
    for _ in 0..2 {
        tell(&store, kind::ORDER_CONFIRMED, "o-1").await;
        assert_eq!((state(&store, "o-1").await, shelf(&store).await), (State::Sold, (2, 3)));
    }
    assert_eq!(jobs::expire(&store, 100).await.unwrap(), 0, "sold goods are held for good");
}

#[tokio::test]
async fn goods_that_somebody_else_has_by_now_are_not_taken_from_them() {
    let store = shop(5).await;
    tell(&store, kind::ORDER_CREATED, "o-1").await;
    jobs::expire(&store, 100).await.unwrap();
    tell(&store, kind::ORDER_CREATED, "o-2").await;
    tell(&store, kind::ORDER_CONFIRMED, "o-2").await;
    tell(&store, kind::ORDER_CONFIRMED, "o-1").await;
    assert_eq!(state(&store, "o-1").await, State::Released);
    assert_eq!(shelf(&store).await, (2, 3));
}

#[tokio::test]
async fn whatever_order_the_events_come_in_a_cancelled_order_holds_nothing() {
    let (created, cancelled) = (kind::ORDER_CREATED, kind::ORDER_CANCELLED);
    let runs: [&[&str]; 4] = [
        &[created, cancelled],
        &[cancelled, created],
        &[cancelled, created, cancelled, created],
        &[created, created, cancelled, cancelled],
    ];
    for events in runs {
        let store = shop(5).await;
        for event in events {
            tell(&store, event, "o-1").await;
        }
        assert_eq!(shelf(&store).await, (5, 0), "{events:?}");
        let said = emitted(&store).await;
        let of = |kind: &str| said.iter().filter(|said| *said == kind).count();
        assert_eq!(of(kind::STOCK_RESERVED), of(kind::STOCK_RELEASED), "{events:?}: {said:?}");
        assert!(of(kind::STOCK_RESERVED) <= 1, "{events:?}: {said:?}");
    }
}

#[tokio::test]
async fn lesson_r01_orders_without_memory_free_nothing_not_even_on_the_last_page() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let tasks = Tasks::new("orders");
    tasks.spawn(Role::Server, "orders", |stop| async move {
        let nothing = get(async || r#"{ "orders": [] }"#);
        let router = Router::new().route("/v1/orders", nothing);
        serve(listener, router, stop.cancelled_owned(), Duration::ZERO).await.map(|_| ())
    });
    let dependency = Dependency::builder("orders").attempt_timeout(Duration::from_secs(5));
    let orders = HttpClient::new(&url, dependency.build().unwrap()).unwrap();
    let store = shop(1_000).await;
    for number in 0..limits::BATCH_MAX + 5 {
        tell(&store, kind::ORDER_CREATED, &format!("o-{number}")).await;
    }
    store.apply("UPDATE reservations SET reserved_ms = 0").await.unwrap();
    let reconciler = Reconciler { store: store.clone(), orders, plan: Reconciliation::default() };
    let found = reconciler.run().await.unwrap();
    assert_eq!((found.looked, found.released, found.reported), (105, 0, 105));
}

#[tokio::test]
async fn an_order_that_is_short_of_one_line_takes_none() {
    let store = shop(2).await;
    tell(&store, kind::ORDER_CREATED, "o-1").await;
    assert_eq!((state(&store, "o-1").await, shelf(&store).await), (State::Rejected, (2, 0)));
    assert_eq!(emitted(&store).await, [kind::STOCK_REJECTED]);
    let found = rows::active_before(&store, WallTime::from_unix_millis(i64::MAX), "", 9);
    assert!(found.await.unwrap().is_empty());
}

/// A reservation by hand, through the same door as the HTTP route.
async fn by_hand(store: &SqliteStore, id: &str, expiry: Duration) {
    let order = OrderCreated {
        order_id: id.to_owned(),
        customer_id: "c-1".to_owned(),
        lines: vec![Line { product_id: "p-1".to_owned(), quantity: 3 }],
        total_cents: 500,
    };
    let mut tx = store.begin().await.unwrap();
    saga::reserve(&mut tx, &order, expiry, clock::wall()).await.unwrap();
    store.commit(tx).await.unwrap();
}

#[tokio::test]
async fn a_reservation_by_hand_is_nobody_elses_business_until_its_order_comes() {
    let store = shop(5).await;
    by_hand(&store, "o-1", Duration::from_secs(60)).await;
    assert_eq!(shelf(&store).await, (2, 3));
    assert!(emitted(&store).await.is_empty(), "nobody is charged for an order that is not there");
    for _ in 0..2 {
        tell(&store, kind::ORDER_CREATED, "o-1").await;
        assert_eq!(shelf(&store).await, (2, 3));
        assert_eq!(emitted(&store).await, [kind::STOCK_RESERVED]);
    }

    by_hand(&store, "o-2", Duration::ZERO).await;
    assert_eq!(state(&store, "o-2").await, State::Rejected, "two are left and three were wanted");
    tell(&store, kind::ORDER_CREATED, "o-2").await;
    assert_eq!(emitted(&store).await, [kind::STOCK_RESERVED, kind::STOCK_REJECTED]);
}

#[tokio::test]
async fn a_reservation_by_hand_that_ran_out_goes_as_quietly_as_it_came() {
    let store = shop(5).await;
    by_hand(&store, "o-1", Duration::ZERO).await;
    assert_eq!(jobs::expire(&store, 100).await.unwrap(), 1);
    assert_eq!((shelf(&store).await, emitted(&store).await.len()), ((5, 0), 0));
    tell(&store, kind::ORDER_CREATED, "o-1").await;
    assert_eq!(emitted(&store).await, [kind::STOCK_REJECTED], "its order is not left waiting");
}

//! Two transactions that meet at one row, on a database that lets them run together.

use std::time::Duration;

use futures_util::FutureExt as _;
use mamparo::call::{Dependency, clock};
use mamparo::core::saga::order::{OrderEvent, OrderState, Then};
use mamparo::http::HttpClient;
use mamparo::messaging::{Answer, Handler, Message, event};
use mamparo::store::Store;
use sqlx::Postgres;
use techcorp::events::{Line, kind};
use techcorp::services::inventory::rows as stock;
use techcorp::services::orders::rows::{self as orders, OrderRow};
use techcorp::services::orders::saga::{Applied, Deadlines, apply};
use techcorp::services::payments::psp::Psp;
use techcorp::services::payments::rows::{self as charges, State};
use techcorp::services::payments::saga::PaymentSaga;

use super::ground::{Fresh as _, Ground};

/// Runs `first` until it waits for somebody, then what frees it, then `first` to its end.
async fn meanwhile<T>(first: impl Future<Output = T>, frees: impl Future<Output = ()>) -> T {
    let mut first = Box::pin(first.fuse());
    let waited = tokio::time::timeout(Duration::from_millis(200), &mut first).await;
    assert!(waited.is_err(), "it did not wait");
    frees.await;
    first.await
}

#[tokio::test]
async fn lesson_w10_an_order_that_somebody_moves_is_waited_for_and_then_seen_as_it_is() {
    let mut ground = Ground::default();
    let store = Postgres::fresh(&mut ground, orders::SCHEMA).await;
    let row = OrderRow {
        id: "o-1".to_owned(),
        customer_id: "c-1".to_owned(),
        lines: Vec::new(),
        total_cents: 500,
        state: OrderState::Pending,
        version: 0,
        reason: None,
        created: clock::wall(),
    };
    let mut tx = store.begin().await.unwrap();
    orders::insert(&mut tx, &row, None).await.unwrap();
    store.commit(tx).await.unwrap();

    let (limits, now) = (Deadlines::default(), clock::wall());
    let mut first = store.begin().await.unwrap();
    apply(&mut first, "o-1", OrderEvent::PaymentConfirmed, &limits, now).await.unwrap();
    let mut second = store.begin().await.unwrap();
    let late = apply(&mut second, "o-1", OrderEvent::DeadlinePassed, &limits, now);
    let late = meanwhile(late, async { store.commit(first).await.unwrap() }).await;
    assert_eq!(late.unwrap(), Applied::By(Then::Known), "it was confirmed in between");
    store.commit(second).await.unwrap();
    let order = orders::find(&store, "o-1").await.unwrap().unwrap();
    assert_eq!(order.state, OrderState::Confirmed);
}

#[tokio::test]
async fn a_cancellation_that_meets_the_begin_of_a_charge_reads_again_and_refunds() {
    let mut ground = Ground::default();
    let store = Postgres::fresh(&mut ground, charges::SCHEMA).await;
    let nowhere = Dependency::builder("psp").build().unwrap();
    let psp = Psp::new(HttpClient::new("http://127.0.0.1:9", nowhere).unwrap());
    let saga = PaymentSaga { store: store.clone(), psp };
    let body = serde_json::json!({ "orderId": "o-1", "customerId": "c-1", "reason": "LATE" });
    let message =
        Message::from_event(event(kind::ORDER_CANCELLED, "o-1", &body).unwrap(), "events");

    let mut charge = store.begin().await.unwrap();
    assert!(charges::start(&mut charge, "o-1", State::Started, 500, clock::wall()).await.unwrap());
    let facts = saga.prepare(&message).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    let cancelling = saga.apply(&message, facts, &mut tx);
    let answer = meanwhile(cancelling, async { store.commit(charge).await.unwrap() }).await;
    assert_eq!(answer, Answer::Defer { delay: Duration::ZERO }, "nobody's attempt");
    tx.rollback().await.unwrap();

    let facts = saga.prepare(&message).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    assert_eq!(saga.apply(&message, facts, &mut tx).await, Answer::Done);
    store.commit(tx).await.unwrap();
    let charge = charges::find(&store, "o-1").await.unwrap().unwrap();
    assert_eq!(charge.state, State::RefundDue, "what may have been charged goes back");
}

async fn take(store: &Store<Postgres>, lines: &[Line]) {
    let mut tx = store.begin().await.unwrap();
    assert_eq!(stock::take(&mut tx, lines).await.unwrap(), None);
    store.commit(tx).await.unwrap();
}

#[tokio::test]
async fn orders_that_want_the_same_goods_the_other_way_round_wait_in_a_row() {
    let mut ground = Ground::default();
    let store = Postgres::fresh(&mut ground, stock::SCHEMA).await;
    let mut tx = store.begin().await.unwrap();
    let line = |product: &str| Line { product_id: product.to_owned(), quantity: 1 };
    for product in ["p-1", "p-2", "p-3"] {
        stock::seed(&mut tx, product, 1_000).await.unwrap();
    }
    store.commit(tx).await.unwrap();
    let up = [line("p-1"), line("p-2"), line("p-3")];
    let down = [line("p-3"), line("p-2"), line("p-1")];
    // Locked as they stand in the order, two of these would deadlock within a few rounds.
    let buyers = (0..8).map(|buyer| {
        let (store, lines) = (&store, if buyer % 2 == 0 { &up } else { &down });
        async move {
            for _ in 0..20 {
                take(store, lines).await;
            }
        }
    });
    futures_util::future::join_all(buyers).await;
    let left = techcorp::db::query("SELECT SUM(free)::bigint FROM stock");
    assert_eq!(left.first::<_, (i64,)>(&store).await.unwrap(), Some((3 * (1_000 - 160),)));
}

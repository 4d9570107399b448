//! The order's saga on a real database: what the table decides is what the rows say.

use std::time::Duration;

use mamparo::core::saga::order::{OrderEvent, OrderState, Then};
use mamparo::core::saga::watchdog::Watchdog;
use mamparo::core::time::WallTime;
use mamparo::messaging::{AnyBroker, Broker, Confirm, Message, QueuePolicy, event};
use mamparo::store::{SqliteStore, outbox};

use super::rows::{self, OrderRow};
use super::saga::{Applied, Deadlines, apply};
use super::watch::OrderWatch;
use crate::events::Line;

const NOW: WallTime = WallTime::from_unix_millis(1_000_000);

fn deadlines() -> Deadlines {
    let minutes = |state: &str, n: u64| (state.to_owned(), Duration::from_secs(60 * n));
    Deadlines::new([minutes("PENDING", 10), minutes("STOCK_RESERVED", 10)])
}

async fn shop() -> (SqliteStore, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("sqlite:{}", dir.path().join("orders.db").display());
    let store = SqliteStore::open(&address).await.unwrap();
    store.apply(rows::SCHEMA).await.unwrap();
    (store, dir)
}

async fn order(store: &SqliteStore, id: &str, at: WallTime) {
    let row = OrderRow {
        id: id.to_owned(),
        customer_id: "c-1".to_owned(),
        lines: vec![Line { product_id: "p-1".to_owned(), quantity: 1 }],
        total_cents: 500,
        state: OrderState::Pending,
        version: 0,
        reason: None,
        created: at,
    };
    let mut tx = store.begin().await.unwrap();
    rows::insert(&mut tx, &row, deadlines().due(row.state, at)).await.unwrap();
    store.commit(tx).await.unwrap();
}

async fn tell(store: &SqliteStore, id: &str, event: OrderEvent, at: WallTime) -> Applied {
    let mut tx = store.begin().await.unwrap();
    let applied = apply(&mut tx, id, event, &deadlines(), at).await.unwrap();
    store.commit(tx).await.unwrap();
    applied
}

async fn find(store: &SqliteStore, id: &str) -> OrderRow {
    rows::find(store, id).await.unwrap().unwrap()
}

async fn deadline(store: &SqliteStore, id: &str) -> Option<i64> {
    let query = sqlx::query_scalar("SELECT deadline_ms FROM orders WHERE id = ?");
    query.bind(id).fetch_one(store.reader()).await.unwrap()
}

async fn emitted(store: &SqliteStore) -> Vec<String> {
    let events = outbox::list(store, 100).await.unwrap();
    events.into_iter().map(|listed| listed.event.kind).collect()
}

async fn watch(store: &SqliteStore) -> OrderWatch<sqlx::Sqlite> {
    let broker = AnyBroker::open("sqlite::memory:").await.unwrap();
    broker.declare(&QueuePolicy::new("orders.saga", "team-orders")).await.unwrap();
    let (store, watchdog) = (store.clone(), Watchdog::default());
    OrderWatch { store, watchdog, deadlines: deadlines(), broker }
}

#[tokio::test]
async fn an_order_moves_and_tells_the_others_in_one_transaction() {
    let (store, _dir) = shop().await;
    order(&store, "o-1", NOW).await;
    tell(&store, "o-1", OrderEvent::StockReserved, NOW).await;
    assert_eq!(find(&store, "o-1").await.state, OrderState::StockReserved);
    tell(&store, "o-1", OrderEvent::PaymentConfirmed, NOW).await;
    assert_eq!(find(&store, "o-1").await.state, OrderState::Confirmed);
    assert_eq!(emitted(&store).await, ["order.confirmed"]);

    order(&store, "o-2", NOW).await;
    let mut tx = store.begin().await.unwrap();
    apply(&mut tx, "o-2", OrderEvent::StockRejected, &deadlines(), NOW).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(find(&store, "o-2").await.state, OrderState::Pending, "no event, no transition");
    assert_eq!(emitted(&store).await, ["order.confirmed"]);
}

#[tokio::test]
async fn lesson_w01_a_late_success_meets_a_compare_and_set_and_starts_the_refund() {
    let (store, _dir) = shop().await;
    order(&store, "o-1", NOW).await;
    tell(&store, "o-1", OrderEvent::StockReserved, NOW).await;
    tell(&store, "o-1", OrderEvent::DeadlinePassed, NOW).await;
    let late = tell(&store, "o-1", OrderEvent::PaymentConfirmed, NOW).await;
    assert_eq!(late, Applied::By(Then::CancelAgain));
    let order = find(&store, "o-1").await;
    assert_eq!(
        (order.state, order.reason.as_deref()),
        (OrderState::Cancelled, Some("PAYMENT_TIMEOUT"))
    );
    assert_eq!(emitted(&store).await, ["order.cancelled", "order.cancelled"]);
}

#[tokio::test]
async fn messages_c23_a_decision_on_an_old_version_changes_nothing() {
    let (store, _dir) = shop().await;
    order(&store, "o-1", NOW).await;
    let read_before = find(&store, "o-1").await;
    tell(&store, "o-1", OrderEvent::StockReserved, NOW).await;
    let mut tx = store.begin().await.unwrap();
    let to = OrderState::Cancelled;
    let moved = rows::advance(&mut tx, &read_before, to, None, None, NOW).await.unwrap();
    assert!(!moved);
    store.commit(tx).await.unwrap();
    assert_eq!(find(&store, "o-1").await.state, OrderState::StockReserved);
}

#[tokio::test]
async fn messages_c35_an_order_is_finished_once_however_often_it_is_told() {
    let (store, _dir) = shop().await;
    order(&store, "o-1", NOW).await;
    for event in [OrderEvent::StockReserved, OrderEvent::PaymentConfirmed] {
        for _ in 0..3 {
            tell(&store, "o-1", event, NOW).await;
        }
    }
    assert_eq!(emitted(&store).await, ["order.confirmed"]);
    assert_eq!(find(&store, "o-1").await.version, 2);
}

#[tokio::test]
async fn lesson_w03_a_deadline_is_set_on_entry_and_moved_by_nothing_else() {
    let (store, _dir) = shop().await;
    order(&store, "o-1", NOW).await;
    let entered = NOW.plus(Duration::from_secs(60));
    tell(&store, "o-1", OrderEvent::StockReserved, entered).await;
    let due = entered.plus(Duration::from_secs(600)).unix_millis();
    assert_eq!(deadline(&store, "o-1").await, Some(due));
    let touched = entered.plus(Duration::from_secs(300));
    tell(&store, "o-1", OrderEvent::StockReserved, touched).await;
    tell(&store, "o-1", OrderEvent::PaymentRefunded, touched).await;
    assert_eq!(deadline(&store, "o-1").await, Some(due));
    tell(&store, "o-1", OrderEvent::PaymentConfirmed, touched).await;
    assert_eq!(deadline(&store, "o-1").await, None, "a final state has none");
}

#[tokio::test]
async fn lesson_w06_broken_rows_do_not_hold_the_others_back() {
    let (store, _dir) = shop().await;
    for id in ["o-1", "o-2", "o-3"] {
        order(&store, id, NOW).await;
    }
    store.apply("UPDATE orders SET lines = 'rubbish' WHERE id = 'o-1'").await.unwrap();
    // These orders were due decades ago by the wall clock that the watchdog reads.
    let mut watch = watch(&store).await;
    watch.watchdog.batch = 1;
    assert_eq!(watch.cycle().await.unwrap(), 1, "the broken row comes first and is passed over");
    assert_eq!(watch.cycle().await.unwrap(), 1);
    for id in ["o-2", "o-3"] {
        assert_eq!(find(&store, id).await.state, OrderState::Cancelled);
    }
    assert_eq!(watch.cycle().await.unwrap(), 0, "nothing is cancelled twice");
    assert_eq!(emitted(&store).await.len(), 2);
}

#[tokio::test]
async fn lesson_w05_the_longest_overdue_come_first_and_a_cycle_is_bounded() {
    let (store, _dir) = shop().await;
    for (id, minute) in [("late", 9), ("later", 3), ("latest", 0)] {
        order(&store, id, NOW.plus(Duration::from_secs(60 * minute))).await;
    }
    let mut watch = watch(&store).await;
    watch.watchdog.batch = 2;
    assert_eq!(watch.cycle().await.unwrap(), 2);
    assert_eq!(find(&store, "late").await.state, OrderState::Pending);
    assert_eq!(watch.watchdog.pause(2), Duration::ZERO, "the next cycle starts at once");
    assert_eq!(watch.cycle().await.unwrap(), 1);
}

#[tokio::test]
async fn lesson_w13_an_order_with_a_dead_letter_of_ours_is_left_to_people() {
    let (store, _dir) = shop().await;
    for id in ["o-1", "o-2"] {
        order(&store, id, NOW).await;
    }
    let watch = watch(&store).await;
    // Paid, and orders could not take it in.
    let paid = event("payment.confirmed", "o-1", &serde_json::json!({ "orderId": "o-1" })).unwrap();
    let letter = Message::from_event(paid, "");
    let dead = watch.broker.publish("", "orders.saga.dlq", &letter).await;
    assert_eq!(dead, Confirm::Confirmed);

    assert_eq!(watch.cycle().await.unwrap(), 1);
    assert_eq!(find(&store, "o-2").await.state, OrderState::Cancelled);
    assert_eq!(find(&store, "o-1").await.state, OrderState::Pending, "nobody refunds a bug");

    // Meanwhile its reservation runs out: that ends it, and the payment is given back when the
    // letter is replayed, however late.
    tell(&store, "o-1", OrderEvent::StockReleased, NOW).await;
    let order = find(&store, "o-1").await;
    let ended = (order.state, order.reason.as_deref());
    assert_eq!(ended, (OrderState::Cancelled, Some("RESERVATION_EXPIRED")));
    let late = tell(&store, "o-1", OrderEvent::PaymentConfirmed, NOW).await;
    assert_eq!(late, Applied::By(Then::CancelAgain));
}

#[test]
fn a_state_without_a_limit_is_found_at_the_start() {
    let typo = Deadlines::new([("PENDING".to_owned(), Duration::from_secs(600))]);
    assert_eq!(typo.missing().collect::<Vec<_>>(), [OrderState::StockReserved]);
    assert_eq!(deadlines().missing().count(), 0);
}

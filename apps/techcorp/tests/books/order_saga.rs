//! How an order moves: every rule of its table, carried out in a real database.

use std::time::Duration;

use mamparo::core::saga::order::{OrderEvent, OrderState, Then};
use mamparo::core::time::WallTime;
use mamparo::messaging::{Answer, Handler, Message};
use mamparo::store::Store;
use techcorp::db::query;
use techcorp::events::Line;
use techcorp::services::orders::rows::{self, OrderRow, SCHEMA};
use techcorp::services::orders::saga::{Applied, Deadlines, OrderSaga, apply};

use super::ground::{Fresh, Ground, on_both};

use OrderEvent::{
    DeadlinePassed, PaymentConfirmed, PaymentRefunded, PaymentRejected, StockRejected,
    StockReleased, StockReserved,
};
use OrderState::{Cancelled, Confirmed, Pending, StockReserved as Reserved};

const ID: &str = "o-1";
const NOW: WallTime = WallTime::from_unix_millis(1_000_000);

/// State, event, where it leads, and what orders say to the others.
const EXPECTED: [(OrderState, OrderEvent, OrderState, Option<&str>); 28] = [
    (Pending, StockReserved, Reserved, None),
    (Pending, StockRejected, Cancelled, Some("order.cancelled")),
    (Pending, StockReleased, Cancelled, Some("order.cancelled")),
    (Pending, PaymentConfirmed, Confirmed, Some("order.confirmed")),
    (Pending, PaymentRejected, Cancelled, Some("order.cancelled")),
    (Pending, PaymentRefunded, Pending, None),
    (Pending, DeadlinePassed, Cancelled, Some("order.cancelled")),
    (Reserved, StockReserved, Reserved, None),
    (Reserved, StockRejected, Reserved, None),
    (Reserved, StockReleased, Cancelled, Some("order.cancelled")),
    (Reserved, PaymentConfirmed, Confirmed, Some("order.confirmed")),
    (Reserved, PaymentRejected, Cancelled, Some("order.cancelled")),
    (Reserved, PaymentRefunded, Reserved, None),
    (Reserved, DeadlinePassed, Cancelled, Some("order.cancelled")),
    (Confirmed, StockReserved, Confirmed, None),
    (Confirmed, StockRejected, Confirmed, None),
    (Confirmed, StockReleased, Confirmed, None),
    (Confirmed, PaymentConfirmed, Confirmed, None),
    (Confirmed, PaymentRejected, Confirmed, None),
    (Confirmed, PaymentRefunded, Confirmed, None),
    (Confirmed, DeadlinePassed, Confirmed, None),
    // What succeeds too late is undone: the others hear of the cancellation again.
    (Cancelled, StockReserved, Cancelled, Some("order.cancelled")),
    (Cancelled, StockRejected, Cancelled, None),
    (Cancelled, StockReleased, Cancelled, None),
    (Cancelled, PaymentConfirmed, Cancelled, Some("order.cancelled")),
    (Cancelled, PaymentRejected, Cancelled, None),
    (Cancelled, PaymentRefunded, Cancelled, None),
    (Cancelled, DeadlinePassed, Cancelled, None),
];

fn deadlines() -> Deadlines {
    Deadlines::new([
        ("PENDING".to_owned(), Duration::from_secs(60)),
        ("STOCK_RESERVED".to_owned(), Duration::from_secs(90)),
    ])
}

fn order() -> OrderRow {
    OrderRow {
        id: ID.to_owned(),
        customer_id: "c-1".to_owned(),
        lines: vec![Line { product_id: "p-1".to_owned(), quantity: 2 }],
        total_cents: 500,
        state: Pending,
        version: 0,
        reason: None,
        created: NOW,
    }
}

/// A database with one order in `state`.
async fn with_order<DB: Fresh>(ground: &mut Ground, state: OrderState) -> Store<DB> {
    let store = DB::fresh(ground, SCHEMA).await;
    let mut tx = store.begin().await.unwrap();
    let due = deadlines().due(Pending, NOW);
    rows::insert(&mut tx, &order(), due).await.unwrap();
    let (final_, reason) = (state.is_final(), (state == Cancelled).then_some("PAYMENT_TIMEOUT"));
    query(
        "UPDATE orders SET state = $1, reason = $2,
                           deadline_ms = CASE WHEN $3 = 1 THEN NULL ELSE deadline_ms END",
    )
    .bind(state.name())
    .bind(reason)
    .bind(final_)
    .run(&mut tx)
    .await
    .unwrap();
    store.commit(tx).await.unwrap();
    store
}

async fn tell<DB: Fresh>(store: &Store<DB>, event: OrderEvent) -> Applied {
    let mut tx = store.begin().await.unwrap();
    let applied = apply(&mut tx, ID, event, &deadlines(), NOW).await.unwrap();
    store.commit(tx).await.unwrap();
    applied
}

/// All that the database knows of the order, its history apart.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
struct Stands {
    state: String,
    version: i64,
    reason: Option<String>,
    deadline_ms: Option<i64>,
    released: i64,
    refunded: i64,
}

async fn stands<DB: Fresh>(store: &Store<DB>) -> Stands {
    let all = "SELECT state, version, reason, deadline_ms, released, refunded FROM orders";
    query(all).first(store).await.unwrap().unwrap()
}

async fn emitted<DB: Fresh>(store: &Store<DB>) -> Vec<(String, String)> {
    let all = "SELECT kind, key FROM mamparo_outbox ORDER BY seq";
    query(all).all(store).await.unwrap()
}

async fn history<DB: Fresh>(store: &Store<DB>) -> Vec<(String, String)> {
    let all = "SELECT event, state FROM order_history WHERE event <> 'created' ORDER BY id";
    query(all).all(store).await.unwrap()
}

on_both!(
    every_rule_is_carried_out_in_the_database,
    an_event_that_comes_twice_changes_nothing_but_the_history,
    who_read_an_older_version_moves_nothing,
    an_order_that_moved_in_between_is_a_race_and_leaves_no_trace,
);

async fn every_rule_is_carried_out_in_the_database<DB: Fresh>() {
    let mut ground = Ground::default();
    for state in OrderState::ALL {
        for event in OrderEvent::ALL {
            let rows = EXPECTED.iter().filter(|row| (row.0, row.1) == (state, event));
            assert_eq!(rows.count(), 1, "{state:?} {event:?}");
        }
    }
    for (from, event, to, said) in EXPECTED {
        let what = format!("{event:?} in {from:?}");
        let store = with_order::<DB>(&mut ground, from).await;
        let before = stands(&store).await;
        let Applied::By(then) = tell(&store, event).await else { panic!("{what}: raced") };
        let after = stands(&store).await;
        assert_eq!(after.state, to.name(), "{what}");
        let said: Vec<_> = said.map(|kind| (kind.to_owned(), ID.to_owned())).into_iter().collect();
        assert_eq!(emitted(&store).await, said, "{what}");
        let line = (format!("{event:?}"), to.name().to_owned());
        assert_eq!(history(&store).await, [line], "{what}");

        let moved = i64::from(from != to);
        assert_eq!(after.version, before.version + moved, "{what}");
        let due = if from == to {
            before.deadline_ms
        } else {
            deadlines().due(to, NOW).map(WallTime::unix_millis)
        };
        assert_eq!(after.deadline_ms, due, "{what}: a final state is never overdue");
        let reason = match then {
            Then::Cancel(reason) => Some(reason.code().to_owned()),
            Then::Nothing
            | Then::Confirm
            | Then::CancelAgain
            | Then::Known
            | Then::NoteReleased
            | Then::NoteRefunded
            | Then::Alarm => before.reason,
        };
        assert_eq!(after.reason, reason, "{what}: the first reason stays");
        let released = event == StockReleased && to == Cancelled;
        let refunded = event == PaymentRefunded && to == Cancelled;
        let noted = (i64::from(released), i64::from(refunded));
        assert_eq!((after.released, after.refunded), noted, "{what}");
    }
}

async fn an_event_that_comes_twice_changes_nothing_but_the_history<DB: Fresh>() {
    let mut ground = Ground::default();
    for (from, event, to, _) in EXPECTED {
        let what = format!("{event:?} in {from:?}");
        let store = with_order::<DB>(&mut ground, from).await;
        tell(&store, event).await;
        let (once, said) = (stands(&store).await, emitted(&store).await);
        let Applied::By(again) = tell(&store, event).await else { panic!("{what}: raced") };
        assert_eq!(stands(&store).await, once, "{what}");
        assert_eq!(history(&store).await.len(), 2, "{what}");
        if again == Then::CancelAgain {
            // Saying it again is the point of that rule; its receivers know it by the order.
            assert_eq!(to, Cancelled, "{what}");
            assert_eq!(emitted(&store).await.len(), said.len() + 1, "{what}");
        } else {
            assert_eq!(emitted(&store).await, said, "{what}");
        }
    }
}

async fn who_read_an_older_version_moves_nothing<DB: Fresh>() {
    let mut ground = Ground::default();
    let store = with_order::<DB>(&mut ground, Pending).await;
    let mut tx = store.begin().await.unwrap();
    let read = rows::hold(&mut tx, ID).await.unwrap().unwrap();
    assert!(rows::advance(&mut tx, &read, Reserved, None, None, NOW).await.unwrap());
    assert!(!rows::advance(&mut tx, &read, Cancelled, None, None, NOW).await.unwrap(), "state");
    let stale = OrderRow { state: Reserved, ..read };
    assert!(!rows::advance(&mut tx, &stale, Cancelled, None, None, NOW).await.unwrap(), "version");
    store.commit(tx).await.unwrap();
    assert_eq!(
        (stands(&store).await.state.as_str(), stands(&store).await.version),
        ("STOCK_RESERVED", 1)
    );
}

async fn an_order_that_moved_in_between_is_a_race_and_leaves_no_trace<DB: Fresh>() {
    let mut ground = Ground::default();
    let store = with_order::<DB>(&mut ground, Pending).await;
    // The database refuses the compare-and-set as it would after somebody else's.
    store.apply(DB::RACE).await.unwrap();
    assert_eq!(tell(&store, StockReserved).await, Applied::Raced);
    assert!(emitted(&store).await.is_empty());
    assert!(history(&store).await.is_empty());

    let saga = OrderSaga { deadlines: deadlines() };
    let message = Message {
        id: "m-1".to_owned(),
        kind: "stock.reserved".to_owned(),
        key: ID.to_owned(),
        exchange: "events".to_owned(),
        routing_key: "stock.reserved".to_owned(),
        headers: Default::default(),
        body: br#"{"orderId": "o-1"}"#.to_vec(),
    };
    let facts = Handler::<DB>::prepare(&saga, &message).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    let answer = saga.apply(&message, facts, &mut tx).await;
    assert!(
        matches!(answer, Answer::Defer { delay: Duration::ZERO }),
        "nobody's attempt: {answer:?}"
    );
}
